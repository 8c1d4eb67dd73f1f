// Origins of each register, and each slot of the thread's own memory, at a place in the code.
#pragma once

#include "listing.hpp"
#include "origins.hpp"

#include <bitset>

namespace check::machine {

// The distance of R1 from its place at the beginning of the kernel.
struct Stack {
    i64 distance = 0;
    bool is_known = true;
};

// A value that was written under a guard is there where the guard holds; where it does not hold, `other` is there.
struct Guarded {
    Predicate guard;
    Origin other;
    bool is_forked = false;  // behind a branch: there may be reasons why it is one of the two
};

// Slots of the stack have the cells from `kCells` on.
struct State {
    std::vector<Origin> cells = std::vector<Origin>(kCells, 0);
    std::unordered_map<Cell, Guarded> guarded;
    Stack stack;

    Origin& at(Cell cell);
    void copy(const State& from, Cell cell);
};

using Cells = std::bitset<kCells>;

// Joins `from` into these cells and all slots of `into`: they may be as they are in `from` as well. True if that is
// new.
bool join(State& into, const State& from, const std::vector<Cell>& cells, Origins& origins);

class Registers {
  public:
    Registers(Origins& origins, const State& begin) : origins_(origins), state_(begin) {}

    Origin read(Cell cell, Predicate guard);
    void write(Cell cell, Origin origin, Predicate guard);
    void forget(u32 predicates);  // they get other values, by the bits of their numbers
    void assume(Predicate guard);  // it is true from here on
    Stack& stack() { return state_.stack; }
    const State& state() const { return state_; }
    // Behind a branch it may be certain which of several ways has led here.
    void fork();

    // Cells whose value from the beginning is read; cells that are written; and cells that are certainly written.
    const Cells& read_first() const { return read_first_; }
    const Cells& written() const { return written_; }
    const Cells& overwritten() const { return overwritten_; }

  private:
    Origins& origins_;
    State state_;
    Cells read_first_, written_, overwritten_;
};

}  // namespace check::machine
