// The calls that a front end makes: see engine.hpp. What they do to memory is in life.cpp.
#include "engine.hpp"

namespace check {

u32 Engine::name(const std::string& text) {
    auto made = numbers_.emplace(text, u32(names_.size()));
    if (made.second) names_.push_back(text);
    return made.first->second;
}

Time Engine::tick(Stream& stream) { return stream.capture ? stream.capture->tick(stream.lane) : order_.tick(stream); }

Access Engine::access(const Stream* stream, Time time, Operation what, Role role) const {
    Access made;
    made.time = time;
    made.stream = stream ? stream->id : 0;
    made.what = what;
    made.role = role;
    if (!stream) return made;
    made.in_capture = bool(stream->capture);
    made.unseen = (made.in_capture ? stream->capture->clock(stream->lane) : stream->clock).has_unseen();
    return made;
}

// -- streams, events, the host ----------------------------------------------------------------------------------------

Time Engine::record(u64 handle, Stream& stream) {
    Time now = tick(stream);
    Event& event = order_.event(handle);
    event.recorded = !stream.capture;
    event.captured = bool(stream.capture);
    event.capture = stream.capture;
    event.clock = stream.capture ? stream.capture->clock(stream.lane) : stream.clock;
    return now;
}

// A stream that waits for work of a capture joins that capture.
void Engine::wait(Stream& stream, u64 handle) {
    const Event* event = order_.find_event(handle);
    if (!event) return;
    if (event->captured) {
        std::shared_ptr<Capture> capture = event->capture.lock();
        if (!capture) return;
        if (stream.capture == capture) {
            capture->clock(stream.lane).join(event->clock);
        } else if (!stream.capture) {
            stream.capture = capture;
            stream.lane = capture->add_lane(event->clock);
        }
    } else if (event->recorded && !stream.capture) {
        order_.join(stream, event->clock);
    }
}

void Engine::wait_unseen(Stream& stream) {
    tick(stream);
    (stream.capture ? stream.capture->clock(stream.lane) : stream.clock).add_unseen();
}

Clock Engine::queued_on(Stream& stream) {
    if (stream.legacy) order_.settle(stream);
    return stream.clock;
}

Clock Engine::queued_in(u64 context) const {
    Clock all;
    for (auto& stream : order_.streams())
        if (stream->context == context) all.join(stream->clock);
    return all;
}

Clock Engine::recorded(u64 handle) const {
    const Event* event = order_.find_event(handle);
    return event && event->recorded ? event->clock : Clock{};
}

// -- work and graphs --------------------------------------------------------------------------------------------------

namespace {

// Kernels are given the end of their memory, too, and the next block often begins there. What is known to be read or
// written is no end.
bool is_end(const Range& range, const Range* ranges, std::size_t count) {
    if (range.anchor != range.begin || !range.anchor) return false;
    for (std::size_t i = 0; i < count; i++)
        if (ranges[i].end == range.anchor && ranges[i].anchor) return true;
    return false;
}

}  // namespace

Time Engine::work(Stream& stream, Operation what, const Range* ranges, std::size_t count) {
    Time now = tick(stream);
    Access made = access(&stream, now, what, Role::Read);
    for (std::size_t i = 0; i < count; i++) {
        const Range& range = ranges[i];
        made.begin = range.begin;
        made.end = range.end;
        made.anchor = range.anchor;
        made.role = range.role;
        made.maybe_end = range.role == Role::Unknown && is_end(range, ranges, count);
        touch(stream, made, range.block);
    }
    return now;
}

void Engine::begin_capture(Stream& stream) {
    stream.capture = std::make_shared<Capture>();
    stream.lane = stream.capture->add_lane(Clock{});
}

std::shared_ptr<const Graph> Engine::end_capture(Stream& stream) {
    std::shared_ptr<Capture> capture = stream.capture;
    if (!capture) return std::make_shared<Graph>();
    for (auto& other : order_.streams())
        if (other->capture == capture) other->capture = nullptr;
    return capture->finish();
}

Time Engine::launch(Stream& stream, Operation what, const Graph& graph) {
    Time now = tick(stream);
    for (const CapturedAccess& captured : graph.accesses) {
        Access made = captured.access;
        made.time = now;
        made.stream = stream.id;
        made.in_capture = bool(stream.capture);
        made.unseen |= (made.in_capture ? stream.capture->clock(stream.lane) : stream.clock).has_unseen();
        made.captured = made.what.site;
        made.what.site = what.site;
        Block* block = blocks_.at(captured.begin, captured.piece);
        if (!block) block = blocks_.find(made.anchor ? made.anchor : made.begin);
        if (!block) continue;
        if (block->live && block->generation != captured.generation)
            report(Kind::StaleGraph, block->allocated, made, *block);
        else
            touch_block(stream, made, *block);
    }
    return now;
}

// -- findings ---------------------------------------------------------------------------------------------------------

void Engine::dead_handle(Kind kind, Operation what) {
    report(kind, Access{}, access(nullptr, {}, what, Role::Read), {});
}

}  // namespace check
