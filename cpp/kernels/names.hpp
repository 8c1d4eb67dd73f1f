// Names of kernels for people.
#pragma once

#include <string>

namespace check {

// The kernel's common name: not mangled, without the arguments of templates and without what Numba adds to the names of
// functions of Python.
std::string readable(const char* mangled);

}  // namespace check
