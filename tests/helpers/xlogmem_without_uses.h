/* The header of the last commit without uses, unchanged from here on: tests/core/test_native_abi.py.
 *
 * xlogmem's C table: the core for callers without the GIL, and its way to a resource that is not written in Python.
 *
 * This header is a promise to outsiders.  Structures grow at the end only, and then XLOGMEM_TABLE_VERSION stays; it
 * changes with any other change.  There is nothing to link to: the table comes in a capsule.
 *
 *     xlogmem_table *table = PyCapsule_Import(XLOGMEM_TABLE, 0);
 *     if (table->version != XLOGMEM_TABLE_VERSION || table->size < sizeof(xlogmem_table)) ...refuse
 *
 * Functions that are not said to need the GIL may be called with it or without it, from any thread, and take it only
 * to call a resource that is written in Python.  They throw nothing.  Where the host has no memory for xlogmem's own
 * tables, a line on stderr says so and the process is aborted.
 */
#ifndef XLOGMEM_H
#define XLOGMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XLOGMEM_TABLE "xlogmem._table.table"
#define XLOGMEM_TABLE_VERSION 1
#define XLOGMEM_UPSTREAM "xlogmem.upstream"
#define XLOGMEM_TEXT 256

enum xlogmem_kind {
    XLOGMEM_FAILED = 1,
    XLOGMEM_OUT_OF_MEMORY = 2,
    XLOGMEM_NOT_FOUND = 3               /* from `record_use`: not memory of this runtime */
};

typedef struct xlogmem_error {
    int32_t kind;
    char text[XLOGMEM_TEXT];            /* ends with a zero */
} xlogmem_error;

typedef struct xlogmem_runtime xlogmem_runtime;

/* The operations of a DeviceRuntime.  Streams are CUstream handles; 0 is the legacy default stream. */
typedef struct xlogmem_table {
    uint32_t version;
    uint32_t size;                      /* of this structure, as the core was built */

    /* A hold on a DeviceRuntime (a PyObject*, borrowed), which lives until `close`; NULL for other objects.  Memory
     * that was not freed when the runtime is destroyed is freed then.  Needs the GIL. */
    xlogmem_runtime *(*open)(void *runtime);
    void (*close)(xlogmem_runtime *runtime);

    /* Memory that the runtime tracks, ordered on the stream.  The stream becomes opaque, if it is not one of the
     * runtime's own and the program named no other discipline for it: unrecorded work may be enqueued there.  From then
     * on the legacy default stream cannot be unregistered while the hold is open.  0 bytes give NULL.  Returns 0, or 1
     * with the error filled in. */
    int (*allocate)(xlogmem_runtime *runtime, size_t nbytes, void *stream, void **ptr, xlogmem_error *error);
    /* As `allocate`, but the memory is ready on every stream: the host has waited.  The memory is freed on the legacy
     * default stream. */
    int (*allocate_sync)(xlogmem_runtime *runtime, size_t nbytes, void **ptr, xlogmem_error *error);

    /* Free on the stream, after every recorded use.  A failure is logged, and raised by the next
     * DeviceRuntime.reap_pending; the memory stays allocated, and later calls try the free again.  Where a stream that
     * is named here, or has used the memory, captures a graph, later calls try again without a report.  Exception: if
     * the stream cannot be identified (it captures a graph on first use, or the driver fails), no later call can find
     * out the present meaning of the handle.  The memory then stays allocated until the runtime is destroyed. */
    void (*deallocate)(xlogmem_runtime *runtime, void *ptr, void *stream);
    void (*deallocate_sync)(xlogmem_runtime *runtime, void *ptr);

    /* Record that work on this stream, too, uses the memory into which `ptr` points, and that more work may follow
     * without another call: the memory is not handed out again, and no recorded use of it begins, before all work that
     * is queued there at that time.  Nothing orders the work itself.  The stream becomes opaque as in `allocate`.
     * Returns 0, or 1 with the error filled in: the memory is not this runtime's, or the stream is capturing a graph or
     * another device's. */
    int (*record_use)(xlogmem_runtime *runtime, void *ptr, void *stream, xlogmem_error *error);
} xlogmem_table;

enum xlogmem_flags {
    /* The functions work in the context that the table's caller has current, as RMM's resources do: a caller of RMM has
     * made the device current.  Without this flag the functions are called with the device's context current. */
    XLOGMEM_FINDS_DEVICE = 1,
    /* All memory comes from cuMemAllocFromPoolAsync, from one CUDA pool and without side effects, and is freed by
     * cuMemFreeAsync.  Then the driver is called directly, in the context in which the functions would be, once the
     * first allocation has shown which pool it is; calls that the driver refuses go through the functions. */
    XLOGMEM_CUDA_POOL = 2
};

/* A resource for xlogmem.ForeignMemoryResource, in a capsule of the name XLOGMEM_UPSTREAM.  Its functions are called
 * without the GIL, without any lock, and in the capture mode that the thread has; they must not throw.  They return 0,
 * or 1 with the error filled in. */
typedef struct xlogmem_upstream {
    uint32_t version;                   /* XLOGMEM_TABLE_VERSION */
    uint32_t size;                      /* of this structure */
    void *self;
    int (*allocate)(void *self, size_t nbytes, void *stream, uint64_t *ptr, xlogmem_error *error);
    int (*deallocate)(void *self, uint64_t ptr, size_t nbytes, void *stream, xlogmem_error *error);
    uint64_t flags;
} xlogmem_upstream;

#ifdef __cplusplus
}
#endif
#endif
