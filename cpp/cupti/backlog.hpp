// Work that the engine is fed later, many operations at a time.
//
// Between two launches a program runs code of its own, which takes the processor's caches. A launch that is fed at once
// brings the engine back into them, and takes three to five times as long as one that is fed after another. So launches,
// and the pieces of caching pools between them, are noted with what they were given. They are fed, in their order, when
// there are many, and before anything else is done with the engine (Front::engine()): nothing can tell the difference.
#pragma once

#include "kernels.hpp"

#include "kernels/arguments.hpp"
#include "engine/launched.hpp"
#include "engine/reports.hpp"

namespace check {

// A launch of a kernel; or, where there is none, a piece of a pool.
struct Noted {
    Stream* stream = nullptr;
    Operation what;
    const Kernel* kernel = nullptr;
    GridShape shape;
    std::vector<u8> space;  // the values of its parameters, at their offsets
    CachedPiece piece;
};

// Under the front end's lock.
class Backlog {
  public:
    static constexpr std::size_t kMost = 512;

    // To be filled, all of it but `space`, which keeps its room; it counts from keep() on.
    Noted& next() {
        if (count_ == all_.size()) all_.emplace_back();
        return all_[count_];
    }
    void keep() { count_++; }
    bool is_empty() const { return !count_; }
    bool is_full() const { return count_ >= kMost; }

    void feed(Engine& engine);
    Time feed(Engine& engine, const Noted& noted);
    // The words of the launch that was fed last.
    const std::vector<LaunchedWord>& words() const { return words_; }

  private:
    std::vector<Noted> all_;
    std::size_t count_ = 0;
    std::vector<LaunchedWord> words_;
    std::vector<Touch> touches_;
    std::vector<Range> ranges_;

    Time launch(Engine& engine, const Noted& noted);
};

}  // namespace check
