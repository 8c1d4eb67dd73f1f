// Following numbers through machine code: see numbers.hpp.
#include "numbers.hpp"

#include <algorithm>
#include <set>

namespace check::machine {

namespace {

constexpr ParameterPlaces kAnywhere = ~ParameterPlaces(0);
constexpr u32 kPredicates = 17;        // by their numbers
constexpr unsigned kMostRounds = 100;  // visits of each block, on average
constexpr unsigned kMatrix = 4;        // registers of an operand

// The places that each register and each predicate was computed from.
struct Values {
    std::array<ParameterPlaces, kCells> cells{};
    std::array<ParameterPlaces, kPredicates> predicates{};
    std::array<ParameterPlaces, kPredicates> ends{};  // of these, those that decide whether the first thread ends

    // True if that is new.
    bool join(const Values& other) {
        ParameterPlaces added = 0;
        for (std::size_t i = 0; i < cells.size(); i++) added |= other.cells[i] & ~cells[i], cells[i] |= other.cells[i];
        for (std::size_t i = 0; i < predicates.size(); i++)
            added |= other.predicates[i] & ~predicates[i], predicates[i] |= other.predicates[i];
        for (std::size_t i = 0; i < ends.size(); i++) added |= other.ends[i] & ~ends[i], ends[i] |= other.ends[i];
        return added != 0;
    }
};

ParameterPlaces of_predicates(const std::array<ParameterPlaces, kPredicates>& predicates, u32 which) {
    ParameterPlaces all = 0;
    for (u32 i = 1; i < kPredicates; i++)
        if (which >> i & 1) all |= predicates[i];
    return all;
}

// All operands, or those behind the result.
enum class Operands : u8 { All, Sources };

// What is loaded afterwards depends on the value, and on where it was put or taken from.
bool stores(Effect effect) { return (effect > Effect::Load && effect <= Effect::OnChip) || effect == Effect::ToLocal; }

bool is_access(Effect effect) { return effect >= Effect::Load && effect <= Effect::Tensor; }

// True for instructions into whose results the bits of predicates go. In others a predicate chooses.
bool takes_predicates(const Instruction& instruction) {
    return instruction.effect == Effect::Bits || instruction.effect == Effect::Value || has(instruction.name, "X");
}

// The predicates that an instruction reads, or may read.
u32 read_predicates(const Instruction& instruction) {
    if (!~instruction.changed_predicates && takes_predicates(instruction)) return ~0u;  // PR is all of them
    bool has_results = instruction.effect < Effect::Bits || instruction.name.find("SETP") != instruction.name.npos;
    return has_results && !instruction.operands.empty() ? instruction.last_predicates : instruction.named_predicates;
}

bool is_matrix(const Instruction& instruction) {
    return instruction.effect == Effect::Value && instruction.name.find("MMA") != instruction.name.npos;
}

class NumberFlow {
  public:
    NumberFlow(const std::vector<Instruction>& code, const std::vector<Block>& blocks, const Layout& layout)
        : code_(code), blocks_(blocks), layout_(layout), functions_(functions_in(blocks)), begins_(blocks.size()) {
        find_written();
    }
    bool settles();
    LaunchNumbers of(const Pointer& pointer) const;

  private:
    const std::vector<Instruction>& code_;
    const std::vector<Block>& blocks_;
    const Layout& layout_;
    std::map<u32, Function> functions_;
    std::vector<Values> begins_;
    std::vector<std::vector<Cell>> written_;  // by each instruction
    std::set<u32> waiting_;
    ParameterPlaces stored_ = 0;   // of all that was stored anywhere, and may be loaded anywhere
    ParameterPlaces deciding_ = 0;
    std::set<ParameterPlaces> addresses_;

    void find_written();
    ParameterPlaces constant(const Operand& operand, u32 half) const;
    ParameterPlaces source(const Values& values, const Operand& operand, unsigned width) const;
    ParameterPlaces address(const Values& values, const Operand& operand) const;
    ParameterPlaces sources(const Values& values, const Instruction& instruction, Operands which) const;
    void write(Values& values, std::size_t number, ParameterPlaces places) const;
    void write_constant(Values& values, std::size_t number) const;
    void follow(Values& values, std::size_t number);
    void decide(const Values& values, const Instruction& instruction);
    void compare(Values& values, const Instruction& instruction, ParameterPlaces places) const;
    void visit(u32 block);
    std::vector<u32> next_of(u32 block) const;
};

// The registers that Steps says an instruction writes.
void NumberFlow::find_written() {
    Origins origins;
    Steps steps(origins, layout_);
    const State empty;
    for (const Instruction& instruction : code_) {
        Registers registers(origins, empty);
        steps.follow(instruction, registers, nullptr);
        std::vector<Cell> cells;
        for (Cell cell = 0; cell < kCells; cell++)
            if (registers.written()[cell]) cells.push_back(cell);
        written_.push_back(cells);
    }
}

ParameterPlaces NumberFlow::constant(const Operand& operand, u32 half) const {
    i64 place = operand.value + 4 * i64(half), offset = place - layout_.base;
    if (operand.bank) return 0;  // but for its index
    if (operand.cells[0] != kNoCell || (place >= layout_.place && place < layout_.place + 8)) return kAnywhere;
    return offset >= 0 && offset < i64(kLargestParameters) ? place_in_parameters(u32(offset)) : 0;
}

ParameterPlaces NumberFlow::source(const Values& values, const Operand& operand, unsigned width) const {
    ParameterPlaces all = 0;
    for (unsigned i = 0; i < width && operand.form == Form::Constant; i++) all |= constant(operand, i);
    for (Cell cell : operand.cells)
        for (unsigned i = 0; i < width && cell != kNoCell; i++) all |= values.cells[std::min(cell + i, kCells - 1)];
    return all;
}

ParameterPlaces NumberFlow::address(const Values& values, const Operand& operand) const {
    ParameterPlaces all = 0;
    for (Cell cell : operand.cells) {
        if (cell == kNoCell) continue;
        all |= values.cells[cell];
        if (cell != operand.cells[0] || !operand.is_narrow) all |= values.cells[std::min(cell + 1, kCells - 1)];
    }
    return all;
}

ParameterPlaces NumberFlow::sources(const Values& values, const Instruction& instruction, Operands which) const {
    ParameterPlaces all = instruction.effect == Effect::Unknown ? kAnywhere : 0;
    bool is_wide = instruction.name.find("64") != instruction.name.npos || instruction.name.substr(0, 1) == "D";
    bool has_wide_sum = has(instruction.name, "WIDE") || has(instruction.name, "HI");
    for (std::size_t i = which == Operands::Sources ? 1 : 0; i < instruction.operands.size(); i++) {
        const Operand& operand = instruction.operands[i];
        unsigned width = is_matrix(instruction) ? kMatrix : is_wide ? 2 : width_in_memory(instruction.name);
        if (instruction.effect == Effect::Shift) width = 1;  // SHF.L.U64 has the halves as two operands
        if (instruction.effect == Effect::Multiply && has_wide_sum && i == 3) width = 2;
        all |= operand.form != Form::Address   ? source(values, operand, width)
               : is_access(instruction.effect) ? address(values, operand)
                                               : source(values, operand, 1);
    }
    if (takes_predicates(instruction)) all |= of_predicates(values.predicates, read_predicates(instruction));
    return all;
}

void NumberFlow::write(Values& values, std::size_t number, ParameterPlaces places) const {
    const Instruction& instruction = code_[number];
    for (Cell cell : written_[number]) values.cells[cell] = places | (instruction.guard ? values.cells[cell] : 0);
    for (unsigned i = 0; i < kMatrix && is_matrix(instruction) && !instruction.operands.empty(); i++)
        if (instruction.operands[0].form == Form::Register)
            values.cells[std::min(instruction.operands[0].cells[0] + i, kCells - 1)] |= places;
    compare(values, instruction, places);
}

// A comparison that is combined with predicates as they are.
bool is_plain_comparison(const Instruction& instruction) {
    bool is_of_numbers = instruction.name.substr(0, 5) == "ISETP" || instruction.name.substr(0, 6) == "UISETP";
    u32 changed = instruction.changed_predicates & ~1u;
    bool has_one = !(changed & (changed - 1));  // a second one is the opposite
    return is_of_numbers && has_one && !instruction.inverts_predicates && !has(instruction.name, "XOR") &&
           instruction.operands.size() == 2;
}

// True if it says that an index is past a bound. The first thread's is not, whatever the bound is.
bool is_past_bound(const Instruction& instruction, ParameterPlaces left, ParameterPlaces right) {
    auto is_index = [&](const Operand& operand, ParameterPlaces places) {
        return operand.form == Form::Register && !places;
    };
    if (has(instruction.name, "GE") || has(instruction.name, "GT")) return is_index(instruction.operands[0], left);
    if (has(instruction.name, "LE") || has(instruction.name, "LT")) return is_index(instruction.operands[1], right);
    return false;
}

// Gives predicates their values. They may be combined with others.
void NumberFlow::compare(Values& values, const Instruction& instruction, ParameterPlaces places) const {
    u32 changed = instruction.changed_predicates, read = read_predicates(instruction);
    // Of some results the place is not known: VOTE.ANY R0, P0, P1.
    bool may_change_all = instruction.effect == Effect::Value || instruction.effect == Effect::Unknown;
    ParameterPlaces all = places | of_predicates(values.predicates, read), end = all;
    const std::vector<Operand>& operands = instruction.operands;
    if (is_plain_comparison(instruction)) {
        bool is_past = is_past_bound(instruction, source(values, operands[0], 1), source(values, operands[1], 1));
        end = (is_past ? 0 : places) | of_predicates(values.ends, read);
    }
    for (u32 i = 1; i < kPredicates; i++) {
        if (!((changed | (may_change_all ? instruction.named_predicates : 0)) >> i & 1)) continue;
        bool stays = instruction.guard || !(changed >> i & 1);
        values.predicates[i] = all | (stays ? values.predicates[i] : 0);
        values.ends[i] = end | (stays ? values.ends[i] : 0);
    }
}

// Each register has the places of its own four bytes.
void NumberFlow::write_constant(Values& values, std::size_t number) const {
    const Instruction& instruction = code_[number];
    if (instruction.operands.size() < 2) return write(values, number, kAnywhere);
    const Operand& operand = instruction.operands[1];
    ParameterPlaces index = 0;
    for (Cell cell : operand.cells)
        if (cell != kNoCell) index |= values.cells[cell];
    u32 half = 0;
    for (Cell cell : written_[number])
        values.cells[cell] = index | constant(operand, half++) | (instruction.guard ? values.cells[cell] : 0);
}

// Predicates that choose: the guard of a result, of an access or of a branch, and a predicate among the operands. A
// comparison only makes predicates of others. A switch goes to where a register says.
void NumberFlow::decide(const Values& values, const Instruction& instruction) {
    u32 guard = 1u << std::abs(instruction.guard);
    bool is_end = instruction.effect == Effect::Exit && instruction.guard > 0;
    deciding_ |= of_predicates(is_end ? values.ends : values.predicates, guard);
    if (instruction.effect == Effect::IndirectBranch) deciding_ |= sources(values, instruction, Operands::All);
    if (instruction.effect != Effect::Nothing && !takes_predicates(instruction))
        deciding_ |= of_predicates(values.predicates, read_predicates(instruction));
}

void NumberFlow::follow(Values& values, std::size_t number) {
    const Instruction& instruction = code_[number];
    decide(values, instruction);
    if (instruction.effect == Effect::Constant) return write_constant(values, number);
    ParameterPlaces all = sources(values, instruction, written_[number].empty() ? Operands::All : Operands::Sources);
    bool loads =
        instruction.effect == Effect::FromLocal || instruction.effect == Effect::OnChip || has(instruction.name, "B2R");
    if (is_access(instruction.effect)) {
        for (const Operand& operand : instruction.operands)
            if (operand.form == Form::Address) addresses_.insert(address(values, operand));
        loads = true;
    }
    if (instruction.effect == Effect::Unknown) addresses_.insert(kAnywhere);
    if (stores(instruction.effect)) stored_ |= sources(values, instruction, Operands::All);
    if (instruction.effect == Effect::Tensor) stored_ = kAnywhere;  // its coordinates are not followed
    if (has(instruction.name, "BAR")) stored_ |= of_predicates(values.predicates, instruction.named_predicates);
    write(values, number, all | (loads ? stored_ : 0));
}

// Values go along with a call, and come back with every return of the function.
std::vector<u32> NumberFlow::next_of(u32 number) const {
    const Block& block = blocks_[number];
    std::vector<u32> next = block.next;
    if (block.function != kNoBlock) next.push_back(block.function);
    for (auto& [first, function] : functions_) {
        if (!block.returns || std::find(function.body.begin(), function.body.end(), number) == function.body.end())
            continue;
        for (u32 caller : function.callers)
            next.insert(next.end(), blocks_[caller].next.begin(), blocks_[caller].next.end());
    }
    return next;
}

void NumberFlow::visit(u32 number) {
    Values values = begins_[number];
    for (u32 i = blocks_[number].begin; i < blocks_[number].end; i++) follow(values, i);
    for (u32 next : next_of(number))
        if (begins_[next].join(values)) waiting_.insert(next);
}

// False: it takes too long, or code that is not here may do anything.
bool NumberFlow::settles() {
    for (const Block& block : blocks_)
        if (block.calls_others) return false;
    std::size_t visits = 0;
    for (ParameterPlaces before = kAnywhere; before != stored_;) {
        before = stored_;
        for (u32 i = 0; i < blocks_.size(); i++) waiting_.insert(i);
        while (!waiting_.empty()) {
            u32 next = *waiting_.begin();
            waiting_.erase(waiting_.begin());
            visit(next);
            if (++visits > kMostRounds * blocks_.size()) return false;
        }
    }
    return true;
}

LaunchNumbers NumberFlow::of(const Pointer& pointer) const {
    ParameterPlaces own = place_in_parameters(pointer.offset) | place_in_parameters(pointer.offset + 4);
    LaunchNumbers numbers{0, deciding_};
    for (ParameterPlaces places : addresses_)
        if (places & own) numbers.added |= places;
    if (!(own & place_in_parameters(kLargestParameters))) numbers.added &= ~own;
    return numbers;
}

}  // namespace

std::vector<LaunchNumbers> numbers_of(const std::vector<Pointer>& pointers, const std::vector<Instruction>& code,
                                      const std::vector<Block>& blocks, const Layout& layout) {
    NumberFlow flow(code, blocks, layout);
    std::vector<LaunchNumbers> all(pointers.size());
    if (!flow.settles()) return all;
    for (std::size_t i = 0; i < pointers.size(); i++) all[i] = flow.of(pointers[i]);
    return all;
}

}  // namespace check::machine
