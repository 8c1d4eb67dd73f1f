// PyTorch's exceptions, and calls of an allocator's functions as its C++ makes them: they catch what is thrown.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#define EXPORTED __attribute__((visibility("default")))

namespace c10 {

template <class T>
class LazyValue;

class EXPORTED Error : public std::exception {
public:
    Error(std::string text, std::shared_ptr<const LazyValue<std::string>> trace, const void* caller);
    const char* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
    std::shared_ptr<const LazyValue<std::string>> trace_;
    const void* caller_;
};

Error::Error(std::string text, std::shared_ptr<const LazyValue<std::string>> trace, const void* caller)
    : text_(text), trace_(trace), caller_(caller) {}

class EXPORTED OutOfMemoryError : public Error {
    using Error::Error;
};

}  // namespace c10

enum Kind { DONE, OUT_OF_MEMORY, OTHER };

template <class Call>
int caught(char* text, size_t room, Call&& call) {
    try {
        call();
        return DONE;
    } catch (const c10::OutOfMemoryError& error) {
        snprintf(text, room, "%s", error.what());
        return OUT_OF_MEMORY;
    } catch (const std::exception& error) {
        snprintf(text, room, "%s", error.what());
        return OTHER;
    }
}

extern "C" EXPORTED int call_allocate(void* (*function)(intptr_t, int, void*), intptr_t size, int device, void* stream,
                                      void** ptr, char* text, size_t room) {
    return caught(text, room, [&] { *ptr = function(size, device, stream); });
}

extern "C" EXPORTED int call_record(void (*function)(void*, void*), void* ptr, void* stream, char* text, size_t room) {
    return caught(text, room, [&] { function(ptr, stream); });
}

// What a compiler makes of a throw elsewhere in the library: the class's table and type are exported.
extern "C" EXPORTED void never_called() { throw c10::OutOfMemoryError("", nullptr, nullptr); }
