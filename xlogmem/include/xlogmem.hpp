//! xlogmem for C++17: launches that say which memory they read and write.
//!
//!     xlogmem::import_table();                                            // once, with the GIL
//!     xlogmem::runtime runtime = xlogmem::runtime::of_device(0);          // with the GIL
//!     {
//!         xlogmem::launch use{runtime, stream, xlogmem::reads(a, b), xlogmem::writes(c)};
//!         kernel<<<grid, block, 0, stream>>>(a, b, c);
//!     }
//!
//! The constructor of `launch` queues the waits that make the kernel right, or throws, and then nothing may be enqueued.
//! Its destructor files the use, however the scope ends, so that frees and later uses come after the kernel.  In between
//! the memory is not freed.  A launch needs no GIL and, with up to 32 pieces of memory, allocates nothing.
//!
//! There is nothing to link to.  Include Python.h first for `import_table`; no header of CUDA is needed.  xlogmem.h says
//! what each function promises.  xlogmem_graph.hpp has graphs, xlogmem_mr.hpp RMM's resource, xlogmem_cudf.hpp tables.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "xlogmem.h"

struct CUstream_st;  // what cudaStream_t and CUstream point to
struct _object;  // PyObject

namespace xlogmem {
// ------------------------------------------------------------------------------------------------------------ errors

//! A call failed, or was refused.  `what()` names the memory or the stream.
struct error : std::runtime_error {
    error(std::int32_t what_kind, char const* text) : std::runtime_error{text}, kind{what_kind} {}
    std::int32_t kind;  //!< an xlogmem_kind
};

// clang-format off
//! The block was freed.
struct use_after_free : error { using error::error; };
//! No block of the runtime is alive around the address.
struct untracked_memory : error { using error::error; };
//! The stream, or one that it has to wait for, captures a graph.
struct capturing_stream : error { using error::error; };
//! A conflicting use is open, and waiting for its end was not wanted, or would not end.
struct conflicting_use : error { using error::error; };
//! The device's context is broken, and no later call will succeed.
struct device_lost : error { using error::error; };
//! An argument is wrong, or the runtime was closed.
struct invalid_argument : error { using error::error; };
//! A Python exception is set, which says more: only calls that need the GIL throw this.
struct python_error : error { using error::error; };
// clang-format on
//! There is no device memory left.  Copies do not allocate.
struct out_of_memory : std::bad_alloc {
    explicit out_of_memory(xlogmem_error const& with) noexcept : failure{with} {}
    char const* what() const noexcept override { return failure.text; }
    xlogmem_error failure;
};

namespace detail {
[[noreturn]] inline void raise(xlogmem_error const& failure) {
    switch (failure.kind) {
        case XLOGMEM_OUT_OF_MEMORY: throw out_of_memory{failure};
        case XLOGMEM_NOT_FOUND: throw untracked_memory{failure.kind, failure.text};
        case XLOGMEM_STALE: throw use_after_free{failure.kind, failure.text};
        case XLOGMEM_CAPTURING: throw capturing_stream{failure.kind, failure.text};
        case XLOGMEM_CONFLICT: throw conflicting_use{failure.kind, failure.text};
        case XLOGMEM_LOST: throw device_lost{failure.kind, failure.text};
        case XLOGMEM_INVALID: throw invalid_argument{failure.kind, failure.text};
        default: throw error{failure.kind, failure.text};
    }
}

[[noreturn]] inline void raise_python() { throw python_error{XLOGMEM_FAILED, "a Python exception is set"}; }

// Each shared library has its own: another may have been built with another xlogmem.h.
[[gnu::visibility("hidden")]] inline std::atomic<xlogmem_table const*> found{nullptr};

// Calls a function of the table that fills in an error, which becomes an exception.
template <class Function, class... Arguments>
void call(Function* function, Arguments... arguments) {
    xlogmem_error failure;
    if (function(arguments..., &failure) != 0) raise(failure);
}
}  // namespace detail
//! Use this table, which is that of the capsule XLOGMEM_TABLE.  `import_table` does it for a module of Python.
[[gnu::visibility("hidden")]] inline void set_table(xlogmem_table const* table) {
    if (table->version != XLOGMEM_TABLE_VERSION || table->size < XLOGMEM_SIZE_WITH_USES)
        throw invalid_argument{XLOGMEM_INVALID, "the installed xlogmem is too old for this extension, or too new"};
    detail::found.store(table, std::memory_order_release);
}

#ifdef Py_PYTHON_H
//! Import xlogmem, once in each shared library, with the GIL.  Throws `python_error` with an ImportError set.
[[gnu::visibility("hidden")]] inline void import_table() {
    void* const found = PyCapsule_Import(XLOGMEM_TABLE, 0);
    if (found == nullptr) detail::raise_python();
    try {
        set_table(static_cast<xlogmem_table const*>(found));
    } catch (error const& refused) {
        PyErr_SetString(PyExc_ImportError, refused.what());
        detail::raise_python();
    }
}
#endif

//! The functions of xlogmem.h.
[[gnu::visibility("hidden")]] inline xlogmem_table const& table() {
    xlogmem_table const* const table = detail::found.load(std::memory_order_acquire);
    if (table == nullptr) throw invalid_argument{XLOGMEM_INVALID, "call xlogmem::import_table() first, with the GIL"};
    return *table;
}

namespace detail {
// clang-format off
// How a hold, the promise of a held stream, and a launch end.
struct closer { void operator()(xlogmem_runtime* hold) const noexcept { xlogmem::table().close(hold); } };
struct releaser {
    CUstream_st* stream = nullptr;
    void operator()(xlogmem_runtime* hold) const noexcept {
        xlogmem_error ignored;
        xlogmem::table().release_stream(hold, stream, &ignored);
    }
};
struct filer {
    xlogmem_use* use = nullptr;
    void operator()(xlogmem_runtime* hold) const noexcept {
        xlogmem_error ignored;
        xlogmem::table().finish(hold, use, &ignored);
    }
};

// The handle of a stream by the first of these that it has, as the last argument makes it: a conversion, value(), get().
template <class S, class = std::enable_if_t<std::is_convertible_v<S const&, CUstream_st*>>>
CUstream_st* handle_of(S const& s, char) { return s; }
template <class S> auto handle_of(S const& s, int) -> decltype(static_cast<CUstream_st*>(s.value())) { return s.value(); }
template <class S> auto handle_of(S const& s, long) -> decltype(static_cast<CUstream_st*>(s.get())) { return s.get(); }

// The size of memory, or 1.  A span of nothing may point to the end of a block, which is the begin of another.
template <class T> auto size_of(T const& memory, int) -> decltype(memory.size()) { return memory.size(); }
template <class T> std::size_t size_of(T const&, long) { return 1; }

template <class... T> struct group {
    std::uint32_t access;
    std::tuple<T const&...> memory;
};
// clang-format on
}  // namespace detail
//! Any stream: a cudaStream_t or CUstream, what converts to one (torch's CUDAStream), or has it as `value()`
//! (rmm::cuda_stream_view) or `get()` (cuda::stream_ref).  Not a number: 0 and nullptr would be the default stream.
class stream_view {
  public:
    template <class S, class = decltype(detail::handle_of(std::declval<S const&>(), 'c'))>
    stream_view(S const& stream) : handle_{detail::handle_of(stream, 'c')} {}
    stream_view(std::nullptr_t) = delete;
    CUstream_st* get() const noexcept { return handle_; }

  private:
    CUstream_st* handle_;
};
//! In place of a stream in `launch` and `wait`: this thread itself reads or writes page-locked or managed memory.
inline constexpr struct host_t {
    CUstream_st* get() const noexcept { return static_cast<CUstream_st*>(XLOGMEM_HOST); }
} host{};

//! A hold on a DeviceRuntime of Python's, which lives at least as long.  Launches, held streams and resources of it end
//! before it does.  Everything but the constructors may be called from any thread, without the GIL.
class runtime {
  public:
    //! With the GIL: a `xlogmem.DeviceRuntime`.
    explicit runtime(_object* python_runtime) : hold_{xlogmem::table().open(python_runtime)} {
        if (!hold_) throw invalid_argument{XLOGMEM_INVALID, "this object is not an xlogmem.DeviceRuntime"};
    }
    //! With the GIL: the process's own runtime of a device, as `xlogmem.get_runtime` returns it.
    static runtime of_device(int device = 0) {
        xlogmem_runtime* const hold = xlogmem::table().runtime_for(device);
        if (hold == nullptr) detail::raise_python();
        return runtime{hold};
    }
    //! End the hold, as the destructor does.  Later calls throw `invalid_argument`.
    void close() noexcept { hold_.reset(); }
    //! For the functions of the table.
    xlogmem_runtime* get() const {
        if (!hold_) throw invalid_argument{XLOGMEM_INVALID, "the xlogmem::runtime was closed or moved from"};
        return hold_.get();
    }

    //! Memory that is tracked, ordered on the stream; nullptr for 0 bytes.
    void* allocate(std::size_t nbytes, stream_view stream) const {
        void* memory = nullptr;
        detail::call(xlogmem::table().allocate, get(), nbytes, stream.get(), &memory);
        return memory;
    }
    //! Free on the stream, after every recorded use.  The next DeviceRuntime.reap_pending raises a failure.
    void deallocate(void* memory, stream_view stream) const {
        xlogmem::table().deallocate(get(), memory, stream.get());
    }
    //! `allocate` for several blocks, by one call: all or none.
    std::vector<void*> allocate_many(std::vector<std::size_t> const& sizes, stream_view stream) const {
        std::vector<void*> memory(sizes.size());
        detail::call(xlogmem::table().allocate_many, get(), sizes.size(), sizes.data(), stream.get(), memory.data());
        return memory;
    }
    //! `deallocate` for several; null pointers are passed over.
    void deallocate_many(std::vector<void*> const& memory, stream_view stream) const {
        xlogmem::table().deallocate_many(get(), memory.size(), memory.data(), stream.get());
    }
    //! Work on this stream uses the memory, too, and is complete before it is handed out again.  Nothing orders the work.
    void record_use(void* memory, stream_view stream) const {
        detail::call(xlogmem::table().record_use, get(), memory, stream.get());
    }

  private:
    explicit runtime(xlogmem_runtime* hold) noexcept : hold_{hold} {}
    std::unique_ptr<xlogmem_runtime, detail::closer> hold_;
};

//! A promise that the stream is not destroyed before this object: uses then make no driver call to identify it.
class held_stream {
  public:
    held_stream(runtime const& of, stream_view stream) {
        detail::call(table().hold_stream, of.get(), stream.get());
        hold_ = {of.get(), detail::releaser{stream.get()}};
    }
    CUstream_st* get() const noexcept { return hold_.get_deleter().stream; }

  private:
    std::unique_ptr<xlogmem_runtime, detail::releaser> hold_;
};

// ------------------------------------------------------------------------------------------------------------ memory

//! The identity of a block, in 24 bytes: faster than an address, and refused once the block was freed, even if another
//! block has its address.  Keeps nothing alive.
class block {
  public:
    //! The block into which the pointer points.
    block(runtime const& of, void const* pointer) {
        detail::call(table().find, of.get(), pointer, &access_, nullptr, nullptr);
    }
    //! With the GIL: of a block, a buffer, an array of any library.  Throws `python_error` with the exception set.
    block(runtime const& of, _object* python_object) {
        if (table().identify(of.get(), python_object, &access_) != 0) detail::raise_python();
    }
    void* data() const noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(access_.address)); }
    xlogmem_access const& identity() const noexcept { return access_; }
    //! Are all recorded uses complete?  Before a read (XLOGMEM_READ) the writers alone have to be.  Does not wait.
    bool ready(runtime const& of, xlogmem_access_kind before = XLOGMEM_READ_WRITE) const {
        xlogmem_access const named{access_.address, access_.generation, access_.slot, before};
        int done = 0;
        detail::call(table().ready, of.get(), &named, &done);
        return done != 0;
    }
    //! Return when they are.
    void synchronize(runtime const& of, xlogmem_access_kind before = XLOGMEM_READ_WRITE) const {
        xlogmem_access const named{access_.address, access_.generation, access_.slot, before};
        detail::call(table().synchronize, of.get(), &named);
    }

  private:
    xlogmem_access access_{};
};

//! `reads(a, b)`, for a statement with `launch`, `wait` or `accesses`: refers to its arguments.
//!
//! Memory is a pointer anywhere into a block, an address (CUdeviceptr), a `block`, or an object with `data()`: a span, an
//! rmm::device_buffer.  Empty arrays and null pointers are no memory, and are passed over.  Types of other kinds have a
//! function in their namespace, or in xlogmem, which names their parts:
//!
//!     void xlogmem_memory(table const& value, xlogmem::accesses& add) { add(value.keys, value.values); }
// clang-format off
template <class... T> detail::group<T...> reads(T const&... memory) { return {XLOGMEM_READ, {memory...}}; }
template <class... T> detail::group<T...> writes(T const&... memory) { return {XLOGMEM_WRITE, {memory...}}; }
template <class... T> detail::group<T...> reads_writes(T const&... memory) { return {XLOGMEM_READ_WRITE, {memory...}}; }

//! A list of memory, with what is done to it.  Up to 32 pieces need no allocation.
class accesses {
  public:
    template <class... Groups> explicit accesses(Groups const&... groups) { (append(groups), ...); }
    accesses(accesses const&) = delete;
    accesses& operator=(accesses const&) = delete;
    //! Add `reads(...)`, `writes(...)` or `reads_writes(...)`.
    template <class... T> void append(detail::group<T...> const& group) {
        access_ = group.access;
        std::apply(*this, group.memory);
    }
    //! Add parts of a value: for functions `xlogmem_memory`.
    template <class... T> void operator()(T const&... memory) { (add(memory), ...); }
    // clang-format on

    xlogmem_access const* data() const noexcept { return more_ ? more_.get() : few_; }
    std::size_t size() const noexcept { return size_; }

  private:
    template <class T, class = void>
    struct is_described : std::false_type {};
    template <class T>
    struct is_described<T, std::void_t<decltype(xlogmem_memory(std::declval<T const&>(), std::declval<accesses&>()))>>
        : std::true_type {};

    template <class T>
    void add(T const& memory) {
        if constexpr (std::is_same_v<T, block>) {
            push(memory.identity());
        } else if constexpr (is_described<T>::value) {
            xlogmem_memory(memory, *this);
        } else if constexpr (std::is_pointer_v<T>) {
            push({reinterpret_cast<std::uintptr_t>(memory), 0, 0, 0});
        } else if constexpr (std::is_integral_v<T>) {
            static_assert(std::is_unsigned_v<T> && sizeof(T) == sizeof(void*), "an address is a CUdeviceptr");
            push({memory, 0, 0, 0});
        } else {
            static_assert(std::is_pointer_v<decltype(memory.data())>, "give this type a function xlogmem_memory");
            if (detail::size_of(memory, 0) != 0) add(memory.data());
        }
    }
    void push(xlogmem_access const& one) {
        if (size_ == capacity_) {
            std::unique_ptr<xlogmem_access[]> larger{new xlogmem_access[2 * capacity_]};
            std::memcpy(larger.get(), data(), size_ * sizeof(xlogmem_access));
            more_ = std::move(larger);
            capacity_ *= 2;
        }
        xlogmem_access& place = (more_ ? more_.get() : few_)[size_++];
        place = one;
        place.access = access_;
    }

    static constexpr std::size_t few = 32;
    std::uint32_t access_ = 0;
    std::size_t size_ = 0, capacity_ = few;
    std::unique_ptr<xlogmem_access[]> more_;
    xlogmem_access few_[few];  // not initialised
};

// ---------------------------------------------------------------------------------------------------------- launches

//! What a launch wants beyond the usual, joined by |.
enum class flags : std::uint32_t {
    none = 0,
    refuse_conflicts = XLOGMEM_REFUSE_CONFLICTS,  //!< throw `conflicting_use` where the host would wait
    hand_back_writes = XLOGMEM_HAND_BACK_WRITES,  //!< handback="writes" of `xlogmem.use`
    any_thread = XLOGMEM_ANY_THREAD,  //!< another thread may end the launch
    keeps_stream = XLOGMEM_KEEPS_STREAM  //!< the stream is not destroyed before the runtime is closed
};
constexpr flags operator|(flags a, flags b) noexcept {
    return static_cast<flags>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

//! What is enqueued on a stream while this object lives uses the memory.
class launch {
  public:
    //! `launch use{runtime, stream, reads(a, b), writes(c)}`, with groups in any order.
    template <class... T, class... More>
    [[nodiscard]] launch(runtime const& of, stream_view stream, detail::group<T...> const& one, More const&... more)
        : launch{of, stream, accesses{one, more...}} {}
    template <class... Groups>
    [[nodiscard]] launch(runtime const& of, stream_view stream, flags wanted, Groups const&... groups)
        : launch{of, stream, accesses{groups...}, wanted} {}
    [[nodiscard]] launch(runtime const& of, stream_view stream, accesses const& list, flags wanted = flags::none)
        : launch{of, stream, list.data(), list.size(), wanted} {}
    //! Of an array, which need not live on.
    [[nodiscard]] launch(runtime const& of, stream_view stream, xlogmem_access const* first, std::size_t count,
                         flags wanted = flags::none) {
        xlogmem_use* use = nullptr;
        detail::call(table().prepare, of.get(), stream.get(), first, count, static_cast<std::uint32_t>(wanted), &use);
        open_ = {of.get(), detail::filer{use}};
    }

    //! File the use now, as the destructor does.  Throws if a stream of another library could not be ordered after it.
    void commit() {
        xlogmem_runtime* const hold = open_.release();
        if (hold == nullptr) throw invalid_argument{XLOGMEM_INVALID, "the xlogmem::launch has ended before"};
        detail::call(table().finish, hold, open_.get_deleter().use);
    }
    //! File nothing: nothing was enqueued.
    void cancel() noexcept {
        if (xlogmem_runtime* const hold = open_.release()) table().cancel(hold, open_.get_deleter().use);
    }

  private:
    friend class graph;
    launch(xlogmem_runtime* hold, xlogmem_use* prepared) noexcept : open_{hold, detail::filer{prepared}} {}
    std::unique_ptr<xlogmem_runtime, detail::filer> open_;
};

//! Order a stream after the writers of memory (`reads(...)`) or after all its users (`writes(...)`), without a use.
template <class... T>
void wait(runtime const& of, stream_view stream, detail::group<T...> const& group) {
    accesses const list{group};
    for (std::size_t i = 0; i < list.size(); ++i) detail::call(table().wait, of.get(), stream.get(), list.data() + i);
}
}  // namespace xlogmem
