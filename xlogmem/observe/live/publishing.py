"""`publish`: a thread that answers each connection to the process's socket with the figures of its runtimes."""
from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from xlogmem._base.log import logger
from xlogmem._base.texts import printable
from xlogmem._driver import ProcessLock
from xlogmem.observe.live.figures import figures_of_process
from xlogmem.observe.live.sockets import folders, own_folder, peer_of, socket_of
from xlogmem.resources.endings import at_end

__all__ = ["publish", "publish_or_warn"]

PATIENCE = 5.0                              # seconds for a reader that does not read
MOST = 64                                   # readers that are kept waiting; connections that get the same figures
PAUSE = 1.0                                 # seconds, where a connection cannot be accepted: no file descriptor is left

_lock = ProcessLock()
_publisher: Publisher | None = None


class Publisher:
    """The socket of this process, and its thread.

    The thread ends with the process: it is a daemon, and `close` comes before the interpreter ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closing = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)                # of a process that had this number before
            self._listener.bind(str(path))
            self._listener.listen()
            self._listener.setblocking(False)
            self._thread = threading.Thread(target=self._serve, name="xlogmem-publish", daemon=True)
            self._thread.start()
        except BaseException:
            self._listener.close()
            raise

    def _serve(self) -> None:
        readers = Readers()
        with closing(readers):
            while not self._closing.is_set():
                if readers.wait(self._listener):
                    self._answer(readers)

    def _answer(self, readers: Readers) -> None:
        """Give all that have connected by now the same figures."""
        answer = b""
        for connection in self._accepted():
            try:
                if is_same_user(connection):
                    answer = answer or figures_of_process().to_json().encode() + b"\n"
                    readers.add(connection, answer)
                    continue
            except OSError as error:                    # the reader has left
                logger().debug("xlogmem top was not answered: %s", printable(str(error)))
            except Exception:                           # the program goes on, and so does this
                logger().warning("xlogmem top was not answered", exc_info=True)
            connection.close()

    def _accepted(self) -> Iterator[socket.socket]:
        try:
            for _ in range(MOST):
                yield self._listener.accept()[0]
        except BlockingIOError:
            return
        except OSError as error:
            if not self._closing.is_set():
                logger().warning("xlogmem top cannot connect to this process: %s", printable(str(error)))
                self._closing.wait(PAUSE)

    def close(self) -> None:
        """Remove the socket and end the thread; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.path.unlink(missing_ok=True)
        self._listener.shutdown(socket.SHUT_RDWR)       # wakes the thread
        self._thread.join(PATIENCE)
        self._listener.close()

    def forget(self) -> None:
        """In a forked child: a listener that stays open there would keep connections waiting when the parent is
        gone."""
        self._listener.close()


class Readers:
    """Connections that have not read all of their answer yet.  None of them keeps the others waiting."""

    def __init__(self) -> None:
        self._left: dict[socket.socket, tuple[memoryview, float]] = {}      # unread bytes, and their deadline

    def wait(self, listener: socket.socket) -> bool:
        """Wait for a connection, and return True, or until a reader has read or was too slow."""
        until = min((end for _, end in self._left.values()), default=None)
        timeout = None if until is None else max(until - time.monotonic(), 0)
        with selectors.PollSelector() as selector:      # no descriptor, of which a forked child has a copy
            selector.register(listener, selectors.EVENT_READ)
            for connection in self._left:
                selector.register(connection, selectors.EVENT_WRITE)
            ready = [key.fileobj for key, _ in selector.select(timeout)]
        for connection in list(self._left):
            if connection in ready:
                self._write(connection)
            elif self._left[connection][1] <= time.monotonic():
                self._drop(connection)
        return listener in ready

    def add(self, connection: socket.socket, answer: bytes) -> None:
        """Write this to a connection, which is closed at the end."""
        if len(self._left) >= MOST:
            self._drop(next(iter(self._left)))          # the oldest
        connection.setblocking(False)
        self._left[connection] = memoryview(answer), time.monotonic() + PATIENCE
        self._write(connection)

    def close(self) -> None:
        """Drop all of them."""
        for connection in list(self._left):
            self._drop(connection)

    def _write(self, connection: socket.socket) -> None:
        unread, until = self._left[connection]
        try:
            unread = unread[connection.send(unread):]
        except BlockingIOError:
            pass
        except OSError:                                 # the reader has left
            unread = unread[:0]
        self._left[connection] = unread, until
        if not unread:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        del self._left[connection]
        connection.close()


def is_same_user(connection: socket.socket) -> bool:
    """True if a process of this user has connected; the log has those of others."""
    peer = peer_of(connection)
    if peer.uid != os.geteuid():
        logger().warning("process %d of user %d wanted the figures of this process, and did not get them", peer.pid,
                         peer.uid)
    return peer.uid == os.geteuid()


def publish() -> str:
    """Let `xlogmem top --pid` watch the runtimes of this process.

    A daemon thread answers on a Unix socket that only this user can reach, in ``$XDG_RUNTIME_DIR/xlogmem`` or, where
    that is not set, ``/tmp/xlogmem-UID``.  The socket is removed at the exit.  With ``XLOGMEM_PUBLISH=1`` in the
    environment, importing xlogmem does this.

    Returns
    -------
    str
        The path of the socket.

    Raises
    ------
    OSError
        The socket cannot be made: the folder is another user's, others may enter it, or its path is too long.
    RuntimeError
        There is no room for another thread.
    DriverError
        The process was forked from one that had started the driver.

    Notes
    -----
    Thread-safe; a second call does nothing.  A forked child publishes if it calls this itself.  Costs nothing while
    nothing connects; an answer costs a snapshot of each runtime (`DeviceRuntime.snapshot`), and makes no driver call.

    Examples
    --------
    >>> xlogmem.publish()                                                   # doctest: +SKIP
    '/run/user/1000/xlogmem/4711'
    """
    global _publisher
    with _lock:
        if _publisher is None:
            path = socket_of(own_folder(folders()[0], make=True), os.getpid())
            _publisher = Publisher(path)
            at_end(_close)
        return str(_publisher.path)


def publish_or_warn() -> None:
    """`publish`, for XLOGMEM_PUBLISH.  What does not work is a warning in the log, because a program should not fail
    for being looked at."""
    try:
        publish()
    except Exception as error:
        logger().warning("XLOGMEM_PUBLISH: xlogmem top cannot see this process: %s", printable(str(error)))


def _close() -> None:
    if _publisher is not None:
        _publisher.close()


def _forget() -> None:
    global _publisher
    if _publisher is not None:
        _publisher.forget()
        _publisher = None


os.register_at_fork(after_in_child=_forget)
