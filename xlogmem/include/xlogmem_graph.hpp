//! CUDA graphs that hold the memory they use, from C++.
//!
//!     xlogmem::capture capture{runtime, stream};
//!     {
//!         xlogmem::launch use{runtime, stream, xlogmem::reads(a), xlogmem::writes(b)};
//!         kernel<<<grid, block, 0, stream>>>(a, b);
//!     }
//!     xlogmem::graph graph = capture.end();
//!     graph.launch(stream);                                               // one use of a and b
//!
//! A launch needs no GIL and allocates nothing.  A capture takes the GIL inside, so no lock is held there that a thread of
//! Python may wait for.
#pragma once

#include "xlogmem.hpp"

namespace xlogmem {
namespace detail {
// The table, if it has what this header needs.
inline xlogmem_table const& table_with_graphs() {
    if (table().size < XLOGMEM_SIZE_WITH_GRAPHS)
        throw invalid_argument{XLOGMEM_INVALID, "the installed xlogmem has no graphs for C++: install a newer one"};
    return table();
}

// How a graph ends, and a capture that made none.
struct graph_closer {
    xlogmem_graph* graph = nullptr;
    void operator()(xlogmem_runtime* hold) const noexcept { table().close_graph(hold, graph); }
};
struct capture_ender {
    xlogmem_capture* capture = nullptr;
    void operator()(xlogmem_runtime* hold) const noexcept {
        xlogmem_error ignored;
        table().end_capture(hold, capture, nullptr, &ignored);
    }
};
}  // namespace detail

//! A graph that holds its memory until it is destroyed and its last launch is complete.  Destroyed before its runtime.
class graph {
  public:
    //! No graph yet, for a member: `step = capture.end();`
    graph() = default;
    //! With the GIL: a `xlogmem.Graph`, which Python closes.
    graph(runtime const& of, _object* python_graph) {
        xlogmem_graph* const opened = detail::table_with_graphs().open_graph(of.get(), python_graph);
        if (opened == nullptr) detail::raise_python();
        hold_ = {of.get(), detail::graph_closer{opened}};
    }
    //! Launch on a stream, as one use of all memory of the graph.
    void launch(stream_view stream) const { detail::call(table().launch_graph, hold(), stream.get(), get()); }
    //! What is enqueued while the result lives is a launch of this graph: `auto use = graph.launching(stream);`
    [[nodiscard]] xlogmem::launch launching(stream_view stream, flags wanted = flags::none) const {
        xlogmem_use* use = nullptr;
        detail::call(table().prepare_graph, hold(), stream.get(), get(), static_cast<std::uint32_t>(wanted), &use);
        return {hold(), use};
    }
    //! The CUgraphExec; nullptr if a library has captured the graph.
    void* handle() const { return table().graph_handle(hold(), get()); }
    //! Close the graph, as the destructor does: it holds no memory any more.
    void close() noexcept { hold_.reset(); }
    //! For the functions of the table.
    xlogmem_graph* get() const noexcept { return hold_.get_deleter().graph; }

  private:
    friend class capture;
    graph(xlogmem_runtime* of, xlogmem_graph* made) noexcept : hold_{of, detail::graph_closer{made}} {}
    xlogmem_runtime* hold() const {
        if (!hold_)
            throw invalid_argument{XLOGMEM_INVALID, "the xlogmem::graph is empty: it was closed, or moved from"};
        return hold_.get();
    }
    std::unique_ptr<xlogmem_runtime, detail::graph_closer> hold_;
};

//! CUDA's modes of a capture: what other threads may do meanwhile.
enum class capture_mode : std::uint32_t {
    global = XLOGMEM_CAPTURE_GLOBAL,
    thread_local_ = XLOGMEM_CAPTURE_THREAD_LOCAL,
    relaxed = XLOGMEM_CAPTURE_RELAXED
};
//! In place of a mode: the stream captures already.  Its owner ends that capture after `end`, and launches the graph.
inline constexpr struct of_others_t {
} of_others{};

//! A capture on a stream.  `launch` orders what is captured there, and on streams that join.
class capture {
  public:
    [[nodiscard]] capture(runtime const& of, stream_view stream, capture_mode mode = capture_mode::relaxed)
        : capture{of.get(), stream, static_cast<std::uint32_t>(mode), nullptr, 0} {}
    //! `capture capture{runtime, stream, of_others, reads(x), writes(y)}`: what the other's own work does.
    template <class... Groups>
    [[nodiscard]] capture(runtime const& of, stream_view stream, of_others_t, Groups const&... groups)
        : capture{of, stream, of_others, accesses{groups...}} {}
    [[nodiscard]] capture(runtime const& of, stream_view stream, of_others_t, accesses const& list)
        : capture{of.get(), stream, XLOGMEM_CAPTURE_OF_OTHERS, list.data(), list.size()} {}

    //! Let another stream take part: it goes on after all that the captured stream has captured so far.
    void fork(stream_view stream) const {
        detail::call(table().fork_capture, hold(), open_.get_deleter().capture, stream.get());
    }
    //! End the capture, and make its graph.  The destructor gives the capture up, and makes none.  Where the mode is not
    //! `relaxed`, the thread that has begun a capture ends it: another one throws `conflicting_use`, and it goes on.
    [[nodiscard]] graph end() {
        xlogmem_runtime* const of = hold();
        xlogmem_graph* made = nullptr;
        xlogmem_error failure;
        int const failed = table().end_capture(of, open_.get_deleter().capture, &made, &failure);
        if (failed == 0 || failure.kind != XLOGMEM_CONFLICT) open_.release();
        if (failed != 0) detail::raise(failure);
        return {of, made};
    }

  private:
    capture(xlogmem_runtime* of, stream_view stream, std::uint32_t mode, xlogmem_access const* first,
            std::size_t count) {
        xlogmem_capture* begun = nullptr;
        detail::call(detail::table_with_graphs().begin_capture, of, stream.get(), mode, first, count, &begun);
        open_ = {of, detail::capture_ender{begun}};
    }
    xlogmem_runtime* hold() const {
        if (!open_) throw invalid_argument{XLOGMEM_INVALID, "the xlogmem::capture has ended before"};
        return open_.get();
    }
    std::unique_ptr<xlogmem_runtime, detail::capture_ender> open_;
};
}  // namespace xlogmem
