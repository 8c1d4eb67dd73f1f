// The simulated device: contexts, streams, events, queued operations, and the one structure that holds all of
// the driver's state.
//
// One mutex guards everything. It is released while a host function runs, while a test's hook runs and while
// a thread waits for another; so whatever calls execute(), run_until() or submit() must expect that other
// threads have queued more in between. Streams, contexts and events are addressed by handle outside and by
// pointer inside; Stream objects are never deleted (recorded events point at them), but a dead one is taken
// over by a new stream once the difference cannot be observed (see create_stream).
#pragma once

#include "base.hpp"
#include "handles.hpp"

#include "engine/engine.hpp"
#include "engine/hooks.hpp"

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace sim {

using Lock = std::unique_lock<std::mutex>;

// The largest grid and the largest block, in each direction, and the most threads of a block.
constexpr unsigned kMostOfLaunch[6] = {2147483647, 65535, 65535, 1024, 1024, 64}, kMostThreads = 1024;

struct Stream;
struct Capture;
struct Graph;
struct GraphExec;
struct Module;

struct Context {
    int device = 0;
    bool primary = false;
    bool alive = false;
    unsigned references = 0;  // of a primary context
    unsigned flags = 0;
    u64 id = 0;
    CUcontext handle = nullptr;
    Stream* legacy = nullptr;  // made on first use
    std::map<CUlimit, size_t> limits;  // that the program has set
    std::vector<Context*> peers;  // whose ordinary memory this one may touch
    Context* parent = nullptr;  // of a green context: the primary one, with which it shares all but streams
    std::vector<Context*> greens;  // of a primary context, the destroyed ones too: their streams may live on
    CUgreenCtx green = nullptr;
    unsigned processors = 0;  // of a green context
    Stream* gate = nullptr;  // what the whole context waits for: streams that are made later come after it

    Context* shared() { return parent ? parent : this; }
    const Context* shared() const { return parent ? parent : this; }
    bool contains(const Context* other) const { return other == this || (other && other->parent == this); }
};

// "Everything queued on this stream up to this operation."
struct Position {
    Stream* stream = nullptr;
    u64 sequence = 0;
    check::Time time{};  // the same, as the engine counts
};

// An entry of a stream's queue: something to run, or a wait for another stream's position.
struct Queued {
    const char* name = "";
    std::function<void()> run;
    Position after{};
    std::function<bool()> until;  // what memory has to say before it runs: the host may write that too
    bool host_function = false;

    bool may_run() const;
};

struct Stream {
    u64 id = 0;            // cuStreamGetId: never used twice
    u64 handle = 0;        // 0: a default stream
    Context* context = nullptr;
    unsigned flags = 0;
    int priority = 0;
    bool dead = false;
    bool busy = false;     // a host function of this stream is running on the driver's thread
    int stalled = 0;       // threads blocked because the queue is full
    u64 queued = 0;        // number of the newest operation
    u64 done = 0;          // number of the newest finished operation
    std::deque<Queued> queue;
    check::Stream* order = nullptr;  // what its operations come after
    u64 counted = 0;                 // number of the newest that the engine has counted: waits alone are not
    u64 random_priority = 0;
    std::shared_ptr<Capture> capture;
    std::map<int, CUlaunchAttributeValue> attributes;  // that the program has set

    bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
    bool is_legacy() const { return context && context->legacy == this; }
    bool is_detached() const { return context->parent && !context->alive; }  // its green context was destroyed
    bool reached(u64 sequence) const { return done >= sequence; }
    bool runnable() const { return !busy && !queue.empty() && queue.front().may_run(); }
    bool waits_for_memory() const { return !busy && !queue.empty() && queue.front().until; }
};

inline bool Queued::may_run() const {
    return (!after.stream || after.stream->reached(after.sequence)) && (!until || until());
}

using Nodes = std::vector<CUgraphNode>;

struct Event {
    u64 handle = 0;
    Context* context = nullptr;
    unsigned flags = 0;
    bool recorded = false;
    Position position;                   // a wait copies it: recording again disturbs no queued wait
    std::shared_ptr<double> time;        // filled when the record runs; none with timing disabled
    std::shared_ptr<Capture> captured;   // recorded on a capturing stream
    Nodes captured_after;                // the newest nodes there
    bool at_launch = false;              // recorded by a node of a graph, which is not modelled
};

enum class Use { Read, Write, ReadWrite };

struct Range {
    u64 address = 0;
    u64 bytes = 0;
    Use use = Use::Read;
    check::Rows rows;
    u64 anchor = 0;  // 0: exactly these bytes; else the one byte that is touched for certain
    bool some = false;  // … or not even that one
};

// A piece of work as the entry points describe it: the function to run and the bytes that it touches.
struct Work {
    const char* name = "";
    std::function<void()> run;
    std::function<bool()> until;
    std::array<Range, 4> ranges{};
    unsigned range_count = 0;
    bool host_function = false;

    void touches(u64 address, u64 bytes, Use use, check::Rows rows = {}, u64 anchor = 0) {
        if (bytes) ranges[range_count++] = Range{address, bytes, use, rows, anchor};
    }
    // The same without what it runs.
    Work only_touched() const {
        Work touched;
        touched.name = name;
        touched.ranges = ranges;
        touched.range_count = range_count;
        return touched;
    }
};

// Per host thread. Reached through this_thread(), never deleted on the main thread (exit handlers may call
// us).
struct ThreadState {
    u64 id = 0;
    bool driver_thread = false;       // runs host functions: CUDA calls are refused
    bool learned = false;             // the call in progress has found something finished
    const char* call = "";            // the entry point in progress
    u32 site = 0;                     // where in the program it was called, if that is wanted
    bool makes_own_stream = false;    // its own default stream is being made
    bool replaces_pool = false;  // what it allocates takes the place of a library's pool: see engine/hooks.hpp
    xlogmem_check_queries queries = XLOGMEM_CHECK_OF_PROGRAM;  // whose the next ones are
    u32 acts_for = 0;  // a place, for what was requested there: see engine/hooks.hpp
    struct Operator {  // of a library, which is about to say what it does: see engine/hooks.hpp
        bool begun = false;
        u64 stream = 0;  // of the newest of the next, like this
        u32 site = 0;
        std::vector<const char*> launches;  // since its beginning, of kernels of which nothing is known
    } operation;
    bool per_thread_default = false;  // inside a *_ptsz entry point: stream 0 is this thread's own
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::vector<Context*> contexts;
    struct OwnStream {
        Stream* stream = nullptr;
        u64 id = 0;  // the Stream object may have been taken over by another stream
    };
    std::unordered_map<Context*, OwnStream> own_streams;
};
ThreadState& this_thread();

struct Driver {
    std::mutex mutex;
    std::condition_variable changed;  // an operation finished, or a host function did
    Config config = Config::from_environment();
    Random random;
    // The result of every call: cuInit clears it, a sticky error sets it. Atomic: it is read before the lock is taken,
    // which in a forked child might never be free.
    std::atomic<int> gate{CUDA_ERROR_NOT_INITIALIZED};
    std::atomic<bool> forked{false};

    std::array<Context, kMaxDevices> primary;
    HandleTable<Context> contexts{0x2c00000000ull};
    HandleTable<Context> greens{0x3900000000ull};
    HandleTable<Stream> stream_handles{0x2a00000000ull};
    HandleTable<Event> events{0x2b00000000ull};
    HandleTable<Graph> graphs{0x2d00000000ull};
    HandleTable<GraphExec> graph_execs{0x2e00000000ull};
    std::vector<Stream*> streams;
    std::vector<std::shared_ptr<Capture>> captures;
    u64 next_id = 1;

    check::Engine engine;  // what is ordered after what, and which accesses are not

    u64 steps = 0;  // operations executed
    u64 next_change = 0;  // the step at which the seeded policy draws new priorities
    int waiting = 0;  // threads in wait_for_change
    int waits_for_memory = 0;  // operations in queues that do so

    Driver();
};
// Leaked on purpose: at exit, threads may still be inside and no destructor may pull the ground from under
// them.
Driver& driver();

// streams.cpp
// ------------------------------------------------------------------------------------------------
Stream* create_stream(Context* context, unsigned flags, int priority, bool legacy = false);
CUstream made_for_program(Context* context, unsigned flags, int priority);  // with a handle
void end_stream(Stream* stream);  // what it has queued still runs
// Handles 0, 1 and 2 are the default streams of the calling thread's current context.
CUresult find_stream(CUstream handle, Stream** stream);
// The stream or event that was made with this handle, or nullptr. A handle that is dead is reported: these
// calls do not return an error on an H200, they end the process.
Stream* made_stream(CUstream handle);
Event* made_event(CUevent handle);
Stream* legacy_stream(Context* context);
CUresult current_context(Context** context);
void destroy_context(Lock& lock, Context* context);
void detach_green(Context* green);  // its streams are refused from now on
CUresult check_attached(const Stream* stream);
// A kernel touched what it may not: the driver's state after it is lost.
void fault(CUresult error);

// Queues work on a stream, behind whatever the legacy default stream's rules put before it, checks its
// accesses and, under the eager policy, runs it. On a capturing stream the work goes into the graph instead,
// and *position is left alone.
CUresult submit(Lock& lock, Stream* stream, Work&& work, Position* position = nullptr);
// The same, for work that is more to the engine than an operation that touches memory: `watch` reports the work there.
using Watch = std::function<check::Time()>;
CUresult submit(Lock& lock, Stream* stream, Work&& work, Position* position, const Watch& watch);
// Host memory that the operation reaches is looked at when the operation runs: as a node of a graph it may run long
// after the program has freed the memory. The first submit() does it too.
void look_at_host_memory(Work& work);
// Work that is none of the program's: the engine does not count it, and the calling thread goes on.
void submit_unseen(Stream* stream, const char* name, std::function<void()> run);
// Blocks while the stream's queue is full; submit() does it too.
void make_room(Lock& lock, Stream* stream);
void wait_for(Stream* stream, Position position);
// The legacy default stream waits for every blocking stream of its context, and each of them for it. The engine applies
// the same rule to its order.
void order_with_legacy(Lock& lock, Stream* stream);
// The stream waits for a legacy default stream, and for the blocking streams of that one's context.
void come_after_legacy(Lock& lock, Stream* stream, Stream* legacy);
CUresult record_event(Lock& lock, Event* event, Stream* stream, bool external);

// The host learns that everything before this position has happened.
void host_learns(const check::Clock& clock);
void synchronize(Lock& lock, Position position, const check::Clock& clock);
void synchronize(Lock& lock, Stream* stream);  // with all that is queued on it
// The same, refused where the legacy stream may not be used. The legacy stream's "all" includes the blocking streams: an
// empty operation on it collects them.
CUresult synchronize_stream(Lock& lock, Stream* stream);
void synchronize_context(Lock& lock, Context* context);  // … and its green contexts
// The event stands for all that the context and its green contexts have queued.
CUresult record_context(Lock& lock, Event* event, Context* context);
// All that is queued in the context and its green contexts from now on comes after the event.
CUresult wait_in_context(Lock& lock, Event* event, Context* context);

// schedule.cpp
// -----------------------------------------------------------------------------------------------
void set_policy(Policy policy, u64 seed);
void run_until(Lock& lock, Stream* stream, u64 sequence);  // blocks
void run_everything(Lock& lock);  // blocks
void advance_all(Lock& lock);
void advance(Lock& lock, Stream* stream);  // eager: runs what can run, never blocks
bool step(Lock& lock, Stream* wanted);  // one operation, if any can run
void poll(Lock& lock, Stream* wanted);  // a query lets the device progress a little
void wait_for_change(Lock& lock);  // until `changed`; the watchdog's place

}  // namespace sim
