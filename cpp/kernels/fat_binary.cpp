// Fat binaries: one after the other PTX and cubins for several devices, mostly compressed, by LZ4 or, as nvcc does it from
// CUDA 12.8 on, by Zstandard. What is compressed by the latter is not known where the system has no libzstd.
#include "binary.hpp"

#include <dlfcn.h>

#include <cstring>

namespace check {

namespace {

constexpr u64 kMagic = 0xBA55ED50, kPtx = 1, kCubin = 2;
constexpr u64 kCompressed = 0x2000, kZstandard = 0x8000;
constexpr u64 kLargest = u64(256) << 20;  // of what is worth decompressing

// One block of LZ4: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. False where it is damaged.
bool decompress(Bytes from, std::vector<u8>* to, u64 size) {
    u64 at = 0;
    auto length = [&](u64 value) {
        for (u64 more = 255; value >= 15 && more == 255 && at < from.size(); value += more) more = from.number(at++, 1);
        return value;
    };
    while (at < from.size()) {
        u64 token = from.number(at++, 1);
        u64 literals = length(token >> 4);
        if (literals > from.size() - at || literals > size - to->size()) return false;
        to->insert(to->end(), from.data() + at, from.data() + at + literals);
        at += literals;
        if (at >= from.size()) break;  // the last sequence has no match
        u64 distance = from.number(at, 2);
        at += 2;
        u64 match = length(token & 15) + 4;
        if (!distance || distance > to->size() || match > size - to->size()) return false;
        for (u64 i = 0; i < match; i++) to->push_back((*to)[to->size() - distance]);
    }
    return to->size() == size;
}

// libzstd's functions: https://facebook.github.io/zstd/zstd_manual.html.
struct Zstandard {
    std::size_t (*decompress)(void* to, std::size_t room, const void* from, std::size_t bytes) = nullptr;

    Zstandard() {
        void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library) decompress = reinterpret_cast<decltype(decompress)>(dlsym(library, "ZSTD_decompress"));
    }
};

bool decompress_zstandard(Bytes from, std::vector<u8>* to, u64 size) {
    static const Zstandard zstandard;
    if (!zstandard.decompress) return false;
    to->resize(size);
    return zstandard.decompress(to->data(), size, from.data(), from.size()) == size;  // errors are larger
}

// Visits the parts that can be read, by their kind.
template <class Visit>
void for_each_part(Bytes image, Visit visit) {
    Bytes parts = image.part(image.number(6, 2), image.number(8, 8));
    for (u64 at = 0; at + 64 <= parts.size();) {
        u64 kind = parts.number(at, 2), header = parts.number(at + 4, 4), size = parts.number(at + 8, 8);
        u64 packed = parts.number(at + 16, 4), flags = parts.number(at + 40, 8), whole = parts.number(at + 56, 8);
        if (header < 64 || header > parts.size() || size > parts.size()) break;
        Bytes part = parts.part(at + header, size);
        std::vector<u8> plain;
        auto unpack = flags & kZstandard ? decompress_zstandard : decompress;
        if (!(flags & (kCompressed | kZstandard)))
            visit(kind, part);
        else if (whole <= kLargest && unpack(part.part(0, packed), &plain, whole))
            visit(kind, Bytes(plain.data(), plain.size()));
        at += header + size;
    }
}

Contents contents_of_part(u64 kind, Bytes part) {
    if (kind == kPtx) return contents_of_ptx(part);
    if (kind == kCubin && is_cubin(part)) return contents_of_cubin(part);
    return {};
}

}  // namespace

bool is_fat_binary(Bytes image) { return image.size() >= 16 && image.number(0, 4) == kMagic; }

u64 size_of_fat_binary(Bytes header) { return header.number(6, 2) + header.number(8, 8); }

Contents contents_of_fat_binary(Bytes image) {
    Contents contents;
    for_each_part(image, [&](u64 kind, Bytes bytes) {
        Contents part = contents_of_part(kind, bytes);
        for (auto& entry : part.kernels) {  // of several, that of PTX says more
            auto made = contents.kernels.emplace(entry);
            if (made.second) continue;
            bool may_signal = made.first->second.may_signal || entry.second.may_signal;
            if (kind == kPtx) made.first->second = entry.second;
            made.first->second.may_signal = may_signal;
        }
        contents.variables.merge(part.variables);
    });
    return contents;
}

}  // namespace check
