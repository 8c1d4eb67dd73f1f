// Entry point: calls of simulated libraries. See library_call.hpp.
#include "calls.hpp"
#include "memory.hpp"
#include "unknown.hpp"
#include "watch.hpp"

#include "library_call.hpp"

using namespace sim;

namespace {

Range range_of(const library::Extent& extent) {
    Use use = extent.use == 'r' ? Use::Read : extent.use == 'w' ? Use::Write : Use::ReadWrite;
    check::Rows rows = check::rows_of(extent.pitch, extent.width, extent.rows);
    return {extent.address, extent.bytes(), use, rows, extent.some ? extent.address : 0, extent.some};
}

// As a kernel does: memory may be gone when a graph is launched.
void run(const library::Run& function, const std::vector<Range>& ranges) {
    library::Views views;
    for (const Range& range : ranges) {
        if (range.bytes && !is_reached(range.address, range.bytes)) return fault(CUDA_ERROR_ILLEGAL_ADDRESS);
        views.push_back(memory().view(range.address));
    }
    function(views);
}

CUresult library_call(Lock& lock, library::Call& call) {
    Stream* stream;
    REFUSE_IF(find_stream(call.stream, &stream));
    std::vector<Range> ranges;
    for (const library::Extent& extent : call.extents) {
        Range range = range_of(extent);
        if (range.bytes &&
            !(is_reached(range.address, range.bytes) && can_access(stream->context, range.address, range.use)))
            return CUDA_ERROR_INVALID_VALUE;
        ranges.push_back(range);
    }
    Work work;
    work.name = this_thread().call;
    if (call.run)
        work.run = [function = std::move(call.run), ranges] { run(function, ranges); };
    else
        unknown_kernels().launches++;
    const char* name = work.name;
    CUresult rc = submit(lock, stream, std::move(work), nullptr, [&] { return watch_ranges(stream, name, ranges); });
    if (!rc && call.touches_more) note_not_judged(name, stream);
    return rc;
}

}  // namespace

EXPORT CUresult xsim_library_call(library::Call* call) {
    return api_call(call_site(call->name), [&](Lock& lock) { return library_call(lock, *call); });
}
