// Nodes of graphs: those of a capture, and those that a program adds itself.
//
// An added node keeps what it was made of, so an executable can be judged anew when the program changes a node. The
// engine judges added nodes as a capture with a stream for each branch, where a node waits for the nodes that it
// depends on; the report of a node is made at the place in the program that added it. Of captured nodes only the work
// is kept: they cannot be changed, and nothing can be added to their graph.
#pragma once

#include "device.hpp"

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace sim {

// What a launch of nodes does, in one of the orders that the graph allows.
struct Flat {
    std::vector<Work> works;
    std::shared_ptr<const check::Graph> accesses;
    // Events that nodes record and wait for at each launch.
    std::vector<CUevent> recorded, awaited;
    bool calls_host = false;
};

struct Node {
    CUgraphNode handle = nullptr;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    Nodes after;
    Work work;
    std::function<check::Time(Stream*)> watch;  // reports the work on this stream; none: it was captured
    const char* call = "";  // that has made the node
    u32 site = 0;
    bool enabled = true;  // in an executable
    std::map<int, CUlaunchAttributeValue> attributes;  // of a kernel
    CUgraphNodeParams given{};
    std::shared_ptr<const void> arguments;  // of a kernel: `given` points at them
    std::shared_ptr<const Flat> inner;      // of an executable's child graph
};

CUgraphNode new_node();
CUgraphNodeType type_of_call(const char* name);

// The graph with this handle, unless it is being captured.
Graph* finished_graph(CUgraph handle);
// The graph that has the node, and the node; nullptr: there is none.
Graph* graph_of(CUgraphNode handle);
Node* find_node(CUgraphNode handle);
Node* find_node(std::vector<Node>& nodes, CUgraphNode handle);
void note_node(CUgraphNode handle, Graph* graph);  // nullptr: it is gone

// Makes the node's work of its parameters. Nothing has changed where that is refused.
CUresult prepare_node(Node& node, const CUgraphNodeParams& given);

// A copy with nodes of its own, which have the places of the originals.
Graph* clone_of(const Graph* graph);

// Of the nodes as an executable has them. Refused where they depend on each other in a circle.
CUresult flatten(const std::vector<Node>& nodes, Flat* flat);
CUresult nodes_of_executable(const Graph* graph, std::vector<Node>* nodes, Flat* flat);

}  // namespace sim
