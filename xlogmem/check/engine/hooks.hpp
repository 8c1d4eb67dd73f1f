// What xlogmem's runtime reports to a check: memory that it hands out and takes again, and what launches declare.
//
// The runtime has a pointer to such a table, null where there is no check (core/watched.pxi); a front end has one with
// its own functions, which feed the engine. They are called by any thread, with the runtime's lock or without, and so
// take no lock of Python's and wait for nothing; but for find_site, which is called without a lock, before the others.
// Streams are named as the driver does it: the context, and the handle there.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum xlogmem_check_end {
    XLOGMEM_CHECK_ORDERED = 0,  // freed on the stream, after all that this one has queued
    XLOGMEM_CHECK_BY_HOST = 1,  // freed by the host, which has waited
    XLOGMEM_CHECK_LATER = 2,  // a pool has it, and will order its next owner after all uses
};

struct xlogmem_check_range {
    uint64_t begin, bytes;
    int access;  // 1: reads, 2: writes, 3: both
};

struct xlogmem_check_hooks {
    // The calling thread is about to make a call of the others: where is it in the program?
    void (*find_site)(void);
    // `tag` is the block's, as UTF-8, or null; `pooled`: one of several pieces of an allocation.
    void (*piece_allocated)(void* context, void* stream, uint64_t address, uint64_t bytes, const char* tag, int pooled);
    // `guarded`: the resource goes on using the memory itself.
    void (*piece_freed)(void* context, void* stream, uint64_t address, enum xlogmem_check_end end, int guarded);
    void (*window_opened)(uint64_t window, void* context, void* stream, const xlogmem_check_range* ranges,
                          size_t count);
    void (*window_closed)(uint64_t window);
};
}
