// Nodes of graphs: see nodes.hpp.
#include "nodes.hpp"

#include "calls.hpp"
#include "capture.hpp"
#include "copies.hpp"
#include "kernels.hpp"
#include "watch.hpp"

#include <algorithm>
#include <cstring>
#include <queue>
#include <unordered_map>

namespace sim {

namespace {

std::unordered_map<CUgraphNode, Graph*>& owners() {
    static auto& all = *new std::unordered_map<CUgraphNode, Graph*>;
    return all;
}

bool starts(const char* name, const char* with) { return !strncmp(name, with, strlen(with)); }

}  // namespace

CUgraphNode new_node() {
    static u64 newest = 0x3700000000ull;
    return reinterpret_cast<CUgraphNode>(newest += 64);
}

CUgraphNodeType type_of_call(const char* name) {
    if (starts(name, "cuMemcpy")) return CU_GRAPH_NODE_TYPE_MEMCPY;
    if (starts(name, "cuMemset")) return CU_GRAPH_NODE_TYPE_MEMSET;
    if (starts(name, "cuMemAlloc")) return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    if (starts(name, "cuMemFree")) return CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (starts(name, "cuLaunchHostFunc") || starts(name, "cuStreamAddCallback")) return CU_GRAPH_NODE_TYPE_HOST;
    if (starts(name, "cuEventRecord")) return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    if (starts(name, "cuStreamWaitEvent")) return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    if (starts(name, "cuStream")) return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    if (starts(name, "cuGraphLaunch")) return CU_GRAPH_NODE_TYPE_GRAPH;
    return CU_GRAPH_NODE_TYPE_KERNEL;
}

Graph* finished_graph(CUgraph handle) {
    Graph* graph = driver().graphs.get(handle);
    return graph && !graph->capturing ? graph : nullptr;
}

Graph* graph_of(CUgraphNode handle) {
    auto found = owners().find(handle);
    return found == owners().end() ? nullptr : found->second;
}

// Numbers of nodes rise in the order in which a graph gets them.
Node* find_node(std::vector<Node>& nodes, CUgraphNode handle) {
    auto found = std::lower_bound(nodes.begin(), nodes.end(), handle,
                                  [](const Node& one, CUgraphNode wanted) { return one.handle < wanted; });
    return found != nodes.end() && found->handle == handle ? &*found : nullptr;
}

Node* find_node(CUgraphNode handle) {
    Graph* graph = graph_of(handle);
    return graph ? find_node(graph->nodes, handle) : nullptr;
}

void note_node(CUgraphNode handle, Graph* graph) {
    if (graph)
        owners()[handle] = graph;
    else
        owners().erase(handle);
}

// -- parameters -------------------------------------------------------------------------------------------------------

namespace {

// The values of a kernel's parameters, as cuGraphKernelNodeGetParams hands them out.
struct Arguments {
    std::vector<std::vector<u8>> values;
    std::vector<void*> pointers;
};

std::shared_ptr<const Arguments> copied_arguments(const Function& function, void** given) {
    auto made = std::make_shared<Arguments>();
    std::vector<std::size_t> sizes;
    if (function.kernel)
        sizes = function.kernel->sizes;
    else if (function.facts)
        for (const check::Parameter& one : function.facts->parameters) sizes.push_back(one.size);
    if (!given || sizes.empty()) return nullptr;
    for (std::size_t i = 0; i < sizes.size(); i++) {
        const u8* value = static_cast<const u8*>(given[i]);
        made->values.emplace_back(value, value + sizes[i]);
    }
    for (auto& value : made->values) made->pointers.push_back(value.data());
    return made;
}

// The named context, or the current one.
CUresult context_of(CUcontext handle, Context** context) {
    if (!handle) return current_context(context);
    *context = driver().contexts.get(handle);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult prepare_kernel(Node& node) {
    auto& given = node.given.kernel;
    Context* context;
    void* handle = given.func ? static_cast<void*>(given.func) : static_cast<void*>(given.kern);
    Function* function = functions().get(handle);
    if (!function || (given.kernelParams && given.extra)) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(context_of(given.func ? nullptr : given.ctx, &context));
    LaunchShape shape{given.gridDimX,  given.gridDimY,  given.gridDimZ,
                      given.blockDimX, given.blockDimY, given.blockDimZ};
    Launchable made;
    REFUSE_IF(prepare_launch(function, context, shape, given.kernelParams, given.extra, &made));
    auto arguments = copied_arguments(*function, given.kernelParams);
    given.kernelParams = arguments ? const_cast<void**>(arguments->pointers.data()) : nullptr;
    given.extra = nullptr;
    node.arguments = arguments;
    node.work = std::move(made.work);
    node.watch = std::move(made.watch);
    return CUDA_SUCCESS;
}

// Work whose accesses are known.
void prepare_work(Node& node, Work&& work) {
    look_at_host_memory(work);
    Work touched = work.only_touched();
    node.work = std::move(work);
    node.watch = [touched](Stream* stream) { return watch_work(stream, touched); };
}

CUresult prepare_copy(Node& node) {
    const CUDA_MEMCPY_NODE_PARAMS& given = node.given.memcpy;
    Context* context;
    Side to, from;
    Work work;
    work.name = this_thread().call;
    if (given.flags || given.reserved) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(context_of(given.copyCtx, &context));
    REFUSE_IF(sides_of(&given.copyParams, &to, &from));
    if (to.width && to.height && to.depth) {
        REFUSE_IF(check_copy(context, to, from, Peers::Checked));
        work = work_of_copy(to, from, Source::InOrder);
    }
    prepare_work(node, std::move(work));
    return CUDA_SUCCESS;
}

CUresult prepare_fill(Node& node) {
    const CUDA_MEMSET_NODE_PARAMS_v2& given = node.given.memset;
    Context* context;
    Work work;
    work.name = this_thread().call;
    if (given.elementSize != 1 && given.elementSize != 2 && given.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(context_of(given.ctx, &context));
    FilledRows rows(given.width, given.height, given.height > 1 ? given.pitch : 0);
    if (rows.count && rows.height)
        REFUSE_IF(work_of_fill(context, given.dst, given.value, given.elementSize, rows, &work));
    prepare_work(node, std::move(work));
    return CUDA_SUCCESS;
}

CUresult prepare_host(Node& node) {
    CUhostFn function = node.given.host.fn;
    void* data = node.given.host.userData;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.name = "host function";
    work.host_function = true;
    work.run = [function, data] { function(data); };
    prepare_work(node, std::move(work));
    return CUDA_SUCCESS;
}

// The node's graph is a copy, unless the program gives its own away.
CUresult prepare_child(Node& node) {
    CUDA_CHILD_GRAPH_NODE_PARAMS& given = node.given.graph;
    Graph* child = finished_graph(given.graph);
    if (!child || child == graph_of(node.handle)) return CUDA_ERROR_INVALID_VALUE;
    bool moved = given.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    if (moved && child->embedded) return CUDA_ERROR_INVALID_VALUE;
    if (!moved) child = clone_of(child);
    child->embedded = true;
    given.graph = reinterpret_cast<CUgraph>(child->handle);
    node.watch = [](Stream*) { return check::Time{}; };
    return CUDA_SUCCESS;
}

// A node that touches nothing.
CUresult prepare_empty(Node& node, const char* name) {
    Work work;
    work.name = name;
    prepare_work(node, std::move(work));
    return CUDA_SUCCESS;
}

CUresult prepare_event(Node& node, CUevent event, const char* name) {
    if (!made_event(event)) return CUDA_ERROR_INVALID_VALUE;
    return prepare_empty(node, name);
}

// A node that waits for an event orders all that depends on it, in a way that the engine does not see.
CUresult prepare_wait(Node& node) {
    REFUSE_IF(prepare_event(node, node.given.eventWait.event, "wait"));
    node.watch = [](Stream* stream) {
        driver().engine.wait_unseen(*stream->order);
        return check::Time{};
    };
    return CUDA_SUCCESS;
}

CUresult prepare(Node& node) {
    switch (node.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return prepare_kernel(node);
        case CU_GRAPH_NODE_TYPE_MEMCPY: return prepare_copy(node);
        case CU_GRAPH_NODE_TYPE_MEMSET: return prepare_fill(node);
        case CU_GRAPH_NODE_TYPE_HOST: return prepare_host(node);
        case CU_GRAPH_NODE_TYPE_GRAPH: return prepare_child(node);
        case CU_GRAPH_NODE_TYPE_EMPTY: return prepare_empty(node, "empty");
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return prepare_wait(node);
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return prepare_event(node, node.given.eventRecord.event, "record");
        default:
            log_line("%s: nodes of this type (%d) are not simulated", this_thread().call, int(node.type));
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace

CUresult prepare_node(Node& node, const CUgraphNodeParams& given) {
    Node made;
    made.handle = node.handle;
    made.after = node.after;
    made.enabled = node.enabled;
    made.attributes = node.attributes;
    made.type = given.type;
    made.given = given;
    made.call = this_thread().call;
    made.site = this_thread().site;
    REFUSE_IF(prepare(made));
    node = std::move(made);
    return CUDA_SUCCESS;
}

// -- copies -----------------------------------------------------------------------------------------------------------

Graph* clone_of(const Graph* graph) {
    Graph* made = make_graph();
    std::unordered_map<CUgraphNode, CUgraphNode> numbers;
    made->nodes = graph->nodes;
    made->accesses = graph->accesses;
    made->kept = retained(graph->kept);
    made->capturing = false;
    made->captured = graph->captured;
    for (Node& node : made->nodes) {
        CUgraphNode original = std::exchange(node.handle, new_node());
        numbers[original] = node.handle;
        made->originals[original] = node.handle;
        note_node(node.handle, made);
        if (node.type != CU_GRAPH_NODE_TYPE_GRAPH || !node.watch) continue;
        Graph* child = clone_of(driver().graphs.get(node.given.graph.graph));
        child->embedded = true;
        node.given.graph.graph = reinterpret_cast<CUgraph>(child->handle);
    }
    for (Node& node : made->nodes)
        for (CUgraphNode& before : node.after) before = numbers[before];
    return made;
}

// -- executables ------------------------------------------------------------------------------------------------------

namespace {

// The places of the nodes, each behind those that it depends on; else as the graph got them. Shorter: there is a circle.
std::vector<std::size_t> in_order(const std::vector<Node>& nodes) {
    std::unordered_map<CUgraphNode, std::size_t> places;
    std::vector<std::vector<std::size_t>> following(nodes.size());
    std::vector<std::size_t> missing(nodes.size()), order;
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (std::size_t i = 0; i < nodes.size(); i++) places[nodes[i].handle] = i;
    for (std::size_t i = 0; i < nodes.size(); i++) {
        missing[i] = nodes[i].after.size();
        for (CUgraphNode before : nodes[i].after) following[places[before]].push_back(i);
        if (!missing[i]) ready.push(i);
    }
    while (!ready.empty()) {
        std::size_t next = ready.top();
        ready.pop();
        order.push_back(next);
        for (std::size_t i : following[next])
            if (!--missing[i]) ready.push(i);
    }
    return order;
}

// The capture that stands for added nodes: see nodes.hpp.
class Judged {
  public:
    Judged() : first_(branch()) {
        driver().engine.begin_capture(*first_.order);
        record(kBegin, first_);
    }

    void add(const Node& node) {
        Stream& stream = stream_of(node);
        for (CUgraphNode before : node.after) driver().engine.wait(*stream.order, number(before));
        ThreadState& thread = this_thread();
        const char* call = std::exchange(thread.call, node.call);
        u32 site = std::exchange(thread.site, node.site);
        if (node.inner)
            watch_launch(&stream, *node.inner->accesses);
        else
            node.watch(&stream);
        thread.call = call;
        thread.site = site;
        record(number(node.handle), stream);
        last_[node.handle] = &stream;
    }

    std::shared_ptr<const check::Graph> finish() {
        auto graph = driver().engine.end_capture(*first_.order);
        for (u64 event : events_) driver().engine.destroy_event(event);
        for (auto& stream : streams_) driver().engine.destroy_stream(stream->order);
        return graph;
    }

  private:
    static constexpr u64 kBegin = 0x3700000000ull;  // no node has this number
    std::vector<std::unique_ptr<Stream>> streams_;
    Stream& first_;
    std::unordered_map<CUgraphNode, Stream*> last_;  // of nodes that are the last of their branch so far
    std::vector<u64> events_;
    bool started_ = false;

    static u64 number(CUgraphNode node) { return reinterpret_cast<u64>(node); }

    Stream& branch() {
        streams_.push_back(std::make_unique<Stream>());
        Stream& made = *streams_.back();
        made.id = driver().next_id++;
        made.order = driver().engine.create_stream(0, made.id, false);
        note_branch(&made);
        return made;
    }

    void record(u64 event, Stream& stream) {
        driver().engine.record(event, *stream.order);
        events_.push_back(event);
    }

    // A node goes on with a branch that ends with a node before it, or begins a branch.
    Stream& stream_of(const Node& node) {
        for (CUgraphNode before : node.after) {
            auto found = last_.find(before);
            if (found == last_.end()) continue;
            Stream* stream = found->second;
            last_.erase(found);
            return *stream;
        }
        if (!std::exchange(started_, true)) return first_;
        Stream& made = branch();
        driver().engine.wait(*made.order, node.after.empty() ? kBegin : number(node.after.front()));
        return made;
    }
};

void add_events(Flat& flat, const Node& node) {
    if (node.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) flat.recorded.push_back(node.given.eventRecord.event);
    if (node.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) flat.awaited.push_back(node.given.eventWait.event);
    flat.calls_host |= node.type == CU_GRAPH_NODE_TYPE_HOST;
}

void add_works(Flat& flat, const Node& node) {
    if (!node.inner) {
        add_events(flat, node);
        return flat.works.push_back(node.work);
    }
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(flat.works, node.inner->works);
    append(flat.recorded, node.inner->recorded);
    append(flat.awaited, node.inner->awaited);
    flat.calls_host |= node.inner->calls_host;
}

// Stands for a node that is disabled, with its place in the order.
Node skipped(const Node& node) {
    Node made;
    made.handle = node.handle;
    made.after = node.after;
    made.watch = [](Stream* stream) { return driver().engine.work(*stream->order, {}); };
    return made;
}

}  // namespace

CUresult flatten(const std::vector<Node>& nodes, Flat* flat) {
    std::vector<std::size_t> order = in_order(nodes);
    if (order.size() != nodes.size()) return CUDA_ERROR_INVALID_VALUE;
    Flat made;
    Judged judged;
    for (std::size_t i : order) {
        const Node& node = nodes[i].enabled ? nodes[i] : skipped(nodes[i]);
        add_works(made, node);
        judged.add(node);
    }
    made.accesses = judged.finish();
    *flat = std::move(made);
    return CUDA_SUCCESS;
}

CUresult nodes_of_executable(const Graph* graph, std::vector<Node>* nodes, Flat* flat) {
    std::vector<Node> made = graph->nodes;
    Flat all;
    if (graph->captured) {
        for (const Node& node : made) all.works.push_back(node.work);
        all.accesses = graph->accesses;
        *nodes = std::move(made);
        *flat = std::move(all);
        return CUDA_SUCCESS;
    }
    for (Node& node : made) {
        if (node.type != CU_GRAPH_NODE_TYPE_GRAPH) continue;
        std::vector<Node> unwanted;
        auto inner = std::make_shared<Flat>();
        REFUSE_IF(nodes_of_executable(driver().graphs.get(node.given.graph.graph), &unwanted, inner.get()));
        node.inner = inner;
    }
    REFUSE_IF(flatten(made, &all));
    *nodes = std::move(made);
    *flat = std::move(all);
    return CUDA_SUCCESS;
}

}  // namespace sim
