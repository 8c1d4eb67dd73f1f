// How many bytes an instruction of x86-64 reads at once: functions such as strlen() load whole vectors, and look at a
// part of them.
#pragma once

#include "engine/clock.hpp"

namespace check::host {

// Eight for all instructions but those of SSE and AVX.
unsigned width_of(const u8* instruction);

}  // namespace check::host
