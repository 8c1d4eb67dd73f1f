// Reports of xlogmem's runtime (hooks.hpp), as calls of the engine, for the hooks of every front end. A front end finds
// the stream and the place, and holds its lock.
#pragma once

#include "engine.hpp"

#include "hooks.hpp"

namespace check {

// A caching pool hands a piece out, or takes the piece again.
struct CachedPiece {
    u64 address = 0, bytes = 0;
    bool returned = false;
};

struct Reported {
    Engine& engine;
    Stream* stream;  // nullptr: it is gone
    u32 site;

    void allocated(u64 address, u64 bytes, const char* tag, xlogmem_check_piece kind) const;
    void freed(u64 address, xlogmem_check_end end, bool guarded) const;
    void cached(const CachedPiece& piece) const;
    void opened(u64 window, const xlogmem_check_range* ranges, std::size_t count) const;
    void operated(const char* name, const xlogmem_check_extent* extents, std::size_t count) const;
};

// The table of a front end. `FrontEnd` has static functions: find_site(); with(context, stream, feed), which calls
// feed(Reported) under the front end's lock unless there is no driver any more; note(context, stream, piece), which may
// feed the piece later; with_engine(feed); replaces_pool(begun); queries_for_itself(whose); site_of_caller(); and
// act_for(site); operator_begins(); operator_launches(); and with_operator(feed), which
// calls feed(Reported) for the stream of the thread's last launch of a kernel that the front end knows nothing about.
template <class FrontEnd>
struct Hooks {
    static void piece_allocated(void* context, void* stream, u64 address, u64 bytes, const char* tag, int pooled) {
        auto kind = xlogmem_check_piece(pooled);
        if (kind == XLOGMEM_CHECK_CACHED_PIECE) return FrontEnd::note(context, stream, {address, bytes, false});
        FrontEnd::with(context, stream, [&](const Reported& to) { to.allocated(address, bytes, tag, kind); });
    }
    static void piece_freed(void* context, void* stream, u64 address, xlogmem_check_end end, int guarded) {
        if (end == XLOGMEM_CHECK_CACHED && !guarded) return FrontEnd::note(context, stream, {address, 0, true});
        FrontEnd::with(context, stream, [&](const Reported& to) { to.freed(address, end, guarded); });
    }
    static void window_opened(u64 window, void* context, void* stream, const xlogmem_check_range* ranges,
                              std::size_t count) {
        FrontEnd::with(context, stream, [&](const Reported& to) { to.opened(window, ranges, count); });
    }
    static void window_closed(u64 window, int launched) {
        FrontEnd::with_engine([&](Engine& engine) { engine.close_window(window, launched); });
    }
    static void piece_recorded(void* context, void* stream, u64 address) {
        FrontEnd::with(context, stream, [&](const Reported& to) {
            if (to.stream) to.engine.record_piece(*to.stream, address);
        });
    }
    static void operator_ends(const char* name, const xlogmem_check_extent* extents, std::size_t count) {
        FrontEnd::with_operator([&](const Reported& to) { to.operated(name, extents, count); });
    }
    static const xlogmem_check_hooks* table() {
        static const xlogmem_check_hooks all = {FrontEnd::find_site,
                                                piece_allocated,
                                                piece_freed,
                                                window_opened,
                                                window_closed,
                                                piece_recorded,
                                                FrontEnd::replaces_pool,
                                                FrontEnd::queries_for_itself,
                                                FrontEnd::site_of_caller,
                                                FrontEnd::act_for,
                                                FrontEnd::operator_begins,
                                                FrontEnd::operator_launches,
                                                operator_ends};
        return &all;
    }
};

}  // namespace check
