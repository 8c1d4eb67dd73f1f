// Allocation, free, reuse and the pools' accounting.
//
// Reuse is as hostile as the driver's rules allow: the block freed last, at once on the stream that freed it,
// and on another stream as soon as the free is ordered before the allocation (event dependencies or the
// host), or has simply happened (opportunistic). Fresh memory is full of 0xCD and freed memory of 0xDD,
// written in stream order.
#include "memory.hpp"

#include "capture.hpp"
#include "watch.hpp"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

// Filling gigabytes would take time and real memory: of a large block only the ends are poisoned.
constexpr u64 kPoisonWhole = u64(16) << 20, kPoisonEnd = u64(1) << 20;

u8 fresh() { return driver().config.unknown_kernels ? 0 : 0xCD; }

void poison(u64 address, u64 bytes, u8 value) {
    if (!driver().config.fills) return;
    u8* memory_view = memory().view(address);
    if (bytes <= kPoisonWhole) {
        memset(memory_view, value, bytes);
    } else {
        memset(memory_view, value, kPoisonEnd);
        memset(memory_view + bytes - kPoisonEnd, value, kPoisonEnd);
    }
}

// Multiples of 512 bytes up to 4 KiB, then eight sizes to each power of two.
u64 capacity_for(u64 bytes) {
    u64 granule = 512;
    while (bytes > 16 * granule) granule *= 2;
    return (bytes + granule - 1) / granule * granule;
}

bool happened(const Block* block) {
    return !block->freed.stream || block->freed.stream->reached(block->freed.sequence);
}

// The newest free block that this stream may have; *ordered says whether the calls order it after the free.
Block* take(FreeList& list, u64 capacity, const Pool* pool, const Stream* stream, bool* ordered) {
    auto found = list.find(capacity);
    if (found == list.end()) return nullptr;
    std::vector<Block*>& blocks = found->second;
    for (std::size_t i = blocks.size(); i-- > 0;) {
        Block* block = blocks[i];
        const Position& freed = block->freed;
        *ordered =
            !freed.stream || driver().engine.host_knows(freed.time) || (stream && freed.stream == stream) ||
            (stream && pool && pool->follow_dependencies && driver().engine.is_before(freed.time, *stream->order));
        bool opportunistic = happened(block) && (!pool || !block->pool || pool->opportunistic);
        if (!*ordered && !opportunistic) continue;
        blocks.erase(blocks.begin() + long(i));
        return block;
    }
    return nullptr;
}

Block* carve(u64 capacity) {
    Memory& m = memory();
    if (m.carved + capacity > m.bytes) return nullptr;
    Block* block = new Block;
    block->address = m.base + m.carved;
    block->capacity = capacity;
    m.carved += capacity;
    m.blocks.push_back(block);
    return block;
}

// Memory for an allocation, from the pool, the system or the untouched part of the arena, in this order.
Block* obtain(u64 bytes, Pool* pool, const Stream* stream, int device, bool* ordered) {
    DeviceMemory& own = memory().devices[device];
    if (bytes > memory().bytes) return nullptr;  // also keeps the rounding below from overflowing
    u64 capacity = capacity_for(bytes);
    if (pool)
        if (Block* block = take(pool->free, capacity, pool, stream, ordered)) return block;
    if (pool && pool->maximum && pool->reserved + capacity > pool->maximum) return nullptr;
    if (own.reserved + capacity > driver().config.memory) return nullptr;
    Block* block = take(own.free, capacity, nullptr, stream, ordered);
    if (!block) block = carve(capacity);
    if (!block) return nullptr;
    own.reserved += capacity;
    if (pool) {
        pool->reserved += capacity;
        pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    }
    return block;
}

void become_live(Block* block, u64 bytes, Pool* pool, int device) {
    Memory& m = memory();
    block->size = bytes;
    block->device = device;
    block->owner = nullptr;
    block->pool = pool;
    block->buffer_id = m.next_buffer_id++;
    block->live = true;
    block->stream_ordered = pool != nullptr;
    block->graph_owned = false;
    m.live_bytes += bytes;
    if (!pool) return;
    pool->live_blocks++;
    pool->used += block->capacity;
    pool->used_high = std::max(pool->used_high, pool->used);
}

void become_free(Block* block, Position freed) {
    Memory& m = memory();
    m.live_bytes -= block->size;
    block->live = false;
    block->freed = freed;
    DeviceMemory& own = m.devices[block->device];
    Pool* pool = block->pool;
    if (!pool) {
        own.reserved -= block->capacity;
        own.free[block->capacity].push_back(block);
        return;
    }
    pool->used -= block->capacity;
    pool->live_blocks--;
    pool->free[block->capacity].push_back(block);
    if (pool->destroyed) destroy_pool(pool);
}

}  // namespace

void reclaim(Lock& lock, int device) {
    Memory& m = memory();
    run_everything(lock);
    m.pools.each([&](Pool* pool, u64) {
        if (pool->device == device) trim_pool(pool, 0);
    });
}

void poison_fresh(u64 address, u64 bytes) { poison(address, bytes, fresh()); }

CUresult allocate_ordered(Lock& lock, u64* address, u64 bytes, Pool* pool, Stream* stream) {
    *address = 0;
    if (!bytes) return CUDA_SUCCESS;
    int device = pool->device;
    bool ordered = true;
    Block* block = nullptr;
    PoolAccess access = pool->access;
    if (stream->capture) {  // memory of a graph is the graph's own: never reused here
        if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (bytes <= memory().bytes) block = carve(capacity_for(bytes));
        pool = nullptr;
    } else {
        block = obtain(bytes, pool, stream, device, &ordered);
        if (!block) {
            reclaim(lock, device);
            block = obtain(bytes, pool, stream, device, &ordered);
        }
    }
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    become_live(block, bytes, pool, device);
    if (this_thread().replaces_pool) block->owner = stream->context->shared();
    Work work;
    work.name = this_thread().call;
    u64 start = block->address;
    work.run = [start, bytes] { poison(start, bytes, fresh()); };
    if (stream->capture) {
        block->graph_owned = true;
        block->own_access = access;
        memory().devices[device].reserved += block->capacity;
    }
    auto watch = [&] { return watch_alloc(stream, start, bytes); };
    if (CUresult error = submit(lock, stream, std::move(work), nullptr, watch)) {
        become_free(block, {});
        return error;
    }
    *address = start;
    return CUDA_SUCCESS;
}

CUresult allocate_now(Lock& lock, u64* address, u64 bytes, Context* context) {
    int device = context->device;
    bool ordered;
    Block* block = obtain(bytes, nullptr, nullptr, device, &ordered);
    if (!block) {
        reclaim(lock, device);
        block = obtain(bytes, nullptr, nullptr, device, &ordered);
    }
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    become_live(block, bytes, nullptr, device);
    block->owner = context->shared();
    poison(block->address, bytes, fresh());
    watch_alloc(nullptr, block->address, bytes);
    *address = block->address;
    return CUDA_SUCCESS;
}

CUresult free_ordered(Lock& lock, u64 address, Stream* stream) {
    if (!address) return CUDA_SUCCESS;
    make_room(lock, stream);  // first: it may release the lock, and the block may be freed meanwhile
    Block* block = find_block(address);
    if (!block || !block->live || block->address != address || block->mapped) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture && !block->graph_owned) return CUDA_ERROR_INVALID_VALUE;  // the capture stays intact
    Work work;
    work.name = this_thread().call;
    u64 bytes = block->capacity;
    work.run = [address, bytes] { poison(address, bytes, 0xDD); };
    bool captured = stream->capture != nullptr;
    Position position;
    auto watch = [&] { return watch_free(stream, address); };
    if (CUresult error = submit(lock, stream, std::move(work), &position, watch)) return error;
    if (captured) return CUDA_SUCCESS;  // a node of the graph: the memory stays the graph's
    become_free(block, position);
    return CUDA_SUCCESS;
}

CUresult free_now(Lock& lock, u64 address) {
    Block* block = find_block(address);
    if (!block || !block->live || block->address != address || block->mapped) return CUDA_ERROR_INVALID_VALUE;
    // cuMemFree waits for the device (CUDA 13: "may"), except for stream-ordered memory: there the caller has to have
    // waited. Where the caller is on another device, nothing says which of the two is meant: it waits for both.
    if (!block->stream_ordered && driver().config.free_waits) {
        std::vector<Context*> contexts;
        Context* current;
        if (!current_context(&current) && current->device != block->device) contexts.push_back(current);
        driver().contexts.each([&](Context* context, u64) {
            if (context->device == block->device) contexts.push_back(context);
        });
        for (Context* context : contexts) synchronize_context(lock, context);
        if (!block->live) return CUDA_ERROR_INVALID_VALUE;  // freed by another thread while we waited
    }
    free_at_once(address);
    return CUDA_SUCCESS;
}

void free_at_once(u64 address) {
    Block* block = find_block(address);
    watch_free(nullptr, address);
    poison(block->address, block->capacity, 0xDD);
    become_free(block, {});
}

void trim_pool(Pool* pool, u64 keep) {
    if (pool->reserved <= keep || pool->reserved == pool->used) return;
    DeviceMemory& own = memory().devices[pool->device];
    for (auto& entry : pool->free) {
        std::vector<Block*> kept;
        for (Block* block : entry.second) {
            if (pool->reserved <= keep || !happened(block)) {
                kept.push_back(block);
                continue;
            }
            pool->reserved -= block->capacity;
            own.reserved -= block->capacity;
            block->pool = nullptr;
            own.free[block->capacity].push_back(block);
        }
        entry.second = std::move(kept);
    }
}

void trim_to_thresholds() {
    memory().pools.each([](Pool* pool, u64) { trim_pool(pool, pool->threshold); });
}

namespace {

bool is_pending(const Pool* pool) {
    for (auto& entry : pool->free)
        if (!std::all_of(entry.second.begin(), entry.second.end(), happened)) return true;
    return false;
}

}  // namespace

// Live blocks keep a destroyed pool going; the last free ends it.
void destroy_pool(Pool* pool) {
    if (!pool->destroyed) memory().pools.remove(pool->handle);
    if (!pool->destroyed && is_pending(pool)) report_early_pool();
    pool->destroyed = true;
    if (pool->live_blocks) return;
    DeviceMemory& own = memory().devices[pool->device];
    for (auto& entry : pool->free) {
        for (Block* block : entry.second) {
            own.reserved -= block->capacity;
            block->pool = nullptr;
            own.free[entry.first].push_back(block);
        }
    }
    if (own.current_pool == pool) own.current_pool = &own.default_pool;
    delete pool;
}

void reset_memory() {
    Memory& m = memory();
    m.pools.each([](Pool* pool, u64) {
        trim_pool(pool, 0);
        pool->used_high = pool->used;
        pool->reserved_high = pool->reserved;
    });
    for (Block* block : m.blocks)
        if (block->live) return;
    if (m.live_bytes) return;  // mapped
    // Nothing is alive: start at the bottom of the arena again, so that a test sees the same addresses every
    // time.
    for (DeviceMemory& device : m.devices) device.free.clear();
    for (Block* block : m.blocks) delete block;
    driver().engine.forget_memory();
    m.blocks.clear();
    m.carved = 0;
}

}  // namespace sim
