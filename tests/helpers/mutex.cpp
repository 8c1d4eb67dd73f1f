// The short way of the lock, at the moments that matter: tests/core/test_mutex.py compiles this with the lock as it is and
// with defects.  The lock comes from a copy whose favourites hesitate before they say that they are inside, and whose
// processor may keep that to itself, as real ones do for a moment, until a heavy fence.
//
// Ends with 0 if all is well, 1 if two threads were inside at once, 2 if a thread sleeps for ever.
#include <atomic>

static void hesitate();
static void look_and_wait();
static bool keep_back(std::atomic<unsigned>& word);
static void deliver();
static bool fence_is_refused = false;

#include "mutex.hpp"

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

static xlogmem_mutex the_lock;
static std::atomic<int> inside{0}, hesitating{0};
static std::atomic<bool> may_go{true}, leave{false};
static std::atomic<int> fences{0};
static std::atomic<std::atomic<unsigned>*> kept{nullptr};
static thread_local bool hesitates = false, waits_after_look = false, keeps_back = false;

static void pause_once(bool& wanted) {
    if (!wanted) return;
    wanted = false;
    ++hesitating;
    while (!may_go) std::this_thread::yield();
}

static void hesitate() { pause_once(hesitates); }
static void look_and_wait() { pause_once(waits_after_look); }

static bool keep_back(std::atomic<unsigned>& word) {
    if (!keeps_back) return false;
    keeps_back = false;
    kept = &word;
    return true;
}

static void deliver() {
    if (std::atomic<unsigned>* word = kept.exchange(nullptr)) word->store(1);
    ++fences;
}

static void finish(int code, const char* why) {
    std::puts(why);
    std::fflush(stdout);
    std::_Exit(code);
}

static void enter() {
    the_lock.lock();
    if (++inside != 1) finish(1, "two threads are inside");
}

static void exit() {
    --inside;
    the_lock.unlock();
}

static void become_favourite() {
    for (int i = 0; i < 10; ++i) enter(), exit();
}

static void until(std::atomic<int>& number, int value) {
    while (number != value) std::this_thread::yield();
}

// A thread that is the favourite, and inside until it may `leave`.
static std::thread favourite_inside(bool unseen = false) {
    static std::atomic<int> step{0};
    std::thread favourite([unseen] {
        become_favourite();
        keeps_back = unseen;
        enter();
        step = 1;
        while (!leave) std::this_thread::yield();
        exit();
    });
    until(step, 1);
    return favourite;
}

// Who comes meanwhile waits for it, and is woken; also where a filter of system calls `refuses` the fence by then, and
// where the favourite's processor has kept to itself (`unseen`) that it is inside.
static void waits(bool refuses, bool unseen) {
    std::thread favourite = favourite_inside(unseen);
    fence_is_refused = refuses;
    const int before = fences;
    std::thread other([] { enter(), exit(); });
    while (fences == before) std::this_thread::yield();
    std::this_thread::sleep_for(100ms);
    leave = true;
    favourite.join();
    other.join();
}

// Who only tries does not get in meanwhile.
static void tries() {
    std::thread favourite = favourite_inside();
    if (the_lock.try_lock()) finish(1, "two threads are inside");
    leave = true;
    favourite.join();
    enter();
    exit();
    if (!the_lock.try_lock()) finish(2, "a lock that is free cannot be taken");
    the_lock.unlock();
}

// A favourite that has looked, and not said yet that it is inside, while another thread takes the lock from it: for once,
// or (`again`) becomes the favourite itself.
static void looks(bool again) {
    may_go = false;
    std::thread favourite([&] {
        become_favourite();
        hesitates = true;
        enter();
        exit();
    });
    until(hesitating, 1);
    if (again) become_favourite();
    enter();
    may_go = true;
    std::this_thread::sleep_for(100ms);
    exit();
    favourite.join();
}

// A thread that tries has seen no favourite; then another one becomes the favourite, and is inside.
static void tries_late() {
    may_go = false;
    std::atomic<bool> tried{false};
    std::thread other([&] {
        waits_after_look = true;
        if (the_lock.try_lock()) finish(1, "two threads are inside");
        tried = true;
    });
    until(hesitating, 1);
    become_favourite();
    enter();
    may_go = true;
    while (!tried) std::this_thread::yield();
    exit();
    other.join();
}

// After that no lock has a favourite.
static void refused() {
    waits(true, false);
    become_favourite();
    if (xlogmem_may_prefer()) finish(3, "locks prefer threads, and have no fence");
}

// All at once, at any moment.
static void stress() {
    std::vector<std::thread> all;
    for (unsigned self = 0; self < 4; ++self)
        all.emplace_back([self] {
            for (unsigned round = 0; round < 3000; ++round) {
                for (unsigned i = 0; i < (round + self) % 16; ++i) enter(), exit();
                if (the_lock.try_lock()) {
                    if (++inside != 1) finish(1, "two threads are inside");
                    exit();
                }
                for (unsigned i = 0; i < (round * 7 + self) % 100; ++i) xlogmem_pause();
            }
        });
    for (auto& one : all) one.join();
}

int main(int, char** argv) {
    std::thread([] {
        std::this_thread::sleep_for(10s);
        finish(2, "a thread sleeps for ever");
    }).detach();
    if (!std::strcmp(argv[1], "waits")) waits(false, false);
    if (!std::strcmp(argv[1], "tries")) tries();
    if (!std::strcmp(argv[1], "looks")) looks(false);
    if (!std::strcmp(argv[1], "looks again")) looks(true);
    if (!std::strcmp(argv[1], "tries late")) tries_late();
    if (!std::strcmp(argv[1], "fence")) waits(false, true);
    if (!std::strcmp(argv[1], "refused")) refused();
    if (!std::strcmp(argv[1], "stress")) stress();
    finish(0, "one thread at a time");
}
