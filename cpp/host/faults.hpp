// Handlers of SIGSEGV and SIGTRAP: see guard.hpp.
#pragma once

#include "guard.hpp"
#include "hooks.h"

namespace check::host {

// The handlers of others, which get the signals that are not ours.
struct Others {
    struct sigaction segv, trap;
};
Others& others();

// Puts the handlers in place by libc's sigaction(), or in place again if the program has replaced them. False: the
// system refuses.
bool have_handlers(xlogmem_host_set_action* set_action);
// What notes say about the place of an access.
void set_site(SiteOf site_of);
u32 current_site();
bool is_in_driver();  // this thread

}  // namespace check::host
