// The interface between xlogmem's runtime and a check: allocations, frees, and declarations of launches.
//
// The runtime has a pointer to such a table, null where there is no check (core/watched.pxi); a front end has a table
// of its own functions, which feed the engine. Any thread calls these functions, with the runtime's lock or without, so
// they take no lock of Python's, make no driver call, and wait for the engine alone. The exception is find_site, which
// is called without a lock, before the others. Streams are named as the driver names them: the context, and the handle
// there.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum xlogmem_check_end {
    XLOGMEM_CHECK_ORDERED = 0,  // freed on the stream, after all that this one has queued
    XLOGMEM_CHECK_BY_HOST = 1,  // freed by the host, which has waited
    XLOGMEM_CHECK_LATER = 2,  // a pool has it, and will order its next owner after all uses
    XLOGMEM_CHECK_CACHED = 3,  // … after what the stream, and those that were recorded, have queued: see pools.hpp
};

enum xlogmem_check_piece {
    XLOGMEM_CHECK_WHOLE = 0,  // an allocation
    XLOGMEM_CHECK_PIECE = 1,  // one of several pieces of one
    XLOGMEM_CHECK_CACHED_PIECE = 2,  // … of a caching pool
    XLOGMEM_CHECK_SOME_PIECE = 3,  // … and it is not known for which stream
    XLOGMEM_CHECK_FOR_HOST = 4,  // besides one of the first two: of no stream, because the host has seen it idle
};

// Whose the queries of events and streams are, and what the host learns from one that succeeds. A library's pool of host
// memory learns from each of a library.
enum xlogmem_check_queries {
    XLOGMEM_CHECK_OF_PROGRAM = 0,  // that the work is done
    XLOGMEM_CHECK_OF_BUFFERS = 1,  // nothing: a library's, for buffers of its own that something else orders
    XLOGMEM_CHECK_OF_POOL = 2,  // a library's, of which that is not known: the host may have learned
};

struct xlogmem_check_range {
    uint64_t begin, bytes;
    int access;  // 1: reads, 2: writes, 3: both
};

// Of an operator: each row of memory begins `pitch` bytes behind the one before it, and has `width` bytes; without rows
// there is one, of `width` bytes.
struct xlogmem_check_extent {
    uint64_t begin, pitch, width, rows;
    int access;  // as above
    int somewhere;  // 1: some of these bytes, and it is not known which; 2: or none of them
};

struct xlogmem_check_hooks {
    // Finds the place in the program: the calling thread is about to call another function of the table.
    void (*find_site)(void);
    // `tag` is the block's tag, as UTF-8, or null; `pooled` is an xlogmem_check_piece.
    void (*piece_allocated)(void* context, void* stream, uint64_t address, uint64_t bytes, const char* tag, int pooled);
    // `guarded`: the resource goes on using the memory itself.
    void (*piece_freed)(void* context, void* stream, uint64_t address, enum xlogmem_check_end end, int guarded);
    void (*window_opened)(uint64_t window, void* context, void* stream, const xlogmem_check_range* ranges,
                          size_t count);
    void (*window_closed)(uint64_t window, int launched);
    // For pools of libraries. The pool has noted that this stream uses the piece, which is about to be freed.
    void (*piece_recorded)(void* context, void* stream, uint64_t address);
    // The calling thread's allocations from the driver take the place of a caching pool's memory, until this is 0.
    void (*replaces_pool)(int begun);
    // The calling thread's queries are a library's, from here on until this is 0: an xlogmem_check_queries.
    void (*queries_for_itself)(int whose);
    // The calling thread's place in the program, as a number; 0: there is none. May take the GIL, as find_site may.
    uint32_t (*site_of_caller)(void);
    // The calling thread does what was requested at this place, until this is 0: reports and calls of the driver have it.
    void (*act_for)(uint32_t site);
    // For operators of libraries, which say what they do where nothing is known of their kernels. The calling thread
    // begins one; it has made so many launches of such kernels since then; it ends one, which has done that on the
    // stream of the last of these launches, and at the place of that one.
    void (*operator_begins)(void);
    size_t (*operator_launches)(void);
    void (*operator_ends)(const char* name, const xlogmem_check_extent* extents, size_t count);
};
}
