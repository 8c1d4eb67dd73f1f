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

// Guarded memory as the two kernels of xlogmem/_guard_kernels.py see it; `at` is the place of the first parameter.
struct Guarded {
    u64 base, user, user_end, seed, poison, first, count, gap_at, gap;
    u32 select, blocks;

    Guarded(const Parameters& p, std::size_t at)
        : base(p.as_u64(at)),
          user(p.as_u64(at + 1)),
          user_end(p.as_u64(at + 2)),
          seed(p.as_u64(at + 3)),
          poison(p.as_u64(at + 4)),
          first(p.as_u64(at + 5)),
          count(p.as_u64(at + 6)),
          gap_at(p.as_u64(at + 7)),
          gap(p.as_u64(at + 8)),
          select(p.as_u32(at + 9)),
          blocks(p.as_u32(at + 10)) {}

    void declare(Work& work, Use use) const {
        if (!count) return;
        if (select & 1) work.touches(base, user - base, use);
        if (select & 2) work.touches(user, user_end - user, use);
        if (select & 1) work.touches(user_end, base + (first + count) * 8 + gap - user_end, use);
    }

    // Calls visit(address, region, expected) for each selected byte; regions: 0 before, 1 inside, 2 after.
    template <class Visit>
    void each(Visit visit) const {
        for (u64 i = 0; i < count; i++) {
            u64 word = base + (first + i) * 8 + (i >= gap_at ? gap : 0);
            u64 canary = word * 0x9E3779B97F4A7C15ull + seed;
            canary ^= canary >> 29;
            canary *= 0xBF58476D1CE4E5B9ull;
            canary = ((canary ^ canary >> 32) & 0x3F3F3F3F3F3F3F3Full) | 0x8080808080808080ull;
            for (u32 byte = 0; byte < 8; byte++) {
                u32 region = word + byte < user ? 0 : word + byte < user_end ? 1 : 2;
                if (!(select & (region == 1 ? 2 : 1))) continue;
                visit(word + byte, region, u8((region == 1 ? poison : canary) >> byte * 8));
            }
        }
    }
};

void guard_fill(const Guarded& guarded) {
    guarded.each([](u64 address, u32, u8 expected) { *memory().view(address) = expected; });
}

void guard_check(u64 result, const Guarded& guarded) {
    u64 found[6] = {~0ull, ~0ull, ~0ull, 0, 0, 0};
    guarded.each([&](u64 address, u32 region, u8 expected) {
        u8 seen = *memory().view(address);
        if (seen == expected) return;
        if (!found[3 + region]++) found[region] = (address - guarded.base) << 8 | seen;
    });
    u64* words = reinterpret_cast<u64*>(result);  // of the host, which may be looking
    for (u32 block = 0; block < guarded.blocks; block++, words += 8) {
        for (u32 i = 0; i < 6; i++) __atomic_store_n(words + i, block ? (i < 3 ? ~0ull : 0) : found[i], __ATOMIC_RELAXED);
        __atomic_store_n(words + 6, 1, __ATOMIC_RELEASE);
    }
}

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
        {"xlogmem_guard_fill",
         {8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4},  // see Guarded
         [](Work& work, const Parameters& p) { Guarded(p, 0).declare(work, Use::Write); },
         [](const Parameters& p) { guard_fill(Guarded(p, 0)); }},
        {"xlogmem_guard_check",
         {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4},  // result, the same
         [](Work& work, const Parameters& p) {
             Guarded(p, 1).declare(work, Use::Read);
             work.touches(p.as_u64(0), u64(p.as_u32(11)) * 64, Use::Write);
         },
         [](const Parameters& p) { guard_check(p.as_u64(0), Guarded(p, 1)); }},
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
