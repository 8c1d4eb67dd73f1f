// The ring of a history: recent events of runtimes, written by any thread without a lock.
//
// A slot is eight words. Its first is 0 while it is written, and then has the number of the event: a reader that finds
// another number than before has read parts of two. The ring begins and ends while no runtime records.
//
// It lies in a mapping, which may be that of a file. The system has what was written there when the process is killed:
// files.py reads it. A forked child has pages of its own instead. The file may be truncated or overwritten at any time, so
// the ring itself goes by what it has elsewhere.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "mapped_file.hpp"

// As it lies in a file: xlogmem/observe/history/files.py reads it, docs/history.md says what the fields are.
struct xlogmem_event {
    std::uint32_t number;  // from 1, modulo 2^32
    std::uint32_t thread;
    std::uint64_t ticks;
    std::uint8_t kind, access;  // and in the upper six bits of the access, those of the runtime
    std::uint16_t runtime;
    std::uint32_t tag;
    std::uint32_t stream, other;
    std::uint64_t generation, address, bytes;
    std::uint32_t position, stack;
};

// An event before it is written. Each field is as wide as a register: an event that was put together in memory from
// narrow ones, and read as words, had the processor wait for its own stores, which took as long as all else.
struct xlogmem_draft {
    std::uint64_t kind = 0, access = 0, thread = 0, tag = 0;
    std::uint64_t runtime = 0;  // as xlogmem_mark_of has it
    std::uint64_t stream = 0xFFFFFFFFu, other = 0xFFFFFFFFu;
    std::uint64_t generation = 0, address = 0, bytes = 0, position = 0, stack = 0;
};

// The number of a runtime where it has its place in the third word: 16 bits there, and above them six in the access.
static inline std::uint32_t xlogmem_mark_of(std::uint32_t runtime) {
    return (runtime & 0xFFFF) << 16 | (runtime >> 16 & 0x3F) << 10;
}
static inline std::uint32_t xlogmem_marked(std::uint32_t mark) { return mark >> 16 | (mark >> 10 & 0x3F) << 16; }

// A clock that is read in a few nanoseconds. Its unit is that of the processor, and found by comparing with another one.
static inline std::uint64_t xlogmem_ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    std::timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::uint64_t(now.tv_sec) * 1000000000 + std::uint64_t(now.tv_nsec);
#endif
}

class xlogmem_ring {
    enum : std::size_t { WORDS = sizeof(xlogmem_event) / sizeof(std::uint64_t), PAGE = 4096 };
    enum : std::size_t { HEADER = 4096, AT_MARK = 32, AT_COUNT = 64 };  // as in files.py
    enum : std::uint64_t { COUNTED = 1 << 12 };  // events between two looks at the file
    static_assert(sizeof(xlogmem_event) == 64, "a line of the cache");
    using Word = std::atomic<std::uint64_t>;
    static_assert(sizeof(Word) == 8, "a word is in the file what it is in memory");

    Word* slots_ = nullptr;
    std::uint64_t mask_ = 0;
    alignas(64) Word count_{0};  // of events, in a line of its own
    alignas(64) char* mapping_ = nullptr;
    std::size_t size_ = 0;
    std::atomic<int> file_{-1};  // the caller's; -1: the ring is in memory alone
    xlogmem_mapped_file mapped_;
    char beginning_[AT_COUNT] = {};  // of the file, with a mark that no other has

    Word* word(std::size_t at) const { return reinterpret_cast<Word*>(mapping_ + at); }

    // The slot is in a file that still begins as it did, or in memory. A look may end the file's part: it comes first.
    bool is_ours(const Word* slot) const {
        return begins_as_it_did() || std::size_t(reinterpret_cast<const char*>(slot) - mapping_) >= mapped_.kept();
    }
    void look_for_others() noexcept {
        if (mapped_.kept() && !begins_as_it_did()) mapped_.give_up();
    }
    bool begins_as_it_did() const { return !std::memcmp(mapping_, beginning_, AT_COUNT); }

    // Seldom. The file has the upper bits of the count, and another's file none of our events.
    __attribute__((cold, noinline)) void look_at_file(std::uint64_t number) noexcept {
        look_for_others();
        word(AT_COUNT)->store(number, std::memory_order_relaxed);
    }

  public:
    std::atomic<int> stacks{0};  // which are wanted: xlogmem/observe/_history.pxd; calls look at it without a lock
    int timed = 0;  // whether waits are

    // Every page is touched here, and not by the events. `file`: begins with a header, is zero for so many events
    // behind it, and open until the end; -1: none. Returns an error of the system, or 0.
    int begin(std::size_t events, int wanted, int with_times, int file) {
        std::size_t room = 1;
        while (room < events) room *= 2;
        size_ = HEADER + room * sizeof(xlogmem_event);
        void* mapping =
            mmap(nullptr, size_, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
        if (mapping == MAP_FAILED) return errno;
        mapping_ = static_cast<char*>(mapping);
        if (file >= 0) {
            mapped_.begin(mapping, size_, file);
            word(AT_MARK)->store(xlogmem_ticks());
            std::memcpy(beginning_, mapping_, AT_COUNT);
        }
        for (std::size_t at = HEADER; at < size_; at += PAGE) const_cast<volatile char&>(mapping_[at]) = 0;
        count_ = 0;
        slots_ = word(HEADER);
        mask_ = room - 1;
        file_ = file;
        stacks = wanted;
        timed = with_times;
        return 0;
    }
    void end() {
        timed = 0;
        file_ = -1;
        slots_ = nullptr;
        count_ = 0;
        mapped_.end();
        munmap(mapping_, size_);
    }
    std::uint64_t count() const { return count_.load(); }
    std::uint64_t room() const { return mask_ + 1; }

    // Returns the event's number, from 0.
    std::uint64_t note(const xlogmem_draft& event) noexcept { return note_at(event, xlogmem_ticks()); }
    std::uint64_t note_at(const xlogmem_draft& event, std::uint64_t ticks) noexcept {
        if (!slots_) return 0;
        const std::uint64_t number = count_.fetch_add(1, std::memory_order_relaxed);
        if (!(number % COUNTED)) look_at_file(number);
        Word* slot = slots_ + (number & mask_) * WORDS;
        slot[0].store(0, std::memory_order_relaxed);
        slot[1].store(ticks, std::memory_order_release);
        slot[2].store(event.kind | event.access << 8 | event.runtime | event.tag << 32, std::memory_order_release);
        slot[3].store(event.stream | event.other << 32, std::memory_order_release);
        slot[4].store(event.generation, std::memory_order_release);
        slot[5].store(event.address, std::memory_order_release);
        slot[6].store(event.bytes, std::memory_order_release);
        slot[7].store(std::uint32_t(event.position) | event.stack << 32, std::memory_order_release);
        slot[0].store(std::uint32_t(number + 1) | event.thread << 32, std::memory_order_release);
        return number;
    }

    // The event with this number, from 0. False: it is being written, or was overwritten.
    bool read(std::uint64_t number, xlogmem_event* event) const {
        const Word* slot = slots_ + (number & mask_) * WORDS;
        if (!is_ours(slot)) return false;
        std::uint64_t words[WORDS];
        for (std::size_t i = 0; i < WORDS; i++) words[i] = slot[i].load(std::memory_order_acquire);
        std::memcpy(event, words, sizeof(words));
        return event->number == std::uint32_t(number + 1) && slot[0].load() == words[0];
    }

    // Behind the events of the file, if there is one. A record is a line; what a full disk cuts off spoils no other. One
    // in a file that was truncated would lie where events are, or among another's bytes.
    void append(const char* record, std::size_t size) noexcept {
        const int file = file_, error = errno;
        while (file >= 0 && !is_spoiled() && ::write(file, record, size) < 0 && errno == EINTR) {
        }
        errno = error;
    }
    // The file has not all that was written to it, or is not the ring's any more.
    bool is_spoiled() noexcept {
        look_for_others();
        return mapped_.is_cut();
    }
    bool has_file() const { return file_.load(std::memory_order_relaxed) >= 0; }

    // The child's events are its own: its pages are copies from now on.
    void in_child() noexcept {
        if (file_ < 0) return;
        const int error = errno;
        const std::size_t kept = mapped_.kept();
        if (kept && mmap(mapping_, kept, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file_, 0) == MAP_FAILED)
            mmap(mapping_, kept, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
        file_ = -1;
        errno = error;
    }
};

// The parts that are the same in every event.
static inline xlogmem_draft xlogmem_new_event(std::uint64_t kind, std::uint32_t runtime, std::uint64_t thread) {
    xlogmem_draft event;
    event.kind = kind;
    event.runtime = runtime;
    event.thread = thread;
    return event;
}
