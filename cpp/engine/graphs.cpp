// Captured work: see graphs.hpp.
#include "graphs.hpp"

#include <map>
#include <set>
#include <tuple>

namespace check {

namespace {

constexpr u64 kPage = u64(1) << 21;

template <class Visit>
void each_page(u64 begin, u64 end, Visit&& visit) {
    for (u64 page = begin / kPage; page * kPage < end; page++) visit(page);
}

}  // namespace

u32 Capture::add_lane(const Clock& after) {
    lanes_.push_back({after, 0});
    return u32(lanes_.size() - 1);
}

Time Capture::tick(u32 lane) {
    Time now{lane, ++lanes_[lane].newest};
    lanes_[lane].clock.set(now);
    return now;
}

bool Capture::is_joined(u32 lane) const {
    for (u32 other = 0; other < lanes_.size(); other++)
        if (!lanes_[lane].clock.covers({other, lanes_[other].newest})) return false;
    return true;
}

Capture::Life& Capture::life(const Block& block) {
    auto made = lives_.try_emplace(block.generation);
    Life& life = made.first->second;
    if (made.second) {
        life.begin = block.begin;
        life.end = block.end;
        life.shadow.start(block.begin, block.end);
        each_page(block.begin, block.end, [&](u64 page) { lives_at_[page].push_back(block.generation); });
    }
    return life;
}

void Capture::allocate(const Block& block, const Access& access) {
    graph_.allocations.push_back({access, block.begin, block.generation, block.piece});
    life(block).allocated = true;
    life(block).shadow.add(access);
}

u64 Capture::touch(const Block& block, const Access& access, u32 lane, std::vector<Access>& found) {
    graph_.accesses.push_back({access, block.begin, block.generation, block.piece});
    return life(block).shadow.touch(access, lanes_[lane].clock, Clock{}, found, [](const Access&) {});
}

void Capture::hand_over(const Block& piece, u32 lane) {
    std::map<std::tuple<u32, u64, u64, Role>, Access> early;  // what was handed over before stands in several lives
    std::set<u64> near;
    each_page(piece.begin, piece.end, [&](u64 page) { near.insert(lives_at_[page].begin(), lives_at_[page].end()); });
    for (u64 generation : near) {
        const Life& earlier = lives_.at(generation);
        if (earlier.begin >= piece.end || piece.begin >= earlier.end) continue;
        earlier.shadow.each([&](const Access& access) {
            if (!lanes_[lane].clock.covers(access.time))
                early.emplace(std::tuple(access.time.slot, access.time.number, access.begin, access.role), access);
        });
    }
    for (const auto& [place, access] : early) life(piece).shadow.add(access);
}

const Access* Capture::freed(const Block& block) const {
    auto known = lives_.find(block.generation);
    return known != lives_.end() && known->second.freed ? &known->second.free : nullptr;
}

void Capture::free(const Block& block, const Access& access, u32 lane, std::vector<Access>& found) {
    Life& known = life(block);
    known.shadow.compare(access, lanes_[lane].clock, found);
    known.freed = true;
    known.free = access;
}

void Capture::keep(const Block& block) {
    auto known = lives_.find(block.generation);
    if (known != lives_.end()) known->second.freed = false;
}

// A launch is one operation: accesses of the graph to the same bytes in the same way are kept once.
std::shared_ptr<const Graph> Capture::finish() {
    auto graph = std::make_shared<Graph>();
    for (const Lane& lane : lanes_) graph->has_work |= lane.newest > 0;
    for (const CapturedAccess& made : graph_.allocations)
        if (!is_own(made.generation)) graph->allocations.push_back(made);
    std::set<std::tuple<u64, u64, u64, u64, u64, Role, bool, bool, bool, bool, bool, u64>> known;
    for (const CapturedAccess& captured : graph_.accesses) {
        const Access& access = captured.access;
        if (is_own(captured.generation)) continue;
        if (known
                .emplace(access.begin, access.end, access.anchor, access.rows.pitch, access.rows.width, access.role,
                         access.maybe_end, access.absent, access.moved, access.unseen, access.may_signal,
                         captured.generation)
                .second)
            graph->accesses.push_back(captured);
    }
    return graph;
}

}  // namespace check
