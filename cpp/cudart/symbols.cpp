// Variables of the device, as the compiler's own code registers them: `__device__` and `__constant__`.
//
// Each gets memory of its own, on each device where the program names it. The values that the program gave it in its
// source are not there: as after a kernel, which computes nothing, there are zeros.
#include "copies.hpp"

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

using namespace cudart;

namespace {

constexpr CUresult kInvalidSymbol = CUresult(13);

std::mutex variables_mutex;

// By the addresses of their stand-ins on the host.
std::map<const void*, size_t>& sizes() {
    static auto& all = *new std::map<const void*, size_t>;
    return all;
}
std::map<std::pair<const void*, int>, CUdeviceptr>& places() {
    static auto& all = *new std::map<std::pair<const void*, int>, CUdeviceptr>;
    return all;
}

CUresult size_of(const void* symbol, size_t* bytes) {
    std::lock_guard<std::mutex> guard(variables_mutex);
    auto found = sizes().find(symbol);
    if (found == sizes().end()) return kInvalidSymbol;
    *bytes = found->second;
    return CUDA_SUCCESS;
}

CUresult address_of(const void* symbol, CUdeviceptr* address) {
    size_t bytes;
    CUdevice device;
    if (CUresult refused = size_of(symbol, &bytes)) return refused;
    if (CUresult refused = cuCtxGetDevice(&device)) return refused;
    std::lock_guard<std::mutex> guard(variables_mutex);
    CUdeviceptr& place = places()[{symbol, device}];
    if (!place)
        if (CUresult refused = cuMemAlloc_v2(&place, bytes)) return refused;
    *address = place;
    return CUDA_SUCCESS;
}

}  // namespace

void cudart::forget_variables(CUdevice device) {
    std::lock_guard<std::mutex> guard(variables_mutex);
    for (auto place = places().begin(); place != places().end();)
        place = place->first.second == device ? places().erase(place) : std::next(place);
}

namespace {

// `copy` gets the address of these bytes of the variable.
template <class Copy>
Error with_part(const void* symbol, size_t bytes, size_t offset, Copy&& copy) {
    return with_context([&]() -> CUresult {
        size_t size;
        CUdeviceptr address;
        if (CUresult refused = size_of(symbol, &size)) return refused;
        if (offset > size || bytes > size - offset) return CUDA_ERROR_INVALID_VALUE;
        CUresult refused = address_of(symbol, &address);
        return refused ? refused : copy(reinterpret_cast<void*>(address + offset));
    });
}

}  // namespace

RUNTIME void __cudaRegisterVar(void**, char* symbol, char*, const char*, int, size_t bytes, int, int) {
    std::lock_guard<std::mutex> guard(variables_mutex);
    sizes()[symbol] = bytes;
}
RUNTIME void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

RUNTIME Error cudaGetSymbolAddress(CUdeviceptr* address, const void* symbol) { DRIVER(address_of(symbol, address)); }
RUNTIME Error cudaGetSymbolSize(size_t* bytes, const void* symbol) { DRIVER(size_of(symbol, bytes)); }

RUNTIME Error cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int way) {
    return with_part(symbol, bytes, offset, [&](void* to) { return CUresult(cudaMemcpy(to, from, bytes, way)); });
}
RUNTIME Error cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, int way,
                                      CUstream stream) {
    return with_part(symbol, bytes, offset,
                     [&](void* to) { return CUresult(cudaMemcpyAsync(to, from, bytes, way, stream)); });
}
RUNTIME Error cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, int way) {
    return with_part(symbol, bytes, offset, [&](void* from) { return CUresult(cudaMemcpy(to, from, bytes, way)); });
}
RUNTIME Error cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int way,
                                        CUstream stream) {
    return with_part(symbol, bytes, offset,
                     [&](void* from) { return CUresult(cudaMemcpyAsync(to, from, bytes, way, stream)); });
}
