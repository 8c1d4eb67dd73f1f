// Random numbers: of the simulated driver's schedules, and of a simulated cuRAND.
#pragma once

#include <cstdint>

// SplitMix64: small, seedable, the same on every machine.
struct Random {
    static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;
    std::uint64_t state = 0;
    std::uint64_t next() {
        std::uint64_t z = (state += kStep);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
};
