// Equations of sparse triangles, and of three diagonals.
#include "sparse.hpp"

namespace cusparse {

namespace {

// Between its steps.
struct Triangle {
    const void* area = nullptr;
};

// X of op(A) X = alpha B; `b(i, j)` are the right sides, and `x(i, j)` stores one of the solution.
template <class Right, class Store>
void solve(const Sparse& a, const View& view, int operation, const Complex& alpha, i64 columns, Right&& b, Store&& x) {
    struct Of {
        i64 column;
        Complex value;
    };
    i64 n = a.rows;
    std::vector<std::vector<Of>> rows(static_cast<std::size_t>(n));
    std::vector<Complex> diagonal(std::size_t(n), a.diagonal ? 1 : 0);
    for (const Element& one : elements_of(a, view)) {
        Element at = turned(one, operation);
        Complex value = value_of(a, view, one, operation);
        if (one.row != one.column && (one.row > one.column) == (a.fill == kLower))
            rows[std::size_t(at.row)].push_back({at.column, value});
        else if (one.row == one.column && !a.diagonal)
            diagonal[std::size_t(at.row)] += value;
    }
    bool from_first = (a.fill == kLower) == (operation == kAsIs);
    std::vector<Complex> found(static_cast<std::size_t>(n));
    for (i64 j = 0; j < columns; j++) {
        for (i64 k = 0; k < n; k++) {
            i64 i = from_first ? k : n - 1 - k;
            Complex sum = alpha * b(i, j);
            for (const Of& one : rows[std::size_t(i)]) sum -= one.value * found[std::size_t(one.column)];
            found[std::size_t(i)] = sum / diagonal[std::size_t(i)];
        }
        for (i64 i = 0; i < n; i++) x(i, j, found[std::size_t(i)]);
    }
}

Status refuse(const Handle* handle, int operation, const Sparse* a, const Triangle* triangle, int computed) {
    if (!handle) return kNotInitialized;
    if (!is_operation(operation) || !a || !triangle || a->rows != a->columns) return kInvalidValue;
    return is_simulated({computed}) ? kSuccess : kNotSupported;
}

Status analyse(const char* name, Handle* handle, const Sparse& a, Triangle* triangle, const void* area) {
    Call call(name, handle);
    call.add(a, 'r', 'r');
    call.add_work(area);
    triangle->area = area;
    return call.submit(0, [](const library::Views&) {});
}

}  // namespace

}  // namespace cusparse

using namespace cusparse;

CUSPARSE Status cusparseSpSV_createDescr(Triangle** made) { return make(made); }
CUSPARSE Status cusparseSpSV_destroyDescr(Triangle* made) { return destroy(made); }
CUSPARSE Status cusparseSpSV_bufferSize(Handle* handle, int, const void*, const Sparse*, const Vector*, const Vector*,
                                        int, int, Triangle*, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseSpSV_analysis(Handle* handle, int operation, const void*, const Sparse* a, const Vector*,
                                      const Vector*, int computed, int, Triangle* triangle, void* area) {
    Status refused = refuse(handle, operation, a, triangle, computed);
    return refused ? refused : analyse(__func__, handle, *a, triangle, area);
}
CUSPARSE Status cusparseSpSV_solve(Handle* handle, int operation, const void* alpha, const Sparse* a, const Vector* b,
                                   const Vector* x, int computed, int, Triangle* triangle) {
    if (Status refused = refuse(handle, operation, a, triangle, computed)) return refused;
    if (!alpha || !b || !x || b->size != a->rows || x->size != a->rows) return kInvalidValue;
    if (!are_same({a->type, b->type, x->type, computed})) return kNotSupported;
    Call call(__func__, handle);
    Scalar by = call.scalar(alpha, computed);
    std::size_t of_a = call.add(*a, 'r', 'r'), of_b = call.add(*b, 'r'), of_x = call.add(*x, 'w');
    call.add_work(triangle->area, 'b');
    return call.submit(double(a->count) + double(a->rows), [=, a = *a, b = *b, x = *x](const library::Views& views) {
        auto right = [&](i64 i, i64) { return load(views[of_b] + u64(i) * size_of(b.type), b.type); };
        solve(a, Call::at(views, of_a), operation, by.get(views), 1, right,
              [&](i64 i, i64, const Complex& found) { store(views[of_x] + u64(i) * size_of(x.type), x.type, found); });
    });
}

CUSPARSE Status cusparseSpSM_createDescr(Triangle** made) { return make(made); }
CUSPARSE Status cusparseSpSM_destroyDescr(Triangle* made) { return destroy(made); }
CUSPARSE Status cusparseSpSM_bufferSize(Handle* handle, int, int, const void*, const Sparse*, const Dense*,
                                        const Dense*, int, int, Triangle*, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseSpSM_analysis(Handle* handle, int operation, int, const void*, const Sparse* a, const Dense*,
                                      const Dense*, int computed, int, Triangle* triangle, void* area) {
    Status refused = refuse(handle, operation, a, triangle, computed);
    return refused ? refused : analyse(__func__, handle, *a, triangle, area);
}
CUSPARSE Status cusparseSpSM_solve(Handle* handle, int operation, int of_b, const void* alpha, const Sparse* a,
                                   const Dense* b, const Dense* x, int computed, int, Triangle* triangle) {
    if (Status refused = refuse(handle, operation, a, triangle, computed)) return refused;
    if (!is_operation(of_b) || !alpha || !b || !x || x->rows != a->rows) return kInvalidValue;
    i64 rows = of_b == kAsIs ? b->rows : b->columns, columns = of_b == kAsIs ? b->columns : b->rows;
    if (rows != x->rows || columns != x->columns) return kInvalidValue;
    if (b->count != 1 || x->count != 1 || !are_same({a->type, b->type, x->type, computed})) return kNotSupported;
    Call call(__func__, handle);
    Scalar by = call.scalar(alpha, computed);
    std::size_t of_a = call.add(*a, 'r', 'r'), at_b = call.add(*b, 'r'), at_x = call.add(*x, 'w');
    call.add_work(triangle->area, 'b');
    double cost = (double(a->count) + double(a->rows)) * double(x->columns) + double(a->rows);
    return call.submit(cost, [=, a = *a, b = *b, x = *x](const library::Views& views) {
        auto right = [&](i64 i, i64 j) {
            u64 place = of_b == kAsIs ? b.place(i, j) : b.place(j, i);
            Complex value = load(views[at_b] + place * size_of(b.type), b.type);
            return of_b == kConjugated ? std::conj(value) : value;
        };
        solve(a, Call::at(views, of_a), operation, by.get(views), x.columns, right,
              [&](i64 i, i64 j, const Complex& found) {
                  store(views[at_x] + x.place(i, j) * size_of(x.type), x.type, found);
              });
    });
}
