// Entry points: where managed memory is to be. Nothing moves in the simulator, and what was requested can be read back.
// A prefetch and a change of the attachment are operations of their stream that touch no byte.
#include "calls.hpp"
#include "capture.hpp"
#include "memory.hpp"

#include <algorithm>

using namespace sim;

namespace {

bool is_processor(int type) { return type == CU_MEM_LOCATION_TYPE_DEVICE || type == CU_MEM_LOCATION_TYPE_HOST; }

CUresult check_place(CUmemLocation place) {
    if (place.type == CU_MEM_LOCATION_TYPE_DEVICE) return check_device(place.id);
    bool known = place.type == CU_MEM_LOCATION_TYPE_HOST || place.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ||
                 (place.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && place.id == 0);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUmemLocation place_of(CUdevice device) {
    CUmemLocation place = {};
    place.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    place.id = device == CU_DEVICE_CPU ? 0 : device;
    return place;
}

// A number for each place: a device, -1 for the host, -2 for none.
int number_of(CUmemLocation place) { return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : CU_DEVICE_CPU; }

// What was requested for a part of managed memory, from its address on.
struct Wanted {
    bool read_mostly = false;
    int preferred = CU_DEVICE_INVALID, prefetched = CU_DEVICE_INVALID;
    std::vector<int> accessed_by;
};
using Parts = std::map<u64, Wanted>;

struct Wishes {
    u64 number = 0;  // of the allocation: another one may have the same address
    Parts parts;
};

// The allocation that holds the range; nullptr: none that is managed.
Wishes* wishes_of(u64 address, u64 bytes) {
    static auto& all = *new std::map<u64, Wishes>;
    if (!bytes || !is_managed(address)) return nullptr;
    auto found = --memory().pinned.upper_bound(address);
    if (bytes > found->first + found->second.bytes - address) return nullptr;
    Wishes& wishes = all[found->first];
    if (wishes.number != found->second.number) wishes = {found->second.number, {{found->first, {}}}};
    return &wishes;
}

constexpr u64 kPage = 4096;

Parts::iterator cut(Parts& parts, u64 at) {
    auto found = --parts.upper_bound(std::max(at, parts.begin()->first));
    return found->first >= at ? found : parts.emplace(at, found->second).first;
}

// Calls visit(part) for each part of the pages that the range is in.
template <class Visit>
void each_part(Wishes& wishes, u64 address, u64 bytes, Visit&& visit) {
    auto part = cut(wishes.parts, address / kPage * kPage);
    u64 end = (address + bytes + kPage - 1) / kPage * kPage;
    cut(wishes.parts, end);
    for (; part != wishes.parts.end() && part->first < end; ++part) visit(part->second);
}

CUresult order_nothing(Lock& lock, CUstream handle, const std::function<CUresult(Stream*)>& check) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    REFUSE_IF(check(stream));
    REFUSE_IF(check_not_capturing(stream));
    Work work;
    work.name = this_thread().call;
    return submit(lock, stream, std::move(work));
}

CUresult prefetch(Lock& lock, u64 address, u64 bytes, CUmemLocation place, unsigned flags, CUstream handle) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(check_place(place));
    Wishes* wishes = wishes_of(address, bytes);
    if (!wishes) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(order_nothing(lock, handle, [](Stream*) { return CUDA_SUCCESS; }));
    // A full queue releases the lock: the memory may be gone.
    if ((wishes = wishes_of(address, bytes)))
        each_part(*wishes, address, bytes, [&](Wanted& one) { one.prefetched = number_of(place); });
    return CUDA_SUCCESS;
}

CUresult advise(u64 address, u64 bytes, CUmem_advise advice, CUmemLocation place) {
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    bool of_accesses = advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if (of_accesses && !is_processor(place.type)) return CUDA_ERROR_INVALID_VALUE;
    if (of_accesses || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) REFUSE_IF(check_place(place));
    Wishes* wishes = wishes_of(address, bytes);
    if (!wishes) return CUDA_ERROR_INVALID_VALUE;
    each_part(*wishes, address, bytes, [&](Wanted& one) {
        auto known = std::find(one.accessed_by.begin(), one.accessed_by.end(), number_of(place));
        bool is_known = known != one.accessed_by.end();
        switch (advice) {
            case CU_MEM_ADVISE_SET_READ_MOSTLY: one.read_mostly = true; break;
            case CU_MEM_ADVISE_UNSET_READ_MOSTLY: one.read_mostly = false; break;
            case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: one.preferred = number_of(place); break;
            case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: one.preferred = CU_DEVICE_INVALID; break;
            case CU_MEM_ADVISE_SET_ACCESSED_BY:
                if (!is_known) one.accessed_by.push_back(number_of(place));
                break;
            default:
                if (is_known) one.accessed_by.erase(known);
        }
    });
    return CUDA_SUCCESS;
}

// The same of all parts, or nothing: CU_DEVICE_INVALID.
struct Common {
    bool any = false, read_mostly = true;
    int preferred = CU_DEVICE_INVALID, prefetched = CU_DEVICE_INVALID;
    std::vector<int> accessed_by;

    void add(const Wanted& one) {
        if (!std::exchange(any, true)) {
            preferred = one.preferred, prefetched = one.prefetched, accessed_by = one.accessed_by;
        }
        read_mostly &= one.read_mostly;
        if (preferred != one.preferred) preferred = CU_DEVICE_INVALID;
        if (prefetched != one.prefetched) prefetched = CU_DEVICE_INVALID;
        check::remove_if(accessed_by, [&](int processor) {
            return std::find(one.accessed_by.begin(), one.accessed_by.end(), processor) == one.accessed_by.end();
        });
    }
};

int type_of_place(int number) {
    return number == CU_DEVICE_INVALID ? CU_MEM_LOCATION_TYPE_INVALID
           : number == CU_DEVICE_CPU   ? CU_MEM_LOCATION_TYPE_HOST
                                       : CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult range_attribute(void* data, size_t size, CUmem_range_attribute attribute, u64 address, u64 bytes) {
    Wishes* wishes = wishes_of(address, bytes);
    bool is_list = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    if (!data || !wishes || !size || size % sizeof(int) || (!is_list && size != sizeof(int)))
        return CUDA_ERROR_INVALID_VALUE;
    Common common;
    each_part(*wishes, address, bytes, [&](const Wanted& one) { common.add(one); });
    int* numbers = static_cast<int*>(data);
    switch (int(attribute)) {
        case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: return answer<int>(data, common.read_mostly);
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: return answer<int>(data, common.preferred);
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: return answer<int>(data, common.prefetched);
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: return answer<int>(data, type_of_place(common.preferred));
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
            return answer<int>(data, type_of_place(common.prefetched));
        case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
            for (size_t i = 0; i < size / sizeof(int); i++)
                numbers[i] = i < common.accessed_by.size() ? common.accessed_by[i] : CU_DEVICE_INVALID;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult attach(Lock& lock, CUstream handle, u64 address, u64 bytes, unsigned flags) {
    bool one_flag = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE;
    if (!one_flag || !is_managed(address)) return CUDA_ERROR_INVALID_VALUE;
    auto found = --memory().pinned.upper_bound(address);
    if (bytes && (address != found->first || bytes != found->second.bytes)) return CUDA_ERROR_INVALID_VALUE;
    return order_nothing(lock, handle, [&](Stream* stream) {
        return flags == CU_MEM_ATTACH_SINGLE && stream->is_legacy() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    });
}

}  // namespace

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    return api_call(CALL("cuMemPrefetchAsync"),
                    [&](Lock& lock) { return prefetch(lock, address, bytes, place_of(device), 0, stream); });
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation place, unsigned flags,
                                      CUstream stream) {
    return api_call(CALL("cuMemPrefetchAsync"),
                    [&](Lock& lock) { return prefetch(lock, address, bytes, place, flags, stream); });
}

EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
    return api_call(CALL("cuMemAdvise"), [&](Lock&) { return advise(address, bytes, advice, place_of(device)); });
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation place) {
    return api_call(CALL("cuMemAdvise"), [&](Lock&) { return advise(address, bytes, advice, place); });
}

EXPORT CUresult cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address,
                                       size_t bytes) {
    return api_call(CALL("cuMemRangeGetAttribute"),
                    [&](Lock&) { return range_attribute(data, size, attribute, address, bytes); });
}

EXPORT CUresult cuMemRangeGetAttributes(void** data, size_t* sizes, CUmem_range_attribute* attributes, size_t count,
                                        CUdeviceptr address, size_t bytes) {
    return api_call(CALL("cuMemRangeGetAttributes"), [&](Lock&) -> CUresult {
        if (!data || !sizes || !attributes || !count) return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < count; i++) REFUSE_IF(range_attribute(data[i], sizes[i], attributes[i], address, bytes));
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
    return api_call(CALL("cuStreamAttachMemAsync"),
                    [&](Lock& lock) { return attach(lock, stream, address, bytes, flags); });
}
