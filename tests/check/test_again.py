"""A program that uses what PyTorch does not have on the driver's pool is started again on PyTorch's own."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch_on_pools
from checked_libraries import found
from checked_programs import DRIVER
from places import HELPERS

from xlogmem.check import again
from xlogmem.check.neighbours import torch_features

pytestmark = pytest.mark.simulator

BEGIN = """
import os, signal, subprocess, sys, time
import torch
print("begun on", torch._C._cuda_getAllocatorBackend(), flush=True)
"""
LINE = "which PyTorch does not have on the driver's pool: started again with --pools real"
AFRESH = ["begun on cudaMallocAsync", LINE, "begun on native"]
POOL = "torch.cuda.MemPool()\nprint('end', flush=True)\n"


@pytest.fixture
def environment(tmp_path, clean_environment):
    torch_on_pools.install(tmp_path)
    path = os.pathsep.join(filter(None, [str(HELPERS), clean_environment.get("PYTHONPATH")]))
    return {name: value for name, value in clean_environment.items() if not name.startswith("PYTORCH")} | {
        "PYTHONPATH": path}


@pytest.fixture
def check(tmp_path, environment):
    """Runs a program with the driver's pools first; the lines of what it and the check print, in their order."""
    def run(program, **options):
        (tmp_path / "program.py").write_text(program)
        done = subprocess.run([sys.executable, HELPERS / "torch_on_pools.py", sys.executable, "program.py"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, timeout=100,
                              env=environment, **options)
        lines = done.stdout.splitlines()
        return [LINE if LINE in line else line for line in lines]

    return run


FEATURES = [
    "torch.cuda.MemPool()", "torch.cuda.memory.MemPool(allocator=None)", "torch.cuda.memory.use_mem_pool()",
    "torch.cuda.make_graphed_callables()", "torch.cuda.graphs.make_graphed_callables()",
    "torch.UntypedStorage()._share_cuda_()", "torch.UntypedStorage._new_shared_cuda()",
    *(f"torch._C.{name}()" for name in torch_features.FUNCTIONS if not name.endswith("_legacy")),
]


def test_it_is_started_again(check):
    assert check(BEGIN + POOL) == [*AFRESH, "called MemPool", "end", "outcome 0 False 0"]


def test_each_feature_is_said_before_it_is_used(tmp_path, environment):
    """... and is used where the program goes on."""
    program = f"""
import torch
from xlogmem.check import again
from xlogmem.check.neighbours import torch_features
again.needs_own_pools = lambda feature, library: print("said", feature, library, flush=True)
torch_features.prepare(torch)
for feature in {FEATURES!r}:
    eval(feature)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=100,
                          env=environment)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["said", "called"] * len(FEATURES), done.stderr
    assert all(line.endswith(" PyTorch") for line in lines[::2])
    assert "called _new_shared_cuda UntypedStorage" in lines


def test_a_program_that_uses_none_of_them_runs_once(check):
    assert check(f"{BEGIN}print('end')\n") == ["begun on cudaMallocAsync", "end", "outcome 0 False 0"]


REFUSAL = "raise RuntimeError('cudaMallocAsync does not yet support everything. If you need it, please file an issue')"


@pytest.mark.parametrize("program", [
    REFUSAL, f"import threading\ndef run():\n    {REFUSAL}\nthreading.Thread(target=run).start()\n"])
def test_an_error_of_pytorch_that_the_program_does_not_catch_is_recognised(check, program):
    """Such a feature is new, or was reached from C++."""
    lines = check(f"{BEGIN}if torch._C._cuda_getAllocatorBackend() == 'native': sys.exit()\n{program}\n")
    assert lines == [*AFRESH, "outcome 0 False 0"]


def test_another_error_is_the_programs(check):
    lines = check(f"{BEGIN}raise RuntimeError('of mine')\n")
    assert lines[0] == "begun on cudaMallocAsync"
    assert lines[-2:] == ["RuntimeError: of mine", "outcome 1 False 0"]
    assert LINE not in lines


def test_only_the_second_run_is_judged(check):
    race = DRIVER + """
p = ok(cuda.cuMemAlloc(4096))
for stream in [ok(cuda.cuStreamCreate(1)) for _ in range(2)]:
    ok(cuda.cuMemsetD8Async(p, 7, 4096, stream))
"""
    assert check(f"{BEGIN}{race}{POOL}")[-1] == "outcome 0 False 1"


@pytest.mark.parametrize("stays", ["", "signal.signal(signal.SIGTERM, lambda *_: None)\n"])
def test_all_that_it_has_started_is_ended_before(check, stays):
    """Children of children too, in sessions of their own, and those that take no notice of a polite word."""
    program = f"""{BEGIN}
child = '''
import os, signal, sys, time
{stays}
print(os.getpid(), flush=True)
time.sleep(300)
'''
if torch._C._cuda_getAllocatorBackend() == "native":
    process = open("pid").read().strip()
    try:
        print("zombie" if " Z " in open(f"/proc/{{process}}/stat").read() else "runs")
    except FileNotFoundError:
        print("gone")
    sys.exit()
parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
with subprocess.Popen([sys.executable, "-c", parent, child], stdout=subprocess.PIPE, text=True) as started:
    open("pid", "w").write(started.stdout.readline())
    torch.cuda.MemPool()
"""
    lines = check(program)
    assert lines.pop(3) in ("gone", "zombie")           # of which its parent knows, where there is one that looks
    assert lines == [*AFRESH, "outcome 0 False 0"]


def test_a_worker_says_it_as_well(check):
    program = f"""{BEGIN}
if len(sys.argv) > 1:
    torch.cuda.MemPool()
else:
    subprocess.run([sys.executable, "program.py", "worker"])
"""
    lines = check(program)
    assert lines.count(LINE) == 1
    assert lines[-2:] == ["called MemPool", "outcome 0 False 0"]


def test_its_input_begins_again(check, tmp_path):
    (tmp_path / "input").write_text("one\ntwo\nthree\n")
    with (tmp_path / "input").open() as file:
        file.readline()
        os.lseek(file.fileno(), 4, os.SEEK_SET)
        lines = check(f"{BEGIN}print(sys.stdin.readline().strip(), flush=True)\n{POOL}", stdin=file)
    assert lines == ["begun on cudaMallocAsync", "two", LINE, "begun on native", "two", "called MemPool", "end",
                     "outcome 0 False 0"]


def test_one_that_was_interrupted_is_not_started_again(tmp_path, environment):
    (tmp_path / "program.py").write_text(f"""{BEGIN}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, lambda *_: torch.cuda.MemPool())
print("ready", flush=True)
time.sleep(60)
""")
    with subprocess.Popen([sys.executable, HELPERS / "torch_on_pools.py", sys.executable, "program.py"],
                          stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
                          env=environment) as run:
        lines = [run.stdout.readline(), run.stdout.readline()]
        time.sleep(0.2)
        os.killpg(run.pid, signal.SIGINT)
        lines += run.communicate(timeout=60)[0].splitlines()
    assert lines == ["begun on cudaMallocAsync\n", "ready\n", "outcome -9 True 0"]


def test_pools_that_were_chosen_are_kept(tmp_path, environment):
    """Then the report says what to do."""
    (tmp_path / "program.py").write_text(BEGIN + POOL)
    done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--pools", "driver", "--",
                           sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, timeout=100,
                          env=environment)
    assert (done.returncode, done.stdout) == (3, "begun on cudaMallocAsync\n"), done.stderr
    assert ("xlogmem check: the program uses torch.cuda.MemPool, which PyTorch does not have on the driver's pool: it "
            "was ended. Check it with --pools real\n") in done.stderr
    assert "os._exit" not in done.stderr


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_a_program_that_has_chosen_the_drivers_pool_itself_is_left_alone(check, environment, name):
    environment[name] = "backend:cudaMallocAsync"
    assert check(BEGIN + POOL) == ["begun on cudaMallocAsync", "called MemPool", "end", "outcome 0 False 0"]


@pytest.mark.parametrize("given", ["", "backend:cudaMallocAsync"])
def test_what_a_program_chooses_before_the_import_counts(check, given):
    chosen = f"import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = {given!r}\n"
    assert check(chosen + BEGIN + POOL)[-1] == "outcome 0 False 0"


def test_without_a_command_it_is_an_error(monkeypatch, tmp_path):
    """In tests, or if the command is gone."""
    monkeypatch.delenv("XLOGMEM_CHECK", raising=False)
    with pytest.raises(RuntimeError, match=r"uses a thing, which PyTorch .*: set XLOGMEM_CHECK_POOLS=real, or"):
        again.needs_own_pools("a thing", "PyTorch")
    monkeypatch.setenv("XLOGMEM_CHECK", str(tmp_path))
    with pytest.raises(RuntimeError, match="XLOGMEM_CHECK_POOLS=real"):
        again.needs_own_pools("a thing", "PyTorch")
    os.mkfifo(tmp_path / again.PIPE)                    # which has no reader
    with pytest.raises(RuntimeError, match="XLOGMEM_CHECK_POOLS=real"):
        again.needs_own_pools("a thing", "PyTorch")


def test_a_command_that_does_not_end_it_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XLOGMEM_CHECK", str(tmp_path))
    monkeypatch.setattr(again, "PATIENCE", 0)
    monkeypatch.setattr(again, "end_processes", lambda folder: None)
    listener = again.Listener(str(tmp_path))
    with pytest.raises(RuntimeError, match="check it with --pools real"):
        again.needs_own_pools("a thing", "PyTorch")
    listener.close()
    assert listener.reason == "a thing, which PyTorch does not have on the driver's pool"


@pytest.mark.skipif(not found("torch._inductor"), reason="needs a checked library: torch")
def test_pytorch_has_these_functions(clean_environment):
    program = """
import torch
from xlogmem.check.neighbours.torch_features import FUNCTIONS
known = [name for name in FUNCTIONS if hasattr(torch._C, name)]
assert not hasattr(torch._C, "_cuda_getAllocatorBackend") or len(known) > 8, known
for name in ("_share_cuda_", "_new_shared_cuda"):
    assert hasattr(torch.UntypedStorage, name), name
assert callable(torch.cuda.memory.MemPool) and callable(torch.cuda.graphs.make_graphed_callables)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=clean_environment,
                          timeout=100)
    assert done.returncode == 0, done.stderr
