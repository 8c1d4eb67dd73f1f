// Reading and writing registers, under guards too: see registers.hpp.
#include "registers.hpp"

#include <cstdlib>

namespace check::machine {

namespace {

// The origins where the guard holds, and where it does not.
struct Both {
    Origin there, other;
    bool is_forked = false;
};

// The origin where it is not known whether the guard holds.
Origin merged(Origin there, const Guarded& guarded, Origins& origins) {
    Origin either = origins.either(there, guarded.other);
    return guarded.is_forked ? origins.forked(either) : either;
}

Both both_in(const State& state, Cell cell, Predicate guard, Origins& origins) {
    Origin value = cell < state.cells.size() ? state.cells[cell] : 0;
    auto found = state.guarded.find(cell);
    if (found == state.guarded.end()) return {value, value};
    const Guarded& guarded = found->second;
    if (guarded.guard == guard) return {value, guarded.other, guarded.is_forked};
    if (guarded.guard == -guard) return {guarded.other, value, guarded.is_forked};
    value = merged(value, guarded, origins);
    return {value, value};
}

Predicate guard_of(const State& state, Cell cell) {
    auto found = state.guarded.find(cell);
    return found == state.guarded.end() ? 0 : found->second.guard;
}

bool set(State& state, Cell cell, Predicate guard, Both both, Origins& origins) {
    Both before = both_in(state, cell, guard, origins);
    Predicate guard_before = guard_of(state, cell);
    if (both.there == both.other) guard = 0, both.is_forked = false;
    if (guard)
        state.guarded[cell] = {guard, both.other, both.is_forked};
    else
        state.guarded.erase(cell);
    state.at(cell) = both.there;
    return guard_before != guard || before.there != both.there || before.other != both.other ||
           before.is_forked != both.is_forked;
}

}  // namespace

Origin& State::at(Cell cell) {
    if (cell >= cells.size()) cells.resize(cell + 1, 0);
    return cells[cell];
}

void State::copy(const State& from, Cell cell) {
    at(cell) = from.cells[cell];
    auto found = from.guarded.find(cell);
    if (found != from.guarded.end()) guarded[cell] = found->second;
}

bool join(State& into, const State& from, const std::vector<Cell>& cells, Origins& origins) {
    bool changed = false;
    auto join_cell = [&](Cell cell) {
        Predicate ours = guard_of(into, cell), theirs = guard_of(from, cell);
        if (!ours && !theirs && cell < into.cells.size() && cell < from.cells.size() &&
            into.cells[cell] == from.cells[cell])
            return;
        Predicate guard = ours && theirs && std::abs(ours) != std::abs(theirs) ? 0 : ours ? ours : theirs;
        Both a = both_in(into, cell, guard, origins), b = both_in(from, cell, guard, origins);
        Both both = {origins.either(a.there, b.there), origins.either(a.other, b.other), a.is_forked || b.is_forked};
        changed |= set(into, cell, guard, both, origins);
    };
    for (Cell cell : cells) join_cell(cell);
    for (Cell cell = kCells; cell < into.cells.size() || cell < from.cells.size(); cell++) join_cell(cell);
    bool is_same = from.stack.is_known && into.stack.distance == from.stack.distance;
    if (into.stack.is_known && !is_same) {
        into.stack.is_known = false;
        changed = true;
    }
    return changed;
}

Origin Registers::read(Cell cell, Predicate guard) {
    if (cell == kNoCell) return 0;
    if (cell < kCells && !overwritten_[cell]) read_first_.set(cell);
    auto found = state_.guarded.find(cell);
    if (guard || found == state_.guarded.end()) return both_in(state_, cell, guard, origins_).there;
    return merged(state_.at(cell), found->second, origins_);
}

void Registers::write(Cell cell, Origin origin, Predicate guard) {
    if (cell == kNoCell) return;
    if (cell < kCells) {
        written_.set(cell);
        if (!guard) overwritten_.set(cell);
    }
    Both both = both_in(state_, cell, guard, origins_);
    both.there = origin;
    if (!guard) both.other = origin;
    set(state_, cell, guard, both, origins_);
}

void Registers::forget(u32 predicates) {
    for (auto entry = state_.guarded.begin(); entry != state_.guarded.end();) {
        Guarded guarded = entry->second;
        if (!(predicates >> std::abs(guarded.guard) & 1)) {
            ++entry;
            continue;
        }
        Origin& value = state_.at(entry->first);
        value = merged(value, guarded, origins_);
        entry = state_.guarded.erase(entry);
    }
}

void Registers::assume(Predicate guard) {
    for (auto entry = state_.guarded.begin(); entry != state_.guarded.end();) {
        if (std::abs(entry->second.guard) != std::abs(guard)) {
            ++entry;
            continue;
        }
        if (entry->second.guard != guard) state_.at(entry->first) = entry->second.other;
        entry = state_.guarded.erase(entry);
    }
}

void Registers::fork() {
    for (Origin& origin : state_.cells)
        if (origin) origin = origins_.forked(origin);
    for (auto& entry : state_.guarded) entry.second = {entry.second.guard, origins_.forked(entry.second.other), true};
}

}  // namespace check::machine
