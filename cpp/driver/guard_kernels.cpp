// The kernels of a guard of memory: see xlogmem/resources/guard_kernels.py.
#include "kernels.hpp"
#include "memory.hpp"

namespace sim {

namespace {

// Guarded memory as both see it; `at` is the place of the first parameter.
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
        for (u32 i = 0; i < 6; i++)
            __atomic_store_n(words + i, block ? (i < 3 ? ~0ull : 0) : found[i], __ATOMIC_RELAXED);
        __atomic_store_n(words + 6, 1, __ATOMIC_RELEASE);
    }
}

}  // namespace

const std::vector<Kernel>& guard_kernels() {
    static const auto& table = *new std::vector<Kernel>{
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

}  // namespace sim
