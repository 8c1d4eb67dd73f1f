// Accesses of operations to memory, and the conflicts between two of them.
//
// A copy or a fill touches exactly its bytes, which may be rows with gaps between them (rows.hpp). Of a kernel only its
// pointers are known: the address in a pointer is its anchor, which the kernel touches for certain; how far the kernel
// reaches from there is a guess (the whole block). An address that was *found* among the bytes of a struct is weaker
// evidence: nothing shows that the kernel uses it, and an earlier launch may have left it there.
#pragma once

#include "clock.hpp"
#include "rows.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace check {

// Of a kernel's parameters the eight bytes at this offset; zeros behind the end.
inline u64 word_at(const std::vector<u8>& space, std::size_t offset) {
    u64 value = 0;
    if (offset < space.size()) memcpy(&value, space.data() + offset, std::min(sizeof value, space.size() - offset));
    return value;
}

template <class List, class Test>
void remove_if(List& list, Test test) {
    list.erase(std::remove_if(list.begin(), list.end(), test), list.end());
}

enum class Role : u8 {
    Read,
    Write,
    ReadWrite,
    Unknown,  // a kernel's pointer of which it is not known whether anything is written, or read, through it
    Alloc,  // the memory is handed out: nothing may come before that
    Free,  // its owner gives it up: nothing may come after that
    Atomic,  // a read and a write that no other one of this kind comes between
};

// An operation as the front end describes it. Both numbers are the front end's: Engine::name() has the names, and the
// engine compares sites with each other but knows nothing about them. Site 0: the place in the program is not known.
struct Operation {
    u32 name = 0;
    u32 site = 0;
};

struct Block;

struct Range {
    u64 begin = 0, end = 0;
    Role role = Role::Read;
    u64 anchor = 0;  // 0: exactly these bytes
    Rows rows;  // … of these the rows
    Block* block = nullptr;  // where it is known already: Engine::add_pointer() has looked it up
    u32 word = 0;  // a kernel's pointer, of which more may become known: see words.hpp
    bool absent = false;  // nothing shows that the kernel uses any of these bytes
    bool found = false;  // the address was found in a struct
    bool moved = false;  // it is known only that some of these bytes are touched
};

// To xlogmem, whose memory it is: as work of a new block's own stream, or by a window; not by a window that lacks this
// memory, or declares as read what is written. See declared.hpp.
enum class Known : u8 { Not, New, Declared, Lacking, Written };

// The call that destroyed a handle; of a stream its number, too.
struct Destroyed {
    Operation what;
    u64 stream = 0;
};

struct Access {
    u64 begin = 0, end = 0, anchor = 0;
    Rows rows;
    Time time;
    u64 stream = 0;  // the front end's number of the stream; 0: the host
    Operation what;
    u32 captured = 0;  // of work in a graph: the site of the capture, where `what` has that of the launch
    Role role = Role::Read;
    bool maybe_end = false;  // its address may be the end of the block before, which the same kernel was given
    u32 word = 0;  // of the kernel that has done it
    bool absent = false;  // … and nothing shows that it uses any of these bytes
    bool moved = false;  // … and it may go somewhere else than to its anchor
    bool skipped = false;  // … or nowhere
    bool found = false;  // … and nothing shows that the kernel uses the address
    bool unused = false;  // … and its code shows that it does not
    bool unseen = false;  // it may come after what it contradicts: see Clock::add_unseen()
    bool may_signal = true;  // the host may know by it, while the kernel runs, of all that came before
    bool in_capture = false;  // its time is one of the capture, not of a stream
    u32 library = 0;  // a name: of the library that has made the stream for itself
    Known known = Known::Not;
    u32 window = 0;  // Lacking, Written: its site
    bool of_driver = false;  // wrong by the rules of the driver's pool alone, which a check has put in place: pools.hpp
};

enum class Verdict : u8 { Fine, Possible, Certain };

inline bool writes(Role role) { return role == Role::Write || role == Role::ReadWrite || role == Role::Atomic; }
inline bool is_life(Role role) { return role == Role::Alloc || role == Role::Free; }
inline bool overlap(const Access& a, const Access& b) { return a.begin < b.end && b.begin < a.end; }

// Defined here so that they are compiled into the loop that compares each access with the remembered ones.

// The common bytes of two accesses whose extents overlap.
inline Meeting meeting(const Access& a, const Access& b) {
    auto holds = [](const Access& exact, u64 at) { return touches(exact.rows, exact.begin, exact.end, at, at + 1); };
    if (a.anchor && b.anchor) return a.anchor == b.anchor ? Meeting::Certain : Meeting::Possible;
    if (a.anchor) return holds(b, a.anchor) ? Meeting::Certain : Meeting::Possible;
    if (b.anchor) return holds(a, b.anchor) ? Meeting::Certain : Meeting::Possible;
    if (!a.rows.pitch && !b.rows.pitch) return Meeting::Certain;
    return meeting_of_rows(a.rows, a.begin, a.end, b.rows, b.begin, b.end);
}

// True if `exact` is all of the memory that the kernel's pointer is in: wherever the kernel goes there, the two meet.
// Between the pieces of a cut block the extent of a pointer is one byte, and says nothing.
inline bool is_whole(const Access& exact, const Access& kernel) {
    return !exact.anchor && !exact.rows.pitch && kernel.anchor && kernel.end - kernel.begin > 1 &&
           exact.begin <= kernel.begin && kernel.end <= exact.end;
}

// True if it is not known where one of the two goes, and it may be past the other, or go nowhere.
inline bool may_miss(const Access& first, const Access& second) {
    return first.skipped || second.skipped || (first.moved && !is_whole(second, first)) ||
           (second.moved && !is_whole(first, second));
}

// True if nothing shows that the kernel uses the bytes.
inline bool is_weak(const Access& access) { return access.found || access.absent; }

// The verdict on two accesses that nothing orders, and whose extents overlap.
inline Verdict judge(const Access& first, const Access& second) {
    if (first.unused || second.unused) return Verdict::Fine;
    bool weak = is_weak(first) || is_weak(second);
    if (first.maybe_end || second.maybe_end) return Verdict::Possible;
    // A pointer about which nothing more is known may be an old one, which the kernel does not use.
    if (first.role == Role::Free && second.role == Role::Unknown) return Verdict::Possible;
    if (first.of_driver || second.of_driver) return Verdict::Possible;
    // A pointer to memory that is not there yet, or not any more, is wrong, however the kernel uses the pointer.
    if (is_life(first.role) || is_life(second.role)) return weak ? Verdict::Possible : Verdict::Certain;
    // Two atomic counters may go up in any order.
    weak |= first.role == Role::Atomic && second.role == Role::Atomic;
    Meeting common = meeting(first, second);
    if (common == Meeting::None) return Verdict::Fine;
    bool there = !weak && !may_miss(first, second) && common == Meeting::Certain;
    if (writes(first.role) || writes(second.role)) return there ? Verdict::Certain : Verdict::Possible;
    bool unknown = first.role == Role::Unknown || second.role == Role::Unknown;
    return unknown ? Verdict::Possible : Verdict::Fine;
}

// True if the earlier access need not be remembered: `later` comes after `earlier`, and everything that contradicts
// `earlier` contradicts `later` as well, and as certainly. Only bytes in [begin, end) count.
inline bool stands_for(const Access& later, const Access& earlier, u64 begin, u64 end) {
    if (!writes(later.role) && later.role != earlier.role) return false;
    if ((later.maybe_end && !earlier.maybe_end) || (later.moved && !earlier.moved)) return false;
    if (later.skipped && !earlier.skipped) return false;
    if ((later.absent && !earlier.absent) || (later.role == Role::Atomic && earlier.role != Role::Atomic)) return false;
    if (later.found && !(earlier.found && earlier.word == later.word)) return false;
    if (later.anchor)
        return earlier.anchor == later.anchor && !is_life(earlier.role) && later.begin <= earlier.begin &&
               earlier.end <= later.end;
    if (later.rows.pitch)
        return later.rows == earlier.rows && later.begin == earlier.begin && later.end == earlier.end &&
               !earlier.anchor && !is_life(earlier.role);
    // An access without an anchor touches all its bytes, so it meets every access that meets a part of them.
    return later.begin <= std::max(earlier.begin, begin) && std::min(earlier.end, end) <= later.end;
}

}  // namespace check
