"""Objects of other libraries: their streams, their memory, and who owns it."""
