// See pages.hpp.
#include "pages.hpp"

#include <algorithm>
#include <sys/mman.h>

namespace check::host {

namespace {

std::atomic<u64> owner{0};  // a thread

}  // namespace

void Spin::take_at_fork() {
    for (u64 none = 0; !owner.compare_exchange_weak(none, this_thread(), std::memory_order_acquire); none = 0)
        sched_yield();
}

void Spin::release_after_fork() { owner.store(0, std::memory_order_release); }

Spin::Spin() { take_at_fork(); }

Spin::~Spin() { release_after_fork(); }

bool Spin::inside() { return owner.load(std::memory_order_relaxed) == this_thread(); }

namespace {
Pages all_pages;  // in memory that is there from the beginning
}

Pages& pages() { return all_pages; }

int Pages::mode_of(u64 page) const {
    for (int i = 0; i < open_count_; i++)
        if (open_[i].holds(page)) return PROT_READ | PROT_WRITE;
    int mode = PROT_READ | PROT_WRITE;
    for (const Pending* one = pending_; one != pending_ + count_; one++) {
        if (!one->protects(page)) continue;
        if (one->closed) return PROT_NONE;
        mode = PROT_READ;
    }
    return mode;
}

// Few system calls: one for a run of pages that have one protection.
void Pages::protect(Window wanted) {
    constexpr int kMostEdges = 128;
    u64 edges[kMostEdges + 1];
    int count = 0;
    bool all = true;
    auto edge = [&](u64 at) {
        if (at <= wanted.begin || wanted.end <= at) return;
        if (count < kMostEdges)
            edges[count++] = at;
        else
            all = false;
    };
    auto edges_of = [&](const Window& one) {
        edge(one.begin);
        edge(one.end);
    };
    for (const Pending& one : *this) {
        edges_of(one.pages);
        for (u32 i = 0; i < one.windows; i++) edges_of(one.open[i]);
    }
    for (int i = 0; i < open_count_; i++) edges_of(open_[i]);
    auto set = [](u64 begin, u64 end, int mode) { mprotect(reinterpret_cast<void*>(begin), end - begin, mode); };
    if (!all) {
        for (u64 at = wanted.begin; at < wanted.end; at += kPage) set(at, at + kPage, mode_of(at));
        return;
    }
    edges[count++] = wanted.end;
    std::sort(edges, edges + count);
    u64 begin = wanted.begin;
    int mode = mode_of(begin);
    for (int i = 0; i < count; i++) {
        int next = edges[i] == wanted.end ? -1 : mode_of(edges[i]);
        if (next == mode) continue;
        set(begin, edges[i], mode);
        begin = edges[i];
        mode = next;
    }
}

// Pages beside the ranges may have any owner, and are left alone.
void Pages::apply(Window wanted) {
    Window done{0, 0};  // small ranges share a page
    for (const Pending& one : *this) {
        Window common{std::max(wanted.begin, one.pages.begin), std::min(wanted.end, one.pages.end)};
        if (common.begin >= common.end || (done.begin <= common.begin && common.end <= done.end)) continue;
        protect(common);
        done = common;
    }
}

void Pages::set_bounds(u64 begin, u64 end) {
    __atomic_store_n(&bounds_[0], begin, __ATOMIC_RELAXED);
    __atomic_store_n(&bounds_[1], end, __ATOMIC_RELAXED);
}

bool Pages::add(const Pending& one) {
    if (count_ == kMostPending) return false;
    pending_[count_] = one;
    count_++;
    set_bounds(std::min(bounds_[0], one.pages.begin), std::max(bounds_[1], one.pages.end));
    protect(one.pages);
    return true;
}

void Pages::remove(Pending* one) {
    Window had = one->pages;
    *one = pending_[count_ - 1];
    count_--;
    protect(had);
    if (empty()) set_bounds(~u64(0), 0);
}

void Pages::remove_all() {
    while (!empty()) remove(pending_ + count_ - 1);
}

void Pages::open_all(Pending& one) {
    one.windows = 1;
    one.open[0] = one.pages;
    protect(one.pages);
}

void Pages::open(Pending& one, u64 page) {
    if (one.windows == Pending::kWindows) return open_all(one);
    u64 bytes = kPage << (2 * one.windows);
    Window opened{page, std::min(one.pages.end, page + bytes)};
    one.open[one.windows++] = opened;
    protect(opened);
}

bool Pages::open_for_now(Window wanted) {
    bool is_protected = std::any_of(begin(), end(), [&](const Pending& one) {
        return wanted.begin < one.pages.end && one.pages.begin < wanted.end;
    });
    if (!is_protected || open_count_ == kMostOpen) return false;
    open_[open_count_++] = wanted;
    apply(wanted);
    return true;
}

void Pages::close(Window wanted) {
    for (int i = 0; i < open_count_; i++) {
        if (open_[i].begin != wanted.begin || open_[i].end != wanted.end) continue;
        open_[i] = open_[--open_count_];
        break;
    }
    apply(wanted);
}

}  // namespace check::host
