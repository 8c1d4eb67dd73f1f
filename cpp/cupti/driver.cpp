// Finding the driver's functions: see driver.hpp.
#include "driver.hpp"

namespace check {

namespace {

Driver found() {
    Driver driver;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    find_symbol(library, "cuFuncGetParamInfo", driver.function_parameter);
    find_symbol(library, "cuKernelGetParamInfo", driver.kernel_parameter);
    find_symbol(library, "cuMemGetAddressRange_v2", driver.address_range);
    find_symbol(library, "cuDeviceGetAttribute", driver.device_attribute);
    find_symbol(library, "cuDevicePrimaryCtxGetState", driver.primary_state);
    driver.complete = find_symbol(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode) &&
                      find_symbol(library, "cuModuleLoadData", driver.load_module) &&
                      find_symbol(library, "cuModuleGetFunction", driver.get_function) &&
                      find_symbol(library, "cuMemAlloc_v2", driver.allocate) &&
                      find_symbol(library, "cuMemHostRegister_v2", driver.register_host) &&
                      find_symbol(library, "cuMemsetD32Async", driver.fill) &&
                      find_symbol(library, "cuLaunchKernel", driver.launch);
    return driver;
}

}  // namespace

const Driver& Driver::get() {
    static const Driver driver = found();
    return driver;
}

}  // namespace check
