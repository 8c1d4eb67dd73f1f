// System calls that meet pages which are protected: see guard.hpp.
#pragma once

#include "hooks.h"

namespace check::host {

// If preload.c is loaded, it calls the guard from here on, and this returns libc's sigaction(); else nullptr.
xlogmem_host_set_action* watch_calls();

}  // namespace check::host
