from types import ModuleType

__pyx_capi__: dict[str, object]

def begin(module: ModuleType) -> None: ...
