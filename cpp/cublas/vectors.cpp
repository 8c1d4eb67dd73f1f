// Vectors, and products of matrices with vectors: levels 1 and 2; sums of matrices, products with their own transposes and
// with diagonals, and equations of triangles.
#include "blas.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

namespace cublas {

namespace {

// Elements that lie `step` apart. With a negative step the first one is the last in memory.
struct Vector {
    const void* first;
    Type type;
    i64 count, step;

    i64 size() const { return i64(size_of(type)); }
    i64 place(i64 i) const { return (step < 0 ? (1 - count) * step : 0) + i * step; }
    Complex get(const u8* at, i64 i) const { return load(at + place(i) * size(), type); }
    void set(u8* at, i64 i, const Complex& value) const { store(at + place(i) * size(), type, value); }
};

// The number of its view.
std::size_t add(Call& call, const Vector& v, char use) {
    u64 size = u64(v.size()), step = u64(std::abs(v.step));
    u64 rows = v.step ? u64(v.count) : 1;
    if (step == 1)
        call.add(library::extent_of(v.first, rows * size, use));
    else
        call.add({reinterpret_cast<u64>(v.first), size, rows, (step ? step : 1) * size, use});
    return call.count() - 1;
}

struct Matrix {
    const void* first;
    Type type;
    i64 rows, columns, pitch;

    i64 size() const { return i64(size_of(type)); }
    bool is_right() const { return rows >= 0 && columns >= 0 && pitch >= std::max<i64>(rows, 1); }
    u8* at(u8* view, i64 row, i64 column) const { return view + (column * pitch + row) * size(); }
    Complex get(u8* view, i64 row, i64 column) const { return load(at(view, row, column), type); }
    // Of op(A).
    Complex get(u8* view, int operation, i64 row, i64 column) const {
        if (operation == kAsIs) return get(view, row, column);
        Complex value = get(view, column, row);
        return operation == kConjugated ? std::conj(value) : value;
    }
};

std::size_t add(Call& call, const Matrix& m, char use) {
    u64 size = u64(m.size());
    call.add({reinterpret_cast<u64>(m.first), u64(m.rows) * size, u64(m.columns), u64(m.pitch) * size, use});
    return call.count() - 1;
}

Complex scaled(const Complex& factor, const Complex& value) { return factor == 0.0 ? 0.0 : factor * value; }

library::Run if_affordable(double cost, library::Run run) { return can_afford(cost) ? run : library::Run(); }

// A result goes to the device, or to the host, which then waits for it.
Status submit_for(Handle* handle, Call& call, void* result, Type type, double cost,
                  std::function<Complex(const library::Views&)> compute) {
    bool on_device = handle->pointer_mode == kDevice;
    std::size_t view = call.count();
    if (on_device) call.add(library::extent_of(result, size_of(type), 'w'));
    auto value = std::make_shared<Complex>();
    Status status = call.submit(if_affordable(cost, [=](const library::Views& views) {
        *value = compute(views);
        if (on_device) store(views[view], type, *value);
    }));
    if (status || on_device) return status;
    status = status_of(cuStreamSynchronize(handle->stream));
    if (!status) store(static_cast<u8*>(result), type, *value);
    return status;
}

// y = alpha x + y
Status axpy(const char* name, Handle* handle, const void* alpha, Type type_of_alpha, Vector x, Vector y) {
    if (!handle) return kNotInitialized;
    if (!x.size() || !y.size() || !size_of(type_of_alpha)) return kNotSupported;
    if (x.count <= 0) return kSuccess;
    if (!alpha) return kInvalidValue;
    Call call(name, handle);
    Scalar factor = call.scalar(alpha, type_of_alpha);
    if (factor.is(0)) return kSuccess;
    std::size_t of_x = add(call, x, 'r'), of_y = add(call, y, 'b');
    return call.submit(if_affordable(double(x.count), [=](const library::Views& views) {
        Complex by = factor.get(views);
        for (i64 i = 0; i < x.count; i++) y.set(views[of_y], i, by * x.get(views[of_x], i) + y.get(views[of_y], i));
    }));
}

Status scal(const char* name, Handle* handle, const void* alpha, Type type_of_alpha, Vector x) {
    if (!handle) return kNotInitialized;
    if (!x.size() || !size_of(type_of_alpha)) return kNotSupported;
    if (x.count <= 0 || x.step <= 0) return kSuccess;
    if (!alpha) return kInvalidValue;
    Call call(name, handle);
    Scalar factor = call.scalar(alpha, type_of_alpha);
    std::size_t of_x = add(call, x, 'b');
    return call.submit(if_affordable(double(x.count), [=](const library::Views& views) {
        Complex by = factor.get(views);
        for (i64 i = 0; i < x.count; i++) x.set(views[of_x], i, scaled(by, x.get(views[of_x], i)));
    }));
}

Status copy_or_swap(const char* name, Handle* handle, Vector x, Vector y, bool swap) {
    if (!handle) return kNotInitialized;
    if (x.count <= 0) return kSuccess;
    Call call(name, handle);
    std::size_t of_x = add(call, x, swap ? 'b' : 'r'), of_y = add(call, y, swap ? 'b' : 'w');
    return call.submit(if_affordable(double(x.count), [=](const library::Views& views) {
        for (i64 i = 0; i < x.count; i++) {
            Complex one = x.get(views[of_x], i), other = y.get(views[of_y], i);
            y.set(views[of_y], i, one);
            if (swap) x.set(views[of_x], i, other);
        }
    }));
}

Status dot(const char* name, Handle* handle, Vector x, Vector y, bool conjugated, void* result, Type type) {
    if (!handle) return kNotInitialized;
    if (!result) return kInvalidValue;
    if (!x.size() || !y.size() || !size_of(type)) return kNotSupported;
    x.count = y.count = std::max<i64>(x.count, 0);
    Call call(name, handle);
    std::size_t of_x = add(call, x, 'r'), of_y = add(call, y, 'r');
    return submit_for(handle, call, result, type, double(x.count), [=](const library::Views& views) {
        Complex sum = 0;
        for (i64 i = 0; i < x.count; i++) {
            Complex left = x.get(views[of_x], i);
            sum += (conjugated ? std::conj(left) : left) * y.get(views[of_y], i);
        }
        return sum;
    });
}

// A number that is made of each element, and of what was before.
template <class Next>
Status reduce(const char* name, Handle* handle, Vector x, void* result, Type type, Next&& next) {
    if (!handle) return kNotInitialized;
    if (!result) return kInvalidValue;
    if (!x.size() || !size_of(type)) return kNotSupported;
    if (x.step <= 0 || x.count < 0) x.count = 0;
    Call call(name, handle);
    std::size_t of_x = add(call, x, 'r');
    return submit_for(handle, call, result, type, double(x.count),
                      [=](const library::Views& views) { return next(x, views[of_x]); });
}

double taxi(const Complex& value) { return std::fabs(value.real()) + std::fabs(value.imag()); }

Complex root_of_squares(const Vector& x, const u8* at) {
    double sum = 0;
    for (i64 i = 0; i < x.count; i++) sum += std::norm(x.get(at, i));
    return std::sqrt(sum);
}

Complex sum_of_sizes(const Vector& x, const u8* at) {
    double sum = 0;
    for (i64 i = 0; i < x.count; i++) sum += taxi(x.get(at, i));
    return sum;
}

// The first place of the largest or the smallest, counted from 1.
template <bool Largest>
Complex place_of(const Vector& x, const u8* at) {
    i64 found = 0;
    for (i64 i = 1; i < x.count; i++) {
        double here = taxi(x.get(at, i)), best = taxi(x.get(at, found));
        if (Largest ? here > best : here < best) found = i;
    }
    return x.count ? double(found + 1) : 0;
}

// y = alpha op(A) x + beta y
Status gemv(const char* name, Handle* handle, int operation, Matrix a, const void* alpha, Vector x, const void* beta,
            Vector y) {
    if (!handle) return kNotInitialized;
    if (!is_operation(operation) || !a.is_right() || !x.step || !y.step || !alpha || !beta) return kInvalidValue;
    if (!a.rows || !a.columns) return kSuccess;
    x.count = operation == kAsIs ? a.columns : a.rows;
    y.count = operation == kAsIs ? a.rows : a.columns;
    Call call(name, handle);
    Scalar by = call.scalar(alpha, a.type), keeping = call.scalar(beta, a.type);
    bool reads = !by.is(0);
    std::size_t of_a = reads ? add(call, a, 'r') : 0, of_x = reads ? add(call, x, 'r') : 0;
    std::size_t of_y = add(call, y, keeping.is(0) ? 'w' : 'b');
    return call.submit(if_affordable(double(a.rows) * double(a.columns), [=](const library::Views& views) {
        Complex alpha_now = by.get(views), beta_now = keeping.get(views);
        for (i64 i = 0; i < y.count; i++) {
            Complex sum = 0;
            for (i64 k = 0; reads && k < x.count; k++)
                sum += a.get(views[of_a], operation, i, k) * x.get(views[of_x], k);
            Complex before = beta_now == 0.0 ? 0.0 : beta_now * y.get(views[of_y], i);
            y.set(views[of_y], i, scaled(alpha_now, sum) + before);
        }
    }));
}

// A = alpha x y^T + A, or of the conjugated y
Status ger(const char* name, Handle* handle, Matrix a, const void* alpha, Vector x, Vector y, bool conjugated) {
    if (!handle) return kNotInitialized;
    if (!a.is_right() || !x.step || !y.step || !alpha) return kInvalidValue;
    if (!a.rows || !a.columns) return kSuccess;
    x.count = a.rows;
    y.count = a.columns;
    Call call(name, handle);
    Scalar by = call.scalar(alpha, a.type);
    if (by.is(0)) return kSuccess;
    std::size_t of_x = add(call, x, 'r'), of_y = add(call, y, 'r'), of_a = add(call, a, 'b');
    return call.submit(if_affordable(double(a.rows) * double(a.columns), [=](const library::Views& views) {
        Complex alpha_now = by.get(views);
        for (i64 j = 0; j < a.columns; j++) {
            Complex right = y.get(views[of_y], j);
            if (conjugated) right = std::conj(right);
            for (i64 i = 0; i < a.rows; i++)
                store(a.at(views[of_a], i, j), a.type,
                      a.get(views[of_a], i, j) + alpha_now * x.get(views[of_x], i) * right);
        }
    }));
}

struct Operand {
    int operation;
    const void *factor, *first;
    i64 pitch;

    Matrix of(const Matrix& result) const {
        bool as_is = operation == kAsIs;
        return {first, result.type, as_is ? result.rows : result.columns, as_is ? result.columns : result.rows, pitch};
    }
};

// C = alpha op(A) + beta op(B), in place too
Status geam(const char* name, Handle* handle, Operand left, Operand right, Matrix c) {
    if (!handle) return kNotInitialized;
    if (!is_operation(left.operation) || !is_operation(right.operation)) return kInvalidValue;
    Matrix a = left.of(c), b = right.of(c);
    if (!a.is_right() || !b.is_right() || !c.is_right()) return kInvalidValue;
    for (const Operand& one : {left, right})
        if (!one.factor || (one.first == c.first && (one.operation != kAsIs || one.pitch != c.pitch)))
            return kInvalidValue;
    if (!c.rows || !c.columns) return kSuccess;
    Call call(name, handle);
    Scalar alpha = call.scalar(left.factor, c.type), beta = call.scalar(right.factor, c.type);
    bool reads_a = !alpha.is(0), reads_b = !beta.is(0);
    std::size_t of_a = reads_a ? add(call, a, 'r') : 0, of_b = reads_b ? add(call, b, 'r') : 0;
    std::size_t of_c = add(call, c, 'w');
    return call.submit(if_affordable(double(c.rows) * double(c.columns), [=](const library::Views& views) {
        Complex by_a = alpha.get(views), by_b = beta.get(views);
        for (i64 j = 0; j < c.columns; j++)
            for (i64 i = 0; i < c.rows; i++) {
                Complex sum = 0;
                if (reads_a) sum += scaled(by_a, a.get(views[of_a], left.operation, i, j));
                if (reads_b) sum += scaled(by_b, b.get(views[of_b], right.operation, i, j));
                store(c.at(views[of_c], i, j), c.type, sum);
            }
    }));
}

// The triangle of a square matrix; of a large one its diagonal alone, because each column would be a range.
void add_triangle(Call& call, const Matrix& c, bool upper, char use) {
    constexpr i64 kMostColumns = 256;
    u64 size = u64(c.size()), first = reinterpret_cast<u64>(c.first);
    if (c.columns > kMostColumns) return call.add({first, size, u64(c.rows), u64(c.pitch + 1) * size, use});
    for (i64 j = 0; j < c.columns; j++) {
        i64 begin = upper ? 0 : j, end = upper ? j + 1 : c.rows;
        call.add({first + u64(j * c.pitch + begin) * size, u64(end - begin) * size, 1, u64(end - begin) * size, use});
    }
}

// C = alpha op(A) op(A)^T + beta C, in one triangle of C
Status syrk(const char* name, Handle* handle, int fill, int operation, i64 k, const void* alpha, const void* first,
            i64 pitch, const void* beta, Matrix c) {
    if (!handle) return kNotInitialized;
    if ((fill != kLower && fill != kUpper) || !is_operation(operation) || k < 0) return kInvalidValue;
    bool as_is = operation == kAsIs;
    Matrix a{first, c.type, as_is ? c.rows : k, as_is ? k : c.rows, pitch};
    if (!a.is_right() || !c.is_right() || !alpha || !beta) return kInvalidValue;
    if (!c.rows) return kSuccess;
    Call call(name, handle);
    Scalar by = call.scalar(alpha, c.type), keeping = call.scalar(beta, c.type);
    bool reads = k && !by.is(0), upper = fill == kUpper;
    std::size_t of_a = reads ? add(call, a, 'r') : 0, of_c = call.count();
    add_triangle(call, c, upper, keeping.is(0) ? 'w' : 'b');
    int transposed = as_is ? kAsIs : kTransposed;
    // The first range of either triangle begins where the matrix does.
    return call.submit(if_affordable(double(c.rows) * double(c.rows) * double(k), [=](const library::Views& views) {
        Complex alpha_now = by.get(views), beta_now = keeping.get(views);
        for (i64 j = 0; j < c.rows; j++)
            for (i64 i = upper ? 0 : j; i < (upper ? j + 1 : c.rows); i++) {
                Complex sum = 0;
                for (i64 l = 0; reads && l < k; l++)
                    sum += a.get(views[of_a], transposed, i, l) * a.get(views[of_a], transposed, j, l);
                u8* at = c.at(views[of_c], i, j);
                Complex before = beta_now == 0.0 ? 0.0 : beta_now * load(at, c.type);
                store(at, c.type, scaled(alpha_now, sum) + before);
            }
    }));
}

// The triangle without its diagonal, which a unit one is not stored for.
void add_below_diagonal(Call& call, const Matrix& a, bool upper, char use) {
    if (a.columns < 2) return;
    Matrix part = a;
    part.rows = part.columns = a.columns - 1;
    part.first = static_cast<const u8*>(a.first) + (upper ? a.pitch : 1) * a.size();
    add_triangle(call, part, upper, use);
}

Status trsm(const char* name, Handle* handle, const Equations& of, const void* alpha, const void* first, i64 pitch,
            Matrix b) {
    if (!handle) return kNotInitialized;
    if (!of.is_right(pitch, b.pitch) || !alpha) return kInvalidValue;
    if (!of.m || !of.n) return kSuccess;
    Matrix a{first, b.type, of.order(), of.order(), pitch};
    Call call(name, handle);
    Scalar by = call.scalar(alpha, b.type);
    bool reads = !by.is(0), unit = of.has_unit_diagonal(), upper = of.fill == kUpper;
    std::size_t of_b = add(call, b, reads ? 'b' : 'w'), of_a = call.count();
    if (reads) unit ? add_below_diagonal(call, a, upper, 'r') : add_triangle(call, a, upper, 'r');
    bool has_triangle = call.count() > of_a;
    i64 skipped = unit ? (upper ? a.pitch : 1) * a.size() : 0;  // up to the first range
    double cost = double(of.order()) * double(of.m) * double(of.n) / 2;
    return call.submit(if_affordable(cost, [=](const library::Views& views) {
        Complex alpha_now = by.get(views);
        u8* triangle = has_triangle ? views[of_a] - skipped : nullptr;
        bool on_left = of.side == kLeft, forth = (upper == (of.operation != kAsIs)) == on_left;
        i64 n = of.order(), others = on_left ? of.n : of.m;
        for (i64 j = 0; j < others; j++) {
            auto at = [&](i64 i) { return on_left ? b.at(views[of_b], i, j) : b.at(views[of_b], j, i); };
            for (i64 k = 0; k < n; k++) {
                i64 i = forth ? k : n - 1 - k;
                Complex sum = alpha_now == 0.0 ? 0.0 : alpha_now * load(at(i), b.type);
                for (i64 l = forth ? 0 : i + 1; alpha_now != 0.0 && l < (forth ? i : n); l++)
                    sum -= (on_left ? a.get(triangle, of.operation, i, l) : a.get(triangle, of.operation, l, i)) *
                           load(at(l), b.type);
                if (alpha_now != 0.0 && !unit) sum /= a.get(triangle, of.operation, i, i);
                store(at(i), b.type, sum);
            }
        }
    }));
}

// C = diag(x) A or A diag(x), in place too
Status dgmm(const char* name, Handle* handle, int side, Matrix a, Vector x, Matrix c) {
    if (!handle) return kNotInitialized;
    if ((side != kLeft && side != kRight) || !a.is_right() || !c.is_right()) return kInvalidValue;
    if (!c.rows || !c.columns) return kSuccess;
    x.count = side == kLeft ? c.rows : c.columns;
    Call call(name, handle);
    std::size_t of_a = add(call, a, 'r'), of_x = add(call, x, 'r'), of_c = add(call, c, 'w');
    return call.submit(if_affordable(double(c.rows) * double(c.columns), [=](const library::Views& views) {
        for (i64 j = 0; j < c.columns; j++)
            for (i64 i = 0; i < c.rows; i++)
                store(c.at(views[of_c], i, j), c.type,
                      a.get(views[of_a], i, j) * x.get(views[of_x], side == kLeft ? i : j));
    }));
}

}  // namespace

}  // namespace cublas

using namespace cublas;

#define VECTORS(letter, type) \
    CUBLAS Status cublas##letter##axpy_v2(Handle* h, int n, const void* alpha, const void* x, int incx, void* y, \
                                          int incy) { \
        return axpy("cublas" #letter "axpy", h, alpha, type, {x, type, n, incx}, {y, type, n, incy}); \
    } \
    CUBLAS Status cublas##letter##scal_v2(Handle* h, int n, const void* alpha, void* x, int incx) { \
        return scal("cublas" #letter "scal", h, alpha, type, {x, type, n, incx}); \
    } \
    CUBLAS Status cublas##letter##copy_v2(Handle* h, int n, const void* x, int incx, void* y, int incy) { \
        return copy_or_swap("cublas" #letter "copy", h, {x, type, n, incx}, {y, type, n, incy}, false); \
    } \
    CUBLAS Status cublas##letter##swap_v2(Handle* h, int n, void* x, int incx, void* y, int incy) { \
        return copy_or_swap("cublas" #letter "swap", h, {x, type, n, incx}, {y, type, n, incy}, true); \
    } \
    CUBLAS Status cublas##letter##gemv_v2(Handle* h, int operation, int m, int n, const void* alpha, const void* a, \
                                          int lda, const void* x, int incx, const void* beta, void* y, int incy) { \
        return gemv("cublas" #letter "gemv", h, operation, {a, type, m, n, lda}, alpha, {x, type, 0, incx}, beta, \
                    {y, type, 0, incy}); \
    } \
    CUBLAS Status cublas##letter##geam(Handle* h, int of_a, int of_b, int m, int n, const void* alpha, const void* a, \
                                       int lda, const void* beta, const void* b, int ldb, void* c, int ldc) { \
        return geam(__func__, h, {of_a, alpha, a, lda}, {of_b, beta, b, ldb}, {c, type, m, n, ldc}); \
    } \
    CUBLAS Status cublas##letter##trsm_v2(Handle* h, int side, int fill, int operation, int diagonal, int m, int n, \
                                          const void* alpha, const void* a, int lda, void* b, int ldb) { \
        return trsm("cublas" #letter "trsm", h, {side, fill, operation, diagonal, m, n}, alpha, a, lda, \
                    {b, type, m, n, ldb}); \
    } \
    CUBLAS Status cublas##letter##dgmm(Handle* h, int side, int m, int n, const void* a, int lda, const void* x, \
                                       int incx, void* c, int ldc) { \
        return dgmm(__func__, h, side, {a, type, m, n, lda}, {x, type, 0, incx}, {c, type, m, n, ldc}); \
    } \
    CUBLAS Status cublas##letter##syrk_v2(Handle* h, int fill, int operation, int n, int k, const void* alpha, \
                                          const void* a, int lda, const void* beta, void* c, int ldc) { \
        return syrk("cublas" #letter "syrk", h, fill, operation, k, alpha, a, lda, beta, {c, type, n, n, ldc}); \
    }
VECTORS(S, kFloat)
VECTORS(D, kDouble)
VECTORS(C, kComplexFloat)
VECTORS(Z, kComplexDouble)

#define DOT(name, type, conjugated) \
    CUBLAS Status cublas##name##_v2(Handle* h, int n, const void* x, int incx, const void* y, int incy, \
                                    void* result) { \
        return dot("cublas" #name, h, {x, type, n, incx}, {y, type, n, incy}, conjugated, result, type); \
    }
DOT(Sdot, kFloat, false)
DOT(Ddot, kDouble, false)
DOT(Cdotu, kComplexFloat, false)
DOT(Cdotc, kComplexFloat, true)
DOT(Zdotu, kComplexDouble, false)
DOT(Zdotc, kComplexDouble, true)

#define GER(name, type, conjugated) \
    CUBLAS Status cublas##name##_v2(Handle* h, int m, int n, const void* alpha, const void* x, int incx, \
                                    const void* y, int incy, void* a, int lda) { \
        return ger("cublas" #name, h, {a, type, m, n, lda}, alpha, {x, type, m, incx}, {y, type, n, incy}, \
                   conjugated); \
    }
GER(Sger, kFloat, false)
GER(Dger, kDouble, false)
GER(Cgeru, kComplexFloat, false)
GER(Cgerc, kComplexFloat, true)
GER(Zgeru, kComplexDouble, false)
GER(Zgerc, kComplexDouble, true)

#define REDUCE(name, type, type_of_result, next) \
    CUBLAS Status cublas##name##_v2(Handle* h, int n, const void* x, int incx, void* result) { \
        return reduce("cublas" #name, h, {x, type, n, incx}, result, type_of_result, next); \
    }
REDUCE(Snrm2, kFloat, kFloat, root_of_squares)
REDUCE(Dnrm2, kDouble, kDouble, root_of_squares)
REDUCE(Scnrm2, kComplexFloat, kFloat, root_of_squares)
REDUCE(Dznrm2, kComplexDouble, kDouble, root_of_squares)
REDUCE(Sasum, kFloat, kFloat, sum_of_sizes)
REDUCE(Dasum, kDouble, kDouble, sum_of_sizes)
REDUCE(Scasum, kComplexFloat, kFloat, sum_of_sizes)
REDUCE(Dzasum, kComplexDouble, kDouble, sum_of_sizes)
REDUCE(Isamax, kFloat, kInt32, place_of<true>)
REDUCE(Idamax, kDouble, kInt32, place_of<true>)
REDUCE(Icamax, kComplexFloat, kInt32, place_of<true>)
REDUCE(Izamax, kComplexDouble, kInt32, place_of<true>)
REDUCE(Isamin, kFloat, kInt32, place_of<false>)
REDUCE(Idamin, kDouble, kInt32, place_of<false>)
REDUCE(Icamin, kComplexFloat, kInt32, place_of<false>)
REDUCE(Izamin, kComplexDouble, kInt32, place_of<false>)

CUBLAS Status cublasCsscal_v2(Handle* h, int n, const void* alpha, void* x, int incx) {
    return scal("cublasCsscal", h, alpha, kFloat, {x, kComplexFloat, n, incx});
}
CUBLAS Status cublasZdscal_v2(Handle* h, int n, const void* alpha, void* x, int incx) {
    return scal("cublasZdscal", h, alpha, kDouble, {x, kComplexDouble, n, incx});
}

// Of elements of any type.
CUBLAS Status cublasDotEx(Handle* h, int n, const void* x, Type type_x, int incx, const void* y, Type type_y, int incy,
                          void* result, Type type, int) {
    return dot(__func__, h, {x, type_x, n, incx}, {y, type_y, n, incy}, false, result, type);
}
CUBLAS Status cublasDotcEx(Handle* h, int n, const void* x, Type type_x, int incx, const void* y, Type type_y, int incy,
                           void* result, Type type, int) {
    return dot(__func__, h, {x, type_x, n, incx}, {y, type_y, n, incy}, true, result, type);
}
CUBLAS Status cublasNrm2Ex(Handle* h, int n, const void* x, Type type_x, int incx, void* result, Type type, int) {
    return reduce(__func__, h, {x, type_x, n, incx}, result, type, root_of_squares);
}
CUBLAS Status cublasAxpyEx(Handle* h, int n, const void* alpha, Type type_of_alpha, const void* x, Type type_x,
                           int incx, void* y, Type type_y, int incy, int) {
    return axpy(__func__, h, alpha, type_of_alpha, {x, type_x, n, incx}, {y, type_y, n, incy});
}
CUBLAS Status cublasScalEx(Handle* h, int n, const void* alpha, Type type_of_alpha, void* x, Type type_x, int incx,
                           int) {
    return scal(__func__, h, alpha, type_of_alpha, {x, type_x, n, incx});
}
