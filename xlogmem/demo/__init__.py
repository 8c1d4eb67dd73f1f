"""What goes wrong without xlogmem, and does not with it: `xlogmem demo`."""
