// In the place of CUPTI: subscribes with the result that the environment names, and counts what is enabled.
#include <cstdlib>

extern "C" {

int enabled = 0;

int cuptiSubscribe(void** subscriber, void*, void*) {
    *subscriber = &enabled;
    const char* result = std::getenv("CUPTI_RESULT");
    return result ? std::atoi(result) : 0;
}

int cuptiEnableCallback(unsigned enable, void*, unsigned, unsigned) {
    enabled += int(enable);
    return 0;
}
}
