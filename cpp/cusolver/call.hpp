// One call, its matrices, and the functions that have several names: see solver.hpp.
#pragma once

#include "solver.hpp"

#include <algorithm>
#include <cstring>

namespace cusolver {

constexpr double kAffordable = 2e9;  // multiplications of all calls: a CPU takes seconds for them
constexpr i64 kMostRows = 256;

// A matrix in the device's memory.
struct Place {
    const void* first;
    Type type;
    i64 rows, columns, pitch;

    bool is_right() const { return rows >= 0 && columns >= 0 && pitch >= std::max<i64>(rows, 1); }
};

inline Matrix load(const unsigned char* at, const Place& place) {
    Matrix made(place.rows, place.columns);
    for (i64 j = 0; j < place.columns; j++)
        for (i64 i = 0; i < place.rows; i++)
            made(i, j) = load_number(at + u64(j * place.pitch + i) * size_of(place.type), place.type);
    return made;
}

// `part(i, j)` chooses what is written.
template <class Part>
void store(unsigned char* at, const Place& place, const Matrix& numbers, Part&& part) {
    for (i64 j = 0; j < place.columns; j++)
        for (i64 i = 0; i < place.rows; i++) {
            if (!part(i, j)) continue;
            store_number(at + u64(j * place.pitch + i) * size_of(place.type), place.type, numbers(i, j));
        }
}
inline void store(unsigned char* at, const Place& place, const Matrix& numbers) {
    store(at, place, numbers, [](i64, i64) { return true; });
}

template <class Number>
Matrix column_of(const std::vector<Number>& numbers) {
    Matrix made(i64(numbers.size()), 1);
    std::copy(numbers.begin(), numbers.end(), made.numbers.begin());
    return made;
}

// What a call writes while it works.
struct Area {
    const void* first;
    u64 bytes;
};

// Matrices of one batch, in elements from each to the next.
struct Batch {
    Place one;
    i64 count, stride;

    unsigned char* in(unsigned char* view, i64 i) const { return view + u64(i * stride) * size_of(one.type); }
};

// One call. Each part has the number of its view, from 0 on; the last one is the result.
class Call {
  public:
    Call(const char* name, const Handle* handle) : call_{name, handle->stream, {}, {}, false} {}

    std::size_t add(const Place& place, char use) { return add(extent_of(place, use)); }
    // Of a large one the diagonal alone counts.
    std::size_t add_triangle(const Place& place, int triangle, char use) {
        u64 size = size_of(place.type), first = reinterpret_cast<u64>(place.first), step = u64(place.pitch) * size;
        std::size_t view = add({first, place.rows ? size : 0, u64(place.rows), step + size, use});
        for (u64 j = 0; j < u64(place.rows) && place.rows <= kMostRows; j++) {
            bool is_lower = triangle == kLower;
            add({first + j * step + (is_lower ? j * size : 0), (is_lower ? u64(place.rows) - j : j + 1) * size, 1, 0,
                 use});
        }
        return view;
    }
    // Without the room between the matrices; the number of the first one's view.
    std::size_t add(const Batch& batch, char use) {
        std::size_t view = call_.extents.size();
        u64 size = size_of(batch.one.type);
        for (const auto& one : library::extents_of_batch(extent_of(batch.one, use), batch.count, batch.stride, size))
            add(one);
        return view;
    }
    std::size_t add(const Area& area, char use) { return add(area.first, area.bytes, use); }
    std::size_t add(const void* first, u64 bytes, char use) { return add(library::extent_of(first, bytes, use)); }
    std::size_t add(const library::Extent& extent) {
        call_.extents.push_back(extent);
        return call_.extents.size() - 1;
    }
    void touches_more() { call_.touches_more = true; }
    // With the numbers of its results, which are written.
    Status submit(int* info, double cost, library::Run run, i64 results = 1) {
        std::size_t result = add(info, u64(results) * sizeof *info, 'w');
        if (library::can_afford(cost, kAffordable))
            call_.run = [run = std::move(run), result, results](const library::Views& views) {
                if (results) memset(views[result], 0, u64(results) * sizeof(int));
                run(views);
            };
        return xsim_library_call(&call_) ? kExecutionFailed : kSuccess;
    }

  private:
    library::Call call_;

    static library::Extent extent_of(const Place& place, char use) {
        return {reinterpret_cast<u64>(place.first), u64(place.rows) * size_of(place.type), u64(place.columns),
                u64(place.pitch) * size_of(place.type), use};
    }
};

inline double cubed(i64 m, i64 n) { return double(m) * double(n) * double(n); }
// With that of the columns that complete the longer side's vectors.
inline double cost_of_svd(i64 longer, i64 shorter, i64 vectors) {
    return 20 * cubed(longer, shorter) + (vectors > shorter ? 2 * cubed(longer, vectors) : 0);
}
inline bool is_triangle(int triangle) { return triangle == kLower || triangle == kUpper; }

// In elements; more than nothing, so that programs can allocate it.
Status size_of_work(Handle* handle, i64 m, i64 n, int* count);

// The rows that were changed with others, counted from 1, in numbers of 4 or 8 bytes.
struct Pivots {
    const void* first;
    u64 size;

    u64 bytes(i64 count) const { return first ? u64(count) * size : 0; }
};

// Where the vectors of one side go: 'A' all, 'S' as many as there are values, 'O' in place of the matrix, 'N' nowhere.
struct Side {
    signed char job;
    Place place;

    bool is_written() const { return job == 'A' || job == 'S'; }
    bool is_right() const { return job == 'N' || job == 'O' || (is_written() && place.is_right()); }
};

Status getrf(const char* name, Handle* handle, const Place& a, const Area& work, const Pivots& pivots, int* info);
Status getrs(const char* name, Handle* handle, int operation, const Place& a, const Pivots& pivots, const Place& b,
             int* info);
Status potrf(const char* name, Handle* handle, int triangle, const Place& a, const Area& work, int* info);
Status potrs(const char* name, Handle* handle, int triangle, const Place& a, const Place& b, int* info);
Status geqrf(const char* name, Handle* handle, const Place& a, const void* factors, const Area& work, int* info);
Status heevd(const char* name, Handle* handle, int with_vectors, int triangle, const Batch& a, const void* values,
             const Area& work, int* info);
Status gesvd(const char* name, Handle* handle, const Place& a, const void* values, const Side& u, const Side& vt,
             const Area& work, const void* real_work, int* info);

// What a decomposition gives, for each of a batch: vectors are written where they are wanted.
struct Sides {
    int with_vectors;
    Batch u, v, values;
};
// By any method. `residuals`, if there are any, are waited for: the length of what the vectors and values leave.
Status svd(const char* name, Handle* handle, const Batch& a, char use, const Sides& sides, const Area& work, int* infos,
           double* residuals);

}  // namespace cusolver
