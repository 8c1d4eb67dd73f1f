"""Plays scenes of the front end on a GPU:  python play_scenes.py LIBRARY DRIVER MODULE...

In a process of its own, because the driver of these scenes stands in the place of the simulated one.  Prints what was
found in each; if the environment names a defect, only up to the first scene in which something else is found than
expected.
"""
import ctypes
import importlib
import json
import os
import sys

from fabricated import SCENES, Program


def main(library: str, driver: str, *modules: str) -> None:
    ctypes.CDLL(driver)
    for module in modules:
        importlib.import_module(module)
    found = {}
    for name, (play, findings) in SCENES.items():
        for repaired in (False, True):
            program = Program(library)
            play(program, repaired)
            found[f"{name}, {'repaired' if repaired else 'broken'}"] = program.findings()
            if os.environ.get("CHECK_DEFECT") and program.findings() != ([] if repaired else findings):
                return print(json.dumps(found))
    return print(json.dumps(found))


main(*sys.argv[1:])
