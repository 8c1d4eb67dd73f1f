// Lists of addresses in structs of libraries: see layouts.hpp.
#include "layouts.hpp"

#include <cstring>

namespace check {

namespace {

constexpr u32 kAddress = 8, kNumber = 8;
constexpr u32 kBlocks = 320;  // of a launch over a list of tensors: a byte each for its tensor, four for its chunk
constexpr u32 kNorms = 400;
constexpr u32 kMostTensors[] = {110, 64, 48, 36, 30};      // by the number of lists
constexpr u32 kMostWithScalars[] = {96, 64, 48, 36, 30};
constexpr u32 kMostWithComplexDoubles[] = {72, 60};

bool has(const std::string& mangled, const char* part) { return mangled.find(part) != std::string::npos; }

// The number behind `before`, as in …ILi3EE; 0: there is none.
u32 number_after(const std::string& mangled, const std::string& before) {
    std::size_t at = mangled.find(before);
    return at == std::string::npos ? 0 : u32(strtoul(mangled.c_str() + at + before.size(), nullptr, 10));
}

// The template's arguments that are numbers, of a function with this name: …4nameI1TLi2ELi3EE…
std::vector<u32> numbers_of(const std::string& mangled, const std::string& name) {
    std::vector<u32> numbers;
    std::size_t at = mangled.find(name), end = mangled.find("EEv", at);
    for (at = mangled.find("Li", at); at < end; at = mangled.find("Li", at + 1))
        numbers.push_back(u32(strtoul(mangled.c_str() + at + 2, nullptr, 10)));
    return numbers;
}

}  // namespace

// Lists of `entries` addresses, then as many numbers, lists of addresses more, other bytes, and the blocks' tensors.
// Behind those there may be one number.
bool StructLayout::is_list_of(u32 lists, u32 entries, u32 bytes_between, u32 more_lists) {
    u32 end = (lists + more_lists) * entries * kAddress + entries * kNumber + bytes_between;
    u32 least = end + kBlocks * 5, most = (least + 4 + 7) / 8 * 8;
    if (struct_.size < least || struct_.size > most) return false;
    for (u32 i = 0; i < lists; i++) lists_.push_back(i * entries * kAddress);
    for (u32 i = 0; i < more_lists; i++) lists_.push_back((lists + i) * entries * kAddress + entries * kNumber);
    entries_ = entries;
    tensors_ = end;
    most_ = kBlocks;
    used_ = Used::Blocks;
    return true;
}

// template <int n> TensorListMetadata, FusedOptimizerTensorListMetadata (with the steps' addresses),
// template <typename scalar, int n> TensorListScalarListMetadata (with a scalar for each tensor).
bool StructLayout::is_tensor_list(const std::string& mangled) {
    static const std::string kScalars = "TensorListScalarListMetadataI";
    std::size_t scalars = mangled.find(kScalars);
    u32 lists = scalars == std::string::npos ? number_after(mangled, "TensorListMetadataILi")
                                             : number_after(mangled.substr(scalars + kScalars.size()), "Li");
    if (!lists || lists > 5) return false;
    u32 most = kMostTensors[lists - 1], most_scalars = kMostWithScalars[lists - 1];
    if (has(mangled, "FusedOptimizerTensorListMetadataILi")) return is_list_of(lists, most, 0, 1);
    if (scalars == std::string::npos) return is_list_of(lists, most, 0);
    for (u32 bytes : {1u, 2u, 4u, 8u})
        if (is_list_of(lists, most_scalars, most_scalars * bytes)) return true;
    for (u32 entries : {most_scalars, kMostWithComplexDoubles[lists > 1]})
        if (is_list_of(lists, entries, entries * 16)) return true;
    return false;
}

// template <typename T, typename Index, int dimensions, int n, int strides>: n addresses of inputs, of which each has
// three numbers and a flag; then the strides of each, or of one, in eight numbers.
bool StructLayout::is_concatenation(const std::string& mangled) {
    std::vector<u32> numbers = numbers_of(mangled, "CatArrayBatchedCopy");
    if (numbers.size() < 3) return false;
    u32 inputs = numbers[1], strides = numbers[2];
    for (u32 index : {4u, 8u}) {
        u32 bytes = inputs * (kAddress + 3 * index + 1), rounded = (bytes + index - 1) / index * index;
        if ((rounded + strides * 8 * index + 7) / 8 * 8 != struct_.size) continue;
        lists_ = {0};
        entries_ = inputs;
        used_ = Used::GridY;
        return true;
    }
    return false;
}

// The addresses of the norms of as many tensors as the grid has blocks.
bool StructLayout::is_list_of_norms() {
    if (struct_.size != kNorms * kAddress) return false;
    lists_ = {0};
    entries_ = kNorms;
    used_ = Used::GridX;
    return true;
}

// std::array<char*, n>, the arrays of an element-wise kernel, is its third parameter.
void add_arrays(const std::string& mangled, Facts& facts) {
    u32 entries = number_after(mangled, "St5arrayIPcLm");
    if (!entries || facts.parameters.size() < 3 || !has(mangled, "2at6native") || !has(mangled, "elementwise_kernelI"))
        return;
    Parameter array = facts.parameters[2];
    if (array.size != entries * kAddress) return;
    for (Pointer& pointer : facts.pointers)
        if (pointer.offset - array.offset < array.size) pointer.found = false;
}

std::optional<StructLayout> StructLayout::of(const std::string& mangled, const std::vector<Parameter>& parameters) {
    if (!has(mangled, "2at6native")) return {};
    for (std::size_t i = 0; i < parameters.size() && i < 2; i++) {
        StructLayout made;
        made.struct_ = parameters[i];
        bool known = false;
        if (i == 0 && has(mangled, "multi_tensor_apply_kernelI"))
            known = made.is_tensor_list(mangled);
        else if (i == 1 && has(mangled, "CatArrayBatchedCopy"))
            known = made.is_concatenation(mangled);
        else if (i == 1 && has(mangled, "lpnorm_cleanupI"))
            known = made.is_list_of_norms();
        if (known) return made;
    }
    return {};
}

bool StructLayout::used_entries(const std::vector<u8>& space, const u32 grid[3], std::vector<bool>* used) const {
    used->assign(entries_, false);
    u32 count = used_ == Used::GridY ? grid[1] : grid[0];
    if (count > (used_ == Used::Blocks ? most_ : entries_)) return false;
    for (u32 i = 0; i < count; i++) {
        u32 entry = used_ == Used::Blocks ? space.at(struct_.offset + tensors_ + i) : i;
        if (entry >= entries_) return false;
        (*used)[entry] = true;
    }
    return true;
}

}  // namespace check
