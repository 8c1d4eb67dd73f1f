// Accesses that a kernel makes for certain, whatever is in memory: the accesses of the first thread of its grid,
// followed through the kernel's PTX with the parameters of a launch.
//
// The thread's indices are zero, and the parameters and the size of the grid are known. Values that the thread loads
// from memory are not known, nor are values computed from them. A branch that depends on such a value may go either
// way: the code between the branch and the place where both ways meet again is no evidence, and neither is the code
// that follows if the thread may end in between. A loop is left, in the same way, after a few rounds.
#pragma once

#include "facts.hpp"

#include <array>

namespace check {

// An address that the thread has used.
struct Touch {
    u64 address = 0;
    std::array<u32, 2> words = {};  // behind the offsets of parameters that it was computed from; 0: none
    bool reads = false, writes = false;
    bool plain = false;  // not only by atomic operations
    bool handed_over = false;  // to a function that is not followed, which may use it as it likes
    Role role() const;
};

struct GridShape {
    u32 grid[3] = {}, block[3] = {};  // 0: not known
};

struct Instruction;
struct PtxKernel;
namespace thread {
struct Code;
}

class FirstThread {
  public:
    FirstThread(const PtxKernel& kernel, const std::vector<Instruction>& instructions);
    // `space` has the values of all parameters, at their offsets.
    void run(const std::vector<u8>& space, const GridShape& shape, std::vector<Touch>* touches) const;

  private:
    std::shared_ptr<const thread::Code> code_;
};

}  // namespace check
