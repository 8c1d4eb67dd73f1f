"""``python -m xlogmem`` is the ``xlogmem`` command."""
from xlogmem.cli import main

if __name__ == "__main__":
    main()
