// A cuBLAS on top of the simulated driver, for programs that are checked without a GPU. Each function reads and writes
// what its documentation says, on the stream of its handle, and computes it in double precision.
//
// The signatures are those of cublas_api.h, with plain types: no header of cuBLAS is needed to build this. Matrices are
// stored by columns.
#pragma once

#include "element_types.hpp"
#include "library_call.hpp"

#include <complex>
#include <cstddef>
#include <utility>

#define CUBLAS extern "C" __attribute__((visibility("default")))

namespace cublas {

using u8 = unsigned char;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;
using Complex = std::complex<double>;

enum Status : int {
    kSuccess = 0,
    kNotInitialized = 1,
    kAllocationFailed = 3,
    kInvalidValue = 7,
    kExecutionFailed = 13,
    kInternalError = 14,
    kNotSupported = 15,
};
Status status_of(CUresult result);

using namespace element_types;
Complex load(const u8* at, Type type);
void store(u8* at, Type type, const Complex& value);

enum Operation : int { kAsIs = 0, kTransposed = 1, kConjugated = 2 };
inline bool is_operation(int operation) { return operation >= kAsIs && operation <= kConjugated; }
enum Side : int { kLeft = 0, kRight = 1 };
enum Fill : int { kLower = 0, kUpper = 1 };

// op(A) X = alpha B or X op(A) = alpha B, of a triangle; B has m rows and n columns, and X takes its place.
struct Equations {
    int side, fill, operation, diagonal;
    i64 m, n;

    i64 order() const { return side == kLeft ? m : n; }
    bool has_unit_diagonal() const { return diagonal == 1; }
    bool is_right(i64 pitch_of_a, i64 pitch_of_b) const {
        bool has_modes = !(side & ~1) && !(fill & ~1) && is_operation(operation) && !(diagonal & ~1);
        return has_modes && m >= 0 && n >= 0 && pitch_of_a >= order() && pitch_of_a && pitch_of_b >= m && pitch_of_b;
    }
};
enum PointerMode : int { kHost = 0, kDevice = 1 };

struct Handle {
    CUstream stream = nullptr;
    int pointer_mode = kHost, math_mode = 0, atomics_mode = 0, multiprocessors = 0;
};

inline bool can_afford(double multiplications) { return library::can_afford(multiplications, 1e10); }

// A factor: in the host's memory, where it is read at once, or in the device's.
struct Scalar {
    Type type;
    Complex value;
    int view = -1;  // of the device's

    bool is(double number) const { return view < 0 && value == number; }
    Complex get(const library::Views& views) const { return view < 0 ? value : load(views[std::size_t(view)], type); }
};

// What one call touches. The number of each part is that of its view.
class Call {
  public:
    Call(const char* name, const Handle* handle) : handle_(handle), call_{name, handle->stream, {}, {}, false} {}

    Scalar scalar(const void* pointer, Type type);
    void add(const library::Extent& extent) { call_.extents.push_back(extent); }
    std::size_t count() const { return call_.extents.size(); }
    void touches_more() { call_.touches_more = true; }
    Status submit(library::Run run) {  // without one the call computes nothing
        call_.run = std::move(run);
        return status_of(xsim_library_call(&call_));
    }

  private:
    const Handle* handle_;
    library::Call call_;
};

}  // namespace cublas
