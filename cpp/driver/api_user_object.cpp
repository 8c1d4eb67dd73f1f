// Entry points: user objects, and the references to them that graphs hold.
#include "calls.hpp"
#include "capture.hpp"

#include <algorithm>

using namespace sim;

namespace {

// The object, if it has so many references.
UserObject* object_with(CUuserObject handle, unsigned count) {
    UserObject* object = user_objects().get(handle);
    return object && count && count <= object->references ? object : nullptr;
}

}  // namespace

EXPORT CUresult cuUserObjectCreate(CUuserObject* result, void* value, CUhostFn destroy, unsigned count,
                                   unsigned flags) {
    return api_call(CALL("cuUserObjectCreate"), [&](Lock&) -> CUresult {
        if (!result || !destroy || !count || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
            return CUDA_ERROR_INVALID_VALUE;
        UserObject* object = new UserObject{0, value, destroy, count};
        object->handle = user_objects().add(object);
        *result = reinterpret_cast<CUuserObject>(object->handle);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
    return api_call(CALL("cuUserObjectRetain"), [&](Lock&) -> CUresult {
        UserObject* object = user_objects().get(handle);
        if (!object || !count) return CUDA_ERROR_INVALID_VALUE;
        object->references += count;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
    return api_call(CALL("cuUserObjectRelease"), [&](Lock& lock) -> CUresult {
        UserObject* object = object_with(handle, count);
        if (!object) return CUDA_ERROR_INVALID_VALUE;
        release(lock, object, count);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
    return api_call(CALL("cuGraphRetainUserObject"), [&](Lock&) -> CUresult {
        Graph* graph = driver().graphs.get(graph_handle);
        UserObject* object = object_with(handle, 1);
        if (!graph || !object || !count || flags & ~unsigned(CU_GRAPH_USER_OBJECT_MOVE))
            return CUDA_ERROR_INVALID_VALUE;
        if (flags & CU_GRAPH_USER_OBJECT_MOVE && count > object->references) return CUDA_ERROR_INVALID_VALUE;
        if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
        graph->kept.insert(graph->kept.end(), count, object);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count) {
    return api_call(CALL("cuGraphReleaseUserObject"), [&](Lock& lock) -> CUresult {
        Graph* graph = driver().graphs.get(graph_handle);
        UserObject* object = object_with(handle, count);
        if (!graph || !object) return CUDA_ERROR_INVALID_VALUE;
        auto& kept = graph->kept;
        if (std::count(kept.begin(), kept.end(), object) < long(count)) return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < count; i++) kept.erase(std::find(kept.begin(), kept.end(), object));
        release(lock, object, count);
        return CUDA_SUCCESS;
    });
}
