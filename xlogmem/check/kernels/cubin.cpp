// Where a kernel's parameters are, from its section .nv.info.<name> of a cubin.
#include "binary.hpp"

#include <algorithm>
#include <cstring>

namespace check {

namespace {

constexpr char kElf[] =
    "\x7f"
    "ELF\x02\x01";  // of 64 bits, little endian
constexpr u64 kHeader = 64;
// An attribute is a byte that says how it is stored, one that says what it is, and two of value or size.
constexpr u64 kSized = 4;
constexpr u64 kParameter = 0x17;

struct Section {
    u64 name, offset, size;
};

Section section_at(Bytes image, u64 at) {
    return {image.number(at, 4), image.number(at + 0x18, 8), image.number(at + 0x20, 8)};
}

// What is known of it: u32 index, u16 ordinal, u16 offset, u32 of which the upper 14 bits are the size.
bool read_parameter(Bytes value, std::vector<Parameter>* parameters) {
    u64 ordinal = value.number(4, 2), offset = value.number(6, 2), size = value.number(8, 4) >> 18;
    if (value.size() < 12 || ordinal >= kLargestParameters / 8) return false;
    if (parameters->size() <= ordinal) parameters->resize(ordinal + 1);
    (*parameters)[ordinal] = {u32(offset), u32(size)};
    return true;
}

Facts facts_of_section(Bytes section) {
    Facts facts;
    for (u64 at = 0; at + 4 <= section.size();) {
        u64 format = section.number(at, 1), attribute = section.number(at + 1, 1);
        u64 size = format == kSized ? section.number(at + 2, 2) : 0;
        if (format == kSized && attribute == kParameter) read_parameter(section.part(at + 4, size), &facts.parameters);
        at += 4 + size;
    }
    auto& all = facts.parameters;
    bool complete = std::all_of(all.begin(), all.end(), [](const Parameter& one) { return one.size; });
    if (!complete) all.clear();
    facts.pointers = all_words(all);
    return facts;
}

}  // namespace

Bytes Bytes::part(u64 at, u64 size) const {
    if (at > size_) return {begin_, 0};
    return {begin_ + at, std::min(size, size_ - at)};
}

u64 Bytes::number(u64 at, unsigned bytes) const {
    if (at > size_ || size_ - at < bytes) return 0;
    u64 value = 0;
    memcpy(&value, begin_ + at, bytes);
    return value;
}

std::string Bytes::text(u64 at) const {
    if (at >= size_) return {};
    auto* begin = reinterpret_cast<const char*>(begin_ + at);
    return {begin, strnlen(begin, size_ - at)};
}

bool is_cubin(Bytes image) { return image.size() >= 6 && !memcmp(image.data(), kElf, 6); }

u64 size_of_cubin(Bytes header) {
    return std::max(header.number(0x28, 8) + header.number(0x3A, 2) * header.number(0x3C, 2),  // sections' headers
                    header.number(0x20, 8) + header.number(0x36, 2) * header.number(0x38, 2));
}

Kernels facts_of_cubin(Bytes image) {
    Kernels kernels;
    if (image.size() < kHeader) return kernels;
    u64 first = image.number(0x28, 8), step = image.number(0x3A, 2), count = image.number(0x3C, 2);
    if (step < kHeader || first >= image.size()) return kernels;
    Section names = section_at(image, first + image.number(0x3E, 2) * step);
    static const std::string prefix = ".nv.info.";
    for (u64 i = 0; i < count; i++) {
        Section section = section_at(image, first + i * step);
        std::string name = image.part(names.offset, names.size).text(section.name);
        if (name.compare(0, prefix.size(), prefix)) continue;
        kernels[name.substr(prefix.size())] = facts_of_section(image.part(section.offset, section.size));
    }
    return kernels;
}

}  // namespace check
