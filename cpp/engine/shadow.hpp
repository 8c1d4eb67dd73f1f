// The shadow of a block's bytes: a list of accesses that later ones may conflict with.
//
// A new access is compared with all of them, and removes those that it comes after and stands for; it removes none that
// it contradicts, so that one mistake does not hide the next. Where a list gets long (a pool of which the pieces are not
// known), it is split between two addresses; so each cell of the shadow has a short one. The lists are bounded, and what
// is dropped is counted.
#pragma once

#include "access.hpp"

#include <vector>

namespace check {

struct Cell {
    u64 begin = 0, end = 0;
    std::vector<Access> seen;
};

class Shadow {
  public:
    static constexpr std::size_t kLongest = 64;  // accesses of a cell
    static constexpr std::size_t kMost = 1024;  // cells of a block

    // A new life of these bytes: nothing was done to them yet.
    void start(u64 begin, u64 end);
    void clear() { cells_.clear(); }
    // The same, for another block: the room of a short list is kept.
    void recycle();
    void add(const Access& access);  // without a comparison
    template <class Change>
    void each(Change&& change) {
        for (Cell& cell : cells_)
            for (Access& access : cell.seen) change(access);
    }

    // Adds the accesses that contradict this one to `found`: those that `clock` does not cover. Each once.
    void compare(const Access& access, const Clock& clock, std::vector<Access>& found) const;
    // The same, and remembers the access. What `host` covers is before everything that comes later: where room is
    // short it goes first. Returns how many accesses were dropped.
    u64 touch(const Access& access, const Clock& clock, const Clock& host, std::vector<Access>& found);
    // Forgets what `clock` does not cover.
    void keep_covered(const Clock& clock);
    template <class Visit>
    void each(Visit&& visit) const {
        for (const Cell& cell : cells_)
            for (const Access& access : cell.seen) visit(access);
    }

  private:
    std::vector<Cell> cells_;

    std::size_t first_cell(u64 at) const { return cells_.size() == 1 ? 0 : search(at); }
    std::size_t search(u64 at) const;
    u64 make_room(std::size_t index, const Clock& host);
    bool split(std::size_t index);
    void merge(std::size_t first, std::size_t last, const Access& access);
};

}  // namespace check
