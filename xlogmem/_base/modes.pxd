# Enumerations of the core: accesses, states, outcomes, and modes of calls.

cdef enum AccessFlags:
    UNKNOWN_ACCESS = 0          # work that was queued without a prepare
    READ = 1
    WRITE = 2
    READ_WRITE = 3

cdef enum State:
    LIVE
    RETIRED                     # freed by its owner, and not yet: a window or export is open on it, or it was put off
    FREEING
    FREED
    LOCAL                       # live, and known to the cache of its stream alone
    CACHED                      # memory that was freed, in the cache of its stream

cdef enum Outcome:
    LAUNCHED                    # or may have been
    CANCELLED
    NOT_PREPARED                # the waits could not be queued
    ACCESSED                    # by the host, which is done: nothing is filed

cdef enum HandBack:
    HAND_BACK_ALL
    HAND_BACK_WRITES

cdef enum OnConflict:
    # The treatment of a window that conflicts with an open window on another stream.
    WAIT_FOR_CONFLICTS          # the host waits until that is closed
    WAIT_OR_COUNT               # the same, and what would wait for ever opens all the same
    REFUSE_CONFLICTS
    COUNT_CONFLICTS             # it opens all the same

cdef enum Untracked:
    # The treatment of memory that no runtime tracks.
    RAISE_UNTRACKED
    IGNORE_UNTRACKED
    ADOPT_UNTRACKED

cdef enum:
    NO_THREAD = 0

cdef enum AtOnce:
    NOT_AT_ONCE                 # nothing was done
    DONE
    REFUSED                     # for ever: the failure says why
    UNFINISHED                  # `prepare_rest` has to follow

cdef enum AfterCall:
    KEEP_STREAM_BUSY
    RELEASE_STREAM

cdef enum CaptureCheck:
    CHECK_CAPTURE
    CAPTURE_WAS_CHECKED         # the stream was just seen not to capture
