from typing import Self

from rmm.mr import DeviceMemoryResource
from typing_extensions import disjoint_base

from xlogmem.blocks import Core

__all__ = ["RuntimeMemoryResource"]

@disjoint_base
class RuntimeMemoryResource(DeviceMemoryResource):
    def __new__(cls, runtime: Core) -> Self: ...
    @property
    def runtime(self) -> Core: ...
    @property
    def upstream_mr(self) -> DeviceMemoryResource: ...
    def get_allocated_bytes(self) -> int: ...
    def get_upstream(self) -> DeviceMemoryResource: ...

def upstream_of(mr: DeviceMemoryResource) -> object: ...
