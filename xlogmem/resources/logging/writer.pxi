# The thread of a log.  The thread holds the writer and not the adaptor, so dropping the adaptor ends the thread.

import threading

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from xlogmem._base.log import logger
from xlogmem._base.units import counted, parse_number
from xlogmem.resources.endings import at_end
from xlogmem._base.cpp cimport milliseconds
from xlogmem._base.locks cimport read_under, signal
from xlogmem._driver cimport LEAF_LOCK, forget_at_forks, process_was_forked, take_at_forks


cdef enum:
    BATCH = 2048                # records that are written at once

EXIT_WAIT = 5                               # seconds for all logs together

cdef set writers = set()                    # whose threads run


cdef class LogWriter:
    """The ring of a log, and the thread that empties it into a sink."""

    cdef Ring ring
    cdef Rows rows
    cdef signal progress        # after each batch
    cdef object sink
    cdef object thread
    cdef dict tags              # as JSON
    cdef bint reported          # that the sink failed

    def __cinit__(self, capacity):
        cdef size_t count = parse_number("capacity", capacity, 1, 1 << 24, "a number of records")
        self.ring.capacity = count
        self.ring.records = <Record*>malloc(count * sizeof(Record))
        self.tags = {}
        take_at_forks(&self.ring.lock, LEAF_LOCK)
        if self.ring.records == NULL:
            raise MemoryError(f"no host memory for a log of {counted(count, 'record')}")

    def __dealloc__(self):
        forget_at_forks(&self.ring.lock)
        drop_records(&self.ring, self.ring.pushed - self.ring.taken)
        free(self.ring.records)

    cdef int start(self, object sink, int device) except -1:
        self.sink = sink
        self.rows.device = device
        sink.is_ending = self.is_ending
        self.thread = threading.Thread(target=self.run, name="xlogmem log", daemon=True)
        logger()                            # imported by now: at the end logging closes its files
        writers.add(self)
        try:
            at_end(write_what_is_left)
            self.thread.start()
        except BaseException:
            if self.thread.ident is None:
                writers.discard(self)
                sink.close()
            else:                                       # an interrupt: the thread runs
                with nogil:
                    request_end(&self.ring)
            raise
        return 0

    def is_ending(self):
        """True if the sink will be closed soon, without a further call."""
        return self.ring.ends.load() != 0

    def run(self):
        """Run the thread: write records until the end."""
        cdef size_t count
        self.ring.writer.store(thread_number())
        try:
            while True:
                self.ring.wake.clear()
                last = self.ring.ends.load() != 0       # before looking whether there is anything left
                with nogil:
                    count = waiting_records(&self.ring, BATCH)
                if count:
                    self.write_batch(count)
                elif last:
                    return
                if count < BATCH and not last:
                    with nogil:
                        self.ring.wake.wait(GATHERING if count else IDLE_WAIT)
        finally:
            self.end_sink()
            self.ring.writer.store(0)                   # the system gives the number to another thread
            writers.discard(self)
            self.progress.set()

    cdef int write_batch(self, size_t count) except -1:
        """Give the records to the sink, even if the sink raises."""
        failed, error, content = None, None, None
        try:
            content = self.content_of(count)
        except BaseException as raised:                 # no memory, say; in this thread nothing else handles it
            error = raised
        with nogil:
            drop_records(&self.ring, count)             # before the sink, which may take its time
        if error is None:
            try:
                failed, error = self.sink.write(content)
            except BaseException as raised:
                error = raised
        self.ring.dropped.fetch_add(<uint64_t>(count if failed is None else failed))
        self.sink.taken = 0
        if error is not None:
            self.report(error)                          # before flush() returns
        self.ring.written.fetch_add(count)
        self.progress.set()
        return 0

    cdef object content_of(self, size_t count):
        """The content for the sink: records, or rows."""
        cdef size_t i
        cdef int rmm = self.sink.format == "rmm"
        if self.sink.format is None:
            return [record_of(waiting_record(&self.ring, i), self.rows.device) for i in range(count)]
        self.rows.used = 0
        with nogil:
            for i in range(count):
                if rmm:
                    append_rmm(&self.rows, waiting_record(&self.ring, i))
                else:
                    append_json(&self.rows, waiting_record(&self.ring, i), self.tags)
        return self.rows.text.data()[:self.rows.used] if self.rows.used else b""

    cdef int report(self, object error) except -1:
        """Report the first failure of the sink.  A handler of the logger may fail as the sink did."""
        if self.reported:
            return 0
        self.reported = True
        try:
            logger().error("the sink of a log of allocations failed: %r; records that it does not take are counted as "
                           "dropped", error)
        except BaseException:
            pass
        return 0

    cdef int end_sink(self) except -1:
        try:
            self.sink.close()
            self.sink.is_ending = None                  # a circle
        except BaseException as error:
            self.report(error)
        return 0

    # ------------------------------------------------------------------------------------------ for other threads
    cdef object dropped(self):
        return self.ring.dropped.load()

    cdef int wait_for_all(self, object timeout) except -1:
        """Wait until everything that was pushed by now is written."""
        cdef uint64_t wanted
        cdef uint64_t before = milliseconds()
        if process_was_forked():
            return 0
        if self.ring.writer.load() == thread_number():
            raise RuntimeError("the sink of a log cannot wait until the log is written")
        wanted = read_under(&self.ring.lock, &self.ring.pushed)
        while self.ring.written.load() < wanted and self.thread.is_alive():
            if timeout is not None and milliseconds() - before >= 1000 * timeout:
                raise TimeoutError(f"the sink has taken {self.ring.written.load() + self.sink.taken} of {wanted} "
                                   "records")
            self.progress.clear()
            self.ring.wake.set()
            with nogil:
                self.progress.wait(10)
            PyErr_CheckSignals()
        return 0

    cdef int close(self, object timeout) except -1:
        if process_was_forked():
            return 0
        with nogil:
            request_end(&self.ring)
        if self.ring.writer.load() != thread_number():         # a sink may close its log, and goes on
            self.wait_for_all(timeout)
            self.thread.join(timeout)
        return 0


def write_what_is_left():
    """Close all logs, at the end of the process that made them."""
    cdef LogWriter writer
    cdef uint64_t before = milliseconds()
    if process_was_forked():
        return
    for writer in list(writers):
        try:
            writer.close(max(.01, EXIT_WAIT - (milliseconds() - before) / 1000))
        except TimeoutError as error:
            writer.report(error)
