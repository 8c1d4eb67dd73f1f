/* xlogmem's C table: the core for callers without the GIL, and its way to a resource that is not written in Python.
 *
 * This header is a promise to outsiders.  Structures grow at their end only, and then XLOGMEM_TABLE_VERSION stays; it
 * changes with any other change.  There is nothing to link to: the table comes in a capsule.
 *
 *     const xlogmem_table *table = PyCapsule_Import(XLOGMEM_TABLE, 0);
 *     if (table->version != XLOGMEM_TABLE_VERSION || table->size < XLOGMEM_SIZE_WITH_USES) ...refuse
 *
 * `size` is compared with what the caller needs: XLOGMEM_SIZE_WITH_GRAPHS for captures and graphs, XLOGMEM_SIZE_WITH_USES
 * for uses, XLOGMEM_SIZE_WITHOUT_USES for memory alone.  xlogmem.hpp has all of this for C++.
 *
 * Functions that are not said to need the GIL may be called with it or without it, from any thread.  They take it only
 * to call a resource that is written in Python, to look for signals where a `prepare` waits on the host, for uses that
 * name memory of another device than the runtime's, and for what happens in a capture of a graph (not for launches of the
 * graph).  Uses release it where they may wait, if the caller holds it.
 * An `error` is filled in on failure alone, and is not NULL.  Functions throw nothing.  Where the host has no memory
 * for xlogmem's own tables, a line on stderr says so and the process is aborted.
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
    XLOGMEM_NOT_FOUND = 3,              /* no block of the runtime is alive around this address */
    XLOGMEM_STALE = 4,                  /* the block was freed */
    XLOGMEM_CAPTURING = 5,              /* the stream, or one that it has to wait for, captures a graph */
    XLOGMEM_CONFLICT = 6,               /* a conflicting use is open, and to wait for it was not wanted or never ends */
    XLOGMEM_LOST = 7,                   /* the device's context is broken */
    XLOGMEM_INVALID = 8                 /* an argument is wrong; nothing was done */
};

typedef struct xlogmem_error {
    int32_t kind;
    char text[XLOGMEM_TEXT];            /* ends with a zero */
} xlogmem_error;

typedef struct xlogmem_runtime xlogmem_runtime;
typedef struct xlogmem_use xlogmem_use;
typedef struct xlogmem_capture xlogmem_capture;
typedef struct xlogmem_graph xlogmem_graph;

enum xlogmem_access_kind {
    XLOGMEM_READ = 1,
    XLOGMEM_WRITE = 2,
    XLOGMEM_READ_WRITE = 3
};

/* Memory, and what a launch does with it.  Arrays of this structure cross the interface, so it never grows.
 * `generation` 0 means the block that is alive around `address` when the function is called; `address` 0 is then no
 * memory, as an empty array has it, and is passed over.  Any other `generation` means the block that `find` or
 * `identify` has filled in: `address` is not looked at, and the block is found stale once it was freed, even if another
 * block has its address by then. */
typedef struct xlogmem_access {
    uint64_t address;
    uint64_t generation;
    uint32_t slot;
    uint32_t access;                    /* xlogmem_access_kind */
} xlogmem_access;

/* For `prepare`, in place of a stream: the calling thread itself reads or writes memory until `finish`.  The host waits
 * for the work that uses the memory, which has to be page-locked or managed, or of a resource that declares
 * is_host_accessible; nothing is filed.  No flag but XLOGMEM_REFUSE_CONFLICTS and XLOGMEM_ANY_THREAD says anything
 * about it.  `wait` takes it too, and so does `allocate`, for memory that the host may use at once and that belongs to
 * no stream, where the runtime's own resource has memory that the host reaches; `deallocate` frees such memory.  No
 * other function takes it. */
#define XLOGMEM_HOST ((void *)~(size_t)1)

enum xlogmem_use_flags {
    XLOGMEM_REFUSE_CONFLICTS = 1,       /* `prepare` fails with XLOGMEM_CONFLICT where it would wait on the host */
    XLOGMEM_HAND_BACK_WRITES = 2,       /* handback="writes" of `xlogmem.use` */
    XLOGMEM_ANY_THREAD = 4,             /* another thread may finish the use, and so this one may wait for it */
    XLOGMEM_KEEPS_STREAM = 8            /* as if `hold_stream` had been called for this stream, until `close` */
};

/* How a capture begins; the first three are CUDA's modes. */
enum xlogmem_capture_mode {
    XLOGMEM_CAPTURE_GLOBAL = 0,
    XLOGMEM_CAPTURE_THREAD_LOCAL = 1,
    XLOGMEM_CAPTURE_RELAXED = 2,
    XLOGMEM_CAPTURE_OF_OTHERS = 3       /* the stream captures already; the caller, or a library, ends and launches it */
};

typedef struct xlogmem_counters {
    uint64_t live_bytes;
    uint64_t live_blocks;
    uint64_t pending_bytes;             /* freed, and perhaps still in use on the device */
    uint64_t allocations;
    uint64_t frees;
    uint64_t uses;                      /* filed, from whichever language */
    uint64_t waits;                     /* that were queued on streams */
    uint64_t records;                   /* of events */
    uint64_t host_waits;
} xlogmem_counters;

/* The operations of a DeviceRuntime.  Streams are CUstream handles; 0 is the legacy default stream. */
typedef struct xlogmem_table {
    uint32_t version;
    uint32_t size;                      /* of this structure, as the core was built */

    /* A hold on a DeviceRuntime (a PyObject*, borrowed), which lives until `close`; NULL for other objects.  Memory
     * that was not freed when the runtime is destroyed is freed then.  Needs the GIL.  Uses that are open at `close`
     * may be ended afterwards, and keep the runtime until then; nothing else may be called with a closed hold. */
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

    /* ---- from here on since XLOGMEM_SIZE_WITH_USES ---- */

    /* A hold, as from `open`, on the process's own runtime of a device: `xlogmem.get_runtime(device)`.  NULL with a
     * Python exception set.  Needs the GIL. */
    xlogmem_runtime *(*runtime_for)(int device);

    /* Before a launch: all accesses are validated, the waits that make the launch right are queued on its stream, and
     * from now on the blocks are not freed before `finish` or `cancel`.  Where a conflicting use is open on another
     * stream (one of the two writes) the host waits until it is closed.  Memory of other devices may be named as well,
     * where their runtimes track it and this device has access.  A stream that is named here first is ordinary: its
     * work on memory of other streams is recorded.  Returns 0, or 1 with the error filled in: then nothing is open,
     * and nothing may be launched.  `*use` is NULL where the accesses name no memory.  A signal whose handler raises
     * ends a wait with XLOGMEM_FAILED; a KeyboardInterrupt is raised again when Python goes on. */
    int (*prepare)(xlogmem_runtime *runtime, void *stream, const xlogmem_access *accesses, size_t count,
                   uint32_t flags, xlogmem_use **use, xlogmem_error *error);
    /* After the launch, with the hold of its `prepare`: files it and closes the use, always.  Returns 1 with the error
     * filled in if a stream of another library could not be ordered after the launch, or if the use was open in a
     * thread that has ended and others have gone on since.  NULL is accepted. */
    int (*finish)(xlogmem_runtime *runtime, xlogmem_use *use, xlogmem_error *error);
    /* Instead of `finish`, where nothing was enqueued.  NULL is accepted. */
    void (*cancel)(xlogmem_runtime *runtime, xlogmem_use *use);
    /* Order a stream after the uses of memory, without a use: after its writers (XLOGMEM_READ) or all its users.  Waits
     * on the host for conflicting uses that are open, as `prepare` does. */
    int (*wait)(xlogmem_runtime *runtime, void *stream, const xlogmem_access *access, xlogmem_error *error);

    /* The block around an address: fills in all of `access` but its kind; `address` becomes that of the block's first
     * byte.  `base` and `nbytes` may be NULL. */
    int (*find)(xlogmem_runtime *runtime, const void *ptr, xlogmem_access *access, uint64_t *base, size_t *nbytes,
                xlogmem_error *error);
    /* The same for whatever `DeviceRuntime.find_block` takes (a PyObject*, borrowed): blocks, buffers, arrays of any
     * library.  Returns 1 with a Python exception set.  Needs the GIL. */
    int (*identify)(xlogmem_runtime *runtime, void *object, xlogmem_access *access);
    /* Find out if the uses of a block are complete, without a wait; return when they are.  For the kind XLOGMEM_READ
     * those that write, for any other kind, as `find` leaves it, all. */
    int (*ready)(xlogmem_runtime *runtime, const xlogmem_access *access, int *ready, xlogmem_error *error);
    int (*synchronize)(xlogmem_runtime *runtime, const xlogmem_access *access, xlogmem_error *error);

    /* A promise of the caller: the stream is not destroyed before `release_stream`, or before `close`.  Calls with
     * other handles query the driver for the stream's identity, and record an event for each use, because the stream
     * may be gone afterwards.  Holds are counted. */
    int (*hold_stream)(xlogmem_runtime *runtime, void *stream, xlogmem_error *error);
    /* Returns 1 with XLOGMEM_NOT_FOUND if this runtime does not hold the stream. */
    int (*release_stream)(xlogmem_runtime *runtime, void *stream, xlogmem_error *error);

    /* `allocate` for several blocks on one stream, all or none; 0 bytes give NULL. */
    int (*allocate_many)(xlogmem_runtime *runtime, size_t count, const size_t *nbytes, void *stream, void **ptrs,
                         xlogmem_error *error);
    /* `deallocate` for several; NULLs are passed over. */
    void (*deallocate_many)(xlogmem_runtime *runtime, size_t count, void *const *ptrs, void *stream);

    /* Fills in the first `size` bytes, so that the structure may grow; with zeros in a forked child.  Makes no driver
     * call. */
    void (*counters)(xlogmem_runtime *runtime, xlogmem_counters *counters, size_t size);

    /* ---- from here on since XLOGMEM_SIZE_WITH_GRAPHS ---- */

    /* Begin a capture on a stream, as `xlogmem.capture` and, for XLOGMEM_CAPTURE_OF_OTHERS, `xlogmem.capturing`.  Until
     * `end_capture`, `prepare` orders what is captured on this stream and on those that join it; each of them stays until
     * then.  Memory that `allocate` has for such a stream is the graph's: it is handed out again when the graph is closed,
     * also if it is freed before, or was of an `allocate_many` that failed.  `accesses`, of a capture of others alone, are
     * what the other's own work in the graph does.  `mode` is an xlogmem_capture_mode. */
    int (*begin_capture)(xlogmem_runtime *runtime, void *stream, uint32_t mode, const xlogmem_access *accesses,
                         size_t count, xlogmem_capture **capture, xlogmem_error *error);
    /* Let a stream take part: it goes on after all that the captured stream has captured so far.  When the capture ends,
     * the captured stream comes after all that is captured on it. */
    int (*fork_capture)(xlogmem_runtime *runtime, xlogmem_capture *capture, void *stream, xlogmem_error *error);
    /* End the capture, and have its graph, which holds all memory that was used inside.  `graph` NULL gives the capture
     * up, and makes no graph.  The capture has ended on failure, too, but for XLOGMEM_CONFLICT: another thread has begun
     * it, in a mode other than XLOGMEM_CAPTURE_RELAXED, and has to end it.  A capture of others is ended here before they
     * end it themselves. */
    int (*end_capture)(xlogmem_runtime *runtime, xlogmem_capture *capture, xlogmem_graph **graph, xlogmem_error *error);
    /* A `xlogmem.Graph` of this runtime (a PyObject*, borrowed), which lives until `close_graph`.  NULL with a Python
     * exception set.  Needs the GIL. */
    xlogmem_graph *(*open_graph)(xlogmem_runtime *runtime, void *graph);

    /* `prepare` for a launch of the graph that the caller makes itself: one use of all its memory.  `finish` or `cancel`
     * follow.  XLOGMEM_INVALID if the graph was closed by Python. */
    int (*prepare_graph)(xlogmem_runtime *runtime, void *stream, xlogmem_graph *graph, uint32_t flags, xlogmem_use **use,
                         xlogmem_error *error);
    /* Launch a graph, of a capture that was not of others, as such a use.  On failure of the launch nothing is filed. */
    int (*launch_graph)(xlogmem_runtime *runtime, void *stream, xlogmem_graph *graph, xlogmem_error *error);
    /* Close a graph of `end_capture`, or end the hold of `open_graph`, when no call with it is under way.  Memory that was
     * freed meanwhile is free after the last launch.  NULL is accepted. */
    void (*close_graph)(xlogmem_runtime *runtime, xlogmem_graph *graph);
    /* The CUgraphExec of a graph; NULL if another library has captured it, or Python has closed it. */
    void *(*graph_handle)(xlogmem_runtime *runtime, xlogmem_graph *graph);
} xlogmem_table;

#define XLOGMEM_SIZE_WITHOUT_USES offsetof(xlogmem_table, runtime_for)
#define XLOGMEM_SIZE_WITH_USES (offsetof(xlogmem_table, counters) + sizeof(void *))
#define XLOGMEM_SIZE_WITH_GRAPHS (offsetof(xlogmem_table, graph_handle) + sizeof(void *))

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
