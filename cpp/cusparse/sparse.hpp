// A cuSPARSE on top of the simulated driver, for programs that are checked without a GPU. Each function reads and writes
// what its documentation says, on the stream of its handle, and computes it in double precision.
//
// Kernels compute nothing here, so that the offsets and indices of a matrix may be anything: what lies outside of the
// matrix is left out, and offsets that decrease count as those before them. Each function says that it has succeeded, also
// where a triangle has no diagonal.
//
// The signatures are those of cusparse.h, with plain types: no header of cuSPARSE is needed to build this.
#pragma once

#include "element_types.hpp"
#include "library_call.hpp"
#include "not_simulated.hpp"

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#define CUSPARSE extern "C" __attribute__((visibility("default")))

namespace cusparse {

using u8 = unsigned char;
using u64 = std::uint64_t;
using i64 = std::int64_t;
using Complex = std::complex<double>;

enum Status : int {
    kSuccess = 0,
    kNotInitialized = 1,
    kAllocationFailed = 2,
    kInvalidValue = 3,
    kExecutionFailed = 6,
    kNotSupported = 10,
    kInsufficientResources = 11,
};

using namespace element_types;
inline Complex load(const u8* at, int type) { return load_number(at, type); }
inline void store(u8* at, int type, const Complex& number) { store_number(at, type, number); }

enum Operation : int { kAsIs = 0, kTransposed = 1, kConjugated = 2 };
inline bool is_operation(int operation) { return operation >= kAsIs && operation <= kConjugated; }
enum Width : int { kIndex32 = 2, kIndex64 = 3 };  // of an index
inline bool is_width(int width) { return width == kIndex32 || width == kIndex64; }
inline u64 bytes_of(int width) { return width == kIndex64 ? 8 : 4; }
i64 load_index(const u8* at, int width, i64 i);
void store_index(u8* at, int width, i64 i, i64 index);

enum Format : int { kRows = 1, kColumns = 2, kCoordinates = 3 };  // CSR, CSC, COO
enum Order : int { kByColumns = 1, kByRows = 2 };
enum Fill : int { kLower = 0, kUpper = 1 };

// What the structure of a sum follows from.
struct Sum {
    int rows, columns, counts[2];
    const void* structure[4];

    bool operator==(const Sum&) const = default;
};
// The number of its elements: -1 until the device has counted them.
struct Counted {
    Sum of;
    std::shared_ptr<std::atomic<i64>> count;
};

struct Handle {
    CUstream stream = nullptr;
    int pointer_mode = 0;  // 1: factors and counts are in the device's memory
    std::mutex lock;  // of the next: several threads may have one handle
    std::map<const void*, Counted> counted;  // by the offsets of the sums

    void note(const void* offsets, const Counted& sum) {
        constexpr std::size_t kMany = 1024;
        std::lock_guard<std::mutex> guard(lock);
        if (counted.size() >= kMany) counted.clear();  // offsets are freed without a word
        counted.insert_or_assign(offsets, sum);
    }
    // -1: the offsets are not known to be those of this sum.
    i64 count_of(const void* offsets, const Sum& sum) {
        std::lock_guard<std::mutex> guard(lock);
        auto found = counted.find(offsets);
        return found != counted.end() && found->second.of == sum ? found->second.count->load() : -1;
    }
};

// What the older functions take beside a matrix.
struct Description {
    int type = 0, fill = 0, diagonal = 0, base = 0;
};
// The offsets of the rows (CSR) or columns (CSC), or the row of each element (COO), are `majors`.
struct Sparse {
    int format;
    i64 rows, columns, count;
    const void *majors, *minors, *values;
    int width_of_majors, width_of_minors, base, type;
    int fill = kLower, diagonal = 0;

    i64 major_size() const { return format == kColumns ? columns : rows; }
    i64 offsets() const { return format == kCoordinates ? count : major_size() + 1; }
};
struct Dense {
    i64 rows, columns, pitch;
    const void* values;
    int type, order;
    i64 count = 1, stride = 0;

    u8* in(u8* view, i64 i) const { return view + u64(i * stride) * size_of(type); }  // the i-th of a batch
    u64 place(i64 row, i64 column) const { return u64(order == kByRows ? row * pitch + column : column * pitch + row); }
};
struct Vector {
    i64 size;
    const void* values;
    int type;
};
struct SparseVector {
    i64 size, count;
    const void *indices, *values;
    int width, base, type;
};

struct Element {
    i64 row, column, place;
};
// Where its parts are on the host.
struct View {
    u8 *majors, *minors, *values;
};
std::vector<Element> elements_of(const Sparse& matrix, const View& view);
inline Complex value_of(const Sparse& matrix, const View& view, const Element& one, int operation = kAsIs) {
    Complex value = load(view.values + u64(one.place) * size_of(matrix.type), matrix.type);
    return operation == kConjugated ? std::conj(value) : value;
}
inline Element turned(const Element& one, int operation) {
    return operation == kAsIs ? one : Element{one.column, one.row, one.place};
}

constexpr std::size_t kWork = 256;  // bytes of any work area
constexpr double kAffordable = 2e9;  // multiplications of all calls: a CPU takes seconds for them
bool is_simulated(std::initializer_list<int> types);  // says it, if not
// Of numbers of several types NVIDIA's computes a product with a vector alone.
inline bool are_same(std::initializer_list<int> types) {
    return std::all_of(types.begin(), types.end(), [&](int type) { return type == *types.begin(); });
}
constexpr double kOfRow = 20;  // what a row of a sum or product costs beside its multiplications

// A factor: in the host's memory, where it is read at once, or in the device's.
struct Scalar {
    int type;
    Complex value;
    int view = -1;

    bool is(double number) const { return view < 0 && value == number; }
    Complex get(const library::Views& views) const { return view < 0 ? value : load(views[std::size_t(view)], type); }
};

class Call {
  public:
    Call(const char* name, const Handle* handle) : handle_(handle), call_{name, handle->stream, {}, {}, false} {}

    Scalar scalar(const void* pointer, int type);
    std::size_t add(const void* first, u64 bytes, char use) {  // the number of its view
        call_.extents.push_back(library::extent_of(first, bytes, use));
        return call_.extents.size() - 1;
    }
    std::size_t add(const Vector& vector, char use) {
        return add(vector.values, u64(vector.size) * size_of(vector.type), use);
    }
    // Indices choose among its elements.
    template <class Made>
    std::size_t add_some(const Made& made, char use) {
        std::size_t view = add(made, use);
        for (std::size_t i = view; i < call_.extents.size(); i++) call_.extents[i].some = true;
        return view;
    }
    std::size_t add(const Dense& matrix, char use);
    // Its parts follow one another: see at().
    std::size_t add(const Sparse& matrix, char of_structure, char of_values);
    void add_work(const void* area, char use = 'w') { add(area, area ? kWork : 0, use); }
    static View at(const library::Views& views, std::size_t first) {
        return {views[first], views[first + 1], views[first + 2]};
    }
    void touches_more() { call_.touches_more = true; }
    Status submit(double cost, library::Run run) {
        was_affordable_ = library::can_afford(cost, kAffordable);
        if (was_affordable_) call_.run = std::move(run);
        return xsim_library_call(&call_) ? kExecutionFailed : kSuccess;
    }
    bool was_affordable() const { return was_affordable_; }

  private:
    const Handle* handle_;
    library::Call call_;
    bool was_affordable_ = false;
};

template <class Made, class... Parts>
Status make(Made** made, Parts... parts) {
    if (!made) return kInvalidValue;
    *made = new (std::nothrow) Made{parts...};
    return *made ? kSuccess : kAllocationFailed;
}
template <class Made>
Status destroy(Made* made) {
    delete made;
    return kSuccess;
}
// Each work area has the same size.
inline Status size_of_work(const Handle* handle, std::size_t* bytes) {
    if (!handle) return kNotInitialized;
    if (!bytes) return kInvalidValue;
    *bytes = kWork;
    return kSuccess;
}

}  // namespace cusparse
