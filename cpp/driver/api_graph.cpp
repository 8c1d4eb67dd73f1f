// Entry points: stream capture and the graphs that come out of it.
#include "calls.hpp"
#include "capture.hpp"
#include "watch.hpp"

#include <algorithm>
#include <utility>

using namespace sim;

namespace {

CUresult capture_status(Stream* stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph) {
    const Capture* capture = stream->capture.get();
    *status = !capture               ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id && capture) *id = capture->id;
    bool active = capture && !capture->invalidated;
    if (graph) *graph = active ? reinterpret_cast<CUgraph>(capture->graph->handle) : nullptr;
    // A query of the legacy stream while a blocking stream captures is refused too, but invalidates nothing.
    if (stream->is_legacy()) {
        for (auto& other : driver().captures)
            if (other->has_blocking_stream_of(stream->context)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return CUDA_SUCCESS;
}

// The nodes that the stream's next node will depend on. The arrays stay as they are until the next call.
void newest_nodes(Stream* stream, const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
    static auto& none = *new Nodes;
    static auto& plain = *new std::vector<CUgraphEdgeData>;
    bool active = stream->capture && !stream->capture->invalidated;
    const Nodes& newest = active ? stream->capture->newest[stream] : none;
    plain.resize(std::max(plain.size(), newest.size()));
    if (nodes) *nodes = newest.data();
    if (edges) *edges = plain.data();
    if (count) *count = newest.size();
}

CUresult instantiate(CUgraphExec* result, CUgraph handle) {
    Graph* graph = finished_graph(handle);
    if (!graph || !result) return CUDA_ERROR_INVALID_VALUE;
    auto exec = std::make_unique<GraphExec>();
    REFUSE_IF(nodes_of_executable(graph, &exec->nodes, &exec->flat));
    exec->kept = retained(graph->kept);
    exec->handle = driver().graph_execs.add(exec.get());
    *result = reinterpret_cast<CUgraphExec>(exec.release()->handle);
    return CUDA_SUCCESS;
}

// The node that differs, and how.
CUgraphExecUpdateResult compare(const GraphExec& exec, const Graph& graph, CUgraphNode* different) {
    if (exec.nodes.size() != graph.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        const Node &before = exec.nodes[i], &now = graph.nodes[i];
        *different = now.handle;
        if (before.type != now.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (before.after.size() != now.after.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    *different = nullptr;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// The stream of the launch waits for the events for which nodes wait.
void await_events(Lock& lock, Stream* stream, const Flat& flat) {
    for (CUevent handle : flat.awaited) {
        Event* event = driver().events.get(handle);
        if (event && event->recorded) wait_for(stream, event->position);
    }
}

// Where in the launch nodes record their events is not modelled: later waits for them are unseen.
void record_events(const Flat& flat, const Position& position) {
    for (CUevent handle : flat.recorded) {
        Event* event = driver().events.get(handle);
        if (!event) continue;
        event->recorded = event->at_launch = true;
        event->captured = nullptr;
        event->position = position;
        event->time = event->flags & CU_EVENT_DISABLE_TIMING ? nullptr : std::make_shared<double>(0);
    }
}

}  // namespace

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    return api_call(CALL("cuStreamBeginCapture"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (unsigned(mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        return begin_capture(stream, mode);
    });
}

// A caller that does not want the graph has it already, from cuStreamGetCaptureInfo: cuda.core does so.
EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* result) {
    return api_call(CALL("cuStreamEndCapture"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        Graph* graph = nullptr;
        if (result) *result = nullptr;
        REFUSE_IF(find_stream(handle, &stream));
        REFUSE_IF(end_capture(lock, stream, &graph));
        if (result) *result = reinterpret_cast<CUgraph>(graph->handle);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    return api_call(CALL("cuStreamIsCapturing"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!status) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        return capture_status(stream, status, nullptr, nullptr);
    });
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                          CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData** edges,
                                          size_t* count) {
    return api_call(CALL("cuStreamGetCaptureInfo"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!status) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        newest_nodes(stream, nodes, edges, count);
        return capture_status(stream, status, id, graph);
    });
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                          CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
    return cuStreamGetCaptureInfo_v3(handle, status, id, graph, nodes, nullptr, count);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return api_call(CALL("cuThreadExchangeStreamCaptureMode"), [&](Lock&) -> CUresult {
        if (!mode || unsigned(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
        std::swap(*mode, this_thread().capture_mode);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphCreate(CUgraph* result, unsigned flags) {
    return api_call(CALL("cuGraphCreate"), [&](Lock&) -> CUresult {
        if (!result || flags) return CUDA_ERROR_INVALID_VALUE;
        Graph* graph = make_graph();
        *result = reinterpret_cast<CUgraph>(graph->handle);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    return api_call(CALL("cuGraphDestroy"), [&](Lock& lock) -> CUresult {
        Graph* graph = driver().graphs.get(handle);
        if (!graph || graph->embedded) return CUDA_ERROR_INVALID_VALUE;
        if (graph->capturing) return CUDA_ERROR_ILLEGAL_STATE;  // it is being captured
        drop_graph(lock, graph);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* result, CUgraph handle, unsigned long long) {
    return api_call(CALL("cuGraphInstantiate"), [&](Lock&) { return instantiate(result, handle); });
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* result, CUgraph handle,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    return api_call(CALL("cuGraphInstantiateWithParams"), [&](Lock&) -> CUresult {
        if (!parameters) return CUDA_ERROR_INVALID_VALUE;
        parameters->hErrNode_out = nullptr;
        CUresult error = instantiate(result, handle);
        parameters->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
        return error;
    });
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph source, CUgraphExecUpdateResultInfo* info) {
    return api_call(CALL("cuGraphExecUpdate"), [&](Lock& lock) -> CUresult {
        GraphExec* exec = driver().graph_execs.get(handle);
        Graph* graph = finished_graph(source);
        if (!exec || !graph || !info) return CUDA_ERROR_INVALID_VALUE;
        *info = {};
        info->result = compare(*exec, *graph, &info->errorNode);
        if (info->result) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        std::vector<Node> before_nodes = exec->nodes;
        REFUSE_IF(nodes_of_executable(graph, &exec->nodes, &exec->flat));
        for (size_t i = 0; i < before_nodes.size(); i++) exec->nodes[i].handle = before_nodes[i].handle;
        for (size_t i = 0; i < before_nodes.size(); i++) exec->nodes[i].after = before_nodes[i].after;
        Kept before = std::exchange(exec->kept, retained(graph->kept));
        release_later(lock, before, exec->last->position);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    return api_call(CALL("cuGraphUpload"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!driver().graph_execs.get(handle)) return CUDA_ERROR_INVALID_VALUE;
        return find_stream(stream_handle, &stream);
    });
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    return api_call(CALL("cuGraphExecDestroy"), [&](Lock& lock) -> CUresult {
        GraphExec* exec = driver().graph_execs.get(handle);
        if (!exec) return CUDA_ERROR_INVALID_VALUE;
        driver().graph_execs.remove(exec->handle);
        release_later(lock, exec->kept, exec->last->position);
        delete exec;
        return CUDA_SUCCESS;
    });
}

// The work of the nodes, on one stream: in one of the orders that the graph allows. A capture takes no launch (seen on
// an H200).
EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    return api_call(CALL("cuGraphLaunch"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        GraphExec* exec = driver().graph_execs.get(handle);
        if (!exec) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(stream_handle, &stream));
        REFUSE_IF(check_not_capturing(stream));
        Flat flat = exec->flat;  // a copy: a full queue releases the lock
        std::shared_ptr<GraphExec::Last> last = exec->last;
        await_events(lock, stream, flat);
        if (last->any) {
            wait_for(stream, last->position);
            driver().engine.come_after(*stream->order, last->clock);
        }
        bool launched = false;  // one operation to the engine
        auto watch = [&] {
            return std::exchange(launched, true) ? newest(stream) : watch_launch(stream, *flat.accesses);
        };
        Position position;
        for (Work& work : flat.works) REFUSE_IF(submit(lock, stream, std::move(work), &position, watch));
        if (flat.works.empty()) return CUDA_SUCCESS;
        *last = {true, position, queued(stream)};
        record_events(flat, position);
        if (flat.calls_host) host_may_learn(queued(stream));
        return CUDA_SUCCESS;
    });
}
