// Reports of xlogmem's runtime: see reports.hpp.
#include "reports.hpp"

namespace check {

void Reported::allocated(u64 address, u64 bytes, const char* tag, xlogmem_check_piece pooled) const {
    Operation what{Engine::kAllocate, site};
    if (pooled == XLOGMEM_CHECK_CACHED_PIECE) return engine.allocate_piece(stream, what, address, bytes, Pool::Caching);
    if (pooled == XLOGMEM_CHECK_SOME_PIECE) return engine.adopt_piece(address, bytes);
    u32 name = engine.name(tag ? tag : "");
    if (pooled == XLOGMEM_CHECK_WHOLE && engine.track(address, bytes, name)) return;  // the driver's own allocation
    engine.allocate_piece(stream, what, address, bytes);
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

void Reported::opened(u64 window, const xlogmem_check_range* ranges, std::size_t count) const {
    static const Role roles[] = {Role::ReadWrite, Role::Read, Role::Write, Role::ReadWrite};
    Operation what{Engine::kUse, site};
    for (std::size_t i = 0; stream && i < count; i++)
        engine.declare(window, *stream, what, ranges[i].begin, ranges[i].bytes, roles[ranges[i].access & 3]);
}

}  // namespace check
