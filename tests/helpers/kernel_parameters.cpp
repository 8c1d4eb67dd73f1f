// What the driver says of the parameters of kernels, for the scenes of scenes_of_launches.py, of primary contexts, of
// memory that no call has allocated, and of what kernels reach.
#include <cstddef>
#include <map>
#include <vector>

using Parameters = std::vector<std::pair<std::size_t, std::size_t>>;  // offset and bytes

namespace {

int changed = 0, active = 0, reached = 0;
unsigned long long variables = 0, bytes_of_variables = 0;
void (*called)() = nullptr;

int answer(const std::map<long, Parameters>& kernels, long kernel, std::size_t index, std::size_t* offset,
           std::size_t* bytes) {
    auto found = kernels.find(kernel);
    if (found == kernels.end()) return 400;
    if (index >= found->second.size()) return 1;
    *offset = found->second[index].first;
    *bytes = found->second[index].second;
    return 0;
}

}  // namespace

extern "C" {

void change_kernel(int to) { changed = to; }

// The state of all primary contexts; the function is called when the driver is to say it.
void set_primary(int to, void (*when_called)()) {
    active = to;
    called = when_called;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
    if (called) called();
    *flags = 0;
    *is_active = active;
    return device < 8 ? 0 : 101;
}

// A module has its variables there from now on.
void put_variables(unsigned long long begin, unsigned long long bytes) {
    variables = begin;
    bytes_of_variables = bytes;
}
int cuMemGetAddressRange_v2(unsigned long long* begin, std::size_t* bytes, unsigned long long address) {
    if (address - variables >= bytes_of_variables) return 500;
    *begin = variables;
    *bytes = bytes_of_variables;
    return 0;
}

void let_kernels_reach_all(int to) { reached = to; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 88 && reached;  // CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
    return 0;
}

int cuFuncGetParamInfo(long function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    static const Parameters before{{0, 8}, {8, 4}}, after{{0, 4}, {8, 8}};
    return answer({{0xF100, before}, {0xF200, {{0, 4}, {8, 24}}}, {0xF500, {{0, 8}, {8, 8}}},
                   {0xF600, changed ? after : before}, {0xF700, {{0, 4}, {4, 12}}},
                   {0xF800, {{0, 3144}, {3144, 1}}},                                          // PyTorch's: scenes_of_lists.py
                   {0xF900, {{0, 8}, {8, 2720}, {2728, 32}, {2760, 4}, {2764, 4}}},
                   {0xFA00, {{0, 8}, {8, 3200}, {3208, 4}}},
                   {0xFB00, {{0, 4}, {4, 4}, {8, 16}}},
                   {0xFC00, {{0, 3520}, {3520, 1}}},
                   {0xFD00, {{0, 3336}, {3336, 1}}}},
                  function, index, offset, bytes);
}

int cuKernelGetParamInfo(long kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    return answer({{0xF300, {{0, 8}}}}, kernel, index, offset, bytes);
}
}
