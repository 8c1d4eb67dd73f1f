// The properties of a device in one structure. Each number is an attribute of the driver; 0 where the driver knows
// none.
#include "runtime.hpp"

#include <cstring>

using namespace cudart;

namespace {

// The structure of driver_types.h. CUDA 13 took eight fields away, and made a part of the reserved space into fields
// that are not written here.
struct Properties {
    char name[256];
    CUuuid uuid;
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
#if CUDART_VERSION < 13000
    int clockRate;
#endif
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
#if CUDART_VERSION < 13000
    int deviceOverlap;
#endif
    int multiProcessorCount;
#if CUDART_VERSION < 13000
    int kernelExecTimeoutEnabled;
#endif
    int integrated, canMapHostMemory;
#if CUDART_VERSION < 13000
    int computeMode;
#endif
    int maxTexture1D, maxTexture1DMipmap;
#if CUDART_VERSION < 13000
    int maxTexture1DLinear;
#endif
    int texturesAndSurfaces[37];
    size_t surfaceAlignment;
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount,
        unifiedAddressing;
#if CUDART_VERSION < 13000
    int memoryClockRate;
#endif
    int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported,
        globalL1CacheSupported, localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
#if CUDART_VERSION < 13000
    int singleToDoublePrecisionPerfRatio;
#endif
    int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem,
        cooperativeLaunch;
#if CUDART_VERSION < 13000
    int cooperativeMultiDeviceLaunch;
#endif
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor,
        accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported,
        timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
    unsigned gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers, reserved[63];
};
#if CUDART_VERSION < 13000
static_assert(sizeof(Properties) == 1032 && offsetof(Properties, concurrentKernels) == 576 &&
                  offsetof(Properties, hostRegisterSupported) == 728,
              "as cudaDeviceProp of CUDA 12.9");
#else
static_assert(sizeof(Properties) == 1008 && offsetof(Properties, concurrentKernels) == 560 &&
                  offsetof(Properties, hostRegisterSupported) == 704,
              "as cudaDeviceProp of CUDA 13.0");
#endif

class DeviceAttributes {
  public:
    explicit DeviceAttributes(CUdevice device) : device_(device) {}

    template <class Number>
    void read(Number& into, CUdevice_attribute attribute) const {
        int value = 0;
        cuDeviceGetAttribute(&value, attribute, device_);
        into = Number(value);
    }

  private:
    CUdevice device_;
};

void read_limits(Properties& p, const DeviceAttributes& of) {
    of.read(p.sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    of.read(p.regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    of.read(p.warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    of.read(p.memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    of.read(p.maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    of.read(p.maxThreadsDim[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    of.read(p.maxThreadsDim[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    of.read(p.maxThreadsDim[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    of.read(p.maxGridSize[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    of.read(p.maxGridSize[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    of.read(p.maxGridSize[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    of.read(p.totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    of.read(p.textureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    of.read(p.texturePitchAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
    of.read(p.maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    of.read(p.sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    of.read(p.regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    of.read(p.sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    of.read(p.maxBlocksPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    of.read(p.reservedSharedMemPerBlock, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
}

void read_hardware(Properties& p, const DeviceAttributes& of) {
    of.read(p.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    of.read(p.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    of.read(p.multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    of.read(p.integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
    of.read(p.ECCEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
    of.read(p.pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    of.read(p.pciDeviceID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    of.read(p.pciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    of.read(p.asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
    of.read(p.memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    of.read(p.l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    of.read(p.persistingL2CacheMaxSize, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
}

void read_abilities(Properties& p, const DeviceAttributes& of) {
    of.read(p.canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    of.read(p.concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
    of.read(p.unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    of.read(p.streamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
    of.read(p.managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
    of.read(p.pageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    of.read(p.concurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
    of.read(p.cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
    of.read(p.hostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
    of.read(p.memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    of.read(p.memoryPoolSupportedHandleTypes, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
}

}  // namespace

// What programs that are compiled for CUDA 12 call by the first name.
#if CUDART_VERSION < 13000
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif
RUNTIME Error cudaGetDeviceProperties(Properties* properties, int device) {
    if (CUresult refused = cuInit(0)) return done(refused);
    memset(properties, 0, sizeof *properties);
    if (CUresult refused = cuDeviceGetName(properties->name, sizeof properties->name, device)) return done(refused);
    if (CUresult refused = cuDeviceTotalMem_v2(&properties->totalGlobalMem, device)) return done(refused);
    cuDeviceGetUuid_v2(&properties->uuid, device);
    DeviceAttributes of(device);
    read_limits(*properties, of);
    read_hardware(*properties, of);
    read_abilities(*properties, of);
    return 0;
}

#undef cudaGetDeviceProperties
