// See guard.hpp.
#include "guard.hpp"

#include "calls.hpp"
#include "edges.hpp"
#include "faults.hpp"
#include "notes.hpp"
#include "parts.hpp"

#include <algorithm>
#include <pthread.h>

namespace check::host {

namespace {

std::atomic<bool> on{false};
xlogmem_host_set_action* of_preload = nullptr;  // where system calls are seen
Notes all_notes;
Edges& edges = *new Edges;  // threads may outlive the statics

constexpr bool kHere =
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

// The child of a fork has no driver, and the memory is its own.
void follow_forks() {
    static const int once = pthread_atfork(Spin::take_at_fork, Spin::release_after_fork, [] {
        pages().remove_all();
        on = false;
        Spin::release_after_fork();
    });
    (void)once;
}

Window stack_here() {
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes)) return {};
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
    return {reinterpret_cast<u64>(begin), reinterpret_cast<u64>(begin) + bytes};
}

// A handler runs on the stack of its thread.
bool is_stack(u64 begin, u64 end) {
    static thread_local const Window stack = stack_here();
    return begin < stack.end && stack.begin < end;
}

// Pages that the range may have for itself.
Window pages_of(const HostUse& use, bool shared) {
    if (!of_preload) return {next_page(use.begin), page_of(use.end)};
    Window pages{page_of(use.begin), next_page(use.end)};
    if (!shared) return pages;
    return {std::max(pages.begin, next_page(use.block_begin)), std::min(pages.end, page_of(use.block_end))};
}

// A buffer of a loop, which is still guarded for the time before.
bool is_guarded(const HostUse& use) {
    bool found = false;
    for (Pending& one : pages()) {
        if (one.begin != use.begin || one.end != use.end || one.closed != use.may_write) continue;
        if (one.time.slot != use.time.slot || one.windows) continue;
        one.time = use.time;
        one.has_noted = false;
        found = true;
    }
    return found;
}

}  // namespace

Notes& notes() { return all_notes; }

void note_hit(Pending& one, Note note) {
    u64 place = note.site ? note.site : note.instruction;
    if (!one.has_noted || !place || one.noted != place) notes().add(note);
    one.has_noted = true;
    one.noted = place;
}

bool start(SiteOf site_of) {
    if (!kHere) return false;
    set_site(site_of);
    if (on) return true;
    follow_forks();
    if (!have_handlers(sigaction)) return false;
    of_preload = watch_calls();  // from here on sigaction() is the program's
    on = !of_preload || have_handlers(of_preload);
    return on;
}

bool is_on() { return on; }

void stop() {
    Spin spin;
    pages().remove_all();
    on = false;
}

void guard(const HostUse& use, bool shared) {
    if (!on || is_stack(use.begin, use.end)) return;
    Window wanted = pages_of(use, shared);
    if (shared || use.may_write) edges.add(use, wanted);
    if (wanted.begin >= wanted.end) return;
    have_handlers(of_preload ? of_preload : sigaction);
    Spin spin;
    if (is_guarded(use)) return;
    each_part(wanted, [&](Window part) {
        Pending one{};
        one.begin = use.begin;
        one.end = use.end;
        one.pages = part;
        one.time = use.time;
        one.closed = use.may_write;
        pages().add(one);
    });
}

namespace {

template <class Test>
void lift_if(Test&& test) {
    if (pages().empty()) return;
    Spin spin;
    for (Pending* one = pages().begin(); one != pages().end();)
        if (test(*one))
            pages().remove(one);
        else
            one++;
}

}  // namespace

void examine(const Clock& coming) { edges.examine(coming); }

void settle(const Clock& host) {
    lift_if([&](const Pending& one) { return host.covers(one.time); });
}

void forget(u64 begin, u64 end) {
    lift_if([&](const Pending& one) { return one.begin < end && begin < one.end; });
    edges.forget(begin, end);
}

bool has_notes() { return !notes().empty(); }

bool take(Note& note) {
    if (!has_notes()) return false;
    Spin spin;
    return notes().take(note);
}

}  // namespace check::host
