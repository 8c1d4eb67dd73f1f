// What the check has to see of libc's calls: loaded before libc (LD_PRELOAD) into the programs that it starts.
//
// The guard of page-locked memory (cpp/host/guard.hpp) protects pages. System calls that meet such a page fail instead
// of faulting; so each call is reported before it is made, and the pages are open meanwhile. The guard also needs
// SIGSEGV and SIGTRAP: handlers that the program sets for them are kept, and called for signals that are not the
// guard's; and no thread blocks the two. The program's copies and fills of memory are reported likewise, where they
// meet such pages: each of their instructions would fault. Until the guard gives its functions, all calls go straight to
// libc.
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE  // a default of some systems, which puts functions of its own in place of those defined here
#include "host/hooks.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static const struct xlogmem_host_hooks* _Atomic hooks;

enum { kReads, kWrites, kMostParts = 64 };

static bool before(const void* begin, size_t bytes, int writes) {
    const struct xlogmem_host_hooks* guard = hooks;
    return guard && guard->before_call((uint64_t)begin, bytes, writes);
}

static void after(bool opened, const void* begin, size_t bytes) {
    int kept = errno;
    if (opened) hooks->after_call((uint64_t)begin, bytes);
    errno = kept;
}

static void before_parts(bool* opened, const struct iovec* parts, size_t count, int writes) {
    for (size_t i = 0; i < count && i < kMostParts; i++)
        opened[i] = before(parts[i].iov_base, parts[i].iov_len, writes);
}

static void after_parts(const bool* opened, const struct iovec* parts, size_t count) {
    for (size_t i = 0; i < count && i < kMostParts; i++) after(opened[i], parts[i].iov_base, parts[i].iov_len);
}

// libc's own function of the name of the one that is being defined.
#define FIND(name) \
    static __typeof__(name)* _Atomic found; \
    __typeof__(name)* real = found; \
    if (!real) found = real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

// A call of dlsym() that is the last of its function would return to another library, whose next one RTLD_NEXT would be:
// hence FIND here, too.
EXPORT xlogmem_host_set_action* xlogmem_host_watch_calls(const struct xlogmem_host_hooks* given) {
    FIND(sigaction);
    if (real) hooks = given;
    return real;
}

#define ONE(type, name, parameters, arguments, begin, bytes, writes) \
    EXPORT type name parameters { \
        FIND(name); \
        bool opened = before(begin, bytes, writes); \
        type result = real arguments; \
        after(opened, begin, bytes); \
        return result; \
    }

#define SEVERAL(type, name, parameters, arguments, parts, count, writes) \
    EXPORT type name parameters { \
        FIND(name); \
        bool opened[kMostParts] = {0}; \
        before_parts(opened, parts, (size_t)(count), writes); \
        type result = real arguments; \
        after_parts(opened, parts, (size_t)(count)); \
        return result; \
    }

// clang-format off
ONE(ssize_t, read, (int file, void* to, size_t n), (file, to, n), to, n, kWrites)
ONE(ssize_t, pread, (int file, void* to, size_t n, off_t at), (file, to, n, at), to, n, kWrites)
ONE(ssize_t, pread64, (int file, void* to, size_t n, off64_t at), (file, to, n, at), to, n, kWrites)
ONE(ssize_t, recv, (int socket, void* to, size_t n, int flags), (socket, to, n, flags), to, n, kWrites)
ONE(ssize_t, recvfrom, (int socket, void* to, size_t n, int flags, struct sockaddr* from, socklen_t* length),
    (socket, to, n, flags, from, length), to, n, kWrites)
ONE(size_t, fread, (void* to, size_t size, size_t n, FILE* file), (to, size, n, file), to, size * n, kWrites)
SEVERAL(ssize_t, readv, (int file, const struct iovec* to, int n), (file, to, n), to, n, kWrites)
SEVERAL(ssize_t, preadv, (int file, const struct iovec* to, int n, off_t at), (file, to, n, at), to, n, kWrites)
SEVERAL(ssize_t, preadv64, (int file, const struct iovec* to, int n, off64_t at), (file, to, n, at), to, n, kWrites)
SEVERAL(ssize_t, preadv2, (int file, const struct iovec* to, int n, off_t at, int flags), (file, to, n, at, flags),
        to, n, kWrites)
SEVERAL(ssize_t, recvmsg, (int socket, struct msghdr* to, int flags), (socket, to, flags), to->msg_iov, to->msg_iovlen,
        kWrites)

ONE(ssize_t, write, (int file, const void* from, size_t n), (file, from, n), from, n, kReads)
ONE(ssize_t, pwrite, (int file, const void* from, size_t n, off_t at), (file, from, n, at), from, n, kReads)
ONE(ssize_t, pwrite64, (int file, const void* from, size_t n, off64_t at), (file, from, n, at), from, n, kReads)
ONE(ssize_t, send, (int socket, const void* from, size_t n, int flags), (socket, from, n, flags), from, n, kReads)
ONE(ssize_t, sendto, (int socket, const void* from, size_t n, int flags, const struct sockaddr* to, socklen_t length),
    (socket, from, n, flags, to, length), from, n, kReads)
ONE(size_t, fwrite, (const void* from, size_t size, size_t n, FILE* file), (from, size, n, file), from, size * n,
    kReads)
SEVERAL(ssize_t, writev, (int file, const struct iovec* from, int n), (file, from, n), from, n, kReads)
SEVERAL(ssize_t, pwritev, (int file, const struct iovec* from, int n, off_t at), (file, from, n, at), from, n, kReads)
SEVERAL(ssize_t, pwritev64, (int file, const struct iovec* from, int n, off64_t at), (file, from, n, at), from, n,
        kReads)
SEVERAL(ssize_t, pwritev2, (int file, const struct iovec* from, int n, off_t at, int flags),
        (file, from, n, at, flags), from, n, kReads)
SEVERAL(ssize_t, sendmsg, (int socket, const struct msghdr* from, int flags), (socket, from, flags), from->msg_iov,
        from->msg_iovlen, kReads)
// clang-format on

// -- copies and fills -------------------------------------------------------------------------------------------------

#if defined(__x86_64__)

// libc's own. Before they are found, other libraries' constructors may copy, and dlsym() cannot be called everywhere.
static __typeof__(memmove)* real_copy;
static __typeof__(memset)* real_fill;

__attribute__((constructor)) static void find_copies(void) {
    real_copy = (__typeof__(memmove)*)dlsym(RTLD_NEXT, "memmove");
    real_fill = (__typeof__(memset)*)dlsym(RTLD_NEXT, "memset");
}

static __attribute__((noinline)) void* copy_slowly(void* to, const void* from, size_t n) {
    volatile char* target = to;
    const volatile char* source = from;
    bool is_forward = (uintptr_t)to < (uintptr_t)from;
    for (size_t i = 0; i < n; i++) target[is_forward ? i : n - 1 - i] = source[is_forward ? i : n - 1 - i];
    return to;
}

static __attribute__((noinline)) void* fill_slowly(void* to, int value, size_t n) {
    for (size_t i = 0; i < n; i++) ((volatile char*)to)[i] = (char)value;
    return to;
}

static inline void* copy(void* to, const void* from, size_t n) {
    return real_copy ? real_copy(to, from, n) : copy_slowly(to, from, n);
}

static inline void* fill(void* to, int value, size_t n) {
    return real_fill ? real_fill(to, value, n) : fill_slowly(to, value, n);
}

// Of nearly all copies neither side does.
static inline bool may_meet(const void* begin, size_t bytes) {
    const struct xlogmem_host_hooks* guard = hooks;
    return guard && (uint64_t)begin < __atomic_load_n(&guard->bounds[1], __ATOMIC_RELAXED) &&
           __atomic_load_n(&guard->bounds[0], __ATOMIC_RELAXED) < (uint64_t)begin + bytes;
}

static __attribute__((noinline)) void* copy_seen(void* to, const void* from, size_t n, void* caller) {
    bool written = may_meet(to, n) && hooks->before_copy((uint64_t)to, n, kWrites, (uint64_t)caller);
    bool read = may_meet(from, n) && hooks->before_copy((uint64_t)from, n, kReads, (uint64_t)caller);
    copy(to, from, n);
    after(written, to, n);
    after(read, from, n);
    return to;
}

static __attribute__((noinline)) void* fill_seen(void* to, int value, size_t n, void* caller) {
    bool written = hooks->before_copy((uint64_t)to, n, kWrites, (uint64_t)caller);
    fill(to, value, n);
    after(written, to, n);
    return to;
}

#define COPY(name) \
    EXPORT void* name(void* to, const void* from, size_t n) { \
        if (may_meet(to, n) || may_meet(from, n)) return copy_seen(to, from, n, __builtin_return_address(0)); \
        return copy(to, from, n); \
    }

COPY(memcpy)
COPY(memmove)

EXPORT void* memset(void* to, int value, size_t n) {
    if (may_meet(to, n)) return fill_seen(to, value, n, __builtin_return_address(0));
    return fill(to, value, n);
}

#endif

// -- memory that ends -------------------------------------------------------------------------------------------------

static void before_end(const void* begin, size_t bytes) {
    const struct xlogmem_host_hooks* guard = hooks;
    if (guard) guard->before_end((uint64_t)begin, bytes);
}

EXPORT int munmap(void* begin, size_t bytes) {
    FIND(munmap);
    before_end(begin, bytes);
    return real(begin, bytes);
}

EXPORT void free(void* begin) {
    FIND(free);
    const struct xlogmem_host_hooks* guard = hooks;
    if (begin && guard && guard->is_needed()) before_end(begin, malloc_usable_size(begin));
    real(begin);
}

EXPORT void* realloc(void* begin, size_t bytes) {
    FIND(realloc);
    const struct xlogmem_host_hooks* guard = hooks;
    if (begin && guard && guard->is_needed()) before_end(begin, malloc_usable_size(begin));
    return real(begin, bytes);
}

// -- signals ----------------------------------------------------------------------------------------------------------

// Where the program's handler for one of the guard's signals is kept.
static struct sigaction* kept(int number) {
    const struct xlogmem_host_hooks* guard = hooks;
    if (!guard) return NULL;
    return number == SIGSEGV ? guard->segv : number == SIGTRAP ? guard->trap : NULL;
}

EXPORT int sigaction(int number, const struct sigaction* wanted, struct sigaction* old) {
    FIND(sigaction);
    struct sigaction* handler = kept(number);
    if (!handler) return real(number, wanted, old);
    struct sigaction before = *handler;
    if (wanted) *handler = *wanted;
    if (old) *old = before;
    return 0;
}

EXPORT void (*signal(int number, void (*wanted)(int)))(int) {
    FIND(signal);
    struct sigaction* handler = kept(number);
    if (!handler) return real(number, wanted);
    void (*before)(int) = handler->sa_handler;
    memset(handler, 0, sizeof *handler);
    handler->sa_handler = wanted;
    return before;
}

static const sigset_t* without_ours(const sigset_t* set, int how, sigset_t* copy) {
    if (!set || !hooks || how == SIG_UNBLOCK) return set;
    *copy = *set;
    sigdelset(copy, SIGSEGV);
    sigdelset(copy, SIGTRAP);
    return copy;
}

EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
    FIND(pthread_sigmask);
    sigset_t copy;
    return real(how, without_ours(set, how, &copy), old);
}

EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* old) {
    FIND(sigprocmask);
    sigset_t copy;
    return real(how, without_ours(set, how, &copy), old);
}
