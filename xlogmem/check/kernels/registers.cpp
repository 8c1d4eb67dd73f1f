// Reading and writing registers, under guards too: see registers.hpp.
#include "registers.hpp"

#include <cstdlib>

namespace check::machine {

namespace {

// Where the guard holds, and where it does not.
struct Both {
    Origin there, other;
};

Both both_in(const State& state, Cell cell, Predicate guard, Origins& origins) {
    Origin value = cell < state.cells.size() ? state.cells[cell] : 0;
    auto found = state.guarded.find(cell);
    if (found == state.guarded.end()) return {value, value};
    if (found->second.guard == guard) return {value, found->second.other};
    if (found->second.guard == -guard) return {found->second.other, value};
    value = origins.either(value, found->second.other);
    return {value, value};
}

Predicate guard_of(const State& state, Cell cell) {
    auto found = state.guarded.find(cell);
    return found == state.guarded.end() ? 0 : found->second.guard;
}

bool set(State& state, Cell cell, Predicate guard, Both both) {
    Origin& value = state.at(cell);
    Predicate before = guard_of(state, cell);
    Origin other_before = before ? state.guarded[cell].other : value;
    bool is_plain = both.there == both.other || !guard;
    if (is_plain)
        state.guarded.erase(cell);
    else
        state.guarded[cell] = {guard, both.other};
    bool changed = value != both.there || other_before != both.other || before != (is_plain ? 0 : guard);
    value = both.there;
    return changed;
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
        changed |= set(into, cell, guard, {origins.either(a.there, b.there), origins.either(a.other, b.other)});
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
    Both both = both_in(state_, cell, guard, origins_);
    return guard ? both.there : origins_.either(both.there, both.other);
}

void Registers::write(Cell cell, Origin origin, Predicate guard) {
    if (cell == kNoCell) return;
    if (cell < kCells) {
        written_.set(cell);
        if (!guard) overwritten_.set(cell);
    }
    Both both = {origin, origin};
    if (guard) both.other = both_in(state_, cell, guard, origins_).other;
    set(state_, cell, guard, both);
}

void Registers::forget(u32 predicates) {
    for (auto entry = state_.guarded.begin(); entry != state_.guarded.end();) {
        Guarded guarded = entry->second;
        if (!(predicates >> std::abs(guarded.guard) & 1)) {
            ++entry;
            continue;
        }
        Origin& value = state_.at(entry->first);
        value = origins_.either(value, guarded.other);
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
    for (auto& entry : state_.guarded) entry.second.other = origins_.forked(entry.second.other);
}

}  // namespace check::machine
