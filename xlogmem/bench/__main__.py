"""A process of a benchmark run; `xlogmem bench` starts them."""
import sys

from xlogmem.bench.measure import main

main(sys.stdin, sys.stdout)
