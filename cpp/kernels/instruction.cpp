// Taking instructions of PTX apart: see instruction.hpp.
#include "instruction.hpp"

#include <algorithm>
#include <cctype>

namespace check {

namespace {

bool is_word(Token token) {
    char c = token[0];
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

std::vector<Token> split(Token word) {
    std::vector<Token> parts;
    for (std::size_t at = 0; at <= word.size();) {
        std::size_t dot = std::min(word.find('.', at), word.size());
        if (dot > at) parts.push_back(word.substr(at, dot - at));
        at = dot + 1;
    }
    return parts;
}

// One operand: a register, a vector of them in braces, an address in brackets, a list in parentheses.
struct Operand {
    std::vector<Token> words;
    bool is_address = false;
};

std::vector<Operand> operands_of(const Statement& statement, std::size_t at) {
    std::vector<Operand> operands(1);
    std::size_t depth = 0;
    for (; at < statement.size(); at++) {
        Token token = statement[at];
        bool opens = token == "{" || token == "[" || token == "(",
             closes = token == "}" || token == "]" || token == ")";
        if (token == "[" && !depth) operands.back().is_address = true;
        if (opens) depth++;
        if (closes && depth) depth--;
        if (token == "," && !depth)
            operands.emplace_back();
        else if (is_word(token) || token == "-")
            operands.back().words.push_back(token);
    }
    if (operands.back().words.empty()) operands.pop_back();
    return operands;
}

bool has_result(Kind kind) {
    return kind != Kind::Store && kind != Kind::Reduce && kind != Kind::Copy && kind != Kind::Test && kind != Kind::Put;
}

bool is_one_of(Token word, std::initializer_list<const char*> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

bool Instruction::has(Token word) const {
    return std::any_of(words.begin(), words.end(), [&](Token one) {
        return one.substr(0, word.size()) == word && (one.size() == word.size() || one[word.size()] == ':');
    });
}

namespace {

// The result's `words` are empty if the statement is not an instruction.
Instruction instruction_of(const Statement& statement) {
    Instruction instruction;
    std::size_t at = 0;
    if (statement[0] == "@") {
        at++;
        instruction.negated = at < statement.size() && statement[at] == "!";
        if (instruction.negated) at++;
        if (at < statement.size()) instruction.guard = statement[at++];
    }
    if (at >= statement.size() || !std::isalpha(static_cast<unsigned char>(statement[at][0]))) return instruction;
    instruction.words = split(statement[at]);
    std::vector<Operand> operands = operands_of(statement, at + 1);
    Kind kind = kind_of(instruction);
    bool result = has_result(kind);
    for (Operand& operand : operands) {
        if (operand.is_address && uses_object(kind) && !operand.words.empty())
            operand.words.resize(1);  // no coordinates
        if (operand.is_address)
            instruction.addresses.push_back(std::move(operand.words));
        else if (result && &operand == &operands[0])
            instruction.results = std::move(operand.words);
        else
            instruction.sources.push_back(std::move(operand.words));
    }
    return instruction;
}

}  // namespace

std::vector<Instruction> instructions_of(const PtxKernel& kernel) {
    std::vector<Instruction> instructions;
    for (std::size_t i = 0; i < kernel.statements.size(); i++) {
        Instruction instruction = instruction_of(kernel.statements[i]);
        if (instruction.words.empty()) continue;
        instruction.statement = i;
        instructions.push_back(std::move(instruction));
    }
    return instructions;
}

u64 constant_in(const std::vector<Token>& address) {
    u64 sum = 0, value = 0;
    for (std::size_t i = 0; i < address.size(); i++)
        if (is_number(address[i], &value)) sum += i && address[i - 1] == "-" ? 0 - value : value;
    return sum;
}

Kind kind_of(const Instruction& instruction) {
    Token mnemonic = instruction.words[0];
    if (is_one_of(mnemonic, {"ld", "ldu"})) return Kind::Load;
    if (mnemonic == "st") return Kind::Store;
    if (mnemonic == "atom") return Kind::Atomic;
    if (mnemonic == "red") return Kind::Reduce;
    if (mnemonic == "cp") return Kind::Copy;
    if (is_one_of(mnemonic, {"tex", "tld4", "suld"})) return Kind::Fetch;
    if (is_one_of(mnemonic, {"sust", "sured"})) return Kind::Put;
    if (is_one_of(mnemonic, {"mov", "cvta", "cvt", "selp", "slct", "min", "max", "shfl", "prmt", "shf", "bfe", "bfi",
                             "lop3", "and", "or", "xor"}))
        return Kind::Move;
    if (is_one_of(mnemonic, {"add", "addc", "sub", "subc"})) return Kind::Add;
    if (is_one_of(mnemonic,
                  {"mul",   "mul24", "div",   "rem", "shl",  "shr",  "neg",   "not",   "cnot",     "abs",  "popc",
                   "clz",   "brev",  "bfind", "sad", "dp4a", "dp2a", "szext", "bmsk",  "copysign", "rcp",  "sqrt",
                   "rsqrt", "sin",   "cos",   "lg2", "ex2",  "tanh", "fma",   "redux", "vote",     "match"}))
        return Kind::Product;
    if (is_one_of(mnemonic, {"mad", "madc", "mad24"})) return Kind::Multiply;
    if (is_one_of(mnemonic, {"setp",      "set",          "testp",         "isspacep",       "bra",        "brx",
                             "ret",       "exit",         "trap",          "brkpt",          "bar",        "barrier",
                             "membar",    "fence",        "nanosleep",     "pmevent",        "activemask", "prefetch",
                             "prefetchu", "createpolicy", "applypriority", "griddepcontrol", "setmaxnreg", "elect",
                             "txq",       "suq",          "istypep"}))
        return Kind::Test;
    return Kind::Other;
}

}  // namespace check
