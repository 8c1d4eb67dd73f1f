// Preloaded: while fail_in() names a library, `new` of that library fails.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <new>

static const char* failing = nullptr;

extern "C" void fail_in(const char* library) { failing = library; }

void* operator new(std::size_t bytes) {
    Dl_info caller;
    bool found = failing && dladdr(__builtin_return_address(0), &caller) && caller.dli_fname;
    void* memory = found && std::strstr(caller.dli_fname, failing) ? nullptr : std::malloc(bytes);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
