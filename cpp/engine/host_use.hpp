// What the guard of the host's memory needs of an operation: see host/guard.hpp.
#pragma once

#include "clock.hpp"

namespace check {

// An operation was queued that reads, or may write, these bytes of page-locked or managed memory.
struct HostUse {
    u64 begin, end;
    bool may_write;
    Time time;
    u64 block_begin, block_end;
};

// Of the copies that read pageable memory later (host/pageable.hpp) the newest are remembered.
constexpr std::size_t kMostLateReads = 4096;

}  // namespace check
