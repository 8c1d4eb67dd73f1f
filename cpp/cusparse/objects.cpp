// Handles, and the objects that describe matrices and vectors.
#include "sparse.hpp"

using namespace cusparse;

namespace {

constexpr int kVersion[] = {12, 5, 10};
constexpr i64 kMost = i64(1) << 48;  // elements: their bytes are numbers of 64 bits

template <class Object, class Value>
Status set(Object* object, Value Object::* member, Value value) {
    if (!object) return kInvalidValue;
    object->*member = value;
    return kSuccess;
}

template <class Value, class Out>
void put(Out* out, const Value& value) {
    if (out) *out = Out(value);
}
void put(void** out, const void* value) {
    if (out) *out = const_cast<void*>(value);
}

template <class Object, class Value, class Out>
Status get(const Object* object, Value Object::* member, Out* value) {
    if (!object || !value) return kInvalidValue;
    put(value, object->*member);
    return kSuccess;
}

Status make_sparse(Sparse** made, int format, i64 rows, i64 columns, i64 count, const void* majors, const void* minors,
                   const void* values, int width_of_majors, int width_of_minors, int base, int type) {
    if (rows < 0 || columns < 0 || count < 0 || !is_width(width_of_majors) || !is_width(width_of_minors) || (base & ~1))
        return kInvalidValue;
    if (std::max({rows, columns, count}) > kMost) return kInvalidValue;
    if (!is_simulated({type})) return kNotSupported;
    return make(made, format, rows, columns, count, majors, minors, values, width_of_majors, width_of_minors, base,
                type);
}

Status get_sparse(const Sparse* a, i64* rows, i64* columns, i64* count, void** majors, void** minors, void** values,
                  int* width_of_majors, int* width_of_minors, int* base, int* type) {
    if (!a) return kInvalidValue;
    put(rows, a->rows);
    put(columns, a->columns);
    put(count, a->count);
    put(majors, a->majors);
    put(minors, a->minors);
    put(values, a->values);
    put(width_of_majors, a->width_of_majors);
    put(width_of_minors, a->width_of_minors);
    put(base, a->base);
    put(type, a->type);
    return kSuccess;
}

Status set_pointers(Sparse* a, const void* majors, const void* minors, const void* values) {
    if (!a) return kInvalidValue;
    a->majors = majors;
    a->minors = minors;
    a->values = values;
    return kSuccess;
}

}  // namespace

CUSPARSE Status cusparseCreate(Handle** handle) { return library::begin() ? kNotInitialized : make(handle); }
CUSPARSE Status cusparseDestroy(Handle* handle) { return handle ? destroy(handle) : kNotInitialized; }
CUSPARSE Status cusparseSetStream(Handle* handle, CUstream stream) {
    return handle ? set(handle, &Handle::stream, stream) : kNotInitialized;
}
CUSPARSE Status cusparseGetStream(Handle* handle, CUstream* stream) {
    return handle ? get(handle, &Handle::stream, stream) : kNotInitialized;
}
CUSPARSE Status cusparseSetPointerMode(Handle* handle, int mode) {
    if (handle && (mode & ~1)) return kInvalidValue;
    return handle ? set(handle, &Handle::pointer_mode, mode) : kNotInitialized;
}
CUSPARSE Status cusparseGetPointerMode(Handle* handle, int* mode) {
    return handle ? get(handle, &Handle::pointer_mode, mode) : kNotInitialized;
}
CUSPARSE Status cusparseGetVersion(Handle* handle, int* version) {
    if (!handle || !version) return handle ? kInvalidValue : kNotInitialized;
    *version = kVersion[0] * 1000 + kVersion[1] * 100 + kVersion[2];
    return kSuccess;
}
CUSPARSE Status cusparseGetProperty(int part, int* value) {  // major, minor, patch
    if (part < 0 || part > 2 || !value) return kInvalidValue;
    *value = kVersion[part];
    return kSuccess;
}
CUSPARSE const char* cusparseGetErrorName(int status) {
    switch (status) {
        case kSuccess: return "CUSPARSE_STATUS_SUCCESS";
        case kNotInitialized: return "CUSPARSE_STATUS_NOT_INITIALIZED";
        case kAllocationFailed: return "CUSPARSE_STATUS_ALLOC_FAILED";
        case kInvalidValue: return "CUSPARSE_STATUS_INVALID_VALUE";
        case kExecutionFailed: return "CUSPARSE_STATUS_EXECUTION_FAILED";
        case kNotSupported: return "CUSPARSE_STATUS_NOT_SUPPORTED";
        case kInsufficientResources: return "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES";
        default: return "CUSPARSE_STATUS_UNKNOWN";
    }
}
CUSPARSE const char* cusparseGetErrorString(int status) {
    switch (status) {
        case kSuccess: return "success";
        case kNotInitialized: return "initialization error";
        case kAllocationFailed: return "resource allocation failed";
        case kInvalidValue: return "invalid value";
        case kExecutionFailed: return "execution failed";
        case kNotSupported: return "operation not supported";
        case kInsufficientResources: return "insufficient resources";
        default: return "unknown error";
    }
}

CUSPARSE Status cusparseCreateMatDescr(Description** made) { return make(made); }
CUSPARSE Status cusparseDestroyMatDescr(Description* made) { return destroy(made); }
#define DESCRIPTION(name, member) \
    CUSPARSE Status cusparseSetMat##name(Description* of, int value) { return set(of, &Description::member, value); } \
    CUSPARSE int cusparseGetMat##name(const Description* of) { return of ? of->member : 0; }
DESCRIPTION(Type, type)
DESCRIPTION(FillMode, fill)
DESCRIPTION(DiagType, diagonal)
DESCRIPTION(IndexBase, base)

#define COMPRESSED(letters, format) \
    CUSPARSE Status cusparseCreate##letters(Sparse** made, i64 rows, i64 columns, i64 count, void* majors, \
                                            void* minors, void* values, int width_of_majors, int width_of_minors, \
                                            int base, int type) { \
        return make_sparse(made, format, rows, columns, count, majors, minors, values, width_of_majors, \
                           width_of_minors, base, type); \
    } \
    CUSPARSE Status cusparseCreateConst##letters(Sparse** made, i64 rows, i64 columns, i64 count, const void* majors, \
                                                 const void* minors, const void* values, int width_of_majors, \
                                                 int width_of_minors, int base, int type) { \
        return make_sparse(made, format, rows, columns, count, majors, minors, values, width_of_majors, \
                           width_of_minors, base, type); \
    } \
    CUSPARSE Status cusparse##letters##SetPointers(Sparse* a, void* majors, void* minors, void* values) { \
        return set_pointers(a, majors, minors, values); \
    }
COMPRESSED(Csr, kRows)
COMPRESSED(Csc, kColumns)
#define GET_COMPRESSED(name) \
    CUSPARSE Status cusparse##name(const Sparse* a, i64* rows, i64* columns, i64* count, void** majors, void** minors, \
                                   void** values, int* width_of_majors, int* width_of_minors, int* base, int* type) { \
        return get_sparse(a, rows, columns, count, majors, minors, values, width_of_majors, width_of_minors, base, \
                          type); \
    }
GET_COMPRESSED(CsrGet)
GET_COMPRESSED(CscGet)
GET_COMPRESSED(ConstCsrGet)
GET_COMPRESSED(ConstCscGet)

CUSPARSE Status cusparseCreateCoo(Sparse** made, i64 rows, i64 columns, i64 count, void* of_rows, void* of_columns,
                                  void* values, int width, int base, int type) {
    return make_sparse(made, kCoordinates, rows, columns, count, of_rows, of_columns, values, width, width, base, type);
}
CUSPARSE Status cusparseCreateConstCoo(Sparse** made, i64 rows, i64 columns, i64 count, const void* of_rows,
                                       const void* of_columns, const void* values, int width, int base, int type) {
    return make_sparse(made, kCoordinates, rows, columns, count, of_rows, of_columns, values, width, width, base, type);
}
CUSPARSE Status cusparseCooSetPointers(Sparse* a, void* of_rows, void* of_columns, void* values) {
    return set_pointers(a, of_rows, of_columns, values);
}
#define GET_COORDINATES(name) \
    CUSPARSE Status cusparse##name(const Sparse* a, i64* rows, i64* columns, i64* count, void** of_rows, \
                                   void** of_columns, void** values, int* width, int* base, int* type) { \
        return get_sparse(a, rows, columns, count, of_rows, of_columns, values, width, nullptr, base, type); \
    }
GET_COORDINATES(CooGet)
GET_COORDINATES(ConstCooGet)

CUSPARSE Status cusparseDestroySpMat(const Sparse* a) { return destroy(a); }
CUSPARSE Status cusparseSpMatGetSize(const Sparse* a, i64* rows, i64* columns, i64* count) {
    return get_sparse(a, rows, columns, count, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
}
CUSPARSE Status cusparseSpMatGetFormat(const Sparse* a, int* format) { return get(a, &Sparse::format, format); }
CUSPARSE Status cusparseSpMatGetIndexBase(const Sparse* a, int* base) { return get(a, &Sparse::base, base); }
CUSPARSE Status cusparseSpMatGetValues(const Sparse* a, void** values) { return get(a, &Sparse::values, values); }
CUSPARSE Status cusparseConstSpMatGetValues(const Sparse* a, void** values) { return get(a, &Sparse::values, values); }
CUSPARSE Status cusparseSpMatSetValues(Sparse* a, const void* values) { return set(a, &Sparse::values, values); }
CUSPARSE Status cusparseSpMatGetStridedBatch(const Sparse* a, int* count) {
    if (!a || !count) return kInvalidValue;
    *count = 1;
    return kSuccess;
}
CUSPARSE Status cusparseSpMatSetAttribute(Sparse* a, int attribute, const int* value, std::size_t bytes) {
    if (!value || bytes != sizeof *value || (attribute & ~1) || (*value & ~1)) return kInvalidValue;
    return set(a, attribute ? &Sparse::diagonal : &Sparse::fill, *value);
}
CUSPARSE Status cusparseSpMatGetAttribute(const Sparse* a, int attribute, int* value, std::size_t bytes) {
    if (bytes != sizeof *value || (attribute & ~1)) return kInvalidValue;
    return get(a, attribute ? &Sparse::diagonal : &Sparse::fill, value);
}

#define DENSE(Const, constant) \
    CUSPARSE Status cusparseCreate##Const##DnVec(Vector** made, i64 size, constant void* values, int type) { \
        if (size < 0 || size > kMost) return kInvalidValue; \
        return is_simulated({type}) ? make(made, size, static_cast<const void*>(values), type) : kNotSupported; \
    } \
    CUSPARSE Status cusparse##Const##DnVecGet(const Vector* x, i64* size, void** values, int* type) { \
        if (!x) return kInvalidValue; \
        put(size, x->size); \
        put(values, x->values); \
        put(type, x->type); \
        return kSuccess; \
    } \
    CUSPARSE Status cusparse##Const##DnVecGetValues(const Vector* x, void** values) { \
        return get(x, &Vector::values, values); \
    } \
    CUSPARSE Status cusparseCreate##Const##DnMat(Dense** made, i64 rows, i64 columns, i64 pitch, \
                                                 constant void* values, int type, int order) { \
        if (rows < 0 || columns < 0 || (order != kByColumns && order != kByRows)) return kInvalidValue; \
        if (pitch < (order == kByRows ? columns : rows)) return kInvalidValue; \
        if (double(pitch) * double(order == kByRows ? rows : columns) > double(kMost)) return kInvalidValue; \
        return is_simulated({type}) ? make(made, rows, columns, pitch, static_cast<const void*>(values), type, order) \
                                    : kNotSupported; \
    } \
    CUSPARSE Status cusparse##Const##DnMatGet(const Dense* a, i64* rows, i64* columns, i64* pitch, void** values, \
                                              int* type, int* order) { \
        if (!a) return kInvalidValue; \
        put(rows, a->rows); \
        put(columns, a->columns); \
        put(pitch, a->pitch); \
        put(values, a->values); \
        put(type, a->type); \
        put(order, a->order); \
        return kSuccess; \
    } \
    CUSPARSE Status cusparse##Const##DnMatGetValues(const Dense* a, void** values) { \
        return get(a, &Dense::values, values); \
    } \
    CUSPARSE Status cusparseCreate##Const##SpVec(SparseVector** made, i64 size, i64 count, constant void* indices, \
                                                 constant void* values, int width, int base, int type) { \
        if (size < 0 || size > kMost || count < 0 || count > size || !is_width(width) || (base & ~1)) \
            return kInvalidValue; \
        if (!is_simulated({type})) return kNotSupported; \
        return make(made, size, count, static_cast<const void*>(indices), static_cast<const void*>(values), width, \
                    base, type); \
    } \
    CUSPARSE Status cusparse##Const##SpVecGet(const SparseVector* x, i64* size, i64* count, void** indices, \
                                              void** values, int* width, int* base, int* type) { \
        if (!x) return kInvalidValue; \
        put(size, x->size); \
        put(count, x->count); \
        put(indices, x->indices); \
        put(values, x->values); \
        put(width, x->width); \
        put(base, x->base); \
        put(type, x->type); \
        return kSuccess; \
    } \
    CUSPARSE Status cusparse##Const##SpVecGetValues(const SparseVector* x, void** values) { \
        return get(x, &SparseVector::values, values); \
    }
DENSE(, )
DENSE(Const, const)

CUSPARSE Status cusparseDestroyDnVec(const Vector* x) { return destroy(x); }
CUSPARSE Status cusparseDnVecSetValues(Vector* x, const void* values) { return set(x, &Vector::values, values); }
CUSPARSE Status cusparseDestroyDnMat(const Dense* a) { return destroy(a); }
CUSPARSE Status cusparseDnMatSetValues(Dense* a, const void* values) { return set(a, &Dense::values, values); }
CUSPARSE Status cusparseDnMatSetStridedBatch(Dense* a, int count, i64 stride) {
    if (!a || count < 1 || stride < 0) return kInvalidValue;
    a->count = count;
    a->stride = stride;
    return kSuccess;
}
CUSPARSE Status cusparseDnMatGetStridedBatch(const Dense* a, int* count, i64* stride) {
    if (!a || !count || !stride) return kInvalidValue;
    *count = int(a->count);
    *stride = a->stride;
    return kSuccess;
}
CUSPARSE Status cusparseDestroySpVec(const SparseVector* x) { return destroy(x); }
CUSPARSE Status cusparseSpVecSetValues(SparseVector* x, const void* values) {
    return set(x, &SparseVector::values, values);
}
CUSPARSE Status cusparseSpVecGetIndexBase(const SparseVector* x, int* base) {
    return get(x, &SparseVector::base, base);
}
