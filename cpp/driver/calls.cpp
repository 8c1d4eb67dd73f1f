// Bookkeeping of calls: how often each entry point was called, and the plans that a test has for a call.
#include "calls.hpp"

#include <algorithm>
#include <dlfcn.h>
#include <map>

namespace sim {

namespace {

std::mutex& names_mutex() {  // not the driver's: call sites register themselves before taking that one
    static auto& mutex = *new std::mutex;
    return mutex;
}

std::map<std::string, CallSite*>& names() {
    static auto& sites = *new std::map<std::string, CallSite*>;
    return sites;
}

// Runs the hooks of one kind for this call, lock released: a hook is another thread's chance to come in
// between, and may call CUDA itself.
void run_hooks(Lock& lock, CallSite& site, u64 number, Plan::What what) {
    for (;;) {
        auto due = std::find_if(site.plans.begin(), site.plans.end(),
                                [&](const Plan& plan) { return plan.what == what && plan.at == number; });
        if (due == site.plans.end()) return;
        Plan plan = *due;
        site.plans.erase(due);
        ThreadState& thread = this_thread();
        bool per_thread = thread.per_thread_default;
        thread.per_thread_default = false;
        lock.unlock();
        plan.callback(plan.argument);
        lock.lock();
        thread.per_thread_default = per_thread;
    }
}

}  // namespace

std::atomic<bool> gil_is_watched{false};
std::atomic<u32 (*)()> site_of_caller{nullptr};

u32 place_of_caller() {
    auto find = site_of_caller.load(std::memory_order_relaxed);
    if (!find) return 0;
    u32 other = this_thread().acts_for;
    return other ? other : find();
}

bool has_gil() {
    static auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    return check && check();
}

CallSite& call_site(const char* name) {
    std::lock_guard<std::mutex> guard(names_mutex());
    CallSite*& site = names()[name];
    if (!site) {
        site = new CallSite;
        site->name = name;
        site->works_after_fork = site->name == "cuMemAllocAsync";
    }
    return *site;
}

void each_call_site(const std::function<void(CallSite&)>& visit) {
    std::lock_guard<std::mutex> guard(names_mutex());
    for (auto& entry : names()) visit(*entry.second);
}

bool apply_plans(Lock& lock, CallSite& site, u64 number, CUresult* result) {
    run_hooks(lock, site, number, Plan::Before);
    for (std::size_t i = 0; i < site.plans.size(); i++) {
        Plan plan = site.plans[i];
        if (plan.at != number || plan.what == Plan::After) continue;
        site.plans.erase(site.plans.begin() + long(i));
        *result = plan.what == Plan::Fail ? CUresult(plan.code) : CUDA_SUCCESS;
        run_hooks(lock, site, number, Plan::After);
        return true;
    }
    return false;
}

void run_hooks_after(Lock& lock, CallSite& site, u64 number) { run_hooks(lock, site, number, Plan::After); }

}  // namespace sim
