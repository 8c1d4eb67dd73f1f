"""The figures of replays as files: CSV and JSON."""
from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from xlogmem_bench.replay.measure import Row

__all__ = ["require_writable", "save_csv", "save_json"]

COLUMNS = ("log", "resource", "pairs", "streams", "peak_bytes", "ns_per_pair", "refused", "least_pool_size",
           "most_held", "failed_in_log", "least_pool_with_failed")


def require_writable(*paths: str | None) -> None:
    """Raises OSError unless files can be written there; what is in them stays."""
    for path in filter(None, paths):
        there = os.path.exists(path)
        open(path, "a").close()
        if not there:
            os.unlink(path)


def save_csv(rows: Iterable[Row], path: str) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([harmless(getattr(row, name)) for name in COLUMNS] for row in rows)


def harmless(value: Any) -> Any:
    """No formula for a spreadsheet: a file may have any name."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


def save_json(rows: Iterable[Row], path: str, **about: Any) -> None:
    with open(path, "w") as file:
        json.dump(about | {"rows": [asdict(row) | {"samples": [sample._asdict() for sample in row.samples]}
                                    for row in rows]}, file, indent=1)
