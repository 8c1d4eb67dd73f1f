// The shadow of a block's bytes: a list of accesses that later ones may conflict with.
//
// A new access is compared with the whole list, and removes the accesses that it comes after and stands for. It removes
// no access that it contradicts, so that one mistake does not hide the next. A long list (of a pool whose pieces are
// not known) is split between two addresses, so that each cell of the shadow has a short list. The lists are bounded,
// and dropped accesses are counted.
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

    // Begins a new life of these bytes: nothing was done to them yet.
    void start(u64 begin, u64 end);
    void clear() { cells_.clear(); }
    // Clears the shadow for another block: the room of a short list is kept.
    void recycle();
    void add(const Access& access);  // without a comparison
    template <class Change>
    void each(Change&& change) {
        for (Cell& cell : cells_)
            for (Access& access : cell.seen) change(access);
    }

    template <class Test>
    void forget_if(Test&& test) {
        for (Cell& cell : cells_) check::remove_if(cell.seen, test);
    }

    // Adds to `found` the accesses that contradict this one, and that `clock` does not cover. Each once.
    void compare(const Access& access, const Clock& clock, std::vector<Access>& found) const;
    // The same, and remembers the access. Calls replaced(access) for those that it stands for. Accesses that `host`
    // covers are before everything that comes later: where room is short they go first. Returns how many were dropped.
    template <class Visit>
    u64 touch(const Access& access, const Clock& clock, const Clock& host, std::vector<Access>& found,
              Visit&& replaced) {
        std::size_t first = first_cell(access.begin), last = first;
        bool full = false;
        for (std::size_t i = first; i < cells_.size() && cells_[i].begin < access.end; last = i++) {
            touch_cell(cells_[i], access, clock, found, replaced);
            full |= cells_[i].seen.size() > kLongest;
        }
        if (full) return make_room(first, last, host);
        if (first < last) merge(first, last, access);
        return 0;
    }
    // Forgets the accesses that `clock` does not cover.
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
    template <class Visit>
    static void touch_cell(Cell& cell, const Access& access, const Clock& clock, std::vector<Access>& found,
                           Visit& replaced) {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < cell.seen.size(); i++) {
            const Access& earlier = cell.seen[i];
            if (!clock.covers(earlier.time)) {
                if (overlap(earlier, access) && judge(earlier, access) != Verdict::Fine) add_once(found, earlier);
            } else if (stands_for(access, earlier, cell.begin, cell.end)) {
                replaced(earlier);
                continue;
            }
            if (kept != i) cell.seen[kept] = earlier;
            kept++;
        }
        cell.seen.resize(kept);
        cell.seen.push_back(access);
    }
    static void add_once(std::vector<Access>& found, const Access& access);
    u64 make_room(std::size_t first, std::size_t last, const Clock& host);
    u64 make_room(std::size_t index, const Clock& host);
    bool split(std::size_t index);
    void merge(std::size_t first, std::size_t last, const Access& access);
};

}  // namespace check
