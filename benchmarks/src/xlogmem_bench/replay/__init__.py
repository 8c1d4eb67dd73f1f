"""``xlogmem replay``: recorded logs on the allocators that there are, and how small a pool may be for each."""
from xlogmem_bench.replay.candidates import RESOURCES, NotHere
from xlogmem_bench.replay.files import require_writable, save_csv, save_json
from xlogmem_bench.replay.measure import Row, Sample, replayed

__all__ = ["RESOURCES", "NotHere", "Row", "Sample", "replayed", "require_writable", "save_csv", "save_json"]
