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

}  // namespace

// A pool of the host's memory has waited for what it has found done. A kernel that may write there may let the host know
// that it has done all before: programs look at such memory until it changes.
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
    if (!access.anchor) return;  // no kernel
    if (access.role != Role::Read) order_.host_may_learn(stream.clock);
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
