// Work that is fed later: see backlog.hpp.
#include "backlog.hpp"

#include "kernels/followed.hpp"

#include <utility>

namespace check {

void Backlog::feed(Engine& engine) {
    std::size_t count = std::exchange(count_, 0);  // where memory is short, nothing is fed twice
    for (std::size_t i = 0; i < count; i++) feed(engine, all_[i]);
}

Time Backlog::feed(Engine& engine, const Noted& noted) {
    if (noted.kernel) return launch(engine, noted);
    Reported{engine, noted.stream, noted.what.site}.cached(noted.piece);
    return {};
}

Time Backlog::launch(Engine& engine, const Noted& noted) {
    const Kernel& kernel = *noted.kernel;
    words_.clear();
    words_of_launch(kernel, noted.space, noted.shape.grid, &words_);
    if (kernel.first) kernel.first->run(noted.space, noted.shape, &touches_);
    Launched launched(engine, *noted.stream, noted.space, ranges_);
    FollowedWord followed(engine, touches_);
    for (const LaunchedWord& word : words_)
        followed.add_to(launched, word.offset, {word.number, word.role, word.found}, word.followed);
    return engine.work(*noted.stream, noted.what, ranges_.data(), ranges_.size());
}

}  // namespace check
