// Logging and the settings read from the environment.
#include "base.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace sim {

void log_line(const char* format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[xlogmem.sim] %s\n", text);  // one call, so that lines of several threads do not mix
}

Policy policy_from_name(const char* name) {
    if (!strcmp(name, "min")) return Policy::Min;
    if (!strcmp(name, "max")) return Policy::Max;
    if (!strcmp(name, "seeded")) return Policy::Seeded;
    return Policy::Eager;
}

void uuid_of(int number, unsigned char (&bytes)[16]) {
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, "xlogmem-sim", 11);
    bytes[15] = static_cast<unsigned char>(number);
}

namespace {

std::string uuid_text(int number) {
    unsigned char bytes[16];
    uuid_of(number, bytes);
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits;
    }
    return text;
}

// The device that an entry names: by number, or by the beginning of its UUID that no other device has.  Else -1.
int device_named(const std::string& entry, int machine) {
    if (!entry.compare(0, 4, "GPU-")) {
        int found = -1;
        for (int number = 0; number < machine; number++) {
            if (uuid_text(number).compare(0, entry.size(), entry)) continue;
            if (found >= 0) return -1;
            found = number;
        }
        return found;
    }
    char* end = nullptr;
    const long number = strtol(entry.c_str(), &end, 10);
    return end != entry.c_str() && !*end && number >= 0 && number < machine ? int(number) : -1;
}

// The list as the driver reads it: an entry that names no device, or a device again, hides itself and all entries after
// it.
std::vector<int> visible_devices(const char* list, int machine) {
    std::vector<int> found;
    std::istringstream entries(list);
    std::string entry;
    while (std::getline(entries, entry, ',')) {
        entry.erase(0, entry.find_first_not_of(' '));
        entry.erase(entry.find_last_not_of(' ') + 1);
        const int number = device_named(entry, machine);
        if (number < 0 || std::find(found.begin(), found.end(), number) != found.end()) break;
        found.push_back(number);
    }
    return found;
}

}  // namespace

Config Config::from_environment() {
    Config config;
    if (auto text = getenv("XLOGMEM_SIM_POLICY")) config.policy = policy_from_name(text);
    if (auto text = getenv("XLOGMEM_SIM_SEED")) config.seed = strtoull(text, nullptr, 0);
    if (auto text = getenv("XLOGMEM_SIM_VERSION")) config.version = atoi(text);
    if (auto text = getenv("XLOGMEM_SIM_DEVICES")) config.machine = std::clamp(atoi(text), 0, kMaxDevices);
    if (auto text = getenv("CUDA_VISIBLE_DEVICES"))
        config.visible = visible_devices(text, config.machine);
    else
        for (int number = 0; number < config.machine; number++) config.visible.push_back(number);
    config.devices = int(config.visible.size());
    if (auto text = getenv("XLOGMEM_SIM_PEERS")) {
        config.peers = strcmp(text, "none") != 0;
        if (config.peers && *text && strcmp(text, "all"))
            log_line("XLOGMEM_SIM_PEERS=%s is neither 'all' nor 'none': taken for 'all'", text);
    }
    if (auto text = getenv("XLOGMEM_SIM_RACES")) config.races = atoi(text) != 0;
    if (auto text = getenv("XLOGMEM_SIM_FREE_WAITS")) config.free_waits = atoi(text) != 0;
    if (auto text = getenv("XLOGMEM_SIM_TRACE")) config.trace = atoi(text);
    if (auto text = getenv("XLOGMEM_SIM_MEMORY")) config.memory = strtoull(text, nullptr, 0);
    if (auto text = getenv("XLOGMEM_SIM_ARENA")) config.arena = strtoull(text, nullptr, 0);
    if (auto text = getenv("XLOGMEM_SIM_QUEUE")) config.queue_limit = strtoull(text, nullptr, 0);
    if (auto text = getenv("XLOGMEM_SIM_DEADLOCK_S")) config.deadlock_seconds = atof(text);
    return config;
}

}  // namespace sim
