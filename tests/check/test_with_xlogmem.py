"""What the check knows of xlogmem's own memory: tags, pieces of pools, declared uses; and the audit."""
from __future__ import annotations

import json
import linecache
import re
import sys

import pytest
from checked_libraries import needs
from checked_programs import ELSEWHERE, GONE, REUSED, START, UNDECLARED, UNORDERED, WRITTEN

from xlogmem.check import report
from xlogmem.check.findings import Access, Finding, Stream
from xlogmem.check.frames import Frame

pytestmark = pytest.mark.simulator

@pytest.fixture
def check(tmp_path, xlogmem_check):
    def run(program, *arguments, audit=False):
        (tmp_path / "program.py").write_text(program)
        done = xlogmem_check("--json", "out.json", "--", sys.executable, "program.py", *arguments,
                             XLOGMEM_AUDIT=str(int(audit)))
        assert "Traceback" not in done.stderr, done.stderr
        return done, json.loads((tmp_path / "out.json").read_text())

    return run


def line_of(program, text):
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)


@pytest.mark.parametrize(("program", "resource"), [
    *((program, resource) for program in (UNORDERED, GONE) for resource in ("pool", "async", "direct")),
    (REUSED, "pool")])
def test_what_is_declared_is_silent(check, program, resource):
    done, document = check(program, resource, "fixed")
    assert done.returncode == 0, done.stderr
    assert document["findings"] == []


@pytest.mark.parametrize("resource", ["pool", "async", "direct"])
def test_a_finding_names_the_tag_and_the_place(check, resource):
    done, document = check(UNORDERED, resource)
    assert done.returncode == 1
    assert 'memory  1.0 KiB "join "keys" ü" at 0x' in done.stderr
    finding, = document["findings"]
    assert (finding["pair"], finding["tag"], finding["block_end"] - finding["block_begin"]) == (
        "write/read", 'join "keys" ü', 1024)
    assert line_of(UNORDERED, "runtime.allocate(") in [frame["line"] for frame in finding["allocated"]]


LINES = """
import xlogmem
from cuda.bindings import driver as cuda
runtime = xlogmem.DeviceRuntime(resource=xlogmem.{resource}())
streams = {{}}
for _ in range(2):
    stream = runtime.acquire_stream()
    streams[len(streams) + {base}] = stream
a, b = streams.values()
left = runtime.allocate(1024, a)
right = runtime.allocate(1024, b)
cuda.cuMemsetD8Async(left.ptr, 7, 1024, a.handle)
{second}
runtime.synchronize()
"""
USES = re.compile(r"program\.py:(\d+) in `with (xlogmem\.use\(…, \w+=\w+\))` on stream (\d+)")


@pytest.mark.parametrize("resource", ["PoolMemoryResource", "AsyncMemoryResource", "DirectMemoryResource"])
@pytest.mark.parametrize(("second", "uses"), [
    ("cuda.cuMemcpyDtoDAsync(right.ptr, left.ptr, 1024, b.handle)", ["read=left"]),
    ("cuda.cuMemsetD8Async(left.ptr, 8, 1024, b.handle)", ["write=left"]),
    ("cuda.cuMemsetD8Async(left.ptr, 8, 512, b.handle); left.free()", ["write=left"]),
    ("runtime.synchronize()\ncuda.cuMemsetD8Async(right.ptr, 8, 1024, a.handle)\n"
     "cuda.cuMemsetD8Async(right.ptr, 9, 1024, b.handle)", ["write=right", "write=right"]),
    ("with xlogmem.use(a, write=right): cuda.cuMemsetD8Async(right.ptr, 8, 1024, a.handle)\n"
     "cuda.cuMemsetD8Async(right.ptr, 9, 1024, b.handle)", ["write=right"]),
])
def test_the_use_that_a_repair_names_repairs_the_program(check, resource, second, uses):
    """Each launch is put in the `use` that the text says, on the stream that it says, and no other one needs a `use`:
    new memory needs none on its own stream, which the check knows unless the driver's allocation has no stream."""
    if resource == "DirectMemoryResource" and uses[0].endswith("left"):
        uses = ["write=left", *uses]
    program = LINES.format(resource=resource, second=second, base=2)
    done, document = check(program)
    assert done.returncode == 1, done.stderr
    finding = document["findings"][0]
    named = USES.findall(finding["repair"])
    assert [use.split("…, ")[1][:-1] for _, use, _ in named] == uses
    base = min(finding[turn]["stream"]["number"] for turn in ("first", "second"))
    lines = LINES.format(resource=resource, second=second, base=base).splitlines()
    for line, use, stream in named:
        lines[int(line) - 1] = f"with {use.replace('…', f'streams[{stream}]')}: {lines[int(line) - 1]}"
    done, document = check("\n".join(lines))
    assert (done.returncode, document["findings"]) == (0, []), done.stderr


GRAPHS = """
import xlogmem
from cuda.bindings import driver as cuda
runtime = xlogmem.DeviceRuntime(resource=xlogmem.AsyncMemoryResource())
a, b = runtime.acquire_stream(), runtime.acquire_stream()
block = runtime.allocate(1024, a)
with xlogmem.use({used}, read=block):
    pass
with xlogmem.capture(a) as graph:
    {captured}  # captured
{begin}
{launch}
{end}
runtime.synchronize()
"""
FILL = "cuda.cuMemsetD8Async(block.ptr, 7, 1024, {0}.handle)"
DECLARED = "with xlogmem.use({0}, write=block): " + FILL
RAW = "cuda.cuGraphLaunch(cuda.CUgraphExec(graph.handle), a.handle)"
GRAPH_ADVICE = ("capture program.py:{} in `with xlogmem.use(…, write={})` inside `with xlogmem.capture(…) as graph`, "
                "and launch by `graph.launch(…)` (a graph of another library: `xlogmem.capturing(…)` and "
                "`graph.launching(…)`): {}.  Or, ")


@pytest.mark.parametrize(("used", "begin", "kind", "name", "then"), [
    ("a", "block.free()", "use-after-free", "block", "the graph holds its memory"),
    ("b", "block.free()", "race", "block", "the graph holds its memory"),
    ("a", "block.free(); after = runtime.allocate(1024, a)", "stale-graph", "…", "the graph holds its memory"),
    ("b", DECLARED.format("b"), "race", "block", "xlogmem queues the wait")])
@pytest.mark.parametrize("launch", ["graph.launch(a)", RAW, f"with graph.launching(a): {RAW}"])
def test_the_advice_for_a_graph_repairs_the_program(check, used, begin, kind, name, then, launch):
    """What the variable of a stale graph's former memory was is not known."""
    program = GRAPHS.format(used=used, captured=FILL.format("a"), begin=begin, launch=launch, end="")
    done, document = check(program)
    finding, = (one for one in document["findings"] if one["kind"] == kind)
    line = line_of(program, "# captured")
    assert finding["repair"].startswith(GRAPH_ADVICE.format(line, name, then)), done.stderr
    done, document = check(GRAPHS.format(used=used, captured=DECLARED.format("a"), begin=begin,
                                         launch="graph.launch(a)", end=""))
    assert (done.returncode, document["findings"]) == (0, []), done.stderr


@pytest.mark.parametrize(("launch", "end", "repair"), [
    (f"with xlogmem.use(a, read=other): {RAW}  # wrong", "", "add block to write= of the `use` at program.py:{}: "),
    ("graph.launch(a)", f"{FILL.format('b')}  # wrong", "launch program.py:{} in `with xlogmem.use(…, write=block)`")])
def test_the_advice_beside_a_graph(check, launch, end, repair):
    """It names the `use` around the launch, or work that is beside the graph."""
    begin = f"other = runtime.allocate(64, a)\n{DECLARED.format('b')}"
    program = GRAPHS.format(used="b", captured=DECLARED.format("a"), begin=begin, launch=launch, end=end)
    done, document = check(program)
    finding, = document["findings"]
    assert finding["repair"].startswith(repair.format(line_of(program, "# wrong"))), done.stderr


FREED_LATER = """
import sys
import xlogmem
from cuda.bindings import driver as cuda
resource, way, *fixed = sys.argv[1:]
runtime = xlogmem.DeviceRuntime(resource=getattr(xlogmem, resource)())
a, b = runtime.acquire_stream(), runtime.acquire_stream()
block = runtime.allocate(1024, a)
runtime.synchronize()
cuda.cuMemsetD8Async(block.ptr, 7, 1024, b.handle)              # undeclared
if fixed:
    b.synchronize()
if way == "dropped":
    del block                                                   # dropped
elif way == "cycle":
    cycle = [block]
    cycle.append(cycle)
    del block, cycle
    __import__("gc").collect()                                  # cycle
else:
    with xlogmem.use(a, read=block):
        block.free()                                            # window
after = runtime.allocate(1024, a)                               # carried out
with xlogmem.use(a, write=after):
    cuda.cuMemsetD8Async(after.ptr, 8, 1024, a.handle)
runtime.synchronize()
"""


@pytest.mark.parametrize("way", ["dropped", "cycle", "window"])
@pytest.mark.parametrize(("resource", "freed"), [
    ("AsyncMemoryResource", "second"), ("PoolMemoryResource", "freed")])
def test_a_free_has_the_place_that_requested_it(check, resource, freed, way):
    done, document = check(FREED_LATER, resource, way)
    assert done.returncode == 1, done.stderr
    finding = document["findings"][0]
    places = finding[freed]["stack"] if freed == "second" else finding[freed]
    assert [frame["line"] for frame in places] == [line_of(FREED_LATER, f"# {way}")], done.stderr


@pytest.mark.parametrize("way", ["dropped", "cycle", "window"])
def test_what_follows_a_late_free_has_its_own_place(check, way):
    program = FREED_LATER + """
with xlogmem.use(a, write=after):
    cuda.cuMemsetD8Async(after.ptr, 9, 1024, a.handle)          # own
cuda.cuMemsetD8Async(after.ptr, 9, 1024, b.handle)              # undeclared, too
runtime.synchronize()
"""
    finding, = check(program, "AsyncMemoryResource", way, "fixed")[1]["findings"]
    assert [[frame["line"] for frame in finding[part]["stack"]] for part in ("first", "second")] == [
        [line_of(program, "# own")], [line_of(program, "# undeclared, too")]]


@pytest.mark.parametrize("way", ["dropped", "cycle", "window"])
@pytest.mark.parametrize("resource", ["AsyncMemoryResource", "PoolMemoryResource"])
def test_a_late_free_in_order_is_silent(check, resource, way):
    done, document = check(FREED_LATER, resource, way, "fixed")
    assert (done.returncode, document["findings"]) == (0, []), done.stderr


@pytest.mark.parametrize(("line", "name"), [
    ("x = runtime.allocate(1 << 20, s)", "x"), ("a, b = f(1), f(2)", "…"), ("x = f(g(1))", "…"), ("x = f(y * 2)", "…"),
    ("x = y", "…"), ("x.y = f(1)", "…"), ("x = f(1,", "…"), ("", "…")])
def test_the_variable_is_named_where_one_call_has_made_it(monkeypatch, line, name):
    monkeypatch.setattr(linecache, "getline", lambda *_: line)
    frame = Frame("program.py", 1, "f")
    stream = Stream(2, "made")
    finding = Finding("race", "write/read", True, Access("f", "write", stream), Access("g", "read", stream),
                      0, 1, 0, 1, 1, tracked=True, allocated=(frame,))
    assert report.name_of(finding) == name


def test_memory_that_is_not_xlogmems_needs_an_event(check):
    program = LINES.format(resource="AsyncMemoryResource", base=2,
                           second="cuda.cuMemcpyDtoDAsync(right.ptr, left.ptr, 1024, b.handle)")
    program = program.replace("left = runtime.allocate(1024, a)",
                              "cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])\n"
                              "left = type('Block', (), dict(ptr=int(cuda.cuMemAlloc(1024)[1])))")
    assert "use(" not in check(program)[1]["findings"][0]["repair"]


def test_a_piece_of_the_pool_that_is_handed_out_too_early(check):
    done, document = check(REUSED, "pool")
    assert done.returncode == 1, done.stderr
    finding, *_ = (one for one in document["findings"] if one["pair"] == "read/reuse")
    assert finding["second"]["name"] == "allocate"
    assert line_of(REUSED, "following = ") in [frame["line"] for frame in finding["second"]["stack"]]
    assert line_of(REUSED, "block.free()") in [frame["line"] for frame in finding["freed"]]


@pytest.mark.parametrize("resource", ["pool", "async"])
def test_memory_that_was_freed(check, resource):
    done, document = check(GONE, resource)
    assert done.returncode == 1, done.stderr
    assert [one["kind"] for one in document["findings"]] == ["use-after-free"]


@pytest.mark.parametrize(("program", "kind", "text", "count"), [
    (UNDECLARED, "outside", "        fill(other, a)", 2),
    (WRITTEN, "written", "    fill(block, a)", 1)])
@pytest.mark.parametrize("resource", ["pool", "async"])
def test_the_audit(check, resource, program, kind, text, count):
    done, document = check(program, resource, audit=True)
    omission, = document["omissions"]
    called = line_of(START, "assert not int(cuda.cuMemset")
    assert (omission["kind"], omission["place"]["line"], omission["count"]) == (kind, called, count), done.stderr
    assert f"AUDIT {kind}" in done.stderr
    if kind == "written":
        assert omission["declared"]["line"] == line_of(program, "# declared")
        assert omission["tag"] == 'join "keys" ü'
    assert done.returncode == 0                         # it is no race
    assert document["findings"] == []


@pytest.mark.parametrize("program", [UNDECLARED, WRITTEN])
def test_the_audit_of_what_is_declared(check, program):
    done, document = check(program, "pool", "fixed", audit=True)
    assert (done.returncode, document["omissions"]) == (0, []), done.stderr


@pytest.mark.parametrize("program", [UNDECLARED, WRITTEN])
def test_there_is_no_audit_unless_it_is_wanted(check, program):
    assert check(program, "pool")[1]["omissions"] == []


def test_a_launch_on_another_stream_than_its_use_names(check):
    done, document = check(ELSEWHERE, "async")
    omission, = document["omissions"]
    used = omission["declared"]["line"]
    assert (omission["kind"], omission["count"], used) == ("elsewhere", 2, line_of(ELSEWHERE, "# declared"))
    assert omission["named"] != omission["stream"]
    assert done.stderr.count("AUDIT entries are launches that no `use` declares as they are: ") == 1
    assert done.stderr.splitlines()[-1].endswith("0 possible, 1 AUDIT entry, on the simulated driver")
    assert (f"AUDIT elsewhere: a `use` names {omission['named']}, on which nothing was queued inside that `use`; "
            f"the launch went to {omission['stream']}\n") in done.stderr
    assert f"  use     program.py:{used}, in <module>" in done.stderr
    assert (f"repair  name {omission['stream']} in the `use` at program.py:{used} (`xlogmem.use(stream, …)`, or "
            f"None where CuPy or PyTorch has made {omission['stream']} current: `with stream, xlogmem.use(None, …):`), "
            f"or launch on {omission['named']} inside it\n") in done.stderr
    done, document = check(ELSEWHERE, "async", "fixed")
    assert document["omissions"] == []
    assert "AUDIT" not in done.stderr


@pytest.mark.parametrize("wrong", ["first", "second"])
def test_a_finding_names_the_use_of_another_stream(check, wrong):
    """The launch is not in the `use` that is there for it: so the repair changes that `use`, and adds none."""
    uses = {"first": "a", "second": "b"}

    def program(**streams):
        return f"{START}\nblock = runtime.allocate(1024, runtime.acquire_stream())\n" + "".join(
            f"with xlogmem.use({streams.get(turn, stream)}, write=block):  # {turn}\n    fill(block, {stream})\n"
            for turn, stream in uses.items())

    done, document = check(program(**{wrong: "b" if wrong == "first" else "a"}), "async")
    finding, = (one for one in document["findings"] if one["pair"] == "write/write")
    omission, = document["omissions"]
    other = "second" if wrong == "first" else "first"
    assert finding["certain"]
    assert finding[other]["elsewhere"] is None
    used = f"program.py:{line_of(program(), f'# {wrong}')}"
    names = f"names {omission['named']}, on which nothing was queued inside that `use`; "
    assert f"  use     {used}, in <module>: {names}" in done.stderr
    assert finding["repair"].startswith(f"name {omission['stream']} in the `use` at {used} (`xlogmem.use(stream, …)`")
    assert "launch program.py" not in finding["repair"]
    done, document = check(program(), "async")
    assert (done.returncode, document["findings"], document["omissions"]) == (0, [], []), done.stderr


@pytest.mark.parametrize(("pair", "wrong", "repair", "right"), [
    ("read/write", "read=other", "add block to write= of the `use` at ", "read=other, write=block"),
    ("write/read", "read=block", "declare block as read_write in the `use` at ", "read_write=block")])
def test_a_finding_in_a_use_that_does_not_declare_it(check, pair, wrong, repair, right):
    """The launch is in a `use` of its stream already: so the repair changes that `use`, and adds none."""
    def program(use):
        read = "with xlogmem.use(a, read=block):\n    copy(other, block, a)\n"
        return (f"{START}\nblock = runtime.allocate(1024, a)\n{read}"
                f"with xlogmem.use(b, {use}):  # around\n    fill(block, b)\n{read}")

    done, document = check(program(wrong), "async")
    finding, = (one for one in document["findings"] if one["pair"] == pair)
    place = f"program.py:{line_of(program(wrong), '# around')}"
    assert finding["certain"]
    assert finding["repair"].startswith(f"{repair}{place}: xlogmem queues the wait.  Or, before "), done.stderr
    assert document["omissions"] == []
    _, document = check(program(right), "async")
    assert [one for one in document["findings"] if one["pair"] == pair] == []


BLOCKING = """
import sys
from cuda.bindings import driver
import xlogmem
from xlogmem.sim.kernels import Kernels, check

check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
runtime, kernels = xlogmem.DeviceRuntime(resource=xlogmem.AsyncMemoryResource()), Kernels()
one, other = int(check(driver.cuStreamCreate(0))), int(check(driver.cuStreamCreate(0)))
block = runtime.allocate(1024, 0)
kernels.fill(one, block.ptr, 7, 256)
with xlogmem.use({}, read_write=block):  # declared
    kernels.fill(other, block.ptr, 8, 256)
"""


def test_a_use_of_the_default_stream_around_a_launch_on_a_blocking_one(check):
    """As in Numba, whose streams are blocking: a finding says so, but no entry of an audit.  The first launch is work
    of the memory's own stream, for which blocking ones wait as it waits for them."""
    done, document = check(BLOCKING.format(0))
    finding, = document["findings"]
    used = f"program.py:{line_of(BLOCKING, '# declared')}"
    assert (finding["pair"], finding["certain"], finding["first"]["known"]) == ("write/write", True, "new")
    assert f"  use     {used}, in <module>: names the default stream, on which nothing was queued" in done.stderr
    assert finding["repair"].startswith(f"name {stream_name(finding)} in the `use` at {used} (`xlogmem.use(stream, …)`")
    assert "launch program.py" not in finding["repair"]
    assert document["omissions"] == []
    done, document = check(BLOCKING.format("other"))
    assert (done.returncode, document["findings"], document["omissions"]) == (0, [], []), done.stderr


def stream_name(finding):
    return f"stream {finding['second']['stream']['number']}"


@pytest.mark.parametrize("right", [
    "with xlogmem.use(b, read=block) as launch:\n    copy(other, block, a)\n    launch.cancel()\n",
    "with xlogmem.use(b, read=block):\n    synchronize(b)\n    copy(other, block, a)\n"])
def test_a_use_that_is_no_launch(check, right):
    """One that is cancelled, and one of the host's, as docs/cluster.md has them, beside work of the memory's stream."""
    done, document = check(START + "fill(block, a)\nother = runtime.allocate(1024, a)\n" + right, "async")
    assert (done.returncode, document["omissions"]) == (0, []), done.stderr


@pytest.mark.parametrize("thread", ["other", "own"])
def test_work_of_another_thread_beside_a_use_whose_launch_is_left_out(check, thread):
    """The block's own stream may work on it, which is another thread's; in the thread of the `use` it is the launch."""
    work = "copy(other, block, a)" if thread == "own" else (
        "import threading\n    one = threading.Thread(target=copy, args=(other, block, a))\n    one.start()\n"
        "    one.join()")
    _, document = check(f"{START}fill(block, a)\nother = runtime.allocate(1024, a)\n"
                        f"with xlogmem.use(b, read=block):\n    {work}\n", "async")
    assert [one["kind"] for one in document["omissions"]] == ["elsewhere"] * (thread == "own")


ON_THE_LEGACY_STREAM = """
import sys
from cuda.bindings import driver
import xlogmem
from xlogmem import sim
from xlogmem.sim.kernels import Kernels, check

check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
sim.simulator().set_policy(sys.argv[1])
found = []
guard = xlogmem.GuardResourceAdaptor(xlogmem.AsyncMemoryResource(), on_violation=found.append)
runtime, kernels = xlogmem.DeviceRuntime(resource=guard), Kernels()
blocking = int(check(driver.cuStreamCreate(0)))
for _ in range(8):
    block = runtime.allocate(1024, 0)
    kernels.fill(blocking, block.ptr, 7, 256)
    block.free()                                        # the guard fills it, after that
guard.check()
sys.exit(len(found))
"""


@pytest.mark.parametrize("policy", ["eager", "min", "max", "seeded"])
def test_a_report_on_the_legacy_stream_does_not_take_its_waits_for_done(check, policy):
    """The simulated driver queues none for what the engine has in order; a report puts the streams in order there."""
    done, document = check(ON_THE_LEGACY_STREAM, policy)
    assert document["findings"] == []
    assert done.returncode == 0, done.stderr


ADVICE = """
import sys
import xlogmem
how = sys.argv[1]
if how == "enable":
    xlogmem.enable("cupy")
import cupy
load, work = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with load:
    x = cupy.arange(1000)
if how == "stream":
    kept = xlogmem.get_runtime().adopt(x, stream=load)
choice = "adopt" if how == "adopt" else "raise"
try:
    with work, xlogmem.use(work, read=x, untracked=choice):
        y = x * 2
except xlogmem.StreamMisuseError as error:
    print(error)
del x
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("how", ["refused", "enable", "stream", "adopt"])
def test_the_advice_for_an_array_of_cupy_repairs_the_program(check, how):
    done, document = check(ADVICE, how)
    found = {finding["pair"] for finding in document["findings"] if finding["certain"]}
    assert ("Call xlogmem.enable('cupy') before CuPy allocates" in done.stdout) == (how == "refused")
    assert ("xlogmem.get_runtime().adopt(x, stream=s)" in done.stdout) == (how == "refused")
    assert ("does not wait for what other streams have queued" in done.stderr) == (how == "adopt")
    assert found == ({"write/read", "read/free"} if how == "adopt" else set()), done.stderr


CURRENT = """
import xlogmem
xlogmem.enable("cupy")
import cupy
load, work = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with load:
    x = cupy.arange(1000)
with {}:
    y = x * 2
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize(("wrong", "named"), [("xlogmem.use(None, read=x), work", "the default stream"),
                                              ("work, xlogmem.use(load, read=x)", "stream 2")])
def test_the_advice_for_a_use_of_another_stream_repairs_the_program(check, wrong, named):
    done, document = check(CURRENT.format(wrong))
    finding, = document["findings"]
    used = f"program.py:{line_of(CURRENT, 'with {}')}"
    assert (finding["pair"], finding["certain"]) == ("write/read", True), done.stderr
    assert finding["repair"].startswith(
        f"name stream 3 in the `use` at {used} (`xlogmem.use(stream, …)`, or None where CuPy or PyTorch has made "
        f"stream 3 current: `with stream, xlogmem.use(None, …):`), or launch on {named} inside it.")
    for right in ("work, xlogmem.use(None, read=x)", "work, xlogmem.use(work, read=x)"):
        done, document = check(CURRENT.format(right))
        assert (done.returncode, document["findings"], document["omissions"]) == (0, [], []), done.stderr


RANGES = """
import sys
import xlogmem
from cuda.bindings import driver as cuda
from xlogmem.sim.kernels import check
runtime = xlogmem.get_runtime()
left, right = runtime.acquire_stream(), runtime.acquire_stream()
x = xlogmem.get_device_state().full(512, 0, "u1", left)
touched = int(sys.argv[1])
for _ in range(3):
    with xlogmem.use(left, write=x[:256]):
        check(cuda.cuMemsetD8Async(x.ptr, 1, touched, left.handle))
    with xlogmem.use(right, write=x[256:]):
        check(cuda.cuMemsetD8Async(x[256:].ptr, 2, 256, right.handle))
"""


@pytest.mark.parametrize(("touched", "wrong"), [(256, False), (260, True)])
def test_a_launch_that_touches_more_than_its_range(checked, touched, wrong):
    """The ranges are ordered as without the check, which sees what they leave out."""
    run = checked(RANGES, str(touched))
    assert any(certain for _, certain in run.pairs) == wrong, run.stdout
    assert run.returncode == int(wrong)
