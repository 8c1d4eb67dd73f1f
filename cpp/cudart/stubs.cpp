// Functions that are not simulated: each logs its name once, and returns that it is not supported.
#include "runtime.hpp"

#include <atomic>
#include <cstdio>

namespace {

int not_simulated(const char* name, std::atomic<bool>& said) {
    if (!said.exchange(true)) fprintf(stderr, "[xlogmem.check] %s is not simulated\n", name);
    return cudart::kNotSupported;
}

}  // namespace

#define STUB(name) \
    RUNTIME int name() { \
        static std::atomic<bool> said; \
        return not_simulated(#name, said); \
    }
#include "names.hpp"
