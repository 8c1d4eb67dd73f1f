from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, TypeAlias, final, type_check_only

from xlogmem.blocks import BlockId, BlockView, Core, DeviceBlock
from xlogmem.streams import Stream, _StreamLike

__all__ = ["LaunchRecorder", "use"]

ADVICE: str
explanations: list[Callable[[Core], str | None]]

@type_check_only
class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...

_Trackable: TypeAlias = DeviceBlock | BlockId | BlockView | SupportsIndex | _CudaArray
_What: TypeAlias = _Trackable | list[Any] | tuple[_Trackable, ...]

@final
class LaunchRecorder:
    def __init__(
        self,
        stream: _StreamLike,
        *,
        runtime: Core | None = None,
        mode: str = "strict",
        handback: str = "all",
        on_conflict: str = "wait",
    ) -> None: ...
    @property
    def runtime(self) -> Core: ...
    @property
    def stream(self) -> Stream: ...
    @property
    def mode(self) -> str: ...
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
    def _keep_by_runtime(self) -> None: ...
    def _take_from(self, runtime: Core) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

def provide_runtimes(get_runtime: Callable[[int], Core]) -> None: ...
def use(
    stream: _StreamLike,
    read: _What = (),
    write: _What = (),
    read_write: _What = (),
    *,
    runtime: Core | None = None,
    mode: str = "strict",
    handback: str = "all",
    on_conflict: str = "wait",
) -> LaunchRecorder: ...
