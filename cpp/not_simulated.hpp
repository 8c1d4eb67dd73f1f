// Functions of a simulated library that are not simulated: the simulated driver names each once, and the check in its notes.
#pragma once

// Of the simulated driver; `name` lives as long as the process.
extern "C" void xsim_not_simulated(const char* name);

// A function that returns this status: that it is not supported.
#define NOT_SIMULATED(name, status) \
    extern "C" __attribute__((visibility("default"))) int name() { \
        [[maybe_unused]] static const bool said = (xsim_not_simulated(#name), true); \
        return int(status); \
    }
