/* What the guard (guard.hpp) gives to preload.c, the library that is loaded before libc. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* libc's sigaction(): the library has its own, for the program. */
typedef int xlogmem_host_set_action(int, const struct sigaction*, struct sigaction*);

struct xlogmem_host_hooks {
    /* Memory that a system call reads or writes: before the call, true if its pages are open now; and after it. */
    bool (*before_call)(uint64_t begin, uint64_t bytes, int writes);
    void (*after_call)(uint64_t begin, uint64_t bytes);
    /* The same for a copy or a fill that the program has libc make, called from this instruction: only where it meets
       `bounds`, outside of which no page is protected. */
    bool (*before_copy)(uint64_t begin, uint64_t bytes, int writes, uint64_t instruction);
    const uint64_t* bounds;
    /* Memory ends: it is freed or unmapped. Only if this is needed. */
    bool (*is_needed)(void);
    void (*before_end)(uint64_t begin, uint64_t bytes);
    /* The handlers that the program has set for the guard's signals. */
    struct sigaction *segv, *trap;
};
