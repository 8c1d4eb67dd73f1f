// Calls of drivers that are newer than the headers with which xlogmem is built, after CUPTI 13.5's.
#pragma once

#include "calls.hpp"

namespace check::newer {

inline constexpr CUpti_CallbackId kMemcpyBatchAsync = 796, kMemcpyBatchAsyncPtsz = 797, kCtxSynchronize = 800,
                                  kLaunchHostFunc = 831, kLaunchHostFuncPtsz = 832, kMemcpyWithAttributesAsync = 837,
                                  kMemcpyWithAttributesAsyncPtsz = 838;

// Not modelled.
inline constexpr Calls::Entry kUnseenCopies[] = {{"cuMemDiscardBatchAsync", 789, 790},
                                                 {"cuMemDiscardAndPrefetchBatchAsync", 791, 792},
                                                 {"cuMemcpy3DBatchAsync", 798, 799},
                                                 {"cuMemcpy3DWithAttributesAsync", 839, 840}};
inline constexpr Calls::Entry kUnseenCaptures[] = {{"cuStreamBeginCaptureToCig", 783, 814},
                                                   {"cuStreamEndCaptureToCig", 815, 816},
                                                   {"cuStreamBeginRecaptureToGraph", 846, 847},
                                                   {"cuGraphAddNode", 863},
                                                   {"cuGraphNodeSetParams", 864}};

struct cuMemcpyBatchAsync_params {  // without the index of what failed
    CUdeviceptr *dsts, *srcs;
    size_t *sizes, count;
    const void* attrs;
    size_t *attrsIdxs, numAttrs;
    CUstream hStream;
};

struct cuMemcpyWithAttributesAsync_params {
    CUdeviceptr dst, src;
    size_t size;
    const void* attr;
    CUstream hStream;
};

struct cuLaunchHostFunc_params {
    CUstream hStream;
};

struct cuCtxSynchronize_params {
    CUcontext ctx;
};

// From this version on several subscribers may share CUPTI, with drivers that can (610).
inline constexpr u32 kManySubscribers = 130300;

struct CUpti_SubscriberParams {
    size_t structSize;
    const char* subscriberName;
    char* oldSubscriberName;  // of the one that is in the way; at least 64 bytes
    size_t oldSubscriberSize;
    u8 allowMultipleSubscribers, padding[7];
};
using cuptiSubscribe_v2 = CUptiResult(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*, CUpti_SubscriberParams*);

}  // namespace check::newer
