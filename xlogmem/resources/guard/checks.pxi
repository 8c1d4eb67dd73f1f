# Kernels that fill and compare, and their results.
#
# A result is in pinned host memory, which the kernel marks as written: reading a result takes no driver call and no
# wait.  The result memory of an ended guard is used again once it is marked.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from xlogmem._base.cpp cimport atomic, vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.labels cimport Label, held
from xlogmem._driver cimport host_allocate, launch_kernel


cdef enum:
    THREADS = 256
    MOST_FILLING = 1024         # thread blocks of a launch
    MOST_CHECKING = 16
    RESULT_WORDS = 8            # of a thread block: see resources/guard_kernels.py
    WRITTEN_MARK = 6
    PAGE = 64 << 10             # bytes of results that are allocated at once
    LOOKS = 16                  # results that a call looks at

cdef uint64_t FILL_NEW = 0xCDCDCDCDCDCDCDCD
cdef uint64_t FILL_FREED = 0xDDDDDDDDDDDDDDDD


cdef int launch(GuardState* guard, Guarded* memory, int part, uint64_t poison, cy.CUstream stream, uint64_t* result,
                uint32_t* blocks, Failure* failure) except -1 nogil:
    """Fill a part of the memory (`result` is NULL) or compare it.  `blocks` is the number of thread blocks launched; in
    a comparison each writes a result."""
    cdef uint64_t front = guard.canary // 8
    cdef uint64_t inside = memory.nbytes // 8           # words that have nothing but bytes of the user
    cdef uint64_t end = memory.ptr + memory.nbytes
    cdef uint64_t first = front if part == INSIDE else 0
    cdef uint64_t gap_at = front if part == CANARIES else <uint64_t>-1
    cdef uint64_t gap = 8 * inside if part == CANARIES else 0
    cdef uint64_t count = memory.total // 8 - (inside if part == CANARIES else 0)
    cdef uint32_t select = part, most = MOST_FILLING if result == NULL else MOST_CHECKING
    cdef void* parameters[12]
    if part == INSIDE:
        count = (memory.nbytes + 7) // 8
    blocks[0] = <uint32_t>((count + THREADS - 1) // THREADS) if count < <uint64_t>most * THREADS else most
    parameters[0] = &result
    parameters[1] = &memory.base
    parameters[2] = &memory.ptr
    parameters[3] = &end
    parameters[4] = &memory.seed
    parameters[5] = &poison
    parameters[6] = &first
    parameters[7] = &count
    parameters[8] = &gap_at
    parameters[9] = &gap
    parameters[10] = &select
    parameters[11] = blocks
    if result == NULL:
        return launch_kernel(guard.tools.fill, blocks[0], THREADS, stream, parameters + 1, failure)
    return launch_kernel(guard.tools.check, blocks[0], THREADS, stream, parameters, failure)


cdef int fill_part(GuardState* guard, Guarded* memory, int part, uint64_t poison, cy.CUstream stream,
                   Failure* failure) except -1 nogil:
    cdef uint32_t blocks
    return launch(guard, memory, part, poison, stream, NULL, &blocks, failure)


cdef int check_part(GuardState* guard, Guarded* memory, int part, cy.CUstream stream, Failure* failure) except -1 nogil:
    """Queue a comparison, and have a later call read the result.  No other call may delete the record meanwhile."""
    cdef Check check
    cdef size_t i
    if take_result(guard.tools, &check.result, failure):
        return 1
    for i in range(MOST_CHECKING):
        mark_of(check.result, i)[0].store(0)
    check.memory = memory
    if launch(guard, memory, part, FILL_FREED, stream, check.result, &check.blocks, failure):
        give_result(guard.tools, check.result)
        return 1
    guard.lock.lock()
    memory.checks += 1
    guard.checks.push_back(check)
    guard.lock.unlock()
    return 0


# ---------------------------------------------------------------------------------------------- memory for results
cdef inline atomic[uint64_t]* mark_of(uint64_t* result, size_t block) noexcept nogil:
    return <atomic[uint64_t]*>(result + block * <size_t>RESULT_WORDS + <size_t>WRITTEN_MARK)


cdef bint is_written(Check* check) noexcept nogil:
    cdef uint32_t i
    for i in range(check.blocks):
        if mark_of(check.result, i)[0].load() == 0:
            return False
    return True


cdef int take_result(GuardTools* tools, uint64_t** result, Failure* failure) except -1 nogil:
    cdef void* page
    cdef size_t i
    tools.lock.lock()
    if tools.results.empty():
        sweep_abandoned_locked(tools)
    if tools.results.empty():
        tools.lock.unlock()
        if host_allocate(PAGE, &page, failure):
            return 1
        tools.lock.lock()
        for i in range(<size_t>PAGE // (<size_t>MOST_CHECKING * <size_t>RESULT_WORDS * 8)):
            tools.results.push_back(<uint64_t*>page + i * <size_t>MOST_CHECKING * <size_t>RESULT_WORDS)
    result[0] = tools.results.back()
    tools.results.pop_back()
    tools.lock.unlock()
    return 0


cdef void give_result(GuardTools* tools, uint64_t* result) noexcept nogil:
    tools.lock.lock()
    tools.results.push_back(result)
    tools.lock.unlock()


cdef void sweep_abandoned_locked(GuardTools* tools) noexcept nogil:
    cdef size_t i = 0
    while i < tools.abandoned.size():
        if is_written(&tools.abandoned[i]):
            tools.results.push_back(tools.abandoned[i].result)
            tools.abandoned[i] = tools.abandoned.back()
            tools.abandoned.pop_back()
        else:
            i += 1


# ---------------------------------------------------------------------------------------------- results
cdef void gather(GuardState* guard, size_t looks) noexcept nogil:
    """Look at up to `looks` results, and note the findings of those that are written."""
    cdef vector[uint64_t*] read
    cdef Check check
    cdef size_t i
    guard.lock.lock()
    looks = looks if looks < guard.checks.size() else guard.checks.size()
    while looks and not guard.checks.empty():
        looks -= 1
        if guard.cursor >= guard.checks.size():
            guard.cursor = 0
        if not is_written(&guard.checks[guard.cursor]):
            guard.cursor += 1
            continue
        check = guard.checks[guard.cursor]
        guard.checks[guard.cursor] = guard.checks.back()
        guard.checks.pop_back()
        note_result_locked(guard, &check)
        read.push_back(check.result)
        check.memory.checks -= 1
        delete_if_done_locked(check.memory)
    guard.lock.unlock()
    for i in range(read.size()):
        give_result(guard.tools, read[i])


cdef void note_result_locked(GuardState* guard, Check* check) noexcept nogil:
    """Note the violations in a result.  Each kind of violation is reported once for an allocation."""
    cdef uint64_t key, count
    cdef uint64_t* words
    cdef uint32_t i
    cdef int region
    for region in range(<int>FREED_TWICE):
        key, count = <uint64_t>-1, 0
        for i in range(check.blocks):
            words = check.result + i * <uint32_t>RESULT_WORDS
            key = words[region] if words[region] < key else key
            count += words[3 + region]
        if count and not check.memory.reported & <uint8_t>(1 << region):
            note_locked(guard, check.memory, <ViolationKind>region, key, count, NULL)


cdef void note_locked(GuardState* guard, Guarded* memory, ViolationKind kind, uint64_t key, uint64_t count,
                      Label* freed_again_by) noexcept nogil:
    cdef Finding finding
    memory.reported |= <uint8_t>(1 << <int>kind)
    finding.kind = kind
    finding.generation = memory.generation
    finding.ptr = memory.ptr
    finding.nbytes = memory.nbytes
    finding.offset = <int64_t>(key >> 8) - <int64_t>guard.canary
    finding.value = key & 0xFF
    finding.count = count
    finding.tag = held(memory.tag)
    finding.allocated_by = held(memory.allocated_by)
    finding.freed_by = held(memory.freed_by)
    finding.freed_again_by = held(freed_again_by)
    guard.findings.push_back(finding)


cdef void note_second_free_locked(GuardState* guard, Guarded* memory, Label* stack) noexcept nogil:
    note_locked(guard, memory, FREED_TWICE, <uint64_t>guard.canary << 8, 1, stack)
