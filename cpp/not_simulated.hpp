// Functions of a simulated library that are not simulated: each logs its name once, and the library counts those that
// were called. Included once in each library.
#pragma once

#include <atomic>
#include <cstdio>

namespace stubs {

constexpr int kMost = 512;  // names that are kept
inline std::atomic<const char*> called[kMost];
inline std::atomic<int> number_called;

template <class Status>
Status not_simulated(const char* name, std::atomic<bool>& said, Status status) {
    if (!said.exchange(true)) {
        fprintf(stderr, "[xlogmem.check] %s is not simulated\n", name);
        if (int place = number_called++; place < kMost) called[place] = name;
    }
    return status;
}

}  // namespace stubs

// The name of the nth stub that was called; NULL: there are no more.
extern "C" __attribute__((visibility("default"))) const char* xlogmem_called_stub(int nth) {
    return nth < stubs::kMost ? stubs::called[nth].load() : nullptr;
}

// A function that returns this status: that it is not supported.
#define NOT_SIMULATED(name, status) \
    extern "C" __attribute__((visibility("default"))) int name() { \
        static std::atomic<bool> said; \
        return stubs::not_simulated(#name, said, int(status)); \
    }
