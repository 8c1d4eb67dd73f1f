// Reports of xlogmem's runtime: see reports.hpp.
#include "reports.hpp"

namespace check {

void Reported::allocated(u64 address, u64 bytes, const char* tag, xlogmem_check_piece kind) const {
    Stream* home = kind & XLOGMEM_CHECK_FOR_HOST ? nullptr : stream;
    auto pooled = xlogmem_check_piece(kind & ~XLOGMEM_CHECK_FOR_HOST);
    Operation what{Engine::kAllocate, site};
    if (pooled == XLOGMEM_CHECK_CACHED_PIECE) return engine.allocate_piece(stream, what, address, bytes, Pool::Caching);
    if (pooled == XLOGMEM_CHECK_SOME_PIECE) return engine.adopt_piece(address, bytes);
    u32 name = engine.name(tag ? tag : "");
    if (pooled == XLOGMEM_CHECK_WHOLE && engine.track(address, bytes, name)) return;  // the driver's own allocation
    engine.allocate_piece(home, what, address, bytes);
    engine.track(address, bytes, name);
}

void Reported::freed(u64 address, xlogmem_check_end end, bool guarded) const {
    Operation what{Engine::kDeallocate, site};
    // No work can come after a destroyed stream: the next owner has to come after all uses.
    if (end == XLOGMEM_CHECK_LATER || (end != XLOGMEM_CHECK_BY_HOST && !stream))
        engine.release_piece(what, address);
    else if (end == XLOGMEM_CHECK_CACHED)
        engine.return_piece(stream, what, address);
    else
        engine.free_piece(end == XLOGMEM_CHECK_BY_HOST ? nullptr : stream, what, address);
    if (guarded) engine.forget_piece(address);
}

void Reported::cached(const CachedPiece& piece) const {
    if (piece.returned)
        freed(piece.address, XLOGMEM_CHECK_CACHED, false);
    else
        allocated(piece.address, piece.bytes, nullptr, XLOGMEM_CHECK_CACHED_PIECE);
}

namespace {

Role role_of(int access) {
    static const Role roles[] = {Role::ReadWrite, Role::Read, Role::Write, Role::ReadWrite};
    return roles[access & 3];
}

}  // namespace

void Reported::opened(u64 window, const xlogmem_check_range* ranges, std::size_t count) const {
    Operation what{Engine::kUse, site};
    for (std::size_t i = 0; stream && i < count; i++)
        engine.declare(window, *stream, what, ranges[i].begin, ranges[i].bytes, role_of(ranges[i].access));
}

void Reported::operated(const char* name, const xlogmem_check_extent* extents, std::size_t count) const {
    std::vector<Range> ranges(count);
    for (std::size_t i = 0; i < count; i++) {
        const xlogmem_check_extent& extent = extents[i];
        ranges[i].begin = extent.begin;
        ranges[i].end = extent.begin + (extent.rows ? (extent.rows - 1) * extent.pitch : 0) + extent.width;
        ranges[i].role = role_of(extent.access);
        ranges[i].rows = rows_of(extent.pitch, extent.width, extent.rows);
        ranges[i].moved = extent.somewhere;
        if (extent.somewhere) ranges[i].anchor = extent.begin;
        ranges[i].absent = extent.somewhere == 2;
    }
    engine.work(*stream, {engine.name(name), site}, ranges.data(), ranges.size());
}

}  // namespace check
