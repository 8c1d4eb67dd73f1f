// Handles of streams and events: see handles.hpp.
#include "handles.hpp"

namespace check {

void Handles::create_stream(u64 handle, u64 context, const Making& making) {
    u64 id = new_id("made", making.site);
    streams_[handle] = engine_.create_stream(context, id, making.blocking, making.library);
    of_context_[context].insert(handle);
}

u64 Handles::new_id(const char* kind, u32 site) {
    notes_.add(++newest_id_, {kind, site});
    return newest_id_;
}

Stream* Handles::known(u64 handle, Caller caller) const {
    auto in = [](const auto& streams, const auto& key) {
        auto found = streams.find(key);
        return found == streams.end() ? nullptr : found->second;
    };
    if (handle <= kLegacy) return in(legacy_, caller.context);
    if (handle == kPerThread) return in(own_, std::pair(caller.thread, caller.context));
    return in(streams_, handle);
}

Stream* Handles::find(u64 handle, Caller caller, u32 site) {
    if (Stream* seen = known(handle, caller)) return seen;
    if (handle <= kLegacy)
        return legacy_[caller.context] = engine_.create_legacy(caller.context, new_id("legacy", site));
    if (handle == kPerThread)
        return own_[{caller.thread, caller.context}] =
                   engine_.create_stream(caller.context, new_id("per-thread", site), true);
    if (streams_.count(handle)) return nullptr;  // destroyed
    // The check did not see the stream made, and it may be a blocking stream. Taken for one, more is ordered, and no
    // alarm is false.
    create_stream(handle, caller.context, {true, 0, site});
    return streams_[handle];
}

Stream* Handles::doomed_stream(u64 handle, Operation what) {
    auto found = streams_.find(handle);
    if (found == streams_.end()) return nullptr;
    if (!found->second) engine_.dead_handle(Kind::DeadStream, what, dead_streams_[handle]);
    return found->second;
}

void Handles::end_stream(u64 handle, Stream* stream, Operation what) {
    if (!stream || stream->dead) return;
    if (streams_[handle] == stream) {
        dead_streams_[handle] = {what, stream->id};
        of_context_[stream->context].erase(handle);
        streams_[handle] = nullptr;
    }
    engine_.destroy_stream(stream);
}

void Handles::create_event(u64 handle, u64 context) {
    dead_events_.erase(handle);
    if (events_.count(handle)) engine_.destroy_event(handle);  // the call that destroys it has not returned
    events_[handle] = {context, ++newest_event_};
}

bool Handles::is_alive(u64 event, Operation what) {
    auto dead = dead_events_.find(event);
    if (dead == dead_events_.end()) return true;
    engine_.dead_handle(Kind::DeadEvent, what, dead->second);
    return false;
}

u64 Handles::doomed_event(u64 handle, Operation what) {
    if (!is_alive(handle, what)) return kNoEvent;
    auto found = events_.find(handle);
    return found == events_.end() ? 0 : found->second.number;
}

bool Handles::end_event(u64 handle, u64 event, Operation what) {
    auto found = events_.find(handle);
    if (event == kNoEvent || event != (found == events_.end() ? 0 : found->second.number)) return false;
    engine_.destroy_event(handle);
    dead_events_[handle] = {what};
    events_.erase(handle);
    return true;
}

void Handles::end_thread(u64 thread) {
    auto place = own_.lower_bound({thread, 0});
    while (place != own_.end() && place->first.first == thread) {
        engine_.destroy_stream(place->second);
        place = own_.erase(place);
    }
}

// A handle may have been given out again, in another context.
void Handles::end_context(u64 context, Operation what) {
    std::set<u64> handles = of_context_[context];
    for (u64 handle : handles)
        if (Stream* stream = streams_[handle]; stream && stream->context == context) end_stream(handle, stream, what);
    of_context_.erase(context);
    std::set<u64> events;
    for (auto& [event, made] : events_)
        if (made.context == context) events.insert(event);
    for (u64 event : events) destroy_event(event, what);
    for (auto place = own_.begin(); place != own_.end();)
        place = place->first.second == context ? own_.erase(place) : std::next(place);
    legacy_.erase(context);
    engine_.destroy_context(context);
}

}  // namespace check
