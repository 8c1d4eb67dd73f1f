// Virtual memory: see mappings.hpp.
#include "mappings.hpp"

#include "watch.hpp"

#include <algorithm>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sim {

namespace {

struct Window {
    u64 base, bytes;
};
// The second is for ThreadSanitizer.
constexpr Window kWindows[] = {{0x300000000000ull, u64(16) << 40}, {0x2000000000ull, u64(256) << 30}};

bool open_window(Virtual& all) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (const Window& window : kWindows) {
        void* wanted = reinterpret_cast<void*>(window.base);
        void* got = mmap(wanted, window.bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != wanted) {
            if (got != MAP_FAILED) munmap(got, window.bytes);  // an old kernel takes the address as a hint
            continue;
        }
        void* alias = mmap(nullptr, window.bytes, PROT_NONE, flags, -1, 0);
        if (alias == MAP_FAILED) return false;
        madvise(alias, window.bytes, MADV_DONTFORK);
        all.alias = static_cast<u8*>(alias);
        all.base = window.base;
        all.bytes = window.bytes;
        all.file = memfd_create("xlogmem-sim-mapped", MFD_CLOEXEC);
        return all.file >= 0;
    }
    return false;
}

// Memory that no address leads to.
bool hide(u64 address, u64 bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    u8* view = memory().view(address);
    bool done = mmap(view, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
    if (done) madvise(view, bytes, MADV_DONTFORK);
    return done;
}

// The first free range, at or behind `from`.
u64 free_range(const Virtual& all, u64 bytes, u64 alignment, u64 from) {
    auto aligned = [&](u64 at) { return (at + alignment - 1) / alignment * alignment; };
    u64 at = aligned(from);
    for (const auto& [begin, size] : all.reservations) {
        if (begin + size <= at) continue;
        if (begin >= at + bytes) break;
        at = aligned(begin + size);
    }
    return at;
}

// Forgets mappings that ended, in this range.
void forget_unmapped(u64 address, u64 bytes) {
    auto& mappings = virtual_memory().mappings;
    for (auto it = mappings.begin(); it != mappings.end();) {
        const Block& block = it->second->block;
        bool inside = block.address < address + bytes && address < block.address + block.size;
        it = inside && !it->second->physical ? mappings.erase(it) : std::next(it);
    }
}

bool is_reserved(u64 address, u64 bytes) {
    const auto& reservations = virtual_memory().reservations;
    for (u64 at = address; at < address + bytes;) {
        auto after = reservations.upper_bound(at);
        if (after == reservations.begin()) return false;
        --after;
        if (after->first + after->second <= at) return false;
        at = after->first + after->second;
    }
    return true;
}

bool is_free(u64 address, u64 bytes) {
    for (const auto& [begin, mapping] : virtual_memory().mappings)
        if (mapping->physical && begin < address + bytes && address < begin + mapping->block.size) return false;
    return true;
}

void end_if_unused(Physical* physical) {
    Virtual& all = virtual_memory();
    if (physical->references || physical->mappings) return;
    memory().devices[std::size_t(physical->properties.location.id)].reserved -= physical->bytes;
    fallocate(all.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(physical->offset), off_t(physical->bytes));
    all.spare[physical->bytes].push_back(physical->offset);
    delete physical;
}

}  // namespace

Virtual& virtual_memory() {
    static auto& all = *new Virtual;
    return all;
}

CUresult reserve(u64* address, u64 bytes, u64 alignment, u64 hint) {
    Virtual& all = virtual_memory();
    alignment = std::max(alignment, kGranularity);
    if (!all.base && !open_window(all)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > all.bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    bool near = hint - all.base < all.bytes;
    u64 at = free_range(all, bytes, alignment, near ? hint : all.base);
    if (near && at - all.base > all.bytes - bytes) at = free_range(all, bytes, alignment, all.base);
    if (at - all.base > all.bytes - bytes || !hide(at, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    all.reservations[at] = bytes;
    *address = at;
    return CUDA_SUCCESS;
}

CUresult end_reservation(u64 address, u64 bytes) {
    auto& reservations = virtual_memory().reservations;
    auto found = reservations.find(address);
    if (found == reservations.end() || found->second != bytes || !is_free(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    forget_unmapped(address, bytes);
    reservations.erase(found);
    return CUDA_SUCCESS;
}

CUresult make_physical(Lock& lock, u64* handle, u64 bytes, const CUmemAllocationProp& properties) {
    Virtual& all = virtual_memory();
    int device = properties.location.id;
    if (!all.base && !open_window(all)) return CUDA_ERROR_OUT_OF_MEMORY;
    u64& reserved = memory().devices[std::size_t(device)].reserved;
    if (reserved + bytes > driver().config.memory) reclaim(lock, device);
    if (bytes > driver().config.memory || reserved + bytes > driver().config.memory) return CUDA_ERROR_OUT_OF_MEMORY;
    auto made = std::make_unique<Physical>();
    std::vector<u64>& spare = all.spare[bytes];
    if (spare.empty()) {
        if (ftruncate(all.file, off_t(all.end + bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
        spare.push_back(std::exchange(all.end, all.end + bytes));
    }
    made->offset = spare.back();
    spare.pop_back();
    made->properties = properties;
    made->bytes = bytes;
    made->handle = all.physical.add(made.get());
    reserved += bytes;
    *handle = made.release()->handle;
    return CUDA_SUCCESS;
}

void release_physical(Physical* physical) {
    if (--physical->references) return;
    virtual_memory().physical.remove(physical->handle);
    end_if_unused(physical);
}

CUresult map_memory(u64 address, u64 bytes, Physical* physical) {
    Virtual& all = virtual_memory();
    if (!is_reserved(address, bytes) || !is_free(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    u8* view = memory().view(address);
    int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
    if (mmap(view, bytes, PROT_READ | PROT_WRITE, flags, all.file, off_t(physical->offset)) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    madvise(view, bytes, MADV_DONTFORK);
    forget_unmapped(address, bytes);
    auto made = std::make_unique<Mapping>();
    made->physical = physical;
    Block& block = made->block;
    block.address = address;
    block.capacity = block.size = bytes;
    block.device = physical->properties.location.id;
    block.buffer_id = memory().next_buffer_id++;
    block.live = block.mapped = true;
    physical->mappings++;
    memory().live_bytes += bytes;
    all.mappings[address] = std::move(made);
    if (std::exchange(physical->fresh, false)) poison_fresh(address, bytes);
    watch_alloc(nullptr, address, bytes);
    return CUDA_SUCCESS;
}

CUresult unmap_memory(u64 address, u64 bytes) {
    std::vector<Mapping*> found = mappings_of(address, bytes, true);
    if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (Mapping* mapping : found) {
        Block& block = mapping->block;
        watch_free(nullptr, block.address);
        hide(block.address, block.size);
        block.live = false;
        memory().live_bytes -= block.size;
        Physical* physical = std::exchange(mapping->physical, nullptr);
        physical->mappings--;
        end_if_unused(physical);
    }
    return CUDA_SUCCESS;
}

std::vector<Mapping*> mappings_of(u64 address, u64 bytes, bool whole) {
    auto& mappings = virtual_memory().mappings;
    std::vector<Mapping*> found;
    auto next = mappings.upper_bound(address);
    u64 end = address + bytes, at = address;
    if (next == mappings.begin() || end < address) return {};
    for (--next; next != mappings.end() && at < end; ++next) {
        const Block& block = next->second->block;
        bool here = block.address <= at && at < block.address + block.size;
        if (!here || !next->second->physical || (whole && block.address != at)) return {};
        found.push_back(next->second.get());
        at = block.address + block.size;
    }
    return at < end || (whole && at != end) ? std::vector<Mapping*>{} : found;
}

}  // namespace sim
