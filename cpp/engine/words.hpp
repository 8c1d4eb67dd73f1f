// Pointers of kernels, about which more becomes known while a program runs.
//
// A front end numbers the words of a kernel's parameters that may be pointers, and an access through a word has its
// number. A fact learned about a word later also holds for earlier accesses through the word, in findings too: that the
// kernel reads or writes through it; that the kernel goes somewhere else than to where the pointer points; and, for an
// address that was found in a struct, whether the kernel's code uses the word as an address at all.
//
// *Somewhere else*: where a kernel works on the parts of an array, one after the other, it is often handed the same
// pointer, and a number to add. So a pointer does not say where the kernel goes if the numbers beside the pointer vary
// between launches on the same memory. Which numbers matter is known once the kernel's code was read: those that are
// added to the address. A step or a learning rate is none of them. Until then, and for numbers on which branches of the
// code depend, any number counts that varies between streams. Where a branch depends on it, the kernel may go nowhere.
#pragma once

#include "blocks.hpp"
#include "launch_numbers.hpp"

#include <array>
#include <vector>

namespace check {

// The access of a launch through a word of its kernel's parameters.
struct Through {
    u32 word = 0;
    Role role = Role::Unknown;
    bool found = false, absent = false;  // see Range
};

class KernelWords {
  public:
    // What a launch is handed: its parameters by words of eight bytes, with the same value for all addresses of memory.
    struct Launch {
        u64 stream = 0;
        std::vector<u64> numbers;
        u64 hash = 0;  // of the numbers: see keep()
    };
    // Keeps the numbers of a launch that comes next, so that later ones can be compared with them.
    void keep(Launch& launch);
    u32 add() {
        all_.push_back({});
        return u32(all_.size() - 1);
    }
    bool learn(u32 word, Role role);  // false: nothing new
    // Notes that the kernel's code uses the word as an address, or that it does not.
    bool settle(u32 word, bool used);
    // Notes a launch with this address in this block. True if it makes the numbers beside the word vary in a new place.
    bool launch(u32 word, u64 address, const Block& block, const Launch& launch);
    // Notes that these numbers vary: between any two launches, and between two on different streams.
    bool vary(u32 word, ParameterPlaces anywhere, ParameterPlaces between_streams);
    // Notes the numbers that matter, as the kernel's code says.
    bool limit(u32 word, const LaunchNumbers& numbers);
    ParameterPlaces varied(u32 word) const { return all_[word].varied; }
    ParameterPlaces varied_between_streams(u32 word) const { return all_[word].varied_between_streams; }
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
        access.moved = word.is_moved();
        access.skipped = word.is_skipped();
        access.found &= word.code != Code::Uses;
        access.unused |= word.code == Code::DoesNotUse;
    }

  private:
    enum class Code : u8 { NotRead, Uses, DoesNotUse };
    static constexpr std::size_t kAddresses = 32;  // of a word: the last ones
    struct Kept {
        u64 hash = 0;
        std::vector<u64> numbers;
    };
    struct Word {
        Role role = Role::Unknown;
        Code code = Code::NotRead;
        LaunchNumbers numbers;
        ParameterPlaces varied = 0, varied_between_streams = 0;
        std::array<u64, kAddresses> addresses{};  // with the generations of their blocks
        std::array<u64, kAddresses> hashes{}, streams{};  // of the last launch with each
        u32 newest = 0;

        bool is_moved() const {
            return (varied & numbers.added) || (varied_between_streams & (numbers.added | numbers.deciding));
        }
        // A branch may lead around the access. Until the code was read, that is not assumed.
        bool is_skipped() const { return code != Code::NotRead && (varied_between_streams & numbers.deciding); }
    };
    std::vector<Word> all_{1};  // 0 is none
    std::vector<Kept> kept_;  // by their hashes
};

}  // namespace check
