# Defects that can be planted in a debug build, one for each rule; see _defects.pyx, which names and explains them.

cdef extern from *:
    """
    #ifdef XLOGMEM_CHECKS
    #define XLOGMEM_DEFECTS 1
    #else
    #define XLOGMEM_DEFECTS 0
    #endif
    """
    const bint COMPILED_IN "XLOGMEM_DEFECTS"


cdef enum Defect:
    NO_DEFECT
    # Order T after (S, n).
    KNOWN_BEFORE_WAIT
    FENCE_COVERS_NEXT
    POSITION_SAMPLED_LATE
    KNOWLEDGE_SAMPLED_LATE
    LAST_WAIT_SKIPPED
    # Hidden work.
    HIDDEN_TAKES_NO_POSITION
    FRESH_IGNORED
    # Prepare, finish.
    WRITE_FORGETS_READERS
    OLDER_NEED_KEPT
    FINISH_REMOVES_ALL
    # Free.
    FREE_FORGETS_READERS
    FREE_FORGETS_WRITERS
    END_OF_DEFECTS


cdef bint is_planted(Defect defect) noexcept nogil


cdef inline bint planted(Defect defect) noexcept nogil:
    """Shall the code break this rule now?  Ask last in a condition: each yes is counted.  In a release build a constant
    that the compiler drops with whatever hangs on it."""
    return COMPILED_IN and is_planted(defect)
