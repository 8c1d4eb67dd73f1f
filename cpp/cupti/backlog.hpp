// Operations that a thread of the check's own feeds to the engine later, many at a time.
//
// Between two launches a program runs code of its own, which takes the processor's caches. Feeding a launch at once
// brings the engine back into the caches, and the launching thread waits for that. So launches, copies and fills on the
// device, and pieces of caching pools are noted with their arguments. They are fed, in their order, when there are
// many, and before anything else is done with the engine (Front::engine()): the engine's findings are the same.
//
// There are two lists: one is filled under the front end's lock; the other, which is full, is fed by the *feeder*. The
// engine is the feeder's alone from give() on until the list is done. The feeder takes no lock and makes no call of the
// driver or of Python; it begins with the first full list, and ends with the process. Where no thread can be made, the
// thread that has filled a list feeds it.
#pragma once

#include "kernels.hpp"

#include "kernels/arguments.hpp"
#include "engine/launched.hpp"
#include "engine/reports.hpp"

#include <array>
#include <atomic>

namespace check {

struct Noted {
    enum class Kind : u8 { Launch, Work, Piece, Refused };

    Kind kind = Kind::Work;
    u64 number = 0, thread = 0;
    Stream* stream = nullptr;
    Operation what;
    // A launch. `space` has the values of the kernel's parameters, at their offsets.
    const Kernel* kernel = nullptr;
    GridShape shape;
    std::vector<u8> space;
    // A copy or a fill.
    std::array<Range, 2> ranges;
    std::size_t count = 0;
    CachedPiece piece;
};

class Backlog {
  public:
    static constexpr std::size_t kMost = 512;  // a list

    explicit Backlog(Engine& engine) : engine_(engine) {}

    // Under the front end's lock. The caller fills the next operation in, as far as its kind needs; it counts from
    // keep() on.
    Noted& next() {
        if (count_ == filled_.size()) filled_.emplace_back();
        filled_[count_].number = ++newest_;
        return filled_[count_];
    }
    void keep() {
        engine_.page().noted++;
        if (++count_ == kMost) give();
    }
    // True if everything is fed, and the feeder has nothing to do.
    bool is_done() const { return !count_ && state_.load(std::memory_order_acquire) == State::Done; }
    void feed();
    // Feeds an operation at once, which keep() was not called for. Everything else is fed already.
    Time feed(const Noted& noted);
    // The driver has refused the operation of this number. If it is fed, the engine forgets it.
    void refuse(u64 number);
    // The words of the launch that was fed last.
    const std::vector<LaunchedWord>& words() const { return words_; }

  private:
    enum class State : u32 { Done, Given };

    Engine& engine_;
    std::vector<Noted> filled_, given_;
    std::size_t count_ = 0, given_count_ = 0;
    u64 newest_ = 0;
    // The operations that were fed last, by their numbers.
    struct Fed {
        u64 number = 0;
        Stream* stream = nullptr;
        Operation what;
        Time time;
    };
    std::array<Fed, 2 * kMost> fed_;
    std::atomic<State> state_{State::Done};
    bool has_feeder_ = false;
    std::vector<LaunchedWord> words_;
    std::vector<Touch> touches_;
    std::vector<Range> ranges_;

    void give();
    void wait();
    void feed(const std::vector<Noted>& all, std::size_t count);
    Time launch(const Noted& noted);
    bool start_feeder();
    static void* run_feeder(void* backlog);
    void feed_for_ever();
};

}  // namespace check
