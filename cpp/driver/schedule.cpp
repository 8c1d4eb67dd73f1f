// Execution of queued operations: the scheduling policies, the thread that runs host functions, and the watchdog.
//
// The device does not have a thread. The thread that synchronises executes the operations itself, in the order the
// policy chooses; so a seed decides a run completely, except for what real threads do to each other. Host
// functions alone run elsewhere, on a driver thread with the lock released, as in the real driver.
#include "device.hpp"

#include "host/guard.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace sim {

namespace {

struct HostFunction {
    Stream* stream;
    std::function<void()> run;
};

// One at a time and in order: the real driver promises no more concurrency than that.
struct HostThread {
    std::condition_variable work;
    std::deque<HostFunction> jobs;
    bool started = false;
};
HostThread& host_thread() {
    static HostThread& state = *new HostThread;
    return state;
}

void finish_operation(Stream* stream) {
    Driver& d = driver();
    stream->done++;
    d.steps++;
    if (d.waiting) d.changed.notify_all();
}

void host_thread_main() {
    this_thread().driver_thread = true;
    Driver& d = driver();
    HostThread& self = host_thread();
    Lock lock(d.mutex);
    for (;;) {
        self.work.wait(lock, [&] { return !self.jobs.empty(); });
        HostFunction job = std::move(self.jobs.front());
        self.jobs.pop_front();
        lock.unlock();
        job.run();
        lock.lock();
        job.stream->busy = false;
        finish_operation(job.stream);
        if (d.config.policy == Policy::Eager) advance_all(lock);
    }
}

// Runs the operation at the head of the queue. A host function is only started: `busy` until it returns.
void execute(Stream* stream) {
    Driver& d = driver();
    Queued operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (operation.until) d.waits_for_memory--;
    if (d.config.trace > 1) {
        log_line("stream %llu runs %s (op %llu)", (unsigned long long)stream->id, operation.name,
                 (unsigned long long)stream->done + 1);
    }
    if (!operation.host_function) {
        check::host::OfDriver scope;
        if (operation.run) operation.run();
        finish_operation(stream);
        return;
    }
    HostThread& worker = host_thread();
    stream->busy = true;
    worker.jobs.push_back({stream, std::move(operation.run)});
    if (!worker.started) {
        worker.started = true;
        std::thread(host_thread_main).detach();
    }
    worker.work.notify_one();
}

// Which operation writes what a stream waits for is not known: any that can run.
Stream* any_runnable() {
    for (Stream* stream : driver().streams)
        if (stream->runnable()) return stream;
    return nullptr;
}

// Follows the chain of waits from a stream to the first operation that could run for it; nullptr if a running
// host function, or memory that the host has to write, is in the way. Iterative: two streams can wait for each other's
// operations thousands deep.
Stream* first_needed(std::vector<Position>& chain) {
    while (!chain.empty()) {
        Position wanted = chain.back();
        if (wanted.stream->reached(wanted.sequence)) {
            chain.pop_back();
            continue;
        }
        if (wanted.stream->busy || wanted.stream->queue.empty()) return nullptr;
        if (wanted.stream->runnable()) return wanted.stream;
        if (wanted.stream->waits_for_memory()) return any_runnable();
        chain.push_back(wanted.stream->queue.front().after);
    }
    return nullptr;
}

void draw_priorities() {
    for (Stream* stream : driver().streams) stream->random_priority = driver().random.next();
}

// The runnable stream that the policy prefers; under Max, `last` only if there is nothing else.
Stream* choose(Stream* last) {
    Driver& d = driver();
    if (d.config.policy == Policy::Seeded) {
        if (d.steps >= d.next_change) {
            draw_priorities();
            d.next_change = d.steps + 1 + d.random.next() % 12;
        }
        Stream* best = nullptr;
        for (Stream* stream : d.streams)
            if (stream->runnable() && (!best || stream->random_priority > best->random_priority)) best = stream;
        return best;
    }
    for (Stream* stream : d.streams)
        if (stream != last && stream->runnable()) return stream;
    return last && last->runnable() ? last : nullptr;
}

}  // namespace

void set_policy(Policy policy, u64 seed) {
    Driver& d = driver();
    d.config.policy = policy;
    d.config.seed = d.random.state = seed;
    d.next_change = 0;
}

namespace {

// True if there was a change. Where a stream waits for a value, the host may write it, or another thread may queue what
// does: neither says so, and both are looked for each millisecond.
bool has_changed(Lock& lock, std::chrono::system_clock::time_point end) {
    Driver& d = driver();
    u64 steps = d.steps;  // what happens while a wait times out is not seen by it
    for (;;) {
        // The system's clock: ThreadSanitizer does not know the call behind waiting with the steady one.
        auto now = std::chrono::system_clock::now();
        auto next = d.waits_for_memory ? std::min(end, now + std::chrono::milliseconds(1)) : end;
        if (d.changed.wait_until(lock, next) == std::cv_status::no_timeout || d.steps != steps) return true;
        if (d.waits_for_memory && any_runnable()) return true;
        if (std::chrono::system_clock::now() >= end) return false;
    }
}

}  // namespace

void wait_for_change(Lock& lock) {
    Driver& d = driver();
    d.waiting++;
    auto patience = std::chrono::milliseconds(u64(d.config.deadlock_seconds * 1000));
    bool changed = has_changed(lock, std::chrono::system_clock::now() + patience);
    d.waiting--;
    if (!changed) {
        for (Stream* stream : d.streams) {
            if (!stream->busy && stream->queue.empty()) continue;
            log_line("stream %llu: %s, %zu operations behind it", (unsigned long long)stream->id,
                     stream->busy                 ? "a host function has not returned"
                     : stream->waits_for_memory() ? "waits for a value in memory"
                                                  : "waits",
                     stream->queue.size());
        }
        log_line(
            "deadlock: nothing has moved for %g s. If a host function is running: does the waiting "
            "thread hold the GIL, or a lock that the function needs? Aborting.",
            d.config.deadlock_seconds);
        abort();
    }
}

void run_until(Lock& lock, Stream* stream, u64 sequence) {
    Driver& d = driver();
    std::vector<Position> chain;
    while (!stream->reached(sequence)) {
        Stream* next;
        if (d.config.policy == Policy::Eager || d.config.policy == Policy::Min) {
            if (chain.empty()) chain.push_back({stream, sequence});
            next = first_needed(chain);
        } else {
            next = choose(stream);
        }
        if (!next) {
            if (!stream->reached(sequence)) wait_for_change(lock);
            continue;
        }
        execute(next);
        // A seed must decide the run: under the lazy policies nothing else moves while a host function does.
        if (d.config.policy != Policy::Eager)
            while (next->busy) wait_for_change(lock);
    }
}

void run_everything(Lock& lock) {
    for (std::size_t i = 0; i < driver().streams.size(); i++) {
        Stream* stream = driver().streams[i];
        run_until(lock, stream, stream->queued);
    }
}

void advance(Lock& lock, Stream* stream) {
    std::vector<Position> chain;
    while (!stream->reached(stream->queued)) {
        if (stream->runnable()) {
            execute(stream);
            continue;
        }
        if (chain.empty()) chain.push_back({stream, stream->queued});
        Stream* next = first_needed(chain);
        if (!next) return;
        execute(next);
    }
}

void advance_all(Lock& lock) {
    // Other threads may create streams while the lock is released: index, not iterator.
    for (std::size_t i = 0; i < driver().streams.size(); i++) advance(lock, driver().streams[i]);
}

bool step(Lock& lock, Stream* wanted) {
    Driver& d = driver();
    Stream* next = nullptr;
    if (wanted && d.config.policy == Policy::Min) {
        std::vector<Position> chain{{wanted, wanted->queued}};
        next = first_needed(chain);
    } else {
        next = choose(wanted);
    }
    if (next) execute(next);
    return next != nullptr;
}

void poll(Lock& lock, Stream* wanted) {
    if (driver().config.policy == Policy::Eager)
        advance(lock, wanted);
    else if (driver().random.next() & 1)
        step(lock, wanted);
}

}  // namespace sim
