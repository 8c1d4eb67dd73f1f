// Kernels of programs that are checked: they are launched, and compute nothing.
//
// The accesses of such a kernel are read from its image (kernels/): its parameters and, where that is known, the reads
// and writes through each pointer. The engine is fed with them. A program may declare more for kernels whose names
// match a pattern (xlogmem.check.kernel): the roles of parameters, and a function that is run in the kernel's place.
// Without such a function nothing is written; memory that the program never filled is full of zeros
// (driver().config.unknown_kernels), so that a size or an index that a kernel should have computed is 0 and not
// garbage.
#pragma once

#include "kernels.hpp"

#include "kernels/first_thread.hpp"

namespace sim {

using Shape = check::GridShape;

// One launch, for the function that is run in the kernel's place. It lives until that returns.
struct Launch {
    const char* name;
    Shape shape;
    u32 parameter_count;
    const check::Parameter* parameters;
    const u8* space;  // the values, at the offsets of `parameters`
    u64 bytes;
};
using RunLaunch = void (*)(const Launch* launch);

// For all kernels whose name fits the shell's pattern: parameter i has the role of the same place in `roles`, 'r', 'w',
// 'b' for both or '-' for the role that the image gives. Later declarations come first.
void declare_kernel(const char* pattern, const char* roles, RunLaunch run);
void forget_declarations();

// Adds facts from another image, of which a binary was made, about kernels that are loaded from now on.
void learn_kernels(const char* image, u64 bytes);
const check::Facts* learned_facts(const std::string& name);

CUresult prepare_unknown(const Function& function, const Shape& shape, void** pointers, void** extra, Launchable* made);

struct UnknownKernels {
    u64 launches = 0;  // that computed nothing
    // How many of each kernel of which it is not known what it does, if no operator has said so either (engine/hooks.hpp).
    std::map<std::string, u64> not_judged;
};
UnknownKernels& unknown_kernels();

// What the program has called in vain.
struct CalledInVain {
    std::vector<const char*> functions;  // of libraries: see not_simulated.hpp
    bool private_tables = false;  // cuGetExportTable, by NVIDIA's runtime, which accepts no driver but NVIDIA's
};
CalledInVain& called_in_vain();

// Both: {"computed_nothing": 3, "not_judged": {"name": 2}, "not_simulated": ["name"], "private_tables": false}.
std::string notes_as_json();

// A launch of this kernel, or a call of a library's function, was queued, and it is not known what it does.
void note_not_judged(const char* name, const Stream* stream);

}  // namespace sim
