"""``python -m xlogmem`` is the ``xlogmem`` command."""
from xlogmem.cli import main

main()
