"""A race without xlogmem, and its repair: `xlogmem demo`."""
