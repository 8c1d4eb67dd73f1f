// Declarations of a program: the open windows of its launches, and launches that do not keep to them.
//
// Before a launch, xlogmem's `use` declares which memory the launch reads and writes, and on which stream. The declared
// role replaces an unknown role of a kernel's pointer. An audit notes two more things, which need not cause a race:
// work on tracked memory outside of any window, and work that writes memory which its window declares as read. A
// block's own stream may work on the block undeclared until a launch on another stream has named it.
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
    // The role that the windows of the stream declare for this address; `unless` if they do not name it.
    Role role_at(u64 stream, u64 at, Role unless) const;

    void audit(bool wanted) { audits_ = wanted; }
    bool audits() const { return audits_; }
    // Notes work on a tracked block. `own`: the work may be undeclared.
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
