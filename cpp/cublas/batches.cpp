// Equations of many matrices, through pointers that are in the device's memory. A kernel, which computes nothing here, may
// have to write these: they are read, and what is behind them is not known. Each matrix counts as one that has factors.
#include "blas.hpp"

#include <cstring>

namespace cublas {

namespace {

struct Batches {
    i64 n, count;

    bool is_right() const { return n >= 0 && count >= 0; }
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

}  // namespace

}  // namespace cublas

using namespace cublas;

#define BATCHES(letter) \
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
    CUBLAS Status cublas##letter##getrsBatched(Handle* handle, int operation, int n, int, const void* a, int lda, \
                                               const int* pivots, const void* b, int ldb, int* result, int count) { \
        if (!result) return kInvalidValue; \
        *result = !is_operation(operation) ? -1 : lda < n ? -5 : ldb < n ? -8 : 0; \
        if (*result) return kInvalidValue; \
        return submit(__func__, handle, {n, count}, pivots, 'r', nullptr, {a, b}); \
    }
BATCHES(S)
BATCHES(D)
BATCHES(C)
BATCHES(Z)
