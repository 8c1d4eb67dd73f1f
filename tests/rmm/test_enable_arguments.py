"""`xlogmem.rmm.enable`: what is wrong is refused before anything is changed, and what would not be heard too."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rmm_if_installed import Source, current, needs_rmm, rmm

import xlogmem

pytestmark = needs_rmm


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("precious\n")
    return path


@pytest.mark.parametrize(("options", "match"), [
    ({"limit": "x"}, "limit must be"), ({"policy": "x"}, "policy 'x' is unknown"),
    ({"pool_allocator": True, "initial_pool_size": 1 << 20, "maximum_pool_size": 1 << 19}, "pool_size")])
def test_a_log_is_not_emptied_where_something_else_is_wrong(options, match, fresh, log):
    with pytest.raises(ValueError, match=match):
        xlogmem.rmm.enable(0, log=log, guard=True, statistics=True, **options)
    assert current() is fresh.mr
    assert log.read_text() == "precious\n"


def test_a_log_is_not_emptied_where_the_process_has_a_runtime(fresh, log):
    runtime = xlogmem.get_runtime()
    with pytest.raises(RuntimeError, match=r"has a runtime already.*before anything that makes one"):
        xlogmem.rmm.enable(0, log=log)
    assert log.read_text() == "precious\n"
    assert xlogmem.get_runtime() is runtime


@pytest.fixture
def logs(tmp_path):
    """Of two devices, whose RMM resources are sources of ours."""
    before = rmm.mr.get_per_device_resource(1)
    rmm.mr.set_per_device_resource(1, Source().mr)
    paths = [tmp_path / f"log.dev{device}.csv" for device in (0, 1)]
    for path in paths:
        path.write_text("precious\n")
    yield paths
    rmm.mr.set_per_device_resource(1, before)


def test_no_log_is_emptied_where_a_later_device_has_a_runtime(fresh, logs, tmp_path):
    xlogmem.get_runtime(1)
    with pytest.raises(RuntimeError, match="device 1 has a runtime already"):
        xlogmem.rmm.enable([0, 1], log=tmp_path / "log.csv")
    assert [path.read_text() for path in logs] == ["precious\n"] * 2
    assert current() is fresh.mr


def test_no_log_is_emptied_where_that_of_a_later_device_cannot_be_opened(fresh, logs, tmp_path):
    logs[1].unlink()
    logs[1].mkdir()
    with pytest.raises(IsADirectoryError, match=r"log.dev1.csv"):
        xlogmem.rmm.enable([0, 1], log=tmp_path / "log.csv")
    assert logs[0].read_text() == "precious\n"
    logs[1].rmdir()
    other = xlogmem.LoggingResourceAdaptor(xlogmem.AsyncMemoryResource(), logs[1])
    with pytest.raises(ValueError, match=r"log.dev1.csv is the log of another adaptor"):
        xlogmem.rmm.enable([0, 1], log=tmp_path / "log.csv")
    assert logs[0].read_text() == "precious\n"
    other.close()


OTHERS = [({"limit": "1MiB"}, "limit"), ({"guard": True}, "guard"), ({"statistics": True}, "statistics"),
          ({"policy": "precise"}, "policy"), ({"pool_allocator": True}, "pool_allocator and its sizes")]


@pytest.mark.parametrize(("options", "what"), OTHERS)
@pytest.mark.parametrize("between", [False, True])
def test_arguments_that_would_not_be_heard_are_refused(options, what, between, fresh, log):
    xlogmem.rmm.enable(0)
    mine = current()
    if between:
        xlogmem.rmm.disable()
    with pytest.raises(RuntimeError, match=f"cannot get another {what}"):
        xlogmem.rmm.enable(0, **options)
    with pytest.raises(RuntimeError, match="cannot get another log"):
        xlogmem.rmm.enable(0, log=log)
    assert log.read_text() == "precious\n"
    xlogmem.rmm.enable(0)
    assert current() is mine


def test_the_same_arguments_again_are_none(fresh):
    options = {"limit": "1MiB", "statistics": True, "pool_allocator": True, "maximum_pool_size": 1 << 20}
    xlogmem.rmm.enable(0, **options)
    mine = current()
    xlogmem.rmm.enable(0, **options)
    xlogmem.rmm.enable(0, limit="1MiB")                 # some of them
    xlogmem.rmm.disable()
    xlogmem.rmm.enable(0, **options)
    assert current() is mine
    with pytest.raises(RuntimeError, match="cannot get another limit"):
        xlogmem.rmm.enable(0, limit="2MiB")


@pytest.mark.parametrize(("first", "same", "another"), [
    ({"limit": "1MiB"}, {"limit": 1 << 20}, {"limit": "1MB"}),
    ({"limit": 1.0}, {"limit": 1.0}, {"limit": 1}),             # the whole device, and one byte
    ({"limit": 0.5}, {"limit": np.float64(0.5)}, {"limit": 0.25}),
    ({"pool_allocator": True, "maximum_pool_size": "1MiB"}, {"pool_allocator": True, "maximum_pool_size": 1 << 20},
     {"pool_allocator": True, "maximum_pool_size": "1MB"}),
    ({"pool_allocator": True, "maximum_pool_size": "1MiB"}, {"pool_allocator": True},
     {"pool_allocator": True, "initial_pool_size": "1KiB"}),
    ({"log": "log.csv"}, {"log": Path("log.csv")}, {"log": "other.csv"})])
def test_what_is_written_in_another_way_is_the_same(first, same, another, fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    xlogmem.rmm.enable(0, **first)
    mine = current()
    xlogmem.rmm.enable(0, **same)
    assert current() is mine
    with pytest.raises(RuntimeError, match="cannot get another"):
        xlogmem.rmm.enable(0, **another)


def test_a_resource_that_the_program_put_there_has_what_it_has(fresh):
    xlogmem.rmm.enable(0)
    xlogmem.rmm._wrapped.clear()
    xlogmem.rmm.enable(0)
    with pytest.raises(RuntimeError, match="cannot get another guard"):
        xlogmem.rmm.enable(0, guard=True)


def test_a_limit_of_zero_bytes_is_a_limit(fresh):
    xlogmem.rmm.enable(0, limit=0)
    assert xlogmem.get_runtime().resource.limit == 0
