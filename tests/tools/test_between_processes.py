"""`benchmarks/between_processes.py`: what both ends say, what is refused, and both ends in one process.

The simulated driver has no handles for other processes.  A stand-in for the calls that make them lets both ends run in
one process, so that the simulated driver judges the order between them.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
from cuda.bindings import driver as cuda
from places import ROOT

from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
PROGRAM = ROOT / "benchmarks/between_processes.py"


@pytest.fixture
def channel(monkeypatch):
    monkeypatch.syspath_prepend(PROGRAM.parent)
    return importlib.import_module("between_channel")


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(PROGRAM.parent)
    return importlib.import_module("between_processes")


# ---------------------------------------------------------------------------------------------- messages
def messages(channel):
    handle = bytes(range(64))
    return [channel.Hello(1, 4, 1000, 5, 1, 4096), channel.Ready(), channel.Events(3, handle, handle[::-1]),
            channel.Chunk(0, 1 << 40, handle), channel.Share(1, 2, 3, 4, 5, 6, channel.READ, 7),
            channel.Release(1, 2, 3), channel.Bye(), channel.Report(1000, 0, 0),
            channel.Failed(b"no".ljust(400, b"\0"))]


def test_each_message_comes_back(channel):
    for message in messages(channel):
        assert channel.decode(channel.encode(message)) == message
    assert {type(message) for message in messages(channel)} == set(channel.FORMS)
    assert all(len(channel.encode(message)) < channel.LONGEST for message in messages(channel))


def test_what_is_no_message_is_refused(channel):
    for message in messages(channel):
        data = channel.encode(message)
        for wrong in (b"", data[:5], data[:-1], data + b"\0", b"Y" + data[1:], data[:4] + b"\2" + data[5:],
                      data[:5] + b"\0" + data[6:], data[:5] + b"\xff" + data[6:]):
            with pytest.raises(channel.Malformed):
                channel.decode(wrong)
    with pytest.raises(ValueError, match="63 bytes"):
        channel.encode(channel.Chunk(0, 1, bytes(63)))


def test_random_bytes_are_a_message_or_refused(channel):
    rng = random.Random(1)
    seeds = [channel.encode(message) for message in messages(channel)]
    for _ in range(2000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(channel.Malformed):
            assert channel.encode(channel.decode(bytes(data))) == bytes(data)


def test_descriptors_come_with_the_message_that_has_some(channel):
    ours, theirs = channel.Channel.pair()
    read, write = os.pipe()
    ours.send(channel.Hello(0, 1, 1, 0, 1, 1), [read, write])
    message, received = theirs.receive(1)
    assert isinstance(message, channel.Hello)
    assert len(received) == 2
    assert not any(map(os.get_inheritable, received))
    os.write(received[1], b"x")
    assert os.read(read, 1) == b"x"
    before = len(os.listdir("/proc/self/fd"))
    for message, descriptors in ((channel.Bye(), [read]), (channel.Hello(0, 1, 1, 0, 1, 1), [read]),
                                 (channel.Hello(0, 1, 1, 0, 1, 1), [read] * 20)):
        ours.send(message, descriptors)
        with pytest.raises(channel.Malformed):
            theirs.receive(1)
    assert len(os.listdir("/proc/self/fd")) == before                   # the unexpected ones are closed
    ours.socket.send(bytes(1000))
    with pytest.raises(channel.Malformed, match="more than 512 bytes"):
        theirs.receive(1)
    with pytest.raises(TimeoutError):
        theirs.receive(0)
    ours.send(channel.Bye())
    ours.close()
    assert theirs.receive(0) == (channel.Bye(), [])                     # what was sent before the end is not lost
    with pytest.raises(channel.Closed):
        theirs.receive(0)
    with pytest.raises(channel.Closed):
        theirs.send(channel.Bye())
    theirs.close()
    for number in (read, write, *received):
        os.close(number)


def test_a_descriptor_of_another_connection_is_refused(channel):
    share = channel.Share(slot=0, serial=5, chunk=0, offset=256, nbytes=256, generation=9, access=channel.READ, value=1)
    taken = {1: channel.Share(1, 4, 0, 512, 256, 8, channel.WRITE, 1)}

    def given(**changes):
        channel.check_share(share._replace(**changes), {0: 1024}, 2, taken, 4)

    given()
    given(offset=768)
    for wrong in ({"chunk": 1}, {"nbytes": 0}, {"nbytes": 1 << 63}, {"offset": 1025}, {"offset": 1024}, {"slot": 1},
                  {"slot": 2}, {"serial": 4}, {"serial": 6}, {"access": 0}, {"access": 3}, {"generation": 8},
                  {"nbytes": 257}, {"offset": 700, "nbytes": 100}):
        with pytest.raises(channel.Malformed):
            given(**wrong)


# ---------------------------------------------------------------------------------------------- exports
def test_an_export_ends_once_and_in_its_order(channel):
    exports = channel.Exports(2)
    first, second = exports.export(7, "first"), exports.export(8, "second")
    assert exports.full
    with pytest.raises(RuntimeError):
        exports.export(9, "third")
    for wrong in ((first.slot, first.serial, 8), (first.slot, second.serial, 7), (2, 1, 7), (second.slot, 1, 7)):
        with pytest.raises(channel.Malformed):
            exports.accept(channel.Release(*wrong))
    with pytest.raises(RuntimeError):
        exports.settle(first)                                             # it was not returned
    assert exports.accept(channel.Release(first.slot, first.serial, 7)) is first
    with pytest.raises(channel.Malformed):
        exports.accept(channel.Release(first.slot, first.serial, 7))   # twice
    assert exports.full                                                   # its slot's event is not known to be complete
    assert exports.settle(first) == "first"
    third = exports.export(9, "third")
    assert third.slot == first.slot
    with pytest.raises(channel.Malformed):
        exports.accept(channel.Release(first.slot, first.serial, 7))   # of the export before
    assert len(exports) == 2


def test_a_lost_peer_keeps_its_exports_until_its_work_is_over(channel):
    exports = channel.Exports(3)
    exported, returned = exports.export(1, "exported"), exports.export(2, "returned")
    exports.accept(channel.Release(returned.slot, returned.serial, 2))
    with pytest.raises(RuntimeError):
        exports.end()                                                     # it was not lost
    exports.lose()
    assert len(exports) == 2
    with pytest.raises(channel.Closed):
        exports.export(3, "new")
    with pytest.raises(channel.Malformed):
        exports.accept(channel.Release(exported.slot, exported.serial, 1))     # from beyond
    assert exports.end() == ["exported", "returned"]
    assert exports.end() == []
    assert len(exports) == 0


def test_exports_stay_where_the_end_of_a_process_says_nothing(channel):
    exports = channel.Exports(1, end_is_known=False)
    exports.export(1, "exported")
    exports.lose()
    assert exports.end() == []
    assert exports.state is channel.PeerState.LOST
    assert len(exports) == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_exports_end_once_each(channel, seed):
    """Whatever the peer says and whenever it ends, each export ends once, and none of a lost peer before the end."""
    rng, exports, ended, exported = random.Random(seed), channel.Exports(4), [], []
    for step in range(200):
        choice = rng.random()
        if choice < .4 and not exports.full:
            exported.append(exports.export(step, step))
        elif choice < .7 and exported:
            export = rng.choice(exported)
            with contextlib.suppress(channel.Malformed):
                exports.accept(channel.Release(export.slot, export.serial, export.generation))
        elif exports.returned:
            ended.append(exports.settle(rng.choice(exports.returned)))
    before = len(ended)
    exports.lose()
    assert len(ended) == before
    ended += exports.end()
    assert sorted(ended) == [export.kept for export in exported]


def test_the_end_of_a_process_is_seen_and_the_end_of_its_connection_is_another(channel):
    ours, theirs = channel.Channel.pair()
    end = theirs.socket.fileno()
    child = subprocess.Popen([sys.executable, "-c", f"import os, time; os.close({end}); time.sleep(60)"],
                             pass_fds=[end])
    theirs.close()
    pidfd = os.pidfd_open(child.pid)
    with pytest.raises(channel.Closed):
        ours.receive(30)
    assert not channel.process_ended(pidfd, 0)
    child.send_signal(signal.SIGKILL)
    assert channel.process_ended(pidfd, 30)
    assert child.wait(30) == -signal.SIGKILL
    os.close(pidfd)
    ours.close()


# ---------------------------------------------------------------------------------------------- both in one process
class SameProcess:
    """In place of `DriverCalls`: handles are those of this process."""

    def __init__(self, program):
        self.plain = program.DriverCalls()
        self.known = []
        self.freed = []

    def handle(self, what):
        self.known.append(what)
        return (len(self.known) - 1).to_bytes(64, "little")

    def of(self, data):
        return self.known[int.from_bytes(data, "little")]

    def make_pool(self):
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        return check(cuda.cuMemPoolCreate(properties))

    def export_pool(self, pool):
        return os.open(os.devnull, os.O_RDONLY)

    def import_pool(self, descriptor):
        return None

    def destroy_pool(self, pool):
        if pool is not None:
            check(cuda.cuMemPoolDestroy(pool))

    def export_pointer(self, address):
        return self.handle(address)

    def import_pointer(self, pool, data):
        return self.of(data)

    def free_imported(self, address):
        self.freed.append(address)

    def make_event(self):
        return check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    export_event, open_event = handle, of

    def destroy_event(self, event):                     # each side does: the exporter's is the one
        self.freed.append(event)

    def destroy_events(self):
        for event in {int(event): event for event in self.freed if isinstance(event, cuda.CUevent)}.values():
            check(cuda.cuEventDestroy(event))

    def attach(self, memory):
        pass

    def record(self, event, stream, serial):
        self.plain.record(event, stream, serial)

    def wait(self, stream, event, serial):
        self.plain.wait(stream, event, serial)

    def is_complete(self, event, serial):
        return self.plain.is_complete(event, serial)

    def end_of_process_ends_work(self):
        return True


@pytest.mark.parametrize("kind", ["CUmemPoolPtrExportData", "CUipcEventHandle"])
def test_a_handle_of_cuda_bindings_comes_back(program, kind):
    data = bytes(range(7, 71))
    assert program.bytes_of(program.filled(getattr(cuda, kind)(), data)) == data


def test_words_in_place_of_events(program):
    """A stream waits for a number, of which the host sees when it is there."""
    exporter, importer = program.Words(), program.Words()
    memory = program.HostMemory(4096)
    exporter.attach(memory)
    importer.attach(program.HostMemory(4096, os.dup(memory.descriptor)))
    first, second = exporter.make_event(), exporter.make_event()
    assert importer.open_event(exporter.export_event(second)) == second
    for wrong in (4, 4096, 1 << 100):
        with pytest.raises(program.Malformed):
            importer.open_event(exporter.export_event(wrong))
    stream, other = check(cuda.cuStreamCreate(1)), check(cuda.cuStreamCreate(1))
    importer.record(first, int(other), 1)
    check(cuda.cuStreamSynchronize(other))
    assert (exporter.is_complete(first, 1), exporter.is_complete(first, 2), exporter.is_complete(second, 1)) == (
        True, False, False)
    exporter.wait(int(stream), first, 2)
    assert cuda.cuStreamQuery(stream)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    exporter.record_in_place(first, int(other), 2)      # the process that would has ended
    check(cuda.cuStreamSynchronize(stream))
    for one in (stream, other):
        check(cuda.cuStreamDestroy(one))
    importer.memory.close()
    exporter.memory.close()


class SameProcessWithWords(SameProcess):
    """Both ends map the words."""

    def __init__(self, program):
        super().__init__(program)
        self.plain = program.Words()

    def attach(self, memory):
        made = getattr(self.plain, "made", 0)
        self.plain.attach(memory)
        self.plain.made = made

    def make_event(self):
        return self.plain.make_event()

    def destroy_event(self, event):
        pass


class BothEnds:
    def __init__(self, program, task, slots, calls=SameProcess, **how):
        self.program, self.calls = program, calls(program)
        self.exporter = program.Exporter(self.calls, 4096, slots)
        ours, self.theirs = program.Channel.pair()
        self.errors = []
        self.thread = threading.Thread(target=self.importer)
        self.thread.start()
        self.peer = program.Peer(self.exporter, ours, task, slots=slots, **how)
        self.peer.until_ready()

    def importer(self):
        try:
            self.program.Importer(self.calls, self.theirs).serve()
        except self.program.Closed:
            pass
        except Exception as error:
            self.errors.append(error)

    def close(self):
        self.peer.close()
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.theirs.close()
        self.calls.destroy_events()
        self.exporter.close()
        assert not self.errors


HOW = [{}, {"by_host": True}]


@pytest.mark.parametrize("how", HOW)
def test_every_hand_over_is_right(program, how):
    both = BothEnds(program, program.CHECK, 3, rounds=50, delay=1000, **how)
    program.hand_over(both.exporter, both.peer, 50, 1000)
    assert both.peer.say_goodbye() == program.Report(50, 0, 0)
    assert len(both.exporter.resource.chunks) == 1
    both.close()


@pytest.fixture
def both_ends(program):
    """Makes both ends, and gives what was not freed back to the driver whatever the test has done to the peer."""
    made = []

    def make(*arguments, **how):
        made.append(BothEnds(program, *arguments, **how))
        return made[-1]

    yield make
    while made:
        both = made.pop()
        both.close()
        both.__dict__.clear()                           # pytest keeps what the test had, which must not keep runtimes


def found(driver, report=None):
    """Whether the simulated driver has seen a missing wait, or the importer other words."""
    races = driver.races()
    driver.clear_races()
    return bool(races) or bool(report and report.wrong_words)


@pytest.mark.parametrize("missing", ["ordered", "held"])
def test_without_one_of_the_two_orders_it_is_wrong(program, both_ends, driver, missing):
    both = both_ends(program.CHECK, 2, rounds=8, delay=1000, **{missing: False})
    program.hand_over(both.exporter, both.peer, 8, 1000)
    assert found(driver, both.peer.say_goodbye())


@pytest.mark.parametrize("how", HOW)
def test_hand_overs_with_words(program, both_ends, driver, how):
    """What arrives is right.  The simulated driver sees no order in values, so its races say nothing."""
    both = both_ends(program.CHECK, 2, calls=SameProcessWithWords, rounds=8, delay=1000, **how)
    program.hand_over(both.exporter, both.peer, 8, 1000)
    assert both.peer.say_goodbye() == program.Report(8, 0, 0)
    assert [both.calls.plain.word(event).value for pair in both.peer.events for event in pair] in (
        [7, 7, 8, 8], [8, 8, 7, 7])                     # the numbers of the last two
    driver.clear_races()


def test_each_wait_between_the_processes_is_needed(program, both_ends, driver, monkeypatch):
    """Of a hand-over and its return: without the wait for the frontier, and without that for the release."""
    both = both_ends(program.CHECK, 1, rounds=3, delay=1000)
    program.hand_over(both.exporter, both.peer, 1, 1000)
    both.peer.wait_until(lambda: not len(both.peer.exports))
    assert not found(driver)
    waits = program.cuda.cuStreamWaitEvent
    kinds = {int(pair[index]): index for pair in both.peer.events for index in (0, 1)}
    for index in (0, 1):
        dropped = []

        def wait(stream, event, flags, index=index, dropped=dropped):
            if kinds.get(int(event)) != index or dropped:
                return waits(stream, event, flags)
            dropped.append(event)
            return (cuda.CUresult.CUDA_SUCCESS,)

        monkeypatch.setattr(program, "cuda", Changed(program.cuda, cuStreamWaitEvent=wait))
        program.hand_over(both.exporter, both.peer, 2, 1000)
        both.peer.wait_until(lambda: not len(both.peer.exports))
        both.exporter.runtime.synchronize()
        monkeypatch.undo()
        assert dropped
        assert found(driver), f"the wait for event {index} was not needed"
    both.peer.say_goodbye()
    driver.clear_races()


class Changed:
    """A module with other functions."""

    def __init__(self, module, **functions):
        self.__dict__.update(functions)
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, name)


@pytest.fixture
def exported_to_a_writer(program, both_ends, monkeypatch):
    """The pool's one block, exported to a peer whose kernel writes it; a free of the block waits."""

    def exported(task):
        both = both_ends(task, 1, by_host=True)
        kernels = both.exporter.kernels
        monkeypatch.setattr(program, "scribble",
                            lambda stream, target, words, _: kernels.fill(stream, target, 3, words))
        block = both.exporter.block_with(1)
        address = block.ptr
        both.peer.export(block, program.WRITE, 1)
        block.free()
        return both, address

    return exported


@pytest.mark.parametrize("task", ["SCRIBBLE", "SCRIBBLE_AND_RETURN"])
def test_a_lost_peer_frees_nothing_before_its_work_is_over(program, exported_to_a_writer, driver, task):
    both, address = exported_to_a_writer(getattr(program, task))
    if task == "SCRIBBLE_AND_RETURN":
        both.peer.until_returned()
    both.peer.channel.socket.shutdown(2)                # as the end of the process does, with its other files
    while both.peer.pump(1):
        pass
    assert both.peer.exports.state is program.PeerState.LOST
    assert not program.given_out_early(both.exporter)
    both.exporter.runtime.reap_pending()
    assert not program.given_out_early(both.exporter)
    both.thread.join(30)
    check(cuda.cuCtxSynchronize())                      # the end of a process ends its work
    assert both.peer.end()
    owner = both.exporter.block_with(7)
    assert owner.ptr == address
    owner.free()
    assert not found(driver)


def test_a_lost_peer_that_is_taken_for_ended_overwrites_the_next_owner(program, exported_to_a_writer, driver):
    both, address = exported_to_a_writer(program.SCRIBBLE_AND_RETURN)
    both.peer.until_returned()
    both.peer.exports.lose()
    assert both.peer.end()                              # nothing says that its work is over
    owner = both.exporter.block_with(7)
    assert owner.ptr == address
    owner.free()
    both.peer.channel.socket.shutdown(2)
    both.thread.join(30)
    check(cuda.cuCtxSynchronize())                      # for the end of the test
    assert found(driver)


def test_memory_stays_where_the_end_of_a_process_says_nothing(program, exported_to_a_writer, driver, monkeypatch):
    monkeypatch.setattr(SameProcess, "end_of_process_ends_work", lambda self: False)
    both, _ = exported_to_a_writer(program.SCRIBBLE)
    both.peer.channel.socket.shutdown(2)
    both.thread.join(30)
    while both.peer.pump(1):
        pass
    assert not both.peer.end()
    assert not program.given_out_early(both.exporter)
    both.peer.exports.end_is_known = True                 # for the end of the test
    check(cuda.cuCtxSynchronize())
    assert both.peer.end()


def test_a_peer_that_says_what_it_cannot_mean_is_lost(program, both_ends, capfd):
    both = both_ends(program.CHECK, 1, rounds=1)
    program.Channel(both.theirs.socket).send(program.Release(0, 1, 1))
    assert not both.peer.pump(5)
    assert both.peer.exports.state is program.PeerState.LOST
    assert "which is not exported" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="lost"):
        both.peer.export(None, program.READ, 1)
    both.peer.channel.socket.shutdown(2)
    both.thread.join(30)


# ---------------------------------------------------------------------------------------------- the parts
class OtherCalls:
    def __new__(cls):
        import between_processes

        return between_processes.DriverCalls()


class FakeChild:
    """In place of `Child`: a thread.  Its end ends its work, as that of a process does."""

    def __init__(self, program):
        self.program = program
        self.channel, self.theirs = program.Channel.pair()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.is_killed = False

    def run(self):
        with contextlib.suppress(self.program.Closed):
            self.program.Importer(self.program.DriverCalls(), self.theirs).serve()

    def kill(self):
        self.is_killed = True

    def ended(self, timeout=0):
        if self.is_killed:
            self.theirs.socket.shutdown(2)
            self.thread.join(30)
            check(cuda.cuCtxSynchronize())
        return self.is_killed

    def close(self):
        with contextlib.suppress(OSError):
            self.theirs.socket.shutdown(2)
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.theirs.close()
        check(cuda.cuCtxSynchronize())


@pytest.fixture
def parts(program, monkeypatch):
    """The parts, with stand-ins for other processes; small."""
    calls = SameProcess(program)
    kernels = program.Kernels()
    monkeypatch.setattr(program, "DriverCalls", lambda: calls)
    monkeypatch.setattr(program, "Child", lambda calls: FakeChild(program))
    monkeypatch.setattr(program, "Words", OtherCalls)   # both processes are one, so there is one of them
    monkeypatch.setattr(program, "ANSWER", 5)
    monkeypatch.setattr(program, "COSTS", {4: 3})
    monkeypatch.setattr(program, "scribble",
                        lambda stream, target, words, _: kernels.fill(stream, target, 3, words))
    monkeypatch.setattr(program.time, "sleep", lambda seconds: None)
    yield lambda name: program.PARTS[name](argparse.Namespace(rounds=20, kills=2, kib=4, slots=3))
    calls.destroy_events()
    kernels.close()


def found_beside_the_probe(driver):
    """The races but for those with the program's own looks at memory, which are not ordered by intent."""
    races = [race for race in driver.races() if "DtoH" not in race and "count_unequal" not in race]
    driver.clear_races()
    return races


@pytest.mark.parametrize("name", ["right", "right, seen by the host", "right, words", "killed, process", "cost"])
def test_a_part_that_is_right(program, parts, driver, name):
    row = parts(name)
    assert not (found_beside_the_probe if "killed" in name else found)(driver)
    assert program.as_expected({"part": name, "failed": None, **row})
    assert row.get("known", True)
    assert json.loads(json.dumps(row))["wrong"] == 0
    assert f"{name} " in program.line_of({"part": name, "failed": None, "took_s": 1, **row})


@pytest.mark.parametrize("name", ["without the frontier", "without the release", "killed, signal", "left, connection"])
def test_a_part_that_is_wrong(parts, driver, name):
    row = parts(name)
    assert row["rounds"]
    assert found_beside_the_probe(driver) if "connection" in name or "signal" in name else found(driver)


def test_the_part_of_a_stream_that_waits(program, parts, driver):
    row = parts("pending")
    assert not found_beside_the_probe(driver)
    assert row["process_ended"]
    assert row["goes_on_after_ms"] is not None
    assert "goes on after" in program.line_of({"part": "pending", "failed": None, "took_s": 1, **row})


def test_a_part_that_fails_or_takes_too_long_is_a_row(program, monkeypatch):
    options = argparse.Namespace(rounds=1, kills=1, kib=4, slots=1, limit=60)
    monkeypatch.setenv("XLOGMEM_SIMULATE", "1")
    row = program.in_a_process("right", options)        # the simulated driver exports no pool
    assert row["failed"].startswith("status 1: ")
    assert f"FAILED: {row['failed']}" in program.line_of(row)
    options.limit = .01
    row = program.in_a_process("right", options)
    assert row["failed"].startswith("not done after 0.01 s")


def test_it_needs_a_gpu():
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "XLOGMEM_SIMULATE": "1", "PYTHONSAFEPATH": ""})
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs a GPU" in done.stderr


def test_what_is_expected_of_each_part(program):
    measured = {"killed, connection", "killed, signal", "pending", "pending, words"}
    assert program.RIGHT | program.WRONG | measured == set(program.PARTS)
    fine = {"failed": None, "wrong": 0, "early": 0, "late_writes": 0}
    for name in program.PARTS:
        row = {"part": name, **fine}
        assert program.as_expected(row) == (name not in program.WRONG)
        assert program.as_expected({**row, "wrong": 1}) == (name not in program.RIGHT)
        assert not program.as_expected({**row, "failed": "status 1"})
        for fault in ("early", "late_writes"):
            assert program.as_expected({**row, "wrong": 1, fault: 1}) == (name not in program.RIGHT)
