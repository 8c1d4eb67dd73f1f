"""Streams that are unregistered: a last fence answers for every position, and a successor frees the blocks."""
from __future__ import annotations

from ordering_model.rules import Operation, StreamMisuse
from ordering_model.streams import Stream, Streams


class Tombstones(Streams):
    def unregister(self, stream: Stream, successor: Stream) -> Operation[None]:
        """Advance the stream, record its last fence, and repeat the checks: the record call drops the lock.

        If the record fails, the stream stays registered.  Refused while a window or a call is open on the stream: the
        launch of an open window would be enqueued after the last fence.
        """
        self._refuse_use(stream)
        self._refuse_ended(stream, successor)
        if stream.handle.capturing:
            raise StreamMisuse("the stream is capturing")
        if self.rules.unregister_advances:
            self.advance(stream)                # stands for all unrecorded work until now
        fence = yield from self.fence_for(stream, stream.count)
        self._refuse_use(stream)
        if fence.position < stream.count and self.rules.unregister_refuses_use:
            raise StreamMisuse("the stream was used meanwhile")
        if self.rules.unregister_checks_again:
            self._refuse_ended(stream, successor)
        fence.pins += 1                         # the tombstone keeps its event until the host has seen it complete
        stream.last_fence, stream.successor = fence, successor
        ring, stream.ring = stream.ring, []
        self.spare_events += [other.event for other in ring if other is not fence
                              and not (other.pins and self.rules.fence_pinned)]

    def _refuse_use(self, stream: Stream) -> None:
        if stream.in_use and self.rules.unregister_refuses_use:
            raise StreamMisuse("the stream is in use")

    @staticmethod
    def _refuse_ended(stream: Stream, successor: Stream) -> None:
        if not stream.alive or stream is successor or not successor.alive:
            raise StreamMisuse("the stream or its successor is unregistered")

    def reap_tombstone(self, stream: Stream) -> Operation[None]:
        """Once the host has seen the last fence complete, no stream waits for it again, and its event is spare."""
        fence = stream.last_fence
        if fence is None or stream.complete:
            return
        yield from self.host_waits_for_fence(stream, fence)
        if not stream.complete:
            stream.complete = True
            self.unpin(fence, stream)
