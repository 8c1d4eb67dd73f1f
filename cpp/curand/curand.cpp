// A cuRAND on top of the simulated driver, for programs that are checked without a GPU. Each function that generates
// writes its numbers on the generator's stream: other numbers than NVIDIA's, of the same distribution, which follow from
// the seed and the offset.
//
// The signatures are those of curand.h, with plain types: no header of cuRAND is needed to build this.
#include "library_call.hpp"
#include "not_simulated.hpp"
#include "random.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <random>

#define CURAND extern "C" __attribute__((visibility("default")))

namespace curand {

using u64 = std::uint64_t;
using u32 = std::uint32_t;

enum Status : int {
    kSuccess = 0,
    kNotInitialized = 101,
    kAllocationFailed = 102,
    kTypeError = 103,
    kOutOfRange = 104,
    kLengthNotMultiple = 105,
    kLaunchFailure = 201,
    kInitializationFailed = 203,
    kInternalError = 999,
};
enum Kind : int { kPseudo = 100, kQuasi = 200, kSobol64 = 203, kEnd = 205 };
constexpr int kVersion = 101000;

struct Generator {
    int kind;
    bool of_host;
    CUstream stream = nullptr;
    u64 seed = 0, offset = 0;  // the offset counts numbers

    bool is_pseudo() const { return kind < kQuasi; }
};

namespace {

// Words for the number at one offset, by which later offsets are not moved.
class Numbers {
  public:
    using result_type = u64;
    explicit Numbers(const Generator& generator) : offset_(generator.offset) {
        Random seeds{generator.seed};
        first_ = seeds.next();
    }
    void begin(u64 number) { random_.state = first_ + (offset_ + number) * kDraws * Random::kStep; }
    static constexpr u64 min() { return 0; }
    static constexpr u64 max() { return ~u64(0); }
    u64 operator()() { return random_.next(); }

    // Within (0, 1): cuRAND includes 1, which CuPy replaces in a kernel that computes nothing here.
    float uniform(float) { return (float(random_.next() >> 41) + 0.5f) * 0x1p-23f; }
    double uniform(double) { return (double(random_.next() >> 12) + 0.5) * 0x1p-52; }
    double normal() {  // the polar form would take a varying count of numbers
        double radius = std::sqrt(-2 * std::log(uniform(double())));
        return radius * std::cos(6.283185307179586 * uniform(double()));
    }

  private:
    static constexpr u64 kDraws = 64;  // words from one number to the next: few numbers take more
    u64 first_, offset_;
    Random random_;
};

Status status_of(CUresult result) {
    if (!result) return kSuccess;
    return result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT ? kInitializationFailed
                                                                                        : kLaunchFailure;
}

constexpr std::size_t kMost = 1 << 24;  // numbers that are made; an array of more repeats them

template <class Number, class Make>
void fill(Number* out, std::size_t count, Numbers numbers, Make make) {
    std::size_t made = std::min(count, kMost);
    for (std::size_t i = 0; i < made; i++) {
        numbers.begin(i);
        out[i] = make(numbers);
    }
    for (; made < count; made += std::min(made, count - made))
        memcpy(out + made, out, std::min(made, count - made) * sizeof(Number));
}

// `make(numbers)` is one number. A generator of the host's writes at once.
template <class Number, class Make>
Status generate(const char* name, Generator* generator, Number* out, std::size_t count, Make make) {
    if (!generator) return kNotInitialized;
    Numbers numbers(*generator);
    generator->offset += count;
    if (generator->of_host) {
        fill(out, count, numbers, make);
        return kSuccess;
    }
    auto run = [count, numbers, make](const library::Views& views) {
        fill(reinterpret_cast<Number*>(views[0]), count, numbers, make);
    };
    library::Call call{name, generator->stream, {library::extent_of(out, count * sizeof(Number), 'w')}, run, false};
    return status_of(xsim_library_call(&call));
}

template <class Number>
Status generate_uniform(const char* name, Generator* generator, Number* out, std::size_t count) {
    return generate(name, generator, out, count, [](Numbers& numbers) { return numbers.uniform(Number()); });
}

// cuRAND makes normal numbers in pairs.
template <class Number, class Shape>
Status generate_normal(const char* name, Generator* generator, Number* out, std::size_t count, Number mean,
                       Number deviation, Shape shape) {
    if (generator && generator->is_pseudo() && count % 2) return kLengthNotMultiple;
    return generate(name, generator, out, count, [mean, deviation, shape](Numbers& numbers) {
        return Number(shape(mean + deviation * numbers.normal()));
    });
}

double as_it_is(double number) { return number; }
double exponential(double number) { return std::exp(number); }

Status generate_poisson(const char* name, Generator* generator, u32* out, std::size_t count, double lambda) {
    if (!(lambda > 0)) return kOutOfRange;
    return generate(name, generator, out, count,
                    [distribution = std::poisson_distribution<u32>(lambda)](Numbers& numbers) mutable {
                        return distribution(numbers);
                    });
}

Status create(Generator** generator, int kind, bool of_host) {
    if (kind < kPseudo || kind >= kEnd) return kTypeError;
    if (!of_host)
        if (CUresult refused = library::begin()) return status_of(refused);
    *generator = new (std::nothrow) Generator{kind, of_host};
    return *generator ? kSuccess : kAllocationFailed;
}

template <class Change>
Status change(Generator* generator, Change change) {
    if (!generator) return kNotInitialized;
    change(*generator);
    return kSuccess;
}

}  // namespace

}  // namespace curand

using namespace curand;

CURAND Status curandCreateGenerator(Generator** generator, int kind) { return create(generator, kind, false); }
CURAND Status curandCreateGeneratorHost(Generator** generator, int kind) { return create(generator, kind, true); }
CURAND Status curandDestroyGenerator(Generator* generator) {
    if (!generator) return kNotInitialized;
    delete generator;
    return kSuccess;
}
CURAND Status curandGetVersion(int* version) {
    *version = kVersion;
    return kSuccess;
}
CURAND Status curandGetProperty(int part, int* value) {  // major, minor, patch
    if (part < 0 || part > 2) return kOutOfRange;
    *value = part == 0 ? kVersion / 10000 : part == 1 ? kVersion / 100 % 100 : kVersion % 100;
    return kSuccess;
}

CURAND Status curandSetStream(Generator* generator, CUstream stream) {
    return change(generator, [&](Generator& one) { one.stream = stream; });
}
CURAND Status curandSetPseudoRandomGeneratorSeed(Generator* generator, unsigned long long seed) {
    if (generator && !generator->is_pseudo()) return kTypeError;
    return change(generator, [&](Generator& one) {
        one.seed = seed;
        one.offset = 0;
    });
}
CURAND Status curandSetGeneratorOffset(Generator* generator, unsigned long long offset) {
    return change(generator, [&](Generator& one) { one.offset = offset; });
}
CURAND Status curandSetGeneratorOrdering(Generator* generator, int) {
    return change(generator, [](Generator&) {});
}
CURAND Status curandSetQuasiRandomGeneratorDimensions(Generator* generator, unsigned) {
    if (generator && generator->is_pseudo()) return kTypeError;
    return change(generator, [](Generator&) {});
}
CURAND Status curandGenerateSeeds(Generator* generator) {
    return change(generator, [](Generator&) {});
}

CURAND Status curandGenerate(Generator* generator, u32* out, std::size_t count) {
    return generate(__func__, generator, out, count, [](Numbers& numbers) { return u32(numbers() >> 32); });
}
CURAND Status curandGenerateLongLong(Generator* generator, u64* out, std::size_t count) {
    if (generator && generator->kind < kSobol64) return kTypeError;
    return generate(__func__, generator, out, count, [](Numbers& numbers) { return numbers(); });
}
CURAND Status curandGenerateUniform(Generator* generator, float* out, std::size_t count) {
    return generate_uniform(__func__, generator, out, count);
}
CURAND Status curandGenerateUniformDouble(Generator* generator, double* out, std::size_t count) {
    return generate_uniform(__func__, generator, out, count);
}
CURAND Status curandGenerateNormal(Generator* generator, float* out, std::size_t count, float mean, float deviation) {
    return generate_normal(__func__, generator, out, count, mean, deviation, as_it_is);
}
CURAND Status curandGenerateNormalDouble(Generator* generator, double* out, std::size_t count, double mean,
                                         double deviation) {
    return generate_normal(__func__, generator, out, count, mean, deviation, as_it_is);
}
CURAND Status curandGenerateLogNormal(Generator* generator, float* out, std::size_t count, float mean,
                                      float deviation) {
    return generate_normal(__func__, generator, out, count, mean, deviation, exponential);
}
CURAND Status curandGenerateLogNormalDouble(Generator* generator, double* out, std::size_t count, double mean,
                                            double deviation) {
    return generate_normal(__func__, generator, out, count, mean, deviation, exponential);
}
CURAND Status curandGeneratePoisson(Generator* generator, u32* out, std::size_t count, double lambda) {
    return generate_poisson(__func__, generator, out, count, lambda);
}
CURAND Status curandGeneratePoissonMethod(Generator* generator, u32* out, std::size_t count, double lambda, int) {
    return generate_poisson(__func__, generator, out, count, lambda);
}

NOT_SIMULATED(curandCreatePoissonDistribution, kInternalError)
NOT_SIMULATED(curandDestroyDistribution, kInternalError)
NOT_SIMULATED(curandGetDirectionVectors32, kInternalError)
NOT_SIMULATED(curandGetDirectionVectors64, kInternalError)
NOT_SIMULATED(curandGetScrambleConstants32, kInternalError)
NOT_SIMULATED(curandGetScrambleConstants64, kInternalError)
