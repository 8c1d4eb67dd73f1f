// The happens-before checker: which accesses to device memory are not ordered by the calls that were made.
//
// Every block keeps a shadow: segments of its bytes, each with the last write and the reads since. A new
// access is compared with them by vector clocks when it is *queued*, so the reports do not depend on the
// schedule. An allocation counts as a write named "alloc", a free as a write that ends the block.
//
// The list of reports also takes calls with dead handles: not races, but as deadly.
#pragma once

#include "device.hpp"

#include <string>
#include <vector>

namespace sim {

struct Block;

struct Access {
    const char* name = nullptr;  // nullptr: nothing there, ordered before everything
    std::size_t slot = 0;
    u64 sequence = 0;
    u64 stream_id = 0;
};

struct Segment {
    u64 begin = 0, end = 0;
    Access write;
    std::vector<Access> reads;
};

// The host does synchronous things (cuMemFree) too: stream nullptr, clock the host's.
struct Actor {
    Stream* stream;
    u64 sequence;
    const char* name;
    const Clock& clock() const { return stream ? stream->clock : driver().host; }
};

void check_range(const Actor& actor, const Range& range);
void check_free(const Actor& actor, Block* block);
// `check`: compare with what is still unordered from the block's earlier life (not for opportunistic reuse,
// which is ordered by having happened).
void check_alloc(const Actor& actor, Block* block, bool check);

// The call in progress was given a handle that has been destroyed.
void report_dead(const char* kind, const char* what);

std::vector<std::string>& race_reports();
void clear_races();

}  // namespace sim
