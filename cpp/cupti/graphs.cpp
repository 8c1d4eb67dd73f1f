// Captures and graphs. Work that the explicit graph API adds is not modelled, and the report says so.
#include "calls.hpp"
#include "newer.hpp"

#include <utility>

namespace check {

CUgraph Front::noted_handle(const Capture* ended) {
    auto noted = handles_of_graphs_.find(ended);
    if (noted == handles_of_graphs_.end()) return nullptr;
    CUgraph graph = noted->second;
    handles_of_graphs_.erase(noted);
    return graph;
}

Executable* Front::find(CUgraphExec graph) {
    auto found = executables_.find(graph);
    return found == executables_.end() || !found->second.graph ? nullptr : &found->second;
}

namespace {

void begin(const Call& call, CUstream stream) {
    if (Stream* on = call.stream(stream)) call.front.engine().begin_capture(*on);
}

void note_handle(const Call& call, CUstream stream, const CUgraph* graph) {
    Stream* on = graph && *graph ? call.stream(stream) : nullptr;
    if (on && on->capture) call.front.note_handle(on->capture.get(), *graph);
}

void end(const Call& call, CUstream stream, const CUgraph* graph) {
    Stream* on = call.stream(stream);
    if (!on) return;
    CUgraph noted = call.front.noted_handle(on->capture.get());
    std::shared_ptr<const Graph> work = call.front.engine().end_capture(*on);
    if (CUgraph made = graph ? *graph : noted) call.front.keep_graph(made, std::move(work));
}

// A capture that was spoilt ends as well, without a graph. A call on the wrong stream, or of the wrong thread, ends
// nothing.
void end_failed(const Call& call, CUstream stream) {
    CUresult result = *static_cast<const CUresult*>(call.data.functionReturnValue);
    bool spoilt = result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    Stream* on = call.stream(stream);
    if (!on || !spoilt) return;
    call.front.noted_handle(on->capture.get());
    call.front.engine().end_capture(*on);
}

// The work of a graph that was not captured is not known.
void launch(const Call& call, CUgraphExec executable, CUstream stream) {
    Stream* on = call.stream(stream);
    if (!on) return;
    if (Executable* known = call.front.find(executable)) {
        if (!known->graph->has_work) return;
        Engine& engine = call.front.engine();
        Changes& changes = call.thread.changes;
        if (!on->capture) changes.ordered.push_back({on, engine.queued(*on)});
        engine.come_after(*on, known->last);
        changes.fed.push_back({on, call.what, engine.launch(*on, call.what, *known->graph)});
        call.thread.touches_host = host::is_on();
        if (on->capture) return;
        changes.end_ordering();
        changes.launched.push_back({executable, std::exchange(known->last, engine.queued(*on))});
    } else {
        call.front.engine().work(*on, call.what);
        call.front.count_unseen(call.what.name);
    }
}

void add_captures(Calls& calls) {
    AFTER_BOTH(cuStreamBeginCapture, _ptsz) { begin(call, p.hStream); });
    AFTER_BOTH(cuStreamBeginCapture_v2, _ptsz) { begin(call, p.hStream); });
    AFTER_BOTH(cuStreamBeginCaptureToGraph, _ptsz) { begin(call, p.hStream); });
    AFTER_BOTH(cuStreamGetCaptureInfo_v2, _ptsz) { note_handle(call, p.hStream, p.graph_out); });
    AFTER_BOTH(cuStreamGetCaptureInfo_v3, _ptsz) { note_handle(call, p.hStream, p.graph_out); });
    AFTER_BOTH(cuStreamEndCapture, _ptsz) { end(call, p.hStream, p.phGraph); });
    FAILED_BOTH(cuStreamEndCapture, _ptsz) { end_failed(call, p.hStream); });
    for (auto entry :
         {ENTRIES(cuStreamUpdateCaptureDependencies, _ptsz), ENTRIES(cuStreamUpdateCaptureDependencies_v2, _ptsz)})
        calls.unseen(entry);
    for (const Calls::Entry& entry : newer::kUnseenCaptures) calls.unseen(entry);
}

void add_executables(Calls& calls) {
    AFTER(cuGraphClone) { call.front.copy_graph(*p.phGraphClone, p.originalGraph); });
    BEFORE(cuGraphDestroy) { call.front.drop(p.hGraph); });
    AFTER(cuGraphInstantiate) { call.front.make_executable(*p.phGraphExec, p.hGraph); });
    AFTER(cuGraphInstantiate_v2) { call.front.make_executable(*p.phGraphExec, p.hGraph); });
    AFTER(cuGraphInstantiateWithFlags) { call.front.make_executable(*p.phGraphExec, p.hGraph); });
    AFTER_BOTH(cuGraphInstantiateWithParams, _ptsz) { call.front.make_executable(*p.phGraphExec, p.hGraph); });
    AFTER(cuGraphExecUpdate) { call.front.make_executable(p.hGraphExec, p.hGraph); });
    AFTER(cuGraphExecUpdate_v2) { call.front.make_executable(p.hGraphExec, p.hGraph); });
    BEFORE(cuGraphExecDestroy) { call.front.drop(p.hGraphExec); });
    BEFORE_BOTH(cuGraphLaunch, _ptsz) { launch(call, p.hGraph, p.hStream); });
}

// The nodes of the executable do other work than was captured: its work is not known any more.
void add_changes(Calls& calls) {
    AFTER(cuGraphExecNodeSetParams) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecKernelNodeSetParams) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecKernelNodeSetParams_v2) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecMemcpyNodeSetParams) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecMemsetNodeSetParams) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecChildGraphNodeSetParams) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecBatchMemOpNodeSetParams) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecEventRecordNodeSetEvent) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphExecEventWaitNodeSetEvent) { call.front.drop(p.hGraphExec); });
    AFTER(cuGraphNodeSetEnabled) { call.front.drop(p.hGraphExec); });
}

}  // namespace

void add_graphs(Calls& calls) {
    add_captures(calls);
    add_executables(calls);
    add_changes(calls);
    for (auto entry : {ENTRY(cuGraphAddKernelNode),
                       ENTRY(cuGraphAddKernelNode_v2),
                       ENTRY(cuGraphAddMemcpyNode),
                       ENTRY(cuGraphAddMemsetNode),
                       ENTRY(cuGraphAddNode),
                       ENTRY(cuGraphAddNode_v2),
                       ENTRY(cuGraphAddMemAllocNode),
                       ENTRY(cuGraphAddMemFreeNode),
                       ENTRY(cuGraphAddChildGraphNode),
                       ENTRY(cuGraphAddBatchMemOpNode),
                       ENTRY(cuGraphAddEventRecordNode),
                       ENTRY(cuGraphAddEventWaitNode),
                       ENTRY(cuGraphAddExternalSemaphoresWaitNode),
                       ENTRY(cuGraphDestroyNode),
                       ENTRY(cuGraphKernelNodeSetParams),
                       ENTRY(cuGraphKernelNodeSetParams_v2),
                       ENTRY(cuGraphMemcpyNodeSetParams),
                       ENTRY(cuGraphMemsetNodeSetParams),
                       ENTRY(cuGraphNodeSetParams),
                       ENTRY(cuGraphBatchMemOpNodeSetParams),
                       ENTRY(cuGraphEventRecordNodeSetEvent),
                       ENTRY(cuGraphEventWaitNodeSetEvent)})
        calls.unseen(entry);
}

}  // namespace check
