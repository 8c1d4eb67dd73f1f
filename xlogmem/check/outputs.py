"""Files that a check writes: refused before the program runs; a later failure to write one loses no finding."""
from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

__all__ = ["as_json", "refuse", "written"]


def refuse(files: dict[str, str | None], command: list[str]) -> None:
    """Refuse files that cannot be written, that two options name, or that are a part of the command.

    Raises
    ------
    ValueError
        The text names the option, the file and the reason.
    """
    named: dict[Path, str] = {}
    parts = {Path(part).resolve() for part in command if os.path.isfile(part)}
    for option, file in files.items():
        if not file:
            continue
        path = Path(file).resolve()
        if not path.parent.is_dir():
            raise ValueError(f"{option} {file} cannot be written: there is no such folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise ValueError(f"{option} {file} cannot be written: no permission")
        if path in parts:
            raise ValueError(f"{option} {file} is a part of the command, and would be overwritten")
        if path in named:
            raise ValueError(f"{named[path]} and {option} name the same file, {file}")
        named[path] = option


def written(file: str, write: Callable[[IO[str]], None]) -> str:
    """Write a file of text; returns the reason if that failed, and an empty text otherwise."""
    try:
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as opened:
            write(opened)
    except OSError as error:
        return f"{file} could not be written: {error.strerror or error}"
    return ""


def as_json(document: Any) -> Callable[[IO[str]], None]:
    return lambda file: json.dump(document, file, indent=1)
