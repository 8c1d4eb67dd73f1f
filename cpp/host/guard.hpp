// The host's accesses to page-locked memory that the device still works on, seen by the protection of pages.
//
// While a copy out of such memory is pending (queued, and not known to the host to be done), its pages are read-only for
// the program; while work may write there, the program has no access. The device has tables of pages of its own, and
// goes on. An access of the host faults: the handler of the signal notes the access, opens the page, and lets the
// instruction go on. The front end judges notes later, but before the host's clock moves, and lifts the protection
// after that, before the call that waits returns. So an access that is ordered never faults.
//
// The handler may have interrupted malloc, a front end or Python. It takes no lock but a spin lock, under which nothing
// allocates, faults or calls out.
//
// Bytes beside a range share its first and last page: an access to them is let through for one instruction, with the
// processor's trap flag. Memory that was registered shares those pages with memory of any owner, malloc's own too. Such
// pages are never protected (edges.hpp), nor are stacks. System calls that meet a protected page fail (EFAULT): a
// library that is loaded before libc, preload.c, opens the page for them and makes them accesses. It does so for libc's
// copies and fills as well: with the trap flag each of their instructions costs two signals and two system calls, as
// where the next piece of a staging buffer is filled beside pending ones. Without this library no page is protected
// that has other bytes than those of the range.
//
// All functions but those of the handlers, has_notes(), enter_driver() and leave_driver() are called under the front
// end's lock.
#pragma once

#include "engine/host_use.hpp"

namespace check::host {

enum class Did : u8 {
    Read,
    Write,
    WriteBefore,  // seen by the change alone: see edges.hpp
    Free,
};

// An access to a pending range.
struct Note {
    u64 begin = 0, end = 0;  // of a fault one byte: how far the instruction goes is not known
    Did did = Did::Read;
    bool sure = true;  // false: a wide load, which may be meant for the bytes beside the range
    u32 site = 0;
    u64 instruction = 0;  // 0: a system call
};

// The number of the calling thread's place in the program. It is called in handlers of signals.
using SiteOf = u32 (*)();

// False: nothing is guarded here, on another processor, or beside a sanitizer, which has its own handlers.
bool start(SiteOf site_of);
bool is_on();
// Lifts everything.
void stop();

// `shared`: the first and the last page of its block have bytes of other owners.
void guard(const HostUse& use, bool shared);
// The host will know this, and knows it now: what is done is the program's again.
void examine(const Clock& coming);
void settle(const Clock& host);
// The memory ends.
void forget(u64 begin, u64 end);
// The oldest note; false: there is none.
bool take(Note& note);

// False: take() has nothing.
bool has_notes();

// The thread's accesses are the driver's from here on: they are let through, and not noted. Then they are the program's
// again.
void enter_driver();
void leave_driver();

// From its making to its end the thread is in the driver.
class OfDriver {
  public:
    OfDriver() { enter_driver(); }
    ~OfDriver() { leave_driver(); }
    OfDriver(const OfDriver&) = delete;
    OfDriver& operator=(const OfDriver&) = delete;
};

}  // namespace check::host
