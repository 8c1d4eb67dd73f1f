// The machine code of the modules that a process loads, kept aside for the end: it is read of those kernels alone of which
// a finding has to know more (kernels/machine_code.hpp).
//
// CUPTI shows a module's cubin while it is loaded, and not later. All of them are hundreds of megabytes in a program of
// PyTorch's, so they go to a file that has no name.
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
    bool is_complete() const { return complete_; }

  private:
    struct Place {
        u64 begin, bytes;
    };
    int file_ = -1;
    u64 end_ = 0;
    bool complete_ = true;
    std::vector<Place> cubins_;
};

}  // namespace check
