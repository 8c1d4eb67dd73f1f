from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Never, Self, TypeAlias, final

from typing_extensions import disjoint_base

from xlogmem.blocks import Core
from xlogmem.streams import Stream, _StreamLike

__all__ = ["Host", "LaunchRecorder", "host", "use"]

explanations: list[Callable[[Core], str | None]]

# Anything that names memory: see `use`.  The call refuses other objects.
_Trackable: TypeAlias = object
_What: TypeAlias = object

@disjoint_base
class Together: ...

@final
class Host:
    def __init__(self, _: Never, /) -> None: ...  # cannot be called

host: Host

@final
class LaunchRecorder:
    def __init__(
        self,
        stream: _StreamLike | Host,
        *,
        runtime: Core | None = None,
        untracked: str = "raise",
        handback: str = "all",
        on_conflict: str = "wait",
    ) -> None: ...
    @property
    def runtime(self) -> Core: ...
    @property
    def stream(self) -> Stream | None: ...  # None: the host
    @property
    def untracked(self) -> str: ...
    @property
    def preflighted(self) -> bool: ...
    @property
    def recorded_count(self) -> int: ...
    def read(self, what: _What) -> Self: ...
    def write(self, what: _What) -> Self: ...
    def read_write(self, what: _What) -> Self: ...
    def preflight(self) -> None: ...
    def commit(self) -> None: ...
    def cancel(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def _keep_by_runtime(self) -> None: ...
    def _take_from(self, runtime: Core) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

def awaiter_of(what: object) -> Generator[Any]: ...
def forget_peers(device_id: int) -> None: ...
def place_in_order(recorder: LaunchRecorder) -> tuple[int, int]: ...
def provide_runtimes(
    get_runtime: Callable[[int], Core], existing_runtimes: Callable[[], Sequence[Core]] | None = None
) -> None: ...
def use(
    stream: _StreamLike | Host | None,
    read: _What = (),
    write: _What = (),
    read_write: _What = (),
    *,
    runtime: Core | None = None,
    untracked: str = "raise",
    handback: str = "all",
    on_conflict: str = "wait",
) -> LaunchRecorder: ...
