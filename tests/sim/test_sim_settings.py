"""The settings of the simulated driver: what each key does, what cannot be read, and how they are merged."""
from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import sim_support as cu
from children import variables
from places import HELPERS

from xlogmem import sim
from xlogmem.sim import environment

pytestmark = pytest.mark.simulator

BEGIN = "import sim_support as cu; from cuda.bindings import driver; s = cu.install(); cu.retain(); "
# A key, its value, what a program prints (or a pattern of what is on stderr), and the same without the setting.
KEYS = [
    ("devices", 3, "print(driver.cuDeviceGetCount()[1])", "3", "2"),
    ("version", 12090, "print(driver.cuDriverGetVersion()[1])", "12090", "13000"),
    ("memory", 64 << 20, "print(cu.ok(driver.cuDeviceTotalMem(0)))", 64 << 20, 16 << 30),
    ("memory", "0x4000000", "print(cu.ok(driver.cuDeviceTotalMem(0)))", 64 << 20, 16 << 30),
    ("arena", 8 << 20, "print(cu.try_alloc(cu.stream(), 16 << 20)); cu.clean_up()", "2", "0"),
    ("pageable", 1, "print(cu.ok(driver.cuDeviceGetAttribute(driver.CUdevice_attribute(88), 0)))", "1", "0"),
    ("peers", 0, "print(cu.ok(driver.cuDeviceCanAccessPeer(0, 1)))", "0", "1"),
    ("free_waits", False, "p = cu.alloc_ordinary(); cu.fill(p, 1, cu.stream()); driver.cuMemFree(p);"
                          "print([r.split(':')[0] for r in s.races()])", "['RACE write/free']", "[]"),
    ("policy", "max", "a = cu.stream(); p = cu.alloc(a); cu.fill(p, 1, a); print(s.pending_operations())", "2", "0"),
    ("queue", 8, "s.set_policy('max'); a = cu.stream(); p = cu.alloc(a); [cu.fill(p, i, a) for i in range(100)];"
                 "print(s.pending_operations())", "8", "101"),
    ("races", 0, "p = cu.alloc(cu.stream()); cu.fill(p, 1, cu.stream()); print(len(s.races()))", "0", "1"),
    ("trace", 1, "p = cu.alloc(cu.stream()); cu.fill(p, 1, cu.stream())",
     re.compile(r"^\[xlogmem.sim\] RACE alloc/use: \S+ on stream \d+ [^\n]*\n$"), re.compile("^$")),
    ("trace", 2, "s.set_policy('max'); a = cu.stream(); p = cu.alloc(a); cu.fill(p, 1, a); cu.sync(a)",
     re.compile(r"\[xlogmem.sim\] stream \d+ runs \w+ \(op 2\)\n$"), re.compile("^$")),
    ("quiet", False, "", re.compile("SIMULATED"), re.compile("^$")),
    ("deadlock_s", .3, "import threading, signal; h = s.hold('cuCtxSynchronize', patience=.1); cu.sync(0);"
                       "e = threading.Event(); keep = cu.launch_host(0, lambda: e.wait(1)); cu.sync(0)",
     re.compile("nothing has moved for 0.3 s"), re.compile("^$")),
]
ORDERS = ("a, b = cu.stream(), cu.stream(); p = cu.alloc(a); cu.sync(a); {begin}\n"
          "for _ in range(40):\n"
          "    cu.fill(p, 1, a); cu.fill(p, 2, b); cu.sync(a); cu.sync(b); print(s.peek(p, 1)[0], end='')")


def run(program, **given):
    return cu.python("-c", BEGIN + program, PYTHONPATH=str(HELPERS), **given)


def installed(text, program="from xlogmem import sim; sim.install()", **more):
    """A process with exactly this text, which no test merges."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                          env=os.environ | {"XLOGMEM_SIM": text} | more)


def known():
    """The keys, as the driver lists them."""
    return installed("no such key").stderr.rpartition("all keys are ")[2].strip().split(", ")


@pytest.mark.parametrize(("key", "value", "program", "changed", "usual"), KEYS,
                         ids=[f"{key}={value}" for key, value, *_ in KEYS])
def test_each_key_changes_what_it_says(key, value, program, changed, usual):
    for given, expected in (({key: value}, changed), ({}, usual)):
        done = run(program, **given)
        if isinstance(expected, re.Pattern):
            assert expected.search(done.stderr), done.stderr
        else:
            assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_the_seed_is_that_of_the_seeded_policy():
    one, again, other = (run(ORDERS.format(begin=""), policy="seeded", seed=seed).stdout for seed in (5, 5, 6))
    assert one == again != other
    assert {*one} == {*other} == {"1", "2"}
    assert {*run(ORDERS.format(begin=""), seed=5).stdout} == {"2"}


def test_no_key_is_left_out():
    """... of these tests and of the table that users read."""
    keys = known()
    assert keys == sorted(keys)
    assert {*keys} == {key for key, *_ in KEYS} | {"seed"}
    assert {*keys} == {*re.findall(r"^``(\w+)``", environment.__doc__, re.MULTILINE)}
    assert re.search(r"policy``.*: (.*) \(eager\);", environment.__doc__)[1] == "eager, min, max or seeded"


@pytest.mark.parametrize("text", ["", ",", " , ,", "devices=2", "devices = 2 ,quiet", ",quiet", "quiet,", "quiet=1",
                                  "policy=max,policy=eager", "seed=18446744073709551615", "seed=0xFFFFFFFFFFFFFFFF"])
def test_what_can_be_read(text):
    done = installed(text, "from xlogmem import sim; print(sim.install().pending_operations())")
    assert done.stdout == "0\n", done.stderr
    assert ("SIMULATED" in done.stderr) == ("quiet" not in text)


def test_of_two_entries_the_later_counts():
    done = installed("devices=5,quiet,devices=1,quiet=0", "from xlogmem import sim; sim.install()\n"
                     "from cuda.bindings import driver; driver.cuInit(0); print(driver.cuDeviceGetCount()[1])")
    assert done.stdout == "1\n", done.stderr
    assert "SIMULATED" in done.stderr


@pytest.mark.parametrize(("text", "said"), [
    ("device=3", "there is no key 'device': the nearest key is 'devices', and all keys are arena, deadlock_s,"),
    ("Quiet", "there is no key 'Quiet': the nearest key is 'quiet',"),
    ("deadlock=3", "there is no key 'deadlock': the nearest key is 'deadlock_s',"),
    ("freewaits=0", "there is no key 'freewaits': the nearest key is 'free_waits',"),
    ("devices=2;seed=7", "devices is a whole number from 0 to 8, and not '2;seed=7'"),
    ("=3", "there is no key ''"), ("=", "there is no key ''"), ("1", "there is no key '1'"),
    ("devices", "devices is a whole number from 0 to 8, and has no value here"),
    ("devices=", "devices is a whole number from 0 to 8, and has no value here"),
    ("devices=9", "devices is a whole number from 0 to 8, and not '9'"),
    ("devices=-1", "devices is a whole number from 0 to 8, and not '-1'"),
    ("devices=two", "devices is a whole number from 0 to 8, and not 'two'"),
    ("devices=2.0", "devices is a whole number from 0 to 8, and not '2.0'"),
    ("devices=2 3", "devices is a whole number from 0 to 8, and not '2 3'"),
    (f"seed={1 << 64}", f"seed is a whole number from 0 to {(1 << 64) - 1}, and not '{1 << 64}'"),
    ("seed=0x", "seed is a whole number from 0 to 18446744073709551615, and not '0x'"),
    ("memory=16GiB", "memory is a whole number from 1048576 to 70368744177664, and not '16GiB'"),
    ("memory=0", "memory is a whole number from 1048576 to 70368744177664, and not '0'"),
    ("arena=1000", "arena is a whole number from 1048576 to 70368744177664, and not '1000'"),
    ("version=12.4", "version is a whole number from 2000 to 99990, and not '12.4'"),
    ("queue=0", "queue is a whole number from 1 to 2147483648, and not '0'"),
    ("trace=3", "trace is a whole number from 0 to 2, and not '3'"),
    ("deadlock_s=0", "deadlock_s is a number of seconds from 0.001 to 1000000, and not '0'"),
    ("deadlock_s=1s", "deadlock_s is a number of seconds from 0.001 to 1000000, and not '1s'"),
    ("deadlock_s=nan", "deadlock_s is a number of seconds from 0.001 to 1000000, and not 'nan'"),
    ("policy=fast", "policy is eager, min, max or seeded, and not 'fast'"),
    ("policy", "policy is eager, min, max or seeded, and has no value here"),
    ("peers=none", "peers is 0 or 1, and not 'none'"), ("races=", "races is 0 or 1, and has no value here"),
    ("quiet=yes", "quiet is 0 or 1, and not 'yes'"), ("free_waits=2", "free_waits is 0 or 1, and not '2'")])
def test_what_cannot_be_read_is_an_error(text, said):
    done = installed(text)
    assert done.returncode == 1
    assert f"ValueError: XLOGMEM_SIM: {said}" in done.stderr
    assert "SIMULATED" not in done.stderr


def test_everything_that_is_wrong_is_listed():
    done = installed("devices=9,seed=1,colour=red,peers=all")
    *_, devices, colour, peers = done.stderr.splitlines()
    assert "devices is" in devices
    assert "'colour'" in colour
    assert peers == "XLOGMEM_SIM: peers is 0 or 1, and not 'all'"


@pytest.mark.parametrize(("name", "said"), [
    *((f"XLOGMEM_SIM_{key.upper()}", f"unset it, and use the key '{key}' of XLOGMEM_SIM") for key in (
        "devices", "seed", "quiet", "version", "policy", "peers", "free_waits", "races", "trace", "memory", "queue",
        "arena", "deadlock_s")),
    ("XLOGMEM_SIM_LIBRARY", "the settings are in XLOGMEM_SIM; the nearest key is"),
    ("XLOGMEM_SIM_DEVICE", "the settings are in XLOGMEM_SIM; the nearest key is 'devices'")])
def test_a_variable_for_one_setting_is_an_error(name, said):
    """These were once, and must not be dropped in silence."""
    done = installed("", **{name: "1"})
    assert done.returncode == 1
    assert f"ValueError: {name} is set, but is not a variable of the simulated driver: {said}" in done.stderr


def test_the_driver_refuses_without_xlogmem_too():
    """A program that has loaded the library by itself: the driver prints what is wrong, and cannot be initialised.  A
    later `install` raises it."""
    begin = f"import ctypes; driver = ctypes.CDLL({sim.library_path()!r}); print(driver.cuInit(0), driver.cuInit(0))\n"
    count = "print(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())))\n"
    wrong = installed("devices=9", begin + count + "from xlogmem import sim; sim.install()", XLOGMEM_SIM_SEED="1")
    assert wrong.stdout == "1 1\n3\n"
    lines = wrong.stderr.splitlines()
    assert lines[0].startswith("[xlogmem.sim] XLOGMEM_SIM_SEED is set, but")
    assert lines[1] == "[xlogmem.sim] XLOGMEM_SIM: devices is a whole number from 0 to 8, and not '9'"
    assert lines[-1] == lines[1].removeprefix("[xlogmem.sim] ")
    assert installed("devices=8", begin + count).stdout == "0 0\n0\n"


def test_a_failed_install_can_not_be_gone_around():
    done = installed("devices=9", "from xlogmem import sim\nfor _ in range(2):\n"
                     "    try: sim.install()\n    except ValueError as error: print(error)\n"
                     "from cuda.bindings import driver; print(int(driver.cuInit(0)[0])); sim.simulator()")
    assert done.stdout.splitlines() == ["XLOGMEM_SIM: devices is a whole number from 0 to 8, and not '9'"] * 2 + ["1"]
    assert done.stderr.splitlines()[-1].startswith("ValueError: XLOGMEM_SIM: devices is")


def test_the_settings_are_read_at_the_installation_and_the_devices_when_the_driver_starts():
    done = installed("devices=3,quiet", "import os; from xlogmem import sim; sim.install()\n"
                     "os.environ |= {'XLOGMEM_SIM': 'devices=5', 'CUDA_VISIBLE_DEVICES': '2'}\n"
                     "from cuda.bindings import driver as d; d.cuInit(0)\n"
                     "print(d.cuDeviceGetCount()[1], d.cuDeviceGetUuid(0)[1].bytes[15])")
    assert done.stdout == "1 2\n", done.stderr


# ---------------------------------------------------------------------------------------------- merging
@pytest.mark.parametrize(("before", "changes", "after"), [
    (None, {}, ""), ("", {"quiet": True}, "quiet=1"), ("devices=3", {"quiet": True}, "devices=3,quiet=1"),
    ("quiet,devices=3", {"quiet": False}, "quiet=0,devices=3"), ("quiet", {"quiet": True}, "quiet=1"),
    (" devices = 3 ,, seed=7,", {"seed": 8, "deadlock_s": .5}, "devices = 3,seed=8,deadlock_s=0.5"),
    ("seed=1,devices=2,seed=3", {}, "seed=3,devices=2"), ("quiet=maybe,colour=red", {"colour": "blue"},
                                                          "quiet=maybe,colour=blue")])
def test_settings_are_merged(before, changes, after):
    """What the child cannot read stays, so that the child says so."""
    given = {"OTHER": "x"} | ({} if before is None else {"XLOGMEM_SIM": before})
    kept = dict(given)
    assert sim.settings(given, **changes) == {"XLOGMEM_SIM": after}
    assert given == kept


def test_the_environment_of_this_process_is_the_default(monkeypatch):
    monkeypatch.setenv("XLOGMEM_SIM", "devices=3")
    assert sim.settings(seed=4) == {"XLOGMEM_SIM": "devices=3,seed=4"}
    assert os.environ["XLOGMEM_SIM"] == "devices=3"
    assert variables(devices=4, OTHER=1).items() >= {"XLOGMEM_SIM": "devices=4,quiet=1", "OTHER": "1"}.items()


def test_a_value_with_a_comma_is_refused():
    with pytest.raises(ValueError, match="policy='min,seed=3': the value of a setting cannot have a comma"):
        sim.settings(policy="min,seed=3")


def test_a_checked_program_keeps_its_settings():
    """`xlogmem check` makes the driver of its children quiet, and changes nothing else."""
    program = ("from cuda.bindings import driver; driver.cuInit(0); import os;"
               "print(driver.cuDeviceGetCount()[1], os.environ['XLOGMEM_SIM'])")
    done = cu.python("-m", "xlogmem", "check", "--no-gpu", "--", sys.executable, "-c", program,
                     devices=3, quiet=False, seed=9)
    assert done.stdout == f"3 {sim.settings(devices=3, quiet=True, seed=9)['XLOGMEM_SIM']}\n", done.stderr
    assert "SIMULATED" not in done.stderr
