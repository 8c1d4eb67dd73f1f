// What the engine of the check costs: nanoseconds for a launch of a kernel with seven words of parameters, of which four
// are addresses, under a lock that no other thread wants. Then for launches of a hundred kernels whose numbers the engine
// compares, as those without PTX: three addresses each, and arrays that take turns.
//
//     g++ -std=c++17 -O2 -I cpp benchmarks/check_engine.cpp cpp/engine/*.cpp -o /tmp/check_engine
//     /tmp/check_engine
#include "engine/launched.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
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

struct Numbers {
    const char* what;
    int arrays, words;  // of each kernel
};

double run(const Numbers& program) {
    constexpr int kKernels = 100, kBlocks = 2000, kPointers = 3;
    check::Engine engine;
    check::Stream& stream = *engine.create_stream(1, 1, false);
    for (int i = 0; i < kBlocks; i++) engine.allocate(nullptr, {}, kBase + check::u64(i) * kBytes, kBytes);
    std::vector<check::u32> words;
    for (int i = 0; i < kKernels * kPointers; i++) words.push_back(engine.add_word());
    std::mt19937_64 random(1);
    std::vector<std::pair<int, std::vector<check::u8>>> launches;  // kernels, and their parameters
    for (int i = 0; i < program.arrays * kKernels; i++) {
        std::vector<check::u8> space(std::size_t(program.words) * 8);
        for (int word = 0; word < program.words; word++) {
            check::u64 value = word < kPointers ? kBase + random() % kBlocks * kBytes : check::u64(i / kKernels + word);
            memcpy(space.data() + word * 8, &value, 8);
        }
        launches.push_back({i % kKernels, space});
    }
    std::shuffle(launches.begin(), launches.end(), random);
    std::vector<check::Range> ranges;
    check::u32 name = engine.name("kernel");
    int turns = kLaunches / int(launches.size());
    auto start = std::chrono::steady_clock::now();
    for (int turn = 0; turn < turns; turn++)
        for (const auto& [kernel, space] : launches) {
            check::Launched launched(engine, stream, space, ranges);
            for (int i = 0; i < kPointers; i++)
                launched.add(std::size_t(i) * 8,
                             {words[std::size_t(kernel * kPointers + i)], i ? check::Role::Read : check::Role::Write});
            engine.work(stream, {name, 1}, ranges.data(), ranges.size());
        }
    double taken = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    return taken / turns / double(launches.size());
}

template <class Program>
void print(const Program& program) {
    std::vector<double> turns;
    for (int i = 0; i < kTurns; i++) turns.push_back(run(program));
    std::sort(turns.begin(), turns.end());
    printf("%-64s %6.0f ns a launch (%.0f to %.0f)\n", program.what, turns[kTurns / 2], turns.front(), turns.back());
}

}  // namespace

int main() {
    for (const Program& program :
         {Program{"one stream, 50 blocks", 50, 1, false},
          Program{"one stream, 10,000 blocks at random", 10000, 1, false},
          Program{"8 streams, 10,000 blocks, a record and a wait each 4th launch", 10000, 8, true}})
        print(program);
    for (const Numbers& program : {Numbers{"numbers: 5 arrays of each kernel, 12 words", 5, 12},
                                   Numbers{"numbers: 50 arrays of each kernel, 12 words", 50, 12},
                                   Numbers{"numbers: 50 arrays of each kernel, 40 words", 50, 40}})
        print(program);
}
