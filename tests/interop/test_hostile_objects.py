"""Objects that keep to no protocol are refused by an error that names the field, before any driver call.

Each protocol has a table of answers.  What is wrong with most of them is that a sequence is shorter than it should be:
compiled code that does not look at lengths reads past its end.
"""
from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
from capsules import Producer

from xlogmem import DeviceMemoryResource, DeviceRuntime, from_arrow, from_cuda_array, from_dlpack, sim, use

pytestmark = pytest.mark.simulator


class Pretender(tuple):
    """Says that it has two items, and has none."""

    def __len__(self) -> int:
        return 2


class Unequal(list):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None


NO_PAIR = ((), [], (1,), [1], (1, 2, 3), None, 5, 1.5, "", "ab", b"a", {}, {1: 2}, set(), object(), int, Pretender(),
           iter(()), (x for x in ()), range(0), range(3))
NO_INTEGER = (None, 1.5, "1", b"1", (), [1], {}, object(), int)
NO_INTEGERS = (None, 5, 1.5, "ab", b"ab", {}, object(), (1.5,), ("x",), (None, 1), [[]], ((),))


class Given:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def interface(**fields: Any) -> dict[str, Any]:
    return {"version": 3, "shape": (4,), "typestr": "<f4", "data": (4096, False)} | fields


def gives(answer: object) -> Callable[[], object]:
    return lambda: answer


def refused(says: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """The call is refused by an error that says so, and the driver was not called."""
    before = sim.simulator().all_calls()
    with pytest.raises((TypeError, ValueError, BufferError), match=says) as raised:
        call(*arguments, **options)
    assert type(raised.value) in (TypeError, ValueError, BufferError)
    assert sim.simulator().all_calls() == before


def dlpack(answer: object) -> Any:
    """A type of its own: `from_dlpack` looks for the method in the type."""
    return type("Array", (), {"__dlpack_device__": lambda self: answer,
                              "__dlpack__": lambda self, **_: pytest.fail("the array was exported")})()


def test_the_device_of_a_dlpack_array(state):
    for answer in (*NO_PAIR, *((2, wrong) for wrong in NO_INTEGER), *((wrong, 0) for wrong in NO_INTEGER)):
        refused(r"__dlpack_device__ of \S*Array .*pair of integers", from_dlpack, dlpack(answer), state=state)
    for answer in ((2, -1), (2, 1 << 31), (2, 1 << 64), (1, 0), (-2, 0), (1 << 40, 0), (2, 1), (0, 0), (13, 1)):
        refused("on (DLPack )?device", from_dlpack, dlpack(answer), state=state)
    without = type("Array", (), {"__dlpack__": lambda self, **_: None})()
    refused("no method __dlpack_device__", from_dlpack, without, state=state)
    without.__dlpack_device__ = 5
    refused("no method __dlpack_device__", from_dlpack, without, state=state)
    refused("no method __dlpack_device__", from_dlpack, without, state=5)
    refused("state is a DeviceState", from_dlpack, Producer(0), state=5)


def test_the_capsule_of_a_dlpack_array(state):
    stream = state.runtime.default_stream
    for answer in NO_PAIR:
        export = lambda self, *, stream, max_version, answer=answer: answer     # noqa: E731
        array = type("Array", (Producer,), {"__dlpack__": export})(0)
        refused("is not a DLPack capsule", from_dlpack, array, stream=stream, state=state)
        refused("is not a DLPack capsule", from_dlpack, answer, stream=stream, state=state)


def test_what_a_dlpack_consumer_requests(state):
    buffer = state.empty(4, "uint8")
    for wrong in NO_PAIR:
        for name in ("max_version", "dl_device"):
            if wrong is not None:
                refused(f"{name} is a pair of integers", buffer.__dlpack__, **{name: wrong})
    for wrong in NO_INTEGER[1:]:
        refused("stream is an integer", buffer.__dlpack__, stream=wrong)
        refused("dl_device is a pair of integers", buffer.__dlpack__, dl_device=(2, wrong))
    for wrong in (-2, 1 << 64, 0):
        refused("stream", buffer.__dlpack__, stream=wrong)


FIELDS = {                                  # field: wrong values, and what the error says
    "version": ((*NO_INTEGER, -1, True), "version"),
    "shape": ((*NO_INTEGERS, (-1,), (1,) * 65), "shape|is an integer"),
    "typestr": ((None, 5, (), "", "x", "<", ">f4", b"<f4", "<f4 ", object()), "typestr|dtype"),
    "data": ((*NO_PAIR, *((wrong, False) for wrong in NO_INTEGER[1:]), (-1, False), (1 << 64, False), (0, False),
              (None, False), [4096, False]), "data|address"),
    "strides": ((*NO_INTEGERS[1:], (), (4, 4), (1 << 70,)), "strides|address space"),
    "mask": (((), 5, object(), {}), "masked"),
    "stream": ((*NO_INTEGER[1:], 0, -1, 1 << 64, True), "stream"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_cuda_array_interface(field, state):
    values, says = FIELDS[field]
    for value in values:
        array = Given(__cuda_array_interface__=interface(**{field: value}))
        refused(says, from_cuda_array, array, state=state)
    if field in ("version", "shape", "typestr", "data"):
        said = interface()
        del said[field]
        refused(f"lacks {field}", from_cuda_array, Given(__cuda_array_interface__=said), state=state)


def test_what_is_no_cuda_array_interface(state):
    for wrong in (*NO_PAIR, property()):
        array = Given(__cuda_array_interface__=wrong)
        says = "has no __cuda" if wrong is None else "lacks" if wrong in ({}, {1: 2}) else "is a dictionary"
        refused(says, from_cuda_array, array, state=state)
        if wrong is not None and not isinstance(wrong, dict):
            refused("is a dictionary", use, state.runtime.default_stream, read=array)


def test_what_use_reads_of_the_cuda_array_interface(state):
    stream = state.runtime.default_stream
    no_pair = [value for value in NO_PAIR if value is not int]
    for field, values in (("data", (*no_pair, *((wrong, False) for wrong in NO_INTEGER), (True, False))),
                          ("shape", (None, 5, 1.5, "ab", b"ab", {}, object(), int))):
        for value in values:
            array = Given(__cuda_array_interface__=interface(**{field: value}))
            for option in ("read", "write", "read_write"):
                refused(rf"{option}.* of \S*Given", use, stream, **{option: [array]})
    for said in ({}, {"data": (1, 0)}, {"shape": (1,)}, UserDict({"data": ()})):
        refused(r"of \S*Given", use, stream, read=Given(__cuda_array_interface__=said))
    block = state.runtime.allocate(64, stream)
    for data in ((block.ptr, False), [block.ptr, False]):
        for kind in (dict, UserDict):
            said = kind(shape=(4,), data=data, typestr="<f4")
            with use(stream, read=Given(__cuda_array_interface__=said)) as recorder:
                assert recorder.recorded_count == 1
    for address in (None, 0, -1, 1 << 80, "no"):        # no elements: the address says nothing
        with use(stream, read=Given(__cuda_array_interface__={"shape": (2, 0), "data": (address, False)})) as recorder:
            assert recorder.recorded_count == 0


def test_what_an_arrow_array_gives(state):
    for pair in NO_PAIR:
        for array in (Given(__arrow_c_device_array__=gives(pair)), *([pair] if pair is not int else [])):
            refused("__arrow_c_device_array__|not a capsule of an Arrow", from_arrow, array, state=state)
    for pair in (("a", "b"), (None, None), (0, 0)):
        refused("not a capsule of an Arrow schema", from_arrow, pair, state=state)


def test_what_a_stream_object_gives(state):
    runtime = state.runtime
    wrong = [answer for answer in NO_PAIR if not isinstance(answer, (range, dict)) and answer not in ((1, 2, 3),)]
    for answer in (*wrong, *((0, handle) for handle in NO_INTEGER), *((version, 1) for version in NO_INTEGER)):
        if answer is not None:                          # then there is no such attribute
            refused("__cuda_stream__", runtime.register_stream, Given(__cuda_stream__=gives(answer)))
    for answer in ((1, 1), (-1, 1), (0, -1), (0, 1 << 64)):
        refused("stream", runtime.register_stream, Given(__cuda_stream__=gives(answer)))
    for name in ("cuda_stream", "ptr", "handle"):
        for value in NO_INTEGER[1:]:
            given = Given(**{name: value, "synchronize": print})
            refused(rf"{name} of \S*Given|value of", runtime.register_stream, given)
    for value in NO_INTEGER:
        given = Given(value=gives(value), synchronize=print)
        refused(r"value\(\) of \S*Given", runtime.register_stream, given)
    nameless = type("Nameless", (), {"__module__": 5})()
    refused("Nameless is not a CUDA stream", runtime.register_stream, nameless)


def test_what_a_python_resource_gives():
    class Mine(DeviceMemoryResource):
        order = "host"
        answer: object = None

        def allocate(self, nbytes, stream):
            return self.answer

        def deallocate(self, ptr, nbytes, stream):
            pytest.fail("nothing was allocated")

    runtime = DeviceRuntime(resource=Mine())
    for Mine.answer in (*NO_INTEGER, 0, -1, 1 << 64):
        with pytest.raises((TypeError, ValueError), match=r"Mine\.allocate returned"):
            runtime.allocate(64)
    assert runtime.bytes_outstanding == 0
    for order in ((), [], {}, 5, "", "Stream"):
        Mine.order = order
        with pytest.raises(ValueError, match=r"Mine\.order is"):
            Mine()


def test_what_host_memory_says_of_itself(state):
    buffer = state.full(4, 1, "uint8")

    class Host(bytearray):
        dtype: Any = "uint8"
        shape: Any = (4,)

    for field, values in (("dtype", (5, (), "x", object())),
                          ("shape", (5, "ab", (), (1,), [4, 1], object(), Pretender()))):
        for value in values:
            host = Host(4)
            setattr(host, field, value)
            refused(f"{field}|Host", buffer.copy_from, host)
            refused(f"{field}|Host", buffer.copy_to, host)
