// See faults.hpp.
#include "faults.hpp"

#include "notes.hpp"
#include "width.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/mman.h>
#include <ucontext.h>

namespace check::host {

namespace {

constexpr u32 kMostSteps = 256;  // beside a range; then the page stays open for that range
constexpr int kMostPages = 4;    // that one instruction touches

// What a handler of a thread has begun, and the handler of the trap ends.
struct Stepping {
    u64 thread;  // 0: of none
    u64 pages[kMostPages];
    int count;
};
Stepping all_stepping[64];

// An address that this thread may not access, whose protection another thread had lifted, it seems. Of two threads with
// one place one tries more often.
std::atomic<u64> retried[64];
std::atomic<u64>& retried_here() { return retried[(this_thread() >> 8) % 64]; }

// A thread that is in the driver, and what is open for its accesses there. It has a place for each call that has begun.
struct DriversThread {
    std::atomic<u64> thread{0};  // 0: of none
    Window open[8];
    int count = 0;
};
constexpr u64 kMostThreads = 1024;  // at a time
DriversThread drivers_threads[kMostThreads];

DriversThread& drivers_thread(u64 turn) { return drivers_threads[((this_thread() >> 12) + turn) % kMostThreads]; }

// nullptr: this thread is not in the driver.
DriversThread* of_this_thread() {
    for (u64 turn = 0; turn < kMostThreads; turn++)
        if (DriversThread& one = drivers_thread(turn); one.thread.load(std::memory_order_relaxed) == this_thread())
            return &one;
    return nullptr;
}

std::atomic<SiteOf> site_of{nullptr};
std::atomic<xlogmem_host_set_action*> set_action{sigaction};
Others before;

enum class Then { Retry, Step, NotOurs };

// The page is open for the driver until it is done. It works on whole ranges.
Then let_driver(u64 page, DriversThread& driver) {
    Then then = Then::NotOurs;
    for (Pending& one : pages()) {
        if (!one.protects(page)) continue;
        then = Then::Retry;
        if (driver.count < 8 && pages().open_for_now(one.pages))
            driver.open[driver.count++] = one.pages;
        else
            pages().open_all(one);
    }
    return then;
}

Stepping* stepping_of(u64 thread) {
    for (Stepping& one : all_stepping)
        if (one.thread == thread) return &one;
    return nullptr;
}

// An access to other bytes of the page: the page is open for one instruction.
Then let_neighbour(u64 page) {
    for (Pending& one : pages()) {
        if (!one.protects(page) || ++one.steps <= kMostSteps) continue;
        pages().open(one, page);
        return Then::Retry;
    }
    Stepping* stepping = stepping_of(this_thread());
    if (!stepping) stepping = stepping_of(0);
    if (!stepping || stepping->count == kMostPages) {
        for (Pending& one : pages())
            if (one.protects(page)) pages().open(one, page);
        return Then::Retry;
    }
    stepping->thread = this_thread();
    stepping->pages[stepping->count++] = page;
    mprotect(reinterpret_cast<void*>(page), kPage, PROT_READ | PROT_WRITE);
    return Then::Step;
}

// Of instructions that read eight bytes or less it is not known how many.
bool reads_within(u64 instruction, u64 address, u64 end) {
    u64 bytes = width_of(reinterpret_cast<const u8*>(instruction));
    return bytes <= 8 || address + bytes <= end;
}

Then on_fault(u64 address, bool write, u64 instruction) {
    u64 page = page_of(address);
    Spin spin;
    if (DriversThread* driver = of_this_thread()) return let_driver(page, *driver);
    bool is_guarded = false, is_hit = false;
    for (Pending& one : pages()) {
        is_guarded |= one.pages.holds(page);
        if (!one.protects(page) || !one.is_hit_by(address, write)) continue;
        bool fits = write || reads_within(instruction, address, one.end);
        note_hit(one, {address, address + 1, write ? Did::Write : Did::Read, fits, current_site(), instruction});
        pages().open(one, page);
        is_hit = true;
    }
    if (is_hit) return Then::Retry;
    if (!is_guarded) return Then::NotOurs;
    int mode = pages().mode_of(page);
    bool may = mode == (PROT_READ | PROT_WRITE) || (mode == PROT_READ && !write);
    return may ? Then::Retry : let_neighbour(page);  // if it may, another thread has opened it meanwhile
}

// A signal without a handler ends the process: a fault as it happens again.
void pass_on(const struct sigaction& other, int number, siginfo_t* info, void* context) {
    bool was_sent = info->si_code <= 0;
    if (other.sa_flags & SA_SIGINFO) {
        if (other.sa_sigaction) return other.sa_sigaction(number, info, context);
    } else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) {
        return other.sa_handler(number);
    }
    if (was_sent && !(other.sa_flags & SA_SIGINFO) && other.sa_handler == SIG_IGN) return;
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    set_action.load()(number, &plain, nullptr);
    if (was_sent) raise(number);
}

bool end_step() {
    if (Spin::inside()) return false;
    Spin spin;
    Stepping* stepping = stepping_of(this_thread());
    if (!stepping) return false;
    for (int i = 0; i < stepping->count; i++) pages().apply({stepping->pages[i], stepping->pages[i] + kPage});
    *stepping = {};
    return true;
}

#if defined(__x86_64__)

constexpr long long kWrites = 2, kTrap = 0x100;  // of a page fault's code, and of the flags

void on_segv(int number, siginfo_t* info, void* context) {
    int kept = errno;
    auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    u64 address = reinterpret_cast<u64>(info->si_addr);
    bool ours = !Spin::inside() && info->si_code == SEGV_ACCERR;
    Then then = Then::NotOurs;
    if (ours) then = on_fault(address, registers[REG_ERR] & kWrites, u64(registers[REG_RIP]));
    if (then == Then::Step) registers[REG_EFL] |= kTrap;
    // The protection may just have been lifted, with the range: an access that fails again is not ours.
    bool first = then == Then::NotOurs && ours && retried_here() != address;
    retried_here() = first ? address : 0;
    if (first) then = Then::Retry;
    errno = kept;
    if (then == Then::NotOurs) pass_on(before.segv, number, info, context);
}

void on_trap(int number, siginfo_t* info, void* context) {
    int kept = errno;
    if (!end_step()) return pass_on(before.trap, number, info, context);
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrap;
    errno = kept;
}

#else

void on_segv(int number, siginfo_t* info, void* context) { pass_on(before.segv, number, info, context); }
void on_trap(int number, siginfo_t* info, void* context) { pass_on(before.trap, number, info, context); }

#endif

using Handler = void (*)(int, siginfo_t*, void*);

bool have(int number, Handler handler, struct sigaction& other) {
    struct sigaction now{};
    if (set_action.load()(number, nullptr, &now)) return false;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == handler) return true;
    struct sigaction wanted{};
    wanted.sa_sigaction = handler;
    wanted.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&wanted.sa_mask);
    other = now;
    return !set_action.load()(number, &wanted, nullptr);
}

}  // namespace

Others& others() { return before; }

bool have_handlers(xlogmem_host_set_action* function) {
    set_action = function;
    return have(SIGSEGV, on_segv, before.segv) && have(SIGTRAP, on_trap, before.trap);
}

void set_site(SiteOf function) { site_of = function; }

u32 current_site() {
    SiteOf function = site_of;
    return function ? function() : 0;
}

bool is_in_driver() { return of_this_thread(); }

// Without a place for the thread its accesses could not be distinguished.
void enter_driver() {
    if (!is_on()) return;
    for (u64 turn = 0; turn < kMostThreads; turn++) {
        u64 none = 0;
        if (drivers_thread(turn).thread.compare_exchange_strong(none, this_thread())) return;
    }
    stop();
}

void leave_driver() {
    DriversThread* driver = is_on() ? of_this_thread() : nullptr;
    if (!driver) return;
    if (driver->count) {
        Spin spin;
        for (int i = 0; i < driver->count; i++) pages().close(driver->open[i]);
        driver->count = 0;
    }
    driver->thread = 0;
}

}  // namespace check::host
