// The hooks of engine/hooks.hpp, with the streams that CUPTI has shown.
//
// The runtime calls these hooks under its own lock, and the front end's lock is a leaf there. The place in the program
// is looked up before: a place that was never seen takes the GIL.
#include "front.hpp"

#include "engine/reports.hpp"

namespace check {

namespace {

struct Watched {
    static void find_site() { this_thread().site = place_of_caller(); }
    static u32 site_of_caller() { return place_of_caller(); }

    static void act_for(u32 site) {
        Thread& thread = this_thread();
        if (!thread.acts_for) thread.own_site = thread.site;
        thread.acts_for = site;
        thread.site = site ? site : thread.own_site;
    }

    static void replaces_pool(int begun) { this_thread().replaces_pool = begun; }
    static void queries_for_itself(int whose) { this_thread().queries = xlogmem_check_queries(whose); }

    // A launch shows its addresses here, whatever is known of its kernel.
    static void operator_begins() {}
    static std::size_t operator_launches() { return 0; }
    template <class Feed>
    static void with_operator(Feed&&) {}

    // Those who call this cannot handle exceptions.
    template <class Report>
    static void with_lock(Report&& report) {
        if (!is_watching()) return;
        try {
            std::lock_guard<xlogmem_mutex> guard(front().lock);
            report();
        } catch (const std::exception& error) {
            stop_watching("a report of memory", error);
        }
    }

    template <class Feed>
    static void with_engine(Feed&& feed) {
        with_lock([&] { feed(front().engine()); });
    }

    static Stream* stream_of(void* context, void* handle) {
        Thread& thread = this_thread();
        u32 number = front().number_of(static_cast<CUcontext>(context));
        return front().find_stream(u64(handle), {number, thread.number}, thread.site);
    }

    // `context` is the driver's, which CUPTI numbers: the runtime's calls are made in it.
    template <class Feed>
    static void with(void* context, void* handle, Feed&& feed) {
        with_engine([&](Engine& engine) {
            front().judge_host(this_thread().site);  // of memory that is freed now, too
            feed(Reported{engine, stream_of(context, handle), this_thread().site});
        });
    }

    static void note(void* context, void* handle, const CachedPiece& piece) {
        with_lock([&] {
            Stream* stream = stream_of(context, handle);
            Noted& noted = front().backlog.next();
            noted.kind = Noted::Kind::Piece;
            noted.thread = this_thread().number;
            noted.stream = stream;
            noted.what = {0, this_thread().site};
            noted.piece = piece;
            front().backlog.keep();
        });
    }
};

}  // namespace

}  // namespace check

extern "C" __attribute__((visibility("default"))) const xlogmem_check_hooks* xcheck_hooks() {
    return check::Hooks<check::Watched>::table();
}
