// CuPy's sorting on top of the simulated driver, for programs that are checked without a GPU. In CuPy that is Thrust,
// with NVIDIA's runtime linked in: xlogmem/check/neighbours/cupy_thrust.py calls these in its place. Of other parts of
// CuPy that are such, the check knows what they do to memory: cupy_generators.py says that here.
#include "library_call.hpp"

#include <algorithm>
#include <complex>
#include <cstddef>
#include <numeric>
#include <utility>

#define THRUST extern "C" __attribute__((visibility("default")))

namespace thrust {

using u64 = std::uint64_t;
using i64 = std::int64_t;

enum Result : int { kSuccess = 0, kNoSuchType = -1 };  // above 0: the driver's

namespace {

struct Half {
    std::uint16_t bits;
};

// NaN comes last, as in NumPy.
template <class T>
bool before(T a, T b) {
    return a < b || (b != b && a == a);
}
bool before(Half a, Half b) {
    auto key = [](Half half) {  // larger where the number is larger
        int size = half.bits & 0x7fff;
        return size > 0x7c00 ? 0x8000 : half.bits >> 15 ? -size : size;
    };
    return key(a) < key(b);
}
template <class T>
bool before(std::complex<T> a, std::complex<T> b) {
    if (before(a.real(), b.real())) return true;
    return !before(b.real(), a.real()) && before(a.imag(), b.imag());
}

// `use(T())` for NumPy's character of a type.
template <class Use>
int with_type(char character, Use use) {
    switch (character) {
        case '?':
        case 'B': return use(std::uint8_t());
        case 'b': return use(std::int8_t());
        case 'h': return use(std::int16_t());
        case 'H': return use(std::uint16_t());
        case 'i': return use(std::int32_t());
        case 'I': return use(std::uint32_t());
        case 'l':
        case 'q': return use(i64());
        case 'L':
        case 'Q': return use(u64());
        case 'e': return use(Half());
        case 'f': return use(float());
        case 'd': return use(double());
        case 'F': return use(std::complex<float>());
        case 'D': return use(std::complex<double>());
        default: return kNoSuchType;
    }
}

int submit(const char* name, CUstream stream, std::vector<library::Extent> extents, library::Run run) {
    library::Call call{name, stream, std::move(extents), std::move(run), false};
    return xsim_library_call(&call);
}

// The order of `count` keys, put on top of the order that `places` has.
template <class T>
void order(const T* keys, i64* places, u64 count) {
    std::stable_sort(places, places + count, [&](i64 a, i64 b) { return before(keys[a], keys[b]); });
}

}  // namespace

}  // namespace thrust

using namespace thrust;

// Each of `rows` rows of `columns` numbers.
THRUST int xlogmem_sort(char type, void* data, u64 rows, u64 columns, CUstream stream) {
    return with_type(type, [&](auto one) {
        using T = decltype(one);
        auto run = [rows, columns](const library::Views& views) {
            auto* first = reinterpret_cast<T*>(views[0]);
            for (u64 row = 0; row < rows; row++, first += columns)
                std::stable_sort(first, first + columns, [](T a, T b) { return before(a, b); });
        };
        return submit("cupy.cuda.thrust.sort", stream, {library::extent_of(data, rows * columns * sizeof(T), 'b')},
                      run);
    });
}

// The same, with the places at which the numbers were, in their row.
THRUST int xlogmem_argsort(char type, i64* places, void* data, u64 rows, u64 columns, CUstream stream) {
    return with_type(type, [&](auto one) {
        using T = decltype(one);
        auto run = [rows, columns](const library::Views& views) {
            auto* to = reinterpret_cast<i64*>(views[0]);
            auto* first = reinterpret_cast<T*>(views[1]);
            for (u64 row = 0; row < rows; row++, to += columns, first += columns) {
                std::iota(to, to + columns, 0);
                std::vector<T> unsorted(first, first + columns);
                order(unsorted.data(), to, columns);
                for (u64 i = 0; i < columns; i++) first[i] = unsorted[u64(to[i])];
            }
        };
        u64 count = rows * columns;
        return submit(
            "cupy.cuda.thrust.argsort", stream,
            {library::extent_of(places, count * sizeof(i64), 'w'), library::extent_of(data, count * sizeof(T), 'b')},
            run);
    });
}

// The order of `columns` numbers by several keys: the last of the rows counts first.
THRUST int xlogmem_lexsort(char type, i64* places, const void* keys, u64 rows, u64 columns, CUstream stream) {
    return with_type(type, [&](auto one) {
        using T = decltype(one);
        auto run = [rows, columns](const library::Views& views) {
            auto* to = reinterpret_cast<i64*>(views[0]);
            std::iota(to, to + columns, 0);
            for (u64 row = 0; row < rows; row++)
                order(reinterpret_cast<const T*>(views[1]) + row * columns, to, columns);
        };
        return submit("cupy.cuda.thrust.lexsort", stream,
                      {library::extent_of(places, columns * sizeof(i64), 'w'),
                       library::extent_of(keys, rows * columns * sizeof(T), 'r')},
                      run);
    });
}

// A launch that computes nothing. `name` lives as long as the process; of each extent, `uses` has 'r', 'w' or 'b'.
THRUST int xlogmem_touch(const char* name, CUstream stream, u64 count, const u64* addresses, const u64* bytes,
                         const char* uses) {
    std::vector<library::Extent> extents;
    for (u64 i = 0; i < count; i++) extents.push_back({addresses[i], bytes[i], 1, bytes[i], uses[i]});
    return submit(name, stream, std::move(extents), {});
}
