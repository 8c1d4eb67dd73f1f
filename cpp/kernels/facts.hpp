// Facts about an unknown kernel's parameters, read from the kernel's image: where the parameters lie, and the accesses
// through the pointers among them. C++ that knows no driver and no Python; the front ends of the check share it.
//
// PTX says both (ptx.hpp has its text as statements, flow.hpp follows the pointers through them). A cubin says where the
// parameters are (cubin.cpp), a C++ name which pointers are to const (signature.hpp). A fat binary has several of these.
//
// Machine code, as a disassembler prints it, says which accesses are made, too: machine_code.hpp.
//
// A claim holds for every launch: a pointer is Read only if nothing can be written through it, Write or ReadWrite only
// if a store of the kernel goes to it alone. Everything else is Unknown, which claims nothing. No access goes through a
// word that is not listed. A word of a struct is merely *found* where nothing shows that the kernel uses it as an
// address: where the code is not known, or picks words of the struct by an index.
//
// Images come from files and other libraries: whatever they contain, nothing outside of their bytes is read.
#pragma once

#include "engine/access.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace check {

// Both in bytes, in the kernel's parameter space.
struct Parameter {
    u32 offset = 0, size = 0;
};

// A word of 8 bytes through which memory is accessed.
struct Pointer {
    u32 offset = 0;
    Role role = Role::Unknown;
    bool found = false;
    bool followed = false;  // the code says which addresses the kernel uses: see first_thread.hpp
};

class FirstThread;

struct Facts {
    std::vector<Parameter> parameters;
    std::vector<Pointer> pointers;  // in order of their offsets
    std::shared_ptr<const FirstThread> first;  // nullptr: the code is not known
    bool may_signal = true;  // the host, while the kernel runs: see signals.hpp
    bool uses_objects = false;  // of textures or surfaces: such an object stands for memory as a pointer does
};

using Kernels = std::map<std::string, Facts>;

struct Variable {
    u64 bytes = 0;
    bool is_managed = false;  // the host reaches it, too
};
using Variables = std::map<std::string, Variable>;

// What an image defines: its kernels, by the names that the driver knows them by, and its variables, `__device__`,
// `__constant__` and `__managed__`.
struct Contents {
    Kernels kernels;
    Variables variables;
};

// The end of an image without a size (0) is taken from its header or, in PTX, from its NUL.
Contents contents_of(const void* image, std::size_t bytes);

// Adds roles from an Itanium mangled name: memory behind a `const T*` is only read, as far as nothing else is known. A
// name that is not understood, or that has another number of parameters, adds nothing.
void add_roles_of_signature(const std::string& mangled, Facts& facts);

// Adds that the kernel uses all addresses of a struct, where the kernel's name says so: see layouts.hpp.
void add_arrays(const std::string& mangled, Facts& facts);

// Each word of 8 bytes in one of the parameters, as a pointer about which nothing is known. A parameter of 8 bytes is a
// pointer or a number; words of larger parameters are found.
std::vector<Pointer> all_words(const std::vector<Parameter>& parameters);

constexpr u32 kLargestParameters = 1u << 16;  // the driver's limit is half of that

}  // namespace check
