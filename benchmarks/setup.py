"""Build of xlogmem-bench.

Its compiled loops call functions inside xlogmem: the build needs the checkout around this folder, and XLOGMEM_BUILD
as xlogmem had it (../setup.py), and the package depends on exactly that version.
"""
from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent.resolve()
os.chdir(HERE)
sys.path.insert(0, str(HERE.parent))
from compiling import BuildExtensions, module, sources  # noqa: E402

version = re.search(r'__version__ = "(.+)"', (HERE.parent / "xlogmem/__init__.py").read_text())[1]
root = sources()
loops = module("xlogmem_bench._loops", Path("src/xlogmem_bench/_loops.pyx"), [root / "xlogmem"])
loops.cython_include_dirs = [str(root)]
setup(version=version, install_requires=[f"xlogmem=={version}"], ext_modules=[loops],
      cmdclass={"build_ext": BuildExtensions})
