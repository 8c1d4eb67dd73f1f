// Effects of an instruction on the origins of registers.
#pragma once

#include "evidence.hpp"
#include "registers.hpp"

namespace check::machine {

// The driver's data in front of the parameters, by the place where the parameters begin.
struct Layout {
    u32 base;
    u32 place;   // where the address of the parameters is, as one in memory
    i32 offset;  // what that address is, relative to the parameters
    u32 local;   // where the address of the thread's own memory is
};

const Layout* layout_of(u32 base);

class Steps {
  public:
    Steps(Origins& origins, const Layout& layout) : origins_(origins), layout_(layout) {}

    // `evidence` is given once the registers have all origins that they ever may have; before, there is none.
    void follow(const Instruction& instruction, Registers& registers, Evidence* evidence);
    void call_others(Registers& registers, Evidence* evidence);  // code that is not here
    bool is_known() const { return is_known_; }
    Origin stored() const { return anything_; }
    // True if values stored in the thread's own memory may be read through addresses that are not followed.
    bool has_local_addresses() const { return has_local_addresses_; }

  private:
    using Operands = std::vector<Operand>;
    struct Address {
        Origin low, high;
    };

    Origins& origins_;
    const Layout& layout_;
    bool is_known_ = true, has_local_addresses_ = false;
    Origin anything_ = 0, anywhere_ = 0;  // stored in any slot; stored where the slot is not known
    std::unordered_map<i64, Cell> slots_;
    // State of the instruction that is being followed.
    const Instruction* instruction_ = nullptr;
    Registers* registers_ = nullptr;
    Evidence* evidence_ = nullptr;

    Origin read(Cell cell) { return registers_->read(cell, instruction_->guard); }
    Origin constant(const Operand& operand, u32 half);
    Origin source(const Operand& operand, u32 half = 0);
    Origin whole(const Operand& operand, unsigned width);  // all of its registers
    Address address(const Operand& operand);
    void write(Cell cell, Origin origin);
    void result(Origin low);
    void result(Origin low, Origin high);
    void clear_results(std::size_t count, unsigned width);
    void leave(Origin origin);

    void load_constant();
    void access_memory(bool reads, bool writes);
    Origin loaded(Origin low, i64 offset, i64 constant);
    void access(const Operand& operand, bool reads, bool writes);
    void copy_in();
    void copy_in_bulk();
    void follow_maps();
    void use_chip();
    void use_local(bool stores);
    Cell slot(const Operand& operand, u32 number);
    void move();
    void select();
    void add(bool is_wide);
    bool adjust_stack();
    void add_scaled();
    void multiply();
    Origin factor(const Operand& a, const Operand& b);
    void mask();
    void shift();
    void permute();
    void mix(bool in_bits);
    void use_unknown();
    bool has_part(std::string_view part) const { return has(instruction_->name, part); }
};

}  // namespace check::machine
