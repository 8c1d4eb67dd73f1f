// The types of a function's parameters, from its mangled name: https://itanium-cxx-abi.github.io/cxx-abi/abi.html.
#pragma once

#include <string>
#include <vector>

namespace check {

enum class Type { Value, Pointer, PointerToConst };

// False for a name that is not mangled, or has a part that is not understood.
bool parameter_types(const std::string& mangled, std::vector<Type>* types);

}  // namespace check
