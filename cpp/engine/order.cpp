// Movements of clocks: see order.hpp.
#include "order.hpp"

#include <utility>

namespace check {

// The number of slots stays small however many streams come and go: a new stream continues to count in the slot of a
// dead stream, as soon as the host knows the dead stream's work to be done. That work is then before all work of the
// new stream, and events that were recorded on the dead stream keep their meaning.
Stream* Order::free_slot() {
    if (looked_ != host_changes_) {
        looked_ = host_changes_;
        remove_if(dead_, [&](Stream* dead) {
            if (is_free(*dead)) free_.push_back(dead);
            return is_free(*dead);
        });
    }
    if (free_.empty()) {
        streams_.push_back(std::make_unique<Stream>());
        streams_.back()->slot = u32(streams_.size() - 1);
        return streams_.back().get();
    }
    Stream* old = free_.back();
    free_.pop_back();
    return old;
}

Stream* Order::create(u64 context, u64 id, bool blocking, bool legacy) {
    Stream* stream = free_slot();
    Stream fresh;
    fresh.id = id;
    fresh.context = context;
    fresh.blocking = blocking || legacy;
    fresh.legacy = legacy;
    fresh.slot = stream->slot;
    fresh.newest = stream->newest;
    fresh.clock.set(fresh.now());
    *stream = std::move(fresh);
    live_.push_back(stream);
    if (legacy) legacy_[context] = stream;
    return stream;
}

void Order::destroy(Stream* stream) {
    if (stream->dead) return;
    stream->dead = true;
    Ended& ended = ended_[stream->context];
    if (host_.covers(ended.all) && !ended.all.has_unseen()) ended = {};
    ended.all.join(stream->clock);
    if (stream->blocking && !stream->legacy) ended.blocking.join(stream->clock);
    stream->clock = {};
    remove_if(live_, [&](Stream* one) { return one == stream; });
    (is_free(*stream) ? free_ : dead_).push_back(stream);
}

void Order::destroy_context(u64 context) {
    for (auto& stream : streams_)
        if (stream->context == context) destroy(stream.get());
    ended_[context].blocking = {};
    legacy_.erase(context);
}

void Order::join(Stream& stream, const Clock& clock) {
    stream.clock.join(clock);
    note_change(stream);
}

// The stream joins all clocks anew at its next operation.
void Order::set_back(Stream& stream, const Clock& clock) {
    stream.clock = clock;
    stream.clock.set(stream.now());
    stream.host_seen = stream.legacy_seen = stream.collected = stream.collected_for = 0;
    if (stream.legacy) {
        for (Stream* other : live_)
            if (other->context == stream.context) other->seen_by_legacy = 0;
        ended_[stream.context].blocking.join(stream.taken);
    }
    note_change(stream);
}

void Order::refuse(Stream& stream, Time time) {
    if (stream.collected_for == time.number && stream.now() == time) set_back(stream, stream.before);
}

// The legacy stream comes after its context's blocking streams, and after what destroyed ones have waited for. A wait
// may have changed a stream's clock since the stream's last operation: so the changes of the clock count, not the
// operations.
void Order::collect(Stream& legacy) {
    if (legacy.collected == other_changes_) return;
    legacy.collected = other_changes_;
    legacy.collected_for = legacy.newest + 1;
    legacy.before = legacy.clock;
    legacy.taken = {};
    for (Stream* other : live_) {
        if (other == &legacy || !other->blocking || other->context != legacy.context) continue;
        if (other->seen_by_legacy == other->changes) continue;
        join(legacy, other->clock);
        other->seen_by_legacy = other->changes;
    }
    auto ended = ended_.find(legacy.context);
    if (ended == ended_.end() || ended->second.blocking.is_empty()) return;
    join(legacy, ended->second.blocking);
    legacy.taken = std::exchange(ended->second.blocking, {});
}

void Order::settle(Stream& stream) {
    if (stream.host_seen != host_changes_) {
        join(stream, host_);
        stream.host_seen = host_changes_;
    }
    if (!stream.blocking) return;
    if (stream.legacy) {
        collect(stream);
        return;
    }
    auto found = legacy_.find(stream.context);
    if (found == legacy_.end() || found->second->changes == stream.legacy_seen) return;
    stream.collected_for = stream.newest + 1;
    stream.before = stream.clock;
    join(stream, found->second->clock);
    stream.legacy_seen = found->second->changes;
}

const Event* Order::find_event(u64 handle) const {
    auto found = events_.find(handle);
    return found == events_.end() ? nullptr : &found->second;
}

// A stream that had waited unseen may have come after everything.
void Order::host_may_learn(const Clock& clock) {
    if (clock.has_unseen())
        for (auto& stream : streams_) doubtful_.set(stream->now());
    doubtful_.join(clock);
}

void Order::host_learns(const Clock& clock) {
    if (clock.has_unseen()) host_may_learn(clock);
    host_.join(clock);
    host_.forget_unseen();
    host_changes_++;
}

Clock Order::queued_on(const Stream& stream) const {
    Clock all = stream.clock;
    if (!stream.legacy) return all;
    for (Stream* other : live_)
        if (other->blocking && other->context == stream.context) all.join(other->clock);
    auto ended = ended_.find(stream.context);
    if (ended != ended_.end()) all.join(ended->second.blocking);
    return all;
}

void Order::add_queued(Clock& clock, u64 context) const {
    for (Stream* stream : live_)
        if (stream->context == context) clock.join(stream->clock);
    auto ended = ended_.find(context);
    if (ended != ended_.end()) clock.join(ended->second.all);
}

void Order::add_queued(Clock& clock) const {
    for (Stream* stream : live_) clock.join(stream->clock);
    for (auto& ended : ended_) clock.join(ended.second.all);
}

// ... what streams waited for unseen, too.
void Order::all_is_done() {
    for (auto& stream : streams_) {
        host_.set(stream->now());
        stream->clock.forget_unseen();
    }
    for (auto& ended : ended_) {
        ended.second.all.forget_unseen();
        ended.second.blocking.forget_unseen();
    }
    host_changes_++;
}

}  // namespace check
