import xlogmem

with xlogmem.scope("join"), xlogmem.get_runtime().allocate("1MiB"):
    print(xlogmem.snapshot()._repr_html_())             # what a notebook shows of a snapshot
