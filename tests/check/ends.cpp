// Calls of the driver where a thread and a process end: in destructors of a thread's own variables, in a key of POSIX's,
// in functions of atexit() and in destructors of static objects. Libraries make such calls: cuSOLVER's and cuBLAS's
// handles end so in PyTorch. test_cupti_ends.py compiles it; the library of the check is named on the command line.
#include <cuda.h>
#include <cupti_callbacks.h>
#include <cupti_driver_cbid.h>
typedef unsigned int CUdeviceptr_v1;
typedef struct CUDA_MEMCPY2D_v1_st CUDA_MEMCPY2D_v1;
typedef struct CUDA_MEMCPY3D_v1_st CUDA_MEMCPY3D_v1;
typedef struct CUDA_ARRAY_DESCRIPTOR_v1_st CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1_st CUDA_ARRAY3D_DESCRIPTOR_v1;
#include <generated_cuda_meta.h>

#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <thread>

namespace {

void (*call)(CUpti_CallbackId, const CUpti_CallbackData*);

void make(CUpti_CallbackId number, const char* name, const void* parameters) {
    CUresult result = CUDA_SUCCESS;
    CUpti_CallbackData data{};
    data.functionName = name;
    data.functionParams = parameters;
    data.functionReturnValue = &result;
    data.contextUid = 1;
    for (CUpti_ApiCallbackSite site : {CUPTI_API_ENTER, CUPTI_API_EXIT}) {
        data.callbackSite = site;
        call(number, &data);
    }
}

// Work on new streams, and a wait for it, which makes the clock of what the thread waits for grow.
void work(const char* when) {
    static uintptr_t newest = 0x1000;
    for (int i = 0; i < 100; i++) {
        CUstream stream = reinterpret_cast<CUstream>(newest += 16);
        cuStreamCreate_params created{&stream, CU_STREAM_NON_BLOCKING};
        make(CUPTI_DRIVER_TRACE_CBID_cuStreamCreate, "cuStreamCreate", &created);
        cuMemsetD8Async_params filled{0x7000, 0, 64, stream};
        make(CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async, "cuMemsetD8Async", &filled);
        cuLaunchKernel_params launched{};
        launched.f = reinterpret_cast<CUfunction>(newest);
        launched.hStream = stream;
        make(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", &launched);
        make(CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, "cuCtxSynchronize", nullptr);
    }
    printf("%s\n", when);
    fflush(stdout);
}

struct Last {
    const char* when;
    ~Last() { work(when); }
};

Last& of_thread(const char* when) {
    static thread_local Last last{when};
    return last;
}

pthread_key_t key;

void end_of_key(void* when) { work(static_cast<const char*>(when)); }

void body() {
    of_thread("end of a thread");  // made first, so that it ends last
    pthread_setspecific(key, const_cast<char*>("key of a thread"));
    work("in a thread");
}

}  // namespace

int main(int, char** arguments) {
    static Last last{"end of the process"};
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return puts(dlerror()), 2;
    call = reinterpret_cast<decltype(call)>(dlsym(library, "xcheck_call"));
    auto try_kernels = reinterpret_cast<void (*)(int)>(dlsym(library, "xcheck_try_kernels"));
    try_kernels(0);
    pthread_key_create(&key, end_of_key);
    atexit([] { work("atexit"); });
    of_thread("end of the main thread");
    std::thread(body).join();
    work("in main");
    return 0;
}
