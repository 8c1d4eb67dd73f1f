// The life of blocks: their beginning, accesses and end.
#include "engine.hpp"
#include "trace.hpp"

#include <algorithm>
#include <utility>

namespace check {

namespace {

void set_extent(Access& access, u64 begin, u64 end) {
    access.begin = begin;
    access.end = end;
}

}  // namespace

// -- findings ---------------------------------------------------------------------------------------------------------

Verdict Engine::verdict_of(const Finding& finding) {
    const Access &first = finding.first, &second = finding.second;
    Verdict verdict = Verdict::Certain;
    if (finding.kind == Kind::Race)
        verdict = judge(first, second);
    else if (second.unused)
        verdict = Verdict::Fine;
    else if (second.maybe_end || is_weak(second) || (finding.gone && second.role == Role::Unknown))
        verdict = Verdict::Possible;
    // A program cannot wait for a library's own stream: the library has to order the work there.
    bool doubtful = finding.doubtful || first.library || second.library;
    return doubtful && verdict == Verdict::Certain ? Verdict::Possible : verdict;
}

// The wait that says most: for an event that was never recorded, else for one that was recorded too early.
Idle Engine::idle_wait(const Access& first, const Access& second) const {
    Idle found;
    if (!first.stream || !second.stream || second.in_capture) return found;
    const Stream& stream = *order_.streams()[second.time.slot];
    if (stream.id != second.stream) return found;
    for (const Waited& wait : stream.waits) {
        Idle::Why why = !wait.recorded                ? Idle::Why::NeverRecorded
                        : wait.stream == first.stream ? Idle::Why::RecordedBefore
                                                      : Idle::Why::RecordedElsewhere;
        if (found.why == Idle::Why::None || why < found.why) found = {why, wait.what, wait.recorded_by, wait.stream};
    }
    return found;
}

Finding Engine::finding_of(Kind kind, const Access& first, const Access& second, const Block& block) const {
    Finding finding;
    finding.kind = kind;
    finding.doubtful = kind == Kind::Race && (second.unseen || (!second.in_capture && order_.is_doubtful(first.time)));
    finding.first = first;
    finding.second = second;
    finding.newest = second.time;
    if (kind == Kind::Race) finding.idle = idle_wait(first, second);
    words_.refresh(finding.first);
    words_.refresh(finding.second);
    finding.gone = first.role == Role::Free;
    finding.verdict = verdict_of(finding);
    finding.begin = std::max(first.begin, second.begin);
    finding.end = std::max(finding.begin, std::min(first.end, second.end));
    finding.block_begin = block.begin;
    finding.block_end = block.end;
    finding.generation = block.generation;
    finding.allocated = block.allocated.what;
    finding.freed = block.freed.what;
    finding.tag = block.tag;
    finding.tracked = block.tracked;
    return finding;
}

// True if the second access contradicts one of the uses found for certain.
bool Engine::is_wrong(const Access& second, const Block& block) const {
    for (const Access& first : found_) {
        bool certain = finding_of(Kind::Race, first, second, block).certain();
        if (certain && first.role != Role::Alloc) return true;
    }
    return false;
}

void Engine::report(Kind kind, const Access& first, const Access& second, const Block& block) {
    Finding finding = finding_of(kind, first, second, block);
    if (finding.verdict != Verdict::Fine) findings_.add(finding);
}

// Reports the conflicts that the comparison has found. A missing wait between two streams leaves the later stream
// unordered after the allocation too: that is not reported beside a certain finding, which says more.
void Engine::report_found(const Access& second, const Block& block) {
    bool more = is_wrong(second, block);
    for (const Access& first : found_)
        if (first.role != Role::Alloc || !more) report(Kind::Race, first, second, block);
    found_.clear();
}

// -- uses -------------------------------------------------------------------------------------------------------------

// How far a kernel gets from its pointer is not known: within the block, probably. Where a pool has cut pieces out of
// the block, and the address is in no known piece, nothing is guessed.
Range Engine::anchored(Block& block, u64 address, Role role) {
    Range range;
    bool between = block.cut;
    range.begin = between ? address : block.begin;
    range.end = between ? address + 1 : block.end;
    range.role = role;
    range.anchor = address;
    range.block = &block;
    return range;
}

// Reports the use if the block is freed, and returns true: that is the finding, whatever else was done to the block.
bool Engine::gone(Stream& stream, const Access& access, const Block& block) {
    if (stream.capture) {
        const Access* freed = stream.capture->freed(block);
        if (freed) {
            bool after = stream.capture->clock(stream.lane).covers(freed->time);
            report(after ? Kind::UseAfterFree : Kind::Race, *freed, access, block);
            return true;
        }
    }
    if (block.live) return false;
    // Captured work is not done now but at a launch, and no earlier free comes after the launch.
    bool after = stream.capture || is_before(block.freed.time, stream);
    report(after ? Kind::UseAfterFree : Kind::Race, block.freed, access, block);
    if (!block.freed.stream) note_freed_use(access);
    return true;
}

// The simulated driver has no variables of modules, and takes none of these.
void Engine::note_freed_use(const Access& access) {
    constexpr std::size_t kMost = 4096;
    u64 address = access.anchor ? access.anchor : access.begin;
    if (freed_uses_.size() == kMost || (!freed_uses_.empty() && freed_uses_.back() == address)) return;
    freed_uses_.push_back(address);
    has_freed_uses_.store(true, std::memory_order_relaxed);
}

std::vector<u64> Engine::take_freed_uses() {
    has_freed_uses_.store(false, std::memory_order_relaxed);
    return std::exchange(freed_uses_, {});
}

void Engine::find_memory(u64 address) {
    if (trace_) trace_->line(":found", address);
    const Block* block = blocks_.whole(address);
    if (!block || block->live) return;
    findings_.judge_again([&](Finding& one) {
        if (one.gone && one.generation == block->generation) one.verdict = Verdict::Fine;
    });
    blocks_.forget(block->begin, block->end, false);
}

// Notes work that xlogmem does not know. The work of a graph is declared where the graph is launched.
Known Engine::look(const Stream& stream, Access& access, const Block& block) {
    if (stream.capture) return Known::Not;
    Omission omission;
    omission.what = access.what;
    omission.stream = stream.id;
    omission.begin = block.begin;
    omission.end = block.end;
    omission.tag = block.tag;
    if (declared_.any())
        declared_.look_elsewhere(thread_, stream, access.anchor ? access.anchor : access.begin, omission);
    bool own = block.allocated.stream == stream.id || order_.order_themselves(block.allocated, stream);
    return declared_.look(thread_, access, omission, own && !block.shared);
}

void Engine::touch_block(Stream& stream, const Access& access, Block& block) {
    if (block.place == Place::Host) return touch_host(stream, access, block);
    if (gone(stream, access, block)) return;
    if (block.tracked && access.known == Known::Not) {
        Access known = access;
        known.known = look(stream, known, block);
        if (known.known != Known::Not) return touch_block(stream, known, block);
    }
    if (stream.capture) {
        dropped_ += stream.capture->touch(block, access, stream.lane, found_);
    } else {
        dropped_ += block.shadow.touch(access, stream.clock, order_.host(), found_,
                                       [&](const Access& earlier) { replaced_.add(block, earlier); });
    }
    if (block.managed && keeps_host_uses_ && !stream.capture) keep_host_use(access, block);
    // A missing wait in this life of the memory says more than a missing wait for the earlier owners.
    bool at_home = stream.id == block.allocated.stream;
    bool meets = block.owners.any(at_home) && !stream.capture && !is_wrong(access, block);
    if (!found_.empty()) report_found(access, block);
    if (meets) meet_owners(stream, access, block);
}

// A copy may go over several pieces of a pool, and over several mappings.
void Engine::touch(Stream& stream, const Access& access, Block* block) {
    if (!block) block = blocks_.find(access.anchor ? access.anchor : access.begin);
    if (!block) return;  // memory that is not watched
    bool inside = access.anchor || access.end <= block->end;
    if (inside && !(block->cut && !access.anchor)) {
        touch_block(stream, access, *block);
        return;
    }
    if (!block->piece)
        blocks_.each(access.begin, access.end, false, [&](Block& whole) { touch_block(stream, access, whole); });
    blocks_.each(access.begin, access.end, true, [&](Block& piece) { touch_block(stream, access, piece); });
}

// -- allocations ------------------------------------------------------------------------------------------------------

Time Engine::allocate(Stream* stream, Operation what, u64 address, u64 bytes, Pool pool, u64 context) {
    if (trace_) trace_->line(":alloc", stream, what, address, bytes, pool);
    Time now = stream ? tick(*stream) : Time{};
    Access made = access(stream, now, what, Role::Alloc);
    set_extent(made, address, address + bytes);
    bool pooled = pool == Pool::Replaced && stream && !stream->capture;
    EarlierOwners owners;
    if (pooled) owners = earlier_owners(stream->clock, made, false);
    if (pooled) decide_frees(*stream, made, false);
    blocks_.forget(address, address + bytes, true);
    blocks_.forget(address, address + bytes, false);
    Block& block = *blocks_.add(address, address + bytes, false);
    block.allocated = made;
    block.context = context;
    if (pooled) block.pool = pool;
    if (stream && stream->capture)
        stream->capture->allocate(block, block.allocated);
    else if (pooled)
        begin_pooled(block, std::move(owners));
    else if (stream)
        block.shadow.add(block.allocated);
    return now;
}

// Begins a new life of a graph's memory that the program has freed: each launch allocates it at the same address.
void Engine::begin_again(Block& block, const Access& alloc) {
    block.live = true;
    block.allocated = alloc;
    set_extent(block.allocated, block.begin, block.end);
    block.shadow.start(block.begin, block.end);
    if (!alloc.in_capture) block.shadow.add(block.allocated);
}

void Engine::allocate_piece(Stream* stream, Operation what, u64 address, u64 bytes, Pool pool) {
    if (trace_) trace_->line(":piece", stream, what, address, bytes, pool);
    Access made = access(stream, stream ? tick(*stream) : Time{}, what, Role::Alloc);
    set_extent(made, address, address + bytes);
    Block* whole = blocks_.whole(address);
    cut(address, address + bytes);
    bool capturing = stream && stream->capture;
    bool pooled = pool == Pool::Caching;
    bool early = whole && whole->live && !clock_of(stream).covers(whole->allocated.time);
    EarlierOwners owners;
    if (pooled && !capturing) owners = earlier_owners(clock_of(stream), made, true);
    if (pooled && stream && !capturing) decide_frees(*stream, made, true);
    if (!pooled && !capturing) reuse(stream, made);
    blocks_.forget(address, address + bytes, true);
    Block& block = *blocks_.add(address, address + bytes, true);
    block.allocated = made;
    block.pool = pool;
    block.managed = whole && (whole->managed || whole->place == Place::Host);
    block.captured = pooled && capturing;
    if (block.captured) stream->capture->hand_over(block, stream->lane);
    if (pooled)
        begin_pooled(block, std::move(owners));
    else if (stream && !capturing)
        block.shadow.add(made);
    if (!early) return;
    // The pool's own allocation may come after this one: a use of the piece has to be ordered after both.
    Access chunk = whole->allocated;
    set_extent(chunk, block.begin, block.end);
    block.shadow.add(chunk);
}

// A pool has to order a piece's new owner after its last owner. Accesses of that last life which the free did not come
// after were reported at the free, and are not remembered.
void Engine::reuse(Stream* stream, const Access& alloc) {
    const Clock& clock = clock_of(stream);
    blocks_.each(alloc.begin, alloc.end, true, [&](Block& old) {
        bool ordered = !old.released && clock.covers(old.freed.time);
        if (old.live || ordered) return;
        old.shadow.compare(alloc, clock, found_);
        bool used = false;
        for (const Access& earlier : found_) used |= earlier.role != Role::Alloc;
        if (!used) found_.clear();
        if (!used && !old.released) found_.push_back(old.freed);
        report_found(alloc, old);
    });
}

// -- frees ------------------------------------------------------------------------------------------------------------

// Everything that was done to the block has to come before its free.
void Engine::end_block(const Clock& clock, const Access& free, Block& block, bool piece) {
    Access freed = free;
    set_extent(freed, block.begin, block.end);
    block.shadow.compare(freed, clock, found_);
    if (!found_.empty() && block.pool == Pool::Replaced) withhold_found(freed, block);
    if (!found_.empty()) report_found(freed, block);
    block.live = false;
    block.freed = freed;
    if (piece || block.pool == Pool::Replaced)
        block.shadow.keep_covered(clock);
    else
        block.shadow.clear();
}

Time Engine::free(Stream* stream, Operation what, u64 address) {
    if (trace_) trace_->line(":free", stream, what, address);
    Time now = stream ? tick(*stream) : Time{};
    Block* block = blocks_.at(address, false);
    if (!block || !block->live) return now;
    Access made = access(stream, now, what, Role::Free);
    if (stream && stream->capture) {  // a node of the graph: until a launch the memory stays
        set_extent(made, block->begin, block->end);
        stream->capture->free(*block, made, stream->lane, found_);
        if (!found_.empty()) report_found(made, *block);
        return now;
    }
    end_whole(stream, clock_of(stream), made, *block);
    return now;
}

void Engine::free_after(const Clock& clock, Operation what, u64 address) {
    if (trace_) trace_->line(":free-after", what, address, clock);
    Block* block = blocks_.at(address, false);
    if (!block || !block->live) return;
    if (withheld_.any()) note_host_waits(clock);
    Clock done = order_.host();
    done.join(clock);
    end_whole(nullptr, done, access(nullptr, {}, what, Role::Free), *block);
}

// A pool returns the memory: its pieces end with it, also pieces that the pool has taken from their owners before.
void Engine::end_whole(Stream* stream, const Clock& clock, const Access& free, Block& block) {
    if (withheld_.any()) end_withheld(stream, block);
    blocks_.each(block.begin, block.end, true, [&](Block& piece) { end_block(clock, free, piece, true); });
    blocks_.forget(block.begin, block.end, true);
    block.cut = false;
    end_block(clock, free, block, false);
}

void Engine::keep(u64 address) {
    if (trace_) trace_->line(":keep", address);
    Block* block = blocks_.at(address, false);
    if (!block) return;
    drop_newest([&](const Finding& one) {
        return one.generation == block->generation && (one.first.role == Role::Free || one.second.role == Role::Free);
    });
    for (auto& stream : order_.streams())
        if (stream->capture) stream->capture->keep(*block);
    if (block->live) return;  // it was captured
    drop_withheld(*block);
    block->live = true;
    block->shadow.start(block->begin, block->end);
}

void Engine::free_piece(Stream* stream, Operation what, u64 address) {
    if (trace_) trace_->line(":unpiece", stream, what, address);
    Time now = stream ? tick(*stream) : Time{};
    Block* block = blocks_.at(address, true);
    if (!block || !block->live || (stream && stream->capture)) return;
    end_block(clock_of(stream), access(stream, now, what, Role::Free), *block, true);
}

void Engine::release_piece(Operation what, u64 address) {
    if (trace_) trace_->line(":release", what, address);
    Block* block = blocks_.at(address, true);
    if (!block || !block->live || block->captured) return;
    block->live = false;
    block->released = true;
    block->freed = access(nullptr, {}, what, Role::Free);
    set_extent(block->freed, block->begin, block->end);
}

void Engine::forget_piece(u64 address) {
    if (trace_) trace_->line(":forget", address);
    Block* block = blocks_.at(address, true);
    if (block) blocks_.forget(block->begin, block->end, true);
}

// -- declarations of xlogmem ------------------------------------------------------------------------------------------

void Engine::forget_memory() {
    if (trace_) trace_->line(":forget-all");
    blocks_.clear();
}

void Engine::act_in(u64 thread) {
    if (thread == thread_) return;
    thread_ = thread;
    if (trace_) trace_->line(":thread", thread);
}

void Engine::close_window(u64 window, bool launched) {
    if (trace_) trace_->line(":close", window, launched);
    declared_.close(window, launched);
}

void Engine::audit(bool wanted) {
    if (trace_) trace_->line(":audit", wanted);
    declared_.audit(wanted);
}

bool Engine::track(u64 address, u64 bytes, u32 tag) {
    if (trace_) trace_->line(":track", address, bytes, tag);
    Block* block = blocks_.at(address, true);
    if (!block || !block->live) block = blocks_.at(address, false);
    if (!block || !block->live || block->cut || block->end != address + bytes) return false;
    block->tracked = true;
    block->tag = tag;
    return true;
}

void Engine::declare(u64 window, const Stream& stream, Operation what, u64 address, u64 bytes, Role role) {
    if (trace_) trace_->line(":declare", window, &stream, what, address, bytes, role);
    Block* block = blocks_.find(address);
    if (block && block->allocated.stream != stream.id) block->shared = true;
    Declared::Use use;
    use.window = window;
    use.thread = thread_;
    use.stream = stream.id;
    use.blocking = stream.blocking;
    use.legacy = stream.legacy;
    use.site = what.site;
    use.begin = address;
    use.end = address + bytes;
    use.role = role;
    declared_.open(use);
}

}  // namespace check
