// What the engine of the check costs: nanoseconds for a launch of a kernel with seven words of parameters, of which four
// are addresses, under a lock that no other thread wants.
//
//     g++ -std=c++17 -O2 -I cpp benchmarks/check_engine.cpp cpp/engine/*.cpp -o /tmp/check_engine
//     /tmp/check_engine
#include "engine/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <random>

namespace {

constexpr int kStreams = 8, kLaunches = 300000, kTurns = 5;
constexpr check::u64 kBase = 0x7f0000000000, kBytes = 4096;

struct Program {
    const char* what;
    int blocks, streams;
    bool waits;  // each fourth launch comes after an event of the next stream
};

double run(const Program& program) {
    check::Engine engine;
    std::mutex mutex;
    std::mt19937_64 random(1);
    std::vector<check::Stream*> streams;
    for (int i = 0; i < kStreams; i++) streams.push_back(engine.create_stream(1, check::u64(i) + 1, false));
    for (int i = 0; i < program.blocks; i++) engine.allocate(nullptr, {}, kBase + check::u64(i) * kBytes, kBytes);
    std::vector<check::u64> pointers(std::size_t(kLaunches) * 4);
    for (auto& pointer : pointers) pointer = kBase + random() % check::u64(program.blocks) * kBytes;
    check::u32 name = engine.name("kernel");
    std::vector<check::Range> ranges;
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; i++) {
        std::lock_guard<std::mutex> lock(mutex);
        check::Stream& stream = *streams[std::size_t(i % program.streams)];
        if (program.waits && i % 4 == 0) {
            engine.record(7, *streams[std::size_t((i + 1) % program.streams)]);
            engine.wait(stream, 7);
        }
        ranges.clear();
        for (int k = 0; k < 4; k++)
            engine.add_pointer(ranges, pointers[std::size_t(i) * 4 + std::size_t(k)],
                               k == 3 ? check::Role::Write : check::Role::Read);
        for (check::u64 word : {check::u64(100), check::u64(0x3ff0000000000000), check::u64(12345678)})
            engine.add_pointer(ranges, word, check::Role::Unknown);
        engine.work(stream, {name, 1}, ranges.data(), ranges.size());
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kLaunches;
}

}  // namespace

int main() {
    for (const Program& program :
         {Program{"one stream, 50 blocks", 50, 1, false},
          Program{"one stream, 10,000 blocks at random", 10000, 1, false},
          Program{"8 streams, 10,000 blocks, a record and a wait each 4th launch", 10000, 8, true}}) {
        std::vector<double> turns;
        for (int i = 0; i < kTurns; i++) turns.push_back(run(program));
        std::sort(turns.begin(), turns.end());
        printf("%-64s %6.0f ns a launch (%.0f to %.0f)\n", program.what, turns[kTurns / 2], turns.front(),
               turns.back());
    }
}
