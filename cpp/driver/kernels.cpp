// The built-in kernels, and finding the entries of a PTX text.
#include "kernels.hpp"

#include "memory.hpp"
#include "unknown.hpp"

#include "kernels/names.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

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

// Names are kept: findings name kernels of modules that are gone.
const char* kept(const std::string& name) {
    static auto& names = *new std::set<std::string>;
    return names.insert(name).first->c_str();
}

// Where a module has no facts about its kernels, another image may have them: the image of which the module was made.
const check::Facts* facts_of(const Module* module, const std::string& name) {
    const check::Facts* elsewhere = learned_facts(name);
    auto own = module->facts.find(name);
    if (own == module->facts.end()) return elsewhere;
    auto same = [](const check::Parameter& a, const check::Parameter& b) {
        return a.offset == b.offset && a.size == b.size;
    };
    const auto &here = own->second.parameters, *there = elsewhere ? &elsewhere->parameters : nullptr;
    bool fits = there && std::equal(here.begin(), here.end(), there->begin(), there->end(), same);
    return fits && module->binary ? elsewhere : &own->second;
}

void add_function(Module* module, const std::string& name) {
    auto function = std::make_unique<Function>();
    function->name = kept(name);
    function->shown = kept(check::readable(name.c_str()));
    function->kernel = find_kernel(name);
    function->module = module;
    function->facts = facts_of(module, name);
    if (function->facts) {
        function->layout = check::StructLayout::of(name, function->facts->parameters);
        function->arrays = check::ElementwiseArrays::of(name, function->facts->parameters);
    }
    module->functions[name] = std::move(function);
}

// Names are written into reports as they are.
bool is_plain(const std::string& name) {
    return std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c != '"' && c != '\\' && c < 127; });
}

// The entries of PTX, including entries of which only the name is understood.
std::vector<std::string> entries_of(const char* text) {
    std::vector<std::string> names;
    for (const char* at = text; (at = strstr(at, ".entry"));) {
        at += strlen(".entry");
        while (isspace(static_cast<unsigned char>(*at))) at++;
        std::size_t length = strcspn(at, "({ \t\r\n");
        names.emplace_back(at, length);
        at += length;
    }
    return names;
}

}  // namespace

const Kernel* find_kernel(const std::string& name) {
    for (const Kernel& kernel : kernels())
        if (name == kernel.name) return &kernel;
    for (const Kernel& kernel : guard_kernels())
        if (name == kernel.name) return &kernel;
    return nullptr;
}

HandleTable<Module>& modules() {
    static auto& table = *new HandleTable<Module>(0x3100000000ull);
    return table;
}
HandleTable<Function>& functions() {
    static auto& table = *new HandleTable<Function>(0x3200000000ull);
    return table;
}

Module* load_module(const void* image) {
    const char* text = static_cast<const char*>(image);
    auto module = std::make_unique<Module>();
    module->binary = !strncmp(text,
                              "\x7f"
                              "ELF",
                              4) ||
                     !strncmp(text, "\x50\xed\x55\xba", 4);  // cubin, fat binary
    if (!module->binary && !strstr(text, ".version")) return nullptr;  // not PTX
    check::Contents contents = check::contents_of(image, 0);
    module->facts = std::move(contents.kernels);
    module->variables = std::move(contents.variables);
    for (auto& entry : module->facts) {
        check::add_roles_of_signature(entry.first, entry.second);
        check::add_arrays(entry.first, entry.second);
    }
    std::vector<std::string> names = module->binary ? std::vector<std::string>{} : entries_of(text);
    for (auto& entry : module->facts) names.push_back(entry.first);
    for (const std::string& name : names)
        if (is_plain(name) && !module->functions.count(name)) add_function(module.get(), name);
    return module.release();
}

Function* get_function(Module* module, const char* name) {
    auto found = module->functions.find(name);
    if (found == module->functions.end()) {
        if (!module->binary || !module->facts.empty() || !is_plain(name)) return nullptr;
        add_function(module, name);
        found = module->functions.find(name);
    }
    return found->second.get();
}

}  // namespace sim
