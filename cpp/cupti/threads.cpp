// The threads of the program: see front.hpp.
//
// A thread_local object with a destructor does not do here. The main thread's objects end before the functions of
// atexit() and the destructors of static objects run, those of another thread before its libraries' objects have; both
// make calls of the driver (cuSOLVER destroys its handles so), and a callback would then work on an object that is
// gone. So a thread has a pointer, which has no destructor, and the destructor of a POSIX key runs when the thread
// ends. A later call finds no object, makes another one and sets the key with it, and the key's destructor runs again.
// The main thread's object stays.
#include "front.hpp"

#include <pthread.h>

#include <optional>

namespace check {

namespace {

thread_local Thread* current = nullptr;
std::atomic<u64> newest_thread{0};

// The thread's default streams end with it.
void end(void* ended) {
    Thread* thread = static_cast<Thread*>(ended);
    if (!front().lost) {  // else the lock may be held for ever
        try {
            std::lock_guard<xlogmem_mutex> guard(front().lock);
            front().handles().end_thread(thread->number);
        } catch (const std::exception& error) {
            stop_watching("the end of a thread", error);
        }
    }
    current = nullptr;
    delete thread;
}

// A process has 1,024 keys. Without one, threads do not end for the check.
std::optional<pthread_key_t> key_of_threads() {
    static const std::optional<pthread_key_t> key = [] {
        pthread_key_t made;
        return pthread_key_create(&made, end) ? std::nullopt : std::optional(made);
    }();
    return key;
}

}  // namespace

Thread::Thread() : number(++newest_thread) {}

Thread& this_thread() {
    if (!current) {
        current = new Thread;
        if (auto key = key_of_threads()) pthread_setspecific(*key, current);
    }
    return *current;
}

}  // namespace check
