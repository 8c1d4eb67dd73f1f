// Structs of libraries that are passed by value and hold more than a launch uses: lists of addresses, of which the
// first ones count. The other entries are left over from earlier launches.
//
// A kernel picks the entries by an index, so its code does not say which entries it uses. But the fields of these
// structs are known, by the kernel's C++ name and the size of the parameter: where the sizes do not agree, as in
// another release of the library, nothing is claimed. PyTorch's are in aten/src/ATen/native/cuda: MultiTensorApply.cuh
// (lists of tensors), Shape.cu (torch.cat) and ForeachReduceOp.cu (norms). Element-wise kernels take a
// std::array<char*, n>, in which all entries count: add_arrays() of facts.hpp.
#pragma once

#include "facts.hpp"

#include <optional>

namespace check {

class StructLayout {
  public:
    // None if the kernel takes no such struct.
    static std::optional<StructLayout> of(const std::string& mangled, const std::vector<Parameter>& parameters);

    // True if the word lies in the struct.
    bool covers(u32 offset) const { return offset - struct_.offset < struct_.size; }
    u32 lists() const { return u32(lists_.size()); }
    // Calls visit(offset, list) for each word that holds an address which the launch uses; `list` is the number of the
    // word's list. False, and no call, if the struct is not filled as expected.
    template <class Visit>
    bool each_used(const std::vector<u8>& space, const u32 grid[3], Visit&& visit) const {
        std::vector<bool> used;
        if (!used_entries(space, grid, &used)) return false;
        for (u32 list = 0; list < lists(); list++)
            for (u32 i = 0; i < entries_; i++)
                if (used[i]) visit(struct_.offset + lists_[list] + i * 8, list);
        return true;
    }

  private:
    // The entries that count.
    enum class Used : u8 {
        GridX,  // one for each block of the grid, in x
        GridY,
        Blocks,  // those that the blocks of the grid are given: `tensors_` has a byte for each
    };
    Parameter struct_;
    Used used_ = Used::GridX;
    u32 entries_ = 0;  // of a list
    std::vector<u32> lists_;  // where each begins, in the struct
    u32 tensors_ = 0, most_ = 0;  // where the bytes begin, and for how many blocks there is room

    bool used_entries(const std::vector<u8>& space, const u32 grid[3], std::vector<bool>* used) const;
    bool is_tensor_list(const std::string& mangled);
    bool is_list_of(u32 lists, u32 entries, u32 bytes_between, u32 more_lists = 0);
    bool is_concatenation(const std::string& mangled);
    bool is_list_of_norms();
};

// Calls visit(word) for each word that may hold an address in this launch, and listed(offset, list) for the words that
// count in a struct whose layout is known.
template <class Word, class Visit, class Listed>
void each_word(const std::vector<Word>& words, const std::optional<StructLayout>& layout, const std::vector<u8>& space,
               const u32 grid[3], Visit&& visit, Listed&& listed) {
    bool known = layout && layout->each_used(space, grid, listed);
    for (const Word& word : words)
        if (!known || !layout->covers(word.offset)) visit(word);
}

}  // namespace check
