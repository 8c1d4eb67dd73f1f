// Tasks of CUDASTF for stf_tasks.py: tokens, which stand for data that it does not manage, as xlogmem's blocks do.
#include <chrono>
#include <utility>
#include <vector>

#include <cuda/experimental/stf.cuh>

using namespace cuda::experimental::stf;
using clock_type = std::chrono::steady_clock;

template <std::size_t... Others>
static double time_tasks(long count, std::index_sequence<Others...>) {
    stream_ctx context;
    std::vector<decltype(context.token())> tokens;
    for (std::size_t i = 0; i <= sizeof...(Others); ++i) tokens.push_back(context.token());
    const auto one = [&] { context.task(tokens[0].rw(), tokens[Others + 1].read()...)->*[](cudaStream_t) {}; };
    for (std::size_t i = 0; i <= sizeof...(Others); ++i) context.task(tokens[i].write())->*[](cudaStream_t) {};
    for (int i = 0; i < 100; ++i) one();
    const auto begun = clock_type::now();
    for (long i = 0; i < count; ++i) one();
    const std::chrono::duration<double, std::nano> took = clock_type::now() - begun;
    context.finalize();
    return took.count() / count;
}

// Nanoseconds that a task takes which writes one token and reads the others; negative for another number of tokens.
extern "C" double stf_task_ns(int tokens, long count) {
    switch (tokens) {
        case 1: return time_tasks(count, std::make_index_sequence<0>());
        case 4: return time_tasks(count, std::make_index_sequence<3>());
        case 16: return time_tasks(count, std::make_index_sequence<15>());
        default: return -1;
    }
}
