// Pageable memory that a copy reads later: a batch, or one copy with attributes, reads it in the order of its stream.
//
// Its pages are not protected, since they belong to malloc and may be unmapped at any time. The bytes are compared when
// the host learns that the copy is done: a change is a write of the host's in the meantime, or a free, whose place is
// not known. A free that leaves the bytes as they are is not seen. Of a large range parts are compared (parts.hpp), and
// older ranges than the engine remembers are forgotten: what is found is a change all the same.
//
// All functions are called under the front end's lock.
#pragma once

#include "engine/host_use.hpp"

#include <functional>

namespace check::host {

// The copy at this time reads these bytes; the engine knows it by `number`, one more than that of the copy before.
void read_late(u64 number, u64 begin, u64 end, Time time);
// The driver writes there, or has refused the copy.
void forget_late_reads(u64 begin, u64 end);
void forget_late_read(u64 number);
// `gone`: it was freed, and not only written.
using Changed = std::function<void(u64 number, bool gone)>;
// Compares all that `coming` covers, and forgets it.
void examine_late_reads(const Clock& coming, const Changed& changed);
// The same of what these bytes overlap: they become page-locked, where kernels write, too.
void examine_late_reads(u64 begin, u64 end, const Changed& changed);

}  // namespace check::host
