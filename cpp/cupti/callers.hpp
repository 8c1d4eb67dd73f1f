// Who makes a call of the driver: a library of NVIDIA's or RAPIDS', for itself, or any other code.
#pragma once

#include <string>

namespace check {

// The name of the library that makes the call in progress, as libcudnn_graph.so.9, if it is one that makes streams for
// itself, which a program never sees; else nothing. It takes microseconds: for calls that are rare.
std::string library_of_caller();

}  // namespace check
