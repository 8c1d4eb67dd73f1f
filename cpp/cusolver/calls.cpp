// The functions, by what they touch: see solver.hpp.
#include "solver.hpp"

#include <algorithm>
#include <cstring>

namespace cusolver {

namespace {

constexpr double kAffordable = 2e9;  // multiplications of all calls: a CPU takes seconds for them
constexpr i64 kMostRows = 256;

// A matrix in the device's memory.
struct Place {
    const void* first;
    Type type;
    i64 rows, columns, pitch;

    bool is_right() const { return rows >= 0 && columns >= 0 && pitch >= std::max<i64>(rows, 1); }
};

template <class T>
Complex load_parts(const unsigned char* at, bool is_complex) {
    T parts[2] = {};
    memcpy(parts, at, is_complex ? sizeof parts : sizeof(T));
    return {double(parts[0]), double(parts[1])};
}
template <class T>
void store_parts(unsigned char* at, bool is_complex, const Complex& number) {
    T parts[2] = {T(number.real()), T(number.imag())};
    memcpy(at, parts, is_complex ? sizeof parts : sizeof(T));
}

Matrix load(const unsigned char* at, const Place& place) {
    Matrix made(place.rows, place.columns);
    for (i64 j = 0; j < place.columns; j++)
        for (i64 i = 0; i < place.rows; i++) {
            const unsigned char* one = at + u64(j * place.pitch + i) * size_of(place.type);
            made(i, j) = (place.type & 1 ? load_parts<double> : load_parts<float>)(one, is_complex(place.type));
        }
    return made;
}

// `part(i, j)` chooses what is written.
template <class Part>
void store(unsigned char* at, const Place& place, const Matrix& numbers, Part&& part) {
    for (i64 j = 0; j < place.columns; j++)
        for (i64 i = 0; i < place.rows; i++) {
            if (!part(i, j)) continue;
            unsigned char* one = at + u64(j * place.pitch + i) * size_of(place.type);
            (place.type & 1 ? store_parts<double> : store_parts<float>)(one, is_complex(place.type), numbers(i, j));
        }
}
void store(unsigned char* at, const Place& place, const Matrix& numbers) {
    store(at, place, numbers, [](i64, i64) { return true; });
}

template <class Number>
Matrix column_of(const std::vector<Number>& numbers) {
    Matrix made(i64(numbers.size()), 1);
    std::copy(numbers.begin(), numbers.end(), made.numbers.begin());
    return made;
}

// One call. Each part has the number of its view, from 0 on; the last ones are the work area and the result.
class Call {
  public:
    Call(const char* name, const Handle* handle) : call_{name, handle->stream, {}, {}, false} {}

    std::size_t add(const Place& place, char use) {
        return add({reinterpret_cast<u64>(place.first), u64(place.rows) * size_of(place.type), u64(place.columns),
                    u64(place.pitch) * size_of(place.type), use});
    }
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
    std::size_t add(const void* first, u64 bytes, char use) { return add(library::extent_of(first, bytes, use)); }
    std::size_t add(const library::Extent& extent) {
        call_.extents.push_back(extent);
        return call_.extents.size() - 1;
    }
    // With the number of its result, which is written.
    Status submit(int* info, double cost, library::Run run) {
        std::size_t result = add(info, sizeof *info, 'w');
        if (library::can_afford(cost, kAffordable))
            call_.run = [run = std::move(run), result](const library::Views& views) {
                memset(views[result], 0, sizeof(int));
                run(views);
            };
        return xsim_library_call(&call_) ? kExecutionFailed : kSuccess;
    }

  private:
    library::Call call_;
};

double cubed(i64 m, i64 n) { return double(m) * double(n) * double(n); }

Status getrf(const char* name, Handle* handle, const Place& a, const void* work, int* pivots, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right()) return kInvalidValue;
    Call call(name, handle);
    call.add(a, 'b');
    call.add(work, u64(a.rows * a.columns) * size_of(a.type), 'w');
    std::size_t of_pivots = call.add(pivots, pivots ? u64(std::min(a.rows, a.columns)) * sizeof(int) : 0, 'w');
    return call.submit(info, cubed(a.rows, a.columns), [a, pivots, of_pivots](const library::Views& views) {
        Matrix made = load(views[0], a);
        std::vector<int> chosen;
        getrf(made, chosen);
        store(views[0], a, made);
        if (pivots && !chosen.empty()) memcpy(views[of_pivots], chosen.data(), chosen.size() * sizeof(int));
    });
}

Status getrs(const char* name, Handle* handle, int operation, const Place& a, const int* pivots, const Place& b,
             int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || !b.is_right() || operation < 0 || operation > 2) return kInvalidValue;
    Call call(name, handle);
    call.add(a, 'r');
    call.add(b, 'b');
    call.add(pivots, pivots ? u64(a.rows) * sizeof(int) : 0, 'r');
    return call.submit(info, cubed(b.columns, a.rows), [=](const library::Views& views) {
        std::vector<int> chosen(std::size_t(a.rows), 0);
        if (pivots && a.rows) memcpy(chosen.data(), views[2], chosen.size() * sizeof(int));
        Matrix made = load(views[1], b);
        getrs(load(views[0], a), chosen, operation, made);
        store(views[1], b, made);
    });
}

Status potrf(const char* name, Handle* handle, int triangle, const Place& a, const void* work, int count, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || count < 0 || (triangle != kLower && triangle != kUpper)) return kInvalidValue;
    Call call(name, handle);
    call.add_triangle(a, triangle, 'b');
    call.add(work, u64(count) * size_of(a.type), 'w');
    return call.submit(info, cubed(a.rows, a.rows), [a, triangle](const library::Views& views) {
        Matrix made = load(views[0], a);
        potrf(made, triangle);
        store(views[0], a, made, [&](i64 i, i64 j) { return i == j || (i > j) == (triangle == kLower); });
    });
}

Status potrs(const char* name, Handle* handle, int triangle, const Place& a, const Place& b, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || !b.is_right() || (triangle != kLower && triangle != kUpper)) return kInvalidValue;
    Call call(name, handle);
    std::size_t of_b = call.add(b, 'b'), of_a = call.add_triangle(a, triangle, 'r');
    return call.submit(info, cubed(b.columns, a.rows), [=](const library::Views& views) {
        Matrix made = load(views[of_b], b);
        potrs(load(views[of_a], a), triangle, made);
        store(views[of_b], b, made);
    });
}

Status geqrf(const char* name, Handle* handle, const Place& a, const void* factors, const void* work, int count,
             int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || count < 0) return kInvalidValue;
    Call call(name, handle);
    i64 made_factors = std::min(a.rows, a.columns);
    call.add(a, 'b');
    call.add(factors, u64(made_factors) * size_of(a.type), 'w');
    call.add(work, u64(count) * size_of(a.type), 'w');
    return call.submit(info, cubed(a.rows, a.columns), [=](const library::Views& views) {
        Matrix made = load(views[0], a);
        std::vector<Complex> chosen;
        geqrf(made, chosen);
        store(views[0], a, made);
        store(views[1], {factors, a.type, made_factors, 1, made_factors}, column_of(chosen));
    });
}

Status ungqr(const char* name, Handle* handle, i64 reflections, const Place& a, const void* factors, const void* work,
             int count, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || count < 0 || reflections < 0 || reflections > a.columns || a.columns > a.rows)
        return kInvalidValue;
    Call call(name, handle);
    Place of_factors{factors, a.type, reflections, 1, std::max<i64>(reflections, 1)};
    call.add(a, 'b');
    call.add(of_factors, 'r');
    call.add(work, u64(count) * size_of(a.type), 'w');
    return call.submit(info, cubed(a.rows, a.columns), [a, of_factors](const library::Views& views) {
        Matrix made = load(views[0], a);
        ungqr(made, load(views[1], of_factors).numbers);
        store(views[0], a, made);
    });
}

// Both sizes are bytes.
Status heevd(const char* name, Handle* handle, int with_vectors, int triangle, const Place& a, const void* values,
             const void* work, u64 bytes, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || (triangle != kLower && triangle != kUpper) || (with_vectors & ~1)) return kInvalidValue;
    Call call(name, handle);
    Place of_values{values, real_of(a.type), a.rows, 1, std::max<i64>(a.rows, 1)};
    call.add(a, 'b');  // without vectors its contents are destroyed
    call.add(of_values, 'w');
    call.add(work, bytes, 'w');
    return call.submit(info, 20 * cubed(a.rows, a.rows), [=](const library::Views& views) {
        Matrix made = hermitian(load(views[0], a), triangle);
        std::vector<double> found;
        heevd(made, found);
        if (with_vectors) store(views[0], a, made);
        store(views[1], of_values, column_of(found));
    });
}

// Where the vectors of one side go: 'A' all, 'S' as many as there are values, 'O' in place of the matrix, 'N' nowhere.
struct Side {
    signed char job;
    Place place;

    bool is_written() const { return job == 'A' || job == 'S'; }
    bool is_right() const { return job == 'N' || job == 'O' || (is_written() && place.is_right()); }
};

Status gesvd(const char* name, Handle* handle, const Place& a, const void* values, const Side& u, const Side& vt,
             const void* work, int count, const void* real_work, int* info) {
    if (!handle) return kNotInitialized;
    bool is_right = a.is_right() && u.is_right() && vt.is_right() && a.rows >= a.columns && count >= 0;
    if (!is_right || (u.job == 'O' && vt.job == 'O')) return kInvalidValue;
    Call call(name, handle);
    i64 n = a.columns, of_u = u.job == 'N' ? 0 : u.job == 'A' ? a.rows : n;
    Place of_values{values, real_of(a.type), n, 1, std::max<i64>(n, 1)};
    call.add(a, 'b');  // its contents are destroyed
    call.add(of_values, 'w');
    call.add(work, u64(count) * size_of(a.type), 'w');
    call.add(real_work, real_work && n ? u64(n - 1) * size_of(real_of(a.type)) : 0, 'w');
    std::size_t at_u = u.is_written() ? call.add(u.place, 'w') : 0;
    std::size_t at_vt = vt.is_written() ? call.add(vt.place, 'w') : 0;
    return call.submit(info, 20 * cubed(a.rows, n), [=](const library::Views& views) {
        Matrix made_u(a.rows, of_u), made_vt(n, n);
        std::vector<double> found;
        gesvd(load(views[0], a), made_u, found, made_vt);
        store(views[1], of_values, column_of(found));
        if (u.job != 'N') store(views[at_u], u.job == 'O' ? a : u.place, made_u);
        Place first_rows = a;
        first_rows.rows = n;
        if (vt.job != 'N') store(views[at_vt], vt.job == 'O' ? first_rows : vt.place, made_vt);
    });
}

// In elements; more than nothing, so that programs can allocate it.
Status size_of_work(Handle* handle, i64 m, i64 n, int* count) {
    if (!handle) return kNotInitialized;
    if (m < 0 || n < 0 || !count) return kInvalidValue;
    *count = int(std::min<i64>(std::max<i64>(m * n, 1) + 3 * n, 1 << 30));
    return kSuccess;
}

}  // namespace

}  // namespace cusolver

using namespace cusolver;

#define DENSE(name) CUSOLVER Status cusolverDn##name
#define FUNCTIONS(letter, gqr, evd, type) \
    DENSE(letter##getrf_bufferSize)(Handle * handle, int m, int n, void*, int, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##getrf)(Handle * handle, int m, int n, void* a, int lda, void* work, int* pivots, int* info) { \
        return getrf(__func__, handle, {a, type, m, n, lda}, work, pivots, info); \
    } \
    DENSE(letter##getrs)(Handle * handle, int operation, int n, int count, const void* a, int lda, const int* pivots, \
                         void* b, int ldb, int* info) { \
        return getrs(__func__, handle, operation, {a, type, n, n, lda}, pivots, {b, type, n, count, ldb}, info); \
    } \
    DENSE(letter##potrf_bufferSize)(Handle * handle, int, int n, void*, int, int* count) { \
        return size_of_work(handle, n, n, count); \
    } \
    DENSE(letter##potrf)(Handle * handle, int triangle, int n, void* a, int lda, void* work, int count, int* info) { \
        return potrf(__func__, handle, triangle, {a, type, n, n, lda}, work, count, info); \
    } \
    DENSE(letter##potrs)(Handle * handle, int triangle, int n, int count, const void* a, int lda, void* b, int ldb, \
                         int* info) { \
        return potrs(__func__, handle, triangle, {a, type, n, n, lda}, {b, type, n, count, ldb}, info); \
    } \
    DENSE(letter##geqrf_bufferSize)(Handle * handle, int m, int n, void*, int, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##geqrf)(Handle * handle, int m, int n, void* a, int lda, void* factors, void* work, int count, \
                         int* info) { \
        return geqrf(__func__, handle, {a, type, m, n, lda}, factors, work, count, info); \
    } \
    DENSE(letter##gqr##_bufferSize)(Handle * handle, int m, int n, int, const void*, int, const void*, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##gqr)(Handle * handle, int m, int n, int k, void* a, int lda, const void* factors, void* work, \
                       int count, int* info) { \
        return ungqr(__func__, handle, k, {a, type, m, n, lda}, factors, work, count, info); \
    } \
    DENSE(letter##evd##_bufferSize)(Handle * handle, int, int, int n, const void*, int, const void*, int* count) { \
        return size_of_work(handle, n, n, count); \
    } \
    DENSE(letter##evd)(Handle * handle, int with_vectors, int triangle, int n, void* a, int lda, void* values, \
                       void* work, int count, int* info) { \
        if (count < 0) return kInvalidValue; \
        return heevd(__func__, handle, with_vectors, triangle, {a, type, n, n, lda}, values, work, \
                     u64(count) * size_of(type), info); \
    } \
    DENSE(letter##gesvd_bufferSize)(Handle * handle, int m, int n, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##gesvd)(Handle * handle, signed char job_u, signed char job_vt, int m, int n, void* a, int lda, \
                         void* values, void* u, int ldu, void* vt, int ldvt, void* work, int count, void* real_work, \
                         int* info) { \
        return gesvd(__func__, handle, {a, type, m, n, lda}, values, {job_u, {u, type, m, job_u == 'A' ? m : n, ldu}}, \
                     {job_vt, {vt, type, n, n, ldvt}}, work, count, real_work, info); \
    }
FUNCTIONS(S, orgqr, syevd, kFloat)
FUNCTIONS(D, orgqr, syevd, kDouble)
FUNCTIONS(C, ungqr, heevd, kComplexFloat)
FUNCTIONS(Z, ungqr, heevd, kComplexDouble)

DENSE(Xsyevd_bufferSize)(Handle* handle, void*, int, int, i64 n, int type, const void*, i64, int, const void*, int,
                         std::size_t* bytes, std::size_t* on_host) {
    int count = 0;
    if (!is_type(type)) return kNotSupported;
    Status refused = size_of_work(handle, n, n, &count);
    if (refused || !bytes || !on_host) return refused ? refused : kInvalidValue;
    *bytes = std::size_t(count) * size_of(Type(type));
    *on_host = 0;
    return kSuccess;
}
DENSE(Xsyevd)(Handle* handle, void*, int with_vectors, int triangle, i64 n, int type, void* a, i64 lda, int,
              void* values, int, void* work, std::size_t bytes, void*, std::size_t, int* info) {
    if (!is_type(type)) return kNotSupported;
    return heevd(__func__, handle, with_vectors, triangle, {a, Type(type), n, n, lda}, values, work, bytes, info);
}
