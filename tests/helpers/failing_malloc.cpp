// Makes one allocation of xlogmem's own modules fail.  Preloaded (LD_PRELOAD) by allocation_failures.py.
//
// An allocation is xlogmem's if the call returns into one of its modules, which are files below the folder
// FAILING_MALLOC_PACKAGE.  Those of the interpreter, of the C++ library and of the simulated driver succeed, and are
// not counted.  Needs the GNU C library.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <new>

extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);

namespace {
std::atomic<long> seen{0};
std::atomic<long> failing{0};           // the one that fails; 0: none
std::atomic<bool> counting{false};
const char* package = nullptr;

bool is_ours(void* caller) {
    Dl_info info;
    if (!package || !dladdr(caller, &info) || !info.dli_fname) return false;
    const std::size_t length = std::strlen(package);
    if (std::strncmp(info.dli_fname, package, length)) return false;
    const char* inside = info.dli_fname + length;
    return std::strncmp(inside, "/sim/", 5) && std::strncmp(inside, "/bench/", 7);
}

bool fails(void* caller) {
    return counting && is_ours(caller) && ++seen == failing;
}

void* from_new(std::size_t size, void* caller) {
    void* memory = fails(caller) ? nullptr : __libc_malloc(size ? size : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}

struct FromTheStart {                   // for allocations while modules are imported
    FromTheStart() {
        package = std::getenv("FAILING_MALLOC_PACKAGE");
        if (const char* wanted = std::getenv("FAILING_MALLOC_NUMBER")) {
            failing = std::atol(wanted);
            counting = true;
        }
    }
} from_the_start;
}  // namespace

#define FAIL_OR(call) \
    if (fails(__builtin_return_address(0))) { \
        errno = ENOMEM; \
        return nullptr; \
    } \
    return call

extern "C" {
void xlogmem_count_allocations(long the_one_that_fails) {
    seen = 0;
    failing = the_one_that_fails;
    counting = true;
}
long xlogmem_allocations_counted() {
    counting = false;
    return seen;
}
void* malloc(std::size_t size) { FAIL_OR(__libc_malloc(size)); }
void* calloc(std::size_t count, std::size_t size) { FAIL_OR(__libc_calloc(count, size)); }
void* realloc(void* memory, std::size_t size) { FAIL_OR(__libc_realloc(memory, size)); }
void* aligned_alloc(std::size_t alignment, std::size_t size) { FAIL_OR(__libc_memalign(alignment, size)); }
void* memalign(std::size_t alignment, std::size_t size) { FAIL_OR(__libc_memalign(alignment, size)); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
    *memory = fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}
}

void* operator new(std::size_t size) { return from_new(size, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return from_new(size, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::nothrow_t const&) noexcept { FAIL_OR(__libc_malloc(size ? size : 1)); }
void* operator new[](std::size_t size, std::nothrow_t const&) noexcept { FAIL_OR(__libc_malloc(size ? size : 1)); }
