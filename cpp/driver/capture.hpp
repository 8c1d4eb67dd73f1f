// Stream capture and graphs, as far as a memory library meets them.
//
// A capture records work instead of running it; almost anything that looks at the stream meanwhile is an error, and
// most errors invalidate the capture. A stream that waits for a captured event joins the capture, and its work has to
// be joined back, by an event that the first stream waits for, before the capture ends. A launch of a graph queues the
// work of its nodes on one stream, in the order of capture. The engine knows the order of several streams' work within a
// capture.
#pragma once

#include "nodes.hpp"
#include "user_objects.hpp"

#include <unordered_map>
#include <vector>

namespace sim {

struct Graph {
    u64 handle = 0;
    std::vector<Node> nodes;
    bool capturing = false, captured = false;
    bool embedded = false;  // it belongs to a node of another graph
    std::shared_ptr<const check::Graph> accesses;  // of captured nodes
    std::unordered_map<CUgraphNode, CUgraphNode> originals;  // of a clone: its nodes by those that they stand for
    Kept kept;
};

struct GraphExec {
    u64 handle = 0;
    std::vector<Node> nodes;
    Flat flat;
    Kept kept;
    // A launch comes after the last launch, whichever streams they are on.
    struct Last {
        bool any = false;
        Position position;
        check::Clock clock;
    };
    std::shared_ptr<Last> last = std::make_shared<Last>();
};

struct Capture {
    u64 id = 0;
    bool invalidated = false, ended = false;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    u64 thread = 0;  // that began it
    std::vector<Stream*> streams;  // on the first of which it was begun; the others have joined
    Graph* graph = nullptr;
    std::vector<u64> frees;  // of memory of a library's pool, put off to the end of the capture
    std::unordered_map<const Stream*, Nodes> newest;  // of each stream: what its next node depends on

    bool has_stream_of(const Context* context) const;  // … or of its green contexts
    bool has_blocking_stream_of(const Context* context) const;
};

// An empty graph with a handle, and the end of one.
Graph* make_graph();
void drop_graph(Lock& lock, Graph* graph);
void drop_node(Lock& lock, Node& node);  // of a graph that is about to lose it

CUresult begin_capture(Stream* stream, CUstreamCaptureMode mode);
CUresult end_capture(Lock& lock, Stream* stream, Graph** graph);

// A wait of a stream that captures, or for an event of a capture. External events are nodes of the graph, which wait
// and record at a launch: they are not modelled, and findings about later work are possible at most.
CUresult wait_in_capture(Stream* stream, Event* event, bool external);
CUresult record_in_capture(Stream* stream, Event* event, bool external);

// Work submitted to a capturing stream.
CUresult capture_work(Stream* stream, Work&& work);

// For calls that the driver calls potentially unsafe during a capture (allocate, free, query, synchronize,
// trim): 900, and the captures in the way are invalidated, unless this thread's capture mode allows the call.
CUresult check_unsafe_call();

// For calls on the stream itself (query, synchronize, cuStreamGetId): never legal while it captures.
CUresult check_not_capturing(Stream* stream);
// A stream is destroyed: a capture ends with the stream on which it was begun, and goes on without a stream that joined
// it.
void leave_capture(Lock& lock, Stream* stream);

// The legacy default stream may not be used while a blocking stream of its context captures.
CUresult check_legacy_use(Stream* stream);

}  // namespace sim
