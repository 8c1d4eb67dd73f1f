// Follows pointers through a kernel's instructions, in no particular order, until nothing new comes of it.
//
// The value of a register is the set of its possible origins: words of the parameters, and addresses in the parameter
// space. A load or store through a register is an access through the word that the register was computed from. If there
// are several words, the access may go to any of them; a store then makes each of them unknown, since the store may
// have written through this word, or through another. A kernel loads values from memory, and not addresses of
// parameters: unless the kernel, or a function that it calls, has stored one there. So a pointer that is stored, passed
// to a function or used in a way that is not known here *leaves*, and nothing is claimed about the pointer any more.
#include "flow.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace check {

namespace {

enum class What : u8 {
    Word,  // the word at this offset, give or take what was added to it
    Distance,  // the same, or how far something is from there: two addresses were subtracted
    Number,  // something computed from the word, which is hardly an address any more
    Place,  // the address of this offset in the parameter space
    Within,  // an address somewhere in the parameter that has this offset
};

// Of a source in a result: it is multiplied, added to what certainly is an address, or neither.
enum class Part : u8 { Equal, Offset, Factor };

struct Item {
    What what;
    u32 offset;
    bool operator<(const Item& other) const { return what != other.what ? what < other.what : offset < other.offset; }
};
using Value = std::set<Item>;

struct Use {
    bool reads = false, may_read = false, writes = false, may_write = false, leaves = false;
    bool is_access() const { return reads || may_read || writes || may_write; }
};

Role role_of(const Use& use) {
    if (use.leaves) return Role::Unknown;
    if (use.writes) return use.reads || use.may_read ? Role::ReadWrite : Role::Write;
    return use.may_write ? Role::Unknown : Role::Read;
}

bool is_float(Token type) {
    return type[0] == 'f' || type.substr(0, 2) == "bf" || type.substr(0, 2) == "tf" || type == "pred";
}

bool is_on_chip(const Instruction& instruction) { return instruction.has("shared") || instruction.has("local"); }

class Flow {
  public:
    Flow(const PtxKernel& kernel, const std::vector<Instruction>& instructions);
    std::vector<Pointer> run();

  private:
    const PtxKernel& kernel_;
    const std::vector<Instruction>& instructions_;
    std::unordered_map<Token, const PtxParameter*> names_;
    std::unordered_map<Token, Value> registers_;
    std::set<u32> pointers_;  // words that certainly are addresses
    std::map<u32, Use> uses_;
    std::set<u32> loaded_;  // words that are loaded from where they stand, and not by an index
    bool changed_ = false;

    bool settles();
    void follow(const Instruction& instruction);
    void load(const Instruction& instruction);
    void copy(const Instruction& instruction);
    void compute(const Instruction& instruction, Kind kind);
    void load_from(const Item& item, u64 more, const Instruction& instruction);

    bool is_address(const Value& value) const;
    bool is_known(const Value& value) const {  // may it be an address of which that is known?
        return std::any_of(value.begin(), value.end(), [&](const Item& item) { return pointers_.count(item.offset); });
    }
    Item changed(Item item, Part part, bool distance, const u64* added) const;
    Value value_of(const std::vector<Token>& tokens) const;
    void give(Token name, const Value& value);
    void give(Token name, Item item) { give(name, Value{item}); }
    void access(const std::vector<Token>& address, bool reads, bool writes);
    void leave(const Value& value);
    void leave(const std::vector<std::vector<Token>>& operands);
    void set(bool& flag) {
        if (!flag) flag = changed_ = true;
    }
    std::vector<u32> words_around(u32 offset) const;
    const PtxParameter* parameter_at(u64 offset) const;
};

Flow::Flow(const PtxKernel& kernel, const std::vector<Instruction>& instructions)
    : kernel_(kernel), instructions_(instructions) {
    for (const PtxParameter& parameter : kernel.parameters) {
        names_[parameter.name] = &parameter;
        if (parameter.is_pointer) pointers_.insert(parameter.place.offset);
    }
}

const PtxParameter* Flow::parameter_at(u64 offset) const {
    for (const PtxParameter& parameter : kernel_.parameters)
        if (offset - parameter.place.offset < parameter.place.size) return &parameter;
    return nullptr;
}

// All words of the parameter at this offset.
std::vector<u32> Flow::words_around(u32 offset) const {
    std::vector<u32> words;
    if (const PtxParameter* parameter = parameter_at(offset))
        for (u32 at = 0; at < parameter->place.size; at += 8) words.push_back((parameter->place.offset + at) / 8 * 8);
    return words;
}

Value Flow::value_of(const std::vector<Token>& tokens) const {
    Value value;
    for (Token token : tokens) {
        auto known = registers_.find(token);
        if (known != registers_.end()) value.insert(known->second.begin(), known->second.end());
        auto parameter = names_.find(token);
        if (parameter != names_.end()) value.insert({What::Place, parameter->second->place.offset});
    }
    return value;
}

void Flow::give(Token name, const Value& value) {
    if (value.empty()) return;
    Value& known = registers_[name];
    std::size_t before = known.size();
    known.insert(value.begin(), value.end());
    if (known.size() != before) changed_ = true;
}

void Flow::leave(const Value& value) {
    for (const Item& item : value) {
        if (item.what == What::Place || item.what == What::Within)
            for (u32 word : words_around(item.offset)) set(uses_[word].leaves);
        else
            set(uses_[item.offset].leaves);
    }
}

void Flow::leave(const std::vector<std::vector<Token>>& operands) {
    for (auto& operand : operands) leave(value_of(operand));
}

void Flow::access(const std::vector<Token>& address, bool reads, bool writes) {
    std::set<u32> words, distances, numbers;
    for (const Item& item : value_of(address)) {
        if (item.what == What::Word) words.insert(item.offset);
        if (item.what == What::Distance) distances.insert(item.offset);
        if (item.what == What::Number) numbers.insert(item.offset);
        if ((item.what == What::Place || item.what == What::Within) && writes) leave(Value{item});
    }
    bool any = !words.empty();
    words.insert(distances.begin(), distances.end());
    bool certain = any && words.size() == 1;
    for (u32 offset : words.empty() ? numbers : words) {
        Use& use = uses_[offset];
        if (reads) set(certain ? use.reads : use.may_read);
        if (writes) set(certain ? use.writes : use.may_write);
    }
}

// Adds the items that a load from the parameter space brings into its results.
void Flow::load_from(const Item& item, u64 more, const Instruction& instruction) {
    u32 bits = bits_of_type(instruction.type());
    if (is_float(instruction.type()) || !bits) return;
    for (std::size_t i = 0; i < instruction.results.size(); i++) {
        Token result = instruction.results[i];
        if (item.what == What::Within) {
            for (u32 word : words_around(item.offset)) give(result, {bits < 64 ? What::Number : What::Word, word});
            continue;
        }
        u64 begin = item.offset + more + i * (bits / 8);
        if (begin >= kLargestParameters) continue;
        for (u64 word = begin / 8 * 8; word < begin + bits / 8; word += 8) {
            give(result, {bits < 64 ? What::Number : What::Word, u32(word)});
            if (bits == 64) loaded_.insert(u32(word));
        }
    }
}

void Flow::load(const Instruction& instruction) {
    if (instruction.addresses.empty() || is_on_chip(instruction)) return;
    const std::vector<Token>& address = instruction.addresses[0];
    for (const Item& item : value_of(address))
        if (item.what == What::Place || item.what == What::Within) load_from(item, constant_in(address), instruction);
    if (!instruction.has("param")) access(address, true, false);
}

// cp.async and cp.async.bulk name both spaces, the destination's first. Other instructions that begin with cp wait, or
// use a tensor map: the address of a map in the parameters, which hides the pointer.
void Flow::copy(const Instruction& instruction) {
    if (instruction.addresses.size() < 2) return leave(instruction.addresses);
    if (instruction.has("tensor") || instruction.has("reduce")) {
        leave(instruction.addresses);
        return leave(instruction.sources);
    }
    bool to_global = false, to_shared = false;
    for (Token word : instruction.words) {
        if (word == "global" && !to_shared) to_global = true;
        if (word.substr(0, 6) == "shared" && !to_global) to_shared = true;
    }
    if (to_global)
        access(instruction.addresses[0], false, true);
    else
        access(instruction.addresses[1], true, false);
}

// True if the value is certainly an address, and of this word alone.
bool Flow::is_address(const Value& value) const {
    return value.size() == 1 && value.begin()->what == What::Word && pointers_.count(value.begin()->offset);
}

bool has_words(const Value& value) {
    return std::any_of(value.begin(), value.end(),
                       [](const Item& item) { return item.what == What::Word || item.what == What::Distance; });
}

// The item that a source becomes; `distance`: the difference of two addresses may come out.
Item Flow::changed(Item item, Part part, bool distance, const u64* added) const {
    bool word = item.what == What::Word || item.what == What::Distance;
    bool known = item.what == What::Word && pointers_.count(item.offset);
    if (word && !known && (part == Part::Factor || (part == Part::Offset && item.what == What::Word)))
        item.what = What::Number;
    else if (word && distance)
        item.what = What::Distance;
    else if (item.what == What::Place && added && item.offset + *added < kLargestParameters)
        item.offset += u32(*added);
    else if (item.what == What::Place && added)
        item.what = What::Within;
    return item;
}

void Flow::compute(const Instruction& instruction, Kind kind) {
    bool converts = instruction.is("cvt") && instruction.words.size() > 2;  // cvt.TO.FROM
    if (is_float(converts ? instruction.words[instruction.words.size() - 2] : instruction.type())) return;
    auto& sources = instruction.sources;
    std::vector<Value> values;
    for (auto& source : sources) values.push_back(value_of(source));
    bool adds = kind == Kind::Add, subtracts = instruction.is("sub") || instruction.is("subc");
    bool known = adds && std::any_of(values.begin(), values.end(), [&](auto& one) { return is_address(one); });
    bool distance = instruction.is("xor");
    if (subtracts && values.size() > 1 && has_words(values[1])) {
        known = is_address(values[0]) && !is_known(values[1]);
        distance = !known;
    }
    // More than all parameters: where it is not known what is added to an address of a parameter.
    u64 number = kLargestParameters;
    if (instruction.is("add") && sources.size() == 2 && sources[1].size() == 1 && !is_number(sources[1][0], &number))
        number = kLargestParameters;
    Value result;
    for (std::size_t i = 0; i < values.size(); i++) {
        Part part = known && !is_address(values[i]) ? Part::Offset : Part::Equal;
        if (kind == Kind::Product || (kind == Kind::Multiply && i < 2)) part = Part::Factor;
        for (Item item : values[i])
            result.insert(changed(item, part, distance, kind == Kind::Move ? nullptr : &number));
    }
    if (instruction.is("cvta") && result.size() == 1 && result.begin()->what == What::Word)
        if (pointers_.insert(result.begin()->offset).second) changed_ = true;
    for (Token name : instruction.results) give(name, result);
}

void Flow::follow(const Instruction& instruction) {
    Kind kind = kind_of(instruction);
    switch (kind) {
        case Kind::Load: return load(instruction);
        case Kind::Copy: return copy(instruction);
        case Kind::Test: return;
        case Kind::Fetch:
            if (!instruction.addresses.empty()) access(instruction.addresses[0], true, false);
            return;
        case Kind::Put:
            leave(instruction.sources);
            if (!instruction.addresses.empty()) access(instruction.addresses[0], instruction.is("sured"), true);
            return;
        case Kind::Store:
        case Kind::Atomic:
        case Kind::Reduce:
            leave(instruction.sources);
            if (!is_on_chip(instruction) && !instruction.has("param") && !instruction.addresses.empty())
                access(instruction.addresses[0], kind != Kind::Store, true);
            return;
        case Kind::Other:
            leave(instruction.sources);
            leave(instruction.addresses);
            for (auto& source : instruction.sources)
                for (Token name : instruction.results) give(name, value_of(source));
            return;
        default: return compute(instruction, kind);
    }
}

bool Flow::settles() {
    registers_.clear();
    uses_.clear();
    for (int round = 0; round < 100; round++) {
        changed_ = false;
        for (const Instruction& instruction : instructions_) follow(instruction);
        if (!changed_) return true;
    }
    return false;
}

std::vector<Pointer> Flow::run() {
    std::vector<Parameter> places;
    for (const PtxParameter& parameter : kernel_.parameters) places.push_back(parameter.place);
    std::vector<Pointer> words = all_words(places), pointers;
    if (!settles() || !settles()) return words;  // the second time it is known what is an address
    for (const Pointer& word : words) {
        auto use = uses_.find(word.offset);
        if (use == uses_.end()) continue;
        bool used = use->second.is_access() && loaded_.count(word.offset);
        pointers.push_back({word.offset, role_of(use->second), word.found && !used});
    }
    return pointers;
}

}  // namespace

std::vector<Pointer> pointers_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions) {
    return Flow(kernel, instructions).run();
}

}  // namespace check
