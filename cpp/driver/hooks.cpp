// The hooks of engine/hooks.hpp, with the simulated driver's streams.
//
// The runtime calls these hooks under its own lock, and the driver's lock is a leaf there. The place in the program is
// looked up before: a place that was never seen takes the GIL.
#include "calls.hpp"
#include "memory.hpp"
#include "unknown.hpp"

#include "engine/reports.hpp"

namespace sim {

namespace {

thread_local u32 site_of_call = 0, own_site = 0;

// The stream with this handle in a context; nullptr: the stream is gone.
Stream* stream_in(void* context, void* handle) {
    u64 number = reinterpret_cast<u64>(handle);
    auto* of = driver().contexts.get(static_cast<CUcontext>(context));
    Stream* stream = nullptr;
    if (number > 2) {
        stream = driver().stream_handles.get(static_cast<CUstream>(handle));
    } else if (number == 2) {
        find_stream(CU_STREAM_PER_THREAD, &stream);
    } else if (of) {
        stream = legacy_stream(of);
    }
    return stream;
}

struct Simulated {
    static void find_site() { site_of_call = place_of_caller(); }
    static u32 site_of_caller() { return place_of_caller(); }

    static void act_for(u32 site) {
        u32& place = this_thread().acts_for;
        if (!place) own_site = site_of_call;
        place = site;
        site_of_call = site ? site : own_site;
    }

    static void replaces_pool(int begun) { this_thread().replaces_pool = begun; }
    static void queries_for_itself(int whose) { this_thread().queries = xlogmem_check_queries(whose); }

    static void operator_begins() {
        this_thread().operation.begun = true;
        this_thread().operation.launches.clear();
    }
    static std::size_t operator_launches() { return this_thread().operation.launches.size(); }

    template <class Feed>
    static void with_operator(Feed&& feed) {
        if (driver().forked) return;
        Lock lock(driver().mutex);
        auto& ended = this_thread().operation;
        for (Stream* stream : driver().streams) {
            if (stream->id != ended.stream || stream->dead) continue;
            if (!stream->capture) order_with_legacy(lock, stream);
            driver().engine.act_in(this_thread().id);
            feed(check::Reported{driver().engine, stream->order, ended.site});
            for (const char* kernel : ended.launches) unknown_kernels().not_judged[kernel]--;
            break;
        }
        ended = {};
    }

    template <class Feed>
    static void with_engine(Feed&& feed) {
        if (driver().forked) return;
        Lock lock(driver().mutex);
        feed(driver().engine);
    }

    template <class Feed>
    static void with(void* context, void* handle, Feed&& feed) {
        if (driver().forked) return;
        Lock lock(driver().mutex);
        Stream* stream = stream_in(context, handle);
        // For the engine a report is an operation on the stream: the order that it makes with the legacy stream is made
        // here too, or the next operation would take the order for made.
        if (stream && !stream->capture) order_with_legacy(lock, stream);
        judge_host();  // of memory that is freed now, too
        driver().engine.act_in(this_thread().id);
        feed(check::Reported{driver().engine, stream ? stream->order : nullptr, site_of_call});
    }

    static void note(void* context, void* handle, const check::CachedPiece& piece) {
        with(context, handle, [&](const check::Reported& to) { to.cached(piece); });
        if (!piece.returned) clear(context, handle, piece);
    }

    // What kernels would have written there before the program reads it is 0, not what an earlier owner has left: the
    // result of a reduction, a number of elements. The program's own small numbers are in small pieces.
    static void clear(void* context, void* handle, const check::CachedPiece& piece) {
        constexpr u64 kSmall = u64(1) << 20;
        if (driver().forked || !driver().config.unknown_kernels || piece.bytes > kSmall) return;
        Lock lock(driver().mutex);
        Stream* stream = stream_in(context, handle);
        if (!stream || stream->capture || !on_device(piece.address, piece.bytes)) return;
        submit_unseen(stream, "clear", [address = piece.address, bytes = piece.bytes] {
            if (on_device(address, bytes)) poison_fresh(address, bytes);
        });
    }
};

}  // namespace

}  // namespace sim

EXPORT const xlogmem_check_hooks* xsim_hooks() { return check::Hooks<sim::Simulated>::table(); }
