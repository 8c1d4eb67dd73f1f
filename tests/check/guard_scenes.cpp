// Scenes for the guard of the host's memory (cpp/host), without a driver: each says what it expects, and what it finds
// instead goes to the standard output, a line each. The program plays the library that sees system calls.
#include "host/guard.hpp"
#include "host/hooks.h"
#include "host/pageable.hpp"

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <emmintrin.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace check;
using namespace check::host;

namespace {

constexpr u64 kPage = 4096;
const xlogmem_host_hooks* hooks = nullptr;
const char* scene = "";
u32 site = 1;
u64 clock_number = 0;
int wrong = 0;

u32 current() { return site; }

void expect(bool holds, const std::string& text) {
    if (holds) return;
    wrong++;
    printf("%s: %s\n", scene, text.c_str());
    fflush(stdout);
}

struct Memory {
    char* at;
    u64 bytes;
    explicit Memory(u64 size) : bytes(size) {
        at = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    ~Memory() {
        forget(begin(), begin() + bytes);
        munmap(at, bytes);
    }
    u64 begin() const { return reinterpret_cast<u64>(at); }
    // The device reads, or writes, these bytes: the operation has the next number of this slot.
    Time use(u64 from, u64 to, bool writes, u32 slot = 0, bool shared = false) const {
        Time time{slot, ++clock_number};
        guard({begin() + from, begin() + to, writes, time, begin(), begin() + bytes}, shared);
        return time;
    }
};

Clock until(Time time) {
    Clock clock;
    clock.set(time);
    return clock;
}

void learn(Time time) {
    examine(until(time));
    settle(until(time));
}

volatile char sink;
void write_to(const Memory& memory, u64 at) { *const_cast<volatile char*>(memory.at + at) = 1; }
void read_from(const Memory& memory, u64 at) { sink = *const_cast<volatile char*>(memory.at + at); }

const char* word(Did did) {
    return did == Did::Read ? "read" : did == Did::Write ? "write" : did == Did::Free ? "free" : "written";
}

// What was noted since, as "write 5" (from the memory's beginning on), "read 5 ?" where it may have meant other bytes.
std::string noted(const Memory& memory) {
    std::string text;
    Note note;
    while (take(note)) {
        text += text.empty() ? "" : ", ";
        text += word(note.did) + (" " + std::to_string(note.begin - memory.begin()));
        if (note.end != note.begin + 1) text += "-" + std::to_string(note.end - memory.begin());
        if (!note.sure) text += " ?";
    }
    return text;
}

void expect_noted(const Memory& memory, const std::string& expected) {
    std::string found = noted(memory);
    expect(found == expected, "noted \"" + found + "\", not \"" + expected + "\"");
}

// The system's access to a byte, which fails where the program's would fault.
bool system_can(const Memory& memory, u64 at, bool write) {
    static int ends[2] = {-1, -1};
    if (ends[0] < 0 && pipe(ends)) abort();
    if (!write) {
        if (::write(ends[1], memory.at + at, 1) != 1) return false;
        char byte;
        return ::read(ends[0], &byte, 1) == 1;
    }
    char byte = memory.at ? 0 : 1;
    if (::write(ends[1], &byte, 1) != 1) abort();
    if (::read(ends[0], memory.at + at, 1) == 1) return true;
    if (::read(ends[0], &byte, 1) != 1) abort();
    return false;
}

void expect_open(const Memory& memory, u64 at) { expect(system_can(memory, at, true), "a page is still protected"); }
void expect_read_only(const Memory& memory, u64 at) {
    expect(!system_can(memory, at, true), "a page can be written");
    expect(system_can(memory, at, false), "a page cannot be read");
}
void expect_closed(const Memory& memory, u64 at) { expect(!system_can(memory, at, false), "a page can be read"); }

// -- scenes -----------------------------------------------------------------------------------------------------------

void upload() {
    Memory memory(4 * kPage);
    Time time = memory.use(0, 2 * kPage, false);
    expect_read_only(memory, kPage);
    read_from(memory, 10);
    expect_noted(memory, "");
    write_to(memory, 10);
    expect_noted(memory, "write 10");
    learn(time);
    write_to(memory, kPage);
    expect_noted(memory, "");
    expect_open(memory, kPage);
}

void download() {
    Memory memory(4 * kPage);
    Time time = memory.use(0, 2 * kPage, true);
    expect_closed(memory, kPage);
    read_from(memory, 10);
    site = 2;
    write_to(memory, kPage + 1);
    expect_noted(memory, "read 10, write 4097");
    learn(time);
    expect_open(memory, 0);
}

// Other bytes of the page are nobody's business, and the page is protected again afterwards.
void neighbours() {
    Memory memory(kPage);
    Time time = memory.use(64, 128, true);
    for (int i = 0; i < 10; i++) {
        write_to(memory, 0);
        read_from(memory, 200);
    }
    expect_noted(memory, "");
    expect_closed(memory, 0);
    read_from(memory, 64);
    expect_noted(memory, "read 64");
    learn(time);
    expect_open(memory, 0);
}

// After many accesses beside a range its page stays open: a lock there, say.
void busy_neighbour() {
    Memory memory(kPage);
    memory.use(64, 128, true);
    for (int i = 0; i < 1000; i++) write_to(memory, 0);
    expect_open(memory, 0);
    expect_noted(memory, "");
}

void two_on_a_page() {
    Memory memory(kPage);
    Time first = memory.use(0, 64, false, 0), second = memory.use(128, 192, false, 1);
    write_to(memory, 0);
    expect_noted(memory, "write 0");
    expect_read_only(memory, 0);
    write_to(memory, 128);
    expect_noted(memory, "write 128");
    learn(first);
    learn(second);
    expect_open(memory, 0);
}

// A read is none of the business of a range that is read, but of one that is written beside it.
void both_kinds() {
    Memory memory(kPage);
    memory.use(0, 64, false, 0);
    memory.use(128, 192, true, 1);
    read_from(memory, 0);
    expect_noted(memory, "");
    read_from(memory, 128);
    expect_noted(memory, "read 128");
    write_to(memory, 0);
    expect_noted(memory, "write 0");
}

void what_is_not_known_stays() {
    Memory memory(2 * kPage);
    Time first = memory.use(0, kPage, false, 0);
    Time second = memory.use(kPage, 2 * kPage, false, 1);
    learn(first);
    expect_open(memory, 0);
    expect_read_only(memory, kPage);
    learn(second);
    expect_open(memory, kPage);
}

// The same buffer is queued twice on a stream: the first wait is not enough.
void queued_twice() {
    Memory memory(kPage);
    Time first = memory.use(0, 64, false), second = memory.use(0, 64, false);
    learn(first);
    write_to(memory, 0);
    expect_noted(memory, "write 0");
    learn(second);
    expect_open(memory, 0);
}

void queued_on_two_streams() {
    Memory memory(kPage);
    memory.use(0, 64, false, 0);
    learn(memory.use(0, 64, false, 1));
    write_to(memory, 0);
    expect_noted(memory, "write 0");
}

// A loop, and a long copy, make one note: two places make two.
void places() {
    Memory memory(64 * kPage);
    memory.use(0, 64 * kPage, false);
    site = 1;
    memset(memory.at, 1, 64 * kPage);
    expect_noted(memory, "write 0");
    memory.use(0, 64 * kPage, false, 1);
    site = 1;
    write_to(memory, 0);
    site = 2;
    write_to(memory, kPage * 40);
    expect_noted(memory, "write 0, write 163840");
}

void load_vector(const char* at) {
    __m128i loaded;
    asm volatile("movdqu (%1), %0" : "=x"(loaded) : "r"(at) : "memory");
}

// A load of a vector may be meant for the bytes beside the range.
void wide_loads() {
    Memory memory(kPage);
    memory.use(0, 72, true);
    load_vector(memory.at + 64);
    expect_noted(memory, "read 64 ?");
    memory.use(0, 80, true, 1);
    site = 2;
    load_vector(memory.at + 64);
    expect_noted(memory, "read 64");
    memory.use(0, 4, true, 2);
    site = 3;
    sink = char(*reinterpret_cast<volatile int*>(memory.at));
    expect_noted(memory, "read 0");
}

void large_ranges() {
    u64 bytes = u64(64) << 20;
    Memory memory(bytes);
    Time time = memory.use(0, bytes, false);
    expect_read_only(memory, 0);
    expect_read_only(memory, bytes - 1);
    write_to(memory, bytes - 8);
    expect_noted(memory, "write 67108856");
    learn(time);
    expect_open(memory, 0);
    expect_open(memory, bytes - 1);
}

// Registered memory: its first and its last page may be malloc's own.
void shared_pages() {
    Memory memory(4 * kPage);
    u64 begin = memory.begin() + 100, end = memory.begin() + 3 * kPage + 100;
    Time time{0, ++clock_number};
    guard({begin, end, false, time, begin, end}, true);
    expect_open(memory, 0);
    expect_open(memory, 3 * kPage);
    expect_read_only(memory, kPage);
    memory.at[3 * kPage + 50] = 7;
    expect_noted(memory, "");
    learn(time);
    expect_noted(memory, "written 12288-12388");
    expect_open(memory, kPage);
}

void shared_pages_unchanged() {
    Memory memory(kPage);
    Time time = memory.use(0, 64, false, 0, false);
    learn(time);
    u64 begin = memory.begin() + 100, end = memory.begin() + 200;
    Time first{0, ++clock_number}, second{0, ++clock_number};
    guard({begin, end, false, first, begin, end}, true);
    memory.at[300] = 1;
    learn(first);
    memory.at[150] = 1;
    learn(second);
    expect_noted(memory, "");
}

// What the device writes is no change of the host's.
void shared_pages_of_the_device() {
    Memory memory(kPage);
    u64 begin = memory.begin() + 100, end = memory.begin() + 200;
    Time first{0, ++clock_number}, second{0, ++clock_number};
    guard({begin, end, false, first, begin, end}, true);
    guard({begin, begin + 50, true, second, begin, end}, true);
    memory.at[120] = 1;
    learn(second);
    expect_noted(memory, "");
}

// The memory has another owner by now, whose pages are its own.
void shared_pages_of_another_owner() {
    Memory memory(2 * kPage);
    u64 begin = memory.begin() + 100, end = memory.begin() + 200;
    Time first{0, ++clock_number}, second{0, ++clock_number};
    guard({begin, end, false, first, begin, end}, true);
    guard({begin, end, true, second, memory.begin(), memory.begin() + 2 * kPage}, false);
    settle(until(second));
    memory.at[120] = 1;
    learn(second);
    expect_noted(memory, "");
}

// The device writes what is then copied.
void shared_pages_that_are_written_first() {
    Memory memory(kPage);
    u64 begin = memory.begin() + 100, end = memory.begin() + 200;
    Time first{0, ++clock_number}, second{0, ++clock_number}, third{0, ++clock_number};
    guard({begin, end, true, first, begin, end}, true);
    guard({begin, end, false, second, begin, end}, true);
    memory.at[120] = 1;
    learn(second);
    expect_noted(memory, "");
    guard({begin, end, false, third, begin, end}, true);
    memory.at[120] = 2;
    learn(third);
    expect_noted(memory, "written 100-200");
}

void system_calls() {
    Memory memory(2 * kPage);
    memory.use(0, 64, false);
    bool opened = hooks->before_call(memory.begin() + 32, 64, 1);
    expect(opened && system_can(memory, 32, true), "the system cannot write");
    hooks->after_call(memory.begin() + 32, 64);
    expect_noted(memory, "write 32-64");
    expect_read_only(memory, 0);
    opened = hooks->before_call(memory.begin(), 64, 0);
    if (opened) hooks->after_call(memory.begin(), 64);
    opened = hooks->before_call(memory.begin() + 100, 10, 1);  // beside it
    expect(opened && system_can(memory, 100, true), "the system cannot write beside the range");
    hooks->after_call(memory.begin() + 100, 10);
    expect_noted(memory, "");
    site = 2;
    write_to(memory, 1);
    expect_noted(memory, "write 1");
    expect(!hooks->before_call(memory.begin() + kPage, 10, 1), "a page without a range is opened");
}

// As the library before libc does it.
void copy_by_libc(const Memory& memory, u64 from, u64 to, bool writes, bool opens = true) {
    u64 begin = memory.begin() + from, bytes = to - from;
    bool opened = hooks->before_copy(begin, bytes, writes, 5);
    expect(opened == opens, opens ? "pages stay closed for a copy" : "pages are opened for a copy");
    if (!opened) return;
    expect(system_can(memory, from, writes), "a page is closed during a copy");
    hooks->after_call(begin, bytes);
}

void copies() {
    Memory memory(4 * kPage);
    memory.use(0, 64, false);
    for (int i = 0; i < 300; i++) copy_by_libc(memory, 64, 128, true);
    expect_noted(memory, "");
    expect_read_only(memory, 0);
    copy_by_libc(memory, 0, 128, false, false);
    copy_by_libc(memory, kPage, kPage + 8, true, false);
    expect_noted(memory, "");
    copy_by_libc(memory, 32, 128, true);
    copy_by_libc(memory, 32, 128, true);
    expect_noted(memory, "write 32-64");
    expect_read_only(memory, 0);
    memory.use(0, 64, false);
    copy_by_libc(memory, 0, 16, true);
    expect_noted(memory, "write 0-16");
    memory.use(kPage, kPage + 64, true, 1);
    copy_by_libc(memory, kPage + 64, kPage + 128, false);
    expect_noted(memory, "");
    copy_by_libc(memory, kPage + 8, kPage + 128, false);
    expect_noted(memory, "read 4104-4160");
    expect_closed(memory, kPage);
    memory.use(0, 64, false, 2);
    site = 0;
    for (int i = 0; i < 3; i++) copy_by_libc(memory, 0, 16, true);
    expect_noted(memory, "write 0-16, write 0-16");  // two are pending
}

void copies_of_the_driver() {
    Memory memory(kPage);
    memory.use(0, 64, true);
    OfDriver scope;
    copy_by_libc(memory, 0, 64, true, false);
    expect_noted(memory, "");
}

// An access to bytes on pages that are not protected is none for libc's copies either: they are compared later.
void copies_on_shared_pages() {
    Memory memory(4 * kPage);
    u64 begin = memory.begin() + 100, end = memory.begin() + 3 * kPage + 100;
    guard({begin, end, false, {0, ++clock_number}, begin, end}, true);
    copy_by_libc(memory, 100, 200, true, false);
    expect_noted(memory, "");
    copy_by_libc(memory, 100, kPage + 10, true);
    expect_noted(memory, "write 4096-4106");
}

void bounds_of_all_pages() {
    auto is_inside = [](u64 begin, u64 end) { return hooks->bounds[0] <= begin && end <= hooks->bounds[1]; };
    Memory memory(kPage), other(kPage);
    expect(hooks->bounds[0] >= hooks->bounds[1], "bounds of nothing");
    Time first = memory.use(0, 64, false), second = other.use(0, 64, false, 1);
    expect(is_inside(memory.begin(), memory.begin() + kPage), "the first one is outside");
    expect(is_inside(other.begin(), other.begin() + kPage), "the second one is outside");
    learn(first);
    expect(is_inside(other.begin(), other.begin() + kPage), "the second one is outside, after the first");
    learn(second);
    expect(hooks->bounds[0] >= hooks->bounds[1], "bounds of nothing again");
}

void memory_ends() {
    Memory memory(2 * kPage);
    memory.use(0, 64, false);
    expect(hooks->is_needed(), "not needed");
    hooks->before_end(memory.begin(), kPage);
    expect_noted(memory, "free 0-64");
    expect(!hooks->is_needed(), "still needed");
    expect_open(memory, 0);
    memory.use(0, 64, false);
    hooks->before_end(memory.begin() + 64, kPage);
    expect_noted(memory, "");
    expect_read_only(memory, 0);
}

void driver() {
    Memory memory(2 * kPage);
    memory.use(0, 2 * kPage, true);
    {
        OfDriver scope;
        memset(memory.at, 1, 2 * kPage);
    }
    expect_noted(memory, "");
    expect_closed(memory, 0);
    expect_closed(memory, kPage);
    site = 2;
    write_to(memory, kPage);
    expect_noted(memory, "write 4096");
    site = 1;
    OfDriver scope;
    std::thread([&] { read_from(memory, 0); }).join();
    expect_noted(memory, "read 0");
}

void driver_in_driver() {
    Memory memory(kPage);
    memory.use(0, kPage, true);
    {
        OfDriver scope;
        {
            OfDriver within;
        }
        write_to(memory, 0);
    }
    expect_noted(memory, "");
    write_to(memory, 1);
    expect_noted(memory, "write 1");
}

// More than can be in the driver at a time have been there, and still live.
void many_threads() {
    Memory memory(kPage);
    memory.use(0, kPage, true);
    std::vector<std::thread> all;
    std::atomic<bool> is_over{false};
    std::atomic<int> were_inside{0};
    for (int thread = 0; thread < 1200; thread++)
        all.emplace_back([&] {
            {
                OfDriver scope;
            }
            were_inside++;
            is_over.wait(false);
        });
    while (were_inside < 1200) std::this_thread::yield();
    expect(is_on(), "the guard has ended");
    write_to(memory, 1);
    is_over = true;
    is_over.notify_all();
    for (std::thread& one : all) one.join();
    expect_noted(memory, "write 1");
}

void forks() {
    Memory memory(kPage);
    memory.use(0, kPage, true);
    fflush(stdout);
    if (pid_t child = fork()) {
        int status = 1;
        waitpid(child, &status, 0);
        expect(status == 0, "the child cannot write");
    } else {
        write_to(memory, 0);
        Note note;
        _exit(take(note) || is_on());
    }
    expect_closed(memory, 0);
    expect_noted(memory, "");
}

sigjmp_buf escape;
void on_other(int) { siglongjmp(escape, 1); }

// A fault of the program's own goes to the program's handler.
void other_faults() {
    Memory memory(2 * kPage);
    memory.use(0, 64, false);
    mprotect(memory.at + kPage, kPage, PROT_NONE);
    hooks->segv->sa_handler = on_other;
    hooks->segv->sa_flags = 0;
    volatile bool came = false;
    if (sigsetjmp(escape, 1))
        came = true;
    else
        write_to(memory, kPage);
    expect(came, "the program's handler was not called");
    hooks->segv->sa_handler = SIG_DFL;
    expect_noted(memory, "");
    write_to(memory, 0);
    expect_noted(memory, "write 0");
}

// The program has a handler of its own, which it has set by other means.
void handlers_again() {
    Memory memory(kPage);
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    sigaction(SIGSEGV, &plain, nullptr);
    memory.use(0, 64, false);
    write_to(memory, 0);
    expect_noted(memory, "write 0");
}

void stacks() {
    char here[3 * kPage] = {};
    u64 begin = reinterpret_cast<u64>(here);
    Time time{0, ++clock_number};
    guard({begin, begin + sizeof here, true, time, begin, begin + sizeof here}, true);
    here[kPage] = 1;
    sink = here[kPage];
    Note note;
    expect(!take(note), "the stack is guarded");
    learn(time);
}

void threads() {
    Memory memory(16 * kPage);
    std::vector<std::thread> all;
    for (u64 thread = 0; thread < 4; thread++)
        all.emplace_back([&memory, thread] {
            for (u64 i = 0; i < 2000; i++) {
                write_to(memory, (i * 7 + thread) % 16 * kPage + 2048 + thread);
                read_from(memory, (i * 5 + thread) % 16 * kPage + 3000);
            }
        });
    for (u64 i = 0; i < 300; i++) learn(memory.use(i % 16 * kPage, i % 16 * kPage + 1024, i % 2));
    for (std::thread& one : all) one.join();
    expect_noted(memory, "");
    for (u64 page = 0; page < 16; page++) expect_open(memory, page * kPage);
}

void forgotten() {
    Memory memory(kPage);
    memory.use(0, 64, true);
    forget(memory.begin(), memory.begin() + kPage);
    expect_open(memory, 0);
    write_to(memory, 0);
    expect_noted(memory, "");
}

// -- pageable memory --------------------------------------------------------------------------------------------------

// What has changed, or is gone, of what is known to be done: the numbers.
std::string changes_until(Time time) {
    std::string text;
    examine_late_reads(until(time), [&](u64 number, bool gone) {
        text += (text.empty() ? "" : " ") + std::to_string(number) + (gone ? " gone" : "");
    });
    return text;
}

// What is found of a source of so many bytes if this one changes.
std::string change_of(u64 bytes, u64 at) {
    static u64 number = 1 << 20;
    Memory memory(bytes);
    memset(memory.at, 1, bytes);
    Time time{0, ++clock_number};
    read_late(++number, memory.begin() + 8, memory.begin() + bytes - 8, time);
    memory.at[at] = 2;
    return changes_until(time).empty() ? "" : "changed";
}

void large_sources() {
    constexpr u64 kMiB = 1 << 20, kLarge = 64 * kMiB;
    for (u64 at : {u64(8), 2 * kMiB + 5, 4 * kMiB - 9})
        expect(change_of(4 * kMiB, at) == "changed", "a change is not found at " + std::to_string(at));
    for (u64 at : {u64(8), kMiB - 1, kMiB + 100, kLarge - (64 << 10), kLarge - 9})
        expect(change_of(kLarge, at) == "changed", "a change of much is not found at " + std::to_string(at));
    for (u64 at : {u64(0), kMiB + 2 * kPage, kLarge / 2 + 300, kLarge - 1})
        expect(change_of(kLarge, at).empty(), "a change is found at " + std::to_string(at));
}

void a_part_is_gone() {
    Memory memory(u64(8) << 20);
    Time time{0, ++clock_number};
    read_late(1, memory.begin(), memory.begin() + memory.bytes, time);
    munmap(memory.at + memory.bytes - kPage, kPage);
    expect(changes_until(time) == "1 gone", "it is not gone");
}

void many_sources() {
    Memory memory(kPage);
    Time time{0, ++clock_number};
    for (u64 number = 1; number <= 5000; number++) read_late(number, memory.begin(), memory.begin() + 64, time);
    write_to(memory, 0);
    std::string found = changes_until(time);
    expect(found.substr(0, 8) == "905 906 ", "the oldest ones are " + found.substr(0, 8));
    expect(found.substr(found.rfind(' ')) == " 5000", "the newest one is missing");
    expect(changes_until(time).empty(), "they are compared twice");
}

// Where system calls are not seen, a page that has other bytes is not protected.
void crash() {
    Memory memory(kPage);
    memory.use(0, kPage, true);
    volatile u64 nowhere = 8;
    *reinterpret_cast<volatile int*>(nowhere) = 1;
}

void calls_unseen() {
    Memory memory(4 * kPage);
    memory.use(100, 3 * kPage + 100, true);
    expect_open(memory, 0);
    expect_closed(memory, kPage);
    expect_open(memory, 3 * kPage);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) xlogmem_host_set_action* xlogmem_host_watch_calls(
    const xlogmem_host_hooks* given) {
    hooks = given;
    return getenv("CALLS_UNSEEN") ? nullptr : sigaction;
}

namespace check {
bool planted(const char* name);
extern unsigned long planted_reached;
}  // namespace check

int main() {
#ifdef PLANTED
    planted("");  // not for the first time in a handler
#endif
    expect(start(current), "the guard does not start");
    if (getenv("CALLS_UNSEEN")) {
        scene = "calls_unseen";
        calls_unseen();
        return wrong != 0;
    }
    if (getenv("CRASHES")) crash();
#define PLAY(name) \
    scene = #name; \
    site = 1; \
    name()
    PLAY(upload);
    PLAY(download);
    PLAY(neighbours);
    PLAY(busy_neighbour);
    PLAY(two_on_a_page);
    PLAY(both_kinds);
    PLAY(what_is_not_known_stays);
    PLAY(queued_twice);
    PLAY(queued_on_two_streams);
    PLAY(places);
    PLAY(wide_loads);
    PLAY(large_ranges);
    PLAY(shared_pages);
    PLAY(shared_pages_unchanged);
    PLAY(shared_pages_of_the_device);
    PLAY(shared_pages_of_another_owner);
    PLAY(shared_pages_that_are_written_first);
    PLAY(system_calls);
    PLAY(copies);
    PLAY(copies_of_the_driver);
    PLAY(copies_on_shared_pages);
    PLAY(bounds_of_all_pages);
    PLAY(memory_ends);
    PLAY(driver);
    PLAY(driver_in_driver);
    PLAY(many_threads);
    PLAY(forks);
    PLAY(other_faults);
    PLAY(handlers_again);
    PLAY(stacks);
    PLAY(threads);
    PLAY(forgotten);
    PLAY(many_sources);
    PLAY(a_part_is_gone);
    PLAY(large_sources);
#ifdef PLANTED
    printf("reached %lu\n", planted_reached);
#endif
    return wrong != 0;
}
