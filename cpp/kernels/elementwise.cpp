// See elementwise.hpp.
#include "elementwise.hpp"

#include <algorithm>
#include <sstream>

namespace check {

namespace {

constexpr u32 kWord = 8;
constexpr std::size_t kMostParts = 64;

// Bytes of an element of this type of NumPy's, or of a number that CuPy passes by value; 0: the type is not known.
u32 bytes_of_type(const std::string& type) {
    static const std::map<std::string, u32> kTypes = {
        {"bool", 1},  {"int8", 1},   {"uint8", 1},     {"int16", 2},    {"uint16", 2},     {"float16", 2},
        {"int32", 4}, {"uint32", 4}, {"float32", 4},   {"int64", 8},    {"uint64", 8},     {"float64", 8},
        {"int", 8},   {"float", 8},  {"complex64", 8}, {"complex", 16}, {"complex128", 16}};
    auto found = kTypes.find(type);
    return found == kTypes.end() ? 0 : found->second;
}

// The bytes of the elements of each argument, by the kernel's name: cupy_, the operation, two underscores, the types.
std::vector<u32> items_of(const std::string& name) {
    std::vector<u32> items;
    std::size_t types = name.find("__");
    if (name.rfind("cupy_", 0) || types == std::string::npos || types != name.rfind("__")) return {};  // or it is fused
    std::istringstream rest(name.substr(types + 2));
    for (std::string type; std::getline(rest, type, '_');) {
        items.push_back(bytes_of_type(type));
        if (!items.back()) return {};
    }
    return items;
}

struct Dimension {
    u64 length, stride;
};

}  // namespace

// Each parameter is an array of all dimensions, or a number; the last one has the shape.
bool ElementwiseArrays::find_arrays(const std::vector<u32>& items, const std::vector<Parameter>& parameters) {
    if (items.empty() || parameters.size() != items.size() + 1) return false;
    u32 size = parameters.back().size;
    if (size <= kWord || (size - kWord) % (2 * kWord)) return false;
    dimensions_ = (size - kWord) / (2 * kWord);
    for (std::size_t i = 0; i < items.size(); i++) {
        if (parameters[i].size == 2 * kWord * (1 + dimensions_))
            arrays_.push_back({parameters[i].offset, items[i]});
        else if (parameters[i].size > 2 * kWord)
            return false;
    }
    return !arrays_.empty();
}

// The fill of a complex array has a number of as many bytes as an array without dimensions; neither is looked at.
std::optional<ElementwiseArrays> ElementwiseArrays::of(const std::string& name,
                                                       const std::vector<Parameter>& parameters) {
    ElementwiseArrays made;
    std::vector<u32> items = items_of(name);
    if (name == "cupy_fill" && parameters.size() == 3 && parameters[0].size <= kWord)
        items = {parameters[0].size, parameters[0].size};
    if (!made.find_arrays(items, parameters)) return {};
    return made;
}

std::vector<ArrayPart> ElementwiseArrays::parts(const std::vector<u8>& space, u32 offset) const {
    auto array = std::find_if(arrays_.begin(), arrays_.end(), [&](const Array& one) { return one.offset == offset; });
    if (array == arrays_.end()) return {};
    u64 begin = word_at(space, offset), elements = word_at(space, offset + kWord), product = 1;
    std::vector<Dimension> dimensions;
    for (u32 i = 0; i < dimensions_; i++) {
        u64 length = word_at(space, offset + kWord * (2 + i));
        std::int64_t stride = std::int64_t(word_at(space, offset + kWord * (2 + dimensions_ + i)));
        if (!length || length > elements) return {};
        product *= length;
        if (length == 1 || !stride) continue;
        if (stride < 0) begin += u64(stride) * (length - 1);
        dimensions.push_back({length, u64(stride < 0 ? -stride : stride)});
    }
    if (product != elements) return {};
    std::sort(dimensions.begin(), dimensions.end(),
              [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
    // From the inside: bytes without gaps, rows of them, and what is left is counted through.
    u64 width = array->item;
    auto inner = dimensions.begin();
    for (; inner != dimensions.end() && inner->stride == width; inner++) width *= inner->length;
    ArrayPart one{begin, begin + width, {}};
    if (inner != dimensions.end()) {
        if (inner->stride < width) return {};  // elements that overlap
        one.rows = rows_of(inner->stride, width, inner->length);
        one.end = begin + inner->stride * (inner->length - 1) + width;
        inner++;
    }
    std::vector<ArrayPart> all{one};
    for (; inner != dimensions.end(); inner++) {
        if (inner->length > kMostParts / all.size()) return {};
        std::size_t there = all.size();
        for (u64 i = 1; i < inner->length; i++)
            for (std::size_t j = 0; j < there; j++)
                all.push_back({all[j].begin + i * inner->stride, all[j].end + i * inner->stride, all[j].rows});
    }
    return all;
}

}  // namespace check
