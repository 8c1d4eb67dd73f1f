"""One process of a benchmark run; `xlogmem bench` starts several of them."""
import sys

from xlogmem_bench.measure import main

if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
