// The xsim_* functions, by which tests observe and steer the driver, called by xlogmem/sim/__init__.py through ctypes.
#include "calls.hpp"
#include "capture.hpp"
#include "memory.hpp"
#include "unknown.hpp"
#include "watch.hpp"

#include "engine/trace.hpp"
#include "host/guard.hpp"
#include "native/native.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <utility>

using namespace sim;

namespace {

// A call that a test holds up waits here: without a lock, and without the GIL unless its caller has it.
struct Hold {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false, released = false, timed_out = false;
    double patience;
    explicit Hold(double seconds) : patience(seconds) {}

    // The system's clock, as in wait_for_change().
    bool wait(std::unique_lock<std::mutex>& lock, const bool& flag, double seconds) {
        auto end = std::chrono::system_clock::now() + std::chrono::milliseconds(u64(seconds * 1000));
        return changed.wait_until(lock, end, [&] { return flag; });
    }
};

void hold_up(void* argument) {
    Hold& hold = *static_cast<Hold*>(argument);
    std::unique_lock<std::mutex> lock(hold.mutex);
    hold.reached = true;
    hold.changed.notify_all();
    hold.timed_out = !hold.wait(lock, hold.released, hold.patience);
}

// Copies text and its terminator if it fits; returns the bytes needed.
u64 give_text(const std::string& text, char* buffer, u64 size) {
    if (buffer && size > text.size()) memcpy(buffer, text.c_str(), text.size() + 1);
    return text.size() + 1;
}

void plan(const char* name, Plan::What what, u64 nth, int code, void (*callback)(void*), void* argument) {
    CallSite& site = call_site(name);
    Lock lock(driver().mutex);
    site.plans.push_back({what, site.count + std::max<u64>(nth, 1), code, callback, argument});
}

// Python has checked the name.
Policy policy_named(const char* name) {
    Policy policy = Policy::Eager;
    policy_from_name(name, &policy);
    return policy;
}

}  // namespace

EXPORT int xsim_is_simulator() { return 1; }

// The machine's devices, for NVML (cpp/nvml): also before cuInit, and those that CUDA_VISIBLE_DEVICES leaves out.
EXPORT int xsim_machine() { return driver().config.machine; }

EXPORT void xsim_describe_device(int number, unsigned char* uuid, u64* bytes, u64* reserved) {
    Lock lock(driver().mutex);
    unsigned char own[16];
    uuid_of(number, own);
    memcpy(uuid, own, sizeof own);
    const Config& config = driver().config;
    *bytes = config.memory;
    *reserved = 0;
    for (std::size_t device = 0; device < config.visible.size(); device++)
        if (config.visible[device] == number) *reserved = memory().devices[device].reserved;
}

EXPORT int xsim_is_lost() { return driver().forked; }

// A stream's number, which no other stream has, and whether it is there: a library's pool has memory of streams that
// ended, and frees memory during captures.
EXPORT u64 xsim_stream_number(u64 handle) {
    Lock lock(driver().mutex);
    Stream* stream = nullptr;
    return find_stream(reinterpret_cast<CUstream>(handle), &stream) ? 0 : stream->id;
}

enum : int { kStreamEnded, kStreamIsThere, kStreamCaptures };
EXPORT int xsim_stream_state(u64 number) {
    Lock lock(driver().mutex);
    for (Stream* stream : driver().streams)
        if (stream->id == number && !stream->dead) return stream->capture ? kStreamCaptures : kStreamIsThere;
    return kStreamEnded;
}

EXPORT void xsim_free_after_capture(u64 address, u64 number) {
    Lock lock(driver().mutex);
    for (Stream* stream : driver().streams)
        if (stream->id == number && stream->capture) stream->capture->frees.push_back(address);
}

EXPORT int xsim_is_quiet() { return driver().config.quiet; }

// Lines about settings that cannot be read; cuInit says the same where there is no Python.
EXPORT u64 xsim_wrong_settings(char* buffer, u64 size) {
    std::string text;
    for (const std::string& line : driver().config.wrong) text += (text.empty() ? "" : "\n") + line;
    return give_text(text, buffer, size);
}

// Runs everything that is queued, then forgets what tests leave behind. Streams, events and memory survive;
// what happened so far is ordered before everything that follows, as after a synchronize of the whole device.
EXPORT void xsim_reset(const char* policy, u64 seed) {
    Driver& d = driver();
    Lock lock(d.mutex);
    each_call_site([](CallSite& site) {
        site.plans.clear();
        site.count = site.with_gil = 0;
    });
    run_everything(lock);
    judge_host();
    forget_late_reads(0, ~u64(0));
    d.engine.all_is_done();
    check::host::settle(d.engine.host());
    d.steps = 0;
    if (d.gate != CUDA_ERROR_NOT_INITIALIZED) d.gate = CUDA_SUCCESS;
    set_policy(policy_named(policy), seed);
    d.config.fills = true;
    reset_memory();
    clear_reports();
    d.stream_handles.restart_if_empty();
    d.events.restart_if_empty();
}

EXPORT void xsim_set_policy(const char* policy, u64 seed) {
    Lock lock(driver().mutex);
    set_policy(policy_named(policy), seed);
    if (driver().config.policy == Policy::Eager)
        for (Stream* stream : driver().streams) advance(lock, stream);
}

// From now on, for fills that are queued already too; returns the setting before.
EXPORT int xsim_set_fills(int wanted) {
    Lock lock(driver().mutex);
    return std::exchange(driver().config.fills, wanted != 0);
}

// From now on; returns the setting before.
EXPORT int xsim_set_pageable(int wanted) {
    Lock lock(driver().mutex);
    return std::exchange(driver().config.pageable, wanted != 0);
}

// Kernels that are not simulated are launched from now on: see unknown.hpp.
EXPORT void xsim_launch_unknown(int wanted) {
    Lock lock(driver().mutex);
    driver().config.unknown_kernels = wanted != 0;
    if (!wanted) forget_declarations();
}

EXPORT void xsim_declare_kernel(const char* pattern, const char* roles, RunLaunch run) {
    Lock lock(driver().mutex);
    declare_kernel(pattern, roles, run);
}

EXPORT void xsim_learn_kernels(const char* image, u64 bytes) {
    Lock lock(driver().mutex);
    learn_kernels(image, bytes);
}

// What the findings may lack: see unknown.hpp.
EXPORT u64 xsim_notes(char* buffer, u64 size) {
    Lock lock(driver().mutex);
    return give_text(notes_as_json(), buffer, size);
}

// Whether stream 0 is the calling thread's own from here on, in this thread. Returns what was before.
EXPORT int xsim_default_stream_per_thread(int wanted) {
    return std::exchange(this_thread().per_thread_default, wanted != 0);
}

EXPORT void xsim_not_simulated(const char* name) {
    Lock lock(driver().mutex);
    fprintf(stderr, "[xlogmem.check] %s is not simulated\n", name);
    called_in_vain().functions.push_back(name);
}

// The host's address of this device memory, usable to the end of its allocation; *bytes is the size of that part.
EXPORT void* xsim_view(u64 address, u64* bytes) {
    Lock lock(driver().mutex);
    Block* block = find_block(address);
    if (!block || !block->live || address - block->address >= block->size) return nullptr;
    *bytes = block->address + block->size - address;
    return memory().view(address);
}

EXPORT u64 xsim_races(char* buffer, u64 size) {
    Lock lock(driver().mutex);
    std::string text;
    for (const std::string& report : race_reports()) text += report + "\n";
    return give_text(text, buffer, size);
}

EXPORT u64 xsim_findings(char* buffer, u64 size) {
    Lock lock(driver().mutex);
    return give_text(findings_as_json(), buffer, size);
}

// Writes the calls of the engine to this open file from here on, and closes it at the end; -1 ends that.
EXPORT void xsim_record(int file) {
    Lock lock(driver().mutex);
    driver().engine.record_to(file < 0 ? nullptr : std::make_shared<check::Trace>(file));
}

// Writes findings to this open file as they are made: see engine/journal.hpp.
EXPORT void xsim_keep_findings(int file, check::Journal::FramesOf frames_of) {
    Lock lock(driver().mutex);
    keep_findings(file, frames_of);
}

// The frames of a place that has native::kPlace, as JSON; to be freed with free().
EXPORT char* xsim_native_frames(u32 place) { return check::native::frames_of(place); }

EXPORT void xsim_audit(int wanted) {
    Lock lock(driver().mutex);
    driver().engine.audit(wanted != 0);
}

EXPORT u64 xsim_omissions(char* buffer, u64 size) {
    Lock lock(driver().mutex);
    return give_text(omissions_as_json(), buffer, size);
}

// Each call takes the number of its place in the program from this function, before a lock. nullptr ends that.
EXPORT void xsim_find_sites(u32 (*function)()) { site_of_caller = function; }

// The host's own accesses to page-locked memory are seen from here on; in handlers of signals this function gives their
// places. nullptr ends that. Returns 0 where nothing is seen: see host/guard.hpp.
EXPORT int xsim_guard_host(u32 (*function)()) {
    Lock lock(driver().mutex);
    if (function && check::host::start(check::native::with_native(function))) {
        driver().engine.take_host_uses();
        return 1;
    }
    judge_host();
    check::host::stop();
    return 0;
}

EXPORT void xsim_clear_races() {
    Lock lock(driver().mutex);
    clear_reports();
}

EXPORT u64 xsim_calls(const char* name) {
    Lock lock(driver().mutex);
    u64 count = 0;
    each_call_site([&](CallSite& site) {
        if (site.name == name) count = site.count;
    });
    return count;
}

EXPORT u64 xsim_all_calls(char* buffer, u64 size) {
    Lock lock(driver().mutex);
    std::string text;
    each_call_site([&](CallSite& site) {
        if (site.count) text += site.name + " " + std::to_string(site.count) + "\n";
    });
    return give_text(text, buffer, size);
}

EXPORT void xsim_watch_gil(int watched) { gil_is_watched = watched != 0; }

EXPORT u64 xsim_calls_with_gil(char* buffer, u64 size) {
    Lock lock(driver().mutex);
    std::string text;
    each_call_site([&](CallSite& site) {
        if (site.with_gil) text += site.name + " " + std::to_string(site.with_gil) + "\n";
    });
    return give_text(text, buffer, size);
}

EXPORT void xsim_fail(const char* name, u64 nth, int code) { plan(name, Plan::Fail, nth, code, nullptr, nullptr); }

EXPORT void xsim_drop(const char* name, u64 nth) { plan(name, Plan::Drop, nth, 0, nullptr, nullptr); }

EXPORT void xsim_on_call(const char* name, u64 nth, int after, void (*callback)(void*), void* argument) {
    plan(name, after ? Plan::After : Plan::Before, nth, 0, callback, argument);
}

// The nth call from now waits until it is released, or for `patience` seconds. A hold is kept for ever: the call may be
// inside still.
EXPORT void* xsim_hold(const char* name, u64 nth, double patience) {
    static auto& holds = *new std::deque<Hold>;
    Hold* hold;
    {
        Lock lock(driver().mutex);
        hold = &holds.emplace_back(patience);
    }
    plan(name, Plan::Before, nth, 0, hold_up, hold);
    return hold;
}

// Waits until the call is inside; 0 if it did not come.
EXPORT int xsim_hold_reached(void* what, double seconds) {
    Hold& hold = *static_cast<Hold*>(what);
    std::unique_lock<std::mutex> lock(hold.mutex);
    return hold.wait(lock, hold.reached, seconds);
}

// Releases the call; 0 if its `patience` seconds were over.
EXPORT int xsim_hold_release(void* what) {
    Hold& hold = *static_cast<Hold*>(what);
    std::lock_guard<std::mutex> lock(hold.mutex);
    hold.released = true;
    hold.changed.notify_all();
    return !hold.timed_out;
}

// From now on every call returns this error, as after a kernel's crash; 0 ends it (as does a reset).
EXPORT void xsim_sticky_error(int code) { driver().gate = code; }

EXPORT u64 xsim_live_bytes() {
    Lock lock(driver().mutex);
    return memory().live_bytes;
}

EXPORT u64 xsim_live_events() {
    Lock lock(driver().mutex);
    return driver().events.live();
}

EXPORT u64 xsim_live_streams() {
    Lock lock(driver().mutex);
    return driver().stream_handles.live();
}

EXPORT u64 xsim_pending_operations() {
    Lock lock(driver().mutex);
    u64 count = 0;
    for (const Stream* stream : driver().streams) count += stream->queue.size() + (stream->busy ? 1 : 0);
    return count;
}

EXPORT int xsim_peek(u64 address, void* out, u64 bytes) {
    Lock lock(driver().mutex);
    if (!on_device(address, bytes)) return 0;
    memcpy(out, memory().view(address), bytes);
    return 1;
}

EXPORT int xsim_step() {
    Lock lock(driver().mutex);
    return step(lock, nullptr);
}
