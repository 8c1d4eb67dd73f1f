// The prologue of every entry point: counting, injected failures, dropped calls and hooks.
//
// An entry point is written as
//     EXPORT CUresult cuStreamQuery(CUstream handle) {
//         return api_call(CALL("cuStreamQuery"), [&](Lock& lock) -> CUresult { … });
//     }
// and its body runs with the driver's lock held. The name is the one in the documentation, without version
// suffix: all versions of a function share their count.
#pragma once

#include "device.hpp"

#include <atomic>
#include <string>
#include <vector>

namespace sim {

struct Plan {  // what is to happen at one call
    enum What { Fail, Drop, Before, After } what;
    u64 at;  // number of the call
    int code;
    void (*callback)(void*);
    void* argument;
};

struct CallSite {
    std::string name;
    u64 count = 0;
    u64 with_gil = 0;  // of these, since watch_gil(true): by a thread that has Python's GIL
    std::vector<Plan> plans;
    bool works_after_fork = false;  // cuMemAllocAsync "succeeds" in a forked child, as seen on an H200
};

CallSite& call_site(const char* name);
void each_call_site(const std::function<void(CallSite&)>& visit);

// The rare part of api_call(): runs the hooks before, with the lock released. Returns true if the call is to
// end here with *result.
bool apply_plans(Lock& lock, CallSite& site, u64 number, CUresult* result);
void run_hooks_after(Lock& lock, CallSite& site, u64 number);

extern std::atomic<bool> gil_is_watched;
extern std::atomic<u32 (*)()> site_of_caller;  // nullptr: not wanted
u32 place_of_caller();  // … or the one that the thread acts for
bool has_gil();  // true too where there is no Python any more, false where there never was

#define CALL(name) \
    ([]() -> CallSite& { \
        static CallSite& site = call_site(name); \
        return site; \
    }())

template <class Body>
CUresult api_call(CallSite& site, Body&& body, bool needs_init = true) {
    Driver& d = driver();
    if (d.forked) return site.works_after_fork ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if (this_thread().driver_thread) return CUDA_ERROR_NOT_PERMITTED;  // called from a host function
    // Before the lock: a place that was never seen takes the GIL.
    u32 place = place_of_caller();
    Lock lock(d.mutex);
    u64 number = ++site.count;
    if (gil_is_watched && has_gil()) site.with_gil++;
    CUresult result;
    if (!site.plans.empty() && apply_plans(lock, site, number, &result)) return result;
    if (needs_init && d.gate) return CUresult(d.gate.load());
    ThreadState& thread = this_thread();
    thread.call = site.name.c_str();
    thread.site = place;
    thread.learned = false;
    result = body(lock);
    // A call that waits for a kernel returns its crash; one that only queued it does not, a later one does.
    if (needs_init && result == CUDA_SUCCESS && thread.learned && d.gate) result = CUresult(d.gate.load());
    if (!site.plans.empty()) run_hooks_after(lock, site, number);
    return result;
}

// What `run` frees, allocates or queries is refused while a capture forbids it.
#define REFUSE_IF(expression) \
    if (CUresult refused_ = (expression)) return refused_

inline CUresult check_device(CUdevice device) {
    return device >= 0 && device < driver().config.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// The value of an attribute, where the caller wants it.
template <class T>
CUresult answer(void* out, T value) {
    *static_cast<T*>(out) = value;
    return CUDA_SUCCESS;
}

}  // namespace sim
