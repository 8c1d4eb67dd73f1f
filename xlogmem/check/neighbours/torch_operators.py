"""PyTorch's operators: what each reads and writes, where nothing is known of the kernels that it has launched.

PyTorch's own kernels are compressed in its libraries.  Its dispatcher passes each call of an operator to a mode, with
the operator's schema: arguments that it reads, arguments that it writes, tensors that it returns.  Modes are a thread's
own; PyTorch takes them along into its threads for the backward pass, and `threading.Thread` does here.
"""
from __future__ import annotations

import atexit
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from threading import get_ident
from types import ModuleType
from typing import Any, NamedTuple

from xlogmem.check.neighbours import pieces, torch_pieces

__all__ = ["prepare"]

READ, WRITE = 1, 2
ALL, SOME, PERHAPS = 0, 1, 2                            # of a tensor's bytes; PERHAPS: some, or none
FACTORY = re.compile("(new_.*|.*_like)$")               # takes a tensor for its shape; PyTorch's own sanitizer has it
# Of some of these, not the same in each operator, the shape alone matters.
SHAPE = re.compile(".*_backward(_.*)?$|bernoulli$")
INDICES = {"index", "indices", "grid", "target"}        # these choose among the elements of the first tensor
# Their schemas do not say that they write these.
RUNNING = {"running_mean", "running_var"}
UPDATES = {"native_batch_norm", "cudnn_batch_norm", "batch_norm_update_stats", "batch_norm_gather_stats",
           "batch_norm_gather_stats_with_counts"}


class Part(NamedTuple):
    """An argument of an operator, and the operator's access to its tensors: to ALL, SOME or PERHAPS some bytes."""

    place: int
    name: str
    access: int
    somewhere: int


class Plan(NamedTuple):
    """What an operator reads and writes."""

    name: bytes
    parts: tuple[Part, ...]
    returned: bool                                      # it writes the tensors that it returns
    beta: int | None                                    # place of a factor of the first tensor, not read if that is 0
    training: int | None                                # place of a flag: no running statistics are written without

    @property
    def is_plain(self) -> bool:
        return self.beta is None and self.training is None


_plans: dict[int, Plan] = {}
_kept: list[object] = []
packed = struct.Struct("=QQQQii").pack                  # an xlogmem_check_extent


def prepare(torch: ModuleType) -> None:
    """Have the operators of all threads reported, and the pieces of PyTorch's own pool."""
    torch_pieces.prepare(torch)
    if getattr(torch._C, "_cuda_getAllocatorBackend", None) is None:
        return                                          # built without CUDA
    begin = mode_of(torch)
    mode = begin()
    mode.__enter__()
    atexit.register(mode.__exit__, None, None, None)
    in_threads(begin)
    with_its_line(torch, begin)


def mode_of(torch: ModuleType) -> Callable[[], Any]:
    """Return a function that gives the calling thread's mode."""
    from torch.utils._python_dispatch import TorchDispatchMode

    table = pieces.hooks()
    begins, launches, act_for = table.operator_begins, table.operator_launches, table.act_for
    tensor = torch.Tensor
    plain, modes_below = {tensor, torch.nn.Parameter}, torch._C._len_torch_dispatch_stack

    class Operators(TorchDispatchMode):                 # type: ignore[misc]
        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()
            self.thread = get_ident()
            self.backward = 0                           # the place where its newest backward pass was requested

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True                                 # else `torch.compile` would compile nothing

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False                                # see skip_in_dynamo

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Another type calls operators on the tensors that it wraps. Modes below, of fake tensors, come before it.
            if types and not plain.issuperset(types) and not modes_below():
                return NotImplemented
            # The backward pass of an operator, in a thread of PyTorch's: no line of the program calls it there.
            elsewhere = get_ident() != self.thread and sys._getframe().f_back is None
            if elsewhere:
                act_for(self.backward)
            begins()
            outputs = func(*args, **kwargs) if kwargs else func(*args)
            if launches():
                report(tensor, func, args, kwargs or {}, outputs)
            if elsewhere:
                act_for(0)
            return outputs

    skip_in_dynamo(torch, Operators.__torch_dispatch__)
    known = threading.local()

    def mode() -> Any:
        if not hasattr(known, "mode"):
            known.mode = Operators()
        return known.mode

    return mode


def skip_in_dynamo(torch: ModuleType, function: Any) -> None:
    """Exclude this function and its callees from `torch.compile`: PyTorch's own way imports all of Dynamo."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def in_threads(mode: Callable[[], Any]) -> None:
    """Have each thread of Python's that begins from here on use its mode."""
    run = threading.Thread._bootstrap_inner             # type: ignore[attr-defined]

    def _bootstrap_inner(self: threading.Thread) -> None:
        with mode():
            run(self)

    threading.Thread._bootstrap_inner = _bootstrap_inner  # type: ignore[attr-defined]


def with_its_line(torch: ModuleType, mode: Callable[[], Any]) -> None:
    """Keep the line that requests a backward pass, for the operators that PyTorch's own threads call."""
    run = torch.autograd.graph._engine_run_backward
    site_of_caller = pieces.hooks().site_of_caller

    @wraps(run)
    def _engine_run_backward(*arguments: Any, **keywords: Any) -> Any:
        mode().backward = site_of_caller()
        return run(*arguments, **keywords)

    for module in (torch.autograd, torch.autograd.graph):
        module._engine_run_backward = _engine_run_backward


def report(tensor_type: type, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
    """Report what an operator has done with memory; nothing, if that is not known of one of its tensors."""
    plan = _plans.get(id(func)) or plan_of(func)
    parts, count = plan.parts if plan.is_plain else parts_of(plan, args, kwargs), len(args)
    found: dict[tuple[int, int, int, int, int], int] = {}
    for place, name, access, somewhere in parts:
        value = args[place] if place < count else kwargs.get(name)
        if value is not None and not add(found, value, access, somewhere, tensor_type):
            return
    if plan.returned and not add(found, outputs, WRITE, ALL, tensor_type):
        return
    if found:
        extents = b"".join([packed(*extent[:4], access, extent[4]) for extent, access in found.items()])
        pieces.hooks().operator_ends(plan.name, extents, len(found))


def add(found: dict[tuple[int, int, int, int, int], int], value: Any, access: int, somewhere: int, tensor_type: type
        ) -> bool:
    """Add the memory of a tensor, or of several in a list; false if a tensor's memory is not known.  Several arguments
    may have the same memory."""
    if isinstance(value, tensor_type):
        if value.is_cuda and value.numel():             # type: ignore[attr-defined]
            if not (extent := extent_of(value, somewhere)):
                return False
            found[extent] = found.get(extent, 0) | access
    elif isinstance(value, list | tuple):
        return all(add(found, one, access, somewhere, tensor_type) for one in value)
    return True


def plan_of(func: Any) -> Plan:
    schema = func._schema
    name, arguments = schema.name.partition("::")[2], list(enumerate(schema.arguments))
    places = {argument.name: place for place, argument in arguments}
    tensors = [(place, argument) for place, argument in arguments if "Tensor" in str(argument.type)]
    chosen = any(argument.name in INDICES for _, argument in arguments)
    parts = []
    for place, argument in tensors:
        access = access_of(argument, bool(FACTORY.match(name)), name in UPDATES and argument.name in RUNNING)
        if access:
            is_first = place == tensors[0][0]
            perhaps = access == READ and SHAPE.match(name) and not (is_first and "backward" in name)
            used = PERHAPS if perhaps else SOME if chosen and is_first else ALL
            parts.append(Part(place, argument.name, access, used))
    made = Plan(f"{schema.name}.{schema.overload_name}".rstrip(".").encode(), tuple(parts),
                any(one.alias_info is None for one in schema.returns), places.get("beta"), places.get("training"))
    _plans[id(func)] = made
    _kept.append(func)                                  # or another one might have its id
    return made


def access_of(argument: Any, is_factory: bool, is_updated: bool) -> int:
    alias = argument.alias_info
    if alias is not None:                               # written, or of a view
        return WRITE if alias.is_write else 0
    return 0 if is_factory else WRITE if is_updated else READ


def parts_of(plan: Plan, args: Any, kwargs: dict[str, Any]) -> Iterator[Part]:
    """The parts of an operator that depend on its other arguments."""
    def is_off(place: int | None, name: str) -> bool:
        value = args[place] if place is not None and place < len(args) else kwargs.get(name, 1)
        return place is not None and value == 0

    no_first, no_updates = is_off(plan.beta, "beta"), is_off(plan.training, "training")
    for number, part in enumerate(plan.parts):
        if number == 0 and no_first:
            continue
        yield part._replace(access=READ) if no_updates and part.name in RUNNING else part


def extent_of(tensor: Any, somewhere: int) -> tuple[int, int, int, int, int] | None:
    """The memory of a tensor: its address; pitch, width and number of its rows; ALL, SOME or PERHAPS."""
    try:
        begin, size = tensor.data_ptr(), tensor.element_size()
        if tensor.is_contiguous():
            return begin, 0, tensor.numel() * size, 1, somewhere
        strides = tensor.stride()
    except RuntimeError:                                # sparse, or a library's own
        return None
    dimensions = sorted((stride * size, count) for count, stride in zip(tensor.shape, strides, strict=True)
                        if count > 1 and stride)
    if rows := rows_of(dimensions, size):
        return begin, *rows, somewhere
    return begin, 0, size + sum((count - 1) * stride for stride, count in dimensions), 1, somewhere or SOME


def rows_of(dimensions: list[tuple[int, int]], width: int) -> tuple[int, int, int] | None:
    """Pitch, width and number of rows of elements that are so wide; None if they are not in rows."""
    pitch, rows = 0, 1
    for stride, count in dimensions:
        if not pitch and stride == width:
            width *= count
        elif not pitch and stride > width:
            pitch, rows = stride, count
        elif pitch and stride == pitch * rows:
            rows *= count
        else:
            return None
    return pitch, width, rows
