"""The ``xlogmem`` command, and its parts that belong to no other package."""
