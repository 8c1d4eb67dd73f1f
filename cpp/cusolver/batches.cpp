// Values and vectors by Jacobi's method, of one matrix and of batches; factors and equations of batches, which are behind
// pointers.
#include "call.hpp"

#include <cmath>
#include <memory>
#include <new>

namespace cusolver {

namespace {

// Through pointers that are in the device's memory: a kernel, which computes nothing here, may have to write these. They
// are read, and what is behind them is not known. Each matrix counts as one that has factors.
Status through_pointers(const char* name, Handle* handle, int triangle, i64 n, i64 pitch, i64 count, int* infos,
                        i64 results, std::initializer_list<const void*> pointers) {
    if (!handle) return kNotInitialized;
    if (!is_triangle(triangle) || n < 0 || count < 0 || pitch < std::max<i64>(n, 1)) return kInvalidValue;
    Call call(name, handle);
    for (const void* one : pointers) call.add(one, u64(count) * sizeof(void*), 'r');
    call.touches_more();
    return call.submit(infos, 0, [](const library::Views&) {}, results);
}

}  // namespace

Status svd(const char* name, Handle* handle, const Batch& a, char use, const Sides& sides, const Area& work, int* infos,
           double* residuals) {
    if (!handle) return kNotInitialized;
    const Batch &u = sides.u, &v = sides.v, &values = sides.values;
    bool has_vectors = sides.with_vectors == 1;
    bool is_right = a.one.is_right() && a.count >= 0 && values.one.rows >= 0 && !(sides.with_vectors & ~1);
    if (!is_right || (has_vectors && (!u.one.is_right() || !v.one.is_right()))) return kInvalidValue;
    if (!a.count) return kSuccess;
    Call call(name, handle);
    std::size_t of_a = call.add(a, use), of_values = call.add(values, 'w');
    std::size_t of_u = has_vectors ? call.add(u, 'w') : 0, of_v = has_vectors ? call.add(v, 'w') : 0;
    call.add(work, 'w');
    auto found = std::make_shared<std::vector<double>>();
    i64 longer = std::max(a.one.rows, a.one.columns), shorter = std::min(a.one.rows, a.one.columns);
    i64 of_left = has_vectors ? u.one.columns : 0, of_right = has_vectors ? v.one.columns : 0;
    double of_one = cost_of_svd(longer, shorter, std::max(of_left, of_right));
    double cost = (of_one + library::kOfEach) * double(a.count);
    Status status = call.submit(
        infos, cost,
        [=](const library::Views& views) {
            found->assign(std::size_t(a.count), 0);
            for (i64 i = 0; i < a.count; i++) {
                Matrix given = load(a.in(views[of_a], i), a.one);
                Matrix left(given.rows, of_left), right(given.columns, of_right);
                std::vector<double> lengths;
                svd(given, left, lengths, right);
                lengths.resize(std::size_t(values.one.rows));
                store(values.in(views[of_values], i), values.one, column_of(lengths));
                if (!has_vectors) continue;
                store(u.in(views[of_u], i), u.one, left);
                store(v.in(views[of_v], i), v.one, right);
                (*found)[std::size_t(i)] = residual(given, left, lengths, right);
            }
        },
        a.count);
    if (status || !residuals) return status;
    if (cuStreamSynchronize(handle->stream)) return kExecutionFailed;
    if (found->empty())  // it was not computed
        std::fill_n(residuals, a.count, 0);
    else
        std::copy(found->begin(), found->end(), residuals);
    return kSuccess;
}

}  // namespace cusolver

using namespace cusolver;

namespace {

constexpr i64 kLargestOfBatch = 32;

// How well Jacobi's method is to do, which changes nothing here.
struct Jacobi {
    double tolerance = 0;
    int sweeps = 0, is_sorted = 1;
};

template <class Value>
Status set(Jacobi* parameters, Value Jacobi::* member, Value value) {
    if (!parameters) return kInvalidValue;
    parameters->*member = value;
    return kSuccess;
}

Status make(Jacobi** made) {
    if (!made) return kInvalidValue;
    *made = new (std::nothrow) Jacobi;
    return *made ? kSuccess : kAllocationFailed;
}

// The matrices of a batch follow one another.
Batch batch_of(const void* first, Type type, i64 m, i64 n, i64 pitch, i64 count) {
    return {{first, type, m, n, pitch}, count, pitch * n};
}

Status svd_by_jacobi(const char* name, Handle* handle, int with_vectors, bool economical, const Batch& a, void* values,
                     void* u, i64 ldu, void* v, i64 ldv, const Area& work, int* infos) {
    Type type = a.one.type;
    i64 m = a.one.rows, n = a.one.columns, few = std::min(m, n);
    Sides sides{with_vectors, batch_of(u, type, m, economical ? few : m, ldu, a.count),
                batch_of(v, type, n, economical ? few : n, ldv, a.count),
                batch_of(values, real_of(type), few, 1, std::max<i64>(few, 0), a.count)};
    return svd(name, handle, a, 'b', sides, work, infos, nullptr);
}

}  // namespace

#define DENSE(name) CUSOLVER Status cusolverDn##name
#define JACOBI(name, setter) \
    DENSE(Create##name##Info)(Jacobi * *made) { return make(made); } \
    DENSE(Destroy##name##Info)(Jacobi * parameters) { \
        delete parameters; \
        return kSuccess; \
    } \
    DENSE(setter##SetTolerance)(Jacobi * parameters, double value) { \
        return set(parameters, &Jacobi::tolerance, value); \
    } \
    DENSE(setter##SetMaxSweeps)(Jacobi * parameters, int value) { return set(parameters, &Jacobi::sweeps, value); } \
    DENSE(setter##SetSortEig)(Jacobi * parameters, int value) { return set(parameters, &Jacobi::is_sorted, value); }
JACOBI(Gesvdj, Xgesvdj)
JACOBI(Syevj, Xsyevj)

#define OF_BATCHES(letter, evj, type) \
    DENSE(letter##potrfBatched)(Handle * handle, int triangle, int n, const void* a, int lda, int* infos, int count) { \
        return through_pointers(__func__, handle, triangle, n, lda, count, infos, count, {a}); \
    } \
    DENSE(letter##potrsBatched)(Handle * handle, int triangle, int n, int columns, const void* a, int lda, \
                                const void* b, int ldb, int* info, int count) { \
        if (columns < 0 || ldb < std::max(n, 1)) return kInvalidValue; \
        return through_pointers(__func__, handle, triangle, n, lda, count, info, 1, {a, b}); \
    } \
    DENSE(letter##evj##_bufferSize)(Handle * handle, int, int, int n, const void*, int, const void*, int* count, \
                                    const Jacobi*) { \
        return size_of_work(handle, n, n, count); \
    } \
    DENSE(letter##evj)(Handle * handle, int with_vectors, int triangle, int n, void* a, int lda, void* values, \
                       void* work, int size, int* info, const Jacobi* parameters) { \
        if (size < 0 || !parameters) return kInvalidValue; \
        return heevd(__func__, handle, with_vectors, triangle, batch_of(a, type, n, n, lda, 1), values, \
                     {work, u64(size) * size_of(type)}, info); \
    } \
    DENSE(letter##evj##Batched_bufferSize)(Handle * handle, int, int, int n, const void*, int, const void*, \
                                           int* count, const Jacobi*, int matrices) { \
        return matrices < 0 ? kInvalidValue : size_of_work(handle, n, i64(n) * matrices, count); \
    } \
    DENSE(letter##evj##Batched)(Handle * handle, int with_vectors, int triangle, int n, void* a, int lda, \
                                void* values, void* work, int size, int* infos, const Jacobi* parameters, int count) { \
        if (size < 0 || !parameters) return kInvalidValue; \
        return heevd(__func__, handle, with_vectors, triangle, batch_of(a, type, n, n, lda, count), values, \
                     {work, u64(size) * size_of(type)}, infos); \
    } \
    DENSE(letter##gesvdj_bufferSize)(Handle * handle, int, int, int m, int n, const void*, int, const void*, \
                                     const void*, int, const void*, int, int* count, const Jacobi*) { \
        return size_of_work(handle, m, n, count); \
    } \
    DENSE(letter##gesvdj)(Handle * handle, int with_vectors, int economical, int m, int n, void* a, int lda, \
                          void* values, void* u, int ldu, void* v, int ldv, void* work, int size, int* info, \
                          const Jacobi* parameters) { \
        if (size < 0 || !parameters) return kInvalidValue; \
        return svd_by_jacobi(__func__, handle, with_vectors, economical, batch_of(a, type, m, n, lda, 1), values, u, \
                             ldu, v, ldv, {work, u64(size) * size_of(type)}, info); \
    } \
    DENSE(letter##gesvdjBatched_bufferSize)(Handle * handle, int, int m, int n, const void*, int, const void*, \
                                            const void*, int, const void*, int, int* count, const Jacobi*, \
                                            int matrices) { \
        return matrices < 0 ? kInvalidValue : size_of_work(handle, m, i64(n) * matrices, count); \
    } \
    DENSE(letter##gesvdjBatched)(Handle * handle, int with_vectors, int m, int n, void* a, int lda, void* values, \
                                 void* u, int ldu, void* v, int ldv, void* work, int size, int* infos, \
                                 const Jacobi* parameters, int count) { \
        if (size < 0 || !parameters || m > kLargestOfBatch || n > kLargestOfBatch) return kInvalidValue; \
        return svd_by_jacobi(__func__, handle, with_vectors, false, batch_of(a, type, m, n, lda, count), values, u, \
                             ldu, v, ldv, {work, u64(size) * size_of(type)}, infos); \
    } \
    DENSE(letter##gesvdaStridedBatched_bufferSize)(Handle * handle, int, int, int m, int n, const void*, int, \
                                                   long long, const void*, long long, const void*, int, long long, \
                                                   const void*, int, long long, int* count, int matrices) { \
        return matrices < 0 ? kInvalidValue : size_of_work(handle, m, i64(n) * matrices, count); \
    } \
    DENSE(letter##gesvdaStridedBatched)(Handle * handle, int with_vectors, int rank, int m, int n, const void* a, \
                                        int lda, long long stride_a, void* values, long long stride_values, void* u, \
                                        int ldu, long long stride_u, void* v, int ldv, long long stride_v, void* work, \
                                        int size, int* infos, double* residuals, int count) { \
        if (size < 0 || rank < 0 || rank > n || m < n) return kInvalidValue; \
        Sides sides{with_vectors, \
                    {{u, type, m, rank, ldu}, count, stride_u}, \
                    {{v, type, n, rank, ldv}, count, stride_v}, \
                    {{values, real_of(type), rank, 1, std::max(rank, 1)}, count, stride_values}}; \
        return svd(__func__, handle, {{a, type, m, n, lda}, count, stride_a}, 'r', sides, \
                   {work, u64(size) * size_of(type)}, infos, residuals); \
    }
OF_BATCHES(S, syevj, kFloat)
OF_BATCHES(D, syevj, kDouble)
OF_BATCHES(C, heevj, kComplexFloat)
OF_BATCHES(Z, heevj, kComplexDouble)
