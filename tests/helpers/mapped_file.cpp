// Mappings of files that are truncated, and a history's ring in one: tests/core/test_mapped_file.py compiles this with the
// headers as they are and with defects.
//
// A scene ends with 0 if all is well, 1 if something is wrong, 2 if it hangs; or by a signal.

#include <fcntl.h>
#include <setjmp.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define class struct  // the lock of the list is private
#include "mapped_file.hpp"
#undef class
#include "ring.hpp"

using namespace std::chrono_literals;

static const std::size_t kPage = std::size_t(sysconf(_SC_PAGESIZE)), kSize = 16 * kPage;
static std::atomic<int> called{0};
static std::atomic<pid_t> child{0};
static sigjmp_buf back;

static void finish(int code, const char* why) {
    if (child) kill(child, SIGKILL);
    std::puts(why);
    std::fflush(stdout);
    std::_Exit(code);
}
static void require(bool right, const char* what) {
    if (!right) finish(1, what);
}

struct File {
    int file;
    volatile char* bytes;
    xlogmem_mapped_file mapped;

    explicit File(bool is_watched = true) {
        char name[] = "./mapped-XXXXXX";
        file = mkstemp(name);
        unlink(name);
        grow();
        bytes = static_cast<char*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
        if (is_watched) mapped.begin(const_cast<char*>(bytes), kSize, file);
    }
    void grow() { require(!ftruncate(file, off_t(kSize)), "ftruncate"); }
    void cut(std::size_t size) { require(!ftruncate(file, off_t(size)), "ftruncate"); }
    void fill(char with) {
        for (std::size_t at = 0; at < kSize; at++) bytes[at] = with;
    }
    void require_filled(char with) {
        for (std::size_t at = 0; at < kSize; at++) require(bytes[at] == with, "a byte is lost");
    }
};

static void count(int) {
    ++called;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    require(sigismember(&now, SIGBUS) && !sigismember(&now, SIGINT), "other signals are blocked in the handler");
}
static void count_and_leave(int, siginfo_t* info, void*) {
    ++called;
    require(info->si_code == BUS_ADRERR && info->si_addr, "the handler is not told where");
    siglongjmp(back, 1);
}
static void on_bus(void (*handler)(int), int flags = 0) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(SIGBUS, &action, nullptr);
}
static void on_bus(void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

static File* grown = nullptr;

// As faulthandler does it.
static struct sigaction behind;
static void restore_and_raise(int number) {
    ++called;
    sigaction(number, &behind, nullptr);
    raise(number);
}
static void goes_in_front() {
    sigaction(SIGBUS, nullptr, &behind);
    on_bus(restore_and_raise, SA_NODEFER);
}

// ---------------------------------------------------------------- what is ours
static void cuts() {
    File one;
    one.fill('a');
    require(one.mapped.kept() == kSize && !one.mapped.is_cut(), "a whole file is cut");
    one.cut(5 * kPage + 1);
    require(one.mapped.is_cut(), "a cut is noticed at a store alone");
    one.cut(kSize - 1);
    require(one.mapped.is_cut(), "a cut in the last page is none");
    one.cut(5 * kPage + 1);
    for (std::size_t at = 0; at < 6 * kPage; at++)
        require(one.bytes[at] == (at <= 5 * kPage ? 'a' : 0), "a page of the file is lost");
    one.bytes[8 * kPage] = 'b';
    require(one.mapped.kept() == 6 * kPage, "pages that the file has are given up");
    one.grow();
    require(one.mapped.is_cut(), "a file that has grown again is whole");
    require(one.bytes[8 * kPage] == 'b', "a byte is lost");
    one.cut(0);
    one.fill('c');
    one.require_filled('c');
    require(one.mapped.kept() == 0, "the file has nothing");
    one.mapped.end();
    require(!one.mapped.is_cut() && one.mapped.kept() == 0, "an ended mapping is cut");
}

// As the system does it, which is hard to bring about.
static void fault_at(const volatile char* address) {
    siginfo_t info = {};
    info.si_code = BUS_ADRERR;
    info.si_addr = const_cast<char*>(address);
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, &info);
}

static void no_room() {
    File one;
    one.fill('a');
    fault_at(one.bytes + 9 * kPage + 5);
    require(one.mapped.kept() == 9 * kPage, "a page that the disk has no room for is still the file's");
    fault_at(one.bytes + 10 * kPage);  // another thread was faster
    require(one.mapped.kept() == 9 * kPage && one.bytes[9 * kPage - 1] == 'a' && !one.bytes[9 * kPage],
            "a page is lost");
    one.cut(0);
    one.fill('b');  // the handler is still there
}

static void several() {
    File first, second, third;
    second.mapped.end();
    second.mapped.begin(const_cast<char*>(second.bytes), kSize, second.file);
    second.mapped.end();
    first.cut(0);
    third.cut(0);
    first.fill('a');
    third.fill('c');
    first.require_filled('a');
    third.require_filled('c');
    third.mapped.end();
    first.mapped.end();
    File fourth;
    fourth.cut(0);
    fourth.fill('d');
    fourth.require_filled('d');
}

static void gives_up() {
    File one;
    one.fill('a');
    one.mapped.give_up();
    require(one.bytes[0] == 0 && one.mapped.kept() == 0 && one.mapped.is_cut(), "the file's bytes are still there");
    one.fill('b');
    char byte = 0;
    require(pread(one.file, &byte, 1, 0) == 1 && byte == 'a', "the file is still written");
}

static void other_descriptor() {
    File one, other;
    require(dup2(other.file, one.file) >= 0, "dup2");
    other.cut(0);
    require(!one.mapped.is_cut(), "the size of another file counts");
}

static void threads(bool raised) {
    File one;
    if (raised) goes_in_front();
    std::atomic<bool> stop{false};
    std::vector<std::thread> all;
    for (int self = 0; self < 4; self++)
        all.emplace_back([&, self] {
            while (!stop)
                for (std::size_t at = 0; at < kSize; at += kPage) one.bytes[at + 64 * std::size_t(self)] = 'x';
        });
    for (std::size_t pages = 16; pages--;) {
        std::this_thread::sleep_for(2ms);
        one.cut(pages * kPage);
    }
    std::this_thread::sleep_for(2ms);
    stop = true;
    for (auto& thread : all) thread.join();
    one.fill('y');
    one.require_filled('y');
}

static void forks() {
    File one;
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) {
            {
                const xlogmem_mapped_file::Lock lock;  // which half of the children find taken
                std::this_thread::sleep_for(1ms);
            }
            std::this_thread::sleep_for(1ms);  // the lock is not fair
        }
    });
    for (int round = 0; round < 20; round++) {
        child = fork();
        if (!child) {
            one.cut(0);
            one.fill('c');
            one.require_filled('c');
            File three;
            three.cut(0);
            three.fill('d');
            three.require_filled('d');
            std::_Exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        child = 0;
        require(status == 0, "a child ended");
        one.fill('p');
        one.require_filled('p');
    }
    stop = true;
    other.join();
}

// ---------------------------------------------------------------- handlers behind and in front
static void touch_another() {
    File another(false);
    another.cut(0);
    another.bytes[0] = 1;
}

static void passes(bool is_first) {
    on_bus(count_and_leave);
    File one;
    one.cut(0);
    if (is_first) one.fill('a');
    if (!sigsetjmp(back, 1)) touch_another();
    require(called == 1, "the handler was not called");
    if (!sigsetjmp(back, 1)) touch_another();
    require(called == 2, "the handler was not called again");
    one.fill('b');
    require(called == 2, "the handler was called for what is not its own");
}

static void passes_signals() {
    on_bus(count);
    File one;
    kill(getpid(), SIGBUS);
    raise(SIGBUS);
    require(called == 2, "the handler was not called");
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    require(!sigismember(&now, SIGBUS) && !sigismember(&now, SIGINT), "signals stay blocked");
}

static void once() {
    on_bus(count, int(SA_RESETHAND));
    File one;
    raise(SIGBUS);
    require(called == 1, "the handler was not called");
    kill(getpid(), SIGBUS);  // ends the process
}

static void ignored() {
    signal(SIGBUS, SIG_IGN);
    File one;
    raise(SIGBUS);
    kill(getpid(), SIGBUS);
    one.cut(0);
    one.fill('a');
}

static void fault_is_not_ignored() {
    signal(SIGBUS, SIG_IGN);
    File one;
    touch_another();
}

static void default_of_a_fault() {
    File one;
    one.cut(0);
    one.fill('a');
    touch_another();
}

static void default_of_a_signal() {
    File one;
    kill(getpid(), SIGBUS);
}

static void raised() {
    File one;
    one.fill('a');
    goes_in_front();
    one.cut(3 * kPage);
    one.bytes[9 * kPage] = 'b';
    require(called == 1 && one.mapped.kept() == 3 * kPage, "the sizes of the files do not count");
    require(one.bytes[0] == 'a' && one.bytes[9 * kPage] == 'b', "a byte is lost");
}

static void raised_twice() {
    on_bus(count);
    File one;
    goes_in_front();
    one.cut(0);
    one.bytes[0] = 'a';
    raise(SIGBUS);  // as by another thread that had the same fault
    require(called == 1, "the handler is called for what is not its own");
}

// The file has grown again before the other handler is done.
static void raised_late() {
    File one;
    sigaction(SIGBUS, nullptr, &behind);
    on_bus(
        [](int number) {
            sigaction(number, &behind, nullptr);
            grown->grow();
            raise(number);
        },
        SA_NODEFER);
    grown = &one;
    one.cut(0);
    one.bytes[0] = 'a';
    require(one.bytes[0] == 'a', "a byte is lost");
}

static void raised_later() {
    raised_twice();
    raise(SIGBUS);
    require(called == 2, "the handler was not called");
}

static void raised_for_another() {
    File one;
    goes_in_front();
    touch_another();  // ends the process
}

static void taken_away() {
    File one;
    on_bus(SIG_DFL);
    File two;
    two.cut(0);
    two.fill('a');
    on_bus(SIG_IGN);
    File three;
    three.cut(0);
    three.fill('a');
    on_bus(count_and_leave);  // does not pass on: that is the program's own, and is left alone
    File four;
    three.mapped.end();
    if (!sigsetjmp(back, 1)) touch_another();
    struct sigaction now;
    sigaction(SIGBUS, nullptr, &now);
    require(called == 1 && now.sa_sigaction == count_and_leave, "the program's handler was replaced");
}

static void keeps_errno() {
    File one;
    one.cut(0);
    errno = 77;
    one.bytes[0] = 'a';
    require(errno == 77, "errno has changed");
}

// ---------------------------------------------------------------- the ring of a history
struct RingFile {
    enum : std::size_t { ROOM = 8192, SIZE = 4096 + ROOM * 64 };
    int file;
    xlogmem_ring ring;

    RingFile() {
        char name[] = "./ring-XXXXXX";
        file = mkstemp(name);
        unlink(name);
        fcntl(file, F_SETFL, O_APPEND);
        require(write(file, "XLOGHIST", 8) == 8 && !ftruncate(file, SIZE), "the file");
        require(!ring.begin(ROOM, 0, 0, file), "the ring");
        note(100);
    }
    ~RingFile() { ring.end(); }
    void note(int events) {
        while (events--) ring.note(xlogmem_new_event(1, 0, 0));
    }
    bool has(std::uint64_t number) {
        xlogmem_event event;
        return ring.read(number, &event) && event.number == number + 1;
    }
    void begin_with(const char* text, std::size_t size) {
        fcntl(file, F_SETFL, 0);
        require(pwrite(file, text, size, 0) == ssize_t(size), "pwrite");
        fcntl(file, F_SETFL, O_APPEND);
    }
};

static void ring_is_cut() {
    RingFile one;
    require(one.has(0) && one.has(99) && !one.ring.is_spoiled(), "a whole ring");
    require(!ftruncate(one.file, 4096 + 64 * 64), "ftruncate");
    one.note(10);
    require(one.has(63) && !one.has(64) && !one.has(99) && one.has(100) && one.has(109), "events of a cut ring");
    require(one.ring.is_spoiled() && one.ring.count() == 110, "a cut ring");
}

static void ring_has_other_content() {
    RingFile one;
    one.begin_with("another's", 9);
    require(!one.has(50), "an event of another's file");
    require(one.ring.is_spoiled(), "another's file is the ring's");
    one.note(10);
    require(one.has(100) && one.has(109) && !one.has(99), "events after a look of a reader");
    char byte = 'x';
    require(pread(one.file, &byte, 1, 4096 + 64 * 105) == 1 && byte == 0, "another's file is written");
}

static void ring_looks_at_times() {
    RingFile one;
    one.begin_with("another's", 9);
    one.note(5000);
    require(one.has(4096) && one.has(5099) && !one.has(4095), "a ring looks at its file every 4,096 events");
}

static void ring_of_another_recording() {
    RingFile one, other;
    char header[64];
    require(pread(other.file, header, 64, 0) == 64, "pread");
    one.begin_with(header, 64);
    require(one.ring.is_spoiled(), "another recording's file is the ring's");
}

static void ring_appends() {
    RingFile one;
    one.ring.append("a\n", 2);
    require(lseek(one.file, 0, SEEK_END) == RingFile::SIZE + 2, "nothing is appended");
    one.begin_with("another's", 9);
    one.ring.append("b\n", 2);
    require(lseek(one.file, 0, SEEK_END) == RingFile::SIZE + 2, "a line is appended to another's file");
}

static void ring_in_memory() {
    RingFile one;
    one.ring.end();
    require(!one.ring.begin(100, 0, 0, -1) && !one.ring.is_spoiled(), "a ring in memory is spoiled");
    one.note(10);
    require(one.has(0) && one.ring.count() == 10, "events of a ring in memory");
}

int main(int, char** argv) {
    std::thread([] {
        // In short turns: a machine that stands still, or is busy, gives a scene more time.
        for (int turns = 0; turns < 5000; turns++) std::this_thread::sleep_for(1ms);
        finish(2, "it hangs");
    }).detach();
    const struct {
        const char* name;
        void (*scene)();
    } scenes[] = {{"cuts", cuts},
                  {"no room", no_room},
                  {"several", several},
                  {"gives up", gives_up},
                  {"other descriptor", other_descriptor},
                  {"threads", [] { threads(false); }},
                  {"threads, raised", [] { threads(true); }},
                  {"forks", forks},
                  {"passes", [] { passes(true); }},
                  {"passes at once", [] { passes(false); }},
                  {"passes signals", passes_signals},
                  {"once", once},
                  {"ignored", ignored},
                  {"fault is not ignored", fault_is_not_ignored},
                  {"default of a fault", default_of_a_fault},
                  {"default of a signal", default_of_a_signal},
                  {"raised", raised},
                  {"raised twice", raised_twice},
                  {"raised later", raised_later},
                  {"raised late", raised_late},
                  {"raised for another", raised_for_another},
                  {"taken away", taken_away},
                  {"ring is cut", ring_is_cut},
                  {"ring has other content", ring_has_other_content},
                  {"ring looks at times", ring_looks_at_times},
                  {"ring of another recording", ring_of_another_recording},
                  {"ring appends", ring_appends},
                  {"ring in memory", ring_in_memory},
                  {"keeps errno", keeps_errno}};
    for (const auto& one : scenes)
        if (!std::strcmp(argv[1], one.name)) {
            one.scene();
            finish(0, "went on");
        }
    finish(3, "there is no such scene");
}
