// The caller of a driver call: a library of NVIDIA's or RAPIDS', for itself, or any other code.
#pragma once

#include <string>

namespace check {

// The name of the library that makes the call in progress, as libcudnn_graph.so.9, if the library makes streams for
// itself, which a program never sees; else an empty string. Takes microseconds: for calls that are rare.
std::string library_of_caller();

}  // namespace check
