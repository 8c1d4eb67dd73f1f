// The ring of a history: what runtimes did lately, written by any thread without a lock.
//
// A slot is eight words. Its first is 0 while it is written, and then has the number of the event: a reader that finds
// another number than before has read parts of two. The ring begins and ends while no runtime records.
#pragma once

#include "_mutex.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

// As it lies in a file: xlogmem/history/files.py reads it, docs/history.md says what the fields are.
struct xlogmem_event {
    std::uint32_t number;  // from 1, modulo 2^32
    std::uint32_t thread;
    std::uint64_t ticks;
    std::uint8_t kind, access;
    std::uint16_t runtime;
    std::uint32_t tag;
    std::uint32_t stream, other;
    std::uint64_t generation, address, bytes;
    std::uint32_t position, stack;
};

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
    enum : std::size_t { WORDS = sizeof(xlogmem_event) / sizeof(std::uint64_t) };
    static_assert(sizeof(xlogmem_event) == 64, "a line of the cache");
    using Word = std::atomic<std::uint64_t>;

    Word* slots_ = nullptr;
    std::uint64_t mask_ = 0;
    alignas(64) Word count_{0};
    alignas(64) std::unordered_map<void*, std::uint32_t> tags_;

  public:
    xlogmem_mutex tags_lock;  // a leaf; of what belongs to tags
    int timed = 0;            // whether waits are
    std::atomic<int> stacks{0};  // which are wanted: xlogmem/_history.pxd; calls look at it without a lock

    // Every page is touched here, and not by the events. False: there is no memory.
    bool begin(std::size_t events, int wanted, int with_times) {
        std::size_t room = 1;
        while (room < events) room *= 2;
        slots_ = new (std::nothrow) Word[room * WORDS]();
        if (!slots_) return false;
        mask_ = room - 1;
        count_.store(0);
        stacks = wanted;
        timed = with_times;
        return true;
    }
    void end() {
        timed = 0;
        delete[] slots_;
        slots_ = nullptr;
        std::lock_guard<xlogmem_mutex> guard(tags_lock);
        tags_.clear();
    }
    std::uint64_t count() const { return count_.load(); }
    std::uint64_t room() const { return mask_ + 1; }

    // Returns the event's number, from 0.
    std::uint64_t note(xlogmem_event& event) noexcept {
        if (!slots_) return 0;
        event.ticks = xlogmem_ticks();
        const std::uint64_t number = count_.fetch_add(1, std::memory_order_relaxed);
        event.number = std::uint32_t(number + 1);
        std::uint64_t words[WORDS];
        std::memcpy(words, &event, sizeof(words));
        Word* slot = slots_ + (number & mask_) * WORDS;
        slot[0].store(0, std::memory_order_relaxed);
        for (std::size_t i = 1; i < WORDS; i++) slot[i].store(words[i], std::memory_order_release);
        slot[0].store(words[0], std::memory_order_release);
        return number;
    }

    // The event with this number, from 0. False: it is being written, or was overwritten.
    bool read(std::uint64_t number, xlogmem_event* event) const {
        const Word* slot = slots_ + (number & mask_) * WORDS;
        std::uint64_t words[WORDS];
        for (std::size_t i = 0; i < WORDS; i++) words[i] = slot[i].load(std::memory_order_acquire);
        std::memcpy(event, words, sizeof(words));
        return event->number == std::uint32_t(number + 1) && slot[0].load() == words[0];
    }

    // A number from 1 for what a tag is called by; `is_new`: this was the first time.
    std::uint32_t number_of(void* tag, int* is_new) noexcept {
        std::lock_guard<xlogmem_mutex> guard(tags_lock);
        const auto [known, added] = tags_.emplace(tag, std::uint32_t(tags_.size() + 1));
        *is_new = added;
        return known->second;
    }
    std::size_t tag_count() {
        std::lock_guard<xlogmem_mutex> guard(tags_lock);
        return tags_.size();
    }
    // By their numbers, the first at 0.
    void copy_tags(void** tags, std::size_t room) {
        std::lock_guard<xlogmem_mutex> guard(tags_lock);
        for (const auto& [tag, number] : tags_)
            if (number <= room) tags[number - 1] = tag;
    }
};

// The parts that are the same in every event.
static inline xlogmem_event xlogmem_new_event(std::uint8_t kind, std::uint16_t runtime, std::uint64_t thread) {
    xlogmem_event event{};
    event.kind = kind;
    event.runtime = runtime;
    event.thread = std::uint32_t(thread);
    event.stream = event.other = 0xFFFFFFFFu;
    return event;
}
