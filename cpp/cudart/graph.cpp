// Nodes that a program adds to a graph.
#include "copies.hpp"

using namespace cudart;

namespace {

struct KernelParameters {  // cudaKernelNodeParams
    const void* host;
    Extents grid, block;
    unsigned shared;
    void **values, **extra;
};

CUresult kernel_of(const KernelParameters* p, CUDA_KERNEL_NODE_PARAMS_v2* made) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    *made = {};
    made->gridDimX = p->grid.x;
    made->gridDimY = p->grid.y;
    made->gridDimZ = p->grid.z;
    made->blockDimX = p->block.x;
    made->blockDimY = p->block.y;
    made->blockDimZ = p->block.z;
    made->sharedMemBytes = p->shared;
    made->kernelParams = p->values;
    made->extra = p->extra;
    return function_of(p->host, &made->func);
}

CUresult planes_of_node(const CopyParameters* p, CUDA_MEMCPY3D* made) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    return planes_of(*p, p->way, made);
}

CUDA_MEMCPY3D row_of(void* to, const void* from, size_t bytes, int way) {
    CUDA_MEMCPY3D made;
    CopyParameters row = {};
    row.source = {const_cast<void*>(from), bytes, bytes, 1};
    row.target = {to, bytes, bytes, 1};
    row.extent = {bytes, 1, 1};
    planes_of(row, way, &made);
    return made;
}

// A node of a kernel or a copy: what the driver takes is made of the parameters first.
template <class Made, class Make, class Call>
Error with(Make&& make, Call&& call) {
    Made made;
    if (CUresult refused = begin()) return done(refused);
    if (CUresult refused = make(&made)) return done(refused);
    return done(call(&made));
}

}  // namespace

#define NODE CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count

RUNTIME Error cudaGraphCreate(CUgraph* graph, unsigned flags) { DRIVER(cuGraphCreate(graph, flags)); }
RUNTIME Error cudaGraphClone(CUgraph* clone, CUgraph graph) { DRIVER(cuGraphClone(clone, graph)); }
RUNTIME Error cudaGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original, CUgraph clone) {
    DRIVER(cuGraphNodeFindInClone(node, original, clone));
}

RUNTIME Error cudaGraphAddKernelNode(NODE, const KernelParameters* p) {
    return with<CUDA_KERNEL_NODE_PARAMS_v2>(
        [&](auto* made) { return kernel_of(p, made); },
        [&](auto* made) { return cuGraphAddKernelNode_v2(node, graph, before, count, made); });
}
RUNTIME Error cudaGraphKernelNodeSetParams(CUgraphNode node, const KernelParameters* p) {
    return with<CUDA_KERNEL_NODE_PARAMS_v2>([&](auto* made) { return kernel_of(p, made); },
                                            [&](auto* made) { return cuGraphKernelNodeSetParams_v2(node, made); });
}
RUNTIME Error cudaGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const KernelParameters* p) {
    return with<CUDA_KERNEL_NODE_PARAMS_v2>(
        [&](auto* made) { return kernel_of(p, made); },
        [&](auto* made) { return cuGraphExecKernelNodeSetParams_v2(exec, node, made); });
}

RUNTIME Error cudaGraphAddMemcpyNode(NODE, const CopyParameters* p) {
    return with<CUDA_MEMCPY3D>(
        [&](auto* made) { return planes_of_node(p, made); },
        [&](auto* made) { return cuGraphAddMemcpyNode(node, graph, before, count, made, nullptr); });
}
RUNTIME Error cudaGraphMemcpyNodeSetParams(CUgraphNode node, const CopyParameters* p) {
    return with<CUDA_MEMCPY3D>([&](auto* made) { return planes_of_node(p, made); },
                               [&](auto* made) { return cuGraphMemcpyNodeSetParams(node, made); });
}
RUNTIME Error cudaGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CopyParameters* p) {
    return with<CUDA_MEMCPY3D>([&](auto* made) { return planes_of_node(p, made); },
                               [&](auto* made) { return cuGraphExecMemcpyNodeSetParams(exec, node, made, nullptr); });
}
RUNTIME Error cudaGraphAddMemcpyNode1D(NODE, void* to, const void* from, size_t bytes, int way) {
    CUDA_MEMCPY3D row = row_of(to, from, bytes, way);
    DRIVER(cuGraphAddMemcpyNode(node, graph, before, count, &row, nullptr));
}
RUNTIME Error cudaGraphMemcpyNodeSetParams1D(CUgraphNode node, void* to, const void* from, size_t bytes, int way) {
    CUDA_MEMCPY3D row = row_of(to, from, bytes, way);
    DRIVER(cuGraphMemcpyNodeSetParams(node, &row));
}
RUNTIME Error cudaGraphExecMemcpyNodeSetParams1D(CUgraphExec exec, CUgraphNode node, void* to, const void* from,
                                                 size_t bytes, int way) {
    CUDA_MEMCPY3D row = row_of(to, from, bytes, way);
    DRIVER(cuGraphExecMemcpyNodeSetParams(exec, node, &row, nullptr));
}

// The other parameters have the same shape in both.
RUNTIME Error cudaGraphAddMemsetNode(NODE, const CUDA_MEMSET_NODE_PARAMS* p) {
    DRIVER(cuGraphAddMemsetNode(node, graph, before, count, p, nullptr));
}
RUNTIME Error cudaGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* p) {
    DRIVER(cuGraphMemsetNodeGetParams(node, p));
}
RUNTIME Error cudaGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* p) {
    DRIVER(cuGraphMemsetNodeSetParams(node, p));
}
RUNTIME Error cudaGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* p) {
    DRIVER(cuGraphExecMemsetNodeSetParams(exec, node, p, nullptr));
}
RUNTIME Error cudaGraphAddHostNode(NODE, const CUDA_HOST_NODE_PARAMS* p) {
    DRIVER(cuGraphAddHostNode(node, graph, before, count, p));
}
RUNTIME Error cudaGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* p) {
    DRIVER(cuGraphHostNodeGetParams(node, p));
}
RUNTIME Error cudaGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
    DRIVER(cuGraphHostNodeSetParams(node, p));
}
RUNTIME Error cudaGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
    DRIVER(cuGraphExecHostNodeSetParams(exec, node, p));
}
RUNTIME Error cudaGraphAddChildGraphNode(NODE, CUgraph child) {
    DRIVER(cuGraphAddChildGraphNode(node, graph, before, count, child));
}
RUNTIME Error cudaGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
    DRIVER(cuGraphChildGraphNodeGetGraph(node, graph));
}
RUNTIME Error cudaGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    DRIVER(cuGraphExecChildGraphNodeSetParams(exec, node, child));
}
RUNTIME Error cudaGraphAddEmptyNode(NODE) { DRIVER(cuGraphAddEmptyNode(node, graph, before, count)); }
RUNTIME Error cudaGraphAddEventRecordNode(NODE, CUevent event) {
    DRIVER(cuGraphAddEventRecordNode(node, graph, before, count, event));
}
RUNTIME Error cudaGraphAddEventWaitNode(NODE, CUevent event) {
    DRIVER(cuGraphAddEventWaitNode(node, graph, before, count, event));
}
#define OF_EVENTS(which) \
    RUNTIME Error cudaGraphEvent##which##NodeGetEvent(CUgraphNode node, CUevent* event) { \
        DRIVER(cuGraphEvent##which##NodeGetEvent(node, event)); \
    } \
    RUNTIME Error cudaGraphEvent##which##NodeSetEvent(CUgraphNode node, CUevent event) { \
        DRIVER(cuGraphEvent##which##NodeSetEvent(node, event)); \
    } \
    RUNTIME Error cudaGraphExecEvent##which##NodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) { \
        DRIVER(cuGraphExecEvent##which##NodeSetEvent(exec, node, event)); \
    }
OF_EVENTS(Record)
OF_EVENTS(Wait)

RUNTIME Error cudaGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) { DRIVER(cuGraphNodeGetType(node, type)); }
RUNTIME Error cudaGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
    DRIVER(cuGraphNodeSetEnabled(exec, node, enabled));
}
RUNTIME Error cudaGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned* enabled) {
    DRIVER(cuGraphNodeGetEnabled(exec, node, enabled));
}
RUNTIME Error cudaGraphDestroyNode(CUgraphNode node) { DRIVER(cuGraphDestroyNode(node)); }
RUNTIME Error cudaGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    DRIVER(cuGraphGetRootNodes(graph, nodes, count));
}

// In CUDA 13 the functions with edges have the plain names.
#if CUDART_VERSION < 13000
#define WITH_EDGES(name) name##_v2
RUNTIME Error cudaGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
    DRIVER(cuGraphGetEdges(graph, from, to, count));
}
RUNTIME Error cudaGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* list, size_t* count) {
    DRIVER(cuGraphNodeGetDependencies(node, list, count));
}
RUNTIME Error cudaGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* list, size_t* count) {
    DRIVER(cuGraphNodeGetDependentNodes(node, list, count));
}
RUNTIME Error cudaGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    DRIVER(cuGraphAddDependencies(graph, from, to, count));
}
RUNTIME Error cudaGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    DRIVER(cuGraphRemoveDependencies(graph, from, to, count));
}
#else
#define WITH_EDGES(name) name
#endif
RUNTIME Error WITH_EDGES(cudaGraphGetEdges)(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                                            size_t* count) {
    DRIVER(cuGraphGetEdges_v2(graph, from, to, edges, count));
}
RUNTIME Error WITH_EDGES(cudaGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode* list, CUgraphEdgeData* edges,
                                                       size_t* count) {
    DRIVER(cuGraphNodeGetDependencies_v2(node, list, edges, count));
}
RUNTIME Error WITH_EDGES(cudaGraphNodeGetDependentNodes)(CUgraphNode node, CUgraphNode* list, CUgraphEdgeData* edges,
                                                         size_t* count) {
    DRIVER(cuGraphNodeGetDependentNodes_v2(node, list, edges, count));
}
RUNTIME Error WITH_EDGES(cudaGraphAddDependencies)(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                                   const CUgraphEdgeData* edges, size_t count) {
    DRIVER(cuGraphAddDependencies_v2(graph, from, to, edges, count));
}
RUNTIME Error WITH_EDGES(cudaGraphRemoveDependencies)(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                                      const CUgraphEdgeData* edges, size_t count) {
    DRIVER(cuGraphRemoveDependencies_v2(graph, from, to, edges, count));
}

RUNTIME Error cudaGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
    DRIVER(cuGraphInstantiateWithParams(exec, graph, p));
}
RUNTIME Error cudaGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* result) {
    DRIVER(cuGraphExecUpdate_v2(exec, graph, result));
}
