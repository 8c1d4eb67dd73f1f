"""A history of a million events, made of a short one that is repeated."""
from __future__ import annotations

import numpy as np

from xlogmem.observe.history.files import EVENT, History

FIELDS = np.dtype([("number", "<u4"), ("thread", "<u4"), ("ticks", "<u8"), ("kind", "u1"), ("access", "u1"),
                   ("runtime", "<u2"), ("tag", "<u4"), ("stream", "<u4"), ("other", "<u4"), ("generation", "<u8"),
                   ("address", "<u8"), ("bytes", "<u8"), ("position", "<u4"), ("stack", "<u4")])
assert FIELDS.itemsize == EVENT.size


def repeated(history: History, count: int) -> History:
    """`count` events: the same ones again and again, later, with blocks and positions of their own."""
    short = np.frombuffer(history.packed, FIELDS)
    turns = -(-count // len(short))
    turn = np.repeat(np.arange(turns, dtype=np.uint64), len(short))[:count]
    events = np.tile(short, turns)[:count]
    span = int(short["ticks"].max() - short["ticks"].min()) + 1000
    events["number"] = np.arange(1, count + 1)
    events["ticks"] += turn * span
    events["position"] += (turn * int(short["position"].max())).astype(np.uint32)
    blocks = events["generation"] > 0
    events["generation"][blocks] += (turn * int(short["generation"].max()))[blocks]
    (first, began, epoch), (last, ended, _) = history.facts["clock"]
    end = first + span * turns
    clock = [[first, began, epoch], [end, began + round((end - first) * (ended - began) / (last - first)), epoch]]
    return History(history.facts | {"count": count, "kept": events.nbytes, "clock": clock}, events.tobytes())
