// The rules of stream capture: refusals, and those of them that invalidate the capture.
#include "capture.hpp"

#include "memory.hpp"
#include "watch.hpp"

#include <algorithm>

namespace sim {

bool Capture::has_stream_of(const Context* context) const {
    return std::any_of(streams.begin(), streams.end(), [&](Stream* one) { return context->contains(one->context); });
}

bool Capture::has_blocking_stream_of(const Context* context) const {
    return std::any_of(streams.begin(), streams.end(),
                       [&](Stream* one) { return one->context == context && one->blocking(); });
}

Graph* make_graph() {
    Graph* graph = new Graph;
    graph->handle = driver().graphs.add(graph);
    return graph;
}

void drop_node(Lock& lock, Node& node) {
    note_node(node.handle, nullptr);
    if (node.type == CU_GRAPH_NODE_TYPE_GRAPH && node.watch)
        drop_graph(lock, driver().graphs.get(node.given.graph.graph));
}

void drop_graph(Lock& lock, Graph* graph) {
    driver().graphs.remove(graph->handle);
    for (Node& node : graph->nodes) drop_node(lock, node);
    release_all(lock, graph->kept);
    delete graph;
}

CUresult begin_capture(Stream* stream, CUstreamCaptureMode mode) {
    Driver& d = driver();
    if (stream->is_legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->id = d.next_id++;
    capture->mode = mode;
    capture->thread = this_thread().id;
    capture->streams.push_back(stream);
    capture->graph = make_graph();
    capture->graph->capturing = capture->graph->captured = true;
    stream->capture = capture;
    d.engine.begin_capture(*stream->order);
    d.captures.push_back(capture);
    return CUDA_SUCCESS;
}

namespace {

// The streams go on as before; the graph has what was captured.
void close(Capture& capture) {
    Driver& d = driver();
    Stream* first = capture.streams.front();
    auto is_it = [&](auto& one) { return one.get() == &capture; };
    capture.graph->accesses = d.engine.end_capture(*first->order);
    capture.graph->capturing = false;
    capture.ended = true;
    auto closed = std::find_if(d.captures.begin(), d.captures.end(), is_it);
    std::shared_ptr<Capture> kept = *closed;            // its streams drop it
    d.captures.erase(closed);
    for (Stream* one : capture.streams) one->capture = nullptr;
}

}  // namespace

CUresult end_capture(Lock& lock, Stream* stream, Graph** graph) {
    Driver& d = driver();
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->streams.front() != stream) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread().id)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool joined = d.engine.is_joined(*stream->order);
    close(*capture);
    for (u64 address : capture->frees) free_ordered(lock, address, stream);
    if (joined && !capture->invalidated) {
        *graph = capture->graph;
        return CUDA_SUCCESS;
    }
    drop_graph(lock, capture->graph);
    return capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

namespace {

// The waiting stream captures something else, or nothing is captured any more where the event was recorded.
CUresult wait_across(Capture* capture, Event* event) {
    Capture* other = event->captured.get();
    if (!event->recorded && !other) return CUDA_SUCCESS;
    capture->invalidated = true;
    if (!other) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (other->ended) return CUDA_ERROR_INVALID_VALUE;
    other->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
}

// Orders the stream after the event, by operations in the engine and by nodes in the capture.
void come_after(Stream* stream, Event* event) {
    watch_wait(stream, event->handle);
    Nodes& newest = stream->capture->newest[stream];
    for (CUgraphNode node : event->captured_after)
        if (std::find(newest.begin(), newest.end(), node) == newest.end()) newest.push_back(node);
}

CUresult join_capture(Stream* stream, Event* event) {
    Capture* capture = event->captured.get();
    if (capture->ended || capture->invalidated) return CUDA_ERROR_INVALID_VALUE;  // the latter was seen on an H200
    if (stream->is_legacy()) {
        check_legacy_use(stream);
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = event->captured;
    capture->streams.push_back(stream);
    come_after(stream, event);
    return CUDA_SUCCESS;
}

void add_node(Stream* stream, Work&& work) {
    Capture& capture = *stream->capture;
    Node node;
    node.handle = new_node();
    node.type = type_of_call(this_thread().call);
    node.work = std::move(work);
    node.after = std::exchange(capture.newest[stream], {node.handle});
    note_node(node.handle, capture.graph);
    capture.graph->nodes.push_back(std::move(node));
}

}  // namespace

CUresult wait_in_capture(Stream* stream, Event* event, bool external) {
    Capture* capture = stream->capture.get();
    if (!capture) return join_capture(stream, event);
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!external && event->captured != stream->capture) return wait_across(capture, event);
    if (external) {
        add_node(stream, {});
        driver().engine.wait_unseen(*stream->order);
    } else {
        come_after(stream, event);
    }
    return CUDA_SUCCESS;
}

CUresult record_in_capture(Stream* stream, Event* event, bool external) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->at_launch = external;
    event->captured = external ? nullptr : stream->capture;
    if (external) {
        add_node(stream, {});
        driver().engine.work(*stream->order, {});
    } else {
        event->captured_after = stream->capture->newest[stream];
        watch_record(event->handle, stream);
    }
    return CUDA_SUCCESS;
}

CUresult capture_work(Stream* stream, Work&& work) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    add_node(stream, std::move(work));
    return CUDA_SUCCESS;
}

CUresult check_unsafe_call() {
    Driver& d = driver();
    if (d.captures.empty()) return CUDA_SUCCESS;
    ThreadState& thread = this_thread();
    if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (auto& capture : d.captures) {
        bool own = capture->thread == thread.id && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global =
            thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!own && !global) continue;
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult check_not_capturing(Stream* stream) {
    if (!stream->capture) return CUDA_SUCCESS;
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void leave_capture(Lock& lock, Stream* stream) {
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture || capture->streams.front() != stream) return;
    close(*capture);
    drop_graph(lock, capture->graph);
}

CUresult check_legacy_use(Stream* stream) {
    if (driver().captures.empty() || !stream->is_legacy()) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (auto& capture : driver().captures) {
        if (!capture->has_blocking_stream_of(stream->context)) continue;
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return result;
}

}  // namespace sim
