// Makes the calls that it is told to: compiled under the names of libraries, which then are the callers.
// No call is a tail call, which would leave no frame.
void pass_on(void (*call)(unsigned, const void*), unsigned number, const void* data) {
    call(number, data);
    __asm__ volatile("");
}

// The same by way of another library.
typedef void (*pass)(void (*call)(unsigned, const void*), unsigned number, const void* data);
void pass_by(pass other, void (*call)(unsigned, const void*), unsigned number, const void* data) {
    other(call, number, data);
    __asm__ volatile("");
}

// cuEventQuery or cuStreamQuery, or another library's `query` …
int query(int (*call)(void*), void* handle) {
    int result = call(handle);
    __asm__ volatile("");
    return result;
}
// … which is called so.
int query_by(int (*other)(int (*)(void*), void*), int (*call)(void*), void* handle) {
    int result = other(call, handle);
    __asm__ volatile("");
    return result;
}
