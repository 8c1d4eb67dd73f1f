// Following words of the parameters through machine code: see machine_code.hpp.
//
// The origins of each register are followed along all paths, until nothing new comes of it (registers.hpp, steps.hpp).
// Then each access is judged by the origins of its address (evidence.hpp). A path that cannot be followed leads to code
// that seems to be unreachable: if such code goes through an address, nothing is claimed.
#include "machine_code.hpp"

#include "lives.hpp"
#include "numbers.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace check::machine {

namespace {

constexpr unsigned kMostVisits = 200;  // of each block, on average

class Flow {
  public:
    Flow(const std::vector<Instruction>& code, const std::vector<Block>& blocks, const Layout& layout)
        : code_(code),
          blocks_(blocks),
          steps_(origins_, layout),
          functions_(functions_in(blocks)),
          lives_(lives_in(code, blocks, functions_, origins_, steps_)),
          begins_(blocks.size()),
          reached_(blocks.size()) {}
    bool settles();
    void collect(Evidence& evidence);
    const Origins& origins() const { return origins_; }

  private:
    const std::vector<Instruction>& code_;
    const std::vector<Block>& blocks_;
    Origins origins_;
    Steps steps_;
    std::map<u32, Function> functions_;
    Lives lives_;
    std::vector<State> begins_;
    std::vector<bool> reached_;
    std::map<u32, State> ends_;  // of functions that have returned
    std::set<u32> waiting_;

    Registers end_of(u32 number, Evidence* evidence);
    void visit(u32 number);
    void reach(u32 number, const State& state);
    void call(u32 number, const State& state);
    void return_from(u32 number, const State& state);
    State behind_call(u32 function, const State& before);
    bool leaves_nothing_out() const;
};

Registers Flow::end_of(u32 number, Evidence* evidence) {
    const Block& block = blocks_[number];
    Registers registers(origins_, begins_[number]);
    for (u32 i = block.begin; i < block.end; i++) steps_.follow(code_[i], registers, evidence);
    if (block.calls_others) steps_.call_others(registers, evidence);
    if (block.next.size() > 1 || code_[block.end - 1].is_conditional()) registers.fork();
    return registers;
}

void Flow::reach(u32 number, const State& state) {
    bool changed = !reached_[number];
    State& begin = begins_[number];
    if (changed) {
        reached_[number] = true;
        for (Cell cell : lives_.cells[number]) begin.copy(state, cell);
        for (Cell cell = kCells; cell < state.cells.size(); cell++) begin.copy(state, cell);
        begin.stack = state.stack;
    } else {
        changed = join(begin, state, lives_.cells[number], origins_);
    }
    if (changed) waiting_.insert(number);
}

// Cells that the function does not write keep their values. Values that it writes may come from any of its calls.
State Flow::behind_call(u32 function, const State& before) {
    State state = before;
    const State& end = ends_[function];
    const Cells& written = lives_.written[function];
    bool is_one = functions_[function].callers.size() == 1;
    for (Cell i = 0; i < end.cells.size(); i++) {
        if (i >= kCells)
            state.at(i) = origins_.mixed(state.at(i), end.cells[i]);
        else if (written[i])
            state.cells[i] = is_one ? end.cells[i] : origins_.maybe(end.cells[i]);
    }
    return state;
}

void Flow::call(u32 number, const State& state) {
    const Block& block = blocks_[number];
    reach(block.function, state);
    for (u32 next : block.next) {
        if (ends_.count(block.function)) reach(next, behind_call(block.function, state));
        if (code_[block.end - 1].is_conditional()) reach(next, state);
    }
}

void Flow::return_from(u32 number, const State& state) {
    static const std::vector<Cell> all = [] {
        std::vector<Cell> cells(kCells);
        std::iota(cells.begin(), cells.end(), 0);
        return cells;
    }();
    for (auto& [first, function] : functions_) {
        if (std::find(function.body.begin(), function.body.end(), number) == function.body.end()) continue;
        auto end = ends_.find(first);
        if (end == ends_.end())
            ends_[first] = state;
        else if (!join(end->second, state, all, origins_))
            continue;
        for (u32 caller : function.callers)
            if (reached_[caller]) waiting_.insert(caller);
    }
}

void Flow::visit(u32 number) {
    const Block& block = blocks_[number];
    Registers registers = end_of(number, nullptr);
    if (block.function != kNoBlock || block.returns) registers.forget(~0u);
    if (block.returns) return_from(number, registers.state());
    if (block.function != kNoBlock) return call(number, registers.state());
    const Instruction& last = code_[block.end - 1];
    // Other instructions depend on more than the guard, or on less.
    bool is_plain = !last.has_predicates && (last.name == "BRA" || last.name == "EXIT");
    for (u32 next : block.next) {
        Registers there = registers;
        if (is_plain && last.guard) there.assume(blocks_[next].begin == block.end ? -last.guard : last.guard);
        reach(next, there.state());
    }
}

// True if code that seems to be unreachable has no access in it.
bool Flow::leaves_nothing_out() const {
    for (std::size_t i = 0; i < blocks_.size(); i++)
        for (u32 j = blocks_[i].begin; j < blocks_[i].end && !reached_[i]; j++)
            if (code_[j].effect <= Effect::ToLocal) return false;
    return true;
}

bool Flow::settles() {
    reach(0, State());
    std::size_t visits = 0;
    Origin stored = steps_.stored();
    while (!waiting_.empty()) {
        u32 next = *waiting_.begin();
        waiting_.erase(waiting_.begin());
        visit(next);
        if (++visits > kMostVisits * blocks_.size()) return false;
        // A value that was stored somewhere may be loaded anywhere.
        if (!waiting_.empty() || stored == steps_.stored()) continue;
        stored = steps_.stored();
        for (u32 i = 0; i < blocks_.size(); i++)
            if (reached_[i]) waiting_.insert(i);
    }
    return steps_.is_known() && leaves_nothing_out();
}

void Flow::collect(Evidence& evidence) {
    for (u32 i = 0; i < blocks_.size(); i++)
        if (reached_[i]) end_of(i, &evidence);
    if (steps_.has_local_addresses()) evidence.leave(steps_.stored());
}

}  // namespace

}  // namespace check::machine

namespace check {

CodeFacts facts_of_code(std::string_view listing, const std::vector<Parameter>& parameters, u32 base,
                        const std::vector<Jump>& jumps) {
    CodeFacts facts;
    std::vector<machine::Instruction> code = machine::instructions_in(listing);
    std::vector<machine::Block> blocks = machine::blocks_of(code, jumps);
    const machine::Layout* layout = machine::layout_of(base);
    if (blocks.empty() || !layout) return facts;
    machine::Flow flow(code, blocks, *layout);
    if (!flow.settles()) return facts;
    machine::Evidence evidence(flow.origins(), parameters);
    flow.collect(evidence);
    evidence.add_to(&facts);
    facts.numbers = machine::numbers_of(facts.pointers, code, blocks, *layout);
    facts.followed = true;
    return facts;
}

}  // namespace check
