// Logging, and names of policies and devices.
#include "base.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

namespace sim {

// Names in it are those of programs: neither a terminal nor a CI service finds a command (xlogmem/_base/texts.py).
static std::string printable(const char* text) {
    std::string line;
    for (const char* at = text; *at; at++) {
        const bool hash = *at == '#' && at != text && at[-1] == '#';
        if (*at >= ' ' && *at <= '~' && !hash) {
            line += *at;
            continue;
        }
        char escape[5];
        snprintf(escape, sizeof escape, "\\x%02x", (unsigned char)*at);
        line += escape;
    }
    return line;
}

void log_line(const char* format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // One call, so that lines of several threads do not mix.
    fprintf(stderr, "[xlogmem.sim] %s\n", printable(text).c_str());
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
