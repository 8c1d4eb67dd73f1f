// Logging, and names of policies and devices.
#include "base.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace sim {

void log_line(const char* format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[xlogmem.sim] %s\n", text);  // one call, so that lines of several threads do not mix
}

bool policy_from_name(const char* name, Policy* policy) {
    constexpr const char* kNames[] = {"eager", "min", "max", "seeded"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, kNames[i])) continue;
        *policy = Policy(i);
        return true;
    }
    return false;
}

void uuid_of(int number, unsigned char (&bytes)[16]) {
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, "xlogmem-sim", 11);
    bytes[15] = static_cast<unsigned char>(number);
}

}  // namespace sim
