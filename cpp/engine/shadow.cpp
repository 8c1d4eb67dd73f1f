// Lists of accesses: see shadow.hpp.
#include "shadow.hpp"

#include <algorithm>

namespace check {

namespace {

bool same(const Access& a, const Access& b) {
    return a.time.slot == b.time.slot && a.time.number == b.time.number && a.begin == b.begin && a.end == b.end &&
           a.role == b.role && a.anchor == b.anchor;
}

bool contradicts(const Access& earlier, const Access& access, const Clock& clock) {
    return !clock.covers(earlier.time) && overlap(earlier, access) && judge(earlier, access) != Verdict::Fine;
}

}  // namespace

// An access that lies in several cells is met in each.
void Shadow::add_once(std::vector<Access>& found, const Access& access) {
    for (const Access& known : found)
        if (same(known, access)) return;
    found.push_back(access);
}

void Shadow::start(u64 begin, u64 end) {
    cells_.resize(1);
    cells_[0].begin = begin;
    cells_[0].end = end;
    cells_[0].seen.clear();
}

void Shadow::recycle() {
    if (cells_.size() == 1 && cells_.capacity() == 1 && cells_[0].seen.capacity() <= kLongest / 4)
        start(0, 0);
    else
        std::vector<Cell>().swap(cells_);
}

void Shadow::add(const Access& access) {
    for (Cell& cell : cells_)
        if (access.begin < cell.end && cell.begin < access.end) cell.seen.push_back(access);
}

std::size_t Shadow::search(u64 at) const {
    auto after = std::upper_bound(cells_.begin(), cells_.end(), at,
                                  [](u64 address, const Cell& cell) { return address < cell.end; });
    return std::size_t(after - cells_.begin());
}

void Shadow::compare(const Access& access, const Clock& clock, std::vector<Access>& found) const {
    for (std::size_t i = first_cell(access.begin); i < cells_.size() && cells_[i].begin < access.end; i++)
        for (const Access& earlier : cells_[i].seen)
            if (contradicts(earlier, access, clock)) add_once(found, earlier);
}

u64 Shadow::make_room(std::size_t first, std::size_t last, const Clock& host) {
    u64 dropped = 0;
    for (std::size_t i = last + 1; i-- > first;)  // backwards: a split moves the cells behind it
        if (cells_[i].seen.size() > kLongest) dropped += make_room(i, host);
    return dropped;
}

// Joins neighbouring cells in which nothing but this access is left.
void Shadow::merge(std::size_t first, std::size_t last, const Access& access) {
    std::size_t into = first;
    for (std::size_t i = first + 1; i <= last; i++) {
        bool alone = cells_[i].seen.size() == 1 && cells_[into].seen.size() == 1;
        if (alone && access.begin <= cells_[into].begin && cells_[i].end <= access.end) {
            cells_[into].end = cells_[i].end;
        } else if (++into != i) {
            cells_[into] = std::move(cells_[i]);
        }
    }
    cells_.erase(cells_.begin() + std::ptrdiff_t(into) + 1, cells_.begin() + std::ptrdiff_t(last) + 1);
}

u64 Shadow::make_room(std::size_t index, const Clock& host) {
    std::vector<Access>& seen = cells_[index].seen;
    remove_if(seen, [&](const Access& access) { return host.covers(access.time); });
    if (seen.size() <= kLongest || split(index)) return 0;
    std::size_t dropped = seen.size() - kLongest;
    seen.erase(seen.begin(), seen.begin() + std::ptrdiff_t(dropped));
    return dropped;
}

// Splits the cell at the middle one of the addresses where an access begins or ends. False if that leaves most accesses
// in one half.
bool Shadow::split(std::size_t index) {
    if (cells_.size() >= kMost) return false;
    Cell& cell = cells_[index];
    std::vector<u64> edges;
    for (const Access& access : cell.seen)
        for (u64 at : {access.begin, access.end})
            if (cell.begin < at && at < cell.end) edges.push_back(at);
    if (edges.empty()) return false;
    std::nth_element(edges.begin(), edges.begin() + std::ptrdiff_t(edges.size() / 2), edges.end());
    u64 middle = edges[edges.size() / 2];
    Cell low{cell.begin, middle, {}}, high{middle, cell.end, {}};
    for (const Access& access : cell.seen) {
        if (access.begin < middle) low.seen.push_back(access);
        if (access.end > middle) high.seen.push_back(access);
    }
    if (std::max(low.seen.size(), high.seen.size()) > kLongest * 3 / 4) return false;
    cell = std::move(low);
    cells_.insert(cells_.begin() + std::ptrdiff_t(index) + 1, std::move(high));
    return true;
}

void Shadow::keep_covered(const Clock& clock) {
    for (Cell& cell : cells_) remove_if(cell.seen, [&](const Access& access) { return !clock.covers(access.time); });
}

}  // namespace check
