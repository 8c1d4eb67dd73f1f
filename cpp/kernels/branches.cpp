// Branches, calls and the ends of paths: see branches.hpp.
#include "branches.hpp"

#include <algorithm>
#include <set>

namespace check::machine {

namespace {

class Paths {
  public:
    Paths(const std::vector<Instruction>& code, const std::vector<Jump>& jumps) : code_(code), jumps_(jumps) {}
    std::vector<Block> run();

  private:
    const std::vector<Instruction>& code_;
    const std::vector<Jump>& jumps_;
    std::map<Cell, std::set<u32>> meetings_;  // where threads go on together, by the barrier: instructions
    bool is_known_ = true;

    // The instruction at a place, by its number; `kNoBlock` where there is none.
    u32 instruction_at(u64 place) const;
    u32 target_of(const Instruction& instruction);
    std::vector<u32> next_of(u32 number);
    std::vector<u32> jump_from(const Instruction& instruction);
    std::vector<u32> meeting_behind(u32 number);
    u32 function_called(u32 number);
};

bool ends_block(Effect effect) {
    switch (effect) {
        case Effect::Branch:
        case Effect::IndirectBranch:
        case Effect::Call:
        case Effect::Return:
        case Effect::Exit:
        case Effect::Synchronize:
        case Effect::Collective: return true;
        default: return false;
    }
}

u32 Paths::instruction_at(u64 place) const {
    auto found = std::lower_bound(code_.begin(), code_.end(), place,
                                  [](const Instruction& one, u64 wanted) { return one.place < wanted; });
    return found != code_.end() && found->place == place ? u32(found - code_.begin()) : kNoBlock;
}

// The last operand of a branch is the place that it goes to.
u32 Paths::target_of(const Instruction& instruction) {
    u32 target = kNoBlock;
    if (!instruction.operands.empty() && instruction.operands.back().form == Form::Number)
        target = instruction_at(u64(instruction.operands.back().value));
    is_known_ &= target != kNoBlock;
    return target;
}

std::vector<u32> Paths::jump_from(const Instruction& instruction) {
    std::vector<u32> targets;
    for (const Jump& jump : jumps_) {
        if (jump.place != instruction.place) continue;
        for (u32 place : jump.targets) {
            targets.push_back(instruction_at(place));
            is_known_ &= targets.back() != kNoBlock;
        }
    }
    is_known_ &= !targets.empty();
    return targets;
}

// As a rule threads go on behind the BSYNC, as its BSSY says. Otherwise any BSSY of the same barrier may be the one
// that the BSYNC belongs to.
std::vector<u32> Paths::meeting_behind(u32 number) {
    const std::vector<Operand>& operands = code_[number].operands;
    std::vector<u32> next = {number + 1};
    if (operands.empty()) return next;
    const std::set<u32>& meetings = meetings_[operands[0].cells[0]];
    if (!meetings.count(number + 1)) next.insert(next.end(), meetings.begin(), meetings.end());
    return next;
}

// Code that is not here is called by its address, or has the place of the next instruction until it is linked.
u32 Paths::function_called(u32 number) {
    const Instruction& call = code_[number];
    if (!has(call.name, "REL") || call.operands.empty() || call.operands.back().form != Form::Number) return kNoBlock;
    u32 target = instruction_at(u64(call.operands.back().value));
    return target == number + 1 ? kNoBlock : target;
}

std::vector<u32> Paths::next_of(u32 number) {
    const Instruction& instruction = code_[number];
    std::vector<u32> next;
    switch (instruction.effect) {
        case Effect::Branch: next = {target_of(instruction)}; break;
        case Effect::IndirectBranch: next = jump_from(instruction); break;
        case Effect::Return:
        case Effect::Exit: break;
        case Effect::Synchronize: return meeting_behind(number);
        case Effect::Collective: return {number + 1, target_of(instruction)};
        default: return {number + 1};
    }
    bool goes_on = instruction.is_conditional() || has(instruction.name, "DIV") || has(instruction.name, "CONV");
    if (goes_on) next.push_back(number + 1);
    return next;
}

std::vector<Block> Paths::run() {
    std::vector<Block> blocks;
    u32 count = u32(code_.size());
    for (const Instruction& instruction : code_)
        if (instruction.effect == Effect::Reconverge && instruction.operands.size() > 1)
            meetings_[instruction.operands[0].cells[0]].insert(target_of(instruction));
    std::vector<bool> begins(count + 1, false);
    begins[0] = true;
    std::map<u32, std::vector<u32>> next;  // of the instructions that end a block
    for (u32 i = 0; i < count && is_known_; i++) {
        if (!ends_block(code_[i].effect)) continue;
        begins[i + 1] = true;
        for (u32 target : next[i] = next_of(i))
            if (target < count) begins[target] = true;
        u32 function = function_called(i);
        if (code_[i].effect == Effect::Call && function != kNoBlock) begins[function] = true;
    }
    if (!is_known_) return {};
    std::vector<u32> block_at(count + 1, kNoBlock);
    for (u32 i = 0; i < count; i++) {
        if (begins[i]) blocks.push_back({i, i, {}, kNoBlock, false, false});
        block_at[i] = u32(blocks.size()) - 1;
        blocks.back().end = i + 1;
    }
    for (Block& block : blocks) {
        u32 last = block.end - 1;
        Effect effect = code_[last].effect;
        std::vector<u32> targets = ends_block(effect) ? next[last] : std::vector<u32>{block.end};
        for (u32 target : targets)
            if (target < count) block.next.push_back(block_at[target]);
        block.returns = effect == Effect::Return;
        if (effect != Effect::Call) continue;
        u32 function = function_called(last);
        block.calls_others = function == kNoBlock;
        if (!block.calls_others) block.function = block_at[function];
    }
    return blocks;
}

}  // namespace

std::vector<Block> blocks_of(const std::vector<Instruction>& instructions, const std::vector<Jump>& jumps) {
    if (instructions.empty()) return {};
    return Paths(instructions, jumps).run();
}

std::map<u32, Function> functions_in(const std::vector<Block>& blocks) {
    std::map<u32, Function> functions;
    for (u32 i = 0; i < blocks.size(); i++)
        if (blocks[i].function != kNoBlock) functions[blocks[i].function].callers.push_back(i);
    for (auto& [first, function] : functions) {
        std::set<u32> seen = {first};
        function.body = {first};
        for (std::size_t i = 0; i < function.body.size(); i++)
            for (u32 next : blocks[function.body[i]].next)
                if (seen.insert(next).second) function.body.push_back(next);
    }
    return functions;
}

}  // namespace check::machine
