// Decoding of PTX for one thread: see thread_code.hpp.
#include "thread_code.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

namespace check::thread {

namespace {

constexpr std::pair<const char*, Op> kOps[] = {{"mov", Op::Move},      {"cvta", Op::Move},     {"cvt", Op::Convert},
                                               {"add", Op::Add},       {"sub", Op::Subtract},  {"div", Op::Divide},
                                               {"rem", Op::Remainder}, {"shl", Op::ShiftLeft}, {"shr", Op::ShiftRight},
                                               {"and", Op::And},       {"or", Op::Or},         {"xor", Op::Xor},
                                               {"not", Op::Not},       {"neg", Op::Negate},    {"abs", Op::Absolute},
                                               {"min", Op::Minimum},   {"max", Op::Maximum},   {"selp", Op::Select},
                                               {"setp", Op::Compare},  {"ld", Op::Load},       {"ldu", Op::Load}};

constexpr std::pair<const char*, Comparison> kComparisons[] = {
    {"eq", Comparison::Equal},        {"ne", Comparison::NotEqual},   {"lt", Comparison::Less},
    {"le", Comparison::LessEqual},    {"gt", Comparison::Greater},    {"ge", Comparison::GreaterEqual},
    {"lo", Comparison::Less},         {"ls", Comparison::LessEqual},  {"hi", Comparison::Greater},
    {"hs", Comparison::GreaterEqual}, {"equ", Comparison::Equal},     {"neu", Comparison::NotEqual},
    {"ltu", Comparison::Less},        {"leu", Comparison::LessEqual}, {"gtu", Comparison::Greater},
    {"geu", Comparison::GreaterEqual}};

template <class Value, std::size_t Count>
Value named(const std::pair<const char*, Value> (&table)[Count], Token name) {
    for (auto& [known, value] : table)
        if (name == known) return value;
    return Value::Unknown;
}

Type type_of(Token word) {
    Type type;
    type.bits = word == "pred" ? 1 : bits_of_type(word);
    type.is_signed = word[0] == 's';
    type.is_float = word[0] == 'f' || word.substr(0, 2) == "bf";
    if (type.is_float && type.bits != 32 && type.bits != 64) type.bits = 0;
    return type.bits <= 64 ? type : Type{};
}

// 0f3F800000, 0d3FF0000000000000
bool is_float_number(Token word, u64* value) {
    bool is_it = word.size() > 2 && word[0] == '0' && std::strchr("fFdD", word[1]);
    if (is_it) *value = std::strtoull(std::string(word.substr(2)).c_str(), nullptr, 16);
    return is_it;
}

bool ends_block(const Instruction& instruction) {
    return instruction.is("bra") || instruction.is("brx") || instruction.is("ret") || instruction.is("exit") ||
           instruction.is("trap");
}

class Decoder {
  public:
    Decoder(const PtxKernel& kernel, const std::vector<Instruction>& instructions)
        : kernel_(kernel), instructions_(instructions) {}
    Code run();

  private:
    const PtxKernel& kernel_;
    const std::vector<Instruction>& instructions_;
    std::unordered_map<Token, u32> registers_;
    Code code_;

    u32 number_of(Token name) { return registers_.emplace(name, u32(registers_.size())).first->second; }
    Operand operand(Token token);
    std::vector<Operand> operands(const std::vector<Token>& tokens);
    Address address(const std::vector<Token>& tokens);
    Step step(const Instruction& instruction);
    Op op_of(const Instruction& instruction);
    void add_types(const Instruction& instruction, Step& step);
    void add_accesses(const Instruction& instruction, Step& step);
    u32 target_of(const Instruction& instruction);
    void add_blocks();
    void drop_numbers();
    Block block(u32 begin, u32 end, const std::vector<u32>& block_at);
};

Operand Decoder::operand(Token token) {
    using Form = Operand::Form;
    u64 number = 0;
    if (is_number(token, &number) || is_float_number(token, &number)) return {Form::Number, number};
    Token name = token.substr(0, token.find('.'));
    for (const char* index :
         {"%tid", "%ctaid", "%laneid", "%warpid", "%clusterid", "%cluster_ctaid", "%cluster_ctarank"})
        if (name == index) return {Form::Number, 0};
    if (name == "%nctaid" || name == "%ntid") {
        u64 axis = u64(token.back() - 'x');
        return axis < 3 ? Operand{name == "%ntid" ? Form::BlockSize : Form::GridSize, axis} : Operand{};
    }
    for (const PtxParameter& parameter : kernel_.parameters)
        if (parameter.name == token) return {Form::Parameters, parameter.place.offset};
    return {Form::Register, number_of(token)};
}

std::vector<Operand> Decoder::operands(const std::vector<Token>& tokens) {
    std::vector<Operand> all;
    for (std::size_t i = 0; i < tokens.size(); i++) {
        if (tokens[i] == "-") continue;
        all.push_back(operand(tokens[i]));
        if (i && tokens[i - 1] == "-" && all.back().form == Operand::Form::Number)
            all.back().value = 0 - all.back().value;
    }
    return all;
}

Address Decoder::address(const std::vector<Token>& tokens) {
    Address made;
    if (tokens.empty()) return made;
    u64 number = 0;
    if (!is_number(tokens[0], &number)) made.base = operand(tokens[0]);
    made.distance = constant_in(tokens);
    return made;
}

Op Decoder::op_of(const Instruction& instruction) {
    bool is_wide = instruction.has("wide"), is_high = instruction.has("hi");
    if (instruction.is("mul")) return is_wide ? Op::MultiplyWide : is_high ? Op::MultiplyHigh : Op::Multiply;
    if (instruction.is("mad")) return is_wide ? Op::MultiplyWideAdd : is_high ? Op::Unknown : Op::MultiplyAdd;
    if (instruction.has("sat")) return Op::Unknown;
    return named(kOps, instruction.words[0]);
}

void Decoder::add_types(const Instruction& instruction, Step& step) {
    auto& words = instruction.words;
    step.type = step.from = type_of(words.back());
    if (step.op == Op::Convert) step.type = words.size() > 2 ? type_of(words[words.size() - 2]) : Type{};
    if (step.op == Op::Compare) {
        step.comparison = words.size() > 2 ? named(kComparisons, words[1]) : Comparison::Unknown;
        if (words.size() > 3 && words[2] != "ftz") step.combined = named(kOps, words[2]);
        if (step.type.is_float && words[1].back() == 'u' && words[1].size() == 3 && words[1] != "neu")
            step.comparison = Comparison::Unknown;  // true of what is no number, too
    }
    bool computes = step.op != Op::Move && step.op != Op::Load && step.op != Op::Compare && step.op != Op::Select;
    if (computes && (step.type.is_float || step.from.is_float)) step.op = Op::Unknown;
    if (!step.type.bits || !step.from.bits) step.op = Op::Unknown;
}

void Decoder::add_accesses(const Instruction& instruction, Step& step) {
    Kind kind = kind_of(instruction);
    bool off_device = instruction.has("shared") || instruction.has("local") || instruction.has("const");
    bool in_parameters = instruction.has("param");
    for (auto& one : instruction.addresses) step.addresses.push_back(address(one));
    if (kind == Kind::Copy) {
        bool simple = step.addresses.size() > 1 && !instruction.has("tensor") && !instruction.has("reduce");
        auto space = [&](const char* name) {
            auto is_it = [&](Token word) { return word.substr(0, std::strlen(name)) == name; };
            return std::find_if(instruction.words.begin(), instruction.words.end(), is_it);
        };
        step.writes = simple && space("global") < space("shared");
        step.reads = simple && !step.writes;
        if (step.reads) step.addresses.erase(step.addresses.begin());
        step.hands_over = !simple;
        return;
    }
    step.is_atomic = kind == Kind::Atomic || kind == Kind::Reduce || instruction.is("sured");
    step.reads = (kind == Kind::Load || kind == Kind::Fetch || step.is_atomic) && !off_device && !in_parameters;
    step.writes = (kind == Kind::Store || kind == Kind::Put || step.is_atomic) && !off_device && !in_parameters;
    // Arguments of a call are stored as parameters.
    step.hands_over = (kind == Kind::Store && in_parameters) || (kind == Kind::Other && !off_device);
    if (kind == Kind::Load && off_device) step.op = Op::Unknown;
}

Step Decoder::step(const Instruction& instruction) {
    Step made;
    made.op = op_of(instruction);
    add_types(instruction, made);
    if (!instruction.guard.empty()) made.guard = number_of(instruction.guard);
    made.negated = instruction.negated;
    for (Token name : instruction.results) made.results.push_back(number_of(name));
    for (auto& source : instruction.sources) made.sources.push_back(operands(source));
    bool tests = kind_of(instruction) == Kind::Test && !ends_block(instruction);
    if (tests && !made.sources.empty()) {  // of a comparison, one predicate, and perhaps the opposite of it
        for (const Operand& one : made.sources[0])
            if (one.form == Operand::Form::Register) made.results.push_back(u32(one.value));
        made.sources.erase(made.sources.begin());
    }
    add_accesses(instruction, made);
    return made;
}

// The number of an instruction, or kNone.
u32 Decoder::target_of(const Instruction& instruction) {
    if (!instruction.is("bra") || instruction.sources.empty() || instruction.sources[0].empty()) return kNone;
    auto label = kernel_.labels.find(instruction.sources[0][0]);
    if (label == kernel_.labels.end() || label->second == kNoStatement) return kNone;
    auto found =
        std::lower_bound(instructions_.begin(), instructions_.end(), label->second,
                         [](const Instruction& one, std::size_t statement) { return one.statement < statement; });
    return u32(found - instructions_.begin());
}

Block Decoder::block(u32 begin, u32 end, const std::vector<u32>& block_at) {
    const Instruction& last = instructions_[end - 1];
    auto number_at = [&](u32 at) { return at < block_at.size() ? block_at[at] : kNone; };
    Block made;
    made.begin = begin;
    made.end = end;
    made.branches = ends_block(last);
    if (!made.branches || !last.guard.empty()) made.next = number_at(end);
    if (!made.branches) return made;
    made.fails = last.is("trap");
    made.taken = number_at(target_of(last));
    return made;
}

void Decoder::add_blocks() {
    u32 count = u32(instructions_.size());
    std::set<u32> begins = {0};
    for (u32 i = 0; i < count; i++) {
        if (!ends_block(instructions_[i])) continue;
        begins.insert(i + 1);
        if (u32 target = target_of(instructions_[i]); target != kNone) begins.insert(target);
    }
    std::vector<u32> block_at(count, kNone), order;
    for (u32 begin : begins)
        if (begin < count) block_at[begin] = u32(order.size()), order.push_back(begin);
    order.push_back(count);
    for (std::size_t i = 0; i + 1 < order.size(); i++) code_.blocks.push_back(block(order[i], order[i + 1], block_at));
}

// Blocks that each thread gets to from a given block, whichever way it goes: the postdominators (Cooper, Harvey,
// Kennedy, "A simple, fast dominance algorithm"). A thread that stops the program gets nowhere, and does not count.
class Meetings {
  public:
    explicit Meetings(std::vector<Block>& blocks) : blocks_(blocks), end_(u32(blocks.size())), before_(end_ + 1) {}
    void run();

  private:
    std::vector<Block>& blocks_;
    u32 end_;  // stands for the thread's end
    std::vector<std::vector<u32>> before_;
    std::vector<u32> order_, place_, meeting_;

    std::vector<u32> behind(u32 number) const;
    void visit_backwards();
    u32 common(u32 a, u32 b) const;
};

std::vector<u32> Meetings::behind(u32 number) const {
    const Block& block = blocks_[number];
    std::vector<u32> all;
    bool ends = block.branches ? block.taken == kNone && !block.fails : block.next == kNone;
    if (block.taken != kNone) all.push_back(block.taken);
    if (block.next != kNone) all.push_back(block.next);
    if (ends) all.push_back(end_);
    return all;
}

void Meetings::visit_backwards() {
    place_.assign(end_ + 1, kNone);
    std::vector<std::pair<u32, std::size_t>> path = {{end_, 0}};
    std::vector<bool> seen(end_ + 1, false);
    seen[end_] = true;
    while (!path.empty()) {
        auto& [number, at] = path.back();
        if (at < before_[number].size()) {
            u32 next = before_[number][at++];
            if (!seen[next]) seen[next] = true, path.push_back({next, 0});
        } else {
            place_[number] = u32(order_.size());
            order_.push_back(number);
            path.pop_back();
        }
    }
    std::reverse(order_.begin(), order_.end());
}

u32 Meetings::common(u32 a, u32 b) const {
    while (a != b) {
        while (place_[a] < place_[b]) a = meeting_[a];
        while (place_[b] < place_[a]) b = meeting_[b];
    }
    return a;
}

void Meetings::run() {
    for (u32 i = 0; i < end_; i++)
        for (u32 next : behind(i)) before_[next].push_back(i);
    visit_backwards();
    meeting_.assign(end_ + 1, kNone);
    meeting_[end_] = end_;
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 number : order_) {
            if (number == end_) continue;
            u32 met = kNone;
            for (u32 next : behind(number))
                if (place_[next] != kNone && meeting_[next] != kNone) met = met == kNone ? next : common(met, next);
            if (met != meeting_[number]) meeting_[number] = met, changed = true;
        }
    }
    for (u32 i = 0; i < end_; i++) blocks_[i].meeting = meeting_[i] == end_ ? kNone : meeting_[i];
}

bool gives_any(const Step& step, const std::vector<bool>& registers) {
    return std::any_of(step.results.begin(), step.results.end(), [&](u32 one) { return registers[one]; });
}

// Registers that addresses and predicates are computed from. Registers that only serve other numbers need not be
// followed.
std::vector<bool> registers_that_count(const std::vector<Step>& steps, u32 registers) {
    std::vector<bool> counts(registers, false);
    bool changed = false;
    auto add = [&](const Operand& operand) {
        if (operand.form != Operand::Form::Register || counts[operand.value]) return;
        counts[operand.value] = changed = true;
    };
    for (const Step& step : steps) {
        if (step.guard != kNone) add({Operand::Form::Register, step.guard});
        for (const Address& address : step.addresses) add(address.base);
    }
    do {
        changed = false;
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            if (!step->hands_over && !gives_any(*step, counts)) continue;
            for (auto& all : step->sources)
                for (const Operand& one : all) add(one);
        }
    } while (changed);
    return counts;
}

void Decoder::drop_numbers() {
    std::vector<bool> counts = registers_that_count(code_.steps, code_.registers);
    auto is_needed = [&](const Step& step) {
        return step.reads || step.writes || step.hands_over || gives_any(step, counts);
    };
    std::vector<Step> kept;
    for (Block& block : code_.blocks) {
        u32 begin = u32(kept.size()), last = block.end - 1;
        for (u32 i = block.begin; i < block.end; i++)
            if (is_needed(code_.steps[i]) || (i == last && block.branches)) kept.push_back(std::move(code_.steps[i]));
        block.begin = begin;
        block.end = u32(kept.size());
    }
    code_.steps = std::move(kept);
}

Code Decoder::run() {
    if (instructions_.empty()) return {};
    for (const Instruction& instruction : instructions_) code_.steps.push_back(step(instruction));
    add_blocks();
    Meetings(code_.blocks).run();
    code_.registers = u32(registers_.size());
    drop_numbers();
    return std::move(code_);
}

}  // namespace

Code code_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions) {
    return Decoder(kernel, instructions).run();
}

}  // namespace check::thread
