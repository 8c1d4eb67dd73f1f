// What the registers of the first thread of the first block hold: its indices are zero, so that an address which a
// kernel computes from a pointer and indices is the pointer itself, unless a parameter or something loaded is added.
//
// A value is a set of sums that it may be: words of the parameters that are added, and whether anything else is, which
// is not known. Of a product it only counts whether it is zero, so that its sum is that of a factor. Instructions are
// followed in no particular order until nothing new comes of it; whether a thread gets to one is not followed.
#include "start.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace check {

namespace {

// A bit for each word of the parameters that is loaded somewhere, and one for what is not known.
using Sum = u64;
constexpr Sum kZero = 0, kMore = Sum(1) << 63;
constexpr std::size_t kMostWords = 63, kMostSums = 8;
using Sums = std::set<Sum>;

void add(Sums& sums, Sum sum) {
    if (sums.size() < kMostSums) sums.insert(sum);
}
void add(Sums& sums, const Sums& others) {
    for (Sum sum : others) add(sums, sum);
}

Sums sum_of(const Sums& left, const Sums& right) {
    Sums sums;
    for (Sum one : left)
        for (Sum other : right) add(sums, one | other);
    return sums;
}

// Zero where one of the factors is.
Sums product_of(const Sums& left, const Sums& right) {
    Sums sums;
    for (const Sums* factor : {&left, &right})
        for (Sum sum : *factor)
            if (!(sum & kMore)) add(sums, sum);
    return sums.empty() ? Sums{kMore} : sums;
}

bool is_index(Token token) {
    Token name = token.substr(0, token.find('.'));
    for (const char* index :
         {"%tid", "%ctaid", "%laneid", "%warpid", "%clusterid", "%cluster_ctaid", "%cluster_ctarank"})
        if (name == index) return true;
    return false;
}

bool is_any_of(const Instruction& instruction, std::initializer_list<const char*> mnemonics) {
    return std::any_of(mnemonics.begin(), mnemonics.end(), [&](const char* one) { return instruction.is(one); });
}

class First {
  public:
    First(const PtxKernel& kernel, const std::vector<Instruction>& instructions);
    std::map<u32, Start> run();

  private:
    const std::vector<Instruction>& instructions_;
    std::unordered_map<Token, u32> names_;  // of parameters, and their offsets
    std::vector<Parameter> words_;          // by their bits
    std::unordered_map<Token, Sums> registers_;
    std::map<u32, Start> starts_;
    bool changed_ = false;

    Sum bit_of(u32 offset, u32 size);
    Sums value_of(const std::vector<Token>& operand) const;
    Sums result_of(const Instruction& instruction) const;
    void load(const Instruction& instruction);
    void give(Token name, const Sums& sums);
    void access(const std::vector<Token>& address);
    void access(Sum sum);
};

First::First(const PtxKernel& kernel, const std::vector<Instruction>& instructions) : instructions_(instructions) {
    for (const PtxParameter& parameter : kernel.parameters) names_[parameter.name] = parameter.place.offset;
}

Sum First::bit_of(u32 offset, u32 size) {
    auto is_it = [&](const Parameter& word) { return word.offset == offset && word.size == size; };
    auto known = std::find_if(words_.begin(), words_.end(), is_it);
    if (known == words_.end() && words_.size() == kMostWords) return kMore;
    if (known == words_.end()) known = words_.insert(known, {offset, size});
    return Sum(1) << (known - words_.begin());
}

// A register or a number; several registers are a vector.
Sums First::value_of(const std::vector<Token>& operand) const {
    Sums sums;
    for (Token token : operand) {
        u64 number = 0;
        auto known = registers_.find(token);
        if (known != registers_.end())
            add(sums, known->second);
        else if (is_index(token) || (is_number(token, &number) && !number))
            sums.insert(kZero);
        else if (token[0] != '%' && token != "-")
            sums.insert(kMore);
    }
    return sums;
}

Sums First::result_of(const Instruction& instruction) const {
    auto& sources = instruction.sources;
    auto source = [&](std::size_t i) { return i < sources.size() ? value_of(sources[i]) : Sums{}; };
    if (is_any_of(instruction, {"mov", "cvt", "cvta", "neg", "abs", "shl", "shr", "div", "rem", "bfe", "shfl", "brev"}))
        return source(0);
    if (is_any_of(instruction, {"add", "addc", "sub", "subc", "or", "xor", "bfi"})) return sum_of(source(0), source(1));
    if (is_any_of(instruction, {"mul", "mul24", "and"})) return product_of(source(0), source(1));
    if (is_any_of(instruction, {"mad", "madc", "mad24"})) return sum_of(product_of(source(0), source(1)), source(2));
    if (is_any_of(instruction, {"selp", "slct", "min", "max", "prmt", "shf", "lop3"})) {
        Sums either = source(0);
        add(either, source(1));
        return either;
    }
    return {kMore};
}

void First::give(Token name, const Sums& sums) {
    Sums& known = registers_[name];
    std::size_t before = known.size();
    add(known, sums);
    if (known.size() != before) changed_ = true;
}

// A parameter, or what was loaded. What a thread keeps on the chip is not followed, and may be zero.
void First::load(const Instruction& instruction) {
    if (instruction.addresses.empty()) return;
    const std::vector<Token>& address = instruction.addresses[0];
    auto parameter = address.empty() ? names_.end() : names_.find(address[0]);
    u32 bytes = bits_of_type(instruction.type()) / 8;
    bool on_chip = instruction.has("shared") || instruction.has("local");
    for (std::size_t i = 0; i < instruction.results.size(); i++) {
        Sum sum = on_chip ? kZero : kMore;
        if (parameter != names_.end()) sum = bit_of(u32(parameter->second + constant_in(address) + i * bytes), bytes);
        give(instruction.results[i], {sum});
    }
}

void First::access(const std::vector<Token>& address) {
    if (address.empty()) return;
    Sums sums = value_of({address[0]});
    if (constant_in(address)) sums = sum_of(sums, {kMore});
    for (Sum sum : sums) access(sum);
}

// Which of the words is the pointer is not known here: each may be it.
void First::access(Sum sum) {
    std::vector<Parameter> words;
    for (std::size_t i = 0; i < words_.size(); i++)
        if (sum >> i & 1) words.push_back(words_[i]);
    for (const Parameter& pointer : words) {
        if (pointer.size != 8) continue;
        Start& start = starts_.try_emplace(pointer.offset, Start{false, {}}).first->second;
        if (sum & kMore || (start.is_there && start.zeros.size() < words.size())) continue;
        start = {true, {}};
        for (const Parameter& other : words)
            if (other.offset != pointer.offset) start.zeros.push_back(other);
    }
}

std::map<u32, Start> First::run() {
    do {
        changed_ = false;
        for (const Instruction& instruction : instructions_) {
            Kind kind = kind_of(instruction);
            if (kind == Kind::Load)
                load(instruction);
            else if (!instruction.results.empty())
                for (Token name : instruction.results) give(name, result_of(instruction));
        }
    } while (changed_);
    for (const Instruction& instruction : instructions_) {
        if (instruction.has("param") || instruction.has("shared") || instruction.has("local")) continue;
        for (auto& address : instruction.addresses) access(address);
    }
    return starts_;
}

}  // namespace

std::map<u32, Start> starts_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions) {
    return First(kernel, instructions).run();
}

}  // namespace check
