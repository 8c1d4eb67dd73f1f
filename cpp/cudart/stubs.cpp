// Functions that are not simulated: each logs its name once, and returns that it is not supported.
#include "runtime.hpp"

#include <atomic>
#include <cstdio>

namespace {

constexpr int kMost = 512;  // of the names below
std::atomic<const char*> called[kMost];
std::atomic<int> number_called;

int not_simulated(const char* name, std::atomic<bool>& said) {
    if (!said.exchange(true)) {
        fprintf(stderr, "[xlogmem.check] %s is not simulated\n", name);
        if (int place = number_called++; place < kMost) called[place] = name;
    }
    return cudart::kNotSupported;
}

}  // namespace

// The name of the nth stub that was called; NULL: there are no more.
RUNTIME const char* __cudaCalledStub(int nth) { return nth < kMost ? called[nth].load() : nullptr; }

#define STUB(name) \
    RUNTIME int name() { \
        static std::atomic<bool> said; \
        return not_simulated(#name, said); \
    }
#include "names.hpp"
