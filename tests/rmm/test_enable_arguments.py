"""`xlogmem.rmm.enable`: what is wrong is refused before anything is changed, and what would not be heard too."""
from __future__ import annotations

import pytest
from rmm_if_installed import current, needs_rmm

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


def test_a_resource_that_the_program_put_there_has_what_it_has(fresh):
    xlogmem.rmm.enable(0)
    xlogmem.rmm._wrapped.clear()
    xlogmem.rmm.enable(0)
    with pytest.raises(RuntimeError, match="cannot get another guard"):
        xlogmem.rmm.enable(0, guard=True)
