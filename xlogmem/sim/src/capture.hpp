// Stream capture and graphs, as far as a memory library meets them.
//
// A capture records work instead of running it; almost anything that looks at the stream meanwhile is an
// error, and most errors invalidate the capture. A graph here is the plain list of the captured work in the order
// of capture; a launch queues the list on one stream. Joining a second stream into a capture through an event
// is not modelled: waiting for a captured event from an ordinary stream gives INVALID_VALUE, which is what
// was seen on the H200.
#pragma once

#include "device.hpp"

#include <vector>

namespace sim {

struct Graph {
    u64 handle = 0;
    std::vector<Work> nodes;
    std::shared_ptr<const check::Graph> accesses;  // what they touch
};

struct GraphExec {
    u64 handle = 0;
    std::vector<Work> nodes;
    std::shared_ptr<const check::Graph> accesses;
    // A launch comes after the last one, whichever streams they are on.
    struct Last {
        bool any = false;
        Position position;
        check::Clock clock;
    };
    std::shared_ptr<Last> last = std::make_shared<Last>();
};

struct Capture {
    u64 id = 0;
    bool invalidated = false;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    u64 thread = 0;  // that began it
    Context* context = nullptr;
    Stream* stream = nullptr;
    std::vector<Work> nodes;
};

CUresult begin_capture(Stream* stream, CUstreamCaptureMode mode);
CUresult end_capture(Stream* stream, Graph** graph);

// Work submitted to a capturing stream.
CUresult capture_work(Stream* stream, Work&& work);

// For calls that the driver calls potentially unsafe during a capture (allocate, free, query, synchronize,
// trim): 900, and the captures in the way are invalidated, unless this thread's capture mode allows the call.
CUresult check_unsafe_call();

// For calls on the stream itself (query, synchronize, cuStreamGetId): never legal while it captures.
CUresult check_not_capturing(Stream* stream);

// The legacy default stream may not be used while a blocking stream of its context captures.
CUresult check_legacy_use(Stream* stream);

}  // namespace sim
