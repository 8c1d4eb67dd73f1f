// Reports the pieces that PyTorch's caching allocator hands out and gets again, for the check's hooks.
//
// PyTorch's library reports to its profiler, for each block, how many bytes it has handed out or got again. That call
// goes to another library, and has had the same signature since 1.9: the call is led here (interposed.hpp). It is made
// under the allocator's lock, so the reports have the order of the allocator's actions. The rest is known from other
// calls of the same library, in the same thread:
//
//     the stream         getCurrentCUDAStream, which an allocation calls first, and without the lock
//     record_stream      of a block that other streams have used, an event is recorded on each of these when it is freed,
//                        under the lock; while a private pool is in use, later (`defer`)
//     the context        that was current at the device's first allocation, which called the driver. A thread that takes
//                        or returns memory which the pool has needs none, as autograd's, and may have that of another device
//
// A free of a graph's private pool says nothing: the graph goes on using memory that its owner has dropped.
//
// The lock is a mutex: its depth in this thread shows that an event, or the query of one, is the allocator's. The same
// library makes the queries of torch.Event and torch.cuda.Stream, without the lock. The place in the program is
// found before a lock is taken, because the search may take the GIL, and a thread with the GIL may wait for the lock.
#pragma once

#include "mutex.hpp"
#include "engine/hooks.hpp"
#include "interposed.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <unordered_map>

namespace xlogmem_torch {

// c10::Device, and c10::cuda::CUDAStream: a device and a number, which are passed in registers.
struct Device {
    std::int8_t type, index;
};
struct RawStream {
    std::uint64_t device, number;
};
constexpr std::int8_t kCuda = 1;

// For the thread's call in progress. It outlives the thread's destructors, and needs none.
struct Caller {
    void* stream = nullptr;
    bool has_stream = false;
    int depth = 0;  // locks of PyTorch's library that it holds
    int recorded = 0;
    std::array<void*, 16> streams{};
};

inline Caller& caller() {
    static thread_local Caller only;
    return only;
}

struct Owner {
    void *context = nullptr, *stream = nullptr;
    bool has_stream = false, is_of_graph = false;
};

struct Pieces {
    xlogmem_mutex lock;  // a leaf; of the next
    std::unordered_map<std::uint64_t, Owner> owners;
    std::array<void*, 128> contexts{};  // by device
    const xlogmem_check_hooks* hooks = nullptr;
    std::atomic<std::uint64_t> unknown{0};  // pieces for whose owner there was no host memory
    std::atomic<int> deferring{0};  // private pools in use
    std::atomic<int> capturing{0};  // … that are graphs'

    // PyTorch's, and the driver's.
    void (*report)(void*, std::int64_t, std::size_t, std::size_t, Device) = nullptr;
    RawStream (*current_stream)(std::int8_t) = nullptr;
    void* (*handle_of)(const RawStream*) = nullptr;
    int (*lock_mutex)(void*) = nullptr;
    int (*unlock_mutex)(void*) = nullptr;
    int (*record_event)(void*, void*) = nullptr;
    int (*query_event)(void*) = nullptr;
    int (*current_context)(void**) = nullptr;

    // Under the lock.
    void* context(std::int8_t device) {
        void*& known = contexts[std::size_t(std::max<std::int8_t>(device, 0))];
        if (!known) current_context(&known);
        return known;
    }
};

inline Pieces& pieces() {
    static Pieces& only = *new Pieces;  // threads may outlive the statics
    return only;
}

// -- functions that are called in the place of others -----------------------------------------------------------------

inline RawStream current_stream(std::int8_t device) {
    RawStream found = pieces().current_stream(device);
    Caller& thread = caller();
    thread.stream = pieces().handle_of(&found);
    thread.has_stream = true;
    return found;
}

inline int lock_mutex(void* mutex) {
    Caller& thread = caller();
    if (!thread.depth) pieces().hooks->find_site();
    int failed = pieces().lock_mutex(mutex);
    if (!failed && !thread.depth++) thread.recorded = 0;
    return failed;
}

inline int unlock_mutex(void* mutex) {
    if (caller().depth) caller().depth--;
    return pieces().unlock_mutex(mutex);
}

inline int record_event(void* event, void* stream) {
    int failed = pieces().record_event(event, stream);
    Caller& thread = caller();
    if (!failed && thread.depth) {
        if (thread.recorded < int(thread.streams.size())) thread.streams[std::size_t(thread.recorded)] = stream;
        thread.recorded++;
    }
    return failed;
}

inline int query_event(void* event) {
    if (!caller().depth) return pieces().query_event(event);
    pieces().hooks->queries_for_itself(XLOGMEM_CHECK_OF_POOL);
    int failed = pieces().query_event(event);
    pieces().hooks->queries_for_itself(XLOGMEM_CHECK_OF_PROGRAM);
    return failed;
}

inline void handed_out(std::uint64_t address, std::uint64_t bytes, std::int8_t device) {
    Pieces& all = pieces();
    Caller& thread = caller();
    Owner owner{nullptr, thread.stream, thread.has_stream, all.capturing != 0};
    thread.stream = nullptr;  // the next one says its own
    thread.has_stream = false;
    bool known = true;
    {
        std::lock_guard<xlogmem_mutex> guard(all.lock);
        owner.context = all.context(device);
        try {
            all.owners[address] = owner;
        } catch (const std::bad_alloc&) {  // PyTorch's calls expect no exception
            known = false;
            all.unknown++;
        }
    }
    int kind = known && owner.has_stream && owner.context ? XLOGMEM_CHECK_CACHED_PIECE : XLOGMEM_CHECK_SOME_PIECE;
    all.hooks->piece_allocated(owner.context, owner.stream, address, bytes, nullptr, kind);
}

inline void got_again(std::uint64_t address) {
    Pieces& all = pieces();
    Caller& thread = caller();
    Owner owner;
    {
        std::lock_guard<xlogmem_mutex> guard(all.lock);
        auto found = all.owners.find(address);
        if (found == all.owners.end()) return;  // from before the check
        owner = found->second;
        all.owners.erase(found);
    }
    if (owner.is_of_graph) return;
    bool sees_all = owner.has_stream && !all.deferring && thread.recorded <= int(thread.streams.size());
    for (int i = 0; sees_all && i < thread.recorded; i++)
        all.hooks->piece_recorded(owner.context, thread.streams[std::size_t(i)], address);
    all.hooks->piece_freed(owner.context, owner.stream, address, sees_all ? XLOGMEM_CHECK_CACHED : XLOGMEM_CHECK_LATER,
                           0);
    thread.recorded = 0;
}

inline void report(void* address, std::int64_t bytes, std::size_t allocated, std::size_t reserved, Device device) {
    if (device.type == kCuda && bytes > 0) handed_out(std::uint64_t(address), std::uint64_t(bytes), device.index);
    if (device.type == kCuda && bytes < 0) got_again(std::uint64_t(address));
    pieces().report(address, bytes, allocated, reserved, device);
}

// -- the beginning ----------------------------------------------------------------------------------------------------

template <class Function>
Function* function_at(void* address) {
    return reinterpret_cast<Function*>(address);
}

template <class Function>
bool lead(const Library& library, const char* symbol, Function* ours, Function*& theirs) {
    theirs = function_at<Function>(library.function(symbol));  // before the first call
    return theirs && library.lead(symbol, reinterpret_cast<void*>(ours));
}

// Reports pieces from here on. False: this version of PyTorch does not show them.
inline bool watch_pieces(std::size_t hooks) {
    Pieces& all = pieces();
    Library library("libc10_cuda.so");
    if (!library.is_loaded() || all.report) return bool(all.report);
    all.hooks = reinterpret_cast<const xlogmem_check_hooks*>(hooks);
    all.handle_of = function_at<void*(const RawStream*)>(library.function("_ZNK3c104cuda10CUDAStream6streamEv"));
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (driver) all.current_context = function_at<int(void**)>(dlsym(driver, "cuCtxGetCurrent"));
    return all.handle_of && all.current_context &&
           lead(library, "pthread_mutex_unlock", unlock_mutex, all.unlock_mutex) &&
           lead(library, "pthread_mutex_lock", lock_mutex, all.lock_mutex) &&
           lead(library, "cudaEventRecord", record_event, all.record_event) &&
           lead(library, "cudaEventQuery", query_event, all.query_event) &&
           lead(library, "_ZN3c104cuda20getCurrentCUDAStreamEa", current_stream, all.current_stream) &&
           lead(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", report, all.report);
}

inline void add_deferring(int change, bool of_graph) {
    for (std::atomic<int>* count : {&pieces().deferring, of_graph ? &pieces().capturing : nullptr})
        if (count && (*count += change) < 0) *count = 0;  // an end without a beginning
}

inline void expect_stream(std::size_t handle) {
    caller().stream = reinterpret_cast<void*>(handle);
    caller().has_stream = true;
}

}  // namespace xlogmem_torch
