"""What a function does with the runtime's lock stands in its name, and its body agrees.

`_locked` needs the lock, `_unlocks` needs it and drops it meanwhile, `_locks` returns with it held.  Builds with checks
look at run time (`lock.held()`); here the text is read, in every build.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "xlogmem"
HEAD = re.compile(r"^( *)(?:cdef|cpdef|def) (?:inline )?[^\n=]*?\b(\w+)\(((?:[^()]|\n)*)\)[^\n]*:\n", re.MULTILINE)
DOCSTRING = re.compile(r'\s*""".*?"""\n', re.DOTALL)
STATES = ("OrderState*", "CoreState*", "PoolState*", "RuntimeHold*")
NEEDS = re.compile(r"\b(?<!\.)(\w+_(?:locked|unlocks))\(")


@dataclass(frozen=True)
class Function:
    where: str
    name: str
    parameters: str
    body: str
    head: str

    @property
    def has_state(self) -> bool:
        return any(state in self.parameters for state in STATES)

    @property
    def code(self) -> str:
        """Without text, and without what locks of their own guard, under which no other lock is taken."""
        body = DOCSTRING.sub("", self.body, count=1)
        return re.sub(r"#.*|\b(?:windows_lock|cache_lock|waits\.table_lock)\.", "", body)


def functions(text: str, where: str) -> Iterator[Function]:
    for head in HEAD.finditer(text):
        indent = head[1]
        end = re.compile(rf"^(?!{indent} |\s*$)", re.MULTILINE).search(text, head.end())
        yield Function(where, head[2], head[3], text[head.end():end.start() if end else len(text)], head[0])


def problems(function: Function) -> Iterator[str]:
    suffix = function.name.rpartition("_")[2]
    code = function.code
    first_lock = code.find("lock.lock()")
    first_unlock = code.find("lock.unlock()")
    needs = NEEDS.search(code)
    if suffix in ("locked", "unlocks") and function.has_state and not re.match(r"\s*check\([\w.]*lock\.held\(\)", code):
        yield "does not check the lock"
    if suffix in ("locked", "unlocks", "locks") and "except?" in function.head:
        yield "acquires the GIL under the lock, to look for an exception"
    if suffix == "locked" and (first_unlock >= 0 or re.search(r"\w_(?:unlocks|locks)\(", code)):
        yield "is called _locked and drops the lock"
    if suffix == "unlocks" and first_lock >= 0 and not 0 <= first_unlock < first_lock:
        yield "is called _unlocks and takes the lock first"
    if suffix not in ("locked", "unlocks"):
        taken = min((place for place in (first_lock, code.find("_locks("), code.find("try_lock()")) if place >= 0),
                    default=len(code))
        if needs and needs.start() < taken:
            yield f"calls {needs[1]} without the lock, or needs a suffix"
        if 0 <= first_unlock < taken:
            yield "drops a lock that it did not take"


def all_functions() -> list[Function]:
    return [function for path in sorted(SOURCE.glob("**/*.p[yx][xi]"))
            for function in functions(path.read_text(), str(path.relative_to(SOURCE)))]


def test_names_say_what_functions_do_with_the_lock():
    found = all_functions()
    assert sum(function.name.endswith("_locked") for function in found) > 50
    assert sum(function.name.endswith("_unlocks") for function in found) > 25
    wrong = [f"{function.where}: {function.name} {problem}" for function in found for problem in problems(function)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("text", "problem"), [
    ("cdef void a_locked(OrderState* order) noexcept nogil:\n    order.count += 1\n", "does not check"),
    ('cdef int a_locked(OrderState* order) except -1 nogil:\n    check(order.lock.held(), "")\n    b_unlocks(order)\n',
     "drops the lock"),
    ("cdef int a(CoreState* core) except -1 nogil:\n    free_now_unlocks(core)\n", "needs a suffix"),
    ("cdef Stream a(self):\n    b_locked(&self.ordering.state)\n", "needs a suffix"),
    ("cdef int a(CoreState* core) except -1 nogil:\n    core.order.lock.unlock()\n", "did not take"),
    ('cdef int a_unlocks(OrderState* order) except -1 nogil:\n    check(order.lock.held(), "")\n'
     "    order.lock.lock()\n", "takes the lock first"),
    ('cdef Stream* a_unlocks(OrderState* order) except? NULL nogil:\n    check(order.lock.held(), "")\n',
     "acquires the GIL"),
])
def test_what_is_wrong_is_found(text, problem):
    (function,) = functions(text, "here")
    assert [problem in found for found in problems(function)] == [True]


# ---------------------------------------------------------------------------------------- forks
MUTEX = re.compile(r"^ +(?:counted_)?mutex (?!\()\w+|\bxlogmem_mutex lock;", re.MULTILINE)
OTHER_LOCK = re.compile(r"\bthreading\.R?Lock\(|\bstd::(?:recursive_|shared_)?mutex\b|\bpthread_mutex_t\b")
APART = {"sim"}                                         # the driver has its own locks


def product_texts() -> dict[str, str]:
    front_end = (SOURCE.parent / "cpp/cupti").glob("*")
    return {str(path.relative_to(SOURCE.parent)): re.sub(r"(?m)#.*", "", path.read_text())
            for path in sorted([*SOURCE.glob("**/*"), *front_end])
            if path.suffix in (".py", ".pyx", ".pxi", ".pxd", ".hpp")
            and not APART & set(path.relative_to(SOURCE.parent).parts)}


def test_every_lock_is_taken_at_forks_or_refuses_a_child():
    """docs/ordering.md, fork: a lock that is not known to forks may be held for ever in a child."""
    texts = {name: text for name, text in product_texts().items() if name != "xlogmem/_base/cpp.pxd"}
    declared = sum(len(MUTEX.findall(text)) for text in texts.values())
    taken = sum(text.count("\ntake_at_forks(") + text.count(" take_at_forks(&") for text in texts.values())
    # `changes` of forks.pxi, C++ locks that Cython names too, and the check's on a GPU, which a child does not take
    own = 5
    assert declared == taken + own > 5
    others = [name for name, text in texts.items() if OTHER_LOCK.search(text)]
    assert others == ["xlogmem/driver/forks.pxi"]
