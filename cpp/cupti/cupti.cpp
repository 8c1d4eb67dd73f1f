// The subscription to driver calls, and the functions for Python.
#include "callers.hpp"
#include "calls.hpp"
#include "driver.hpp"
#include "newer.hpp"

#include "engine/trace.hpp"
#include "native/native.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace check {

void Calls::set(Entry entry, Handler::Meaning Handler::* moment, Handler::Meaning meaning) {
    std::string name = entry.symbol;
    std::size_t version = name.rfind("_v");
    if (version != std::string::npos) name.erase(version);
    for (CUpti_CallbackId number : {entry.number, entry.own_default}) {
        if (!number) continue;
        table_[number].name = name;
        table_[number].own_default = number == entry.own_default;
        table_[number].*moment = meaning;
    }
}

const Calls& calls() {
    static const Calls& all = []() -> Calls& {
        Calls& made = *new Calls;
        add_memory(made);
        add_copies(made);
        add_fills(made);
        add_order(made);
        add_launches(made);
        add_graphs(made);
        return made;
    }();
    return all;
}

namespace {

std::atomic<u32 (*)()> site_of_caller{nullptr};
std::atomic<bool> watching{false};
std::string& failure() {
    static std::string& text = *new std::string;
    return text;
}

}  // namespace

bool is_watching() { return watching.load(std::memory_order_relaxed); }

void stop_watching(const char* where, const std::exception& error) {
    if (!watching.exchange(false)) return;
    host::stop();
    front().page().failed = 1;
    try {
        failure() = std::string("it ended in ") + where + ": " + error.what();
    } catch (const std::exception&) {
        failure() = "no memory";  // short enough to need none
    }
}

u32 place_of_caller() {
    u32 (*find)() = site_of_caller.load(std::memory_order_acquire);
    if (!find) return 0;
    u32 other = this_thread().acts_for;
    return other ? other : find();
}

namespace {

void run(Handler::Meaning meaning, const Handler& handler, Thread& thread, const CUpti_CallbackData& data) {
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().note_context(data.context, data.contextUid);
    if (!handler.number) handler.number = front().engine().name(handler.name);
    Operation what{handler.number, thread.site};
    meaning({data, what, handler.own_default, thread, front()}, data.functionParams);
}

void finish_trials(Thread& thread, bool launched) {
    Trials trials = std::exchange(thread.trials, {});
    if (launched && sum_after(trials)) return;
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    if (launched)
        front().laboratory.abandon(trials);
    else
        front().laboratory.drop(trials);
}

// What the host has done meanwhile is judged before; what it knows to be done now is not protected after that.
void host_learns(const Thread& thread) {
    Engine& engine = front().engine();
    if (host::is_on()) front().judge_host(thread.site, thread.waited_for);
    engine.host_learns(thread.waited_for);
    if (!host::is_on()) return;
    front().guard_host();  // kernels that reach the engine late
    host::settle(engine.host());
}

void judge_host(const Thread& thread) {
    if (!host::has_notes()) return;
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().judge_host(thread.site);
}

void finish(const Handler& handler, Thread& thread, const CUpti_CallbackData& data) {
    bool waited = std::exchange(thread.waits, false), queried = std::exchange(thread.queries_now, false);
    bool touched_host = std::exchange(thread.touches_host, false);
    bool succeeded = *static_cast<const CUresult*>(data.functionReturnValue) == CUDA_SUCCESS;
    if (!thread.trials.all.empty()) finish_trials(thread, succeeded);
    if (!succeeded) {
        std::lock_guard<xlogmem_mutex> guard(front().lock);
        front().undo(thread.changes);
    }
    Handler::Meaning meaning = succeeded ? handler.after : handler.failed;
    if (meaning) run(meaning, handler, thread, data);
    if (touched_host && succeeded) {
        std::lock_guard<xlogmem_mutex> guard(front().lock);
        front().guard_host();
    }
    if (!waited || !succeeded) return;
    bool of_buffers = queried && thread.queries == XLOGMEM_CHECK_OF_BUFFERS;
    bool of_library = queried && (of_buffers || thread.queries == XLOGMEM_CHECK_OF_POOL || is_query_of_library());
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    Engine& engine = front().engine();
    if (!of_library) return host_learns(thread);
    front().judge_host(thread.site);
    engine.host_pools_learn(thread.waited_for);
    if (!of_buffers) engine.host_may_learn(thread.waited_for);
}

// Marks this thread's driver calls from here on as the check's own.
class Inside {
  public:
    explicit Inside(Thread& thread) : thread_(thread) { thread_.inside = true; }
    ~Inside() { thread_.inside = false; }

  private:
    Thread& thread_;
};

void settle_freed_uses() {
    if (front().has_freed_uses()) front().settle_freed_uses();
}

void on_call(const Handler& handler, const CUpti_CallbackData& data) {
    Thread& thread = this_thread();
    if (thread.inside) return;
    Inside inside(thread);
    if (data.callbackSite == CUPTI_API_ENTER) {
        thread.site = place_of_caller();
        thread.changes.clear();
        judge_host(thread);
        if (handler.before) run(handler.before, handler, thread, data);
        settle_freed_uses();  // before a module goes
        host::enter_driver();
    } else {
        host::leave_driver();
        finish(handler, thread, data);
        settle_freed_uses();
    }
}

void keep_code(const CUpti_ResourceData& loaded) {
    auto* module = static_cast<const CUpti_ModuleResourceData*>(loaded.resourceDescriptor);
    if (!module || !module->pCubin) return;
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().codes.keep(module->pCubin, module->cubinSize);
}

void on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId number, const void* about) {
    if (domain == CUPTI_CB_DOMAIN_RESOURCE && is_watching())
        return keep_code(*static_cast<const CUpti_ResourceData*>(about));
    auto* data = static_cast<const CUpti_CallbackData*>(about);
    const Handler* handler = calls().find(number);
    if (!handler || domain != CUPTI_CB_DOMAIN_DRIVER_API || !is_watching()) return;
    try {
        on_call(*handler, *data);
    } catch (const std::exception& error) {
        stop_watching(data->functionName, error);
    }
}

// CUPTI belongs to the watched process, in the version that the process has or can find.
struct Cupti {
    decltype(&cuptiSubscribe) subscribe;
    decltype(&cuptiEnableCallback) enable;
    newer::cuptiSubscribe_v2* subscribe_v2 = nullptr;  // where several subscribers may share CUPTI
};

// Sharing is requested first: then another profiler may subscribe beside, or has, if it requests that too. Where the
// driver cannot, the check has CUPTI for itself. A process that has used one form of the call may be refused the other.
// `other`: the name of who is in the way, where CUPTI says it.
CUptiResult subscribe(const Cupti& cupti, CUpti_SubscriberHandle* subscriber, std::string* other) {
    auto callback = CUpti_CallbackFunc(on_callback);
    auto newer_form = [&](bool shared) {
        char name[64] = "";
        newer::CUpti_SubscriberParams wanted{};
        wanted.structSize = sizeof wanted;
        wanted.subscriberName = "xlogmem check";
        wanted.oldSubscriberName = name;
        wanted.oldSubscriberSize = sizeof name;
        wanted.allowMultipleSubscribers = shared;
        CUptiResult result = cupti.subscribe_v2(subscriber, callback, nullptr, &wanted);
        if (result != CUPTI_SUCCESS) *other = std::string(name, strnlen(name, sizeof name));
        return result;
    };
    if (cupti.subscribe_v2 && newer_form(true) == CUPTI_SUCCESS) return CUPTI_SUCCESS;
    CUptiResult result = cupti.subscribe(subscriber, callback, nullptr);
    if (cupti.subscribe_v2 && result != CUPTI_SUCCESS && newer_form(false) == CUPTI_SUCCESS) return CUPTI_SUCCESS;
    return result;
}

std::string start(const char* path) {
    Cupti cupti;
    void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) return std::string("CUPTI cannot be loaded: ") + dlerror();
    if (!find_symbol(library, "cuptiSubscribe", cupti.subscribe) ||
        !find_symbol(library, "cuptiEnableCallback", cupti.enable))
        return std::string(path) + " is not CUPTI";
    CUptiResult (*get_version)(u32*) = nullptr;
    u32 version = 0;
    if (find_symbol(library, "cuptiGetVersion", get_version)) get_version(&version);
    if (version >= newer::kManySubscribers) find_symbol(library, "cuptiSubscribe_v2", cupti.subscribe_v2);
    CUpti_SubscriberHandle subscriber;
    std::string other;
    CUptiResult result = subscribe(cupti, &subscriber, &other);
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
        return "another profiler uses CUPTI in this process" + (other.empty() ? other : " (" + other + ")") +
               ": run the check without it. From CUPTI 13.3 and driver 610 on the two may share CUPTI, if the profiler "
               "requests it too (cuptiSubscribe_v2, allowMultipleSubscribers)";
    if (result != CUPTI_SUCCESS) return "CUPTI refuses a subscriber: its error " + std::to_string(result);
    for (CUpti_CallbackId number = 0; number < Calls::kMost; number++)
        if (calls().find(number)) cupti.enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, number);
    cupti.enable(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
    library_of_caller();  // the first look at a stack loads a library
    watching = true;
    front().page().used = 1;
    return "";
}

// A forked child cannot use the driver of its parent, and its other threads are gone, perhaps with the lock.
void at_fork() {
    front().lost = true;
    watching = false;
}

}  // namespace

}  // namespace check

using namespace check;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
bool has_journal = false;  // findings of this process are kept
}

EXPORT int xcheck_is_watching() { return is_watching(); }

// True in a forked child of a process that had initialised the driver.
EXPORT int xcheck_is_lost() { return front().lost; }

// The reason why this process is not watched; empty before the driver was initialised, too.
EXPORT const char* xcheck_failure() { return failure().c_str(); }

// A function that gives the number of the caller's place in the program: see sites.pyx.
EXPORT void xcheck_find_sites(u32 (*function)()) { site_of_caller = function; }

// The host's own accesses to page-locked and managed memory are seen from here on; in handlers of signals this function
// gives their places. nullptr ends that. Returns 0 where nothing is seen: see host/guard.hpp.
EXPORT int xcheck_guard_host(u32 (*function)()) {
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    if (function && host::start(native::with_native(function))) {
        front().engine().take_host_uses();
        return 1;
    }
    if (!front().lost) front().judge_host(0);
    host::stop();
    return 0;
}

namespace {

// The results of the last trials may not be known yet: waits for them, a moment.
void wait_for_trials() {
    for (int turns = 0; turns < 50; turns++) {
        {
            std::lock_guard<xlogmem_mutex> guard(front().lock);
            front().laboratory.collect(front().engine());
            if (!front().laboratory.is_busy()) break;
        }
        usleep(4000);
    }
}

}  // namespace

// To be freed with xcheck_free().
EXPORT char* xcheck_report() {
    if (front().lost)
        return strdup(
            "{\"findings\": [], \"omissions\": [], \"unseen\": {}, \"launches\": 0, \"unknown_launches\": 0, "
            "\"dropped\": 0}");
    wait_for_trials();
    front().settle_freed_uses();
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    return strdup(front().report().c_str());
}
EXPORT void xcheck_free(char* text) { free(text); }

namespace {

std::vector<Front::FoundCode>& found_codes() {
    static std::vector<Front::FoundCode>& all = *new std::vector<Front::FoundCode>;
    return all;
}

}  // namespace

// Finds the code that may settle a finding, before the report, and returns the number of pieces. For each piece
// xcheck_code() gives the address, and xcheck_list_code() takes the listing; at last comes xcheck_read_codes(). One
// thread makes all these calls.
EXPORT std::size_t xcheck_find_codes() {
    if (front().lost) return 0;
    wait_for_trials();
    front().settle_freed_uses();
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().engine().decide_all_frees();
    found_codes() = front().find_codes();
    return found_codes().size();
}

EXPORT const void* xcheck_code(std::size_t index, std::size_t* bytes, unsigned* sm) {
    const Front::FoundCode& code = found_codes()[index];
    *bytes = code.text.size();
    *sm = code.sm;
    return code.text.data();
}

EXPORT void xcheck_list_code(std::size_t index, const char* listing) {
    Front::FoundCode& code = found_codes()[index];
    code.facts = facts_of_code(listing, code.parameters, code.base, code.jumps);
}

EXPORT void xcheck_read_codes() {
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().read_codes(found_codes());
}

EXPORT void xcheck_clear_findings() {
    if (front().lost) return;
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().judge_host(0);
    front().engine().clear_findings();
}

// For tests. 0: the call means nothing here; 1: it is modelled; 2: it is counted.
EXPORT int xcheck_knows(CUpti_CallbackId number) {
    const Handler* handler = calls().find(number);
    return !handler ? 0 : handler->unseen ? 2 : 1;
}

// Turns the trials of kernels on or off: see trials.hpp.
EXPORT void xcheck_try_kernels(int wanted) {
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().laboratory.is_open = wanted;
}

// For tests without a GPU: a callback as CUPTI would make it.
EXPORT void xcheck_call(CUpti_CallbackId number, const CUpti_CallbackData* data) {
    if (const Handler* handler = calls().find(number)) on_call(*handler, *data);
}

EXPORT void xcheck_pretend_to_watch() { watching = true; }

// The frames of a place that has native::kPlace, as JSON; to be freed with free().
EXPORT char* xcheck_native_frames(u32 place) { return native::frames_of(place); }

EXPORT void xcheck_audit(int wanted) {
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().engine().audit(wanted != 0);
}

// Writes everything that the engine is fed to this open file, and closes it at the end; -1 ends that.
EXPORT void xcheck_record(int file) {
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    front().engine().record_to(file < 0 ? nullptr : std::make_shared<Trace>(file));
}

namespace {

// A process ends by C's exit() too, where Python has no say. A thread that has the lock may be the one that exits.
void end_journal() {
    for (int turns = 0; turns < 100 && !front().lost; turns++, usleep(1000)) {
        std::unique_lock<xlogmem_mutex> guard(front().lock, std::try_to_lock);
        if (!guard) continue;
        if (front().engine().has_freed_uses()) {
            Unlocked unlocked(front().lock);
            front().settle_freed_uses();
        }
        front().judge_host(0);
        return front().engine().end_journal("{" + front().notes() + "}");
    }
}

}  // namespace

// Writes findings to this open file as they are made: see engine/journal.hpp.
EXPORT void xcheck_keep_findings(int file, Journal::FramesOf frames_of) {
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] { front().keep_findings(nullptr); });
        atexit(end_journal);
    });
    has_journal = true;
    std::lock_guard<xlogmem_mutex> guard(front().lock);
    Engine& engine = front().engine();
    front().keep_findings(std::make_shared<Journal>(file, engine, front().handles().notes(), frames_of));
}

namespace {

// See native/native.hpp.
void begin_without_python() {
    int journal = has_journal ? -1 : native::new_journal();
    if (journal < 0) return;
    xcheck_keep_findings(journal, native::frames_of);
    xcheck_find_sites(native::place_of_caller);
    xcheck_guard_host(native::place_of_caller);
}

}  // namespace

// The driver calls this function in each process that initialises the driver, if CUDA_INJECTION64_PATH names this
// library.
EXPORT int InitializeInjection() {
    static std::once_flag once;
    std::call_once(once, [] {
        begin_without_python();
        const char* path = getenv("XLOGMEM_CHECK_CUPTI");
        failure() = start(path ? path : "libcupti.so");
        pthread_atfork(nullptr, nullptr, at_fork);
    });
    return 1;
}
