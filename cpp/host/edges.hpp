// The ends of ranges that lie on pages which are never protected, since other owners have bytes there. Of a range that
// is read, the bytes are compared when the host learns that the work is done: a change is a write of the host's in the
// meantime, whose place is not known. An early read is not seen. Where the device may still write, or writes later, a
// change says nothing.
//
// The handlers of signals have nothing to do with it.
#pragma once

#include "pages.hpp"

#include <vector>

namespace check::host {

class Edges {
  public:
    // `pages` are protected for the use, or none.
    void add(const HostUse& use, Window pages);
    // Notes what has changed of all that `coming` covers, and forgets it.
    void examine(const Clock& coming);
    void forget(u64 begin, u64 end);

  private:
    struct Edge {
        Window bytes;
        u64 hash;
        Time time;
    };
    // Of the device. Where in its block a kernel writes is not known.
    struct Write {
        Window block;
        Time time;
    };
    std::vector<Edge> edges_;
    std::vector<Write> writes_;

    void add(const HostUse& use, u64 begin, u64 end);
    void add_write(Window block, Time time);
};

}  // namespace check::host
