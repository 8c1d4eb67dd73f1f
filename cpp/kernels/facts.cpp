// The kinds of images: see facts.hpp.
#include "binary.hpp"
#include "first_thread.hpp"
#include "flow.hpp"
#include "signals.hpp"

#include <algorithm>
#include <cstring>

namespace check {

std::vector<Pointer> all_words(const std::vector<Parameter>& parameters) {
    std::map<u32, bool> words;  // whether they are found
    for (const Parameter& parameter : parameters)
        for (u64 at = (u64(parameter.offset) + 7) / 8 * 8; at + 8 <= u64(parameter.offset) + parameter.size; at += 8)
            words[u32(at)] = parameter.size > 8;
    std::vector<Pointer> pointers;
    for (auto& word : words) pointers.push_back({word.first, Role::Unknown, word.second});
    return pointers;
}

Contents contents_of_ptx(Bytes text) {
    Contents contents;
    auto* begin = reinterpret_cast<const char*>(text.data());
    PtxModule module = module_in({begin, strnlen(begin, text.size())});
    for (const PtxKernel& kernel : module.kernels) {
        Facts& facts = contents.kernels[std::string(kernel.name)];
        facts = {};
        for (const PtxParameter& parameter : kernel.parameters) facts.parameters.push_back(parameter.place);
        std::vector<Instruction> instructions = instructions_of(kernel);
        facts.pointers = pointers_of(kernel, instructions);
        for (Pointer& pointer : facts.pointers) pointer.followed = true;
        facts.first = std::make_shared<const FirstThread>(kernel, instructions);
        facts.may_signal = may_signal(instructions);
        facts.uses_objects = std::any_of(instructions.begin(), instructions.end(),
                                         [](const Instruction& one) { return uses_object(kind_of(one)); });
    }
    for (const PtxVariable& variable : module.variables) contents.variables[std::string(variable.name)] = variable.is;
    return contents;
}

namespace {

enum class Format { Ptx, Cubin, FatBinary };

// The image with its size, which is read where it is not known (0).
std::pair<Format, Bytes> image_at(const void* image, std::size_t bytes) {
    bool is_known = bytes != 0;
    Bytes all(image, is_known ? bytes : strnlen(static_cast<const char*>(image), 6));
    // A magic number without a NUL: as much is there, and the header behind it says how much more.
    if (is_cubin(all)) return {Format::Cubin, is_known ? all : Bytes(image, size_of_cubin(Bytes(image, 64)))};
    if (!is_known && is_fat_binary(Bytes(image, all.size() >= 4 ? 16 : 0)))
        all = Bytes(image, size_of_fat_binary(Bytes(image, 16)));
    if (is_fat_binary(all)) return {Format::FatBinary, all};
    return {Format::Ptx, is_known ? all : Bytes(image, strlen(static_cast<const char*>(image)))};
}

}  // namespace

Contents contents_of(const void* image, std::size_t bytes) {
    auto [format, all] = image_at(image, bytes);
    if (format == Format::Cubin) return contents_of_cubin(all);
    return format == Format::FatBinary ? contents_of_fat_binary(all) : contents_of_ptx(all);
}

}  // namespace check
