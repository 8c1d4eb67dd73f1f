import asyncio

import xlogmem

runtime = xlogmem.get_runtime()


async def work(shared):
    stream = runtime.acquire_stream()
    with xlogmem.use(stream, read=shared):
        await asyncio.sleep(0.01)
    return stream


async def main():
    shared = runtime.allocate("1MiB", runtime.acquire_stream())
    streams = await asyncio.gather(*(work(shared) for _ in range(2)))
    shared.free()
    print(len({stream.id for stream in streams}), "streams have read it")


asyncio.run(main())
