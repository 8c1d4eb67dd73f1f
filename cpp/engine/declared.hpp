// Declarations of a program: the open windows of its launches, and launches that do not keep to them.
//
// xlogmem's `use` says, before a launch, what this reads and writes on which stream. Where it is not known what a kernel
// does with a pointer, that is taken for it. Under an audit two things are noted besides, which no race has to follow
// from: work on tracked memory outside of any window, and work that writes what its window declares as read. A block's
// own stream may work on it undeclared until a launch on another stream has named it.
#pragma once

#include "access.hpp"

#include <vector>

namespace check {

struct Omission {
    bool is_outside = false;  // of any window; else it writes what is declared as read
    Operation what;
    u64 stream = 0;
    u32 declared = 0;  // the site of the window
    u64 begin = 0, end = 0;  // of the block
    u32 tag = 0;  // a name
    u64 count = 1;  // from the same place
};

class Declared {
  public:
    static constexpr std::size_t kMost = 1000;  // omissions

    struct Use {
        u64 window = 0, stream = 0;
        u32 site = 0;
        u64 begin = 0, end = 0;
        Role role = Role::Read;
    };

    void open(const Use& use) { uses_.push_back(use); }
    void close(u64 window);
    bool any() const { return !uses_.empty(); }
    // What the windows of the stream say of this address; `unless` if they do not name it.
    Role role_at(u64 stream, u64 at, Role unless) const;

    void audit(bool wanted) { audits_ = wanted; }
    bool audits() const { return audits_; }
    // Work on a tracked block. `own` says that it may be undeclared.
    void look(const Access& access, const Omission& omission, bool own);
    const std::vector<Omission>& omissions() const { return omissions_; }
    void clear() { omissions_.clear(); }

  private:
    std::vector<Use> uses_;
    std::vector<Omission> omissions_;
    bool audits_ = false;

    void add(const Omission& omission);
};

}  // namespace check
