// Work that is fed later: see backlog.hpp.
#include "front.hpp"

#include "kernels/followed.hpp"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace check {

void Backlog::feed() {
    wait();
    feed(filled_, std::exchange(count_, 0));  // where memory is short, nothing is fed twice
}

void Backlog::feed(const std::vector<Noted>& all, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) feed(all[i]);
    engine_.page().fed += count;
}

Time Backlog::feed(const Noted& noted) {
    Time time;
    engine_.act_in(noted.thread);
    switch (noted.kind) {
        case Noted::Kind::Launch: time = launch(noted); break;
        case Noted::Kind::Work: time = engine_.work(*noted.stream, noted.what, noted.ranges.data(), noted.count); break;
        case Noted::Kind::Piece: Reported{engine_, noted.stream, noted.what.site}.cached(noted.piece); return {};
        case Noted::Kind::Refused: return {};
    }
    fed_[noted.number % fed_.size()] = {noted.number, noted.stream, noted.what, time};
    return time;
}

void Backlog::refuse(u64 number) {
    for (std::size_t i = 0; i < count_; i++)
        if (filled_[i].number == number) {
            filled_[i].kind = Noted::Kind::Refused;
            return;
        }
    wait();
    const Fed& fed = fed_[number % fed_.size()];
    if (fed.number == number) engine_.refuse(*fed.stream, fed.what, fed.time);
}

Time Backlog::launch(const Noted& noted) {
    const Kernel& kernel = *noted.kernel;
    words_.clear();
    words_of_launch(kernel, noted.space, noted.shape.grid, &words_);
    if (kernel.first) kernel.first->run(noted.space, noted.shape, &touches_);
    Launched launched(engine_, *noted.stream, noted.space, ranges_);
    FollowedWord followed(engine_, touches_, kernel.arrays, noted.space);
    for (const LaunchedWord& word : words_)
        followed.add_to(launched, word.offset, {word.number, word.role, word.found}, word.followed);
    return launched.feed(noted.what, kernel.may_signal);
}

// -- the feeder -------------------------------------------------------------------------------------------------------

void Backlog::give() {
    wait();
    if (!has_feeder_ && !start_feeder()) return feed();
    std::swap(filled_, given_);
    given_count_ = std::exchange(count_, 0);
    state_.store(State::Given);  // in one order with the feeder's beginning to sleep: see std::atomic::notify_one
    state_.notify_one();
}

void Backlog::wait() {
    while (state_.load(std::memory_order_acquire) == State::Given) state_.wait(State::Given, std::memory_order_acquire);
}

// Signals are for the program's threads.
bool Backlog::start_feeder() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    has_feeder_ = !pthread_create(&thread, nullptr, run_feeder, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!has_feeder_) return false;
    pthread_setname_np(thread, "xlogmem check");
    pthread_detach(thread);
    return true;
}

void* Backlog::run_feeder(void* backlog) {
    static_cast<Backlog*>(backlog)->feed_for_ever();
    return nullptr;
}

void Backlog::feed_for_ever() {
    for (;;) {
        state_.wait(State::Done, std::memory_order_acquire);
        if (state_.load(std::memory_order_acquire) == State::Done) continue;
        try {
            feed(given_, given_count_);
        } catch (const std::exception& error) {
            stop_watching("work of the program", error);
        }
        state_.store(State::Done);
        state_.notify_one();
    }
}

}  // namespace check
