// In the place of CUPTI: subscribes with the result that the environment names, and counts what is enabled.
//
// CUPTI_VERSION is its version. The newer form of the subscription gives the result CUPTI_SHARED where sharing is asked
// for, and else CUPTI_ALONE; CUPTI_OTHER is the subscriber that is in the way. CUPTI_LOG names a file for what is called.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

void log(const char* what) {
    const char* path = std::getenv("CUPTI_LOG");
    std::FILE* file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    std::fprintf(file, "%s\n", what);
    std::fclose(file);
}

struct Params {
    std::size_t size;
    const char* name;
    char* other;
    std::size_t other_size;
    std::uint8_t shared, padding[7];
};

}  // namespace

extern "C" {

int enabled = 0;

int cuptiGetVersion(std::uint32_t* version) {
    *version = std::uint32_t(number("CUPTI_VERSION", 28));
    return 0;
}

int cuptiSubscribe(void** subscriber, void*, void*) {
    log("older");
    *subscriber = &enabled;
    return number("CUPTI_RESULT", 0);
}

int cuptiSubscribe_v2(void** subscriber, void*, void*, Params* wanted) {
    if (wanted->size != 40 || wanted->other_size < 64 || std::strlen(wanted->name) > 53) return 1;
    log(wanted->shared ? "shared" : "alone");
    *subscriber = &enabled;
    int result = number(wanted->shared ? "CUPTI_SHARED" : "CUPTI_ALONE", 0);
    const char* other = std::getenv("CUPTI_OTHER");
    if (result && other) std::strncpy(wanted->other, other, wanted->other_size);
    return result;
}

int cuptiEnableCallback(unsigned enable, void*, unsigned, unsigned) {
    enabled += int(enable);
    return 0;
}
}
