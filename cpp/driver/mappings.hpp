// Virtual memory: ranges of addresses that a program reserves, and physical memory that it maps there.
//
// The addresses are in a window of their own, which begins to exist with the first reservation. As with the arena the
// host may not touch it, and the simulator works through a second window of the same size: what is mapped lies at the
// same place in both, so a range of several mappings is one range for the simulator too. Behind an unmapped range is
// memory that no address leads to, for work that is still under way.
//
// A mapping is a block of the engine's: it begins with cuMemMap, and ends with cuMemUnmap, which waits for nothing.
#pragma once

#include "memory.hpp"

#include <memory>

namespace sim {

constexpr u64 kGranularity = u64(2) << 20;

struct Physical {
    u64 handle = 0;
    CUmemAllocationProp properties{};
    u64 bytes = 0;
    u64 offset = 0;  // in the file that has all of it
    u64 references = 1, mappings = 0;
    bool fresh = true;
};

struct Mapping {
    Block block;
    Physical* physical = nullptr;  // nullptr: unmapped
};

struct Virtual {
    u64 base = 0, bytes = 0;
    u8* alias = nullptr;
    int file = -1;
    u64 end = 0;  // of the file
    std::map<u64, std::vector<u64>> spare;  // offsets in the file, by size
    std::map<u64, u64> reservations;
    std::map<u64, std::unique_ptr<Mapping>> mappings;
    HandleTable<Physical> physical{0x3800000000ull};
};
Virtual& virtual_memory();

CUresult reserve(u64* address, u64 bytes, u64 alignment, u64 hint);
CUresult end_reservation(u64 address, u64 bytes);
CUresult make_physical(Lock& lock, u64* handle, u64 bytes, const CUmemAllocationProp& properties);
void release_physical(Physical* physical);
CUresult map_memory(u64 address, u64 bytes, Physical* physical);
CUresult unmap_memory(u64 address, u64 bytes);

// The mappings that make up exactly this range, or with `whole` false that cover it; empty: there are none.
std::vector<Mapping*> mappings_of(u64 address, u64 bytes, bool whole);

}  // namespace sim
