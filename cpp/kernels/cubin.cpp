// Parameters of a kernel, from section .nv.info.<name> of a cubin; its code, from .text.<name>.
#include "binary.hpp"
#include "signals.hpp"

#include <algorithm>
#include <cstring>
#include <set>

namespace check {

namespace {

constexpr char kElf[] =
    "\x7f"
    "ELF\x02\x01";  // of 64 bits, little endian
constexpr u64 kHeader = 64;
// An attribute is a byte for its storage, a byte for its kind, and two bytes of value or size.
constexpr u64 kSized = 4;
constexpr u64 kParameter = 0x17, kParametersInBank = 0x0A, kJumps = 0x34;
// The place in a header of the version of its rules, and the version since which the flags have the number of the SM
// elsewhere.
constexpr u64 kAbiVersion = 8, kShiftedSince = 8;

struct Section {
    u64 name, offset, size;
};

Section section_at(Bytes image, u64 at) {
    return {image.number(at, 4), image.number(at + 0x18, 8), image.number(at + 0x20, 8)};
}

// Reads the known fields: u32 index, u16 ordinal, u16 offset, u32 of which the upper 14 bits are the size.
bool read_parameter(Bytes value, std::vector<Parameter>* parameters) {
    u64 ordinal = value.number(4, 2), offset = value.number(6, 2), size = value.number(8, 4) >> 18;
    if (value.size() < 12 || ordinal >= kLargestParameters / 8) return false;
    if (parameters->size() <= ordinal) parameters->resize(ordinal + 1);
    (*parameters)[ordinal] = {u32(offset), u32(size)};
    return true;
}

// Reads the targets of computed jumps: for each jump its place, a word, and the number of targets that follow.
void read_jumps(Bytes value, std::vector<Jump>* jumps) {
    for (u64 at = 0; at + 12 <= value.size();) {
        Jump jump;
        jump.place = u32(value.number(at, 4));
        u64 count = value.number(at + 8, 4);
        at += 12;
        for (u64 i = 0; i < count && at + 4 <= value.size(); i++, at += 4)
            jump.targets.push_back(u32(value.number(at, 4)));
        jumps->push_back(std::move(jump));
    }
}

// Visits the attributes that are stored behind their size.
template <class Visit>
void for_each_attribute(Bytes section, Visit visit) {
    for (u64 at = 0; at + 4 <= section.size();) {
        u64 format = section.number(at, 1), attribute = section.number(at + 1, 1);
        u64 size = format == kSized ? section.number(at + 2, 2) : 0;
        if (format == kSized) visit(attribute, section.part(at + 4, size));
        at += 4 + size;
    }
}

Facts facts_of_section(Bytes section) {
    Facts facts;
    for_each_attribute(section, [&](u64 attribute, Bytes value) {
        if (attribute == kParameter) read_parameter(value, &facts.parameters);
    });
    auto& all = facts.parameters;
    bool complete = std::all_of(all.begin(), all.end(), [](const Parameter& one) { return one.size; });
    if (!complete) all.clear();
    facts.pointers = all_words(all);
    return facts;
}

// Visits the sections by name and contents.
template <class Visit>
void for_each_section(Bytes image, Visit visit) {
    if (image.size() < kHeader) return;
    u64 first = image.number(0x28, 8), step = image.number(0x3A, 2), count = image.number(0x3C, 2);
    if (step < kHeader || first >= image.size()) return;
    Section names = section_at(image, first + image.number(0x3E, 2) * step);
    Bytes texts = image.part(names.offset, names.size);
    for (u64 i = 0; i < count; i++) {
        Section section = section_at(image, first + i * step);
        visit(texts.text(section.name), image.part(section.offset, section.size));
    }
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

namespace {

u64 sm_of(Bytes cubin) {
    u64 flags = cubin.number(0x30, 4);
    return cubin.number(kAbiVersion, 1) >= kShiftedSince ? flags >> 8 & 0xff : flags & 0xff;
}

bool starts(const std::string& name, const std::string& with) { return !name.compare(0, with.size(), with); }

}  // namespace

u64 size_of_cubin(Bytes header) {
    return std::max(header.number(0x28, 8) + header.number(0x3A, 2) * header.number(0x3C, 2),  // sections' headers
                    header.number(0x20, 8) + header.number(0x36, 2) * header.number(0x38, 2));
}

namespace {

// From the symbols of a cubin; `sections` are the names of its sections.
Variables variables_of(Bytes symbols, Bytes texts, const std::vector<std::string>& sections) {
    constexpr u64 kSymbol = 24, kObject = 1, kManaged = 4;
    Variables variables;
    for (u64 at = 0; at + kSymbol <= symbols.size(); at += kSymbol) {
        u64 info = symbols.number(at + 4, 1), section = symbols.number(at + 6, 2), bytes = symbols.number(at + 16, 8);
        if ((info & 15) != kObject || !bytes || section >= sections.size()) continue;
        std::string name = texts.text(symbols.number(at, 4));
        if (name.empty()) continue;
        // .nv.global.init, .nv.constant3
        if (starts(sections[section], ".nv.global") || starts(sections[section], ".nv.constant"))
            variables[name] = {bytes, (symbols.number(at + 5, 1) & kManaged) != 0};
    }
    return variables;
}

}  // namespace

Contents contents_of_cubin(Bytes image) {
    Kernels kernels;
    Bytes symbols(nullptr, 0), texts(nullptr, 0);
    std::vector<std::string> sections;
    std::set<std::string> silent;
    u64 sm = sm_of(image);
    static const std::string info = ".nv.info.", text = ".text.";
    for_each_section(image, [&](const std::string& name, Bytes contents) {
        if (starts(name, info)) kernels[name.substr(info.size())] = facts_of_section(contents);
        if (starts(name, text) && !may_signal(contents, sm)) silent.insert(name.substr(text.size()));
        if (name == ".symtab") symbols = contents;
        if (name == ".strtab") texts = contents;
        sections.push_back(name);
    });
    for (auto& kernel : kernels) kernel.second.may_signal = !silent.count(kernel.first);
    return {std::move(kernels), variables_of(symbols, texts, sections)};
}

Code code_of(Bytes cubin, const std::string& kernel) {
    Code code;
    if (!is_cubin(cubin)) return code;
    code.sm = u32(sm_of(cubin));
    for_each_section(cubin, [&](const std::string& name, Bytes contents) {
        if (name == ".text." + kernel) code.text = contents;
        if (name != ".nv.info." + kernel) return;
        for_each_attribute(contents, [&](u64 attribute, Bytes value) {
            if (attribute == kParametersInBank && value.size() >= 8) code.base = u32(value.number(4, 2));
            if (attribute == kJumps) read_jumps(value, &code.jumps);
        });
    });
    return code;
}

}  // namespace check
