// Simulated kernels: C++ functions that stand for PTX entries of the same name.
//
// A module is PTX text; its `.entry` names are looked up in the table of kernels.cpp. Each kernel declares
// the sizes of its parameters and which bytes it reads and writes, so that kernels are checked for races like
// copies are. An entry without a counterpart loads, but launching it is an error: work is never skipped
// silently. Where a program is checked it is launched all the same: see unknown.hpp.
#pragma once

#include "device.hpp"

#include "kernels/elementwise.hpp"
#include "kernels/layouts.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sim {

// The parameters of one launch, copied when it is queued.
class Parameters {
  public:
    void add(const void* value, std::size_t bytes);
    u64 as_u64(std::size_t index) const;
    u32 as_u32(std::size_t index) const;

  private:
    std::vector<u64> values_;  // no parameter of ours is larger than 8 bytes
};

struct Kernel {
    const char* name;
    std::vector<std::size_t> sizes;
    void (*declare)(Work& work, const Parameters& parameters);
    void (*run)(const Parameters& parameters);
};

const std::vector<Kernel>& guard_kernels();  // of xlogmem/resources/guard_kernels.py
const Kernel* find_kernel(const std::string& name);

struct Function {
    const char* name = "";  // lives as long as the driver, like the next one
    const char* shown = "";  // in findings
    const Kernel* kernel = nullptr;
    Module* module = nullptr;
    u64 handle = 0;
    const check::Facts* facts = nullptr;  // of the module, or learned elsewhere; nullptr: not known
    std::optional<check::StructLayout> layout;  // of a struct that it takes
    std::optional<check::ElementwiseArrays> arrays;
};

struct Module {
    u64 handle = 0;
    bool binary = false;  // a cubin or fat binary; where nothing in it is understood, any name is accepted
    std::map<std::string, std::unique_ptr<Function>> functions;
    std::map<std::string, check::Facts> facts;
    check::Variables variables;
    // Of the variables that the program has named: in each context memory of its own. Managed ones have one for all.
    std::map<std::pair<std::string, const Context*>, u64> places;
    std::vector<u64> function_handles;
};

// Modules and libraries share a table, functions and kernels another: the driver's two views of the same things.
HandleTable<Module>& modules();
HandleTable<Function>& functions();

// A launch that is not queued yet.
struct Launchable {
    Work work;
    std::function<check::Time(Stream*)> watch;  // reports the launch on this stream
};
// The extents of the grid and of a block.
using LaunchShape = std::array<unsigned, 6>;
CUresult prepare_launch(const Function* function, const Context* context, const LaunchShape& shape, void** pointers,
                        void** extra, Launchable* made);

Module* load_module(const void* image);
Function* get_function(Module* module, const char* name);

}  // namespace sim
