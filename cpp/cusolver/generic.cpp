// The functions of any type, whose sizes have 64 bits. They need no room on the host.
#include "call.hpp"

namespace cusolver {

namespace {

Status sizes_of_work(Handle* handle, i64 m, i64 n, int type, std::size_t* bytes, std::size_t* on_host) {
    int count = 0;
    if (!is_type(type)) return kNotSupported;
    Status refused = size_of_work(handle, m, n, &count);
    if (refused || !bytes || !on_host) return refused ? refused : kInvalidValue;
    *bytes = std::size_t(count) * size_of(Type(type));
    *on_host = 0;
    return kSuccess;
}

// Those of all matrices and vectors of a call.
Status refuse_types(int type, std::initializer_list<int> same, int real = -1) {
    if (!is_type(type)) return kNotSupported;
    for (int one : same)
        if (one != type) return kInvalidValue;
    return real >= 0 && real != real_of(Type(type)) ? kInvalidValue : kSuccess;
}

}  // namespace

}  // namespace cusolver

using namespace cusolver;

#define GENERIC(name) CUSOLVER Status cusolverDnX##name
#define REFUSE(...) \
    if (Status refused = refuse_types(__VA_ARGS__)) return refused
using Bytes = std::size_t;

GENERIC(getrf_bufferSize)(Handle* handle, void*, i64 m, i64 n, int type, const void*, i64, int, Bytes* bytes,
                          Bytes* on_host) {
    return sizes_of_work(handle, m, n, type, bytes, on_host);
}
GENERIC(getrf)(Handle* handle, void*, i64 m, i64 n, int type, void* a, i64 lda, i64* pivots, int, void* work,
               Bytes bytes, void*, Bytes, int* info) {
    REFUSE(type, {});
    return getrf(__func__, handle, {a, Type(type), m, n, lda}, {work, bytes}, {pivots, sizeof *pivots}, info);
}
GENERIC(getrs)(Handle* handle, void*, int operation, i64 n, i64 count, int type, const void* a, i64 lda,
               const i64* pivots, int type_b, void* b, i64 ldb, int* info) {
    REFUSE(type, {type_b});
    return getrs(__func__, handle, operation, {a, Type(type), n, n, lda}, {pivots, sizeof *pivots},
                 {b, Type(type), n, count, ldb}, info);
}

GENERIC(potrf_bufferSize)(Handle* handle, void*, int, i64 n, int type, const void*, i64, int, Bytes* bytes,
                          Bytes* on_host) {
    return sizes_of_work(handle, n, n, type, bytes, on_host);
}
GENERIC(potrf)(Handle* handle, void*, int triangle, i64 n, int type, void* a, i64 lda, int, void* work, Bytes bytes,
               void*, Bytes, int* info) {
    REFUSE(type, {});
    return potrf(__func__, handle, triangle, {a, Type(type), n, n, lda}, {work, bytes}, info);
}
GENERIC(potrs)(Handle* handle, void*, int triangle, i64 n, i64 count, int type, const void* a, i64 lda, int type_b,
               void* b, i64 ldb, int* info) {
    REFUSE(type, {type_b});
    return potrs(__func__, handle, triangle, {a, Type(type), n, n, lda}, {b, Type(type), n, count, ldb}, info);
}

GENERIC(geqrf_bufferSize)(Handle* handle, void*, i64 m, i64 n, int type, const void*, i64, int, const void*, int,
                          Bytes* bytes, Bytes* on_host) {
    return sizes_of_work(handle, m, n, type, bytes, on_host);
}
GENERIC(geqrf)(Handle* handle, void*, i64 m, i64 n, int type, void* a, i64 lda, int type_of_factors, void* factors, int,
               void* work, Bytes bytes, void*, Bytes, int* info) {
    REFUSE(type, {type_of_factors});
    return geqrf(__func__, handle, {a, Type(type), m, n, lda}, factors, {work, bytes}, info);
}

GENERIC(syevd_bufferSize)(Handle* handle, void*, int, int, i64 n, int type, const void*, i64, int, const void*, int,
                          Bytes* bytes, Bytes* on_host) {
    return sizes_of_work(handle, n, n, type, bytes, on_host);
}
GENERIC(syevd)(Handle* handle, void*, int with_vectors, int triangle, i64 n, int type, void* a, i64 lda,
               int type_of_values, void* values, int, void* work, Bytes bytes, void*, Bytes, int* info) {
    REFUSE(type, {}, type_of_values);
    return heevd(__func__, handle, with_vectors, triangle, {{a, Type(type), n, n, lda}, 1, 0}, values, {work, bytes},
                 info);
}
GENERIC(syevBatched_bufferSize)(Handle* handle, void*, int, int, i64 n, int type, const void*, i64, int, const void*,
                                int, Bytes* bytes, Bytes* on_host, i64 count) {
    return count < 0 ? kInvalidValue : sizes_of_work(handle, n, n * count, type, bytes, on_host);
}
GENERIC(syevBatched)(Handle* handle, void*, int with_vectors, int triangle, i64 n, int type, void* a, i64 lda,
                     int type_of_values, void* values, int, void* work, Bytes bytes, void*, Bytes, int* info,
                     i64 count) {
    REFUSE(type, {}, type_of_values);
    return heevd(__func__, handle, with_vectors, triangle, {{a, Type(type), n, n, lda}, count, n * lda}, values,
                 {work, bytes}, info);
}

GENERIC(gesvd_bufferSize)(Handle* handle, void*, signed char, signed char, i64 m, i64 n, int type, const void*, i64,
                          int, const void*, int, const void*, i64, int, const void*, i64, int, Bytes* bytes,
                          Bytes* on_host) {
    return sizes_of_work(handle, m, n, type, bytes, on_host);
}
GENERIC(gesvd)(Handle* handle, void*, signed char job_u, signed char job_vt, i64 m, i64 n, int type, void* a, i64 lda,
               int type_of_values, void* values, int type_u, void* u, i64 ldu, int type_vt, void* vt, i64 ldvt, int,
               void* work, Bytes bytes, void*, Bytes, int* info) {
    REFUSE(type, {type_u, type_vt}, type_of_values);
    return gesvd(__func__, handle, {a, Type(type), m, n, lda}, values,
                 {job_u, {u, Type(type), m, job_u == 'A' ? m : n, ldu}}, {job_vt, {vt, Type(type), n, n, ldvt}},
                 {work, bytes}, nullptr, info);
}
GENERIC(gesvdp_bufferSize)(Handle* handle, void*, int, int, i64 m, i64 n, int type, const void*, i64, int, const void*,
                           int, const void*, i64, int, const void*, i64, int, Bytes* bytes, Bytes* on_host) {
    return sizes_of_work(handle, m, n, type, bytes, on_host);
}
GENERIC(gesvdp)(Handle* handle, void*, int with_vectors, int economical, i64 m, i64 n, int type, void* a, i64 lda,
                int type_of_values, void* values, int type_u, void* u, i64 ldu, int type_v, void* v, i64 ldv, int,
                void* work, Bytes bytes, void*, Bytes, int* info, double* error) {
    REFUSE(type, {type_u, type_v}, type_of_values);
    if (error) *error = 0;  // nothing is perturbed, which is known at once
    i64 few = std::min(m, n);
    Sides sides{with_vectors,
                {{u, Type(type), m, economical ? few : m, ldu}, 1, 0},
                {{v, Type(type), n, economical ? few : n, ldv}, 1, 0},
                {{values, real_of(Type(type)), few, 1, few}, 1, 0}};
    return svd(__func__, handle, {{a, Type(type), m, n, lda}, 1, 0}, 'b', sides, {work, bytes}, info, nullptr);
}
