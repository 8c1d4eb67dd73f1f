// Handles of streams and events: see handles.hpp.
#include "handles.hpp"

namespace check {

void Handles::create_stream(u64 handle, u64 context, bool blocking) {
    dead_streams_.erase(handle);
    streams_[handle] = engine_.create_stream(context, ++newest_id_, blocking);
    of_context_[context].insert(handle);
}

Stream* Handles::stream(u64 handle, Caller caller, Operation what) {
    if (handle <= kLegacy) {
        Stream*& legacy = legacy_[caller.context];
        if (!legacy) legacy = engine_.create_legacy(caller.context, ++newest_id_);
        return legacy;
    }
    if (handle == kPerThread) {
        Stream*& own = own_[{caller.thread, caller.context}];
        if (!own) own = engine_.create_stream(caller.context, ++newest_id_, true);
        return own;
    }
    if (dead_streams_.count(handle)) {
        engine_.dead_handle(Kind::DeadStream, what);
        return nullptr;
    }
    // A stream that the check did not see made may be a blocking one: more is ordered then, and no alarm is false.
    if (!streams_.count(handle)) create_stream(handle, caller.context, true);
    return streams_[handle];
}

void Handles::end_stream(u64 handle, Stream* stream) {
    engine_.destroy_stream(stream);
    of_context_[stream->context].erase(handle);
    streams_.erase(handle);
    dead_streams_.insert(handle);
}

void Handles::destroy_stream(u64 handle, Operation what) {
    if (dead_streams_.count(handle)) engine_.dead_handle(Kind::DeadStream, what);
    auto found = streams_.find(handle);
    if (found != streams_.end()) end_stream(handle, found->second);
}

bool Handles::is_alive(u64 event, Operation what) {
    if (!dead_events_.count(event)) return true;
    engine_.dead_handle(Kind::DeadEvent, what);
    return false;
}

void Handles::destroy_event(u64 handle, Operation what) {
    if (!is_alive(handle, what)) return;
    engine_.destroy_event(handle);
    dead_events_.insert(handle);
}

void Handles::end_thread(u64 thread) {
    auto place = own_.lower_bound({thread, 0});
    while (place != own_.end() && place->first.first == thread) {
        engine_.destroy_stream(place->second);
        place = own_.erase(place);
    }
}

void Handles::end_context(u64 context) {
    std::set<u64> handles = of_context_[context];
    for (u64 handle : handles) end_stream(handle, streams_[handle]);
    for (auto place = own_.begin(); place != own_.end();)
        place = place->first.second == context ? own_.erase(place) : std::next(place);
    legacy_.erase(context);
    engine_.destroy_context(context);
}

}  // namespace check
