// Gives the engine what the guard has noted: see guard.hpp.
#pragma once

#include "engine/engine.hpp"

namespace check::host {

// The call in progress has this site.
void judge(Engine& engine, u32 site);
// Of pageable memory (pageable.hpp): the host will know what `coming` covers.
void judge_late_reads(Engine& engine, const Clock& coming, u32 site);
// These bytes become page-locked.
void judge_late_reads(Engine& engine, u64 begin, u64 end, u32 site);

}  // namespace check::host
