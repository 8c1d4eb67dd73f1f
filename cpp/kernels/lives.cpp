// Going backwards through the blocks: see lives.hpp.
#include "lives.hpp"

namespace check::machine {

namespace {

struct Use {
    Cells read_first, written, overwritten;
    Cells live;  // where the block begins
};

std::vector<Use> uses_in(const std::vector<Instruction>& code, const std::vector<Block>& blocks, Origins& origins,
                         Steps& steps) {
    std::vector<Use> uses;
    const State empty;
    for (const Block& block : blocks) {
        Registers registers(origins, empty);
        for (u32 i = block.begin; i < block.end; i++) steps.follow(code[i], registers, nullptr);
        if (block.calls_others) steps.call_others(registers, nullptr);
        uses.push_back({registers.read_first(), registers.written(), registers.overwritten(), {}});
    }
    return uses;
}

std::map<u32, Cells> written_by(const std::vector<Block>& blocks, const std::map<u32, Function>& functions,
                                const std::vector<Use>& uses) {
    std::map<u32, Cells> written;
    for (bool changed = true; changed;) {
        changed = false;
        for (auto& [first, function] : functions) {
            Cells cells;
            for (u32 i : function.body) {
                cells |= uses[i].written;
                if (blocks[i].function != kNoBlock) cells |= written[blocks[i].function];
            }
            changed |= cells != written[first];
            written[first] = cells;
        }
    }
    return written;
}

}  // namespace

Lives lives_in(const std::vector<Instruction>& code, const std::vector<Block>& blocks,
               const std::map<u32, Function>& functions, Origins& origins, Steps& steps) {
    std::vector<Use> uses = uses_in(code, blocks, origins, steps);
    Lives lives;
    lives.written = written_by(blocks, functions, uses);
    for (bool changed = true; changed;) {
        changed = false;
        std::vector<Cells> returned(blocks.size());  // what is used of what a function has written, after it returns
        for (auto& [first, function] : functions) {
            Cells wanted;
            for (u32 caller : function.callers)
                for (u32 next : blocks[caller].next) wanted |= uses[next].live;
            for (u32 i : function.body)
                if (blocks[i].returns) returned[i] |= wanted & lives.written[first];
        }
        for (std::size_t i = blocks.size(); i-- > 0;) {
            Cells live = returned[i];
            for (u32 next : blocks[i].next) live |= uses[next].live;
            if (blocks[i].function != kNoBlock) live |= uses[blocks[i].function].live;
            live = uses[i].read_first | (live & ~uses[i].overwritten);
            changed |= live != uses[i].live;
            uses[i].live = live;
        }
    }
    for (const Use& use : uses) {
        lives.cells.emplace_back();
        for (Cell cell = 0; cell < kCells; cell++)
            if (use.live[cell]) lives.cells.back().push_back(cell);
    }
    return lives;
}

}  // namespace check::machine
