// Logging and the settings read from the environment.
#include "base.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
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

Policy policy_from_name(const char* name) {
    if (!strcmp(name, "min")) return Policy::Min;
    if (!strcmp(name, "max")) return Policy::Max;
    if (!strcmp(name, "seeded")) return Policy::Seeded;
    return Policy::Eager;
}

Config Config::from_environment() {
    Config config;
    if (auto text = getenv("XLOGMEM_SIM_POLICY")) config.policy = policy_from_name(text);
    if (auto text = getenv("XLOGMEM_SIM_SEED")) config.seed = strtoull(text, nullptr, 0);
    if (auto text = getenv("XLOGMEM_SIM_VERSION")) config.version = atoi(text);
    if (auto text = getenv("XLOGMEM_SIM_DEVICES")) config.devices = atoi(text);
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
