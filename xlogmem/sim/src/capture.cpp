// The rules of stream capture: what is refused, and which refusals invalidate the capture.
#include "capture.hpp"

#include <algorithm>

namespace sim {

CUresult begin_capture(Stream* stream, CUstreamCaptureMode mode) {
    Driver& d = driver();
    if (stream->is_legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->id = d.next_id++;
    capture->mode = mode;
    capture->thread = this_thread().id;
    capture->context = stream->context;
    capture->stream = stream;
    stream->capture = capture;
    d.engine.begin_capture(*stream->order);
    d.captures.push_back(capture);
    return CUDA_SUCCESS;
}

CUresult end_capture(Stream* stream, Graph** graph) {
    Driver& d = driver();
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread().id)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    stream->capture = nullptr;
    std::shared_ptr<const check::Graph> accesses = d.engine.end_capture(*stream->order);
    d.captures.erase(std::find(d.captures.begin(), d.captures.end(), capture));
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    Graph* made = new Graph;
    made->nodes = std::move(capture->nodes);
    made->accesses = std::move(accesses);
    made->handle = d.graphs.add(made);
    *graph = made;
    return CUDA_SUCCESS;
}

CUresult capture_work(Stream* stream, Work&& work) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture->nodes.push_back(std::move(work));
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

CUresult check_legacy_use(Stream* stream) {
    if (driver().captures.empty() || !stream->is_legacy()) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (auto& capture : driver().captures) {
        if (capture->context != stream->context || !capture->stream->blocking()) continue;
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return result;
}

}  // namespace sim
