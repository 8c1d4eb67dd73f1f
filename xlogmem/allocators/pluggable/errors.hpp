// A c10::OutOfMemoryError, thrown without PyTorch's headers: xlogmem is built without PyTorch, and one build works with
// every version of it.
//
// PyTorch's libraries export what is needed: a constructor of the base class c10::Error, and the table of virtual functions
// and the type of the derived one, which adds no member. Mangled names carry the signatures, so a version with other ones
// has no such symbols. What they do not say is the size of the object: there is room enough.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <typeinfo>

namespace xlogmem_torch {

constexpr size_t kRoom = 1024;  // about 130 bytes in PyTorch 2.11

// (this, what to say, a trace of the stack, who called).  Arguments by value that have destructors are passed by address.
using Construct = void (*)(void*, std::string*, std::shared_ptr<void>*, const void*);

inline Construct construct = nullptr;
inline void** functions = nullptr;  // of the derived class; the first two entries are an offset and the type
inline std::type_info* type = nullptr;

inline void destroy(void* error) { static_cast<std::exception*>(error)->~exception(); }

// Finds the class.  False: this version of PyTorch has another one, or it is not loaded.
inline bool find_errors() {
    void* c10 = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);  // and libc10.so, on which it depends
    if (!c10) return false;
    construct = reinterpret_cast<Construct>(
        dlsym(c10, "_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS6_"
                   "EEEPKv"));
    functions = static_cast<void**>(dlsym(c10, "_ZTVN3c1016OutOfMemoryErrorE"));
    type = static_cast<std::type_info*>(dlsym(c10, "_ZTIN3c1016OutOfMemoryErrorE"));
    dlclose(c10);  // PyTorch keeps it loaded
    return construct && functions && type;
}

// A torch.OutOfMemoryError in Python; a RuntimeError if `find_errors` has not found that.
[[noreturn]] inline void throw_out_of_memory(const std::string& text) {
    if (!construct || !functions || !type) throw std::runtime_error(text);
    std::string message = text;
    std::shared_ptr<void> no_trace;
    void* error = abi::__cxa_allocate_exception(kRoom);
    try {
        construct(error, &message, &no_trace, nullptr);
    } catch (...) {
        abi::__cxa_free_exception(error);
        throw;
    }
    *static_cast<void***>(error) = functions + 2;
    abi::__cxa_throw(error, type, destroy);
}

}  // namespace xlogmem_torch
