// Page-locked memory of the host: see engine.hpp.
#include "engine.hpp"
#include "trace.hpp"

namespace check {

void Engine::pin(Operation what, u64 address, u64 bytes) {
    if (trace_) trace_->line(":pin", what, address, bytes);
    blocks_.forget(address, address + bytes, true);
    blocks_.forget(address, address + bytes, false);
    Block& block = *blocks_.add(address, address + bytes, false, Place::Host);
    block.allocated = access(nullptr, {}, what, Role::Alloc);
}

namespace {

// The kernels of GuardResourceAdaptor write to a page that the host looks at while they run.
bool is_guard(const std::string& kernel) { return !kernel.rfind("xlogmem_guard", 0); }

// A freed piece is still its pool's.
bool is_of_host(const Block& block) {
    return block.place == Place::Host || (block.managed && (block.live || block.piece));
}

}  // namespace

// A pool of the host's memory has waited for what it has found done. A kernel that may write there may let the host know
// that it has done all before: programs look at such memory until it changes. A kernel without an instruction of the
// system's scope cannot.
void Engine::touch_host(Stream& stream, const Access& access, Block& block) {
    if (is_guard(names_[access.what.name])) return;
    Clock of_stream, of_host;
    if (stream.capture)
        dropped_ += stream.capture->touch(block, access, stream.lane, found_);
    else
        dropped_ += block.shadow.touch(access, order_.seen_from_host_memory(stream.clock, of_stream),
                                       order_.seen_from_host_memory(order_.host(), of_host), found_,
                                       [&](const Access& earlier) { replaced_.add(block, earlier); });
    if (!found_.empty()) report_found(access, block);
    if (stream.capture) return;
    if (keeps_host_uses_) keep_host_use(access, block);
    if (!access.anchor) return;  // no kernel
    if (access.role != Role::Read && access.may_signal) order_.host_may_learn(stream.clock);
}

void Engine::manage(u64 address) {
    if (trace_) trace_->line(":manage", address);
    if (Block* block = blocks_.at(address, false)) block->managed = true;
}

// Of a kernel no more is known than where it begins.
void Engine::keep_host_use(const Access& access, const Block& block) {
    constexpr std::size_t kMost = 4096;  // between two calls of take_host_uses(); more are not guarded
    if (host_uses_.size() == kMost) return;
    u64 begin = access.anchor ? access.anchor : access.begin, end = access.anchor ? begin + 1 : access.end;
    host_uses_.push_back({begin, end, access.role != Role::Read, access.time, block.begin, block.end});
}

std::vector<HostUse> Engine::take_host_uses() {
    keeps_host_uses_ = true;
    return std::exchange(host_uses_, {});
}

// What the host does comes before all that it queues later, so it is compared, and not remembered. A kernel may be meant
// to speak to the host while it runs.
void Engine::touch_by_host(Operation what, u64 begin, u64 end, Role role, bool sure) {
    if (trace_) trace_->line(":host", what, begin, end, role, sure);
    Block* block = blocks_.find(begin);
    if (!block || !is_of_host(*block)) return;
    Access made = access(nullptr, {}, what, role);
    made.begin = begin;
    made.end = end;
    if (!block->live) {
        made.absent = !sure;
        return report(Kind::UseAfterFree, block->freed, made, *block);
    }
    Clock room;
    bool locked = block->place == Place::Host;
    block->shadow.compare(made, locked ? order_.seen_from_host_memory(order_.host(), room) : order_.host(), found_);
    bool more = is_wrong(made, *block);  // than the allocation alone
    for (const Access& earlier : std::exchange(found_, {})) {
        if (more && earlier.role == Role::Alloc) continue;
        found_ = {earlier};
        made.unseen = !sure || (earlier.anchor && earlier.may_signal);
        report_found(made, *block);
    }
}

u64 Engine::read_late(const Stream& stream, Operation what, Time time, u64 begin, u64 end, bool sure) {
    if (trace_) trace_->line(":late-read", &stream, what, time.slot, time.number, begin, end, sure);
    Access read = access(&stream, time, what, Role::Read);
    read.begin = begin;
    read.end = end;
    read.unseen |= !sure;
    if (late_reads_.size() == kMostLateReads) late_reads_.pop_front();
    late_reads_.push_back(read);
    return ++late_count_;
}

void Engine::find_changed(u64 number, Operation changed, Role role) {
    if (trace_) trace_->line(":changed", number, changed, role);
    u64 first = late_count_ - late_reads_.size() + 1;
    if (number < first || number > late_count_) return;
    const Access& read = late_reads_[number - first];
    Access made = access(nullptr, {}, changed, role);
    made.begin = read.begin;
    made.end = read.end;
    made.unseen = read.unseen;
    Block memory;
    memory.place = Place::Host;
    memory.begin = read.begin;
    memory.end = read.end;
    report(Kind::Race, read, made, memory);
}

// Drivers wait for the work that is queued, though no page promises it: so a finding is possible.
u64 Engine::unpin(Operation what, u64 address) {
    if (trace_) trace_->line(":unpin", what, address);
    Block* block = blocks_.at(address, false);
    if (!block || block->place != Place::Host) return 0;
    Access freed = access(nullptr, {}, what, Role::Free);
    freed.unseen = true;
    freed.begin = block->begin;
    freed.end = block->end;
    Clock room;
    const Clock& known = order_.seen_from_host_memory(order_.host(), room);
    block->shadow.compare(freed, known, found_);
    report_found(freed, *block);
    u64 generation = block->generation;
    blocks_.forget(block->begin, block->end, false);
    return generation;
}

void Engine::refuse_unpin(u64 generation, Operation what, u64 address, u64 bytes) {
    if (trace_) trace_->line(":refuse-unpin", generation, what, address, bytes);
    drop_newest([&](const Finding& one) { return one.generation == generation && one.second.role == Role::Free; });
    pin(what, address, bytes);
}

void Engine::host_pools_learn(const Clock& clock) {
    if (trace_) trace_->line(":pools-learn", clock);
    order_.host_pools_learn(clock);
}

}  // namespace check
