// Facts about a kernel's words after all of its code was read: the addresses among them, and their roles.
#pragma once

#include "machine_code.hpp"
#include "origins.hpp"

#include <map>
#include <set>

namespace check::machine {

class Evidence {
  public:
    Evidence(const Origins& origins, const std::vector<Parameter>& parameters)
        : origins_(origins), parameters_(parameters) {}

    struct Kind {
        bool reads, writes;
        bool is_atomic = false;
        bool always = false;  // whenever the thread gets there, whatever the predicates
    };
    // An access through an address, by its halves.
    void access(Origin low, Origin high, const Kind& kind);
    // The value is not followed any further: it is stored, or given to a function.
    void leave(Origin origin);
    // The value is the address of an object that has addresses in it, and that the device reads by itself.
    void follow_map(Origin low, Origin high);
    void add_to(CodeFacts* facts);

  private:
    struct Use {
        bool reads = false, writes = false, may_read = false, may_write = false;
        bool plain = false;       // not only by atomic operations
        bool is_address = false;  // something goes through it, if perhaps through others as well
        bool low_leaves = false, high_leaves = false;
        Role role() const;
        void add(const Use& other);
    };
    struct Sum {  // of several words, one of which is an address
        std::set<u32> words;
        Kind kind;
    };

    const Origins& origins_;
    const std::vector<Parameter>& parameters_;
    std::map<u32, Use> uses_;
    std::vector<Sum> sums_;
    std::set<u32> maps_;  // of tensors, by their offsets
    std::map<std::size_t, Use> open_;  // parameters, by their numbers: what is done with any word of them

    const Parameter* parameter_at(i64 offset) const;
    void open_from(i64 offset, const Use& use);
    void touch(const Item& item, const Use& use);
    void touch(const Item& item, const Kind& kind);
    void use(u32 word, bool alone, const Kind& kind);
    void settle_sums();
};

}  // namespace check::machine
