// PyTorch's libc10_cuda.so as far as the check looks at it, with a caching allocator of a few lines; and, with OTHERS, what
// it calls in other libraries. Built from one file twice: the check leads calls from one library to another.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#define EXPORTED __attribute__((visibility("default")))

namespace c10 {

struct Device {
    std::int8_t type, index;
};
EXPORTED void reportMemoryUsageToProfiler(void* address, std::int64_t bytes, std::size_t allocated,
                                          std::size_t reserved, Device device);

}  // namespace c10

extern "C" EXPORTED int cudaEventRecord(void* event, void* stream);
extern "C" EXPORTED int cudaEventQuery(void* event);

#ifdef OTHERS

namespace {
long long reported = 0;
int events = 0;
}  // namespace

void c10::reportMemoryUsageToProfiler(void*, std::int64_t bytes, std::size_t, std::size_t, Device) {
    reported = reported * 10 + (bytes > 0 ? 1 : 2);
}
int cudaEventRecord(void*, void*) { return ++events, 0; }
int (*querying)(void*) = nullptr;
int cudaEventQuery(void* event) { return querying ? querying(event) : 0; }
extern "C" EXPORTED void query_with(int (*function)(void*)) { querying = function; }
extern "C" EXPORTED long long seen_by_profiler() { return reported; }
extern "C" EXPORTED int events_recorded() { return events; }

#else

namespace c10 {
namespace cuda {

class EXPORTED CUDAStream {
  public:
    CUDAStream(std::int8_t device, std::int64_t number) : device_{1, device}, number_(number) {}
    void* stream() const;

  private:
    Device device_;
    std::int64_t number_;
};

void* CUDAStream::stream() const { return reinterpret_cast<void*>(number_); }

EXPORTED CUDAStream getCurrentCUDAStream(std::int8_t device);
thread_local std::int64_t current = 0;
CUDAStream getCurrentCUDAStream(std::int8_t device) { return {device, current}; }

}  // namespace cuda
}  // namespace c10

namespace {

struct Block {
    std::size_t bytes = 0;
    std::set<void*> streams;
};
std::recursive_mutex mutex;
std::map<void*, Block> blocks;
std::vector<std::pair<void*, std::size_t>> unused;
std::uintptr_t next_address = 0x7000000000;

void* allocate_for(std::size_t bytes, void*) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    void* address = nullptr;
    for (auto& one : unused)
        if (one.second == bytes) std::swap(address, one.first), one.second = 0;
    if (!address) address = reinterpret_cast<void*>(next_address += 0x10000);
    blocks[address].bytes = bytes;
#ifndef SILENT
    c10::reportMemoryUsageToProfiler(address, std::int64_t(bytes), 0, 0, {1, 0});
    c10::reportMemoryUsageToProfiler(address, std::int64_t(bytes), 0, 0, {0, 0});  // of the host
#endif
    return address;
}

}  // namespace

extern "C" {

EXPORTED void set_stream(std::int64_t stream) { c10::cuda::current = stream; }
EXPORTED void* allocate(std::size_t bytes) { return allocate_for(bytes, c10::cuda::getCurrentCUDAStream(0).stream()); }
EXPORTED void* allocate_on(std::size_t bytes, void* stream) { return allocate_for(bytes, stream); }
EXPORTED void record(void* address, void* stream) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    blocks[address].streams.insert(stream);
}
EXPORTED void deallocate(void* address) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    Block block = blocks[address];
    blocks.erase(address);
    for (void* stream : block.streams) cudaEventRecord(nullptr, stream);
    unused.push_back({address, block.bytes});
#ifndef SILENT
    c10::reportMemoryUsageToProfiler(address, -std::int64_t(block.bytes), 0, 0, {1, 0});
#endif
}
EXPORTED void record_elsewhere(void* stream) { cudaEventRecord(nullptr, stream); }
EXPORTED int query(void* event) { return cudaEventQuery(event); }
EXPORTED int query_for_itself(void* event) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    return cudaEventQuery(event);
}
}

#endif
