// A statement of PTX, parsed: its operation, its result and its operands.
#pragma once

#include "ptx.hpp"

namespace check {

struct Instruction {
    std::vector<Token> words;      // ld.global.nc.u32 without the dots
    std::vector<Token> results;    // several of a vector
    std::vector<std::vector<Token>> sources;    // registers, names and numbers of each operand
    std::vector<std::vector<Token>> addresses;  // what stands in brackets, in order
    Token guard;             // the predicate that it depends on, if any
    bool negated = false;    // … which has to be false
    std::size_t statement = 0;

    bool is(Token mnemonic) const { return words[0] == mnemonic; }
    bool has(Token word) const;
    Token type() const { return words.back(); }
};

// The instructions of all statements that are neither declarations nor directives.
std::vector<Instruction> instructions_of(const PtxKernel& kernel);

// The constant that is added in an address: %rd1+8, %rd1+-8.
u64 constant_in(const std::vector<Token>& address);

enum class Kind : u8 {
    Load,      // results from an address
    Store,     // sources to an address
    Atomic,    // both
    Reduce,    // as Atomic, without a result
    Copy,      // from the second address to the first
    Fetch,     // results from the memory of a texture's or a surface's object
    Put,       // sources to that
    Move,      // the result is an address if a source is
    Add,       // as Move, and at most one source is an address
    Product,   // a multiple or a part of its sources: not an address, as a rule
    Multiply,  // a product and a sum in one
    Test,      // nothing comes out of it, or a predicate
    Other,     // anything may come of its sources
};

Kind kind_of(const Instruction& instruction);

// True if it reaches memory through such an object.
inline bool uses_object(Kind kind) { return kind == Kind::Fetch || kind == Kind::Put; }

}  // namespace check
