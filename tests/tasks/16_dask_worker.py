from distributed import Client, LocalCluster

import xlogmem.dask


def task():
    import xlogmem

    with xlogmem.get_runtime().allocate("1MiB", tag="task"):
        return xlogmem.get_runtime().live_bytes


if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        client.register_plugin(xlogmem.dask.XlogmemPlugin(libraries=()))
        print(client.submit(task).result(), "bytes in a task")
        print([metrics["allocations"] for metrics in client.run(xlogmem.dask.metrics).values()])
