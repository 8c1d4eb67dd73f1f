// Trials: does a kernel write through a pointer about which nothing is known? The stream sums the memory up before and
// after a launch: if the sums differ, the kernel writes. Nothing waits for the sums, and a kernel is tried at its first
// launch, the second, the fourth and so on. Equal sums say nothing: the kernel may have written the values that were
// there.
//
// Writes of other streams meanwhile would be taken for the kernel's, so a launch that has given a finding is not tried;
// the kernel's next launch is. A captured launch is not tried. A change through a word of a struct says something about
// that launch alone: in the next launch the word may be left over.
#pragma once

#include "kernels.hpp"

#include "engine/engine.hpp"

namespace check {

// Sums of one word's memory.
struct Trial {
    u32 word = 0;  // the engine's number
    u64 begin = 0, words = 0;
    u32 slot = 0;
    Time time;  // of the launch
    u64 address = 0;  // that the word held
    bool found = false;
};

// The objects of a context for trials. The flags are memory of the process, which outlives the context, and kernels
// write there.
struct Bench {
    CUfunction sum = nullptr, verdict = nullptr;
    CUdeviceptr sums = 0;
    volatile u32* flags = nullptr;  // nullptr: the driver has refused
};

// The trials of one launch.
struct Trials {
    CUstream stream = nullptr;
    Bench bench;
    std::vector<Trial> all;
};

// Driver calls, under no lock. sum_before() and sum_after() come before and after the launch, and return true if the
// driver has accepted.
Bench make_bench();
bool sum_before(const Trials& trials);
bool sum_after(const Trials& trials);

// Under the front end's lock.
class Laboratory {
  public:
    static constexpr u64 kBytes = 1 << 20;  // of a block, from the pointer on
    static constexpr u32 kSlots = 512;
    static constexpr std::size_t kMostOfLaunch = 16;  // each is three kernels more
    bool is_open = true;

    Laboratory() { forget(); }

    const Bench* bench(u32 context) const {
        auto found = benches_.find(context);
        return found == benches_.end() ? nullptr : &found->second;
    }
    void keep(u32 context, Bench bench) { benches_.emplace(context, bench); }

    // Takes a slot for the trial, if there is a free one.
    void add(Trials& trials, Trial trial);
    bool is_busy() const { return !running_.empty(); }
    bool has_news() const {
        return std::any_of(running_.begin(), running_.end(), [](const Running& running) { return *running.flag; });
    }
    // Passes results that are known by now to the engine.
    void collect(Engine& engine);
    void drop(const Trials& trials);
    // The driver has accepted a part of the work after the launch: the slots are not used again.
    void abandon(const Trials& trials);
    // A context ends, with the objects that were made in it.
    void forget();

  private:
    struct Running {
        volatile u32* flag;
        Trial trial;
    };
    std::vector<u32> free_;
    std::vector<Running> running_;
    std::unordered_map<u32, Bench> benches_;  // by context
};

}  // namespace check
