// Origins of a 32-bit value: the words of a kernel's parameters that it was computed from.
//
// An address has two halves, which are loaded, moved and added up separately. So an item is half a word, with a degree
// of trust that the bits are that half: alone, as a term of a sum, or as one of several possible halves.
#pragma once

#include "facts.hpp"
#include "opcodes.hpp"

#include <unordered_map>

namespace check::machine {

enum class What : u8 {
    Word,    // the word at this offset of the parameters
    Group,   // a word that was read by an index, from this offset on
    Place,   // the address of this offset
    Within,  // the same, and something was added of which nothing is known
};

enum class Part : u8 { Low, High, Bits };  // Bits: some of them, anywhere

// A value that is not a parameter may be added in each case.
enum class Trust : u8 {
    Sole,    // the half itself
    Term,    // a sum in which it is
    Minus,   // a sum from which it is subtracted
    Either,  // one of several, and the paths that lead to each of them meet here
    Maybe,   // perhaps; or bits that nothing is going to do with
};

struct Item {
    What what;
    Part part;
    Trust trust;
    i32 offset;  // in bytes; negative in front of the parameters
};

using Origin = u32;  // the number of a set of items; 0 is the empty one

class Origins {
  public:
    Origins() { number_of({}); }
    const std::vector<Item>& operator[](Origin origin) const { return *sets_[origin]; }

    Origin of(What what, Part part, i32 offset) { return number_of({{what, part, Trust::Sole, offset}}); }
    Origin either(Origin a, Origin b);  // one of them; a is the same as b where all paths agree
    Origin sum(Origin a, Origin b);
    Origin negative(Origin a);
    Origin moved(Origin a, i64 distance);  // a constant is added
    Origin scattered(Origin a);            // something of which nothing is known is added
    Origin unplaced(Origin a);             // without addresses of parameters
    Origin maybe(Origin a);
    Origin mixed(Origin a, Origin b) { return maybe(either(a, b)); }
    Origin bits(Origin a);
    Origin product(Origin a);  // no address, and neither is what comes of it
    Origin forked(Origin a);  // behind a branch that depends on something: which of several it is may depend on it too

  private:
    struct Hash {
        std::size_t operator()(const std::vector<Item>& items) const;
    };
    struct Equal {
        bool operator()(const std::vector<Item>& a, const std::vector<Item>& b) const;
    };
    enum class Operation : u8 { Either, Sum, Negative, Scattered, Unplaced, Maybe, Bits, Product, Forked };

    std::unordered_map<std::vector<Item>, Origin, Hash, Equal> numbers_;
    std::vector<const std::vector<Item>*> sets_;
    std::unordered_map<u64, Origin> known_;  // results, by operation and operands

    Origin number_of(std::vector<Item> items);
    template <class Make>
    Origin remember(Operation operation, Origin a, Origin b, Make make);
    template <class Change>
    Origin each(Operation operation, Origin a, Change change);
};

}  // namespace check::machine
