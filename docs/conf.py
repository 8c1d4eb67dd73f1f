"""The site, for Sphinx:  make -C docs html."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "_extensions"))

from standins import stand_in  # noqa: E402

import xlogmem  # noqa: E402

stand_in("cudf", "cudf.core", "cudf.core.buffer", "cudf.core.buffer.spillable_buffer", "cudf.core.column",
         "cudf.core.frame", "cudf.pandas", "cudf.pandas.fast_slow_proxy", "pylibcudf")
for _name, _module in xlogmem._MODULES.items():         # xlogmem.history, as programs say, is an attribute
    sys.modules[f"xlogmem.{_name}"] = import_module(_module)

project = "xlogmem"
author = "the authors of xlogmem"
release = version = re.search(r'__version__ = "(.+)"', (ROOT / "xlogmem/__init__.py").read_text())[1]
html_title = f"xlogmem {version}"

extensions = [
    "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.intersphinx",
    "breathe", "myst_nb", "numpydoc", "sphinx_click", "sphinx_copybutton", "sphinx_design",
    "drawn", "names", "outside", "tasks",               # _extensions/
]
root_doc = "index"
exclude_patterns = ["_build", "**/.ipynb_checkpoints", "README.md"]         # README.md is the index on the code host
templates_path = ["_templates"]

# Links between the pages are those of the code host: to the files, and to headings as it names them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The notebooks keep no outputs: each build runs those whose library is there, in a folder that is removed.
nb_execution_mode = "force"
os.environ.pop("XLOGMEM_SIM", None)                     # quiet: but these say that they simulate
nb_execution_in_temp = True
nb_execution_excludepatterns = ["first-cudf.ipynb"] + [        # needs a GPU
    f"first-{name}.ipynb" for name, module in (("cupy", "cupy"), ("numba", "numba_cuda"), ("pytorch", "torch"))
    if find_spec(module) is None]
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

default_role = "name"                                   # of docstrings: _extensions/names.py
autosummary_generate = [str(page.relative_to(HERE)) for page in HERE.glob("reference/*.rst")]
autodoc_default_options = {"members": True, "member-order": "bysource"}
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"                              # the docstrings name the types
numpydoc_show_class_members = False

# Other sites find our names in objects.inv.  Links to theirs need a network: make html SPHINXOPTS="-t online"
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "cupy": ("https://docs.cupy.dev/en/stable", None),
    "rmm": ("https://docs.rapids.ai/api/rmm/stable", None),
} if tags.has("online") else {}                         # noqa: F821  Sphinx gives it to this file

# The headers' comments are read by doxygen, through a filter that marks them as documentation.
doxygen = HERE / "_build/doxygen"
breathe_projects = {"xlogmem": str(doxygen / "xml")}
breathe_default_project = "xlogmem"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_include = False
if shutil.which("doxygen") is None:
    raise SystemExit("the pages of the headers need doxygen: apt-get install doxygen")
doxygen.mkdir(parents=True, exist_ok=True)
subprocess.run(["doxygen", "-"], cwd=HERE, check=True, text=True, input=f"""
    INPUT = ../xlogmem/include/xlogmem.h ../xlogmem/include/xlogmem.hpp ../xlogmem/include/xlogmem_graph.hpp
    OUTPUT_DIRECTORY = {doxygen}
    INPUT_FILTER = "{sys.executable} {HERE}/_extensions/comments.py"
    GENERATE_XML = YES
    GENERATE_HTML = NO
    GENERATE_LATEX = NO
    EXTRACT_ALL = YES
    PREDEFINED = Py_PYTHON_H=1 __cplusplus=201703L
    EXCLUDE_SYMBOLS = xlogmem::detail* CUstream_st _object
    QUIET = YES
    WARN_AS_ERROR = FAIL_ON_WARNINGS
""")

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "show_toc_level": 2,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"index": []}
html_show_sourcelink = False
html_copy_source = False
copyright = "the authors of xlogmem. Apache License 2.0"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
