import queue
import threading

import cupy

load, work = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
frames = queue.Queue()


def read():
    with load:
        for _ in range(3):
            frames.put(cupy.ones(1000))
    frames.put(None)


threading.Thread(target=read).start()
with work:
    while (frame := frames.get()) is not None:
        result = frame * 2
