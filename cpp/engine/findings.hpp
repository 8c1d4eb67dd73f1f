// Findings of the engine, as records: no text is made here.
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

// A wait of the second operation's stream that did not order the two: it orders nothing, or something else.
struct Idle {
    enum class Why : u8 {
        None,
        NeverRecorded,
        RecordedBefore,   // on the first operation's stream, before that operation
        RecordedElsewhere  // on another stream, which does not come after the first operation
    };
    Why why = Why::None;
    Operation what, recorded;
    u64 stream = 0;  // that the event was recorded on
};

// The roles of the two accesses give a race or a use after free its name. `second` came later in the program. The bytes
// are those that both may touch; the block, with its generation, is the one that holds these bytes.
struct Finding {
    Kind kind = Kind::Race;
    Verdict verdict = Verdict::Certain;  // possible: it depends on what a kernel does with its pointer
    bool doubtful = false;  // … or the two may be ordered by something that cannot be seen
    bool gone = false;  // the memory was freed before the second operation was queued
    Access first, second;
    Idle idle;
    u64 begin = 0, end = 0;
    u64 block_begin = 0, block_end = 0, generation = 0;
    Operation allocated, freed;  // of the block, as far as that is known
    u32 tag = 0;  // of the block: a name
    bool tracked = false;  // it is xlogmem's
    u64 count = 1;  // of such pairs of the same two places of the program, and the same place of the allocation
    Time newest;  // `second` of the newest pair
    u64 newest_count = 1;  // of the pairs with that one
    u64 number = 0;  // in the journal

    bool certain() const { return verdict == Verdict::Certain; }
    // True if the memory is gone and its address was found in a struct: not a finding yet, since the address may stand
    // in a field that the kernel never reads. The finding is kept aside until the kernel's code, once read, shows a
    // use.
    bool is_aside() const { return gone && second.found; }
};

class Journal;

// The beginning of a journal's file: see journal.hpp. `Page` in xlogmem/check/processes.py has the same fields.
struct JournalPage {
    u64 mark = 0x4c4e524a474f4c58;  // "XLOGJRNL": the file is not whole without it
    u64 used = 0;  // the process has initialised the driver
    u64 ended = 0;  // everything was judged at the end
    u64 failed = 0;  // the check has ended early, or something could not be written
    u64 withheld = 0, aside = 0;  // findings about which later calls, or the code of a kernel, decide
    u64 noted = 0, fed = 0;  // operations that a front end has put off, and those of these that the engine got
    u64 lines = 0;           // of findings, that were written
};

class Findings {
  public:
    // The limit for certain findings, and for possible ones: where places are not known, findings differ without end.
    static constexpr std::size_t kMost = 1000;
    // … of which so many places are left to pairs that are new.
    static constexpr std::size_t kForNew = 500;

    void add(const Finding& finding);
    void clear();
    // Writes to the journal what changes from here on; nullptr ends that.
    void write_to(Journal* journal) { journal_ = journal; }
    const std::vector<Finding>& all() const { return reported_.all; }
    const std::vector<Finding>& aside() const { return aside_.all; }
    // `change` gives the findings their verdicts anew. Findings that are fine now are dropped.
    template <class Change>
    void judge_again(Change&& change) {
        for (List* list : {&reported_, &aside_}) {
            std::vector<Finding> before = std::move(list->all);
            list->clear();
            for (Finding& finding : before) {
                Verdict verdict = finding.verdict;
                bool was_aside = finding.is_aside();
                change(finding);
                keep_again(finding, finding.verdict != verdict || was_aside);
            }
        }
    }
    u64 left_out() const { return left_out_; }
    u64 added() const { return added_; }  // so far, all counted

  private:
    // The two places, with kind and verdict; the bytes, where a place is not known; the place of the allocation, which
    // is 0 in the key of the first finding of two places.
    using Key = std::array<u64, 15>;
    struct Hash {
        std::size_t operator()(const Key& key) const;
    };
    struct List {
        std::vector<Finding> all;
        std::unordered_map<Key, std::size_t, Hash> places;
        std::size_t kept[2] = {0, 0};  // possible, certain
        void clear() { *this = {}; }
    };
    List reported_, aside_;
    u64 left_out_ = 0, added_ = 0, newest_ = 0;
    Journal* journal_ = nullptr;

    // True if this is not one that is there already, and there is room.
    bool keep(const Finding& finding);
    void keep_again(Finding& finding, bool changed);
    void write(const Finding& finding);
};

}  // namespace check
