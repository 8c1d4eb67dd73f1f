"""Record what cuDF allocates, for `pool_fragmentation.py`:  python benchmarks/record_log.py FILE.csv

Queries of several tables of different sizes, in four threads: groupby, join, sort, strings, Parquet and ORC written and
read.  RMM's `LoggingResourceAdaptor` writes the log; times and thread numbers are left out of FILE, so that it
compresses well.  Needs a GPU and cuDF.
"""
from __future__ import annotations

import csv
import io
import sys
import tempfile
import threading
from pathlib import Path

import cudf
import cupy
import rmm
import rmm.mr

ROWS = (20_000, 300_000, 1_000_000, 4_000_000)


def queries(seed: int) -> None:
    draw = cupy.random.default_rng(seed)
    for turn in range(3):
        rows = ROWS[(seed + turn) % len(ROWS)]
        keys = draw.integers(0, rows // 7, rows)
        left = cudf.DataFrame({"key": keys, "a": draw.random(rows), "b": draw.random(rows)})
        right = cudf.DataFrame({"key": cupy.arange(rows // 7), "c": draw.random(rows // 7)})
        joined = left.merge(right, on="key")
        grouped = joined.groupby("key").agg({"a": "mean", "b": ["min", "max"], "c": "sum"})
        ordered = joined.sort_values(["key", "a"]).reset_index(drop=True)
        words = ordered["key"].astype("str")
        longer = words.str.cat(words, sep="-").str.upper()
        del left, right
        for kind in ("parquet", "orc"):
            file = io.BytesIO()
            frame = cudf.DataFrame({"key": ordered["key"], "words": longer, "a": ordered["a"]})
            getattr(frame, f"to_{kind}")(file)
            file.seek(0)
            again = getattr(cudf, f"read_{kind}")(file)
            assert len(again) == len(frame)
        del grouped, joined


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mr = rmm.mr.LoggingResourceAdaptor(rmm.mr.CudaAsyncMemoryResource(), str(Path(folder, "log.csv")))
        rmm.mr.set_current_device_resource(mr)
        threads = [threading.Thread(target=queries, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        mr.flush()
        written = next(Path(folder).glob("log*.csv"))
        with written.open() as log, open(sys.argv[1], "w", newline="") as out:
            rows = csv.writer(out)
            rows.writerow(["Thread", "Time", "Action", "Pointer", "Size", "Stream"])
            for row in csv.DictReader(log):
                rows.writerow([0, 0, row["Action"], row["Pointer"], row["Size"], row["Stream"]])


if __name__ == "__main__":
    main()
