// What the engine has found, as records: no text is made here.
#pragma once

#include "access.hpp"

#include <array>
#include <unordered_map>
#include <vector>

namespace check {

enum class Kind : u8 {
    Race,          // the two accesses are not ordered
    UseAfterFree,  // they are, in the wrong way
    StaleGraph,  // a graph was launched that works on an address as its earlier owner: `first` is the new allocation
    DeadStream,  // `second` was given the handle of a destroyed stream
    DeadEvent,  // … event
};

// Of a race and a use after free, what the pair is called follows from the two roles. `second` came later in the
// program. The bytes are those that both may touch; the block is the one in which they lie, with its generation.
struct Finding {
    Kind kind = Kind::Race;
    bool certain = true;  // else possible: it depends on what a kernel does with its pointer
    bool doubtful = false;  // … or the two may be ordered by something that cannot be seen
    Access first, second;
    u64 begin = 0, end = 0;
    u64 block_begin = 0, block_end = 0, generation = 0;
    Operation allocated, freed;  // of the block, as far as that is known
    u32 tag = 0;  // of the block: a name
    u64 count = 1;  // of such pairs of the same two places of the program
};

class Findings {
  public:
    // Of each of certain and possible: where places are not known, findings differ without end.
    static constexpr std::size_t kMost = 1000;

    void add(const Finding& finding);
    void clear();
    const std::vector<Finding>& all() const { return all_; }
    template <class Change>
    void each(Change&& change) {
        for (Finding& finding : all_) change(finding);
    }
    u64 left_out() const { return left_out_; }
    u64 added() const { return added_; }  // so far, all counted

  private:
    // The two places, and what is found there.
    using Key = std::array<u64, 14>;
    struct Hash {
        std::size_t operator()(const Key& key) const;
    };
    std::vector<Finding> all_;
    std::unordered_map<Key, std::size_t, Hash> places_;
    std::size_t kept_[2] = {0, 0};  // possible, certain
    u64 left_out_ = 0, added_ = 0;
};

}  // namespace check
