// Entry points: nodes that a program adds to a graph, what they depend on, and their parameters.
#include "calls.hpp"
#include "capture.hpp"
#include "nodes.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

using namespace sim;

namespace {

// Edges with data are programmatic launches.
CUresult check_edges(const CUgraphEdgeData* edges, size_t count) {
    static const CUgraphEdgeData plain{};
    for (size_t i = 0; edges && i < count; i++) {
        if (!memcmp(&edges[i], &plain, sizeof plain)) continue;
        log_line("%s: edges with data are not simulated", this_thread().call);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

// Nodes cannot be added to a captured graph, nor changed there: the engine has judged it.
CUresult find_graph(CUgraph handle, Graph** graph) {
    *graph = driver().graphs.get(handle);
    if (!*graph) return CUDA_ERROR_INVALID_VALUE;
    if (!(*graph)->captured) return CUDA_SUCCESS;
    log_line("%s: changes of a captured graph are not simulated", this_thread().call);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult find_added(CUgraphNode handle, Graph** graph, Node** node) {
    *node = find_node(handle);
    if (!*node) return CUDA_ERROR_INVALID_VALUE;
    return find_graph(reinterpret_cast<CUgraph>(graph_of(handle)->handle), graph);
}

CUgraphNodeParams parameters(CUgraphNodeType type) {
    CUgraphNodeParams made{};
    made.type = type;
    return made;
}

struct Before {
    const CUgraphNode* nodes;
    size_t count;
    const CUgraphEdgeData* edges = nullptr;
};

CUresult add_node(CUgraphNode* result, CUgraph handle, const Before& before, const CUgraphNodeParams* given) {
    Graph* graph;
    if (!result || !given || (before.count && !before.nodes)) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(find_graph(handle, &graph));
    REFUSE_IF(check_edges(before.edges, before.count));
    std::set<CUgraphNode> different(before.nodes, before.nodes + before.count);
    for (CUgraphNode one : different)
        if (graph_of(one) != graph) return CUDA_ERROR_INVALID_VALUE;
    if (different.size() != before.count) return CUDA_ERROR_INVALID_VALUE;
    if (given->type == CU_GRAPH_NODE_TYPE_GRAPH && driver().graphs.get(given->graph.graph) == graph)
        return CUDA_ERROR_INVALID_VALUE;
    Node node;
    node.after.assign(before.nodes, before.nodes + before.count);
    REFUSE_IF(prepare_node(node, *given));
    node.handle = new_node();
    note_node(node.handle, graph);
    graph->nodes.push_back(std::move(node));
    *result = graph->nodes.back().handle;
    return CUDA_SUCCESS;
}

// Of a kind that the node has already.
CUresult change(Lock& lock, Node& node, const CUgraphNodeParams* given) {
    if (!given || given->type != node.type) return CUDA_ERROR_INVALID_VALUE;
    Node before = node;
    REFUSE_IF(prepare_node(node, *given));
    if (node.type == CU_GRAPH_NODE_TYPE_GRAPH) drop_graph(lock, driver().graphs.get(before.given.graph.graph));
    return CUDA_SUCCESS;
}

CUresult set_parameters(Lock& lock, CUgraphNode handle, const CUgraphNodeParams* given) {
    Graph* graph;
    Node* node;
    REFUSE_IF(find_added(handle, &graph, &node));
    return change(lock, *node, given);
}

CUresult find_in_executable(CUgraphExec handle, CUgraphNode node_handle, GraphExec** exec, std::vector<Node>* nodes,
                            Node** node) {
    *exec = driver().graph_execs.get(handle);
    if (!*exec) return CUDA_ERROR_INVALID_VALUE;
    *nodes = (*exec)->nodes;
    *node = find_node(*nodes, node_handle);
    if (!*node) return CUDA_ERROR_INVALID_VALUE;
    if ((*node)->watch) return CUDA_SUCCESS;
    log_line("%s: changes of a captured graph are not simulated", this_thread().call);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult keep(GraphExec* exec, std::vector<Node>&& nodes) {
    REFUSE_IF(flatten(nodes, &exec->flat));
    exec->nodes = std::move(nodes);
    return CUDA_SUCCESS;
}

// The child graph of an executable is looked at here once, and may go.
CUresult set_in_executable(Lock&, CUgraphExec handle, CUgraphNode node_handle, const CUgraphNodeParams* given) {
    GraphExec* exec;
    std::vector<Node> nodes;
    Node* node;
    REFUSE_IF(find_in_executable(handle, node_handle, &exec, &nodes, &node));
    if (!given || given->type != node->type) return CUDA_ERROR_INVALID_VALUE;
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        Graph* child = finished_graph(given->graph.graph);
        std::vector<Node> unwanted;
        auto inner = std::make_shared<Flat>();
        if (!child) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(nodes_of_executable(child, &unwanted, inner.get()));
        node->inner = inner;
    } else {
        REFUSE_IF(prepare_node(*node, *given));
    }
    return keep(exec, std::move(nodes));
}

// Fills a list that the caller has made for `*count` entries, and says how many there are.
CUresult answer_list(const Nodes& found, CUgraphNode* list, size_t* count) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (list)
        for (size_t i = 0; i < *count; i++) list[i] = i < found.size() ? found[i] : nullptr;
    *count = list ? std::min(*count, found.size()) : found.size();
    return CUDA_SUCCESS;
}

void clear_edges(CUgraphEdgeData* edges, const size_t* count) {
    for (size_t i = 0; edges && count && i < *count; i++) edges[i] = {};
}

Nodes handles(const Graph* graph, bool roots) {
    Nodes found;
    for (const Node& node : graph->nodes)
        if (!roots || node.after.empty()) found.push_back(node.handle);
    return found;
}

CUresult list_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
    Graph* graph = driver().graphs.get(handle);
    Nodes first, second;
    if (!graph || !count || bool(from) != bool(to)) return CUDA_ERROR_INVALID_VALUE;
    for (const Node& node : graph->nodes)
        for (CUgraphNode before : node.after) {
            first.push_back(before);
            second.push_back(node.handle);
        }
    size_t room = *count;
    REFUSE_IF(answer_list(first, from, &room));
    REFUSE_IF(answer_list(second, to, count));
    if (from) clear_edges(edges, count);
    return CUDA_SUCCESS;
}

CUresult list_dependencies(CUgraphNode handle, CUgraphNode* list, CUgraphEdgeData* edges, size_t* count) {
    Node* node = find_node(handle);
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(answer_list(node->after, list, count));
    if (list) clear_edges(edges, count);
    return CUDA_SUCCESS;
}

CUresult list_dependents(CUgraphNode handle, CUgraphNode* list, CUgraphEdgeData* edges, size_t* count) {
    Graph* graph = graph_of(handle);
    Nodes found;
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    for (const Node& node : graph->nodes)
        if (std::count(node.after.begin(), node.after.end(), handle)) found.push_back(node.handle);
    REFUSE_IF(answer_list(found, list, count));
    if (list) clear_edges(edges, count);
    return CUDA_SUCCESS;
}

// An edge that is there already, or that is to be removed and is not, is refused, and then none is changed.
CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edges,
                      size_t count, bool adds) {
    Graph* graph;
    std::set<std::pair<CUgraphNode, CUgraphNode>> different;
    REFUSE_IF(find_graph(handle, &graph));
    if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(check_edges(edges, count));
    for (size_t i = 0; i < count; i++) {
        if (graph_of(from[i]) != graph || graph_of(to[i]) != graph || from[i] == to[i]) return CUDA_ERROR_INVALID_VALUE;
        const Nodes& after = find_node(to[i])->after;
        bool there = std::count(after.begin(), after.end(), from[i]);
        if (there == adds || !different.emplace(from[i], to[i]).second) return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        Nodes& after = find_node(to[i])->after;
        if (adds)
            after.push_back(from[i]);
        else
            after.erase(std::find(after.begin(), after.end(), from[i]));
    }
    return CUDA_SUCCESS;
}

// The parameters of a node of this type. Of captured nodes they are not kept.
template <class Answer>
CUresult get_parameters(CUgraphNode handle, CUgraphNodeType type, Answer&& answer) {
    Node* node = find_node(handle);
    if (!node || node->type != type) return CUDA_ERROR_INVALID_VALUE;
    if (!node->watch) {
        log_line("%s: parameters of captured nodes are not simulated", this_thread().call);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    answer(node->given);
    return CUDA_SUCCESS;
}

// -- parameters as the functions of one type of node take them --------------------------------------------------------

template <class Given>  // of any version
CUgraphNodeParams of_kernel(const Given* given) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_KERNEL);
    if (given) memcpy(&made.kernel, given, sizeof *given);
    return made;
}

CUgraphNodeParams of_copy(const CUDA_MEMCPY3D* given, CUcontext context) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_MEMCPY);
    made.memcpy.copyCtx = context;
    if (given) made.memcpy.copyParams = *given;
    return made;
}

CUgraphNodeParams of_fill(const CUDA_MEMSET_NODE_PARAMS_v1* given, CUcontext context) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_MEMSET);
    if (given) memcpy(&made.memset, given, sizeof *given);
    made.memset.ctx = context;
    return made;
}

CUgraphNodeParams of_host(const CUDA_HOST_NODE_PARAMS_v1* given) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_HOST);
    if (given) memcpy(&made.host, given, sizeof *given);
    return made;
}

CUgraphNodeParams of_child(CUgraph child) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_GRAPH);
    made.graph.graph = child;
    return made;
}

CUgraphNodeParams of_record(CUevent event) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    made.eventRecord.event = event;
    return made;
}

CUgraphNodeParams of_wait(CUevent event) {
    CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    made.eventWait.event = event;
    return made;
}

// The context in which a copy or a fill was made stays that of the node.
CUcontext copy_context(CUgraphNode handle) {
    Node* node = find_node(handle);
    return node && node->type == CU_GRAPH_NODE_TYPE_MEMCPY ? node->given.memcpy.copyCtx : nullptr;
}
CUcontext fill_context(CUgraphNode handle) {
    Node* node = find_node(handle);
    return node && node->type == CU_GRAPH_NODE_TYPE_MEMSET ? node->given.memset.ctx : nullptr;
}

}  // namespace

// name, the documentation's name, then the parameters of this type of node and what is made of them.
#define ADD(symbol, base, given, ...) \
    EXPORT CUresult symbol(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count, given) { \
        return api_call(CALL(base), [&](Lock&) -> CUresult { \
            CUgraphNodeParams made = __VA_ARGS__; \
            return add_node(node, graph, {before, count}, &made); \
        }); \
    }
#define PARAMETERS(type) const type* p
ADD(cuGraphAddKernelNode, "cuGraphAddKernelNode", PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v1), of_kernel(p))
ADD(cuGraphAddKernelNode_v2, "cuGraphAddKernelNode", PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v2), of_kernel(p))
ADD(cuGraphAddHostNode, "cuGraphAddHostNode", PARAMETERS(CUDA_HOST_NODE_PARAMS), of_host(p))
ADD(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode", CUgraph child, of_child(child))
ADD(cuGraphAddEventRecordNode, "cuGraphAddEventRecordNode", CUevent event, of_record(event))
ADD(cuGraphAddEventWaitNode, "cuGraphAddEventWaitNode", CUevent event, of_wait(event))

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count) {
    return api_call(CALL("cuGraphAddEmptyNode"), [&](Lock&) -> CUresult {
        CUgraphNodeParams made = parameters(CU_GRAPH_NODE_TYPE_EMPTY);
        return add_node(node, graph, {before, count}, &made);
    });
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                                     const CUDA_MEMCPY3D* copy, CUcontext context) {
    return api_call(CALL("cuGraphAddMemcpyNode"), [&](Lock&) -> CUresult {
        CUgraphNodeParams made = of_copy(copy, context);
        return copy ? add_node(node, graph, {before, count}, &made) : CUDA_ERROR_INVALID_VALUE;
    });
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
    return api_call(CALL("cuGraphAddMemsetNode"), [&](Lock&) -> CUresult {
        CUgraphNodeParams made = of_fill(fill, context);
        return fill ? add_node(node, graph, {before, count}, &made) : CUDA_ERROR_INVALID_VALUE;
    });
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* before,
                                  const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* given) {
    return api_call(CALL("cuGraphAddNode"), [&](Lock&) -> CUresult {
        REFUSE_IF(add_node(node, graph, {before, count, edges}, given));
        if (given->type == CU_GRAPH_NODE_TYPE_GRAPH) given->graph.graph = find_node(*node)->given.graph.graph;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                               CUgraphNodeParams* given) {
    return cuGraphAddNode_v2(node, graph, before, nullptr, count, given);
}

// -- parameters -------------------------------------------------------------------------------------------------------

// name, type, type of the answer, member
#define GET(symbol, base, type, answer_type, member) \
    EXPORT CUresult symbol(CUgraphNode node, answer_type* result) { \
        return api_call(CALL(base), [&](Lock&) -> CUresult { \
            if (!result) return CUDA_ERROR_INVALID_VALUE; \
            return get_parameters(node, CU_GRAPH_NODE_TYPE_##type, [&](const CUgraphNodeParams& given) { \
                memcpy(result, &given.member, sizeof *result); \
            }); \
        }); \
    }
GET(cuGraphKernelNodeGetParams, "cuGraphKernelNodeGetParams", KERNEL, CUDA_KERNEL_NODE_PARAMS_v1, kernel)
GET(cuGraphKernelNodeGetParams_v2, "cuGraphKernelNodeGetParams", KERNEL, CUDA_KERNEL_NODE_PARAMS_v2, kernel)
GET(cuGraphMemcpyNodeGetParams, "cuGraphMemcpyNodeGetParams", MEMCPY, CUDA_MEMCPY3D, memcpy.copyParams)
GET(cuGraphMemsetNodeGetParams, "cuGraphMemsetNodeGetParams", MEMSET, CUDA_MEMSET_NODE_PARAMS, memset)
GET(cuGraphHostNodeGetParams, "cuGraphHostNodeGetParams", HOST, CUDA_HOST_NODE_PARAMS, host)
GET(cuGraphChildGraphNodeGetGraph, "cuGraphChildGraphNodeGetGraph", GRAPH, CUgraph, graph.graph)
GET(cuGraphEventRecordNodeGetEvent, "cuGraphEventRecordNodeGetEvent", EVENT_RECORD, CUevent, eventRecord.event)
GET(cuGraphEventWaitNodeGetEvent, "cuGraphEventWaitNodeGetEvent", WAIT_EVENT, CUevent, eventWait.event)

// name, parameters, whether they are there, what is made of them
#define SET(symbol, base, given, there, ...) \
    EXPORT CUresult symbol(CUgraphNode node, given) { \
        return api_call(CALL(base), [&](Lock& lock) -> CUresult { \
            CUgraphNodeParams made = __VA_ARGS__; \
            return set_parameters(lock, node, there ? &made : nullptr); \
        }); \
    }
SET(cuGraphKernelNodeSetParams, "cuGraphKernelNodeSetParams", PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v1), p, of_kernel(p))
SET(cuGraphKernelNodeSetParams_v2, "cuGraphKernelNodeSetParams", PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v2), p,
    of_kernel(p))
SET(cuGraphMemcpyNodeSetParams, "cuGraphMemcpyNodeSetParams", PARAMETERS(CUDA_MEMCPY3D), p,
    of_copy(p, copy_context(node)))
SET(cuGraphMemsetNodeSetParams, "cuGraphMemsetNodeSetParams", PARAMETERS(CUDA_MEMSET_NODE_PARAMS), p,
    of_fill(p, fill_context(node)))
SET(cuGraphHostNodeSetParams, "cuGraphHostNodeSetParams", PARAMETERS(CUDA_HOST_NODE_PARAMS), p, of_host(p))
SET(cuGraphEventRecordNodeSetEvent, "cuGraphEventRecordNodeSetEvent", CUevent event, true, of_record(event))
SET(cuGraphEventWaitNodeSetEvent, "cuGraphEventWaitNodeSetEvent", CUevent event, true, of_wait(event))

EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* given) {
    return api_call(CALL("cuGraphNodeSetParams"), [&](Lock& lock) { return set_parameters(lock, node, given); });
}

#define SET_EXEC(symbol, base, given, there, ...) \
    EXPORT CUresult symbol(CUgraphExec exec, CUgraphNode node, given) { \
        return api_call(CALL(base), [&](Lock& lock) -> CUresult { \
            CUgraphNodeParams made = __VA_ARGS__; \
            return set_in_executable(lock, exec, node, there ? &made : nullptr); \
        }); \
    }
SET_EXEC(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams", PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v1), p,
         of_kernel(p))
SET_EXEC(cuGraphExecKernelNodeSetParams_v2, "cuGraphExecKernelNodeSetParams", PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v2), p,
         of_kernel(p))
SET_EXEC(cuGraphExecHostNodeSetParams, "cuGraphExecHostNodeSetParams", PARAMETERS(CUDA_HOST_NODE_PARAMS), p, of_host(p))
SET_EXEC(cuGraphExecChildGraphNodeSetParams, "cuGraphExecChildGraphNodeSetParams", CUgraph child, true, of_child(child))
SET_EXEC(cuGraphExecEventRecordNodeSetEvent, "cuGraphExecEventRecordNodeSetEvent", CUevent event, true,
         of_record(event))
SET_EXEC(cuGraphExecEventWaitNodeSetEvent, "cuGraphExecEventWaitNodeSetEvent", CUevent event, true, of_wait(event))

EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* copy,
                                               CUcontext context) {
    return api_call(CALL("cuGraphExecMemcpyNodeSetParams"), [&](Lock& lock) -> CUresult {
        CUgraphNodeParams made = of_copy(copy, context);
        return set_in_executable(lock, exec, node, copy ? &made : nullptr);
    });
}

EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* fill,
                                               CUcontext context) {
    return api_call(CALL("cuGraphExecMemsetNodeSetParams"), [&](Lock& lock) -> CUresult {
        CUgraphNodeParams made = of_fill(fill, context);
        return set_in_executable(lock, exec, node, fill ? &made : nullptr);
    });
}

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* given) {
    return api_call(CALL("cuGraphExecNodeSetParams"),
                    [&](Lock& lock) { return set_in_executable(lock, exec, node, given); });
}

// Kernels, copies and fills alone can be disabled.
EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned enabled) {
    return api_call(CALL("cuGraphNodeSetEnabled"), [&](Lock&) -> CUresult {
        GraphExec* exec;
        std::vector<Node> nodes;
        Node* node;
        REFUSE_IF(find_in_executable(handle, node_handle, &exec, &nodes, &node));
        if (node->type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
        node->enabled = enabled;
        return keep(exec, std::move(nodes));
    });
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned* enabled) {
    return api_call(CALL("cuGraphNodeGetEnabled"), [&](Lock&) -> CUresult {
        GraphExec* exec = driver().graph_execs.get(handle);
        Node* node = exec ? find_node(exec->nodes, node_handle) : nullptr;
        if (!node || !enabled || node->type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
        *enabled = node->enabled;
        return CUDA_SUCCESS;
    });
}

// They change nothing of what a kernel touches.
EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                              const CUkernelNodeAttrValue* value) {
    return api_call(CALL("cuGraphKernelNodeSetAttribute"), [&](Lock&) -> CUresult {
        Node* node = find_node(handle);
        if (!node || !value || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
        node->attributes[attribute] = *value;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                              CUkernelNodeAttrValue* value) {
    return api_call(CALL("cuGraphKernelNodeGetAttribute"), [&](Lock&) -> CUresult {
        Node* node = find_node(handle);
        if (!node || !value || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
        auto found = node->attributes.find(attribute);
        *value = found == node->attributes.end() ? CUkernelNodeAttrValue{} : found->second;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
    return api_call(CALL("cuGraphKernelNodeCopyAttributes"), [&](Lock&) -> CUresult {
        Node *target = find_node(to), *source = find_node(from);
        for (Node* node : {target, source})
            if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
        target->attributes = source->attributes;
        return CUDA_SUCCESS;
    });
}

// -- the shape of a graph ---------------------------------------------------------------------------------------------

EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
    return api_call(CALL("cuGraphNodeGetType"), [&](Lock&) -> CUresult {
        Node* node = find_node(handle);
        if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
        *type = node->type;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
    return api_call(CALL("cuGraphGetNodes"), [&](Lock&) -> CUresult {
        Graph* graph = driver().graphs.get(handle);
        return graph ? answer_list(handles(graph, false), nodes, count) : CUDA_ERROR_INVALID_VALUE;
    });
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
    return api_call(CALL("cuGraphGetRootNodes"), [&](Lock&) -> CUresult {
        Graph* graph = driver().graphs.get(handle);
        return graph ? answer_list(handles(graph, true), nodes, count) : CUDA_ERROR_INVALID_VALUE;
    });
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                                   size_t* count) {
    return api_call(CALL("cuGraphGetEdges"), [&](Lock&) { return list_edges(graph, from, to, edges, count); });
}
EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
    return cuGraphGetEdges_v2(graph, from, to, nullptr, count);
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* list, CUgraphEdgeData* edges,
                                              size_t* count) {
    return api_call(CALL("cuGraphNodeGetDependencies"),
                    [&](Lock&) { return list_dependencies(node, list, edges, count); });
}
EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* list, size_t* count) {
    return cuGraphNodeGetDependencies_v2(node, list, nullptr, count);
}

EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* list, CUgraphEdgeData* edges,
                                                size_t* count) {
    return api_call(CALL("cuGraphNodeGetDependentNodes"),
                    [&](Lock&) { return list_dependents(node, list, edges, count); });
}
EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* list, size_t* count) {
    return cuGraphNodeGetDependentNodes_v2(node, list, nullptr, count);
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                          const CUgraphEdgeData* edges, size_t count) {
    return api_call(CALL("cuGraphAddDependencies"),
                    [&](Lock&) { return change_edges(graph, from, to, edges, count, true); });
}
EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    return cuGraphAddDependencies_v2(graph, from, to, nullptr, count);
}

EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                             const CUgraphEdgeData* edges, size_t count) {
    return api_call(CALL("cuGraphRemoveDependencies"),
                    [&](Lock&) { return change_edges(graph, from, to, edges, count, false); });
}
EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    return cuGraphRemoveDependencies_v2(graph, from, to, nullptr, count);
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode handle) {
    return api_call(CALL("cuGraphDestroyNode"), [&](Lock& lock) -> CUresult {
        Graph* graph;
        Node* node;
        REFUSE_IF(find_added(handle, &graph, &node));
        Node gone = std::move(*node);
        graph->nodes.erase(graph->nodes.begin() + (node - graph->nodes.data()));
        for (Node& other : graph->nodes)
            other.after.erase(std::remove(other.after.begin(), other.after.end(), handle), other.after.end());
        drop_node(lock, gone);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphClone(CUgraph* result, CUgraph handle) {
    return api_call(CALL("cuGraphClone"), [&](Lock&) -> CUresult {
        Graph* graph = finished_graph(handle);
        if (!graph || !result) return CUDA_ERROR_INVALID_VALUE;
        *result = reinterpret_cast<CUgraph>(clone_of(graph)->handle);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode* result, CUgraphNode original, CUgraph handle) {
    return api_call(CALL("cuGraphNodeFindInClone"), [&](Lock&) -> CUresult {
        Graph* graph = driver().graphs.get(handle);
        if (!graph || !result) return CUDA_ERROR_INVALID_VALUE;
        auto found = graph->originals.find(original);
        if (found == graph->originals.end() || !find_node(found->second)) return CUDA_ERROR_INVALID_VALUE;
        *result = found->second;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
    return api_call(CALL("cuGraphDebugDotPrint"), [&](Lock&) -> CUresult {
        Graph* graph = driver().graphs.get(handle);
        std::FILE* file = graph && path ? fopen(path, "w") : nullptr;
        if (!file) return graph && path ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
        fprintf(file, "digraph dot {\n");
        for (const Node& node : graph->nodes) {
            fprintf(file, "\"%p\" [label=\"%s\"];\n", static_cast<void*>(node.handle), node.work.name);
            for (CUgraphNode before : node.after)
                fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<void*>(before), static_cast<void*>(node.handle));
        }
        fprintf(file, "}\n");
        return fclose(file) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
    });
}
