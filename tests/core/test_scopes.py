"""`xlogmem.scope`: tags for the allocations of a part of a program."""
from __future__ import annotations

import asyncio
import contextvars
import sysconfig
import threading

import pytest
from other_threads import Beside

import xlogmem
from xlogmem import AsyncMemoryResource, PoolMemoryResource


@pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
def test_allocations_without_a_tag_have_that_of_the_innermost_scope(four, resource):
    x = four(resource=resource())
    for _ in range(5):
        x.alloc(x.S).free()                             # what comes from a cache has it, too
    with xlogmem.scope("outer", runtime=x.runtime) as outer:
        first = x.alloc(x.S)
        with xlogmem.scope("inner"):
            second = x.alloc(x.S)
            named = x.runtime.allocate(64, x.S, tag="named")
            empty = x.runtime.allocate(0, x.S)
        third = x.alloc(x.S)
    after = x.alloc(x.S)
    assert [block.tag for block in (first, second, named, empty, third, after)] == [
        "outer", "inner", "named", "inner", "outer", None]
    assert x.runtime.snapshot().by_tag() == {"outer": (1024, 2), "inner": (512, 1), None: (512, 1), "named": (64, 1)}
    assert outer.bytes_by_tag == {"outer": 1024, "inner": 512, "named": 64}
    assert list(outer.bytes_by_tag) == ["outer", "inner", "named"]
    assert 3 * 512 + 64 <= outer.peak_bytes <= 4 * 512 + 64     # with what a cache keeps


def test_a_scope_has_the_peak_inside_of_it(four):
    x = four()
    most = [x.alloc(x.S) for _ in range(9)]
    most.clear()
    before = x.alloc(x.S)
    with xlogmem.scope("join", runtime=x.runtime) as scope:
        kept = [x.alloc(x.S) for _ in range(3)]
        kept.clear()
        x.runtime.reap_pending()
        kept.append(x.alloc(x.S))
    assert scope.peak_bytes == 4 * 512
    assert x.runtime.peak_bytes == 9 * 512
    assert scope.bytes_by_tag == {None: 512, "join": 512}
    before.free()


def test_other_threads_have_no_scope(four):
    x = four()
    found: list[str | None] = []
    with xlogmem.scope("mine"):
        thread = threading.Thread(target=lambda: found.append(x.alloc(x.S).tag))
        thread.start()
        thread.join()
    # A thread of a free-threaded Python begins with the context of the one that starts it.
    assert found == ["mine" if sysconfig.get_config_var("Py_GIL_DISABLED") else None]


def test_tasks_have_scopes_of_their_own(four):
    x = four()

    async def part(name: str) -> list[str | None]:
        tags = []
        with xlogmem.scope(name):
            for _ in range(3):
                tags.append(x.alloc(x.S).tag)
                await asyncio.sleep(0)
        return [*tags, x.alloc(x.S).tag]

    async def both() -> list[list[str | None]]:
        return await asyncio.gather(part("a"), part("b"))

    assert asyncio.run(both()) == [["a"] * 3 + [None], ["b"] * 3 + [None]]


def part_of(x, name: str):
    """A generator with a scope of its own."""
    with xlogmem.scope(name):
        yield x.alloc(x.S).tag


def test_scopes_may_end_in_any_order(four):
    """As those of generators do.  What has ended counts nowhere, also while a scope is open elsewhere."""
    x = four()
    first, second = part_of(x, "first"), part_of(x, "second")
    assert [next(first), next(second)] == ["first", "second"]
    assert list(first) == []
    assert x.alloc(x.S).tag == "second"
    assert list(second) == []
    elsewhere = part_of(x, "elsewhere")
    assert contextvars.Context().run(next, elsewhere) == "elsewhere"
    assert x.alloc(x.S).tag is None


def test_a_scope_may_end_in_another_thread(four):
    x = four()
    with xlogmem.scope("outer"):
        given = part_of(x, "given")
        next(given)
        thread = Beside(lambda: list(given))
        assert thread.result() == []
        assert x.alloc(x.S).tag == "outer"
    assert x.alloc(x.S).tag is None


def test_a_task_has_a_tag_until_the_scope_ends(four):
    x = four()

    async def tags(ended: asyncio.Event) -> list[str | None]:
        before = x.alloc(x.S).tag
        await ended.wait()
        return [before, x.alloc(x.S).tag]

    async def program() -> list[str | None]:
        ended = asyncio.Event()
        with xlogmem.scope("outer"):
            with xlogmem.scope("inner"):
                task = asyncio.create_task(tags(ended))
                await asyncio.sleep(0)
            ended.set()
            return await task

    assert asyncio.run(program()) == ["inner", "outer"]


def test_it_ends_with_an_exception(four):
    x = four()
    with pytest.raises(ZeroDivisionError), xlogmem.scope("a"):
        raise ZeroDivisionError
    assert x.alloc(x.S).tag is None


def test_what_is_refused():
    with pytest.raises(TypeError, match="the tag of a scope must be a str, not int"):
        xlogmem.scope(3)
    scope = xlogmem.scope("a")
    with scope:
        assert repr(scope) == "<scope 'a' open>"
        with pytest.raises(RuntimeError, match="the scope 'a' is open already"):
            scope.__enter__()
    with pytest.raises(RuntimeError, match="the scope 'a' is not open"):
        scope.__exit__(None, None, None)
    with scope:                                         # one after the other
        pass
