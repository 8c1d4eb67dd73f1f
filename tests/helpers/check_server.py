"""`xlogmem check` for many tests: a process imports the command once, and a fork of it runs each check.

The checked program is a new process as ever; the import of the command, which takes longer than most programs of the
tests, is what is saved.  A test of the start itself, of signals or of another environment has a process of its own.
"""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

OTHERS = {"PYTEST_CURRENT_TEST", "XLOGMEM_AUDIT"}       # variables of the test, and of the checked program alone
MOST = 1 << 17                                          # bytes of a request: an environment, and a program of -c


def comparable(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in OTHERS}


class Server:
    """The process with the imported command, from the first check on."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = comparable(environment)
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], env=environment,
                                            pass_fds=[theirs.fileno()])

    def serves(self, environment: dict[str, str]) -> bool:
        """True if a check with this environment would begin as this process began."""
        return comparable(environment) == self.environment

    def close(self) -> None:
        self.connection.close()                         # its process ends there
        self.process.wait(60)

    def run(self, words: list[str], folder: Path, environment: dict[str, str], timeout: float
            ) -> subprocess.CompletedProcess[str]:
        pipes = [os.pipe(), os.pipe()]
        request = json.dumps({"words": words, "folder": str(folder), "environment": environment}).encode()
        assert len(request) < MOST
        socket.send_fds(self.connection, [request], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        check = int(self.connection.recv(100))          # the number of its process
        late = threading.Timer(timeout, os.kill, [check, signal.SIGKILL])
        late.start()
        texts = ["", ""]

        def read(number: int) -> None:
            with open(pipes[number][0], encoding="utf-8", newline=None) as file:
                texts[number] = file.read()

        readers = [threading.Thread(target=read, args=[number]) for number in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        status = int(self.connection.recv(100))
        late.cancel()
        late.join()
        return subprocess.CompletedProcess(["xlogmem", *words], status, *texts)


def serve(connection: socket.socket) -> list[str]:
    """Fork for each request; returns the words of the command in the fork, and none at the end."""
    while True:
        request, files, _, _ = socket.recv_fds(connection, MOST, 2)
        if not request:
            return []
        check = os.fork()
        if not check:
            connection.close()
            return begun(json.loads(request), files)
        for file in files:
            os.close(file)
        with suppress(BrokenPipeError):                 # the tests have ended
            connection.send(str(check).encode())
            connection.send(str(os.waitstatus_to_exitcode(os.waitpid(check, 0)[1])).encode())


def begun(request: dict, files: list[int]) -> list[str]:
    """Make this fork what `python -m xlogmem WORDS` would be after its imports."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    return request["words"]


if __name__ == "__main__":
    import gc

    from xlogmem.commands.cli import main

    gc.freeze()                                         # what is imported stays shared
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        words = serve(connection)
    if words:
        sys.argv[1:] = words
        main(words, prog_name="python -m xlogmem")
