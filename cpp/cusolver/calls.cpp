// The functions of one type each, by what they touch: see solver.hpp.
#include "call.hpp"

namespace cusolver {

Status getrf(const char* name, Handle* handle, const Place& a, const Area& work, const Pivots& pivots, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right()) return kInvalidValue;
    Call call(name, handle);
    call.add(a, 'b');
    call.add(work, 'w');
    std::size_t of_pivots = call.add(pivots.first, pivots.bytes(std::min(a.rows, a.columns)), 'w');
    return call.submit(info, cubed(a.rows, a.columns), [a, pivots, of_pivots](const library::Views& views) {
        Matrix made = load(views[0], a);
        std::vector<int> chosen;
        getrf(made, chosen);
        store(views[0], a, made);
        for (std::size_t i = 0; pivots.first && i < chosen.size(); i++) {
            i64 pivot = chosen[i];
            memcpy(views[of_pivots] + i * pivots.size, &pivot, pivots.size);  // the lower bytes come first
        }
    });
}

Status getrs(const char* name, Handle* handle, int operation, const Place& a, const Pivots& pivots, const Place& b,
             int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || !b.is_right() || operation < 0 || operation > 2) return kInvalidValue;
    Call call(name, handle);
    call.add(a, 'r');
    call.add(b, 'b');
    call.add(pivots.first, pivots.bytes(a.rows), 'r');
    return call.submit(info, cubed(b.columns, a.rows), [=](const library::Views& views) {
        std::vector<int> chosen(std::size_t(a.rows), 0);
        for (std::size_t i = 0; pivots.first && i < chosen.size(); i++)
            memcpy(&chosen[i], views[2] + i * pivots.size, sizeof(int));
        Matrix made = load(views[1], b);
        getrs(load(views[0], a), chosen, operation, made);
        store(views[1], b, made);
    });
}

Status potrf(const char* name, Handle* handle, int triangle, const Place& a, const Area& work, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || !is_triangle(triangle)) return kInvalidValue;
    Call call(name, handle);
    call.add_triangle(a, triangle, 'b');
    call.add(work, 'w');
    return call.submit(info, cubed(a.rows, a.rows), [a, triangle](const library::Views& views) {
        Matrix made = load(views[0], a);
        potrf(made, triangle);
        store(views[0], a, made, [&](i64 i, i64 j) { return i == j || (i > j) == (triangle == kLower); });
    });
}

Status potrs(const char* name, Handle* handle, int triangle, const Place& a, const Place& b, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || !b.is_right() || !is_triangle(triangle)) return kInvalidValue;
    Call call(name, handle);
    std::size_t of_b = call.add(b, 'b'), of_a = call.add_triangle(a, triangle, 'r');
    return call.submit(info, cubed(b.columns, a.rows), [=](const library::Views& views) {
        Matrix made = load(views[of_b], b);
        potrs(load(views[of_a], a), triangle, made);
        store(views[of_b], b, made);
    });
}

Status geqrf(const char* name, Handle* handle, const Place& a, const void* factors, const Area& work, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right()) return kInvalidValue;
    Call call(name, handle);
    i64 made_factors = std::min(a.rows, a.columns);
    call.add(a, 'b');
    call.add(factors, u64(made_factors) * size_of(a.type), 'w');
    call.add(work, 'w');
    return call.submit(info, cubed(a.rows, a.columns), [=](const library::Views& views) {
        Matrix made = load(views[0], a);
        std::vector<Complex> chosen;
        geqrf(made, chosen);
        store(views[0], a, made);
        store(views[1], {factors, a.type, made_factors, 1, made_factors}, column_of(chosen));
    });
}

Status ungqr(const char* name, Handle* handle, i64 reflections, const Place& a, const void* factors, const Area& work,
             int* info) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || reflections < 0 || reflections > a.columns || a.columns > a.rows) return kInvalidValue;
    Call call(name, handle);
    Place of_factors{factors, a.type, reflections, 1, std::max<i64>(reflections, 1)};
    call.add(a, 'b');
    call.add(of_factors, 'r');
    call.add(work, 'w');
    return call.submit(info, cubed(a.rows, a.columns), [a, of_factors](const library::Views& views) {
        Matrix made = load(views[0], a);
        ungqr(made, load(views[1], of_factors).numbers);
        store(views[0], a, made);
    });
}

// C = op(Q) C or C op(Q), with the reflections of Q in the columns of `a`
Status unmqr(const char* name, Handle* handle, int side, int operation, i64 reflections, Place a, const void* factors,
             const Place& c, const Area& work, int* info) {
    if (!handle) return kNotInitialized;
    bool on_left = side == 0, is_adjoint = operation != 0;
    a.rows = on_left ? c.rows : c.columns;
    a.columns = reflections;
    bool has_modes = !(side & ~1) && (operation == 0 || operation == 2 || (operation == 1 && !is_complex(a.type)));
    if (!has_modes || !a.is_right() || !c.is_right() || reflections > a.rows) return kInvalidValue;
    Call call(name, handle);
    Place of_factors{factors, a.type, reflections, 1, std::max<i64>(reflections, 1)};
    std::size_t of_c = call.add(c, 'b'), of_a = call.add(a, 'r'), at_factors = call.add(of_factors, 'r');
    call.add(work, 'w');
    double cost = 2 * double(c.rows) * double(c.columns) * double(reflections);
    return call.submit(info, cost, [=](const library::Views& views) {
        Matrix made = load(views[of_c], c);
        std::vector<Complex> by = load(views[at_factors], of_factors).numbers;
        if (on_left) {
            unmqr(load(views[of_a], a), by, is_adjoint, made);
        } else {  // C Q is the adjoint of Q' C'
            made = adjoint(made);
            unmqr(load(views[of_a], a), by, !is_adjoint, made);
            made = adjoint(made);
        }
        store(views[of_c], c, made);
    });
}

Status heevd(const char* name, Handle* handle, int with_vectors, int triangle, const Batch& a, const void* values,
             const Area& work, int* info) {
    if (!handle) return kNotInitialized;
    if (!a.one.is_right() || a.count < 0 || !is_triangle(triangle) || (with_vectors & ~1)) return kInvalidValue;
    Call call(name, handle);
    i64 n = a.one.rows;
    Batch of_values{{values, real_of(a.one.type), n, 1, std::max<i64>(n, 1)}, a.count, n};
    call.add(a, 'b');  // without vectors its contents are destroyed
    call.add(values, u64(n * a.count) * size_of(real_of(a.one.type)), 'w');
    call.add(work, 'w');
    return call.submit(
        info, (20 * cubed(n, n) + library::kOfEach) * double(a.count),
        [=](const library::Views& views) {
            for (i64 i = 0; i < a.count; i++) {
                Matrix made = hermitian(load(a.in(views[0], i), a.one), triangle);
                std::vector<double> found;
                heevd(made, found);
                if (with_vectors) store(a.in(views[0], i), a.one, made);
                store(of_values.in(views[1], i), of_values.one, column_of(found));
            }
        },
        a.count);
}

Status gesvd(const char* name, Handle* handle, const Place& a, const void* values, const Side& u, const Side& vt,
             const Area& work, const void* real_work, int* info) {
    if (!handle) return kNotInitialized;
    bool is_right = a.is_right() && u.is_right() && vt.is_right() && a.rows >= a.columns;
    if (!is_right || (u.job == 'O' && vt.job == 'O')) return kInvalidValue;
    Call call(name, handle);
    i64 n = a.columns, of_u = u.job == 'N' ? 0 : u.job == 'A' ? a.rows : n;
    Place of_values{values, real_of(a.type), n, 1, std::max<i64>(n, 1)};
    call.add(a, 'b');  // its contents are destroyed
    call.add(of_values, 'w');
    call.add(work, 'w');
    call.add(real_work, real_work && n ? u64(n - 1) * size_of(real_of(a.type)) : 0, 'w');
    std::size_t at_u = u.is_written() ? call.add(u.place, 'w') : 0;
    std::size_t at_vt = vt.is_written() ? call.add(vt.place, 'w') : 0;
    return call.submit(info, cost_of_svd(a.rows, n, of_u), [=](const library::Views& views) {
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

Status size_of_work(Handle* handle, i64 m, i64 n, int* count) {
    if (!handle) return kNotInitialized;
    if (m < 0 || n < 0 || !count) return kInvalidValue;
    *count = int(std::min<i64>(std::max<i64>(m * n, 1) + 3 * n, 1 << 30));
    return kSuccess;
}

}  // namespace cusolver

using namespace cusolver;

#define DENSE(name) CUSOLVER Status cusolverDn##name
#define FUNCTIONS(letter, gqr, mqr, evd, type) \
    DENSE(letter##getrf_bufferSize)(Handle * handle, int m, int n, void*, int, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##getrf)(Handle * handle, int m, int n, void* a, int lda, void* work, int* pivots, int* info) { \
        return getrf(__func__, handle, {a, type, m, n, lda}, {work, u64(m) * u64(n) * size_of(type)}, \
                     {pivots, sizeof *pivots}, info); \
    } \
    DENSE(letter##getrs)(Handle * handle, int operation, int n, int count, const void* a, int lda, const int* pivots, \
                         void* b, int ldb, int* info) { \
        return getrs(__func__, handle, operation, {a, type, n, n, lda}, {pivots, sizeof *pivots}, \
                     {b, type, n, count, ldb}, info); \
    } \
    DENSE(letter##potrf_bufferSize)(Handle * handle, int, int n, void*, int, int* count) { \
        return size_of_work(handle, n, n, count); \
    } \
    DENSE(letter##potrf)(Handle * handle, int triangle, int n, void* a, int lda, void* work, int count, int* info) { \
        if (count < 0) return kInvalidValue; \
        return potrf(__func__, handle, triangle, {a, type, n, n, lda}, {work, u64(count) * size_of(type)}, info); \
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
        if (count < 0) return kInvalidValue; \
        return geqrf(__func__, handle, {a, type, m, n, lda}, factors, {work, u64(count) * size_of(type)}, info); \
    } \
    DENSE(letter##gqr##_bufferSize)(Handle * handle, int m, int n, int, const void*, int, const void*, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##gqr)(Handle * handle, int m, int n, int k, void* a, int lda, const void* factors, void* work, \
                       int count, int* info) { \
        if (count < 0) return kInvalidValue; \
        return ungqr(__func__, handle, k, {a, type, m, n, lda}, factors, {work, u64(count) * size_of(type)}, info); \
    } \
    DENSE(letter##mqr##_bufferSize)(Handle * handle, int, int, int m, int n, int, const void*, int, const void*, \
                                    const void*, int, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##mqr)(Handle * handle, int side, int operation, int m, int n, int k, const void* a, int lda, \
                       const void* factors, void* c, int ldc, void* work, int count, int* info) { \
        if (count < 0) return kInvalidValue; \
        return unmqr(__func__, handle, side, operation, k, {a, type, 0, 0, lda}, factors, {c, type, m, n, ldc}, \
                     {work, u64(count) * size_of(type)}, info); \
    } \
    DENSE(letter##evd##_bufferSize)(Handle * handle, int, int, int n, const void*, int, const void*, int* count) { \
        return size_of_work(handle, n, n, count); \
    } \
    DENSE(letter##evd)(Handle * handle, int with_vectors, int triangle, int n, void* a, int lda, void* values, \
                       void* work, int count, int* info) { \
        if (count < 0) return kInvalidValue; \
        return heevd(__func__, handle, with_vectors, triangle, {{a, type, n, n, lda}, 1, 0}, values, \
                     {work, u64(count) * size_of(type)}, info); \
    } \
    DENSE(letter##gesvd_bufferSize)(Handle * handle, int m, int n, int* count) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##gesvd)(Handle * handle, signed char job_u, signed char job_vt, int m, int n, void* a, int lda, \
                         void* values, void* u, int ldu, void* vt, int ldvt, void* work, int count, void* real_work, \
                         int* info) { \
        if (count < 0) return kInvalidValue; \
        return gesvd(__func__, handle, {a, type, m, n, lda}, values, {job_u, {u, type, m, job_u == 'A' ? m : n, ldu}}, \
                     {job_vt, {vt, type, n, n, ldvt}}, {work, u64(count) * size_of(type)}, real_work, info); \
    }
FUNCTIONS(S, orgqr, ormqr, syevd, kFloat)
FUNCTIONS(D, orgqr, ormqr, syevd, kDouble)
FUNCTIONS(C, ungqr, unmqr, heevd, kComplexFloat)
FUNCTIONS(Z, ungqr, unmqr, heevd, kComplexDouble)
