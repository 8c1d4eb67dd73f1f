"""Threads sort and hash-join tables with pylibcudf, on streams that they share.

    python examples/cudf_sort_join_threads.py [--rounds N] [--without] [--json]

A job is made on one stream, sorted on a second, joined on a third and checked on a fourth, each time by the next free
thread; no thread waits for another on the host.  Each stage drops its input as soon as its work is enqueued, so the
memory is freed on its stream, where other jobs reuse it.  The stages' kernels are late.  Without xlogmem tables are
read before they are written, and overwritten before they are read.
"""
from __future__ import annotations

import contextlib
import queue
import threading

import numpy
import pylibcudf as plc
from cupy.cuda import Stream
from together import Kernels, begin, main

ROWS = 1 << 12
THREADS, STREAMS = 8, 11
LATE = 0.3                                              # milliseconds
INT = plc.DataType(plc.TypeId.INT64)
ASCENDING, AFTER = [plc.types.Order.ASCENDING], [plc.types.NullOrder.AFTER]
ANYWHERE = plc.copying.OutOfBoundsPolicy.DONT_CHECK


class Jobs:
    """The stages of a job, each a method that takes tables and a stream and returns the tables for the next stage."""

    def __init__(self, rounds: int, protected: bool) -> None:
        self.use = begin(protected)
        self.kernels = Kernels()
        self.streams = [Stream(non_blocking=True) for _ in range(STREAMS)]
        self.work: queue.Queue = queue.Queue()
        self.wrong: list[int] = []
        self.errors: list[BaseException] = []
        self.lock, self.left = threading.Lock(), rounds
        for number in range(rounds):
            self.work.put((number, 0, ()))

    def late(self, stream: Stream) -> None:
        with stream:
            self.kernels.delay(LATE)

    def make(self, number: int, stream: Stream) -> list[plc.Table]:
        """Two tables of keys in different orders; the second column is the key times a factor of the job."""
        start, step = (plc.Scalar.from_py(value, INT, stream=stream) for value in (0, 1))
        factors = [plc.Scalar.from_py(value, INT, stream=stream) for value in (3 + number, 5 + number)]
        self.late(stream)
        keys = plc.filling.sequence(ROWS, start, step, stream=stream)
        tables = []
        for seed, factor in enumerate(factors):
            shuffled = plc.hashing.murmurhash3_x86_32(plc.Table([keys]), seed, stream=stream)
            values = plc.binaryop.binary_operation(keys, factor, plc.binaryop.BinaryOperator.MUL, INT, stream=stream)
            tables.append(plc.sorting.sort_by_key(plc.Table([keys, values]), plc.Table([shuffled]), ASCENDING, AFTER,
                                                  stream=stream))
        return tables

    def sort(self, number: int, stream: Stream, left: plc.Table, right: plc.Table) -> list[plc.Table]:
        order = plc.sorting.sorted_order(plc.Table(left.columns()[:1]), ASCENDING, AFTER, stream=stream)
        self.late(stream)
        return [plc.copying.gather(left, order, ANYWHERE, stream=stream), right]

    def join(self, number: int, stream: Stream, left: plc.Table, right: plc.Table) -> list[plc.Table]:
        rows, others = plc.join.inner_join(plc.Table(left.columns()[:1]), plc.Table(right.columns()[:1]),
                                           plc.types.NullEquality.EQUAL, stream=stream)
        if rows.size() != ROWS:                         # every key has its one match
            self.wrong.append(number)
            return []
        self.late(stream)
        return [plc.copying.gather(left, rows, ANYWHERE, stream=stream),
                plc.copying.gather(right, others, ANYWHERE, stream=stream)]

    def check(self, number: int, stream: Stream, left: plc.Table, right: plc.Table) -> list[plc.Table]:
        """The multiset of rows is exact: sorted, it is 0, 1, 2, … and the multiples."""
        rows = plc.sorting.sort(plc.Table([*left.columns(), *right.columns()]), ASCENDING * 4, AFTER * 4, stream=stream)
        keys, values, keys_again, others = (column.to_arrow(stream=stream).to_numpy() for column in rows.columns())
        expected = numpy.arange(ROWS)
        if not ((keys == expected).all() and (keys_again == expected).all()
                and (values == keys * (3 + number)).all() and (others == keys * (5 + number)).all()):
            self.wrong.append(number)
        return []

    STAGES = (make, sort, join, check)

    def help(self) -> None:
        """The loop of each thread: take any job one stage further."""
        while (job := self.work.get()) is not None:
            number, stage, tables = job
            del job
            stream = self.streams[(3 * number + 4 * stage) % STREAMS]
            try:
                with self.use(stream, read=list(tables)):
                    tables = self.STAGES[stage](self, number, stream, *tables)
            except BaseException as error:              # raised by the main thread
                self.errors.append(error)
                tables = []
            if tables:
                self.work.put((number, stage + 1, tables))
                del tables                              # another thread's now
                continue
            with self.lock:
                self.left -= 1
                if not self.left:
                    for _ in range(THREADS):
                        self.work.put(None)


def run(rounds: int, protected: bool) -> int:
    jobs = Jobs(rounds, protected)
    threads = [threading.Thread(target=jobs.help) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if jobs.errors and protected:
        raise jobs.errors[0]
    with contextlib.nullcontext() if protected else contextlib.suppress(Exception):     # wrong data can make cuDF fail
        for stream in jobs.streams:
            stream.synchronize()
    return len(jobs.wrong) + len(jobs.errors)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], run)
