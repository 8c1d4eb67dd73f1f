// The arena: reserving the address range, finding blocks, and checking addresses.
#include "mappings.hpp"

#include <algorithm>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace sim {

Memory::Memory() : bytes(driver().config.arena) {
    int file = memfd_create("xlogmem-sim", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, bytes)) {
        log_line("cannot create the arena's file");
        abort();
    }
    int flags = MAP_SHARED | MAP_NORESERVE;
    for (u64 candidate : kArenaBases) {
        void* wanted = reinterpret_cast<void*>(candidate);
        void* got = mmap(wanted, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, file, 0);
        if (got == wanted) base = candidate;
        if (base) break;
        if (got != MAP_FAILED) munmap(got, bytes);  // an old kernel takes the address as a hint
    }
    void* host_side = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    close(file);
    if (!base || host_side == MAP_FAILED) {
        log_line("cannot map the arena");
        abort();
    }
    // Fork gives the child no usable driver; without this a child's write would reach the parent's memory.
    madvise(host_side, bytes, MADV_DONTFORK);
    alias = static_cast<u8*>(host_side);
    for (int device = 0; device < kMaxDevices; device++) {
        Pool& pool = devices[device].default_pool;
        pool.device = device;
        pool.is_default = true;
        pool.handle = pools.add(&pool);
        devices[device].current_pool = &pool;
    }
}

Memory& memory() {
    static Memory& instance = *new Memory;
    return instance;
}

bool Memory::in_window(u64 address) const { return address - virtual_memory().base < virtual_memory().bytes; }

u8* Memory::view_in_window(u64 address) const { return virtual_memory().alias + (address - virtual_memory().base); }

namespace {

Block* find_mapped(u64 address) {
    auto& mappings = virtual_memory().mappings;
    auto after = mappings.upper_bound(address);
    if (after == mappings.begin()) return nullptr;
    Block& block = (--after)->second->block;
    return address - block.address < block.size ? &block : nullptr;
}

}  // namespace

Block* find_block(u64 address) {
    Memory& m = memory();
    if (m.in_window(address)) return find_mapped(address);
    if (address - m.base >= m.carved) return nullptr;
    auto after = std::upper_bound(m.blocks.begin(), m.blocks.end(), address,
                                  [](u64 wanted, const Block* block) { return wanted < block->address; });
    return after == m.blocks.begin() ? nullptr : *(after - 1);
}

const std::pair<const u64, HostRange>* host_range(u64 address) {
    auto& pinned = memory().pinned;
    auto after = pinned.upper_bound(address);
    if (after == pinned.begin()) return nullptr;
    --after;
    return address - after->first < std::max<u64>(after->second.bytes, 1) ? &*after : nullptr;
}

u8* Memory::view_of_host(u64 address) const {
    auto* found = host_range(address);
    bool is_alias = found && found->second.alias;
    return is_alias ? found->second.alias + (address - found->first) : reinterpret_cast<u8*>(address);
}

bool is_pinned(u64 address) { return host_range(address); }

bool is_managed(u64 address) {
    auto* found = host_range(address);
    return found && found->second.managed;
}

bool is_mapped(u64 address, u64 bytes) {
    constexpr u64 kPages = 4096;
    u64 page = u64(sysconf(_SC_PAGESIZE)), end = address + bytes;
    unsigned char resident[kPages];
    if (end < address) return false;
    for (u64 at = address & ~(page - 1); at < end; at += kPages * page)
        if (mincore(reinterpret_cast<void*>(at), std::min(end - at, kPages * page), resident)) return false;
    return true;
}

bool on_device(u64 address, u64 bytes) {
    if (Block* block = find_block(address)) {
        if (block->live && block->mapped) return !mappings_of(address, std::max<u64>(bytes, 1), false).empty();
        u64 size = block->live ? block->size : block->capacity;
        return address + bytes <= block->address + size && address + bytes >= address;
    }
    auto* found = host_range(address);
    return found && (!found->second.managed || bytes <= found->first + found->second.bytes - address);
}

bool is_reached(u64 address, u64 bytes) {
    if (on_device(address, bytes)) return true;
    bool elsewhere = !memory().in_arena(address) && !is_managed(address);
    return driver().config.pageable && elsewhere && is_mapped(address, bytes);
}

bool can_access(const Context* context, u64 address, Use use) {
    const Block* block = find_block(address);
    if (!block || !block->live || (block->device == context->device && !block->mapped)) return true;
    if (block->owner) {
        auto& peers = context->shared()->peers;
        return std::find(peers.begin(), peers.end(), block->owner) != peers.end();
    }
    const PoolAccess& access = block->pool ? block->pool->access : block->own_access;
    u8 needed = use == Use::Read ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return (access[std::size_t(context->device)] & needed) == needed;
}

}  // namespace sim
