// Facts about kernels: see kernels.hpp.
#include "kernels.hpp"

#include "driver.hpp"

#include "kernels/binary.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace check {

void KernelTable::add_function(CUfunction function, u64 handle, const char* name) {
    auto library = libraries_.find(handle);
    owners_[function] = library == libraries_.end() ? handle : library->second;
    auto image = images_.find(handle);
    if (image == images_.end() || !image->second) return;
    auto facts = image->second->find(name);
    if (facts != image->second->end()) facts_[function] = {image->second, &facts->second};
}

std::shared_ptr<const Facts> KernelTable::facts(CUfunction function) const {
    auto found = facts_.find(function);
    return found == facts_.end() ? nullptr : found->second;
}

void KernelTable::forget(u64 handle) {
    images_.erase(handle);
    libraries_.erase(handle);
    std::erase_if(facts_, [&](auto& facts) { return owners_[facts.first] == handle; });
    std::erase_if(kernels_, [&](auto& kernel) {
        auto owner = owners_.find(kernel.first);
        return owner == owners_.end() || owner->second == handle;
    });
    std::erase_if(owners_, [&](auto& owner) { return owner.second == handle; });
}

Image read_image(const void* image) {
    // Binaries begin with magic numbers, of which none is text.
    const char* text = static_cast<const char*>(image);
    if (!text) return nullptr;
    bool is_text = std::all_of(text, text + strnlen(text, 4),
                               [](char c) { return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~'); });
    bool is_code = is_cubin(Bytes(text, strnlen(text, 6)));
    return is_text || is_code ? std::make_shared<Kernels>(contents_of(image, 0).kernels) : nullptr;
}

// A launch takes a function of a module or a kernel of a library, and does not say which: one of the two answers.
std::vector<Parameter> parameters_of(CUfunction function) {
    const Driver& driver = Driver::get();
    std::vector<Parameter> parameters;
    for (Driver::ParamInfo info : {driver.function_parameter, driver.kernel_parameter}) {
        size_t offset = 0, bytes = 0;
        while (info && info(function, parameters.size(), &offset, &bytes) == CUDA_SUCCESS)
            parameters.push_back({u32(offset), u32(bytes)});
        if (!parameters.empty()) break;
    }
    return parameters;
}

std::vector<Word> words_of(const std::vector<Parameter>& parameters, const Facts* text, const std::string& mangled) {
    Facts named{parameters, all_words(parameters), nullptr};
    if (!text) add_roles_of_signature(mangled, named);
    if (!text) add_arrays(mangled, named);
    std::vector<Word> words;
    for (const Pointer& pointer : (text ? *text : named).pointers)
        words.push_back({pointer.offset, pointer.role, pointer.found, pointer.followed});
    return words;
}

void words_of_launch(const Kernel& kernel, const std::vector<u8>& space, const u32 grid[3],
                     std::vector<LaunchedWord>* words) {
    u32 last = ~u32(0);
    each_word(
        kernel.words, kernel.layout, space, grid,
        [&](const Word& word) { words->push_back({word.offset, word.number, word.role, word.found, word.followed}); },
        [&](u32 offset, u32 list) {
            words->push_back({offset, kernel.lists[list], Role::Unknown, false, false, list != last});
            last = list;
        });
}

}  // namespace check
