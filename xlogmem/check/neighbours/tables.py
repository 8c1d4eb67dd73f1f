"""Tables of C functions that Cython modules export to each other (``__pyx_capi__``): entries replaced by ours."""
from __future__ import annotations

import ctypes
import re
from types import ModuleType

__all__ = ["address_of", "replace", "signature_of"]

_api = ctypes.PyDLL(None)
_name = _api.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_kept: list[object] = []                                # the names, and the former entries


def signature_of(capsule: object) -> str:
    """Return the C type of an entry, without the names of the module's own structures: objects are objects, and a
    structure of optional arguments has the layout that its function's signature gives it."""
    text = _name(capsule).decode()
    text = re.sub(r"struct __pyx_opt_args_\w+ \*", "optional *", text)
    text = re.sub(r"struct __pyx_obj_\w+ \*", "PyObject *", text)
    return re.sub(r"\b(enum|struct) ", "", text).replace("PY_LONG_LONG", "long long")


def replace(module: ModuleType, name: str, function: int) -> None:
    """Give modules that import this C function from now on the function at this address, of the same signature."""
    table: dict[str, object] = module.__pyx_capi__
    text = ctypes.create_string_buffer(_name(table[name]))
    _kept.extend((text, table[name]))
    table[name] = _new(function, ctypes.cast(text, ctypes.c_char_p), None)


def address_of(capsule: object) -> int:
    """Return the address of an entry's function."""
    address: int = _pointer(capsule, _name(capsule))
    return address
