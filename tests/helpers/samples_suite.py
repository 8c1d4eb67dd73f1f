"""NVIDIA's samples (https://github.com/NVIDIA/cuda-samples, Samples/) under `xlogmem check`.

    python tests/helpers/samples_suite.py CHECKOUT [--gpu]

builds those that need no graphics and no library beyond the toolkit's, and prints how each ends and what was found.  On
a GPU each runs alone, too.  Without one kernels compute nothing, so that a sample that compares its results says that
they are wrong: it has run to its end.
"""
from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from pathlib import Path

NOT_HERE = re.compile(r"glut|GLEW|OpenGL|CUDA::npp|nvjpeg|find_package\(MPI|NvSci|Vulkan|FreeImage|EGL|nvJitLink|d3d|"
                      r"find_package\(OpenMP", re.IGNORECASE)
LIBRARIES = ("cublas", "cufft", "curand", "cusolver", "cusparse", "nvrtc")
OPTIONS = ("-g", "-lineinfo", "-std=c++17", "-w", "--extended-lambda", "-rdc=true", "-I../../../Common",
           "-gencode", "arch=compute_90,code=[compute_90,sm_90]")
SECONDS = 60


def built(folder: Path, options: list[str]) -> bool:
    recipe = (folder / "CMakeLists.txt").read_text()
    listed = re.search(r"add_executable\(\s*\S+([^)]*)\)", recipe)
    sources = [name for name in (listed[1] if listed else "").split() if name.endswith((".cu", ".cpp"))]
    libraries = [f"-l{name}" for name in LIBRARIES if name in recipe.lower()]
    for kernels in folder.glob("*_kernel*.cu") if "-fatbin" in recipe else ():
        subprocess.run(["nvcc", "-fatbin", "-gencode", "arch=compute_90,code=[compute_90,sm_90]", kernels.name, "-o",
                        f"{kernels.stem}64.fatbin"], cwd=folder, capture_output=True)
    command = ["nvcc", *OPTIONS, *options, *sources, *libraries, "-lcuda", "-o", "sample"]
    return bool(sources) and subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str] | None:
    """None: it did not end."""
    try:
        return subprocess.run([*command, "./sample"], cwd=folder, capture_output=True, text=True, errors="replace",
                              timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None


def ending(folder: Path, gpu: bool) -> str:
    out = folder / "findings.json"
    alone = run(folder) if gpu else None
    place = "--gpu" if gpu else "--no-gpu"
    done = run(folder, sys.executable, "-m", "xlogmem", "check", place, "--json", str(out), "--")
    if done is None or not out.exists():
        return "did not end"
    report = json.loads(out.read_text())
    certain = [one["certain"] for one in report["findings"]]
    missing = sorted({name for note in report["notes"] for name in re.findall(r"(\w+) is not simulated", note)})
    ended = re.search("ended (with status|by) [^:]*", done.stderr)
    return ", ".join(filter(None, [f"{sum(certain)} certain, {len(certain) - sum(certain)} possible",
                                   ended and ended[0], alone and f"alone: status {alone.returncode}",
                                   missing and f"not simulated: {' '.join(missing)}"]))


def main(checkout: Path, gpu: bool) -> None:
    with tempfile.TemporaryDirectory() as copy, ThreadPoolExecutor(len(sched_getaffinity(0))) as pool:
        for part in ("Samples", "Common"):
            shutil.copytree(checkout / part, Path(copy, part))
        folders = [file.parent for file in sorted(Path(copy).glob("Samples/*/*/CMakeLists.txt"))
                   if not NOT_HERE.search(file.read_text())]
        options = [] if gpu else ["-cudart", "shared", f"-L{simulated(Path(copy))}"]
        made = pool.map(lambda one: built(one, options), folders)
        ready = [folder for folder, is_made in zip(folders, made, strict=True) if is_made]
        for folder, said in zip(ready, pool.map(lambda one: ending(one, gpu), ready), strict=True):
            print(f"{folder.name:30} {said}", flush=True)
        print(f"{len(ready)} of {len(folders)} samples were built")


def simulated(folder: Path) -> Path:
    """The linker finds a driver there."""
    from xlogmem import sim

    (folder / "libcuda.so").symlink_to(sim.library_path())
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--gpu" in sys.argv)
