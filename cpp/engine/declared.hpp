// Declarations of a program: the open windows of its launches, and launches that do not keep to them.
//
// Before a launch, xlogmem's `use` declares which memory the launch reads and writes, and on which stream. The declared
// role replaces an unknown role of a kernel's pointer. An audit notes two more things, which need not cause a race:
// work on tracked memory outside of any window, and work that writes memory which its window declares as read. A
// block's own stream may work on the block undeclared until a launch on another stream has named it. In every check an
// access says in which way it is known: of two that are not in order, those that xlogmem does not know need a window.
//
// Without an audit, too, it is noted where a launch went elsewhere: while its window was open nothing was queued on the
// window's stream, and the window's thread queued work on another stream, on memory that the window names and no window
// of that stream does. Both may be right alone: a window whose launch is left out, and work of a block's own stream,
// which is another thread's. A stream that records an event, or waits for one, may have ordered the other one by hand.
// Where the host waits for the stream, the window may be a use of the host's, as of a message that is sent. A window
// that is cancelled had no launch. A blocking stream and the legacy one order themselves: what went from one to the other
// says something about a finding alone.
#pragma once

#include "order.hpp"

#include <optional>

#include <vector>

namespace check {

struct Omission {
    enum class Kind : unsigned char { Outside, Written, Elsewhere };  // Written: what is declared as read
    Kind kind = Kind::Outside;
    Operation what;
    u64 stream = 0;
    u32 declared = 0;  // the site of the window
    u64 named = 0;  // Elsewhere: the stream of the window
    u64 begin = 0, end = 0;  // of the block
    u32 tag = 0;  // a name
    u64 count = 1;  // from the same place
    bool entry = true;  // of the audit; else it only says of a finding's launch where its window is
};

class Declared {
  public:
    static constexpr std::size_t kMost = 1000;  // omissions

    struct Use {
        u64 window = 0, stream = 0, thread = 0;
        bool blocking = true, legacy = false;  // the stream
        u32 site = 0;
        u64 begin = 0, end = 0;
        Role role = Role::Read;
        bool worked = false;  // something was queued on the stream, or the host waited for it
        std::optional<Omission> elsewhere;

        bool names(u64 at) const { return at >= begin && at < end; }
    };

    void open(const Use& use) { uses_.push_back(use); }
    void close(u64 window, bool launched);
    bool any() const { return !uses_.empty(); }
    // The role that the windows of the stream declare for this address; `unless` if they do not name it.
    Role role_at(u64 stream, u64 at, Role unless) const;

    void audit(bool wanted) { audits_ = wanted; }
    bool audits() const { return audits_; }
    void note_work(u64 stream);  // anything that is queued on it, or a wait of the host for it
    // Keeps a thread's work on memory that only windows of other streams name, until these close.
    void look_elsewhere(u64 thread, const Stream& stream, u64 at, const Omission& omission);
    // How xlogmem knows of a thread's work on a tracked block, which may be undeclared if it is `own`. An audit notes
    // other work.
    Known look(u64 thread, Access& access, const Omission& omission, bool own);
    const std::vector<Omission>& omissions() const { return omissions_; }
    void clear() { omissions_.clear(); }

  private:
    std::vector<Use> uses_;
    std::vector<Omission> omissions_;
    bool audits_ = false;

    void add(const Omission& omission);
};

}  // namespace check
