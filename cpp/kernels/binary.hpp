// Compiled kernels: cubins, and the fat binaries that hold them beside PTX.
#pragma once

#include "facts.hpp"
#include "machine_code.hpp"

namespace check {

// Bytes that may end anywhere. Reads outside of them give zero or an empty text.
class Bytes {
  public:
    Bytes(const void* begin, u64 size) : begin_(static_cast<const u8*>(begin)), size_(size) {}
    u64 size() const { return size_; }
    const u8* data() const { return begin_; }
    Bytes part(u64 at, u64 size) const;
    u64 number(u64 at, unsigned bytes) const;  // little endian
    std::string text(u64 at) const;            // up to its NUL

  private:
    const u8* begin_;
    u64 size_;
};

bool is_cubin(Bytes image);
bool is_fat_binary(Bytes image);
u64 size_of_cubin(Bytes header);  // of 64 bytes: where the sections' headers end, which are last
u64 size_of_fat_binary(Bytes header);

// A kernel's machine code: for what else is here see machine_code.hpp.
struct Code {
    Bytes text = {nullptr, 0};
    u32 sm = 0;    // 90 of sm_90
    u32 base = 0;  // where in the first bank of constants the parameters are
    std::vector<Jump> jumps;
};

// The text is empty where the kernel's code is not there.
Code code_of(Bytes cubin, const std::string& kernel);

Contents contents_of_cubin(Bytes image);
Contents contents_of_fat_binary(Bytes image);
Contents contents_of_ptx(Bytes text);

}  // namespace check
