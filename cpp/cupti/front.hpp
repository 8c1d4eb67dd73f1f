// The check on a GPU: feeds the driver calls of a process to the engine, as CUPTI shows them.
//
// The driver loads this library when the process initialises the driver (CUDA_INJECTION64_PATH), and cupti.cpp
// subscribes to the calls of the driver's API that mean something to the engine. CUPTI calls back twice for each call,
// in the thread that makes it: before, with the arguments, and after, with the result. One table has the meaning of
// each call (calls.hpp); copies.cpp, memory.cpp, order.cpp, launches.cpp and graphs.cpp fill it.
//
// A call counts at one of these two moments, depending on what other threads may do in between. A free, a launch and
// the record of an event count before the call: afterwards another thread may have been handed the same address, or
// have waited for the event already. An allocation and a wait count after the call, when the driver has accepted it. A
// call that makes the host wait is noted before, with all work that is queued then, and the host knows this work to be
// done after the call.
//
// What counts before the call is undone if the driver refuses the call (Changes).
//
// Calls are handled under a lock of this library. The lock is held for no call of the driver or of Python: the place in
// the program is found before the lock is taken. The most frequent calls reach the engine later (backlog.hpp), in the
// same order.
#pragma once

#include "host_waits.hpp"
#include "mutex.hpp"
#include "engine/handles.hpp"
#include "engine/hooks.hpp"
#include "engine/journal.hpp"
#include "host/guard.hpp"
#include "kernels/machine_code.hpp"
#include "backlog.hpp"
#include "codes.hpp"
#include "trials.hpp"

#include <cupti_callbacks.h>
#include <cupti_driver_cbid.h>

// Types of calls of CUDA 3, which CUPTI's parameters name and cuda.h hides.
typedef unsigned int CUdeviceptr_v1;
typedef struct CUDA_MEMCPY2D_v1_st CUDA_MEMCPY2D_v1;
typedef struct CUDA_MEMCPY3D_v1_st CUDA_MEMCPY3D_v1;
typedef struct CUDA_ARRAY_DESCRIPTOR_v1_st CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1_st CUDA_ARRAY3D_DESCRIPTOR_v1;
#include <generated_cuda_meta.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <unordered_set>

namespace check {

// Page-locked memory of the host, and managed memory, by its first address.
struct Pinned {
    u64 end;
    Operation by = {};  // what made it; managed memory has none
    u64 generation = 0;  // of its block, which the call in progress has ended
    bool registered = false;  // its first and last page may have bytes of other owners

    bool is_managed() const { return !by.name; }
};

// What a call has changed before the driver has accepted it.
struct Changes {
    struct Fed {
        Stream* stream;
        Operation what;
        Time time;
    };
    struct Ordered {
        Stream* stream;
        Clock before;
        u64 changes = 0;  // of its clock, after the call's own
    };
    struct Launched {
        CUgraphExec graph;
        Clock before;  // the end of its last launch
    };
    u64 first_noted = 0, last_noted = 0;  // operations of the backlog
    std::vector<Fed> fed;  // operations that were not noted
    std::vector<Ordered> ordered;  // streams that come after others by a rule of the driver
    std::vector<Launched> launched;
    std::vector<u64> recorded, freed;  // events, memory
    std::vector<u64> late_reads;  // see host/pageable.hpp
    Stream* doomed_stream = nullptr;  // that the call destroys unless the driver refuses
    u64 doomed_event = Handles::kNoEvent;
    std::map<u64, Pinned> unpinned;

    void note(u64 operation) {
        if (!first_noted) first_noted = operation;
        last_noted = operation;
    }
    void end_ordering() {
        for (Ordered& one : ordered) one.changes = one.stream->changes;
    }
    void clear() {
        first_noted = last_noted = 0;
        fed.clear();
        ordered.clear();
        launched.clear();
        recorded.clear();
        freed.clear();
        late_reads.clear();
        doomed_stream = nullptr;
        doomed_event = Handles::kNoEvent;
        unpinned.clear();
    }
};

// State of a thread's call in progress, which is needed again when the call returns.
struct Thread {
    u64 number = 0;
    bool inside = false;  // in a call of ours, which the program did not make
    u32 site = 0;
    bool waits = false;
    bool queries_now = false;  // … by a query
    bool touches_host = false;  // it queues work that may be on memory of the host, which is to be guarded
    Clock waited_for;
    Changes changes;
    bool replaces_pool = false;  // what it allocates takes the place of a library's pool: see engine/hooks.hpp
    xlogmem_check_queries queries = XLOGMEM_CHECK_OF_PROGRAM;  // whose the next ones are
    u32 acts_for = 0;  // a place, for what was requested there: see engine/hooks.hpp
    u32 own_site = 0;  // meanwhile, of the thread itself
    Trials trials;  // of the launch in progress

    Thread();
};

// Programs make calls while a thread ends, and after its own variables have ended: so this has no destructor that C++
// would call (threads.cpp).
Thread& this_thread();

// The side where bytes are: an address says so itself, if the check has seen it allocated.
enum class Side : u8 { Unknown, Device };

// Bytes that a copy or a fill touches. Of planes with gaps between them only the first byte is touched for certain.
struct Extent {
    u64 begin, bytes;
    Rows rows = {};
    bool has_planes = false;
    Side side = Side::Unknown;
};

// Where memory is: on the device of the call's context, or perhaps elsewhere.
enum class Home : u8 { Context, Unknown };

struct Copy {
    Extent target, source;
    CUstream stream = nullptr;
    Form form = Form::Async;
    bool has_read = false;  // the source, when the call returns
};

struct Call;

// A launch of an executable comes after its last launch, whichever streams they are on.
struct Executable {
    std::shared_ptr<const Graph> graph;
    Clock last;
};

class Front {
    Engine engine_;
    Handles handles_{engine_};

  public:
    std::atomic<bool> lost{false};  // in a forked child of a process that had the driver
    xlogmem_mutex lock;  // of all else
    KernelTable kernels;
    Laboratory laboratory;
    Codes codes;
    Backlog backlog{engine_};

    // -- the engine ----------------------------------------------------------------------------------------------------
    // Feeds all noted operations first.
    Engine& engine() {
        if (!backlog.is_done()) backlog.feed();
        engine_.act_in(this_thread().number);
        return engine_;
    }
    // Without the lock, too.
    JournalPage& page() { return engine_.page(); }
    bool has_freed_uses() const { return engine_.has_freed_uses(); }
    void keep_findings(std::shared_ptr<Journal> journal) { engine_.write_to(std::move(journal)); }
    Handles& handles() {
        engine();
        return handles_;
    }
    // The stream with this handle: a known stream, or else a stream found by way of the engine.
    Stream* find_stream(u64 handle, Caller caller, u32 site) {
        Stream* known = handles_.known(handle, caller);
        return known ? known : handles().find(handle, caller, site);
    }

    // A module or a library is unloaded.
    void forget_kernels(u64 handle) {
        engine();  // launches of its kernels are noted
        kernels.forget(handle);
    }

    // -- memory of the host that the device can reach ------------------------------------------------------------------
    void pin(u64 begin, u64 bytes, Operation by, bool registered);
    void note_mapped(u64 begin, u64 bytes) {  // managed memory
        pinned_[begin] = {begin + bytes};
        engine().manage(begin);
    }
    // Guards the memory of the host on which work was queued: see host/guard.hpp.
    void guard_host();
    // The host's own accesses since the last call of this come before all that follows. `coming`: what the host will
    // know.
    void judge_host(u32 site);
    void judge_host(u32 site, const Clock& coming);
    // Adds what was pinned there to the changes.
    void unpin(u64 begin, Operation what, Changes& changes) {
        auto found = pinned_.find(begin);
        if (found == pinned_.end()) return;
        found->second.generation = engine().unpin(what, begin);
        host::forget(begin, found->second.end);
        changes.unpinned.insert(pinned_.extract(found));
    }
    // nullptr: the host cannot reach the address, or it is in pageable memory.
    const Pinned* find_pinned(u64 address) const;
    // True if one of the words is an address there.
    bool has_pinned(const std::vector<u8>& space) const;
    // True if the address is in memory of a device, or in managed memory.
    bool is_on_device(u64 address) {
        const Block* block = engine().find(address);
        return block && block->place == Place::Device && !was_managed(address);
    }
    // Managed memory that was freed. A call that names its address for a copy means memory of the host, which has got the
    // address since.
    void note_managed(u64 address) { managed_.insert(engine().find_whole(address)->generation); }
    bool was_managed(u64 address) {
        if (managed_.empty()) return false;  // as in most programs
        const Block* block = engine().find(address);
        return block && !block->live && managed_.count(block->generation);
    }

    // Looks, by way of the driver, whether freed memory that was used is other memory by now. No lock may be held.
    void settle_freed_uses();

    // The driver has refused the call that made these changes.
    void undo(const Changes& changes);

    // -- graphs ----------------------------------------------------------------------------------------------------------
    void keep_graph(CUgraph graph, std::shared_ptr<const Graph> work) { graphs_[graph] = std::move(work); }
    // The handle of a graph while it is captured, for programs that do not want it from the end of the capture.
    void note_handle(const Capture* capture, CUgraph graph) { handles_of_graphs_[capture] = graph; }
    CUgraph noted_handle(const Capture* ended);  // nullptr: it was not seen
    void copy_graph(CUgraph target, CUgraph source) { graphs_[target] = graphs_[source]; }
    void make_executable(CUgraphExec target, CUgraph source) { executables_[target].graph = graphs_[source]; }
    void drop(CUgraph graph) { graphs_.erase(graph); }
    void drop(CUgraphExec graph) { executables_.erase(graph); }
    Executable* find(CUgraphExec graph);  // nullptr: what it does is not known

    // Contexts are numbered by CUPTI, because their handles are given out again.
    void note_context(CUcontext context, u32 number) {
        if (context == newest_context_ && number == newest_number_) return;
        contexts_[newest_context_ = context] = newest_number_ = number;
    }
    struct Primary {
        CUcontext context = nullptr;
        u64 retained = 0;  // how often that was seen
    };
    void note_primary(CUdevice device, CUcontext context) {
        primary_[device] = {context, primary_[device].retained + 1};
    }
    Primary primary(CUdevice device) { return primary_[device]; }
    // With its streams and events. A context that was never current has none.
    void end_context(CUcontext context, Operation what) {
        auto found = contexts_.find(context);
        if (found == contexts_.end()) return;
        handles().end_context(found->second, what);
        contexts_.erase(found);
        newest_context_ = nullptr;
    }
    u32 number_of(CUcontext context) const {
        auto found = contexts_.find(context);
        return found == contexts_.end() ? 0 : found->second;
    }
    const std::unordered_map<CUcontext, u32>& contexts() const { return contexts_; }
    // A wait for a primary context is one for its green contexts. CUPTI numbers these too, and does not say of which
    // device: for a program that has any, too much is ordered.
    void note_green() { has_green_ = true; }
    Clock queued_in(u64 context) { return has_green_ ? engine().queued() : engine().queued_in(context); }

    // An event that another process records, or a launch of a graph.
    void add_foreign_event(u64 event) { foreign_events_.insert(event); }
    bool is_foreign(u64 event) const { return foreign_events_.count(event); }
    void drop_event(u64 event) { foreign_events_.erase(event); }

    // -- calls and kernels that were not understood -------------------------------------------------------------------
    void count_unseen(u32 call) { unseen_[engine().name(call)]++; }
    void count_launch(const Kernel& kernel) {
        launches_++;
        unknown_launches_ += kernel.parameters.empty();
    }
    std::string report();  // JSON: findings, and what they may lack
    std::string notes();  // the latter alone, as members of an object

    // -- the code of kernels, which is read at the end -----------------------------------------------------------------
    // The code of kernels about which a finding needs to know more: one for each module that has a kernel of the name.
    struct FoundCode {
        std::size_t kernel;  // of KernelTable::launched()
        std::vector<Parameter> parameters;
        std::vector<u8> text;
        u32 sm, base;
        std::vector<Jump> jumps;
        CodeFacts facts = {};
    };
    std::vector<FoundCode> find_codes();
    // Facts that all codes of a kernel agree on hold for its words.
    void read_codes(const std::vector<FoundCode>& codes);

  private:
    std::map<u64, Pinned> pinned_;
    std::unordered_set<u64> managed_;  // generations of blocks
    std::unordered_map<CUgraph, std::shared_ptr<const Graph>> graphs_;
    std::unordered_map<const Capture*, CUgraph> handles_of_graphs_;
    std::unordered_map<CUgraphExec, Executable> executables_;
    std::set<u64> foreign_events_;
    std::unordered_map<CUcontext, u32> contexts_;
    std::unordered_map<CUdevice, Primary> primary_;
    CUcontext newest_context_ = nullptr;
    bool has_green_ = false;
    u32 newest_number_ = 0;
    std::map<std::string, u64> unseen_;
    u64 launches_ = 0, unknown_launches_ = 0;
};

// For calls of the driver and of Python within a call that holds the lock.
class Unlocked {
  public:
    explicit Unlocked(xlogmem_mutex& lock) : lock_(lock) { lock_.unlock(); }
    ~Unlocked() { lock_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

  private:
    xlogmem_mutex& lock_;
};

// The only front end: it outlives the process's own statics, because threads may.
Front& front();

bool is_watching();
// Ends the check after an error, above all where memory is short: the program goes on, and the report says so.
void stop_watching(const char* where, const std::exception& error);
// The number of the place in the program; no lock may be held.
u32 place_of_caller();

// A call of the program, while the lock is held.
struct Call {
    const CUpti_CallbackData& data;
    Operation what;  // the call's name as the documentation has it
    bool own_default;  // the entry point means the thread's own default stream by handle 0
    Thread& thread;
    Front& front;

    u64 context() const { return data.contextUid; }

    // nullptr: the stream was destroyed, which is a finding.
    Stream* stream(CUstream handle) const;

    // When the call has returned, the host knows the work that `clock` covers to be done.
    void wait_for(Clock clock) const {
        thread.waits = true;
        thread.waited_for = std::move(clock);
    }
    // The same, of a query, which may be a library's.
    void find_done(Clock clock) const {
        wait_for(std::move(clock));
        thread.queries_now = true;
    }

    void work(Stream& on, const Range* ranges, std::size_t count) const;  // two ranges at most
    void record(CUevent event, CUstream stream) const;
    void fill(Extent target, CUstream stream, Form form = Form::Async) const;
    void copy(const Copy& copy) const;
    void allocate(u64 address, u64 bytes, Home home = Home::Context) const;  // by the host
    void allocate(u64 address, u64 bytes, CUstream stream, Home home = Home::Context) const;
    void note_free(u64 address) const;
    void free(u64 address) const;
    void free(u64 address, CUstream stream) const;
    void unmap(u64 address, u64 bytes) const;
};

}  // namespace check
