// Products of matrices, one or a batch.
#include "blas.hpp"

#include <algorithm>

namespace cublas {

namespace {

// A matrix of a batch: `stride` elements lie between one and the next.
struct Batch {
    const void* first;
    Type type;
    i64 pitch, stride = 0;
    // As it is stored: see stored().
    i64 rows = 0, columns = 0;

    i64 size() const { return i64(size_of(type)); }
    bool is_right() const { return size() && pitch >= std::max<i64>(rows, 1); }
};

// C = alpha op(A) op(B) + beta C for each of a batch; op(A) has m rows and k columns.
struct Product {
    int of_a, of_b;
    i64 m, n, k;
    Scalar alpha;
    Batch a, b;
    Scalar beta;
    Batch c;
    i64 count = 1;
    bool through_pointers = false;  // to the matrices; the pointers are in the device's memory

    bool reads_factors() const { return k && !alpha.is(0); }
};

Batch stored(Batch batch, int operation, i64 rows, i64 columns) {
    batch.rows = operation == kAsIs ? rows : columns;
    batch.columns = operation == kAsIs ? columns : rows;
    return batch;
}

void convert(const Complex& from, double& to) { to = from.real(); }
void convert(const Complex& from, Complex& to) { to = from; }

// op(A) by columns, without gaps.
template <class Number>
std::vector<Number> packed(const u8* first, const Batch& matrix, int operation, i64 rows, i64 columns) {
    std::vector<Number> numbers(std::size_t(rows * columns));
    for (i64 column = 0; column < matrix.columns; column++)
        for (i64 row = 0; row < matrix.rows; row++) {
            Complex value = load(first + (column * matrix.pitch + row) * matrix.size(), matrix.type);
            if (operation == kConjugated) value = std::conj(value);
            i64 place = operation == kAsIs ? column * rows + row : row * rows + column;
            convert(value, numbers[std::size_t(place)]);
        }
    return numbers;
}

// Where the matrices of one product of the batch are.
struct Views {
    const u8 *a, *b;
    u8* c;
};

template <class Number>
void multiply(const Product& p, const Views& views, const Complex& alpha, const Complex& beta) {
    std::vector<Number> a, b, column(std::size_t(p.m));
    i64 depth = p.reads_factors() ? p.k : 0;
    if (depth) {
        a = packed<Number>(views.a, p.a, p.of_a, p.m, p.k);
        b = packed<Number>(views.b, p.b, p.of_b, p.k, p.n);
    }
    for (i64 j = 0; j < p.n; j++) {
        std::fill(column.begin(), column.end(), Number(0));
        for (i64 l = 0; l < depth; l++) {
            const Number factor = b[std::size_t(j * p.k + l)];
            const Number* of_a = &a[std::size_t(l * p.m)];
            for (i64 i = 0; i < p.m; i++) column[std::size_t(i)] += factor * of_a[i];
        }
        for (i64 i = 0; i < p.m; i++) {
            u8* at = views.c + (j * p.c.pitch + i) * p.c.size();
            Complex value = alpha * Complex(column[std::size_t(i)]);
            store(at, p.c.type, beta == 0.0 ? value : value + beta * load(at, p.c.type));
        }
    }
}

void add(Call& call, const Batch& batch, i64 count, char use) {
    u64 size = u64(batch.size());
    library::Extent one{reinterpret_cast<u64>(batch.first), u64(batch.rows) * size, u64(batch.columns),
                        u64(batch.pitch) * size, use};
    for (const library::Extent& extent : library::extents_of_batch(one, count, batch.stride, size)) call.add(extent);
}

double cost_of(const Product& p) {
    return (double(p.m) * double(p.n) * double(p.k) + library::kOfEach) * double(p.count);
}

library::Run computing(const Product& p, std::size_t of_a, std::size_t of_b, std::size_t of_c) {
    return [=](const library::Views& views) {
        Complex alpha = p.alpha.get(views), beta = p.beta.get(views);
        bool complex = is_complex(p.a.type) || is_complex(p.c.type);
        for (i64 i = 0; i < p.count; i++) {
            auto at = [&](const Batch& batch, std::size_t view) {
                return views[view] + i * batch.stride * batch.size();
            };
            bool reads = p.reads_factors();
            Views one{reads ? at(p.a, of_a) : nullptr, reads ? at(p.b, of_b) : nullptr, at(p.c, of_c)};
            complex ? multiply<Complex>(p, one, alpha, beta) : multiply<double>(p, one, alpha, beta);
        }
    };
}

struct Factors {
    const void *alpha, *beta;
    Type type;
};

Status multiply(const char* name, Handle* handle, Product p, const Factors& factors) {
    if (!handle) return kNotInitialized;
    if (!size_of(factors.type)) return kNotSupported;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0 || !is_operation(p.of_a) || !is_operation(p.of_b))
        return kInvalidValue;
    p.a = stored(p.a, p.of_a, p.m, p.k);
    p.b = stored(p.b, p.of_b, p.k, p.n);
    p.c = stored(p.c, kAsIs, p.m, p.n);
    if (!p.a.is_right() || !p.b.is_right() || !p.c.is_right() || !factors.alpha || !factors.beta) return kInvalidValue;
    if (!p.m || !p.n || !p.count) return kSuccess;
    Call call(name, handle);
    p.alpha = call.scalar(factors.alpha, factors.type);
    p.beta = call.scalar(factors.beta, factors.type);
    if (p.through_pointers) {  // a kernel, which computes nothing here, may have to write them
        for (const Batch* batch : {&p.a, &p.b, &p.c})
            call.add(library::extent_of(batch->first, u64(p.count) * sizeof(void*), 'r'));
        call.touches_more();
        return call.submit({});
    }
    std::size_t of_a = call.count();
    if (p.reads_factors()) add(call, p.a, p.count, 'r');
    std::size_t of_b = call.count();
    if (p.reads_factors()) add(call, p.b, p.count, 'r');
    std::size_t of_c = call.count();
    add(call, p.c, p.count, p.beta.is(0) ? 'w' : 'b');
    return call.submit(can_afford(cost_of(p)) ? computing(p, of_a, of_b, of_c) : library::Run());
}

// Of the factors, by what is computed in: a cublasComputeType_t, or a cudaDataType as in earlier versions.
Type type_of_factors(int computed, Type of_c) {
    switch (computed) {
        case 64:
        case 65: return kHalf;
        case 68:
        case 69:
        case 74:
        case 75:
        case 77:
        case 78: return is_complex(of_c) ? kComplexFloat : kFloat;
        case 70:
        case 71: return is_complex(of_c) ? kComplexDouble : kDouble;
        case 72:
        case 73: return kInt32;
        default: return Type(computed);
    }
}

}  // namespace

}  // namespace cublas

using namespace cublas;

#define GEMM(letter, type) \
    CUBLAS Status cublas##letter##gemm_v2(Handle* handle, int of_a, int of_b, int m, int n, int k, const void* alpha, \
                                          const void* a, int lda, const void* b, int ldb, const void* beta, void* c, \
                                          int ldc) { \
        Product product{of_a, of_b, m, n, k, {}, {a, type, lda}, {b, type, ldb}, {}, {c, type, ldc}}; \
        return multiply("cublas" #letter "gemm", handle, product, {alpha, beta, type}); \
    } \
    CUBLAS Status cublas##letter##gemmStridedBatched(Handle* handle, int of_a, int of_b, int m, int n, int k, \
                                                     const void* alpha, const void* a, int lda, long long stride_a, \
                                                     const void* b, int ldb, long long stride_b, const void* beta, \
                                                     void* c, int ldc, long long stride_c, int count) { \
        Product product{ \
            of_a, of_b, m, n, k, {}, {a, type, lda, stride_a}, {b, type, ldb, stride_b}, {}, {c, type, ldc, stride_c}, \
            count}; \
        return multiply(__func__, handle, product, {alpha, beta, type}); \
    } \
    CUBLAS Status cublas##letter##gemmBatched(Handle* handle, int of_a, int of_b, int m, int n, int k, \
                                              const void* alpha, const void* a, int lda, const void* b, int ldb, \
                                              const void* beta, void* c, int ldc, int count) { \
        Product product{of_a, of_b, m, n, k, {}, {a, type, lda}, {b, type, ldb}, {}, {c, type, ldc}, count, true}; \
        return multiply(__func__, handle, product, {alpha, beta, type}); \
    }
GEMM(S, kFloat)
GEMM(D, kDouble)
GEMM(C, kComplexFloat)
GEMM(Z, kComplexDouble)

#define GEMM_EX(name, type_of_factor) \
    CUBLAS Status name(Handle* handle, int of_a, int of_b, int m, int n, int k, const void* alpha, const void* a, \
                       Type type_a, int lda, const void* b, Type type_b, int ldb, const void* beta, void* c, \
                       Type type_c, int ldc) { \
        Product product{of_a, of_b, m, n, k, {}, {a, type_a, lda}, {b, type_b, ldb}, {}, {c, type_c, ldc}}; \
        return multiply(__func__, handle, product, {alpha, beta, type_of_factor}); \
    }
GEMM_EX(cublasSgemmEx, kFloat)
GEMM_EX(cublasCgemmEx, kComplexFloat)

CUBLAS Status cublasGemmEx(Handle* handle, int of_a, int of_b, int m, int n, int k, const void* alpha, const void* a,
                           Type type_a, int lda, const void* b, Type type_b, int ldb, const void* beta, void* c,
                           Type type_c, int ldc, int computed, int) {
    Product product{of_a, of_b, m, n, k, {}, {a, type_a, lda}, {b, type_b, ldb}, {}, {c, type_c, ldc}};
    return multiply(__func__, handle, product, {alpha, beta, type_of_factors(computed, type_c)});
}

CUBLAS Status cublasGemmBatchedEx(Handle* handle, int of_a, int of_b, int m, int n, int k, const void* alpha,
                                  const void* a, Type type_a, int lda, const void* b, Type type_b, int ldb,
                                  const void* beta, void* c, Type type_c, int ldc, int count, int computed, int) {
    Product product{of_a, of_b, m, n, k, {}, {a, type_a, lda}, {b, type_b, ldb}, {}, {c, type_c, ldc}, count, true};
    return multiply(__func__, handle, product, {alpha, beta, type_of_factors(computed, type_c)});
}

CUBLAS Status cublasGemmStridedBatchedEx(Handle* handle, int of_a, int of_b, int m, int n, int k, const void* alpha,
                                         const void* a, Type type_a, int lda, long long stride_a, const void* b,
                                         Type type_b, int ldb, long long stride_b, const void* beta, void* c,
                                         Type type_c, int ldc, long long stride_c, int count, int computed, int) {
    Product product{
        of_a, of_b, m, n, k, {}, {a, type_a, lda, stride_a}, {b, type_b, ldb, stride_b}, {}, {c, type_c, ldc, stride_c},
        count};
    return multiply(__func__, handle, product, {alpha, beta, type_of_factors(computed, type_c)});
}
