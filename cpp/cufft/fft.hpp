// A cuFFT on top of the simulated driver, for programs that are checked without a GPU. A transform reads its input and
// writes its output and its work area on the stream of its plan, and is computed in double precision.
//
// The signatures are those of cufft.h and cufftXt.h, with plain types: no header of cuFFT is needed to build this.
#pragma once

#include "element_types.hpp"
#include "library_call.hpp"

#include <array>
#include <complex>
#include <cstddef>
#include <map>

#define CUFFT extern "C" __attribute__((visibility("default")))

namespace cufft {

using i64 = long long;
using u64 = std::uint64_t;
using Complex = std::complex<double>;
using namespace element_types;

enum Status : int {
    kSuccess = 0,
    kInvalidPlan = 1,
    kAllocationFailed = 2,
    kInvalidType = 3,
    kInvalidValue = 4,
    kExecutionFailed = 6,
    kSetupFailed = 7,
    kInvalidSize = 8,
    kNoWorkspace = 13,
    kNotSupported = 16,
};

enum Kind : int { kComplex, kToComplex, kToReal };
enum Direction : int { kForward = -1, kInverse = 1 };

// Three dimensions, of which the first may be 1.
using Sizes = std::array<i64, 3>;
inline i64 product(const Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Where the numbers of one side are: `distance` lies between one transform and the next, in numbers.
struct Layout {
    Sizes embed = {1, 1, 1};
    i64 stride = 1, distance = 0;

    bool operator==(const Layout&) const = default;
    i64 place(i64 plane, i64 row, i64 column) const { return ((plane * embed[1] + row) * embed[2] + column) * stride; }
};

struct Shape {
    Kind kind;
    bool is_double;
    Sizes sizes = {1, 1, 1};
    i64 batch = 1;
    bool is_basic = true;  // else the layouts are the program's
    Layout in, out;

    Sizes half() const { return {sizes[0], sizes[1], sizes[2] / 2 + 1}; }
    Sizes numbers_in() const { return kind == kToReal ? half() : sizes; }
    Sizes numbers_out() const { return kind == kToComplex ? half() : sizes; }
    i64 bytes_in() const { return (is_double ? 8 : 4) * (kind == kToComplex ? 1 : 2); }
    i64 bytes_out() const { return (is_double ? 8 : 4) * (kind == kToReal ? 1 : 2); }
    void lay_out(bool in_place);  // of a basic one
};

struct Plan {
    Shape shape;
    bool is_made = false, allocates = true;
    std::size_t work = 0;  // bytes
    CUdeviceptr own = 0;  // the work area that the library has allocated
    const void* area = nullptr;  // the program's
    CUstream stream = nullptr;
    bool loads = false, stores = false;  // by a function of the program's, which may access any memory
    std::map<int, i64> properties;
};
Plan* find_plan(int handle);  // or nullptr

std::size_t work_of(const Shape& shape);
double cost_of(const Shape& shape);  // in multiplications
void transform(const Shape& shape, int direction, const unsigned char* in, unsigned char* out);

}  // namespace cufft
