// The calls that a front end makes: see engine.hpp. Their effects on memory are in life.cpp.
#include "engine.hpp"

#include "journal.hpp"
#include "trace.hpp"

#include <utility>

namespace check {

u32 Engine::name(const std::string& text) {
    auto made = numbers_.try_emplace(text, u32(names_.size()));
    if (made.second) {
        names_.push_back(text);
        if (trace_) trace_->line(":name", made.first->second, text);
    }
    return made.first->second;
}

Time Engine::tick(Stream& stream) {
    stream.has_worked = true;
    declared_.note_work(stream.id);
    return stream.capture ? stream.capture->tick(stream.lane) : order_.tick(stream);
}

Access Engine::access(const Stream* stream, Time time, Operation what, Role role) const {
    Access made;
    made.time = time;
    made.stream = stream ? stream->id : 0;
    made.what = what;
    made.role = role;
    if (!stream) return made;
    made.library = stream->library;
    made.in_capture = bool(stream->capture);
    made.unseen = (made.in_capture ? stream->capture->clock(stream->lane) : stream->clock).has_unseen();
    return made;
}

// -- streams, events, the host ----------------------------------------------------------------------------------------

Stream* Engine::create_stream(u64 context, u64 id, bool blocking, u32 library) {
    if (trace_) trace_->line(":stream", id, context, blocking, false, library);
    Stream* stream = order_.create(context, id, blocking, false);
    stream->library = library;
    return stream;
}

Stream* Engine::create_legacy(u64 context, u64 id) {
    if (trace_) trace_->line(":stream", id, context, true, true);
    return order_.create(context, id, true, true);
}

void Engine::destroy_stream(Stream* stream) {
    if (trace_) trace_->line(":end-stream", stream);
    order_.destroy(stream);
}

void Engine::destroy_context(u64 context) {
    if (trace_) trace_->line(":end-context", context);
    order_.destroy_context(context);
}

void Engine::destroy_event(u64 event) {
    if (trace_) trace_->line(":end-event", event);
    order_.destroy_event(event);
}

void Engine::host_may_learn(const Clock& clock) {
    if (trace_) trace_->line(":may-learn", clock);
    order_.host_may_learn(clock);
}

void Engine::host_learns(const Clock& clock) {
    if (trace_) trace_->line(":learn", clock);
    if (withheld_.any()) note_host_waits(clock);
    order_.host_learns(clock);
}

void Engine::host_awaits(const Stream& stream) {
    if (trace_) trace_->line(":await", &stream);
    declared_.note_work(stream.id);
}

void Engine::all_is_done() {
    if (trace_) trace_->line(":done");
    if (withheld_.any()) note_host_waits(queued());
    order_.all_is_done();
}

Time Engine::record(u64 handle, Stream& stream, Operation what) {
    if (trace_) trace_->line(":record", &stream, handle, what);
    declared_.note_work(stream.id);
    Time now = stream.capture ? Time{} : tick(stream);  // to record is no work of a capture
    Event& event = order_.event(handle);
    std::swap(event.before, static_cast<Record&>(event));
    event.recorded = !stream.capture;
    event.captured = bool(stream.capture);
    event.capture = stream.capture;
    event.clock = stream.capture ? stream.capture->clock(stream.lane) : stream.clock;
    event.stream = stream.id;
    event.time = now;
    event.what = what;
    return now;
}

void Engine::refuse_record(u64 handle) {
    if (trace_) trace_->line(":refuse-record", handle);
    Event& event = order_.event(handle);
    static_cast<Record&>(event) = std::exchange(event.before, {});
}

void Engine::note_wait(Stream& stream, Operation what, const Event* event) {
    if (std::exchange(stream.has_worked, false)) stream.waits.clear();
    if (stream.waits.size() == Stream::kMostWaits) return;
    Waited made;
    made.what = what;
    made.recorded = event && event->recorded;
    if (made.recorded) {
        made.stream = event->stream;
        made.time = event->time;
        made.recorded_by = event->what;
    }
    stream.waits.push_back(made);
}

// A stream that waits for work of a capture joins that capture.
void Engine::wait(Stream& stream, u64 handle, Operation what) {
    if (trace_) trace_->line(":wait", &stream, handle, what);
    declared_.note_work(stream.id);
    const Event* event = order_.find_event(handle);
    if (!stream.capture && !(event && event->captured)) note_wait(stream, what, event);
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

void Engine::come_after(Stream& stream, const Clock& clock) {
    if (stream.capture) return;
    if (trace_) trace_->line(":after", &stream, clock);
    order_.join(stream, clock);
}

void Engine::refuse_order(Stream& stream, const Clock& before) {
    if (trace_) trace_->line(":refuse-order", &stream, before);
    order_.set_back(stream, before);
}

void Engine::wait_unseen(Stream& stream) {
    if (trace_) trace_->line(":unseen", &stream);
    tick(stream);
    (stream.capture ? stream.capture->clock(stream.lane) : stream.clock).add_unseen();
}

Clock Engine::queued_in(u64 context) const {
    Clock all;
    order_.add_queued(all, context);
    return all;
}

Clock Engine::queued() const {
    Clock all;
    order_.add_queued(all);
    return all;
}

Clock Engine::recorded(u64 handle) const {
    const Event* event = order_.find_event(handle);
    return event && event->recorded ? event->clock : Clock{};
}

// -- work and graphs --------------------------------------------------------------------------------------------------

namespace {

// Kernels are also given the end of their memory, and the next block often begins there. An address that is known to be
// read or written is not an end.
bool is_end(const Range& range, const Range* ranges, std::size_t count) {
    if (range.anchor != range.begin || !range.anchor) return false;
    for (std::size_t i = 0; i < count; i++)
        if (ranges[i].end == range.anchor && ranges[i].anchor) return true;
    return false;
}

}  // namespace

Time Engine::work(Stream& stream, Operation what, const Range* ranges, std::size_t count, bool may_signal) {
    if (trace_) trace_->work(stream, what, ranges, count, may_signal);
    Time now = tick(stream);
    if (!stream.capture) replaced_.begin(now);
    Access made = access(&stream, now, what, Role::Read);
    made.may_signal = may_signal;
    for (std::size_t i = 0; i < count; i++) {
        const Range& range = ranges[i];
        made.begin = range.begin;
        made.end = range.end;
        made.anchor = range.anchor;
        made.rows = range.rows;
        made.role = range.role;
        if (range.role == Role::Unknown && declared_.any())
            made.role = declared_.role_at(stream.id, range.anchor ? range.anchor : range.begin, range.role);
        made.maybe_end = made.role == Role::Unknown && is_end(range, ranges, count);
        made.word = range.word;
        made.absent = range.absent;
        made.found = range.found;
        made.moved = range.moved;
        words_.refresh(made);
        if (!made.unused) touch(stream, made, range.block);
    }
    return now;
}

void Engine::refuse(Stream& stream, Operation what, Time time) {
    if (trace_) trace_->line(":refuse", &stream, what, time.slot, time.number);
    auto is_refused = [&](const Access& access) {
        return access.time == time && access.stream == stream.id && access.what.site == what.site;
    };
    for (bool piece : {false, true})
        blocks_.each(0, ~u64(0), piece, [&](Block& block) {
            block.shadow.forget_if(is_refused);
            block.live &= !is_refused(block.allocated);  // by a launch: the graph's memory
        });
    if (stream.capture)
        stream.capture->forget_if(is_refused);
    else
        replaced_.bring_back(time);
    order_.refuse(stream, time);
    drop_newest([&](const Finding& one) {
        bool newest = one.newest == time && one.second.stream == stream.id && one.second.what.site == what.site;
        return newest || is_refused(one.first);
    });
}

void Engine::begin_capture(Stream& stream) {
    if (trace_) trace_->line(":capture", &stream);
    stream.capture = std::make_shared<Capture>();
    stream.lane = stream.capture->add_lane(Clock{});
}

std::shared_ptr<const Graph> Engine::end_capture(Stream& stream) {
    std::shared_ptr<Capture> capture = stream.capture;
    for (auto& other : order_.streams())
        if (other->capture == capture) other->capture = nullptr;
    std::shared_ptr<const Graph> graph = capture ? capture->finish() : std::make_shared<Graph>();
    if (capture) end_own_memory(*capture);
    if (trace_) trace_->line(":end-capture", &stream, trace_->number_of(graph.get(), true));
    return graph;
}

// Outside of a launch the graph's own memory is not there.
void Engine::end_own_memory(const Capture& capture) {
    capture.each_own([&](u64 address, u64 generation, const Access& free) {
        Block* block = blocks_.at(address, false);
        if (!block || block->generation != generation) return;
        block->live = false;
        block->freed = free;
        block->freed.time = {};  // the capture's own means nothing any more
    });
}

Access Engine::launched(const Stream& stream, Time now, Operation what, const Access& captured) const {
    Access made = captured;
    made.time = now;
    made.stream = stream.id;
    made.library = stream.library;
    made.in_capture = bool(stream.capture);
    made.unseen |= (made.in_capture ? stream.capture->clock(stream.lane) : stream.clock).has_unseen();
    made.captured = made.what.site;
    made.what.site = what.site;
    return made;
}

Time Engine::launch(Stream& stream, Operation what, const Graph& graph) {
    if (trace_) trace_->line(":launch", &stream, what, trace_->number_of(&graph, false));
    Time now = tick(stream);
    if (!stream.capture) replaced_.begin(now);
    for (const CapturedAccess& captured : graph.allocations) {
        Block* block = blocks_.at(captured.begin, captured.piece);
        if (block && !block->live && block->generation == captured.generation)
            begin_again(*block, launched(stream, now, what, captured.access));
    }
    for (const CapturedAccess& captured : graph.accesses) {
        Access made = launched(stream, now, what, captured.access);
        Block* block = blocks_.at(captured.begin, captured.piece);
        if (!block) block = blocks_.find(made.anchor ? made.anchor : made.begin);
        if (!block) continue;
        if (block->place == Place::Host) {  // an array may have been registered anew
            touch_host(stream, made, *block);
            continue;
        }
        // Memory that a pool keeps for graphs has several owners, one after the other, in one graph or in several.
        if (block->live && block->generation != captured.generation && !block->captured)
            report(Kind::StaleGraph, block->allocated, made, *block);
        else
            touch_block(stream, made, *block);
    }
    return now;
}

// -- findings ---------------------------------------------------------------------------------------------------------

void Engine::dead_handle(Kind kind, Operation what, const Destroyed& destroyed) {
    if (trace_) trace_->line(":dead", kind, what, destroyed.what, destroyed.stream);
    Access first = access(nullptr, {}, destroyed.what, Role::Read);
    first.stream = destroyed.stream;
    report(kind, first, access(nullptr, {}, what, Role::Read), {});
}

void Engine::clear_findings() {
    if (trace_) trace_->line(":clear");
    findings_.clear();
    withheld_.clear();
    declared_.clear();
}

void Engine::record_to(std::shared_ptr<Trace> trace) {
    trace_ = std::move(trace);
    for (u32 number = 0; trace_ && number < names_.size(); number++) trace_->line(":name", number, names_[number]);
    if (trace_) trace_->line(":audit", declared_.audits());
    if (trace_) trace_->line(":thread", thread_);
}

void Engine::write_to(std::shared_ptr<Journal> journal) {
    JournalPage* page = journal ? journal->page() : nullptr;
    if (!page) journal = nullptr;
    JournalPage before = *std::exchange(page_, page ? page : &no_journal_);
    page_->used |= before.used;
    withheld_.count_at(page ? &page->withheld : nullptr);
    findings_.write_to(journal.get());
    journal_ = std::move(journal);
}

void Engine::end_journal(const std::string& notes) {
    decide_all_frees();
    if (journal_) journal_->note(notes);
    page_->ended = 1;
}

}  // namespace check
