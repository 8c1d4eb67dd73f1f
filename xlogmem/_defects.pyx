"""Defects on purpose: every rule that the library lives by can be broken, to see whether somebody notices.

In a debug build (XLOGMEM_BUILD=debug) one defect at a time is planted by `plant`, or by ``XLOGMEM_DEFECT=name`` in
the environment, for the whole process; in a release build the places where they would be are not even compiled.
Such a place reads ``if planted(SOMETHING):`` and stands at the rule that it breaks.  What they are stands here, in one
table; no rule, no driver call and no other state may live here.
"""
import os
from collections import namedtuple

from libc.stdint cimport uint64_t

from xlogmem._cpp cimport atomic

__all__ = ["DEFECTS", "PlantedDefect", "plant", "reached"]

cdef atomic[int] selected                   # one for all compiled modules, which ask through `is_planted`
cdef atomic[uint64_t] hits

PlantedDefect = namedtuple("PlantedDefect", "number rule what")


def _named(*rows):
    return {name: PlantedDefect(number, rule, what) for number, name, rule, what in rows}


# The rule that is broken (a paragraph of the ordering rules, a weakness W of the contract), and what happens instead.
DEFECTS = _named(
    # order T after (S, n).
    (KNOWN_BEFORE_WAIT, "known-before-wait",
     "order T after (S, n): only if the wait succeeds is knowledge raised",
     "A stream counts as ordered before its wait is queued, even if the wait then fails."),
    (FENCE_COVERS_NEXT, "fence-covers-next",
     "order T after (S, n): a fence that covers n",
     "A fence is taken for the position after the newest that it covers too."),
    (LAST_WAIT_SKIPPED, "last-wait-skipped",
     "order T after (S, n): one wait per source stream",
     "Of several sources the last is not waited for."),
    (OLDER_NEED_KEPT, "older-need-kept",
     "order T after (S, n): one wait per source stream, for the newest position",
     "Of two positions on one source only the one that was found first is waited for."),
    (PINNED_FENCE_REUSED, "pinned-fence-reused",
     "terms, fence: one pinned by a call in flight is not re-recorded",
     "A full ring records its oldest fence again while another call is waiting for it."),
    (POSITION_SAMPLED_LATE, "position-sampled-late",
     "terms, fence: its position is sampled before the record call",
     "A fence claims what was committed while it was being recorded."),
    (KNOWLEDGE_SAMPLED_LATE, "knowledge-sampled-late",
     "terms, fence: what S knew is sampled before the record call",
     "A fence claims what its stream came to know while it was being recorded."),
    (FAILED_RECORD_FILED, "failed-record-filed",
     "terms, fence: an event of S that was recorded",
     "A fence whose record call failed is kept, and waiting for it waits for nothing."),
    (HOST_KNOWS_TOO_MUCH, "host-knows-too-much",
     "terms, knowledge: the newest position that the host is ordered after",
     "A host that waited for a fence counts as ordered after later positions of the stream too."),
    (ASKED_IS_COMPLETE, "asked-is-complete",
     "terms, knowledge: the newest position that the host is ordered after (W29)",
     "A fence that the host only asked about counts as complete."),
    # Hidden work, frontiers.
    (FRESH_WORK_IGNORED, "fresh-work-ignored",
     "hidden work: on the allocation stream of a fresh block (W6)",
     "What was filled without a recorder before the first use elsewhere is not waited for."),
    (OPAQUE_WORK_IGNORED, "opaque-work-ignored",
     "hidden work: on an opaque stream",
     "What was queued on an opaque stream without a recorder is not waited for."),
    (HIDDEN_TAKES_NO_POSITION, "hidden-takes-no-position",
     "hidden work: entries are raised to a touch of S",
     "Hidden work is raised to the position that its stream has already, which an old fence may cover."),
    (HIDDEN_RAISES_ONE_KIND, "hidden-raises-one-kind",
     "hidden work: every such entry is raised",
     "Only the allocation is raised, so a write filed later on the same stream hides what was queued after it."),
    (FRESH_UNTIL_PREPARE, "fresh-until-prepare",
     "terms, fresh: until a use on a foreign stream was filed",
     "A prepare elsewhere ends freshness, though its launch may be cancelled and more be filled."),
    (ONE_ENTRY_PER_STREAM, "one-entry-per-stream",
     "terms, frontier: one position for each kind and stream",
     "A use takes the place of another kind of entry of its stream: a write is filed as a read."),
    (BIRTH_TAKES_NO_POSITION, "birth-takes-no-position",
     "terms, position: one per allocation, taken after the resource's call",
     "Memory carries a position that its stream had before the allocation."),
    # Prepare.
    (READ_FORGETS_BIRTH, "read-forgets-birth",
     "prepare: a read orders after allocated and written entries",
     "A read is not ordered after the allocation."),
    (WRITE_FORGETS_READERS, "write-forgets-readers",
     "prepare: a write orders after all entries",
     "A write is not ordered after the readers of what it overwrites."),
    (MERGE_KEEPS_FIRST, "merge-keeps-first",
     "prepare: uses of one block are merged, R + W = RW",
     "A block that is read and written by one launch counts as read only."),
    (GENERATION_IGNORED, "generation-ignored",
     "prepare: identity is validated; a block is its generation (W18, W22)",
     "A handle that outlived its block names the block that came after it."),
    (CONFLICT_UNNOTICED, "conflict-unnoticed",
     "W11: a conflicting use that is not filed yet cannot be waited for",
     "Windows that conflict with an open one are neither counted nor refused."),
    (WAITS_BEFORE_VALIDATION, "waits-before-validation",
     "prepare: everything is validated before any wait (W10)",
     "A prepare that is refused has made its stream wait for something."),
    (WINDOWS_OPEN_LATE, "windows-open-late",
     "prepare: windows open in the acquisition that validates",
     "A block can be freed while its next user queues the waits for it."),
    (FAILED_WINDOW_STAYS_OPEN, "failed-window-stays-open",
     "prepare: if a wait fails the windows close",
     "Blocks of a failed prepare are never freed."),
    (POSITION_AT_PREPARE, "position-at-prepare",
     "finish: takes its position after the work was queued",
     "A launch is filed under a position taken before it, which a fence recorded meanwhile covers."),
    # Finish, cancel, other ways out.
    (FINISH_REMOVES_ALL, "finish-removes-all",
     "finish: a write removes the entries of its ticket, nothing else (W2, W3)",
     "A write forgets the uses that slipped in between its prepare and its finish."),
    (CHANGED_ENTRY_REMOVED, "changed-entry-removed",
     "finish: a write removes entries that have not changed since (W2, W3)",
     "A write forgets a later use that is filed under the same kind and stream as one it was ordered after."),
    (OPAQUE_ENTRY_REMOVED, "opaque-entry-removed",
     "hidden work: entries on opaque streams are never removed",
     "A write elsewhere makes the block forget that somebody may work on it on an opaque stream."),
    (OPAQUE_READ_IS_READ, "opaque-read-is-read",
     "hidden work: uses on opaque streams are filed as written",
     "A reader is not ordered after somebody who read on an opaque stream, and wrote there without a recorder."),
    (COMMIT_STOPS_HALF_WAY, "commit-stops-half-way",
     "finish: files in every block (W8)",
     "The last of several blocks does not learn of the launch."),
    (EXCEPTION_FILES_NOTHING, "exception-files-nothing",
     "any other way out: files conservatively (W9)",
     "A launch that was followed by an exception is forgotten."),
    (DROPPED_WINDOW_FORGOTTEN, "dropped-window-forgotten",
     "any other way out: files conservatively (W9)",
     "A launch whose recorder was dropped is forgotten."),
    (LATE_USE_VOIDS_COMMIT, "late-use-voids-commit",
     "W7: a use that is registered too late changes nothing",
     "A launch is forgotten because something was registered after its preflight."),
    (CANCEL_REMOVES_ENTRIES, "cancel-removes-entries",
     "cancel: nothing was launched, nothing changes",
     "A cancelled launch makes its blocks forget all uses."),
    (HAND_BACK_SKIPPED, "hand-back-skipped",
     "hand-back: opaque homes are ordered after the launch",
     "The owner of an opaque stream is not ordered after uses elsewhere."),
    (HAND_BACK_FORGETS_READS, "hand-back-forgets-reads",
     "hand-back: after all uses",
     "The owner of an opaque stream is not ordered after reads elsewhere, and may overwrite."),
    (HAND_BACK_GIVES_UP, "hand-back-gives-up",
     "hand-back: if the wait cannot be queued the host waits",
     "An opaque home that cannot wait is left unordered."),
    # Work without a window.
    (RECORD_REMOVES_ENTRIES, "record-removes-entries",
     "record_block_use: removes nothing (W4)",
     "Work that waited for nobody makes its block forget all other uses."),
    (UNKNOWN_ACCESS_IS_READ, "unknown-access-is-read",
     "record_block_use: is filed as written (W5)",
     "Later readers are not ordered after work of unknown access."),
    (RECORD_ENDS_FRESHNESS, "record-ends-freshness",
     "record_block_use: keeps freshness",
     "Work that waited for nobody ends the protection of what was filled without a recorder."),
    (LATE_RECORD_LOST, "late-record-lost",
     "record_block_use: on a retired block it files, then raises",
     "Work recorded on a block that waits for its free is forgotten."),
    # Free.
    (FREE_FORGETS_READERS, "free-forgets-readers",
     "free: waits for the whole frontier",
     "A free is not ordered after the readers of the block."),
    (FREE_FORGETS_WRITERS, "free-forgets-writers",
     "free: waits for the whole frontier (W3)",
     "A free is not ordered after the writers of the block."),
    (WAITS_ON_ANOTHER_STREAM, "waits-on-another-stream",
     "free: the waits are queued on the freeing stream (W20)",
     "A free on a stream that the caller named waits on the allocation stream."),
    (FREED_INSIDE_WINDOW, "freed-inside-window",
     "free: with an open window the last close frees (W1)",
     "A block is freed between the prepare and the finish of its user."),
    (EVERY_CLOSE_CLAIMS, "every-close-claims",
     "finish: claims retired blocks whose last window this was",
     "The first close frees a block that others still use."),
    (RETIRED_USE_LOST, "retired-use-lost",
     "finish: files in every block, then claims",
     "The free of a block that was freed inside a window is not ordered after that launch."),
    (UNLINKED_AFTER_FREE, "unlinked-after-free",
     "free: unlinked from the address index before the resource gets the bytes",
     "An address that is being freed, and may be somebody else's already, still names the old block."),
    (COLLISION_IGNORED, "collision-ignored",
     "W19: the old block of an address that is handed out again is the corrupt one",
     "Two live blocks share an address, and both will be freed."),
    (FREE_FAILURE_IGNORED, "free-failure-ignored",
     "free: a failure is raised (W32)",
     "A free that the resource refused counts as done."),
    (FAILED_FREE_NOT_RELINKED, "failed-free-not-relinked",
     "free: a failure relinks the block (W31)",
     "A block whose free failed is not found by its address any more."),
    (FAILED_FREE_FORGOTTEN, "failed-free-forgotten",
     "finish: claimed frees that fail go to a retry list",
     "A block whose free failed inside another call is lost."),
    (DROPPED_NOT_DRAINED, "dropped-not-drained",
     "concurrency: the deferred list is drained by the next call",
     "Blocks dropped by the collector are never freed."),
    (HOST_WAITS_FOR_NOBODY, "host-waits-for-nobody",
     "free: on the host for Direct and for memory adopted without a stream (W18)",
     "Memory that is freed at once is freed while it is used."),
    (HOST_FORGETS_HOME, "host-forgets-home",
     "free: Direct frees after the frontier and the home",
     "What was queued on the home without a recorder still uses memory that is freed at once."),
    (OWNER_LET_GO_EARLY, "owner-let-go-early",
     "adopted memory: home ordered after the frontier before the owner's reference drops",
     "The owner of adopted memory may free it while it is used."),
    (OVERLAP_ADOPTED, "overlap-adopted",
     "adopted memory: partial overlap is refused",
     "Some bytes belong to two blocks, which know nothing of each other's uses."),
    # Streams that die, foreign streams.
    (LAST_TAKES_NO_POSITION, "last-takes-no-position",
     "streams that die: unregister touches, then records the last fence",
     "Whoever knew the stream's newest position is not ordered after hidden work of a dead stream."),
    (UNREGISTERED_IN_USE, "unregistered-in-use",
     "streams that die: refused with open windows and calls in flight",
     "The launch of an open window is queued after the last fence."),
    (UNREGISTER_LOOKS_ONCE, "unregister-looks-once",
     "streams that die: all of that is checked again after the record",
     "A stream that came into use while its last fence was recorded dies all the same."),
    (LATE_POSITION_LOST, "late-position-lost",
     "streams that die: all of that is checked again after the record",
     "The last fence does not cover what was filed while it was recorded."),
    (HEIR_FILES_NOTHING, "heir-files-nothing",
     "streams that die: (allocated, S, last) is filed",
     "A free by the heir is not ordered after what was queued on the dead home."),
    (TOMBSTONE_DROPPED_EARLY, "tombstone-dropped-early",
     "terms, fence: a dead stream's last one is not re-recorded",
     "The last fence of a dead stream is given up before it is complete."),
    (PLACE_COUNTS_ANEW, "place-counts-anew",
     "terms, stream: identity is the registration (W15)",
     "Positions of a new stream in a dead one's place count as the dead one's, known to the host."),
    (HANDLE_IS_IDENTITY, "handle-is-identity",
     "terms, stream: never the raw handle, which the driver reuses (W15)",
     "A new stream is taken for a destroyed one that had its handle."),
    (THREAD_STREAM_TRUSTED, "thread-stream-trusted",
     "W13: the per-thread default stream is another stream in every thread",
     "The handle of another thread's default stream is used as if it meant that stream."),
    (DEFAULT_STREAM_ORDINARY, "default-stream-ordinary",
     "decisions: the legacy and per-thread default streams are opaque (W14)",
     "What somebody queued on a default stream without a recorder is not waited for."),
    (OTHER_RUNTIME_STREAM_TAKEN, "other-runtime-stream-taken",
     "prepare: stream and backend are validated (W12)",
     "A stream of another runtime is taken for the stream of that number here."),
    (OTHER_DEVICE_STREAM_TAKEN, "other-device-stream-taken",
     "prepare: the device is validated (W17)",
     "A stream of another context is registered, on which our events cannot be recorded."),
    (OTHER_DEVICE_RESOURCE_TAKEN, "other-device-resource-taken",
     "W21: device, pool and resource are checked when they are put together",
     "A runtime orders the memory of one device on the streams of another."),
    (UNDECLARED_RESOURCE_TAKEN, "undeclared-resource-taken",
     "layers: a resource that cannot order frees refuses",
     "A resource that does not say how its frees are ordered is taken for a stream-ordered one."),
    (EMPTY_ARRAY_REFUSED, "empty-array-refused",
     "W24: an array of no elements is trivially safe",
     "An empty array is looked for at its meaningless address."),
    # Memory that others have.
    (LENT_WORK_IGNORED, "lent-work-ignored",
     "W23: who was lent memory may work on it at any time on the stream that he named",
     "What somebody queued on memory that he was lent, without telling, is not waited for."),
    (LENT_ENTRY_REMOVED, "lent-entry-removed",
     "W23: entries on the stream of a loan are never removed",
     "A write makes the block forget that somebody was lent it, and may work on it."),
    (GIVEN_BACK_UNFILED, "given-back-unfiled",
     "W23: what was queued before memory is given back is filed",
     "Once memory was given back, what its borrower queued is not waited for."),
    (FREED_WHILE_LENT, "freed-while-lent",
     "W23: a pin until the deleter runs",
     "A block is freed while somebody still has it."),
    (LENT_UNORDERED, "lent-unordered",
     "W23: a consumer's stream is ordered after the frontier",
     "Memory is lent to a stream that is not ordered after those who wrote it."),
    (OFFER_UNJOINED, "offer-unjoined",
     "W23: an interface names a stream that is ordered after all writers",
     "The stream that an interface names is not ordered after the writers on other streams."),
    # Accounting.
    (MARKER_BEFORE_FREE, "marker-before-free",
     "free: live becomes pending with a marker taken after the resource's call (W26)",
     "Bytes can be released before their free is queued."),
    (MARKER_TAKES_NO_POSITION, "marker-takes-no-position",
     "free: the marker is a new position (W26)",
     "Bytes are released by a fence that was recorded before their free."),
    (MERGED_MARKER_OLDER, "merged-marker-older",
     "W26: bytes are released by a position after their free",
     "Of two merged markers the older one releases the bytes of both."),
    (RELEASED_UNSEEN, "released-unseen",
     "W30: pending until the host has seen the free",
     "A reap releases bytes whatever the host has seen."),
    (BYTES_IN_NEITHER_COUNT, "bytes-in-neither-count",
     "concurrency: outstanding = live + pending at every moment (W27)",
     "While a block is being freed its bytes are counted nowhere."),
    (REAP_STOPS_AT_FAILURE, "reap-stops-at-failure",
     "W28: every stream is visited",
     "One failing stream keeps the bytes of all others."),
    # Edges.
    (CAPTURING_STREAM_USED, "capturing-stream-used",
     "capture: work on a capturing stream is refused (W16)",
     "Preflight and allocation go into a graph."),
    (CAPTURING_SOURCE_RECORDED, "capturing-source-recorded",
     "capture: a capturing source is refused (W16)",
     "A fence is recorded into a graph."),
    (CAPTURE_NOT_ASKED_AGAIN, "capture-not-asked-again",
     "capture: check again after recording (W16)",
     "A fence is kept that a capture, begun meanwhile, took into its graph."),
    (FREED_INTO_CAPTURE, "freed-into-capture",
     "capture: frees are deferred (W16)",
     "A free goes into a graph."),
    (CAPTURES_DISTURBED, "captures-disturbed",
     "capture: calls are made in relaxed mode (W16)",
     "Allocating, freeing or synchronizing spoils somebody's capture elsewhere."),
    (FORK_UNNOTICED, "fork-unnoticed",
     "fork: the child refuses every operation",
     "A forked child uses streams and memory that are not its own."),
)


cdef bint is_planted(Defect defect) noexcept nogil:
    if selected.load() != defect:
        return False
    hits.fetch_add(1)
    return True


def plant(name):
    """Plant a defect in this process, instead of the one planted before; None: in none.

    Raises
    ------
    ValueError
        There is no defect of this name.
    RuntimeError
        This is a release build.
    """
    if name is not None and name not in DEFECTS:
        raise ValueError(f"defect {name!r} is unknown; choose one of {', '.join(DEFECTS)}")
    if name is not None and not COMPILED_IN:
        raise RuntimeError(f"defect {name!r} cannot be planted: this is a release build. Make a debug build with "
                           "XLOGMEM_BUILD=debug pip install -e .")
    selected.store(NO_DEFECT if name is None else DEFECTS[name].number)
    hits.store(0)


def reached():
    """How often the code broke its rule since the last `plant`."""
    return hits.load()


plant(os.environ.get("XLOGMEM_DEFECT") or None)
