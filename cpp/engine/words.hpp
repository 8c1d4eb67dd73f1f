// Pointers of kernels, about which more becomes known while a program runs.
//
// A front end numbers the words of a kernel's parameters that may be pointers, and an access through a word has its
// number. A fact learned about a word later also holds for earlier accesses through the word, in findings too: that the
// kernel reads or writes through it; that the kernel goes somewhere else than to where the pointer points; and, for an
// address that was found in a struct, whether the kernel's code uses the word as an address at all.
#pragma once

#include "access.hpp"

#include <array>
#include <vector>

namespace check {

// Where one stream works on the beginning of an array and the next on its middle, a kernel is often handed the same
// pointer and another number to add to it. Such a pointer does not say where the kernel goes.
struct LaunchOrigin {
    u64 numbers = 0, stream = 0;

    // `numbers` is mixed from all values that the kernel is handed, except addresses of memory.
    static u64 mixed(u64 numbers, u64 value) {
        numbers = (numbers ^ value) * 0x9E3779B97F4A7C15ull;
        return numbers ^ numbers >> 29;
    }
};

// The access of a launch through a word of its kernel's parameters.
struct Through {
    u32 word = 0;
    Role role = Role::Unknown;
    bool found = false, absent = false;  // see Range
};

class KernelWords {
  public:
    u32 add() {
        all_.push_back({});
        return u32(all_.size() - 1);
    }
    bool learn(u32 word, Role role);  // false: nothing new
    bool doubt(u32 word);
    // Notes that the kernel's code uses the word as an address, or that it does not.
    bool settle(u32 word, bool used);
    // True if this launch differs from the last one with the same address both in its numbers and in its stream.
    bool launch(u32 word, u64 address, const LaunchOrigin& origin);
    bool is_known(u32 word) const { return all_[word].role != Role::Unknown; }
    bool is_settled(u32 word) const { return all_[word].code != Code::NotRead; }
    void refresh(Access& access) const {
        if (!access.word) return;
        const Word& word = all_[access.word];
        if (access.role == Role::Unknown && word.role != Role::Unknown) {
            access.role = word.role;
            access.maybe_end = false;  // through the end of its memory a kernel does nothing
        }
        if (access.role == Role::Write && word.role == Role::Atomic) access.role = Role::Atomic;
        access.moved |= word.moved;
        access.found &= word.code != Code::Uses;
        access.unused |= word.code == Code::DoesNotUse;
    }

  private:
    enum class Code : u8 { NotRead, Uses, DoesNotUse };
    struct Last {
        u64 address = 0;
        LaunchOrigin origin;
    };
    struct Word {
        Role role = Role::Unknown;
        bool moved = false;
        Code code = Code::NotRead;
        std::array<Last, 8> last;  // for the last few addresses that it had
        u32 newest = 0;
    };
    std::vector<Word> all_{1};  // 0 is none
};

}  // namespace check
