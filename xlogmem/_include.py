"""Folders for builds of C, C++ and Cython: of xlogmem.h, xlogmem.hpp and the package for CMake."""
from __future__ import annotations

from pathlib import Path

__all__ = ["get_cmake_dir", "get_include"]

PACKAGE = Path(__file__).parent


def get_include() -> str:
    """The folder of xlogmem.h and xlogmem.hpp, for the compiler's ``-I``.

    Returns
    -------
    str
        The absolute path.

    Examples
    --------
    >>> from setuptools import Extension
    >>> module = Extension("mine", ["mine.cpp"], include_dirs=[xlogmem.get_include()])
    """
    return str((PACKAGE / "include").absolute())


def get_cmake_dir() -> str:
    """The folder of xlogmemConfig.cmake, for ``-Dxlogmem_DIR``.

    ``find_package(xlogmem)`` makes the target ``xlogmem::headers``.  Builds with scikit-build-core find it by
    themselves, as they find RAPIDS' libraries, when xlogmem is a build requirement.

    Returns
    -------
    str
        The absolute path.

    Examples
    --------
    >>> command = ["cmake", f"-Dxlogmem_DIR={xlogmem.get_cmake_dir()}", "."]
    """
    return str((PACKAGE / "share/cmake/xlogmem").absolute())
