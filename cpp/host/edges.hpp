// The ends of ranges that lie on pages which are never protected, since other owners have bytes there. Of a range that
// is read, the bytes are compared when the host learns that the work is done: a change is a write of the host's in the
// meantime, whose place is not known. An early read is not seen.
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
        Window bytes, block;
        u64 hash;
        Time time;
    };
    std::vector<Edge> edges_;

    void add(const HostUse& use, u64 begin, u64 end);
};

}  // namespace check::host
