"""In place of UCXX where it is not installed: what `examples/cluster` uses of it, on memory of the simulated driver.

A message is copied when it was sent and is wanted, and one side progresses, as UCX does with all but small ones;
and on the host, after nothing that is queued on a stream.
"""
from __future__ import annotations

import asyncio
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

from xlogmem import sim


class Array:
    def __init__(self, memory: Any) -> None:
        self.view = sim.simulator().view(memory.__cuda_array_interface__["data"][0])[:memory.nbytes]


class Request:
    def __init__(self, array: Array) -> None:
        self.array, self.completed = array, False

    def check_error(self) -> None:
        pass


class Wire:
    """Sends and receives that are not complete; each tag is used once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sends: dict[int, Request] = {}
        self.receives: dict[int, Request] = {}

    def add(self, side: dict[int, Request], array: Array, tag: int) -> Request:
        with self.lock:
            side[tag] = request = Request(array)
        return request

    def progress(self) -> None:
        with self.lock:
            for tag in self.sends.keys() & self.receives.keys():
                send, receive = self.sends.pop(tag), self.receives.pop(tag)
                receive.array.view[:] = send.array.view
                send.completed = receive.completed = True


wire = Wire()


class Worker:
    address = "this process"

    def __init__(self, context: Any = None) -> None:
        self.progress = wire.progress

    def tag_recv(self, array: Array, tag: int) -> Request:
        return wire.add(wire.receives, array, tag)


class Endpoint:
    @classmethod
    def create_from_worker_address(cls, worker: Worker, address: str, endpoint_error_handling: bool) -> Endpoint:
        return cls()

    def tag_send(self, array: Array, tag: int) -> Request:
        return wire.add(wire.sends, array, tag)

    async def send(self, array: Array, tag: int, force_tag: bool) -> None:
        await completion(wire.add(wire.sends, array, tag))

    def abort(self) -> None:
        pass


async def completion(request: Request) -> None:
    while not request.completed:
        wire.progress()
        await asyncio.sleep(0)


async def receive(array: Array, tag: int) -> None:
    await completion(wire.add(wire.receives, array, tag))


async def endpoint_of(address: str) -> Endpoint:
    return Endpoint()


def install() -> None:
    for name, parts in (
            ("ucxx", {"init": lambda: None, "get_worker_address": lambda: Worker.address, "recv": receive,
                      "create_endpoint_from_worker_address": endpoint_of}),
            ("ucxx._lib", {}), ("ucxx._lib.arr", {"Array": Array}),
            ("ucxx._lib.libucxx", {"Feature": SimpleNamespace(TAG=1), "UCXContext": lambda feature_flags: None,
                                   "UCXWorker": Worker, "UCXEndpoint": Endpoint, "UCXXTag": int})):
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(parts)
