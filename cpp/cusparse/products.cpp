// Products of sparse matrices with vectors and matrices.
#include "sparse.hpp"

namespace cusparse {

namespace {

i64 rows_of(const Sparse& a, int operation) { return operation == kAsIs ? a.rows : a.columns; }
i64 columns_of(const Sparse& a, int operation) { return operation == kAsIs ? a.columns : a.rows; }
i64 rows_of(const Dense& a, int operation) { return operation == kAsIs ? a.rows : a.columns; }
i64 columns_of(const Dense& a, int operation) { return operation == kAsIs ? a.columns : a.rows; }

Complex scaled(const Complex& factor, const Complex& value) { return factor == 0.0 ? 0.0 : factor * value; }

Complex element(const Dense& a, const u8* at, int operation, i64 row, i64 column) {
    u64 place = operation == kAsIs ? a.place(row, column) : a.place(column, row);
    Complex value = load(at + place * size_of(a.type), a.type);
    return operation == kConjugated ? std::conj(value) : value;
}

// The matrix may have real numbers where the others are complex, and float ones where the others are double.
bool may_multiply(int of_matrix, int of_vectors) {
    bool is_shorter = of_matrix == kFloat && of_vectors == kDouble;
    bool is_real = is_complex(of_vectors) && !is_complex(of_matrix) && is_double(of_matrix) == is_double(of_vectors);
    return of_matrix == of_vectors || is_shorter || is_real;
}

// y = alpha op(A) x + beta y
Status spmv(const char* name, Handle* handle, int operation, const void* alpha, const Sparse* a, const Vector* x,
            const void* beta, const Vector* y, int computed, const void* area) {
    if (!handle) return kNotInitialized;
    if (!is_operation(operation) || !alpha || !beta || !a || !x || !y) return kInvalidValue;
    if (!is_simulated({computed})) return kNotSupported;
    if (x->size != columns_of(*a, operation) || y->size != rows_of(*a, operation)) return kInvalidValue;
    if (!are_same({x->type, y->type, computed}) || !may_multiply(a->type, computed)) return kNotSupported;
    Call call(name, handle);
    Scalar by = call.scalar(alpha, computed), keeping = call.scalar(beta, computed);
    std::size_t of_a = call.add(*a, 'r', 'r'), of_x = call.add_some(*x, 'r');
    std::size_t of_y = call.add(*y, keeping.is(0) ? 'w' : 'b');
    call.add_work(area);
    return call.submit(double(a->count) + double(y->size), [=, a = *a, x = *x, y = *y](const library::Views& views) {
        View view = Call::at(views, of_a);
        std::vector<Complex> sums(std::size_t(y.size));
        for (const Element& one : elements_of(a, view)) {
            Element at = turned(one, operation);
            const u8* of_column = views[of_x] + u64(at.column) * size_of(x.type);
            sums[std::size_t(at.row)] += value_of(a, view, one, operation) * load(of_column, x.type);
        }
        Complex alpha_now = by.get(views), beta_now = keeping.get(views);
        for (i64 i = 0; i < y.size; i++) {
            u8* at = views[of_y] + u64(i) * size_of(y.type);
            Complex before = beta_now == 0.0 ? 0.0 : beta_now * load(at, y.type);
            store(at, y.type, scaled(alpha_now, sums[std::size_t(i)]) + before);
        }
    });
}

// C = alpha op(A) op(B) + beta C, for each of a batch
Status spmm(const char* name, Handle* handle, int of_a, int of_b, const void* alpha, const Sparse* a, const Dense* b,
            const void* beta, const Dense* c, int computed, const void* area) {
    if (!handle) return kNotInitialized;
    if (!is_operation(of_a) || !is_operation(of_b) || !alpha || !beta || !a || !b || !c) return kInvalidValue;
    if (!is_simulated({computed})) return kNotSupported;
    bool fits = c->rows == rows_of(*a, of_a) && c->columns == columns_of(*b, of_b) &&
                columns_of(*a, of_a) == rows_of(*b, of_b) && (b->count == c->count || b->count == 1);
    if (!fits) return kInvalidValue;
    if (!are_same({a->type, b->type, c->type, computed})) return kNotSupported;
    Call call(name, handle);
    Scalar by = call.scalar(alpha, computed), keeping = call.scalar(beta, computed);
    std::size_t at_a = call.add(*a, 'r', 'r'), at_b = call.add_some(*b, 'r');
    std::size_t at_c = call.add(*c, keeping.is(0) ? 'w' : 'b');
    call.add_work(area);
    double of_one = (double(a->count) + double(c->rows)) * double(c->columns);
    double cost = (of_one + library::kOfEach) * double(c->count);
    return call.submit(cost, [=, a = *a, b = *b, c = *c](const library::Views& views) {
        View view = Call::at(views, at_a);
        std::vector<Element> elements = elements_of(a, view);
        Complex alpha_now = by.get(views), beta_now = keeping.get(views);
        for (i64 i = 0; i < c.count; i++) {
            const u8* in_b = b.in(views[at_b], b.count == 1 ? 0 : i);
            std::vector<Complex> sums(std::size_t(c.rows * c.columns));
            for (const Element& one : elements) {
                Element at = turned(one, of_a);
                Complex value = value_of(a, view, one, of_a);
                for (i64 j = 0; j < c.columns; j++)
                    sums[std::size_t(at.row * c.columns + j)] += value * element(b, in_b, of_b, at.column, j);
            }
            for (i64 row = 0; row < c.rows; row++)
                for (i64 j = 0; j < c.columns; j++) {
                    u8* at = c.in(views[at_c], i) + c.place(row, j) * size_of(c.type);
                    Complex before = beta_now == 0.0 ? 0.0 : beta_now * load(at, c.type);
                    store(at, c.type, scaled(alpha_now, sums[std::size_t(row * c.columns + j)]) + before);
                }
        }
    });
}

// C = alpha op(A) op(B) + beta C, where C has elements
Status sddmm(const char* name, Handle* handle, int of_a, int of_b, const void* alpha, const Dense* a, const Dense* b,
             const void* beta, const Sparse* c, int computed, const void* area) {
    if (!handle) return kNotInitialized;
    if (!is_operation(of_a) || !is_operation(of_b) || !alpha || !beta || !a || !b || !c) return kInvalidValue;
    if (!is_simulated({computed}) || a->count != 1 || b->count != 1) return kNotSupported;
    bool fits =
        c->rows == rows_of(*a, of_a) && c->columns == columns_of(*b, of_b) && columns_of(*a, of_a) == rows_of(*b, of_b);
    if (!fits) return kInvalidValue;
    if (!are_same({a->type, b->type, c->type, computed})) return kNotSupported;
    Call call(name, handle);
    Scalar by = call.scalar(alpha, computed), keeping = call.scalar(beta, computed);
    std::size_t at_a = call.add_some(*a, 'r'), at_b = call.add_some(*b, 'r');
    std::size_t at_c = call.add(*c, 'r', keeping.is(0) ? 'w' : 'b');
    call.add_work(area);
    i64 depth = columns_of(*a, of_a);
    return call.submit(double(c->count) * double(depth), [=, a = *a, b = *b, c = *c](const library::Views& views) {
        View view = Call::at(views, at_c);
        Complex alpha_now = by.get(views), beta_now = keeping.get(views);
        for (const Element& one : elements_of(c, view)) {
            Complex sum = 0;
            for (i64 k = 0; k < depth; k++)
                sum += element(a, views[at_a], of_a, one.row, k) * element(b, views[at_b], of_b, k, one.column);
            Complex before = beta_now == 0.0 ? 0.0 : beta_now * value_of(c, view, one);
            store(view.values + u64(one.place) * size_of(c.type), c.type, scaled(alpha_now, sum) + before);
        }
    });
}

// What may be done ahead, once for many products: the structure is read.
Status preprocess(const char* name, Handle* handle, const Sparse* a, const void* area) {
    if (!handle || !a) return handle ? kInvalidValue : kNotInitialized;
    Call call(name, handle);
    call.add(*a, 'r', 0);
    call.add_work(area);
    return call.submit(0, [](const library::Views&) {});
}

// A product of two sparse matrices, between its steps.
struct Product {
    const void *first_area = nullptr, *second_area = nullptr;
    std::vector<std::map<i64, Complex>> rows;
    i64 count = 0;
};
struct Steps {
    std::shared_ptr<Product> product = std::make_shared<Product>();
};

struct Factors {
    int of_a, of_b;
    const void* alpha;
    const Sparse *a, *b;
    const void* beta;
    Sparse* c;
    int computed;
};

Status refuse(const Handle* handle, const Factors& of, const Steps* steps) {
    if (!handle) return kNotInitialized;
    if (!of.alpha || !of.beta || !of.a || !of.b || !of.c || !steps) return kInvalidValue;
    if (of.of_a != kAsIs || of.of_b != kAsIs || !is_simulated({of.computed})) return kNotSupported;
    bool fits = of.a->columns == of.b->rows && of.c->rows == of.a->rows && of.c->columns == of.b->columns;
    bool is_by_rows = of.a->format == kRows && of.b->format == kRows && of.c->format == kRows;
    bool is_known = is_by_rows && are_same({of.a->type, of.b->type, of.c->type, of.computed});
    return !fits ? kInvalidValue : is_known ? kSuccess : kNotSupported;
}

Status estimate(const char* name, Handle* handle, const Factors& of, Steps* steps, std::size_t* bytes,
                const void* area) {
    if (Status refused = refuse(handle, of, steps)) return refused;
    if (!area) return size_of_work(handle, bytes);
    Call call(name, handle);
    for (const Sparse* factor : {of.a, of.b}) call.add(*factor, 'r', 0);
    call.add_work(area);
    steps->product->first_area = area;
    return call.submit(0, [](const library::Views&) {});
}

// The host waits for the number of elements.
Status compute(const char* name, Handle* handle, const Factors& of, Steps* steps, std::size_t* bytes,
               const void* area) {
    if (Status refused = refuse(handle, of, steps)) return refused;
    if (!area) return size_of_work(handle, bytes);
    Call call(name, handle);
    Scalar by = call.scalar(of.alpha, of.computed);
    std::size_t of_a = call.add(*of.a, 'r', 'r'), of_b = call.add(*of.b, 'r', 'r');
    call.add_work(steps->product->first_area, 'r');
    call.add_work(area);
    steps->product->second_area = area;
    double mean = of.b->rows ? double(of.b->count) / double(of.b->rows) : 0;
    auto run = [by, of_a, of_b, a = *of.a, b = *of.b, made = steps->product](const library::Views& views) {
        View in_a = Call::at(views, of_a), in_b = Call::at(views, of_b);
        std::vector<std::vector<Element>> rows(std::size_t(b.rows));
        for (const Element& one : elements_of(b, in_b)) rows[std::size_t(one.row)].push_back(one);
        Complex alpha_now = by.get(views);
        made->rows.assign(std::size_t(a.rows), {});
        made->count = 0;
        for (const Element& one : elements_of(a, in_a))
            for (const Element& other : rows[std::size_t(one.column)]) {
                Complex product = value_of(a, in_a, one) * value_of(b, in_b, other);
                auto [place, is_new] = made->rows[std::size_t(one.row)].try_emplace(other.column, 0);
                place->second += alpha_now * product;
                made->count += is_new;
            }
    };
    double cost = double(of.a->count) * mean + kOfRow * (double(of.a->rows) + double(of.b->rows));
    Status status = call.submit(cost, run);
    if (!status && !call.was_affordable()) return kInsufficientResources;
    if (!status && cuStreamSynchronize(handle->stream)) return kExecutionFailed;
    if (!status) of.c->count = steps->product->count;
    return status;
}

Status copy(const char* name, Handle* handle, const Factors& of, Steps* steps) {
    if (Status refused = refuse(handle, of, steps)) return refused;
    Call call(name, handle);
    Scalar keeping = call.scalar(of.beta, of.computed);  // C has its elements in the places of the product's
    Sparse c = *of.c;
    c.count = std::min(c.count, steps->product->count);
    std::size_t of_c = call.add(c, 'w', keeping.is(0) ? 'w' : 'b');
    call.add_work(steps->product->first_area, 'r');
    call.add_work(steps->product->second_area, 'r');
    double cost = double(c.count) + double(c.rows);
    return call.submit(cost, [c, of_c, keeping, made = steps->product](const library::Views& views) {
        View view = Call::at(views, of_c);
        Complex beta_now = keeping.get(views);
        i64 place = 0;
        for (i64 row = 0; row <= c.rows; row++) {
            store_index(view.majors, c.width_of_majors, row, place + c.base);
            if (row == c.rows || std::size_t(row) >= made->rows.size()) continue;
            for (const auto& [column, value] : made->rows[std::size_t(row)]) {
                if (place == c.count) break;
                store_index(view.minors, c.width_of_minors, place, column + c.base);
                u8* at = view.values + u64(place++) * size_of(c.type);
                store(at, c.type, value + (beta_now == 0.0 ? 0.0 : beta_now * load(at, c.type)));
            }
        }
    });
}

// Some elements of a vector: they are read, or written, at the places that a sparse one names.
struct Some {
    std::size_t indices, values, all;
    SparseVector x;
    Vector y;

    template <class Do>
    void each(const library::Views& views, Do&& act) const {
        for (i64 i = 0; i < x.count; i++) {
            i64 place = load_index(views[indices], x.width, i) - x.base;
            if (place >= 0 && place < y.size)
                act(views[values] + u64(i) * size_of(x.type), views[all] + u64(place) * size_of(y.type));
        }
    }
};

Status refuse(const Handle* handle, const SparseVector* x, const Vector* y) {
    if (!handle || !x || !y) return handle ? kInvalidValue : kNotInitialized;
    return are_same({x->type, y->type}) ? kSuccess : kNotSupported;
}

Some add(Call& call, const SparseVector& x, char of_x, const Vector& y, char of_y) {
    std::size_t indices = call.add(x.indices, u64(x.count) * bytes_of(x.width), 'r');
    std::size_t values = call.add(x.values, u64(x.count) * size_of(x.type), of_x);
    bool is_all = x.count == y.size;  // no index comes twice
    return {indices, values, is_all ? call.add(y, of_y) : call.add_some(y, of_y), x, y};
}

}  // namespace

}  // namespace cusparse

using namespace cusparse;

CUSPARSE Status cusparseSpMV_bufferSize(Handle* handle, int, const void*, const Sparse*, const Vector*, const void*,
                                        const Vector*, int, int, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseSpMV(Handle* handle, int operation, const void* alpha, const Sparse* a, const Vector* x,
                             const void* beta, const Vector* y, int computed, int, void* area) {
    return spmv(__func__, handle, operation, alpha, a, x, beta, y, computed, area);
}
CUSPARSE Status cusparseSpMM_bufferSize(Handle* handle, int, int, const void*, const Sparse*, const Dense*, const void*,
                                        const Dense*, int, int, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseSpMM(Handle* handle, int of_a, int of_b, const void* alpha, const Sparse* a, const Dense* b,
                             const void* beta, const Dense* c, int computed, int, void* area) {
    return spmm(__func__, handle, of_a, of_b, alpha, a, b, beta, c, computed, area);
}
CUSPARSE Status cusparseSDDMM_bufferSize(Handle* handle, int, int, const void*, const Dense*, const Dense*, const void*,
                                         const Sparse*, int, int, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseSDDMM(Handle* handle, int of_a, int of_b, const void* alpha, const Dense* a, const Dense* b,
                              const void* beta, const Sparse* c, int computed, int, void* area) {
    return sddmm(__func__, handle, of_a, of_b, alpha, a, b, beta, c, computed, area);
}

CUSPARSE Status cusparseSpMV_preprocess(Handle* handle, int, const void*, const Sparse* a, const Vector*, const void*,
                                        const Vector*, int, int, void* area) {
    return preprocess(__func__, handle, a, area);
}
CUSPARSE Status cusparseSpMM_preprocess(Handle* handle, int, int, const void*, const Sparse* a, const Dense*,
                                        const void*, const Dense*, int, int, void* area) {
    return preprocess(__func__, handle, a, area);
}
CUSPARSE Status cusparseSDDMM_preprocess(Handle* handle, int, int, const void*, const Dense*, const Dense*, const void*,
                                         const Sparse* c, int, int, void* area) {
    return preprocess(__func__, handle, c, area);
}

CUSPARSE Status cusparseSpGEMM_createDescr(Steps** made) { return make(made); }
CUSPARSE Status cusparseSpGEMM_destroyDescr(Steps* made) { return destroy(made); }
#define STEP(name, function) \
    CUSPARSE Status cusparseSpGEMM_##name(Handle* handle, int of_a, int of_b, const void* alpha, const Sparse* a, \
                                          const Sparse* b, const void* beta, Sparse* c, int computed, int, \
                                          Steps* steps, std::size_t* bytes, void* area) { \
        return function(__func__, handle, {of_a, of_b, alpha, a, b, beta, c, computed}, steps, bytes, area); \
    }
STEP(workEstimation, estimate)
STEP(compute, compute)
CUSPARSE Status cusparseSpGEMM_copy(Handle* handle, int of_a, int of_b, const void* alpha, const Sparse* a,
                                    const Sparse* b, const void* beta, Sparse* c, int computed, int, Steps* steps) {
    return copy(__func__, handle, {of_a, of_b, alpha, a, b, beta, c, computed}, steps);
}

CUSPARSE Status cusparseGather(Handle* handle, const Vector* y, const SparseVector* x) {
    if (Status refused = refuse(handle, x, y)) return refused;
    Call call(__func__, handle);
    Some some = add(call, *x, 'w', *y, 'r');
    return call.submit(double(x->count), [some](const library::Views& views) {
        some.each(views, [&](u8* one, u8* other) { store(one, some.x.type, load(other, some.y.type)); });
    });
}
CUSPARSE Status cusparseScatter(Handle* handle, const SparseVector* x, const Vector* y) {
    if (Status refused = refuse(handle, x, y)) return refused;
    Call call(__func__, handle);
    Some some = add(call, *x, 'r', *y, 'w');
    return call.submit(double(x->count), [some](const library::Views& views) {
        some.each(views, [&](u8* one, u8* other) { store(other, some.y.type, load(one, some.x.type)); });
    });
}
