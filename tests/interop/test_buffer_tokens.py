"""Tokens that name a buffer."""
from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import pytest
from stale import reason

from xlogmem import (
    BufferToken,
    DeviceRuntime,
    DeviceState,
    UnknownBufferError,
    UnknownDeviceError,
    UnknownNodeError,
)


@pytest.mark.promise(124)
def test_a_token_names_its_buffer_and_nothing_else(state):
    """Node, device, buffer, epoch: constant size, no address, the order of the fields."""
    buffer = state.full(4, 1, "int32")
    token = buffer.token
    assert token == buffer.token
    assert (token.device, token.buffer, token.epoch) == (0, buffer.number, 0)
    data = token.to_bytes()
    assert len(data) == 48
    assert buffer.access().ptr.to_bytes(8, "little") not in data
    assert buffer.access().ptr.to_bytes(8, "big") not in data
    assert BufferToken.from_bytes(data) == token == pickle.loads(pickle.dumps(token))
    assert token.resolve() is buffer
    part = buffer[1:]
    assert part.token != token
    assert part.token.resolve() is part
    tokens = [BufferToken(*fields) for fields in ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 4, 0), (1, 3, 1, 0), (2, 0, 1, 0))]
    assert sorted(tokens) == sorted(tokens, key=BufferToken.to_bytes) == tokens
    assert {len(token.to_bytes()) for token in tokens} == {48}


@pytest.mark.promise(124)
def test_every_wrong_token_has_its_own_error(state):
    buffer = state.full(4, 1, "int32")
    token = buffer.token
    with pytest.raises(UnknownNodeError):
        token._replace(node=token.node ^ 1).resolve()
    with pytest.raises(UnknownDeviceError):
        token._replace(device=7).resolve()
    with pytest.raises(UnknownBufferError):
        token._replace(buffer=1 << 40).resolve()
    assert reason(token._replace(epoch=1).resolve) == "context rebuilt"
    state.begin_shutdown()
    assert reason(token.resolve) == "device shutting down"
    del buffer
    gc.collect()
    with pytest.raises(UnknownBufferError):
        token.resolve()
    other = DeviceState(DeviceRuntime())
    again = other.empty(4, "int32")
    assert again.token.buffer > token.buffer            # numbers do not come back
    data = token.to_bytes()
    for garbage in (b"", data[:-1], data + b"\0", bytes(48), b"x" * 48, data[:4] + b"\0\0\0\2" + data[8:],
                    data[:28] + b"\1" + data[29:]):
        with pytest.raises(ValueError, match="token"):
            BufferToken.from_bytes(garbage)
    for wrong in (BufferToken(-1, 0, 1, 0), BufferToken(1 << 128, 0, 1, 0), BufferToken(0, 1 << 32, 1, 0),
                  BufferToken("x", 0, 1, 0), BufferToken(0, 0, 1, -1)):
        with pytest.raises(ValueError, match="is not a token"):
            wrong.to_bytes()


@pytest.mark.parametrize("field", BufferToken._fields)
@pytest.mark.parametrize("wrong", ["x", None, 1.5, [1]])
def test_what_is_not_a_number_is_named(state, field, wrong):
    token = state.empty(1).token._replace(**{field: wrong})
    with pytest.raises(TypeError, match=f"{field} of a BufferToken must be an int, not {type(wrong).__name__}"):
        token.resolve()


def test_a_token_of_another_process_is_not_resolved(state, _context):
    token = state.empty(1).token
    program = ("import sys, pickle; from xlogmem import BufferToken, UnknownNodeError\n"
               "try: BufferToken.from_bytes(bytes.fromhex(sys.argv[1])).resolve()\n"
               "except UnknownNodeError: print('another node')")
    run = subprocess.run([sys.executable, "-c", program, token.to_bytes().hex()], capture_output=True, text=True,
                         timeout=100)
    assert run.stdout == "another node\n", run.stderr
