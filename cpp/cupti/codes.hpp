// The machine code of the modules that a process loads, kept aside until the end. Only the code of kernels about which
// a finding has to know more is read (kernels/machine_code.hpp).
//
// CUPTI shows a module's cubin while the module is being loaded, and not later. All cubins of a program of PyTorch's
// are hundreds of megabytes, so they go to a file that has no name.
#pragma once

#include "kernels/binary.hpp"

#include <functional>
#include <string>
#include <vector>

namespace check {

class Codes {
  public:
    static constexpr u64 kMost = u64(2) << 30;  // bytes of a process

    void keep(const char* cubin, u64 bytes);
    // Calls visit(code) for each module that has a kernel of this name.
    void each(const std::string& kernel, const std::function<void(const Code&)>& visit) const;

  private:
    struct Place {
        u64 begin, bytes;
    };
    int file_ = -1;
    u64 end_ = 0;
    std::vector<Place> cubins_;
};

}  // namespace check
