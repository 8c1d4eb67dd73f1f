// A shared mapping of a file that outlives the file's bytes.
//
// A truncation of a mapped file (`> file`, `cp other file`, logrotate) takes the pages behind its new end away, and the
// next store there is a SIGBUS.  The handler below puts private memory of zeros in the place of these pages, and the
// program goes on; the owner of the mapping finds out by `kept`, and says so.  Every other SIGBUS goes to the handler
// that was there before.  A program that installs a handler later passes on what is not its own.
//
// The handler is installed with the first mapping, and stays.  Each library that includes this has its own, in a chain.
// Python's faulthandler, if it was enabled later, prints the stacks, restores this handler and raises the signal again:
// then there is no address, and the sizes of the files say which it is.  That looks like a SIGBUS that the process
// raises itself; so this has no effect while there is a mapping, unless the process had a handler before.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

class xlogmem_mapped_file {
    struct All {
        std::atomic<int> holder{0};  // of the list: a process, because a forked child has no other thread
        xlogmem_mapped_file* first = nullptr;
        bool raised = false;  // another handler in front raises the signal again
        struct sigaction before = {};
    };
    static All& all() {
        static All all;
        return all;
    }
    // With every signal blocked: a handler may interrupt no thread that holds the list.
    struct Lock {
        sigset_t signals;
        Lock() {
            sigset_t every;
            sigfillset(&every);
            pthread_sigmask(SIG_SETMASK, &every, &signals);
            const int self = getpid();
            for (int free = 0; !all().holder.compare_exchange_weak(free, self, std::memory_order_acquire);) {
                if (free == self) {
                    sched_yield();
                    free = 0;
                }  // else it is free, or the holder was a thread of the parent's
            }
        }
        ~Lock() {
            all().holder.store(0, std::memory_order_release);
            pthread_sigmask(SIG_SETMASK, &signals, nullptr);
        }
    };

    xlogmem_mapped_file* next_ = nullptr;
    char* begin_ = nullptr;
    std::size_t size_ = 0;
    std::atomic<std::size_t> kept_{0};
    int file_ = -1;
    dev_t device_ = 0;
    ino_t inode_ = 0;

    static std::size_t page() { return std::size_t(sysconf(_SC_PAGESIZE)); }

    // How many bytes of the mapping the file has; all of them where the descriptor is not the file's any more.
    std::size_t bytes() const {
        struct stat found;
        if (fstat(file_, &found) || found.st_dev != device_ || found.st_ino != inode_) return size_;
        const std::size_t size = std::size_t(found.st_size);
        return size < size_ ? size : size_;
    }
    // ... with the rest of the last page, which is there.
    std::size_t whole() const { return (bytes() + page() - 1) / page() * page(); }
    bool replace_from(std::size_t begin) {
        const std::size_t kept = kept_.load(std::memory_order_relaxed);
        if (begin >= kept) return false;
        if (mmap(begin_ + begin, kept - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == MAP_FAILED)
            return false;
        kept_.store(begin, std::memory_order_release);
        return true;
    }
    // True if the fault is this mapping's: then the page is there now.
    bool repair(const void* address) {
        const std::size_t at = std::uintptr_t(address) - std::uintptr_t(begin_);
        if (at >= size_) return false;
        if (at >= kept_.load(std::memory_order_relaxed)) return true;  // another thread was faster
        const std::size_t here = at / page() * page(), end = whole();  // within the file: the disk has no room for it
        return replace_from(here < end ? here : end);
    }
    static bool is_handler(const struct sigaction& action) {
        return (action.sa_flags & SA_SIGINFO) || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    }
    static bool repair_for(const siginfo_t* info) {
        if (info->si_code != BUS_ADRERR && (info->si_code != SI_TKILL || info->si_pid != getpid())) return false;
        const Lock lock;
        bool repaired = false;
        for (xlogmem_mapped_file* one = all().first; one; one = one->next_)
            repaired |= info->si_code == BUS_ADRERR ? one->repair(info->si_addr) : one->replace_from(one->whole());
        // Two threads may be raised for at once, and the file may have grown again meanwhile.  A fault that is not
        // repaired comes again, and then from the system.
        if (info->si_code == SI_TKILL) repaired = all().raised |= repaired;
        return repaired || (info->si_code == SI_TKILL && all().first && !is_handler(all().before));
    }

    static void pass_on(int number, siginfo_t* info, void* context) {
        struct sigaction& before = all().before;
        if (!is_handler(before)) {
            if (before.sa_handler == SIG_IGN && info->si_code <= 0) return;
            struct sigaction end = {};  // SIG_DFL: a fault is not ignored
            sigaction(number, &end, nullptr);
            if (info->si_code <= 0) raise(number);  // else the fault comes again
            return;
        }
        sigset_t mask = before.sa_mask;
        for (int signal = 1; signal < NSIG; signal++)
            if (sigismember(&static_cast<ucontext_t*>(context)->uc_sigmask, signal) == 1) sigaddset(&mask, signal);
        if (!(before.sa_flags & SA_NODEFER)) sigaddset(&mask, number);
        const auto handler = before.sa_handler;
        const auto handler_of_info = before.sa_sigaction;
        const bool with_info = before.sa_flags & SA_SIGINFO;
        if (before.sa_flags & SA_RESETHAND) before = {};
        pthread_sigmask(SIG_SETMASK, &mask, nullptr);
        with_info ? handler_of_info(number, info, context) : handler(number);
    }
    static void on_signal(int number, siginfo_t* info, void* context) {
        const int error = errno;
        const bool repaired = repair_for(info);
        errno = error;
        if (!repaired) pass_on(number, info, context);
    }
    // Where there is no handler any more, this one was in front of one that went.
    static void install() {
        struct sigaction now;
        sigaction(SIGBUS, nullptr, &now);
        static bool installed = false;
        if (installed && is_handler(now)) return;
        installed = true;
        all().before = now;
        struct sigaction ours = {};
        ours.sa_sigaction = on_signal;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (now.sa_flags & SA_RESTART);
        sigfillset(&ours.sa_mask);
        sigaction(SIGBUS, &ours, nullptr);
    }

  public:
    xlogmem_mapped_file() = default;
    xlogmem_mapped_file(const xlogmem_mapped_file&) = delete;
    xlogmem_mapped_file& operator=(const xlogmem_mapped_file&) = delete;
    ~xlogmem_mapped_file() { end(); }

    // The file is mapped there from its beginning, in whole pages.  The descriptor stays the caller's, and open.
    void begin(void* mapping, std::size_t size, int file) {
        struct stat found = {};
        fstat(file, &found);
        begin_ = static_cast<char*>(mapping);
        size_ = size;
        kept_ = size;
        file_ = file;
        device_ = found.st_dev;
        inode_ = found.st_ino;
        const Lock lock;
        next_ = all().first;
        all().first = this;
        install();
    }
    // Before it is unmapped.
    void end() {
        if (!size_) return;
        const Lock lock;
        xlogmem_mapped_file** place = &all().first;
        while (*place != this) place = &(*place)->next_;
        *place = next_;
        if (!all().first) all().raised = false;
        size_ = 0;
        kept_ = 0;
    }
    // The file has another's bytes: what is written from here on stays in memory.
    void give_up() {
        const Lock lock;
        replace_from(0);
    }
    // How many bytes of the mapping are still the file's.
    std::size_t kept() const { return kept_.load(std::memory_order_acquire); }
    // The file's bytes are not all there, or were not at some time.
    bool is_cut() const { return size_ && (kept() < size_ || bytes() < size_); }
};
