// Equations of many matrices, through pointers that are in the device's memory. A kernel, which computes nothing here, may
// have to write these: they are read, and what is behind them is not known. Each matrix counts as one that has factors.
#include "blas.hpp"

#include <algorithm>
#include <cstring>

namespace cublas {

namespace {

struct Batches {
    i64 n, count;

    bool is_right() const { return n >= 0 && count >= 0; }
};

// To the matrices of a batch; the pointers are in the device's memory.
struct Pointers {
    const void* first;
    Type type;
    i64 pitch;
};

// Views 0 and 1 are of the pivots and of the results (nullptr: on the host).
Status submit(const char* name, Handle* handle, const Batches& batches, const int* pivots, char use_of_pivots,
              int* results, std::initializer_list<const void*> pointers) {
    if (!handle) return kNotInitialized;
    if (!batches.is_right()) return kInvalidValue;
    Call call(name, handle);
    u64 of_pivots = pivots ? u64(batches.n * batches.count) * sizeof(int) : 0;
    u64 of_results = results ? u64(batches.count) * sizeof(int) : 0;
    call.add(library::extent_of(pivots, of_pivots, use_of_pivots));
    call.add(library::extent_of(results, of_results, 'w'));
    for (const void* one : pointers) call.add(library::extent_of(one, u64(batches.count) * sizeof(void*), 'r'));
    call.touches_more();
    return call.submit([of_results](const library::Views& views) {
        if (of_results) memset(views[1], 0, of_results);
    });
}

// As trsm's, where one is solved for each of the batch; the factor of the right sides is read.
Status trsm(const char* name, Handle* handle, const Equations& one, const void* alpha, const Pointers& a,
            const Pointers& b, i64 count) {
    if (!handle) return kNotInitialized;
    if (!one.is_right(a.pitch, b.pitch) || count < 0 || !alpha) return kInvalidValue;
    if (!one.m || !one.n || !count) return kSuccess;
    Call call(name, handle);
    call.scalar(alpha, a.type);
    for (const Pointers* batch : {&a, &b}) call.add(library::extent_of(batch->first, u64(count) * sizeof(void*), 'r'));
    call.touches_more();
    return call.submit({});
}

}  // namespace

}  // namespace cublas

using namespace cublas;

#define BATCHES(letter, type) \
    CUBLAS Status cublas##letter##getrfBatched(Handle* handle, int n, const void* a, int lda, int* pivots, \
                                               int* results, int count) { \
        if (lda < n) return kInvalidValue; \
        return submit(__func__, handle, {n, count}, pivots, 'w', results, {a}); \
    } \
    CUBLAS Status cublas##letter##getriBatched(Handle* handle, int n, const void* a, int lda, const int* pivots, \
                                               const void* c, int ldc, int* results, int count) { \
        if (lda < n || ldc < n) return kInvalidValue; \
        return submit(__func__, handle, {n, count}, pivots, 'r', results, {a, c}); \
    } \
    CUBLAS Status cublas##letter##geqrfBatched(Handle* handle, int m, int n, const void* a, int lda, \
                                               const void* factors, int* result, int count) { \
        if (!result) return kInvalidValue; \
        *result = m < 0 ? -1 : n < 0 ? -2 : lda < std::max(m, 1) ? -4 : count < 0 ? -7 : 0; \
        if (*result) return kInvalidValue; \
        return submit(__func__, handle, {n, count}, nullptr, 'w', nullptr, {a, factors}); \
    } \
    CUBLAS Status cublas##letter##trsmBatched(Handle* handle, int side, int fill, int operation, int diagonal, int m, \
                                              int n, const void* alpha, const void* a, int lda, const void* b, \
                                              int ldb, int count) { \
        Equations one{side, fill, operation, diagonal, m, n}; \
        return trsm(__func__, handle, one, alpha, {a, type, lda}, {b, type, ldb}, count); \
    } \
    CUBLAS Status cublas##letter##getrsBatched(Handle* handle, int operation, int n, int, const void* a, int lda, \
                                               const int* pivots, const void* b, int ldb, int* result, int count) { \
        if (!result) return kInvalidValue; \
        *result = !is_operation(operation) ? -1 : lda < n ? -5 : ldb < n ? -8 : 0; \
        if (*result) return kInvalidValue; \
        return submit(__func__, handle, {n, count}, pivots, 'r', nullptr, {a, b}); \
    }
BATCHES(S, kFloat)
BATCHES(D, kDouble)
BATCHES(C, kComplexFloat)
BATCHES(Z, kComplexDouble)
