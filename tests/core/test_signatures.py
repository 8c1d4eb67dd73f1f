"""Signatures of what is public, for editors and type checkers: `inspect.signature`, the stubs and the sources agree."""
from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from places import ROOT

import xlogmem
from xlogmem._base.signatures import Signed

SOURCES = [*ROOT.glob("xlogmem/**/*.pyx"), *ROOT.glob("xlogmem/**/*.pxi")]
SIGNED = re.compile(r'__signature__ = Signed\(("[^)]*")\)\n\n    def __init__\(self(?:, )?([^)]*)\):')
DECLARED = re.compile(r"^(?:Core|str|bint|int) (?=\w)| not None")          # by Cython
PUBLIC = [getattr(xlogmem, name) for name in xlogmem.__all__]
ERRORS = (Exception, Warning)               # as Python's own, whose signatures are not known either


@pytest.mark.parametrize("value", [one for one in PUBLIC if callable(one) and not (
    inspect.isclass(one) and issubclass(one, ERRORS))], ids=lambda one: one.__name__)
def test_each_class_and_function_has_a_signature(value):
    inspect.signature(value)
    assert not (value.__doc__ or "").startswith(f"{value.__name__}(")      # Cython's own text of it


def test_signatures_are_those_of_the_sources():
    """A parameter with an error of its own for what is missing has a default in the source alone."""
    found = [(text, *match.groups()) for text in map(Path.read_text, SOURCES) for match in SIGNED.finditer(text)]
    assert len(found) == sum(file.read_text().count("__signature__ =") for file in SOURCES) > 15
    for text, said, source in found:
        given = ", ".join(DECLARED.sub("", one) for one in re.split(r",\s+", source))
        for missing in re.findall(r"(\w+) is missing", text):
            given = given.replace(f"{missing}=None", missing)
        said = "".join(re.findall(r'"([^"]*)"', said))
        assert inspect.signature(eval(f"lambda {said}: 0")) == inspect.signature(eval(f"lambda {given}: 0"))


def constructors(stub: str) -> dict[str, ast.arguments]:
    classes = [node for node in ast.parse((ROOT / stub).read_text()).body if isinstance(node, ast.ClassDef)]
    return {one.name: method.args for one in classes for method in one.body
            if isinstance(method, ast.FunctionDef) and method.name == "__init__"}


STUBS = {"xlogmem/streams.pyi": ["StreamPool"], "xlogmem/launch.pyi": ["LaunchRecorder"]} | {
    f"xlogmem/resources/{file}.pyi": [name] for file, name in {
        "base": "DeviceMemoryResource", "async_": "AsyncMemoryResource", "direct": "DirectMemoryResource",
        "pool": "PoolMemoryResource", "foreign": "ForeignMemoryResource", "guard": "GuardResourceAdaptor",
        "limiting": "LimitingResourceAdaptor", "logging": "LoggingResourceAdaptor",
        "statistics": "StatisticsResourceAdaptor", "tracking": "TrackingResourceAdaptor"}.items()}


@pytest.mark.parametrize(("stub", "name"), [(stub, name) for stub, names in STUBS.items() for name in names])
def test_signatures_are_those_of_the_stubs(stub, name):
    arguments = constructors(stub)[name]
    for annotated in [*arguments.args, *arguments.kwonlyargs]:
        annotated.annotation = None
    wanted = inspect.signature(eval(f"lambda {ast.unparse(arguments)}: 0"))
    assert [*wanted.parameters.values()][1:] == [*inspect.signature(getattr(xlogmem, name)).parameters.values()]


def test_a_subclass_has_the_signature_of_its_own_constructor():
    class Plain(xlogmem.DirectMemoryResource):
        pass

    class Own(xlogmem.DirectMemoryResource):
        def __init__(self, colour):
            super().__init__()

    class New(xlogmem.DirectMemoryResource):
        def __new__(cls, number):
            return super().__new__(cls)

    assert str(inspect.signature(Plain)) == str(inspect.signature(xlogmem.DirectMemoryResource)) == "(device_id=0)"
    assert str(inspect.signature(Own)) == "(colour)"
    assert str(inspect.signature(New)) == "(number)"
    assert isinstance(inspect.getattr_static(xlogmem.Stream, "__signature__"), Signed)


def test_type_checkers_refuse_wrong_names(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="needs mypy")
    (tmp_path / "program.py").write_text("""\
import xlogmem
xlogmem.enable("cupy", "rmm")
xlogmem.enable("cup")
xlogmem.disable("torhc")
xlogmem.DeviceRuntime(0, policy="lazy", resource=xlogmem.DirectMemoryResource())
xlogmem.DeviceRuntime(resourc=xlogmem.DirectMemoryResource())
xlogmem.empty((2, 3), "float32", tag="a").to_numpy()
xlogmem.empty(3, tagg="a")
async def work(stream: xlogmem.Stream) -> None:
    async with stream as current:
        current.handle.bit_length()
""")
    said, _, _ = mypy.run([str(tmp_path / "program.py"), "--strict", "--cache-dir", str(tmp_path / "cache"),
                           "--config-file", str(ROOT / "pyproject.toml")])
    assert sorted({int(line) for line in re.findall(r"program\.py:(\d+): error", said)}) == [3, 4, 6, 8], said
