// Device memory: the arena, its blocks, and the pools of the stream-ordered allocator.
//
// The arena is a sparse file mapped twice. Device addresses are in a mapping that the host may not touch (a
// host dereference is a SIGSEGV, as on a GPU); the simulator works through the alias. It is carved into
// blocks that never split or merge: a freed block is handed out again whole, last freed first, which is the
// reuse that hurts most.
#pragma once

#include "device.hpp"

#include <map>
#include <unordered_map>
#include <vector>

namespace sim {

// Fixed, so that a run is reproducible to the address: the first of these that is free. The first is clear of
// ThreadSanitizer's shadow, the second of AddressSanitizer's, and the third is for valgrind, with a smaller arena.
constexpr u64 kArenaBases[] = {0x1000000000ull, 0x200000000000ull, 0x400000000ull};

struct Pool;

// The access that each device has to a pool's memory: CUmemAccess_flags.
using PoolAccess = std::array<u8, kMaxDevices>;

struct Block {
    u64 address = 0, capacity = 0;
    u64 size = 0;              // as requested
    int device = 0;
    // Whose peers reach it: of cuMemAlloc, and of memory in place of a library's pool, which has it from cuMemAlloc.
    // Other stream-ordered memory has none.
    Context* owner = nullptr;
    Pool* pool = nullptr;      // nullptr: cuMemAlloc, or released to the system
    u64 buffer_id = 0;
    bool live = false;
    bool stream_ordered = false;
    bool graph_owned = false;  // allocated while capturing
    bool mapped = false;       // by cuMemMap: see mappings.hpp
    PoolAccess own_access{};  // of a graph's memory that of the pool at the capture; of a mapping, the own device's too
    Position freed;  // usable on every stream once this is reached
};

// Free blocks by capacity; the last one freed is at the back.
using FreeList = std::unordered_map<u64, std::vector<Block*>>;

struct Pool {
    u64 handle = 0;
    int device = 0;
    PoolAccess access{};  // of other devices: the pool's own may always read and write
    bool is_default = false;
    bool destroyed = false;  // the handle is gone, live blocks remain
    u64 live_blocks = 0;
    u64 used = 0, used_high = 0, reserved = 0, reserved_high = 0;
    u64 threshold = 0;
    u64 maximum = 0;
    int follow_dependencies = 1, opportunistic = 1, internal_dependencies = 1;
    FreeList free;
};

struct DeviceMemory {
    FreeList free;  // released by every pool
    u64 reserved = 0;  // by pools and cuMemAlloc
    Pool default_pool;
    Pool* current_pool = nullptr;
};

struct HostRange {
    u64 bytes;
    bool managed, registered;
    u64 number;  // its own: later memory may have the same address
    // Page-locked memory is mapped twice, as the arena is: the check takes the program's mapping from the program.
    u8* alias = nullptr;
};

struct Memory {
    u64 base = 0;  // where device addresses start
    u8* alias = nullptr;  // where the host reaches the same bytes
    u64 carved = 0;  // bytes of the arena in use
    std::vector<Block*> blocks;  // in order of their addresses
    std::array<DeviceMemory, kMaxDevices> devices;
    HandleTable<Pool> pools{0x2f00000000ull};
    std::map<u64, HostRange> pinned;
    u64 live_bytes = 0;
    u64 next_buffer_id = 1;
    u64 bytes;  // of the arena

    Memory();
    bool in_arena(u64 address) const { return address - base < bytes || in_window(address); }
    bool in_window(u64 address) const;  // of virtual memory
    u8* view(u64 address) const {  // where the simulator reaches these bytes
        if (address - base < bytes) return alias + (address - base);
        return in_window(address) ? view_in_window(address) : view_of_host(address);
    }
    u8* view_in_window(u64 address) const;
    u8* view_of_host(u64 address) const;
};
Memory& memory();

Block* find_block(u64 address);  // the block whose capacity holds the address, live or not
const std::pair<const u64, HostRange>* host_range(u64 address);  // of page-locked or managed memory; or nullptr
bool is_pinned(u64 address);  // or managed
bool is_managed(u64 address);
bool is_mapped(u64 address, u64 bytes);  // by the host

// True if a device operation may touch this address range. A freed block passes: the checker reports it.
bool on_device(u64 address, u64 bytes);
bool is_reached(u64 address, u64 bytes);  // by kernels: on the device, or all memory of the process where that is set

// True if work of this context may touch the memory at this address. Host memory and freed blocks pass.
bool can_access(const Context* context, u64 address, Use use);

CUresult allocate_ordered(Lock& lock, u64* address, u64 bytes, Pool* pool, Stream* stream);
CUresult allocate_now(Lock& lock, u64* address, u64 bytes, Context* context);
CUresult free_ordered(Lock& lock, u64 address, Stream* stream);
CUresult free_now(Lock& lock, u64 address);
void free_at_once(u64 address);  // waits for nothing
CUresult allocate_host(void** address, u64 bytes, bool managed);  // page-locked
CUresult free_host(Lock& lock, u64 address, bool managed);
void trim_pool(Pool* pool, u64 keep);
void trim_to_thresholds();  // what a synchronize does
void destroy_pool(Pool* pool);
void reset_memory();
// Before the driver returns "out of memory" it reclaims unused memory of pools, and waits for frees in flight.
void reclaim(Lock& lock, int device);
void poison_fresh(u64 address, u64 bytes);

}  // namespace sim
