// Pools of libraries that hand memory out again without a call of the driver: PyTorch's and CuPy's caching allocators.
//
// Such a pool keeps what is freed for the stream that it was allocated for, the *home* stream, and queues nothing. So the
// next owner comes after what the home stream has queued by then, and after nothing else:
//     alloc/use    Memory that had no owner before is there for every stream. Else a use comes after what its earlier
//                  owners did with the same bytes, which the home stream had come after when it handed the memory out.
//     use/free     A use that the home stream does not come after is wrong if the memory is handed out again before the
//                  home stream, or the host, has waited for it. Whether that happens is seen later: until then such a
//                  finding is *withheld*. Where neither happens it is one, and where the host alone has waited, too: at
//                  the end of a program that means little. But if between the same two places there was a wait in time
//                  once, there will have been one here.
//     use/reuse    That is what happens where the pool's pieces are known: it did hand them out too early. The new owner
//                  is wrong when it accesses the same bytes, and before that nothing is reported.
// PyTorch's `record_stream` has the pool wait for another stream as well. A home stream that was destroyed before the free
// hands nothing out any more.
//
// A check may put the driver's pool (cudaMallocAsync) in the place of such a one, in order to see each allocation. The
// driver's rules are stricter: memory is there when the home stream has come to the allocation, and gone when it has come
// to the free. What is wrong by these rules alone is *possible* then, and its access is `of_driver`.
#pragma once

#include "findings.hpp"

#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace check {

enum class Pool : u8 {
    Driver,  // the driver's rules hold
    Caching,  // a piece of a library's own pool
    Replaced,  // the driver's, in the place of such a pool
};

// What the earlier owners of a piece did that the host has not seen done.
struct EarlierOwners {
    static constexpr std::size_t kMany = 32, kMost = 8, kSums = 16;

    // The home stream had come after these when it handed the memory out. Of many these are the newest, and sums of the
    // others: one for what a stream read, one for what else it did.
    std::vector<Access> before;
    std::vector<Finding> early;  // … and not after the first access of these, with the allocation

    // Is there one that work on the home stream, or on another, may have to come after?
    bool any(bool at_home) const { return !early.empty() || (!at_home && !before.empty()); }
    // If there are many: without those that another one stands for, and with sums in the place of the oldest.
    u64 shorten(u64 begin, u64 end);  // how many were dropped for want of room
};

// A finding that is one if the pool can hand the memory out again before `home` comes after the first access.
struct Withheld {
    Finding finding;
    u64 home = 0;  // a stream
    Pool pool = Pool::Caching;
    bool host_waits = false;  // it has waited for the first access, and the home stream had not

    u64 bytes() const { return finding.block_end - finding.block_begin; }
    bool meets(const Access& other) const { return finding.block_begin < other.end && other.begin < finding.block_end; }
};

// Could a caching pool hand this memory out again for so many bytes? PyTorch keeps small blocks apart from large ones.
inline bool could_take(u64 wanted, u64 freed) {
    constexpr u64 kSmall = 1 << 20;
    return wanted <= freed && (wanted <= kSmall) == (freed <= kSmall);
}

class WithheldFrees {
  public:
    static constexpr std::size_t kMost = 4096;

    // False: there are too many, and it is dropped.
    bool add(const Withheld& one);
    void clear() { by_home_.clear(), count_ = 0; }
    bool any() const { return count_; }
    // Those of this stream that `test` says are decided are passed to `decided`, and forgotten.
    template <class Test, class Decided>
    void decide(u64 home, Test&& test, Decided&& decided) {
        auto found = by_home_.find(home);
        if (found == by_home_.end()) return;
        std::vector<Withheld> kept;
        for (Withheld& one : found->second)
            if (test(one))
                decided(one), count_--;
            else
                kept.push_back(std::move(one));
        found->second = std::move(kept);
        if (found->second.empty()) by_home_.erase(found);
    }
    std::vector<u64> homes() const;
    template <class Change>
    void each(u64 home, Change&& change) {
        auto found = by_home_.find(home);
        if (found == by_home_.end()) return;
        for (Withheld& one : found->second) change(one);
    }

    // Two places of the program between which there was a wait in time, once.
    void note_ordered(const Finding& finding) { ordered_.insert(places(finding)); }
    bool was_ordered(const Finding& finding) const { return ordered_.count(places(finding)); }

  private:
    std::unordered_map<u64, std::vector<Withheld>> by_home_;
    std::unordered_set<u64> ordered_;
    std::size_t count_ = 0;

    static u64 places(const Finding& finding);
};

}  // namespace check
