// The values that a launch hands to its kernel, as the driver's functions take them: one address for each parameter, or
// all parameters packed into a buffer that `extra` names.
#pragma once

#include "facts.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstring>

namespace check {

// Reads all parameters, at their offsets. False, and zeros, where the program has not given them. In a buffer that is
// too short, a word with a missing part is zero as well.
inline bool read_arguments(const std::vector<Parameter>& parameters, void** values, void** extra,
                           std::vector<u8>& space) {
    std::size_t end = 0;
    for (const Parameter& one : parameters) end = std::max(end, std::size_t(one.offset) + one.size);
    space.assign(end, 0);
    if (values) {
        for (std::size_t i = 0; i < parameters.size(); i++) {
            if (parameters[i].size && !values[i]) return false;
            memcpy(space.data() + parameters[i].offset, values[i], parameters[i].size);
        }
        return true;
    }
    const void* packed = nullptr;
    std::size_t bytes = 0;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = extra[1];
        if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const std::size_t*>(extra[1]);
    }
    std::size_t there = bytes < end ? bytes / 8 * 8 : end;
    if (packed) memcpy(space.data(), packed, there);
    return packed || !end;
}

}  // namespace check
