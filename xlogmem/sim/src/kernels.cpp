// The built-in kernels, and finding the entries of a PTX text.
#include "kernels.hpp"

#include "memory.hpp"

#include <cctype>
#include <cstring>

namespace sim {

void Parameters::add(const void* value, std::size_t bytes) {
    u64 copy = 0;
    memcpy(&copy, value, bytes);
    values_.push_back(copy);
}

u64 Parameters::as_u64(std::size_t index) const { return values_[index]; }
u32 Parameters::as_u32(std::size_t index) const { return u32(values_[index]); }

namespace {

// Plain words: the operations of one simulated device run one at a time.
u32* words(u64 address) { return reinterpret_cast<u32*>(memory().view(address)); }

const std::vector<Kernel>& kernels() {
    static const auto& table = *new std::vector<Kernel>{
        {"xlogmem_delay", {8}, [](Work&, const Parameters&) {}, [](const Parameters&) {}},
        {"xlogmem_fill_u32",
         {8, 4, 4},  // dst, value, count
         [](Work& work, const Parameters& p) { work.touches(p.as_u64(0), u64(p.as_u32(2)) * 4, Use::Write); },
         [](const Parameters& p) {
             for (u32 i = 0; i < p.as_u32(2); i++) words(p.as_u64(0))[i] = p.as_u32(1);
         }},
        {"xlogmem_copy_u32",
         {8, 8, 4},  // dst, src, count
         [](Work& work, const Parameters& p) {
             work.touches(p.as_u64(1), u64(p.as_u32(2)) * 4, Use::Read);
             work.touches(p.as_u64(0), u64(p.as_u32(2)) * 4, Use::Write);
         },
         [](const Parameters& p) { memmove(words(p.as_u64(0)), words(p.as_u64(1)), std::size_t(p.as_u32(2)) * 4); }},
        {"xlogmem_add_u32",
         {8, 4, 4},  // dst, value, count
         [](Work& work, const Parameters& p) { work.touches(p.as_u64(0), u64(p.as_u32(2)) * 4, Use::ReadWrite); },
         [](const Parameters& p) {
             for (u32 i = 0; i < p.as_u32(2); i++) words(p.as_u64(0))[i] += p.as_u32(1);
         }},
        {"xlogmem_count_unequal_u32",
         {8, 8, 4, 4},  // result, src, value, count
         [](Work& work, const Parameters& p) {
             work.touches(p.as_u64(1), u64(p.as_u32(3)) * 4, Use::Read);
             work.touches(p.as_u64(0), 4, Use::ReadWrite);
         },
         [](const Parameters& p) {
             u32 unequal = 0;
             for (u32 i = 0; i < p.as_u32(3); i++) unequal += words(p.as_u64(1))[i] != p.as_u32(2);
             *words(p.as_u64(0)) += unequal;
         }},
    };
    return table;
}

void add_function(Module* module, const std::string& name) {
    auto function = std::make_unique<Function>();
    function->name = name;
    function->kernel = find_kernel(name);
    function->module = module;
    module->functions[name] = std::move(function);
}

}  // namespace

const Kernel* find_kernel(const std::string& name) {
    for (const Kernel& kernel : kernels())
        if (name == kernel.name) return &kernel;
    for (const Kernel& kernel : guard_kernels())
        if (name == kernel.name) return &kernel;
    return nullptr;
}

Module* load_module(const void* image) {
    const char* text = static_cast<const char*>(image);
    auto module = std::make_unique<Module>();
    if (!memcmp(text,
                "\x7f"
                "ELF",
                4) ||
        !memcmp(text, "\x50\xed\x55\xba", 4)) {  // cubin, fat binary
        module->binary = true;
        return module.release();
    }
    if (!strstr(text, ".version")) return nullptr;  // not PTX
    for (const char* at = text; (at = strstr(at, ".entry"));) {
        at += strlen(".entry");
        while (isspace(static_cast<unsigned char>(*at))) at++;
        const char* end = at;
        while (*end && *end != '(' && *end != '{' && !isspace(static_cast<unsigned char>(*end))) end++;
        add_function(module.get(), std::string(at, end));
        at = end;
    }
    return module.release();
}

Function* get_function(Module* module, const char* name) {
    auto found = module->functions.find(name);
    if (found == module->functions.end()) {
        if (!module->binary) return nullptr;
        add_function(module, name);
        found = module->functions.find(name);
    }
    return found->second.get();
}

}  // namespace sim
