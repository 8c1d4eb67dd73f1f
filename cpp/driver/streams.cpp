// Streams, contexts and events: queueing of work, and its order.
//
// Every operation, wait and synchronize is reported to the engine, which keeps the order; here the queues follow it.
#include "device.hpp"

#include "arrays.hpp"
#include "capture.hpp"
#include "memory.hpp"
#include "watch.hpp"

#include "host/guard.hpp"

#include <algorithm>
#include <atomic>
#include <pthread.h>
#include <unistd.h>

namespace sim {

Driver::Driver() {
    random.state = config.seed;
    for (int device = 0; device < kMaxDevices; device++) {
        primary[device].device = device;
        primary[device].primary = true;
        primary[device].handle = reinterpret_cast<CUcontext>(contexts.add(&primary[device]));
    }
    // A child of fork() has no driver, if its parent had initialised it: see api_call().
    pthread_atfork(nullptr, nullptr, [] {
        if (driver().gate == CUDA_ERROR_NOT_INITIALIZED) {
            new (&driver().mutex) std::mutex;  // another thread may have held it
            return;
        }
        driver().gate = CUDA_ERROR_NOT_INITIALIZED;
        driver().forked = true;
    });
}

Driver& driver() {
    static Driver& instance = *new Driver;
    return instance;
}

namespace {

// Marks the thread's per-thread default streams dead when the thread ends.
struct ThreadHolder {
    ThreadState* state = new ThreadState;
    ThreadHolder() {
        static std::atomic<u64> next{1};
        state->id = next++;
    }
    ~ThreadHolder() {
        // At the end of the process other threads may still call us.
        if (gettid() == getpid() || driver().forked) return;
        if (!state->own_streams.empty()) {
            Lock lock(driver().mutex);
            for (auto& entry : state->own_streams)
                if (entry.second.stream->id == entry.second.id) end_stream(entry.second.stream);
        }
        delete state;
    }
};

thread_local ThreadState* thread_state = nullptr;

}  // namespace

ThreadState& this_thread() {
    if (!thread_state) {
        static thread_local ThreadHolder holder;
        thread_state = holder.state;
    }
    return *thread_state;
}

namespace {

// The end of all work that is queued on a stream. Where a wait was queued last, no operation that the engine has
// counted stands for it.
Position end_of(Stream* stream) {
    check::Time time = newest(stream);
    if (stream->counted != stream->queued) time.number++;
    return {stream, stream->queued, time};
}

}  // namespace

void end_stream(Stream* stream) {
    if (!stream->dead) driver().engine.destroy_stream(stream->order);
    stream->dead = true;
}

Stream* create_stream(Context* context, unsigned flags, int priority, bool legacy) {
    Driver& d = driver();
    Stream* stream = nullptr;
    // A dead stream's work that is finished, and known to the host to be, is ordered before all work that comes now. A
    // new stream may take over the object and go on counting: there are few objects however many streams come and go,
    // and positions on the dead stream keep their meaning.
    for (Stream* old : d.streams) {
        if (old->dead && old->reached(old->queued) && !old->busy && !old->stalled && !old->capture &&
            d.engine.host_knows(newest(old))) {
            stream = old;
            break;
        }
    }
    if (!stream) {
        stream = new Stream;
        d.streams.push_back(stream);
    }
    stream->dead = false;
    stream->handle = 0;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->attributes.clear();
    stream->id = d.next_id++;
    stream->random_priority = d.random.next();
    u64 key = reinterpret_cast<u64>(context);
    stream->order =
        legacy ? d.engine.create_legacy(key, stream->id) : d.engine.create_stream(key, stream->id, stream->blocking());
    note_stream(stream, legacy);
    for (Context* waiting : {context, context->parent}) {
        if (!waiting || !waiting->gate) continue;
        wait_for(stream, end_of(waiting->gate));
        d.engine.come_after(*stream->order, d.engine.queued_on(*waiting->gate->order));
    }
    return stream;
}

CUstream made_for_program(Context* context, unsigned flags, int priority) {
    Stream* stream = create_stream(context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    stream->handle = driver().stream_handles.add(stream);
    return reinterpret_cast<CUstream>(stream->handle);
}

Stream* legacy_stream(Context* context) {
    if (!context->legacy) context->legacy = create_stream(context, 0, 0, true);
    return context->legacy;
}

// CUDA 13.0 refuses cuStreamDestroy, too; newer drivers have a code of their own for the others.
CUresult check_attached(const Stream* stream) {
    if (!stream->is_detached()) return CUDA_SUCCESS;
    constexpr CUresult detached = CUresult(917);  // CUDA_ERROR_STREAM_DETACHED, which not every cuda.h has
    return driver().config.version > 13000 ? detached : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult current_context(Context** context) {
    ThreadState& thread = this_thread();
    if (thread.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = thread.contexts.back();
    return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

Stream* made_stream(CUstream handle) {
    auto& table = driver().stream_handles;
    if (table.is_dead(handle)) report_dead(check::Kind::DeadStream, reinterpret_cast<u64>(handle));
    return table.get(handle);
}

Event* made_event(CUevent handle) {
    auto& table = driver().events;
    if (table.is_dead(handle)) report_dead(check::Kind::DeadEvent, reinterpret_cast<u64>(handle));
    return table.get(handle);
}

CUresult find_stream(CUstream handle, Stream** stream) {
    if (handle > CU_STREAM_PER_THREAD) {
        *stream = made_stream(handle);
        if (!*stream) return CUDA_ERROR_INVALID_HANDLE;
        return check_attached(*stream);
    }
    Context* context;
    if (CUresult error = current_context(&context)) return error;
    ThreadState& thread = this_thread();
    bool own = handle == CU_STREAM_PER_THREAD || (handle == nullptr && thread.per_thread_default);
    if (!own) {
        *stream = legacy_stream(context);
        return CUDA_SUCCESS;
    }
    if (context->parent) return CUDA_ERROR_INVALID_HANDLE;  // as documented of CU_STREAM_PER_THREAD
    ThreadState::OwnStream& mine = thread.own_streams[context];
    if (!mine.stream || mine.stream->id != mine.id || mine.stream->dead) {
        thread.makes_own_stream = true;
        mine.stream = create_stream(context, 0, 0);
        thread.makes_own_stream = false;
        mine.id = mine.stream->id;
    }
    *stream = mine.stream;
    return CUDA_SUCCESS;
}

void destroy_context(Lock& lock, Context* context) {
    Driver& d = driver();
    synchronize_context(lock, context);
    for (Context* green : context->greens)
        if (green->alive) detach_green(green);
    d.stream_handles.each([&](Stream* stream, u64 handle) {
        if (!context->contains(stream->context)) return;
        note_destroyed(check::Kind::DeadStream, handle, stream->id);
        d.stream_handles.remove(handle);
    });
    d.events.each([&](Event* event, u64 handle) {
        if (event->context != context) return;
        note_destroyed(check::Kind::DeadEvent, handle);
        d.events.remove(handle);
        d.engine.destroy_event(handle);
        delete event;
    });
    for (Stream* stream : d.streams)
        if (context->contains(stream->context)) end_stream(stream);
    for (Context* green : context->greens) d.engine.destroy_context(reinterpret_cast<u64>(green));
    d.engine.destroy_context(reinterpret_cast<u64>(context));
    context->greens.clear();
    for (Block* block : memory().blocks) {
        bool belongs = context->primary && block->device == context->device;
        if (block->live && belongs) free_now(lock, block->address);
    }
    forget_arrays();
    context->legacy = context->gate = nullptr;
    context->alive = false;
    context->peers.clear();
    d.contexts.each([&](Context* other, u64) {
        auto& peers = other->peers;
        peers.erase(std::remove(peers.begin(), peers.end(), context), peers.end());
    });
}

// As with xsim_sticky_error(): every later call fails, whichever context it is for.
void fault(CUresult error) {
    if (!driver().gate) driver().gate = error;
}

namespace {

// Numbers the operation and queues it, or runs it at once where nothing is in its way and the policy is
// eager.
u64 push(Stream* stream, Queued&& operation) {
    Driver& d = driver();
    u64 sequence = ++stream->queued;
    bool at_once = d.config.policy == Policy::Eager && stream->queue.empty() && !stream->busy &&
                   !operation.host_function && operation.may_run();
    if (at_once) {
        check::host::OfDriver scope;
        if (operation.run) operation.run();
        stream->done++;
        d.steps++;
        if (d.waiting) d.changed.notify_all();
    } else {
        if (operation.until) d.waits_for_memory++;
        stream->queue.push_back(std::move(operation));
    }
    return sequence;
}

}  // namespace

void order_with_legacy(Lock& lock, Stream* stream) {
    if (!stream->blocking()) return;
    Stream* legacy = stream->context->legacy;
    if (!legacy) return;
    if (stream != legacy) {
        wait_for(stream, end_of(legacy));
        return;
    }
    for (std::size_t i = 0; i < driver().streams.size(); i++) {
        Stream* other = driver().streams[i];
        if (other != stream && other->context == stream->context && other->blocking()) wait_for(stream, end_of(other));
    }
}

// As on hardware, a launch on a full queue blocks until the device has caught up.
void make_room(Lock& lock, Stream* stream) {
    std::size_t limit = driver().config.queue_limit;
    if (stream->queue.size() < limit) return;
    stream->stalled++;
    run_until(lock, stream, stream->queued - limit + 1);
    stream->stalled--;
}

void wait_for(Stream* stream, Position position) {
    if (position.stream == stream || position.stream->reached(position.sequence)) return;
    if (driver().engine.is_before(position.time, *stream->order)) return;
    Queued wait;
    wait.name = "wait";
    wait.after = position;
    push(stream, std::move(wait));
}

void submit_unseen(Stream* stream, const char* name, std::function<void()> run) {
    Queued operation;
    operation.name = name;
    operation.run = std::move(run);
    push(stream, std::move(operation));
}

void come_after_legacy(Lock& lock, Stream* stream, Stream* legacy) {
    order_with_legacy(lock, legacy);
    wait_for(stream, end_of(legacy));
    driver().engine.come_after(*stream->order, driver().engine.queued_on(*legacy->order));
}

namespace {

struct HostMemory {
    u64 address, bytes;
    bool pinned;
};

}  // namespace

void look_at_host_memory(Work& work) {
    std::vector<HostMemory> reached;
    for (unsigned i = 0; i < work.range_count; i++) {
        const Range& range = work.ranges[i];
        if (!memory().in_arena(range.address))
            reached.push_back({range.address, range.bytes, is_pinned(range.address)});
    }
    if (reached.empty() || !work.run) return;
    work.run = [run = std::move(work.run), name = work.name, reached = std::move(reached)] {
        for (const HostMemory& one : reached) {
            if (one.pinned ? is_pinned(one.address) : is_mapped(one.address, one.bytes)) continue;
            log_line("%s ran after the program freed its host memory: bytes [0x%llx,0x%llx)", name,
                     (unsigned long long)one.address, (unsigned long long)(one.address + one.bytes));
            return fault(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        run();
    };
}

CUresult submit(Lock& lock, Stream* stream, Work&& work, Position* position) {
    look_at_host_memory(work);
    Work touched = work.only_touched();  // what it runs is moved away before
    return submit(lock, stream, std::move(work), position, [&] { return watch_work(stream, touched); });
}

CUresult submit(Lock& lock, Stream* stream, Work&& work, Position* position, const Watch& watch) {
    if (stream->capture) {
        CUresult refused = capture_work(stream, std::move(work));
        if (!refused) watch();
        return refused;
    }
    if (CUresult error = check_legacy_use(stream)) return error;
    make_room(lock, stream);
    order_with_legacy(lock, stream);
    Queued operation;
    operation.name = work.name;
    operation.run = std::move(work.run);
    operation.until = std::move(work.until);
    operation.host_function = work.host_function;
    u64 sequence = push(stream, std::move(operation));
    check::Time time = watch();
    stream->counted = sequence;
    if (position) *position = {stream, sequence, time};
    if (driver().config.policy == Policy::Eager && !stream->reached(sequence)) advance(lock, stream);
    if (driver().config.policy == Policy::Eager && driver().waits_for_memory) advance_all(lock);
    return CUDA_SUCCESS;
}

CUresult record_event(Lock& lock, Event* event, Stream* stream, bool external) {
    if (stream->capture) return record_in_capture(stream, event, external);
    Work work;
    work.name = "record";
    std::shared_ptr<double> time;
    if (!(event->flags & CU_EVENT_DISABLE_TIMING)) {
        time = std::make_shared<double>(0);
        work.run = [time] { *time = double(driver().steps) * 1e-3; };
    }
    auto watch = [&] { return watch_record(event->handle, stream); };
    Position position;
    if (CUresult error = submit(lock, stream, std::move(work), &position, watch)) return error;
    event->recorded = true;
    event->at_launch = false;
    event->captured = nullptr;
    event->position = position;
    event->time = std::move(time);
    return CUDA_SUCCESS;
}

namespace {

check::Clock queued_in(Context* context) {
    check::Clock all = driver().engine.queued_in(reinterpret_cast<u64>(context));
    for (Context* green : context->greens) all.join(driver().engine.queued_in(reinterpret_cast<u64>(green)));
    return all;
}

CUresult refuse_captures(Context* context) {
    CUresult refused = CUDA_SUCCESS;
    for (auto& capture : driver().captures) {
        if (!capture->has_stream_of(context)) continue;
        capture->invalidated = true;
        refused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return refused;
}

}  // namespace

CUresult record_context(Lock& lock, Event* event, Context* context) {
    if (event->context != context->shared()) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(refuse_captures(context));
    check::Clock all = queued_in(context);
    Stream* joined = create_stream(context, CU_STREAM_NON_BLOCKING, 0);
    for (Stream* stream : driver().streams)
        if (stream != joined && context->contains(stream->context)) wait_for(joined, end_of(stream));
    driver().engine.come_after(*joined->order, all);
    CUresult result = record_event(lock, event, joined, false);
    end_stream(joined);
    return result;
}

CUresult wait_in_context(Lock& lock, Event* event, Context* context) {
    if (event->captured) {
        event->captured->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    REFUSE_IF(refuse_captures(context));
    if (!event->recorded) return CUDA_SUCCESS;
    if (!context->gate) context->gate = create_stream(context, CU_STREAM_NON_BLOCKING, 0);
    for (std::size_t i = 0; i < driver().streams.size(); i++) {
        Stream* stream = driver().streams[i];
        if (stream->dead || !context->contains(stream->context)) continue;
        wait_for(stream, event->position);
        watch_wait(stream, event->handle);
    }
    if (driver().config.policy == Policy::Eager) advance_all(lock);
    return CUDA_SUCCESS;
}

void detach_green(Context* green) {
    for (auto& capture : driver().captures)
        if (capture->has_stream_of(green)) capture->invalidated = true;
    for (Stream* stream : {green->gate, green->legacy})
        if (stream) end_stream(stream);
    green->alive = false;
    green->legacy = green->gate = nullptr;
    driver().contexts.remove(reinterpret_cast<u64>(green->handle));
    driver().greens.remove(reinterpret_cast<u64>(green->green));
}

void host_learns(const check::Clock& clock) {
    this_thread().learned = true;
    judge_host(clock);
    driver().engine.host_learns(clock);
    check::host::settle(driver().engine.host());
}

void synchronize(Lock& lock, Stream* stream) {
    driver().engine.host_awaits(*stream->order);
    synchronize(lock, {stream, stream->queued, newest(stream)}, queued(stream));
}

void synchronize(Lock& lock, Position position, const check::Clock& clock) {
    check::Clock learned = clock;  // a copy: the stream may get more work while the lock is released
    run_until(lock, position.stream, position.sequence);
    host_learns(learned);
    trim_to_thresholds();
}

CUresult synchronize_stream(Lock& lock, Stream* stream) {
    if (stream->is_legacy()) {
        Work work;
        work.name = "synchronize";
        REFUSE_IF(submit(lock, stream, std::move(work)));
    }
    synchronize(lock, stream);
    return CUDA_SUCCESS;
}

void synchronize_context(Lock& lock, Context* context) {
    check::Clock learned = queued_in(context);
    for (std::size_t i = 0; i < driver().streams.size(); i++) {
        Stream* stream = driver().streams[i];
        if (context->contains(stream->context)) run_until(lock, stream, stream->queued);
    }
    host_learns(learned);
    trim_to_thresholds();
}

}  // namespace sim
