// Arrays of CuPy's element-wise kernels: which bytes of them a launch touches.
//
// Such a kernel (a ufunc, or a fill) is given each array as a struct with its address, shape and strides, and uses every
// element of it, and nothing else. Its name says so, cupy_add__float32_float32_float32, with the types of the elements.
// Where the parameters are not as these types want them, as in another release of CuPy, nothing is claimed. The structs
// are in cupy/_core/include/cupy/carray.cuh.
#pragma once

#include "facts.hpp"

#include "engine/rows.hpp"

#include <optional>

namespace check {

// Bytes of an array: [begin, end), or of these the rows.
struct ArrayPart {
    u64 begin = 0, end = 0;
    Rows rows;
};

class ElementwiseArrays {
  public:
    // None if the kernel is no such kernel.
    static std::optional<ElementwiseArrays> of(const std::string& name, const std::vector<Parameter>& parameters);

    // The bytes of the array whose address is at this offset of the parameters. None: there is no such array, or it has
    // too many parts.
    std::vector<ArrayPart> parts(const std::vector<u8>& space, u32 offset) const;

  private:
    struct Array {
        u32 offset = 0, item = 0;  // `item`: bytes of an element
    };
    std::vector<Array> arrays_;
    u32 dimensions_ = 0;

    bool find_arrays(const std::vector<u32>& items, const std::vector<Parameter>& parameters);
};

}  // namespace check
