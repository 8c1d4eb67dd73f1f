// Elements of arrays and of matrices, and what calls share: see sparse.hpp.
#include "sparse.hpp"

namespace cusparse {

i64 load_index(const u8* at, int width, i64 i) {
    if (width == kIndex64) {
        i64 index;
        memcpy(&index, at + u64(i) * sizeof index, sizeof index);
        return index;
    }
    std::int32_t index;
    memcpy(&index, at + u64(i) * sizeof index, sizeof index);
    return index;
}
void store_index(u8* at, int width, i64 i, i64 index) {
    memcpy(at + u64(i) * bytes_of(width), &index, bytes_of(width));  // the lower bytes come first
}

std::vector<Element> elements_of(const Sparse& a, const View& view) {
    std::vector<Element> found;
    found.reserve(std::size_t(a.count));
    auto take = [&](i64 major, i64 place) {
        Element one{major, load_index(view.minors, a.width_of_minors, place) - a.base, place};
        if (a.format == kColumns) std::swap(one.row, one.column);
        if (one.row >= 0 && one.row < a.rows && one.column >= 0 && one.column < a.columns) found.push_back(one);
    };
    if (a.format == kCoordinates) {
        for (i64 i = 0; i < a.count; i++) take(load_index(view.majors, a.width_of_majors, i) - a.base, i);
        return found;
    }
    for (i64 major = 0, next = 0; major < a.major_size() && a.count; major++) {
        auto offset = [&](i64 i) {
            return std::clamp<i64>(load_index(view.majors, a.width_of_majors, i) - a.base, next, a.count);
        };
        i64 end = offset(major + 1);
        for (next = offset(major); next < end; next++) take(major, next);
    }
    return found;
}

bool is_simulated(std::initializer_list<int> types) {
    for (int type : types)
        if (!is_type(type)) {
            [[maybe_unused]] static const bool said = (xsim_not_simulated("cuSPARSE with numbers of this type"), true);
            return false;
        }
    return true;
}

Scalar Call::scalar(const void* pointer, int type) {
    if (!handle_->pointer_mode) return {type, load(static_cast<const u8*>(pointer), type)};
    return {type, 0, int(add(pointer, size_of(type), 'r'))};
}

std::size_t Call::add(const Dense& matrix, char use) {
    u64 size = size_of(matrix.type), first = reinterpret_cast<u64>(matrix.values);
    i64 lines = matrix.order == kByRows ? matrix.rows : matrix.columns;
    i64 length = matrix.order == kByRows ? matrix.columns : matrix.rows;
    std::size_t view = call_.extents.size();
    library::Extent one{first, u64(length) * size, u64(lines), u64(matrix.pitch) * size, use};
    for (const library::Extent& extent : library::extents_of_batch(one, matrix.count, matrix.stride, size))
        call_.extents.push_back(extent);
    return view;
}

std::size_t Call::add(const Sparse& matrix, char of_structure, char of_values) {
    std::size_t view = add(matrix.majors, u64(matrix.offsets()) * bytes_of(matrix.width_of_majors), of_structure);
    add(matrix.minors, u64(matrix.count) * bytes_of(matrix.width_of_minors), of_structure);
    add(matrix.values, of_values ? u64(matrix.count) * size_of(matrix.type) : 0, of_values ? of_values : 'r');
    return view;
}

}  // namespace cusparse
