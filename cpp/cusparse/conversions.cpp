// From one format to another, sorting, and sums.
#include "sparse.hpp"

#include <numeric>

namespace cusparse {

namespace {

struct Found {
    i64 major, minor;
    Complex value;
};

std::vector<Found> found_in(const Dense& a, const u8* at, int format) {
    std::vector<Found> found;
    bool by_columns = format == kColumns;
    i64 majors = by_columns ? a.columns : a.rows, minors = by_columns ? a.rows : a.columns;
    for (i64 major = 0; major < majors; major++)
        for (i64 minor = 0; minor < minors; minor++) {
            u64 place = by_columns ? a.place(minor, major) : a.place(major, minor);
            Complex value = load(at + place * size_of(a.type), a.type);
            if (value != 0.0) found.push_back({major, minor, value});
        }
    return found;
}

void store_offsets(u8* at, int width, int base, i64 size, const std::vector<Found>& found) {
    std::size_t place = 0;
    for (i64 i = 0; i <= size; i++) {
        while (place < found.size() && found[place].major < i) place++;
        store_index(at, width, i, i64(place) + base);
    }
}

Status refuse(const Handle* handle, const Dense* dense, const Sparse* sparse) {
    if (!handle) return kNotInitialized;
    if (!dense || !sparse || dense->rows != sparse->rows || dense->columns != sparse->columns) return kInvalidValue;
    return dense->count == 1 && dense->type == sparse->type ? kSuccess : kNotSupported;
}

// Sorts the indices, and what else is in the same places.
Status sort(const char* name, Handle* handle, i64 count, const void* first, const void* second, void* places,
            const void* area) {
    Call call(name, handle);
    u64 bytes = u64(count) * sizeof(int);
    std::size_t of_first = call.add(first, bytes, 'b'), of_second = call.add(second, bytes, 'b');
    std::size_t of_places = call.add(places, places ? bytes : 0, 'b');
    call.add_work(area);
    return call.submit(double(count) * 20, [=](const library::Views& views) {
        auto index = [&](std::size_t view, i64 i) { return load_index(views[view], kIndex32, i); };
        std::vector<i64> order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](i64 i, i64 j) {
            i64 one = index(of_first, i), other = index(of_first, j);
            return one != other ? one < other : index(of_second, i) < index(of_second, j);
        });
        for (std::size_t view : {of_first, of_second, of_places}) {
            if (view == of_places && !places) continue;
            std::vector<i64> before;
            for (i64 i = 0; i < count; i++) before.push_back(index(view, i));
            for (i64 i = 0; i < count; i++)
                store_index(views[view], kIndex32, i, before[std::size_t(order[std::size_t(i)])]);
        }
    });
}

// The minor indices of each row, or column, that has an end in `offsets`.
Status sort_each(const char* name, Handle* handle, i64 size, i64 count, const void* offsets, const void* minors,
                 void* places, const void* area) {
    if (!handle) return kNotInitialized;
    if (size < 0 || count < 0 || !offsets || (count && !minors)) return kInvalidValue;
    Call call(name, handle);
    u64 bytes = u64(count) * sizeof(int);
    std::size_t of_offsets = call.add(offsets, u64(size + 1) * sizeof(int), 'r'),
                of_minors = call.add(minors, bytes, 'b');
    std::size_t of_places = call.add(places, places ? bytes : 0, 'b');
    call.add_work(area);
    return call.submit(double(count) * 20, [=](const library::Views& views) {
        i64 base = load_index(views[of_offsets], kIndex32, 0) == 1;
        for (i64 i = 0, next = 0; i < size && count; i++) {
            auto offset = [&](i64 at) {
                return std::clamp<i64>(load_index(views[of_offsets], kIndex32, at) - base, next, count);
            };
            i64 begin = offset(i);
            next = begin;
            next = offset(i + 1);
            std::vector<std::pair<i64, i64>> row;
            for (i64 k = begin; k < next; k++)
                row.emplace_back(load_index(views[of_minors], kIndex32, k),
                                 places ? load_index(views[of_places], kIndex32, k) : 0);
            std::stable_sort(row.begin(), row.end(), [](auto& one, auto& other) { return one.first < other.first; });
            for (i64 k = begin; k < next; k++) {
                store_index(views[of_minors], kIndex32, k, row[std::size_t(k - begin)].first);
                if (places) store_index(views[of_places], kIndex32, k, row[std::size_t(k - begin)].second);
            }
        }
    });
}

}  // namespace

}  // namespace cusparse

using namespace cusparse;

CUSPARSE Status cusparseSparseToDense_bufferSize(Handle* handle, const Sparse*, const Dense*, int, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseSparseToDense(Handle* handle, const Sparse* a, const Dense* b, int, void* area) {
    if (Status refused = refuse(handle, b, a)) return refused;
    Call call(__func__, handle);
    std::size_t of_a = call.add(*a, 'r', 'r'), of_b = call.add(*b, 'w');
    call.add_work(area);
    return call.submit(double(b->rows) * double(b->columns), [=, a = *a, b = *b](const library::Views& views) {
        View view = Call::at(views, of_a);
        for (i64 i = 0; i < b.rows; i++)
            for (i64 j = 0; j < b.columns; j++) store(views[of_b] + b.place(i, j) * size_of(b.type), b.type, 0);
        for (const Element& one : elements_of(a, view))
            store(views[of_b] + b.place(one.row, one.column) * size_of(b.type), b.type, value_of(a, view, one));
    });
}

CUSPARSE Status cusparseDenseToSparse_bufferSize(Handle* handle, const Dense*, const Sparse*, int, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
// The host waits for the number of elements. Offsets are written.
CUSPARSE Status cusparseDenseToSparse_analysis(Handle* handle, const Dense* a, Sparse* b, int, void* area) {
    if (Status refused = refuse(handle, a, b)) return refused;
    Call call(__func__, handle);
    bool has_offsets = b->format != kCoordinates && b->majors;
    u64 bytes = has_offsets ? u64(b->offsets()) * bytes_of(b->width_of_majors) : 0;
    std::size_t of_a = call.add(*a, 'r'), of_offsets = call.add(b->majors, bytes, 'w');
    call.add_work(area);
    auto count = std::make_shared<i64>(0);
    Status status = call.submit(double(a->rows) * double(a->columns), [=, a = *a, b = *b](const library::Views& views) {
        std::vector<Found> found = found_in(a, views[of_a], b.format);
        *count = i64(found.size());
        if (has_offsets) store_offsets(views[of_offsets], b.width_of_majors, b.base, b.major_size(), found);
    });
    if (!status && !call.was_affordable()) return kInsufficientResources;
    if (!status && cuStreamSynchronize(handle->stream)) return kExecutionFailed;
    if (!status) b->count = *count;
    return status;
}
CUSPARSE Status cusparseDenseToSparse_convert(Handle* handle, const Dense* a, const Sparse* b, int, void* area) {
    if (Status refused = refuse(handle, a, b)) return refused;
    Call call(__func__, handle);
    std::size_t of_a = call.add(*a, 'r'), of_b = call.add(*b, 'w', 'w');
    call.add_work(area, 'r');
    return call.submit(double(a->rows) * double(a->columns), [=, a = *a, b = *b](const library::Views& views) {
        View view = Call::at(views, of_b);
        std::vector<Found> found = found_in(a, views[of_a], b.format);
        found.resize(std::min(found.size(), std::size_t(b.count)));
        if (b.format != kCoordinates) store_offsets(view.majors, b.width_of_majors, b.base, b.major_size(), found);
        for (std::size_t i = 0; i < found.size(); i++) {
            if (b.format == kCoordinates) store_index(view.majors, b.width_of_majors, i64(i), found[i].major + b.base);
            store_index(view.minors, b.width_of_minors, i64(i), found[i].minor + b.base);
            store(view.values + i * size_of(b.type), b.type, found[i].value);
        }
    });
}

CUSPARSE Status cusparseCsr2cscEx2_bufferSize(Handle* handle, int, int, int, const void*, const int*, const int*, void*,
                                              int*, int*, int, int, int, int, std::size_t* bytes) {
    return size_of_work(handle, bytes);
}
CUSPARSE Status cusparseCsr2cscEx2(Handle* handle, int m, int n, int count, const void* values, const int* offsets,
                                   const int* minors, void* new_values, int* new_offsets, int* new_minors, int type,
                                   int with_values, int base, int, void* area) {
    if (!handle) return kNotInitialized;
    if (m < 0 || n < 0 || count < 0 || (with_values & ~1) || (base & ~1)) return kInvalidValue;
    if (!is_simulated({type})) return kNotSupported;
    Call call(__func__, handle);
    Sparse a{kRows, m, n, count, offsets, minors, values, kIndex32, kIndex32, base, type};
    Sparse b{kColumns, m, n, count, new_offsets, new_minors, new_values, kIndex32, kIndex32, base, type};
    std::size_t of_a = call.add(a, 'r', with_values ? 'r' : 0), of_b = call.add(b, 'w', with_values ? 'w' : 0);
    call.add_work(area);
    return call.submit(double(count), [=](const library::Views& views) {
        View from = Call::at(views, of_a), to = Call::at(views, of_b);
        std::vector<Element> elements = elements_of(a, from);
        std::stable_sort(elements.begin(), elements.end(),
                         [](const Element& one, const Element& other) { return one.column < other.column; });
        std::vector<Found> found;
        for (const Element& one : elements) {
            i64 place = i64(found.size());
            found.push_back({one.column, one.row, 0});
            store_index(to.minors, kIndex32, place, one.row + base);
            if (with_values) store(to.values + u64(place) * size_of(type), type, value_of(a, from, one));
        }
        store_offsets(to.majors, kIndex32, base, n, found);
    });
}

CUSPARSE Status cusparseXcoo2csr(Handle* handle, const int* rows, int count, int m, int* offsets, int base) {
    if (!handle) return kNotInitialized;
    if (count < 0 || m < 0 || (base & ~1) || !offsets) return kInvalidValue;
    Call call(__func__, handle);
    std::size_t of_rows = call.add(rows, u64(count) * sizeof(int), 'r');
    std::size_t of_offsets = call.add(offsets, u64(m + 1) * sizeof(int), 'w');
    return call.submit(double(count), [=](const library::Views& views) {
        std::vector<Found> found;
        for (i64 i = 0; i < count; i++) found.push_back({load_index(views[of_rows], kIndex32, i) - base, 0, 0});
        store_offsets(views[of_offsets], kIndex32, base, m, found);
    });
}
CUSPARSE Status cusparseXcsr2coo(Handle* handle, const int* offsets, int count, int m, int* rows, int base) {
    if (!handle) return kNotInitialized;
    if (count < 0 || m < 0 || (base & ~1) || !offsets) return kInvalidValue;
    Call call(__func__, handle);
    std::size_t of_offsets = call.add(offsets, u64(m + 1) * sizeof(int), 'r');
    std::size_t of_rows = call.add(rows, u64(count) * sizeof(int), 'w');
    return call.submit(double(count), [=](const library::Views& views) {
        for (i64 row = 0, next = 0; row < m; row++) {
            i64 end = load_index(views[of_offsets], kIndex32, row + 1) - base;
            for (; next < std::min<i64>(end, count); next++) store_index(views[of_rows], kIndex32, next, row + base);
        }
    });
}

CUSPARSE Status cusparseCreateIdentityPermutation(Handle* handle, int count, int* places) {
    if (!handle) return kNotInitialized;
    if (count < 0 || !places) return kInvalidValue;
    Call call(__func__, handle);
    std::size_t of_places = call.add(places, u64(count) * sizeof(int), 'w');
    return call.submit(double(count), [=](const library::Views& views) {
        for (i64 i = 0; i < count; i++) store_index(views[of_places], kIndex32, i, i);
    });
}

#define SORT_SIZE(name) \
    CUSPARSE Status cusparseX##name##sort_bufferSizeExt(Handle* handle, int, int, int, const int*, const int*, \
                                                        std::size_t* bytes) { \
        return size_of_work(handle, bytes); \
    }
SORT_SIZE(coo)
SORT_SIZE(csr)
SORT_SIZE(csc)
CUSPARSE Status cusparseXcoosortByRow(Handle* handle, int m, int n, int count, int* rows, int* columns, int* places,
                                      void* area) {
    if (!handle) return kNotInitialized;
    if (m < 0 || n < 0 || count < 0) return kInvalidValue;
    return sort(__func__, handle, count, rows, columns, places, area);
}
CUSPARSE Status cusparseXcoosortByColumn(Handle* handle, int m, int n, int count, int* rows, int* columns, int* places,
                                         void* area) {
    if (!handle) return kNotInitialized;
    if (m < 0 || n < 0 || count < 0) return kInvalidValue;
    return sort(__func__, handle, count, columns, rows, places, area);
}
CUSPARSE Status cusparseXcsrsort(Handle* handle, int m, int, int count, const void*, const int* offsets, int* columns,
                                 int* places, void* area) {
    return sort_each(__func__, handle, m, count, offsets, columns, places, area);
}
CUSPARSE Status cusparseXcscsort(Handle* handle, int, int n, int count, const void*, const int* offsets, int* rows,
                                 int* places, void* area) {
    return sort_each(__func__, handle, n, count, offsets, rows, places, area);
}
