// Copies: see copies.hpp.
#include "copies.hpp"

#include "calls.hpp"
#include "capture.hpp"
#include "watch.hpp"

#include <cstring>
#include <set>

namespace sim {

using check::Wait;
using check::Where;

namespace {

bool in_arena(u64 address) { return memory().in_arena(address); }

bool copy_reaches(const Context* context, u64 address, Use use) {
    const Block* block = find_block(address);
    return (block && block->owner) || can_access(context, address, use);
}

// The legacy streams of other contexts that a copy in this stream is ordered with.
std::set<Stream*> legacy_streams_beside(const Stream* stream, u64 target, u64 source) {
    std::set<Stream*> found;
    if (!stream->is_legacy()) return found;
    for (u64 address : {target, source}) {
        if (is_managed(address))  // on any device
            driver().contexts.each([&](Context* context, u64) {
                if (context != stream->context) found.insert(legacy_stream(context));
            });
        const Block* block = find_block(address);
        if (!block || block->device == stream->context->device) continue;
        found.insert(legacy_stream(block->owner ? block->owner : &driver().primary[std::size_t(block->device)]));
    }
    return found;
}

// An address that is not the driver's is pageable host memory, where the call allows that and it exists.
bool is_there(const Side& side) {
    u64 bytes = side.bytes();
    bool elsewhere = !in_arena(side.begin) && !is_managed(side.begin);
    return on_device(side.begin, bytes) || (!side.on_device && elsewhere && is_mapped(side.begin, bytes));
}

}  // namespace

Where where_is(const Side& side) {
    if (is_managed(side.begin)) return Where::Managed;
    if (in_arena(side.begin)) return Where::Device;
    return on_device(side.begin, side.bytes()) ? Where::PageLocked : Where::Pageable;
}

CUresult check_copy(const Context* context, const Side& to, const Side& from, Peers peers) {
    if (!is_there(to) || !is_there(from)) return CUDA_ERROR_INVALID_VALUE;
    bool reached = copy_reaches(context, from.begin, Use::Read) && copy_reaches(context, to.begin, Use::Write);
    return peers == Peers::Any || reached ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

Work work_of_copy(const Side& to, const Side& from, Source source) {
    Work work;
    work.name = this_thread().call;
    auto move = [to, from](u8* read) {
        u8* written = memory().view(to.begin);
        for (size_t plane = 0; plane < to.depth; plane++)
            for (size_t i = 0; i < to.height; i++)
                memmove(to.row(written, plane, i), from.row(read, plane, i), to.width);
    };
    if (source != Source::Now) {
        work.run = [move, from] { move(memory().view(from.begin)); };
        if (source == Source::InOrder) from.touched_by(work, Use::Read);
    } else {
        const u8* start = reinterpret_cast<const u8*>(from.begin);
        auto staged = std::make_shared<std::vector<u8>>(start, start + from.bytes());
        work.run = [move, staged] { move(staged->data()); };
    }
    to.touched_by(work, Use::Write);
    if (where_is(to) == Where::Pageable) forget_late_reads(to.begin, to.bytes());
    return work;
}

CUresult copy(Lock& lock, const Side& to, const Side& from, CUstream handle, Form form, Peers peers) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    if (!to.width || !to.height || !to.depth) return CUDA_SUCCESS;
    u64 target = to.begin, source = from.begin;
    REFUSE_IF(check_copy(stream->context, to, from, peers));
    Where read = where_is(from);
    Wait wait = check::wait_of_copy(where_is(to), read, form);
    if (stream->capture) {
        if (form == Form::Sync) return check_not_capturing(stream);
        wait = Wait::Nothing;  // a node of the graph, which reads and writes host memory at each launch
    }
    REFUSE_IF(check_legacy_use(stream));
    std::set<Stream*> beside = legacy_streams_beside(stream, target, source);
    for (Stream* other : beside) come_after_legacy(lock, stream, other);
    if (wait == Wait::Before) REFUSE_IF(synchronize_stream(lock, stream));
    bool staged_now = read == Where::Pageable && wait != Wait::Copy && !stream->capture;
    Position position;
    Work work = work_of_copy(to, from, staged_now ? Source::Now : Source::InOrder);
    REFUSE_IF(submit(lock, stream, std::move(work), &position));
    for (Stream* other : beside) come_after_legacy(lock, other, stream);
    if (wait == Wait::Copy) synchronize(lock, position, queued(stream));
    return CUDA_SUCCESS;
}

}  // namespace sim
