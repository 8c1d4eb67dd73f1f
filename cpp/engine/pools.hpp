// Pools of libraries that hand memory out again without a call of the driver: PyTorch's and CuPy's caching allocators.
//
// Such a pool keeps freed memory for the stream that the memory was allocated for, the *home* stream, and queues
// nothing. So the next owner comes after the work that the home stream has queued by then, and after nothing else:
//     alloc/use    Memory that had no owner before is there for every stream. Else a use has to come after the accesses
//                  of earlier owners to the same bytes that the home stream had come after when it handed the memory
//                  out.
//     use/free     A use that the home stream does not come after is wrong if the memory is handed out again before the
//                  home stream, or the host, has waited for the use. The check sees this later: until then such a
//                  finding is *withheld*. If neither happens, the finding is reported, and also if the host alone has
//                  waited: at the end of a program that means little. But if there was a wait in time between the same
//                  two places once, the engine takes it that there will have been one here.
//     use/reuse    Where the pool's pieces are known, the check sees that the pool did hand them out too early. The new
//                  owner is wrong when it accesses the same bytes, and before that nothing is reported.
// PyTorch's `record_stream` has the pool wait for another stream as well. A home stream that was destroyed before the
// free hands out no more memory.
//
// A check may put the driver's pool (cudaMallocAsync) in the place of a caching pool, in order to see each allocation.
// The driver's rules are stricter: memory is there when the home stream has come to the allocation, and gone when the
// home stream has come to the free. An access that is wrong by these rules alone is *possible* only, and is
// `of_driver`.
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

// The accesses of a piece's earlier owners that the host has not seen done.
struct EarlierOwners {
    static constexpr std::size_t kMany = 32, kMost = 8, kSums = 16;

    // The accesses that the home stream had come after when it handed the memory out. If there are many: the newest,
    // and sums of the others, one for a stream's reads and one for its other accesses.
    std::vector<Access> before;
    std::vector<Finding> early;  // … and not after the first access of these, with the allocation

    // True if work on the home stream, or on another stream, may have to come after one of these accesses.
    bool any(bool at_home) const { return !early.empty() || (!at_home && !before.empty()); }
    // If there are many: removes accesses that another one stands for, and replaces the oldest by sums.
    u64 shorten(u64 begin, u64 end);  // how many were dropped for want of room
};

// A finding that holds if the pool can hand the memory out again before `home` comes after the first access.
struct Withheld {
    Finding finding;
    u64 home = 0;  // a stream
    Pool pool = Pool::Caching;
    bool host_waits = false;  // it has waited for the first access, and the home stream had not

    u64 bytes() const { return finding.block_end - finding.block_begin; }
    bool meets(const Access& other) const { return finding.block_begin < other.end && other.begin < finding.block_end; }
};

// True if a caching pool could hand this memory out again for so many bytes. PyTorch keeps small blocks apart from
// large ones.
inline bool could_take(u64 wanted, u64 freed) {
    constexpr u64 kSmall = 1 << 20;
    return wanted <= freed && (wanted <= kSmall) == (freed <= kSmall);
}

class WithheldFrees {
  public:
    static constexpr std::size_t kMost = 4096;

    // False: there are too many, and the finding is dropped.
    bool add(const Withheld& one);
    void clear() { by_home_.clear(), *count_ = 0; }
    bool any() const { return *count_; }
    // Keeps the number of findings at this address from here on; nullptr: in this object.
    void count_at(u64* count) { count_ = &(*(count ? count : &own_count_) = *count_); }
    // Passes the findings of this stream that `test` says are decided to `decided`, and forgets them.
    template <class Test, class Decided>
    void decide(u64 home, Test&& test, Decided&& decided) {
        auto found = by_home_.find(home);
        if (found == by_home_.end()) return;
        std::vector<Withheld> kept;
        for (Withheld& one : found->second)
            if (test(one))
                decided(one), --*count_;
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

    // Notes two places of the program between which there was a wait in time, once.
    void note_ordered(const Finding& finding) { ordered_.insert(places(finding)); }
    bool was_ordered(const Finding& finding) const { return ordered_.count(places(finding)); }

  private:
    std::unordered_map<u64, std::vector<Withheld>> by_home_;
    std::unordered_set<u64> ordered_;
    u64 own_count_ = 0;
    u64* count_ = &own_count_;

    static u64 places(const Finding& finding);
};

}  // namespace check
