// Movements of clocks: see order.hpp.
#include "order.hpp"

namespace check {

// The number of slots stays small however many streams come and go: a new stream continues to count in the slot of a
// dead stream, as soon as the host knows the dead stream's work to be done. That work is then before all work of the
// new stream, and events that were recorded on the dead stream keep their meaning.
Stream* Order::free_slot() {
    for (auto& old : streams_)
        if (old->dead && !old->capture && host_.covers(old->now())) return old.get();
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->slot = u32(streams_.size() - 1);
    return streams_.back().get();
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
    if (legacy) legacy_[context] = stream;
    return stream;
}

void Order::destroy_context(u64 context) {
    for (auto& stream : streams_)
        if (stream->context == context) stream->dead = true;
    legacy_.erase(context);
}

void Order::join(Stream& stream, const Clock& clock) {
    stream.clock.join(clock);
    note_change(stream);
}

// The legacy stream comes after its context's blocking streams. A wait may have changed a stream's clock since the
// stream's last operation: so the changes of the clock count, not the operations.
void Order::collect(Stream& legacy) {
    if (legacy.collected == other_changes_) return;
    legacy.collected = other_changes_;
    for (auto& other : streams_) {
        if (other.get() == &legacy || !other->blocking || other->context != legacy.context) continue;
        if (other->seen_by_legacy == other->changes) continue;
        join(legacy, other->clock);
        other->seen_by_legacy = other->changes;
    }
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
    join(stream, found->second->clock);
    stream.legacy_seen = found->second->changes;
}

const Event* Order::find_event(u64 handle) const {
    auto found = events_.find(handle);
    return found == events_.end() ? nullptr : &found->second;
}

void Order::host_learns(const Clock& clock) {
    if (clock.has_unseen())
        for (auto& stream : streams_) doubtful_.set(stream->now());
    host_.join(clock);
    host_.forget_unseen();
    host_changes_++;
}

void Order::all_is_done() {
    for (auto& stream : streams_) host_.set(stream->now());
    host_changes_++;
}

}  // namespace check
