// What is looked at of a large range: the beginning, the end and pages between, where programs go first. The whole of it
// would take milliseconds.
#pragma once

#include "pages.hpp"

namespace check::host {

constexpr u64 kWhole = u64(4) << 20, kFirst = u64(1) << 20, kLast = u64(64) << 10, kBetween = 64;

template <class Take>
void each_part(Window range, Take&& take) {
    u64 bytes = range.end - range.begin;
    if (bytes <= kWhole) return take(range);
    Window middle{range.begin + kFirst, range.end - kLast};
    take(Window{range.begin, middle.begin});
    u64 step = page_of((middle.end - middle.begin) / kBetween);
    for (u64 at = middle.begin; at + kPage <= middle.end; at += step) take(Window{at, at + kPage});
    take(Window{middle.end, range.end});
}

}  // namespace check::host
