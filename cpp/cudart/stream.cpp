// Streams, events, captures, graphs, host functions.
#include "runtime.hpp"

using namespace cudart;

extern "C" CUresult cuStreamGetDevice(CUstream, CUdevice*);  // of 12.8: not every cuda.h declares it

RUNTIME Error cudaStreamCreate(CUstream* stream) { DRIVER(cuStreamCreate(stream, 0)); }
RUNTIME Error cudaStreamCreateWithFlags(CUstream* stream, unsigned flags) { DRIVER(cuStreamCreate(stream, flags)); }
RUNTIME Error cudaStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    DRIVER(cuStreamCreateWithPriority(stream, flags, priority));
}
RUNTIME Error cudaStreamDestroy(CUstream stream) { DRIVER(cuStreamDestroy_v2(stream)); }
RUNTIME Error cudaStreamSynchronize(CUstream stream) { DRIVER(cuStreamSynchronize(stream)); }
RUNTIME Error cudaStreamQuery(CUstream stream) { DRIVER(cuStreamQuery(stream)); }
RUNTIME Error cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    DRIVER(cuStreamWaitEvent(stream, event, flags));
}
RUNTIME Error cudaStreamGetFlags(CUstream stream, unsigned* flags) { DRIVER(cuStreamGetFlags(stream, flags)); }
RUNTIME Error cudaStreamGetPriority(CUstream stream, int* priority) { DRIVER(cuStreamGetPriority(stream, priority)); }
RUNTIME Error cudaStreamGetDevice(CUstream stream, int* device) { DRIVER(cuStreamGetDevice(stream, device)); }
RUNTIME Error cudaStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
    DRIVER(cuStreamGetAttribute(stream, attribute, value));
}
RUNTIME Error cudaStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
    DRIVER(cuStreamSetAttribute(stream, attribute, value));
}
RUNTIME Error cudaStreamCopyAttributes(CUstream to, CUstream from) { DRIVER(cuStreamCopyAttributes(to, from)); }
RUNTIME Error cudaStreamGetId(CUstream stream, unsigned long long* id) { DRIVER(cuStreamGetId(stream, id)); }

RUNTIME Error cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    DRIVER(cuStreamIsCapturing(stream, status));
}
RUNTIME Error cudaStreamBeginCapture(CUstream stream, int mode) {
    DRIVER(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode(mode)));
}
RUNTIME Error cudaStreamEndCapture(CUstream stream, CUgraph* graph) { DRIVER(cuStreamEndCapture(stream, graph)); }
RUNTIME Error cudaStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                          CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
    DRIVER(cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count));
}
RUNTIME Error cudaStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                          CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData** edges,
                                          size_t* count) {
    DRIVER(cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count));
}
#if CUDART_VERSION < 13000
RUNTIME Error cudaStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
    DRIVER(cuStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr));
}
#else
RUNTIME Error cudaStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                       const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count);
}
#endif
RUNTIME Error cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    DRIVER(cuThreadExchangeStreamCaptureMode(mode));
}
RUNTIME Error cudaGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    DRIVER(cuGraphInstantiateWithFlags(executable, graph, flags));
}
RUNTIME Error cudaGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    return cudaGraphInstantiate(executable, graph, flags);
}
RUNTIME Error cudaGraphLaunch(CUgraphExec executable, CUstream stream) { DRIVER(cuGraphLaunch(executable, stream)); }
RUNTIME Error cudaGraphUpload(CUgraphExec, CUstream) { return 0; }
RUNTIME Error cudaGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    DRIVER(cuGraphGetNodes(graph, nodes, count));
}
RUNTIME Error cudaGraphDestroy(CUgraph graph) { DRIVER(cuGraphDestroy(graph)); }
RUNTIME Error cudaGraphExecDestroy(CUgraphExec executable) { DRIVER(cuGraphExecDestroy(executable)); }

RUNTIME Error cudaLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    DRIVER(cuLaunchHostFunc(stream, function, data));
}
RUNTIME Error cudaStreamAddCallback(CUstream stream, CUstreamCallback function, void* data, unsigned flags) {
    DRIVER(cuStreamAddCallback(stream, function, data, flags));
}

RUNTIME Error cudaEventCreate(CUevent* event) { DRIVER(cuEventCreate(event, 0)); }
RUNTIME Error cudaEventCreateWithFlags(CUevent* event, unsigned flags) { DRIVER(cuEventCreate(event, flags)); }
RUNTIME Error cudaEventDestroy(CUevent event) { DRIVER(cuEventDestroy_v2(event)); }
RUNTIME Error cudaEventRecord(CUevent event, CUstream stream) { DRIVER(cuEventRecord(event, stream)); }
RUNTIME Error cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    DRIVER(cuEventRecordWithFlags(event, stream, flags));
}
RUNTIME Error cudaEventQuery(CUevent event) { DRIVER(cuEventQuery(event)); }
RUNTIME Error cudaEventSynchronize(CUevent event) { DRIVER(cuEventSynchronize(event)); }
RUNTIME Error cudaEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    DRIVER(cuEventElapsedTime(milliseconds, start, end));
}
