// Calls of the driver in bursts, with their time: see check_calls.py, which compiles this.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

// Four pointers, a number, and no work.
const char kKernel[] = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u32 n) { ret; }
)";

constexpr int kBurst = 64;  // few enough that no launch has to wait for room in the queue
constexpr size_t kBytes = 4096;

struct Program {
    CUstream stream = nullptr;
    CUfunction kernel = nullptr;
    CUdeviceptr blocks[4] = {};

    bool prepare() {
        CUmodule module;
        bool ok = !cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) && !cuModuleLoadData(&module, kKernel) &&
                  !cuModuleGetFunction(&kernel, module, "nothing");
        for (CUdeviceptr& block : blocks) ok = ok && !cuMemAllocAsync(&block, kBytes, stream);
        return ok;
    }
    void launch() {
        int count = 7;
        void* arguments[] = {&blocks[0], &blocks[1], &blocks[2], &blocks[3], &count};
        cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
    }
    void copy() { cuMemcpyDtoDAsync(blocks[0], blocks[1], kBytes, stream); }
    void allocate() {
        CUdeviceptr block;
        cuMemAllocAsync(&block, kBytes, stream);
        cuMemFreeAsync(block, stream);
    }
    void record() {
        static thread_local CUevent event = [] {
            CUevent made;
            cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
            return made;
        }();
        cuEventRecord(event, stream);
        cuStreamWaitEvent(stream, event, 0);
    }
};

template <class Work>
double time(Program& program, int bursts, Work work) {
    using Clock = std::chrono::steady_clock;
    double nanoseconds = 0;
    for (int burst = 0; burst < bursts; burst++) {
        auto before = Clock::now();
        for (int i = 0; i < kBurst; i++) (program.*work)();
        nanoseconds += std::chrono::duration<double, std::nano>(Clock::now() - before).count();
        cuStreamSynchronize(program.stream);
    }
    return nanoseconds / (double(bursts) * kBurst);
}

}  // namespace

// Nanoseconds of one call: 0 a launch, 1 a copy, 2 an allocation and its free, 3 a record and a wait. A current context is
// needed; each calling thread has a stream and blocks of its own. Negative: the driver refused something.
extern "C" double time_calls(int kind, int bursts) {
    static thread_local Program program;
    static thread_local bool ready = program.prepare();
    if (!ready) return -1;
    void (Program::*const work[])() = {&Program::launch, &Program::copy, &Program::allocate, &Program::record};
    time(program, 2, work[kind]);
    return time(program, bursts, work[kind]);
}

// As a program of its own, without Python: the least of seven turns in turn.
int main() {
    CUdevice device;
    CUcontext context;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
        return 1;
    const char* kinds[] = {"launch, 4 pointers", "copy", "allocate and free", "record and wait"};
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    for (int turn = 0; turn < 7; turn++)
        for (int kind = 0; kind < 4; kind++) {
            double nanoseconds = time_calls(kind, 200);
            if (nanoseconds < 0) return 1;
            best[kind] = std::min(best[kind], nanoseconds);
        }
    for (int kind = 0; kind < 4; kind++) printf("%s: %.0f ns\n", kinds[kind], best[kind]);
    return 0;
}
