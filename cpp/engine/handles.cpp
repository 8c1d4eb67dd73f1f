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

void Handles::end_stream(u64 handle, Stream* stream, Operation what) {
    dead_streams_[handle] = {what, stream->id};
    engine_.destroy_stream(stream);
    of_context_[stream->context].erase(handle);
    streams_[handle] = nullptr;
}

void Handles::destroy_stream(u64 handle, Operation what) {
    auto found = streams_.find(handle);
    if (found == streams_.end()) return;
    if (found->second)
        end_stream(handle, found->second, what);
    else
        engine_.dead_handle(Kind::DeadStream, what, dead_streams_[handle]);
}

bool Handles::is_alive(u64 event, Operation what) {
    auto dead = dead_events_.find(event);
    if (dead == dead_events_.end()) return true;
    engine_.dead_handle(Kind::DeadEvent, what, dead->second);
    return false;
}

void Handles::destroy_event(u64 handle, Operation what) {
    if (!is_alive(handle, what)) return;
    engine_.destroy_event(handle);
    dead_events_[handle] = {what};
    context_of_event_.erase(handle);
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
    for (auto [event, of] : context_of_event_)
        if (of == context) events.insert(event);
    for (u64 event : events) destroy_event(event, what);
    for (auto place = own_.begin(); place != own_.end();)
        place = place->first.second == context ? own_.erase(place) : std::next(place);
    legacy_.erase(context);
    engine_.destroy_context(context);
}

}  // namespace check
