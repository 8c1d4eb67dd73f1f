"""PyTorch's operators under the check: what they say of kernels about which nothing else is known."""
from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from checked_libraries import torch_for_cuda

pytestmark = pytest.mark.simulator
if not torch_for_cuda():
    pytestmark = [pytestmark, pytest.mark.skip(reason="needs a checked library: torch, for CUDA")]

BEGIN = """
import sys, threading, torch
import torch.nn.functional as F
fixed = "fixed" in sys.argv
count = 1 << 14
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
host = torch.ones(count).pin_memory()
torch.backends.cudnn.enabled = False                    # it is not there without a GPU

def made(*shape):
    return torch.empty(*shape or (count,), device="cuda")

def done():
    torch.cuda.synchronize()

def order(stream=side, other=main):
    if fixed:
        stream.wait_stream(other)
"""
# The nine shapes in which PyTorch's own sanitizer was compared with the check.
SHAPES = """
a = torch.rand(count, device="cuda")                    # mul_out: first
order()
with torch.cuda.stream(side):
    torch.mul(a, 5, out=a)                              # mul_out: then
done()
a, b = made(), made()
done()
torch.add(a, 1, out=b)                                  # read_after_write: first
order()
with torch.cuda.stream(side):
    b.sum()                                             # read_after_write: then
done()
with torch.cuda.stream(side):
    c = a * 2                                           # write_after_read: first
order(main, side)
a.add_(1)                                               # write_after_read: then
done()
a.fill_(1)                                              # fills: first
order()
with torch.cuda.stream(side):
    a.fill_(2)                                          # fills: then
done()
b.copy_(a)                                              # copies: first
order()
with torch.cuda.stream(side):
    c.copy_(b)                                          # copies: then
done()
with torch.cuda.stream(side):
    a.copy_(host, non_blocking=True)                    # upload_then_kernel: first
order(main, side)
b = a + 1                                               # upload_then_kernel: then
done()
a.fill_(3)                                              # kernel_then_download: first
order()
with torch.cuda.stream(side):
    host.copy_(a, non_blocking=True)                    # kernel_then_download: then
done()
event = main.record_event()
a.mul_(2)                                               # event_too_early: first
side.wait_event(main.record_event() if fixed else event)
with torch.cuda.stream(side):
    b = a + 1                                           # event_too_early: then
done()
d = torch.ones(3 * count, device="cuda")
side.wait_stream(main)
with torch.cuda.stream(side):
    e = d * 2                                           # freed_early: first
if fixed:
    d.record_stream(side)
del d
f = torch.zeros(3 * count, device="cuda")               # freed_early: then
done()
"""
FOUND = {"mul_out": "write/write", "read_after_write": "write/read", "write_after_read": "read/write",
         "fills": "write/write", "copies": "write/read", "upload_then_kernel": "write/read",
         "kernel_then_download": "write/read", "event_too_early": "write/read", "freed_early": "read/reuse"}
RIGHT = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

total = torch.zeros(count, device="cuda")
for _ in range(3):
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x = host.to("cuda", non_blocking=True)
    main.wait_stream(side)
    x.record_stream(main)
    total += x

for _ in range(3):
    a = torch.ones(count, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        b = a * 2
    a.record_stream(side)
    main.wait_stream(side)
    del a, b
"""
# Each scene is a pair of lines on two streams, and what is found in it.
SCENES = {
    "one argument twice": ("a.mul_(a)", "a.mul_(a)", ("write/write", True)),
    "factor": ("a.fill_(1)", "torch.addr(a, v, v)", ("write/read", True)),
    "no factor": ("a.fill_(1)", "torch.addr(a, v, v, beta=0)", None),
    "shape alone": ("a.fill_(1)", "torch.ones_like(a)", None),
    "output alone": ("a + 1", "torch.add(b, 1, out=a)", ("read/write", True)),
    "two readers": ("a + 1", "a * a", None),
    "a list": ("torch._foreach_add_([v, a], 1)", "a + 1", ("write/read", True)),
    "statistics": ("F.batch_norm(b, *stats, training=True)", "stats[0] + 1", ("write/read", True)),
    "known statistics": ("F.batch_norm(b, *stats, training=False)", "stats[0] + 1", None),
    "other columns": ("a[:, :32].fill_(1)", "a[:, 32:].fill_(1)", None),
    "a common column": ("a[:, :33].fill_(1)", "a[:, 32:].fill_(1)", ("write/write", True)),
    "repeated": ("v[:32].fill_(1)", "v.expand(64, 64) + 1", ("write/read", True)),
    "in no rows": ("c[::2, ::2, ::2].fill_(1)", "c[1::2, 1::2, 1::2].fill_(1)", ("write/write", False)),
    "chosen": ("a[:32].fill_(1)", "F.embedding(chosen, a)", ("write/read", False)),
    "chosen among all": ("a.fill_(1)", "F.embedding(chosen, a)", ("write/read", True)),
    "chosen and written": ("a[:32].fill_(1)", "a.index_fill_(0, chosen, 1)", ("write/write", False)),
    "a copy after a kernel of no operator": ("torch.cuda._sleep(1)", "v.copy_(w)", None),
    "in a thread": ("v.fill_(1)", "in_thread(lambda: v + 1)", ("write/read", True)),
    "wrapped": ("TwoTensor(a, b).add_(1)", "a + 1", ("write/read", True)),
    "backward": ("g.data.fill_(1)", "product.backward()", ("write/read", True)),
    "saved for the backward pass": (
        "m.fill_(1)", "torch.ops.aten.avg_pool2d_backward(q, m, [2, 2], [2, 2], [0, 0], False, True, None)",
        ("write/read", False)),
    "the gradient": (
        "q.fill_(1)", "torch.ops.aten.avg_pool2d_backward(q, m, [2, 2], [2, 2], [0, 0], False, True, None)",
        ("write/read", True)),
    "shape and a number": ("v.fill_(1)", "torch.bernoulli(v, 0.5)", ("write/read", False)),
    "backward in Python": ("h.fill_(1)", "taken.backward()  # not here", ("write/read", True)),
}
NAMES = """
from torch.testing._internal.two_tensor import TwoTensor
a, b, c, g, h = made(64, 64), made(64, 64), made(8, 8, 8), made(), made()
m, q = made(1, 1, 8, 8), made(1, 1, 4, 4)
v, w, stats = made(64), made(64), (made(64), made(64))
chosen = torch.zeros(64, dtype=torch.long, device="cuda")
p = torch.zeros((), device="cuda", requires_grad=True)

class Takes(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return (h * 2)[0]  # backward in Python: then

def in_thread(function):
    def run():
        with torch.cuda.stream(side):
            function()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

TwoTensor(a, b)
side.wait_stream(main)
with torch.cuda.stream(side):                           # where the backward passes are, too
    product, taken = (p * g).sum(), Takes.apply(p)
done()
"""
SCENE = """{first}  # {name}: first
with torch.cuda.stream(side):
    {then}  # {name}: then
done()
"""


@pytest.fixture
def checked(tmp_path, clean_environment):
    """What is found in a program: scene, pair and whether for certain, if both lines are those of the scene; and the
    whole file."""
    def run(program, *arguments):
        (tmp_path / "program.py").write_text(BEGIN + program)
        kept = {name: value for name, value in clean_environment.items() if not name.startswith("PYTORCH")}
        done = subprocess.run(
            [sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--json", "out.json", "--", sys.executable,
             "program.py", *arguments], capture_output=True, text=True, cwd=tmp_path, env=kept, timeout=300)
        assert "Traceback" not in done.stderr, done.stderr
        document = json.loads((tmp_path / "out.json").read_text())
        return [scene_of(one, (BEGIN + program).splitlines()) for one in document["findings"]], document

    return run


def scene_of(finding, lines):
    def comment_at(access):
        line = next(one["line"] for one in access["stack"] if one["file"].endswith("program.py"))
        return lines[line - 1].partition("# ")[2]

    first, then = (re.fullmatch(f"(.*): {which}", comment_at(finding[part]))
                   for part, which in (("first", "first"), ("second", "then")))
    assert first is not None, finding["text"]
    assert then is not None, finding["text"]
    assert first[1] == then[1], finding["text"]
    return first[1], finding["pair"], finding["certain"]


def test_the_nine_shapes_are_found_each_with_both_lines(checked):
    found, document = checked(SHAPES)
    assert sorted(found) == sorted((name, pair, True) for name, pair in FOUND.items())
    assert not any("not judged" in note for note in document["notes"])
    assert {"aten::mul.out", "aten::add_.Tensor"} <= {one["second"]["name"] for one in document["findings"]}


def test_their_repaired_twins_and_three_right_programs_are_silent(checked):
    found, document = checked(SHAPES + RIGHT, "fixed")
    assert found == []
    assert not any("not judged" in note for note in document["notes"])


def test_what_an_operator_reads_and_writes(checked):
    scenes = (SCENE.format(name=name, first=first, then=then) for name, (first, then, _) in SCENES.items())
    found, document = checked(NAMES + "".join(scenes))
    assert sorted(found) == sorted((name, *pair) for name, (_, _, pair) in SCENES.items() if pair)
    assert not any("not judged" in note for note in document["notes"])


def test_a_view_reads_nothing_whatever_it_launches(checked):
    """No operator that returns a view launches a kernel."""
    found, _ = checked("""
from xlogmem.check.neighbours.torch_operators import plan_of
names = torch.ops.aten
assert plan_of(names.view.default).parts == ()
assert not plan_of(names.view.default).returned
assert [(one.name, one.access) for one in plan_of(names.add.out).parts] == [("self", 1), ("other", 1), ("out", 2)]
""")
    assert found == []


def test_of_sparse_tensors_nothing_is_said(checked):
    found, document = checked("""
indices = torch.zeros(1, 4, dtype=torch.long, device="cuda")
sparse = torch.sparse_coo_tensor(indices, made(4), (8,), check_invariants=False)
sparse * 2
""")
    assert found == []
    assert any("not judged" in note for note in document["notes"])


def test_compiled_functions_are_compiled(checked):
    found, _ = checked("""
@torch.compile(backend="eager")  # compiled: then
def twice(x):
    return x + x

x = made()
done()
x.fill_(1)  # compiled: first
with torch.cuda.stream(side):
    twice(x)
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
""")
    assert found == [("compiled", "write/read", True)]
