// PTX text as statements. Comments, line numbers and whole functions that are not kernels are left out.
#pragma once

#include "facts.hpp"

#include <string_view>

namespace check {

// A word, or one of the characters that are operators. It points into the text.
using Token = std::string_view;
using Statement = std::vector<Token>;  // up to its semicolon: an instruction with its operands, or a declaration

struct PtxParameter {
    Token name;
    Parameter place;
    bool is_pointer = false;  // declared with .ptr
};

constexpr std::size_t kNoStatement = ~std::size_t(0);

struct PtxKernel {
    Token name;
    std::vector<PtxParameter> parameters;
    std::vector<Statement> statements;
    std::map<Token, std::size_t> labels;  // the statements behind them; kNoStatement: it is there more than once
};

struct PtxVariable {
    Token name;
    Variable is;
};

// Kernels whose text is cut off, or whose parameters are not understood, are left out. Variables are `.global` and
// `.const`, those that are defined here.
struct PtxModule {
    std::vector<PtxKernel> kernels;
    std::vector<PtxVariable> variables;
};

PtxModule module_in(std::string_view text);

// The bits of the type that a word ends with, as in ld.global.u32; 0 where it does not end with one.
u32 bits_of_type(Token word);

// A decimal, octal or hexadecimal number.
bool is_number(Token word, u64* value);

}  // namespace check
