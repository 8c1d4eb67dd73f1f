import xlogmem

print(xlogmem.get_runtime())
