"""``python -m xlogmem`` is the ``xlogmem`` command."""
from xlogmem.commands.cli import main

if __name__ == "__main__":
    main()
