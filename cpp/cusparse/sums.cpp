// Sums of sparse matrices, in two steps: the offsets and the number of elements, then the elements.
#include "sparse.hpp"

namespace cusparse {

namespace {

struct Term {
    const void* factor;
    const Description* of;
    int count;
    const void *values, *offsets, *columns;

    Sparse matrix(i64 m, i64 n, int type) const {
        return {kRows, m, n, count, offsets, columns, values, kIndex32, kIndex32, of->base, type};
    }
};

Sum sum_of(int m, int n, const Term& a, const Term& b) {
    return {m, n, {a.count, b.count}, {a.offsets, a.columns, b.offsets, b.columns}};
}

Status refuse(const Handle* handle, int m, int n, const Term& a, const Term& b, const Description* c) {
    if (!handle) return kNotInitialized;
    return m < 0 || n < 0 || !a.of || !b.of || !c || a.count < 0 || b.count < 0 ? kInvalidValue : kSuccess;
}

std::vector<std::map<i64, Complex>> rows_of(const Sparse& a, const View& in_a, const Complex& alpha, const Sparse& b,
                                            const View& in_b, const Complex& beta, bool with_values) {
    std::vector<std::map<i64, Complex>> rows(std::size_t(a.rows));
    for (const Element& one : elements_of(a, in_a))
        rows[std::size_t(one.row)][one.column] += with_values ? alpha * value_of(a, in_a, one) : 0;
    for (const Element& one : elements_of(b, in_b))
        rows[std::size_t(one.row)][one.column] += with_values ? beta * value_of(b, in_b, one) : 0;
    return rows;
}

Status count(const char* name, Handle* handle, int m, int n, const Term& left, const Term& right,
             const Description* of_c, int* offsets, int* total, const void* area) {
    if (Status refused = refuse(handle, m, n, left, right, of_c)) return refused;
    if (!offsets || !total) return kInvalidValue;
    Call call(name, handle);
    Sparse a = left.matrix(m, n, kFloat), b = right.matrix(m, n, kFloat);
    std::size_t of_a = call.add(a, 'r', 0), of_b = call.add(b, 'r', 0);
    std::size_t of_offsets = call.add(offsets, u64(m + 1) * sizeof(int), 'w');
    bool on_device = handle->pointer_mode == 1;
    std::size_t of_total = call.add(total, on_device ? sizeof *total : 0, 'w');
    call.add_work(area);
    auto found = std::make_shared<std::atomic<i64>>(-1);
    int base = of_c->base;
    Status status = call.submit(double(a.count) + double(b.count) + kOfRow * m, [=](const library::Views& views) {
        auto rows = rows_of(a, Call::at(views, of_a), 0, b, Call::at(views, of_b), 0, false);
        i64 place = 0;
        for (i64 i = 0; i <= m; i++) {
            store_index(views[of_offsets], kIndex32, i, place + base);
            if (i < m) place += i64(rows[std::size_t(i)].size());
        }
        if (on_device) store_index(views[of_total], kIndex32, 0, place);
        *found = place;
    });
    handle->note(offsets, {sum_of(m, n, left, right), found});
    if (status || on_device) return status;
    if (!call.was_affordable()) return kInsufficientResources;
    if (cuStreamSynchronize(handle->stream)) return kExecutionFailed;
    *total = int(*found);
    return kSuccess;
}

// The number of elements is that of the first step, where the device has come to it.
Status add(const char* name, Handle* handle, int m, int n, int type, const Term& left, const Term& right,
           const Description* of_c, void* values, const int* offsets, int* columns, const void* area) {
    if (Status refused = refuse(handle, m, n, left, right, of_c)) return refused;
    if (!left.factor || !right.factor) return kInvalidValue;
    i64 known = handle->count_of(offsets, sum_of(m, n, left, right));
    Call call(name, handle);
    Scalar alpha = call.scalar(left.factor, type), beta = call.scalar(right.factor, type);
    Sparse a = left.matrix(m, n, type), b = right.matrix(m, n, type);
    i64 count = std::max<i64>(known, 0);
    Sparse c{kRows, m, n, count, offsets, columns, values, kIndex32, kIndex32, of_c->base, type};
    std::size_t of_a = call.add(a, 'r', 'r'), of_b = call.add(b, 'r', 'r');
    call.add(offsets, u64(m + 1) * sizeof(int), 'r');
    std::size_t of_columns = call.add(columns, u64(c.count) * sizeof(int), 'w');
    std::size_t of_values = call.add(values, u64(c.count) * size_of(type), 'w');
    call.add_work(area);
    if (known < 0) call.touches_more();
    return call.submit(double(a.count) + double(b.count) + kOfRow * m, [=](const library::Views& views) {
        i64 place = 0;
        for (const auto& row :
             rows_of(a, Call::at(views, of_a), alpha.get(views), b, Call::at(views, of_b), beta.get(views), true))
            for (const auto& [column, value] : row) {
                if (place == c.count) return;
                store_index(views[of_columns], kIndex32, place, column + c.base);
                store(views[of_values] + u64(place++) * size_of(type), type, value);
            }
    });
}

}  // namespace

}  // namespace cusparse

using namespace cusparse;

CUSPARSE Status cusparseXcsrgeam2Nnz(Handle* handle, int m, int n, const Description* of_a, int count_a,
                                     const int* offsets_a, const int* columns_a, const Description* of_b, int count_b,
                                     const int* offsets_b, const int* columns_b, const Description* of_c,
                                     int* offsets_c, int* total, void* area) {
    return count(__func__, handle, m, n, {nullptr, of_a, count_a, nullptr, offsets_a, columns_a},
                 {nullptr, of_b, count_b, nullptr, offsets_b, columns_b}, of_c, offsets_c, total, area);
}
#define SUM(letter, type) \
    CUSPARSE Status cusparse##letter##csrgeam2_bufferSizeExt( \
        Handle* handle, int, int, const void*, const Description*, int, const void*, const int*, const int*, \
        const void*, const Description*, int, const void*, const int*, const int*, const Description*, const void*, \
        const int*, const int*, std::size_t* bytes) { \
        return size_of_work(handle, bytes); \
    } \
    CUSPARSE Status cusparse##letter##csrgeam2( \
        Handle* handle, int m, int n, const void* alpha, const Description* of_a, int count_a, const void* values_a, \
        const int* offsets_a, const int* columns_a, const void* beta, const Description* of_b, int count_b, \
        const void* values_b, const int* offsets_b, const int* columns_b, const Description* of_c, void* values_c, \
        int* offsets_c, int* columns_c, void* area) { \
        return add(__func__, handle, m, n, type, {alpha, of_a, count_a, values_a, offsets_a, columns_a}, \
                   {beta, of_b, count_b, values_b, offsets_b, columns_b}, of_c, values_c, offsets_c, columns_c, area); \
    }
SUM(S, kFloat)
SUM(D, kDouble)
SUM(C, kComplexFloat)
SUM(Z, kComplexDouble)
