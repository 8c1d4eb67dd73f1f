// Rows with gaps between them: the bytes of a copy or a fill in two dimensions.
#pragma once

#include "clock.hpp"

#include <algorithm>

namespace check {

// Each row begins `pitch` bytes behind the one before it, and has `width` bytes; the last ends the extent. Pitch 0: there
// are no gaps.
struct Rows {
    u64 pitch = 0, width = 0;
    bool operator==(const Rows& other) const { return pitch == other.pitch && width == other.width; }
};

// Of so many rows; a single one has no gaps.
inline Rows rows_of(u64 pitch, u64 width, u64 height) {
    return height > 1 && pitch != width ? Rows{pitch, width} : Rows{};
}

enum class Meeting : u8 { None, Possible, Certain };

// True if a row of the extent [begin, end) has a byte of [from, to).
inline bool touches(const Rows& rows, u64 begin, u64 end, u64 from, u64 to) {
    from = std::max(from, begin);
    to = std::min(to, end);
    if (from >= to || !rows.pitch) return from < to;
    u64 in_row = (from - begin) % rows.pitch;
    return in_row < rows.width || to - from > rows.pitch - in_row;
}

inline Meeting meeting_of_rows(const Rows& a, u64 a_begin, u64 a_end, const Rows& b, u64 b_begin, u64 b_end) {
    constexpr u64 kMost = 4096;  // rows that are looked at
    auto row_of = [](const Rows& rows, u64 begin, u64 end) { return rows.pitch ? rows.width : end - begin; };
    auto made = [](bool found) { return found ? Meeting::Certain : Meeting::None; };
    // Of equal pitches the first row of one of them meets a row of the other, or none does.
    if (a.pitch == b.pitch || !a.pitch || !b.pitch)
        return made(touches(b, b_begin, b_end, a_begin, a_begin + row_of(a, a_begin, a_end)) ||
                    touches(a, a_begin, a_end, b_begin, b_begin + row_of(b, b_begin, b_end)));
    if ((a_end - a_begin) / a.pitch > kMost) return Meeting::Possible;
    for (u64 row = a_begin; row < a_end; row += a.pitch)
        if (touches(b, b_begin, b_end, row, row + a.width)) return Meeting::Certain;
    return Meeting::None;
}

}  // namespace check
