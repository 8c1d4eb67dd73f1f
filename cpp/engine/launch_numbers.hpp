// Numbers among the parameters of a launch, by their places.
#pragma once

#include "clock.hpp"

#include <algorithm>

namespace check {

// Places in a kernel's parameters as bits: the four bytes at the offset 4 * n are bit n. All that lie behind have the
// last bit.
using ParameterPlaces = u64;
inline ParameterPlaces place_in_parameters(u32 offset) { return ParameterPlaces(1) << std::min(offset / 4, 63u); }

// The numbers that matter to the accesses through a pointer. As long as the code was not read, each may decide.
struct LaunchNumbers {
    ParameterPlaces added = 0;                       // to the address
    ParameterPlaces deciding = ~ParameterPlaces(0);  // which way the code goes
};

}  // namespace check
