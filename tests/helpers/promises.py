"""The ``promise`` marker: which numbered items of `docs/promises.md` the tests check.

``@pytest.mark.promise(55, 56)`` says that a test checks items 55 and 56, five at most.  At the end of a run one line
says how many of the items that have to be checked (COUNTED) were cited by tests that passed; an item that a failing
test cites, or one that is expected to fail, does not count.  ``-v`` adds what is missing and which rule replaces the
letter of an item.
"""
from __future__ import annotations

import pytest

ITEMS = range(1, 240)                                   # the promises of docs/promises.md
# Blocks, streams, uses, frees and the runtime; adaptors; slices and the glue of columns; operations that record
# themselves; the stress suites; device states; the order of releases; what a Python buffer does.
COUNTED = (*range(1, 127), *range(135, 155), 177, 183, *range(184, 191), *range(193, 203),
           *range(206, 212), *range(213, 216), 216, 217, 218, 221, 222, 232, *range(236, 240))
MOST = 5                                                # items that one test may cite

RULES = "docs/ordering.md"

# W1 to W77 answer weaknesses of the earlier implementation that the promises come from.  Names are rules of RULES.
#
# Ordering and lifetime: W1 last-close-claims; W2 write-removes-snapshot; W3 frontier-entries; W4, W5 record; W6
#     raise-entries; W7 late-use; W8 finish-files; W9 any-other-exit-files; W10 validate-before-wait; W11 conflict;
#     W12 one-runtime; W13 stream-identity; W14 own streams are non-blocking, blocking ones warn; W15 stream-identity,
#     unregister; W16 capture-refused, capture-relaxed, free-on-capturing; W17 an event is recorded on streams of its
#     own context, and any stream may wait for it; W18 the direct resource waits on the host; W19 address-collision;
#     W20 generation-is-identity, with read-only handles; W21 the making of a runtime checks its parts; W22
#     generation-is-identity; W23 adopt, export-ordered, export-pinned; W24 empty-is-safe; W25 views share one
#     frontier.
# Accounting and recovery: W26 marker-after-free; W27 counters are read in one step, under one lock; W28
#     reap-visits-all; W29 fence-behind-frees, poll-completes: no lock is held; W30 tombstone; W31 failed-free-stays;
#     W32 a failed free is raised from its own call; W33 budget; W34 retry-out-of-memory; W35 every path releases its
#     locks, and the next call tries again; W36 sticky-errors; W37 views own no events; W38 a dropped stream returns
#     to its pool; W39 as 94; W40 as 164; W41 finish-files; W42 as W10.
# Performance: W43 uses are merged once, by scratch fields of the block; W44 one ``use`` takes every form; W45
#     allocation-entry; W46 position-after-work; W47 known-is-free; W48 frontier-entries; W49 single-stream programs
#     record and wait for nothing; W50 no-call-under-lock; W51 fence-ring; W52 every allocation takes a stream; W53
#     xlogmem has a driver pool of its own, with a threshold; W54 the context is set once per public call; W55 as 225.
# Process, interpreter, threads: W56 fork; W57 exit; W58 finalizers-push, no-python-under-lock; W59 as W9; W60 the
#     caller's context is restored; W61 nothing synchronizes under a lock or the GIL, which host functions may need;
#     W62 peer-access, pool by pool, with both devices named; W64 alignment is 256; W65 odd device numbers and
#     re-entry are refused with an error.
# Buffers and their surroundings: W66 one snapshot has memory and epoch; W67 sticky-errors, with a reason of its own;
#     W68 writing needs a window; W69 context-replaced; W70 the order follows from the frontier; W71 as 120; W72 as
#     122; W73 tokens have 48 bytes and a version, with an error for each way not to resolve; W74 a runtime has one
#     state, and buffers know theirs; W75 log records are numbered and put aside under one lock, sinks run in a thread
#     of the log, without locks; W77 tests can fail: twins, planted defects, a simulated driver,
#     ``XLOGMEM_REQUIRE_CUDA=1``.

# item -> the rule that replaces its letter, and why.  A test that cites such an item checks the replacing rule.
REPLACED: dict[int, tuple[str, str]] = {
    3: ("a tag is a str, and None where there is none",
        "the field's terms; Python strings are copied and compared by text anyway"),
    8: ("two identities are equal if their generations are; the other fields describe the block and cannot be set",
        "W22: the generation alone is identity, so a disagreeing field can never split a block in two"),
    10: ("LIVE, RETIRED (freed by its owner, the free waits for a window or a capture), FREED (the free is queued)",
         f"{RULES}, free; quarantine happens below the core, in an adaptor"),
    19: ("the handle stays; its state is RETIRED while the free has to wait, FREED once it is queued; the stream given "
         "to the free orders it, else the allocation stream",
         "W31: a free inside a window, and which stream frees"),
    24: ("the use is recorded as a position of the stream, and the free waits for it; no event is made",
         f"{RULES}: frontiers hold positions, never events"),
    26: ("there is no event to fail: UseAfterFreeError and StreamMisuseError remain",
         f"{RULES}, record_block_use: the work is queued already, refusing to record it would leave it unprotected"),
    27: ("a resource declares how its frees are ordered (`order`), the core tracks whatever it hands out",
         "tracking is not a backend's job; a resource that declares nothing is refused"),
    30: ("a write removes the entries that its own prepare was ordered after, and no others",
         "W2, W3: a finish must not forget readers and writers that it never fenced"),
    33: ("PoolMemoryResource and GuardResourceAdaptor are resources like others",
         "a pool and a guard need no interface of their own"),
    35: ("live_bytes, pending_bytes, bytes_outstanding, counters() and a block's frontier",
         "pending_use_event_count has nothing to count: a use makes no event (W45, W46)"),
    36: ("a frontier has at most one entry for each kind and stream; a fresh block's is its allocation",
         "W48: outstanding reads must not grow without bound"),
    37: ("zero bytes are a block of no bytes, for which neither the resource nor the driver is called",
         "RMM's allocations of no bytes succeed, and programs rely on that"),
    40: ("an allocation takes a position and records nothing; a fence is recorded when another stream needs one",
         "W6 and W45: an event recorded at once predates the fill and costs every single-stream program"),
    41: ("an allocation records no event, so none can fail",
         "W45: no event on the fast path"),
    42: ("the old entry is poisoned and never freed, the new block lives",
         "W19: a core that refuses the new block frees an address that another resource owns"),
    45: ("an entry holds positions, its generation and its home; the driver owns the memory",
         f"{RULES}: frontiers hold positions, never events"),
    46: ("a block of another device or runtime is refused with StreamMisuseError, before anything else",
         "W12, W17, W40: handles carry the identity of their runtime"),
    47: ("the successor of an unregistered stream frees its blocks; such a stream is refused where a free names it",
         f"{RULES}, streams that are unregistered (W15): refusing would leak the block for good"),
    49: ("the waits of a free are queued without the lock, one for each source stream, and known ones are left out",
         f"{RULES}, free and order T after (S, n) (W47, W50)"),
    51: ("live becomes pending after the free was queued, with a marker taken after it",
         "W26: bytes must not be reapable before their free is in the stream"),
    56: ("every stream is visited, and the failed ones alone stay pending",
         "W28: one bad stream must not starve the others"),
    59: ("bytes on an unregistered stream stay pending until the host has seen its last fence",
         "W30: a stream that cannot be resolved is not a free that is complete"),
    60: ("the error names the driver call and the reaping",
         "W29: a reap waits for an event behind the free, not for the whole stream"),
    61: ("driver.fail(\"cuEventSynchronize\") makes a reap fail; the runtime needs no second form of it",
         "W77: the simulated driver injects failures everywhere"),
    63: ("work of unknown access is recorded as written",
         "W5: if it wrote, later readers have to wait too"),
    66: ("what was prepared cannot vanish: the open window keeps the block",
         "W1: a free inside a window is carried out by the last close"),
    67: ("one entry for each kind and stream; a write removes its ticket only",
         "W2, W3, W48"),
    78: ("the process's runtime uses AsyncMemoryResource where the device has memory pools",
         "recorders need frees that are ordered on streams, so the default has them (W65)"),
    80: ("parts that do not fit together are refused",
         "W21: unchecked composition"),
    82: ("short critical sections; no lock is held while a resource or the driver is called",
         f"{RULES}, concurrency (W50): under a lock one deep queue would stop every thread"),
    94: ("all rejections are kept and raised together, in one wording that names the method",
         "W39: only the first was kept; what helps is the same for foreign and legacy memory: adopt it, or ignore it"),
    95: ("untracked memory is not refused before preflight; what is not memory, or comes too late, is at the call",
         "registration after preflight raises at the call"),
    97: ("raises at the call, and commit still records everything that was preflighted",
         "W7: one late registration voided a whole commit while its launch was in flight"),
    98: ("a runtime that does not track cannot be made, so preflight need not check",
         "the refusal is the core's, when the parts are put together"),
    103: ("the key is the generation",
          "W22: the other fields are checked or come from the block's own entry, and cannot split it"),
    107: ("the uses are recorded as if launched, with a ResourceWarning in every build",
          "W9: a dropped recorder protected nothing"),
    112: ("a buffer is a handle of its own; slices, views and copies share the block and its uses",
          "Python shares the handle itself by reference"),
    116: ("in this order: state dropped, shutting down, context lost or rebuilt; a consumed buffer last",
          "W67: a lost context is stale before there is a new one"),
    118: ("size is the number of elements, len() the first dimension, as everywhere in Python",
          "Buffer has a shape"),
    120: ("recorded as a write of the block, for all its parts; stale buffers and foreign streams are refused",
          "W70, W71: a stream alone orders nothing, and no use of memory may be recorded that may not be touched"),
    121: ("derived from the uses that were recorded; None when the stream is gone", "W70"),
    122: ("the address comes with the use that it is for, and holds as long as that use; or by itself, for use()",
          "W72: an address that may be used at once, on any stream, is protected by nothing"),
    125: ("the loss of a context and the next context each count", "W67"),
    126: ("a buffer over nothing is stale and harmless; the simulated driver stands in for a GPU",
          "W77: nothing has to be leaked for a test"),
    127: ("Direct is synchronous: it frees after the host has waited for the block's uses and its stream",
          "W18: it must not say one stream and use another"),
    128: ("a block of no bytes; nothing is counted", "37"),
    129: ("streams are validated whatever the resource", "W12, W18"),
    130: ("as for the stream-ordered backend: the old entry is poisoned", "W19"),
    131: ("generations are compared, whatever the resource", "W18: a stale block freed a newer one"),
    133: ("Direct is tracked like any other resource; its frees wait on the host",
          "W18: tracking is not a backend's job"),
    135: ("one record for each call, and a second one for a free that fails; reaps are not logged",
          "a free is logged before it is made, because another thread may get the address as soon as it was made"),
    141: ("any callable is a sink: [].append keeps records", "no class is needed for that"),
    144: ("what goes through it counts, from its making on", "a resource by itself has nothing outstanding"),
    156: ("a new stream waits for nothing, and its id is never used again",
          "W14: nothing relies on implicit order with a default stream"),
    157: ("at the cap streams of the same kind are shared, in turn; it raises where there is none",
          "RMM's and PyTorch's pools go round, and a program that needs one stream more is right all the same"),
    158: ("a stream whose last handle is gone is handed out again, under a new id", "W38: 16 streams for ever"),
    160: ("len(pool), max_streams, and AsyncMemoryResource(release_threshold=…) instead of an environment variable",
          "W53: one pool of our own for each resource, not a budget for each stream"),
    184: ("a buffer's access() is its block; there is no legacy memory", "tracking is not a backend's job"),
    187: ("a consumed buffer says so", "186: one class for one error"),
    189: ("a foreign array becomes a tracked block that is released, not freed; every recorder accepts it", "W23"),
    195: ("the stream that will be used is named, or the producer's own",
          "W23: stream 1 orders no work on other streams"),
    196: ("the standard's struct, with its event", "W23"),
    198: ("DevicePool chooses a device, in turn or by load; the device's own runtime allocates", "W17"),
    199: ("fill, copies and downloads go through a recorder; an unknown stream is refused like everywhere",
          "there is no legacy manager"),
    200: ("untracked memory is refused at preflight; once it is imported it is tracked", "W23"),
    201: ("a launch that fails after preflight is recorded all the same", "W9"),
    202: ("fills and uploads are ordered on the stream that is named", "W6, W52"),
    208: ("pending is the sum of what the test freed on each stream, and of the held-up streams alone after a reap",
          "35: no figure of ours is about one stream; the markers that a reap looks at are, which shows from outside"),
    210: ("the unrecorded variant is run: its race is reported in each round, under every schedule",
          "W77: an ignored test cannot fail; the simulated driver sees the race whether or not the data went wrong"),
    213: ("per operator, untracked memory is refused; pools of our own keep what is freed",
          "127 and W53: there is no legacy manager, and no process-wide pool has to be kept for reuse to happen"),
    215: ("4 fresh processes of 4 iterations; 8 threads of 32 in one runtime and in 8 runtimes of one primary context, "
          "without any drift",
          "drift would be a lost ordering; the number of processes changes only what a run costs"),
    216: ("the context slot is the runtime: there from the start, none between a loss and the next", "W66, W67"),
    218: ("the new context first, then the number, in one step; a loss counts at once", "W66, W67"),
    221: ("the simulated driver allocates, runs and finds races", "W77: what refuses everything shows nothing"),
    222: ("DeviceLostError, OutOfDeviceMemoryError, DriverNotFoundError, StaleBufferError, DriverError",
          "238: Python distinguishes errors by class; each text starts by saying what was wrong"),
    238: ("XlogmemError is the base; arguments that make no sense are ValueError or TypeError",
          "the names that Python gives such errors"),
    239: ("the GIL is released; a wait ends when the device has done what it waits for, and Watch.wait has a timeout",
          "a driver call cannot have a time limit; a caller that cannot wait queries in a thread of its own"),
}


def _problems(item: pytest.Item) -> list[str]:
    """What is wrong with the citations of a test."""
    cited: list[object] = []
    problems = []
    for marker in item.iter_markers("promise"):
        if not marker.args or marker.kwargs:
            problems.append("a promise marker takes the numbers of items and nothing else")
        cited += marker.args
    problems += [f"there is no item {number!r} in docs/promises.md" for number in cited
                 if type(number) is not int or number not in ITEMS]
    problems += [f"item {number!r} is cited twice" for number in dict.fromkeys(cited) if cited.count(number) > 1]
    if len(cited) > MOST:
        problems.append(f"{len(cited)} items are cited, at most {MOST} may be")
    return problems


def _ranges(numbers: list[int]) -> str:
    """``1-3 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class Ledger:
    """The plugin: register it in ``pytest_configure``."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.broken: set[int] = set()
        self.part = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wrong: dict[str, None] = {}
        for item in items:
            wrong |= {f"{item.nodeid.partition('[')[0]}: {problem}": None for problem in _problems(item)}
            cited = [number for marker in item.iter_markers("promise") for number in marker.args]
            if cited:
                item.user_properties.append(("promises", cited))
        if wrong:
            raise pytest.UsageError(*wrong)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.part = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cited = {number for name, numbers in report.user_properties if name == "promises" for number in numbers}
        if report.failed or (hasattr(report, "wasxfail") and report.skipped):
            self.broken |= cited
        elif report.when == "call" and report.passed:
            self.kept |= cited

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        kept = self.kept - self.broken
        if not self.kept and not self.broken:
            return
        part = self.part or any("::" in argument or argument.endswith(".py") for argument in config.args)
        terminalreporter.write_line(f"promises: {sum(number in COUNTED for number in kept)}/{len(COUNTED)}"
                                    + " (of the tests that were selected)" * part)
        if config.get_verbosity() < 1:
            return
        missing = [number for number in COUNTED if number not in kept]
        if missing:
            terminalreporter.write_line(f"missing: {_ranges(missing)}")
        if self.broken:
            terminalreporter.write_line(f"not kept: {_ranges(sorted(self.broken))}")
        for number, (rule, why) in REPLACED.items():
            terminalreporter.write_line(f"replaced: {number} – {rule} – {why}")
