// See calls.hpp.
#include "calls.hpp"

#include "faults.hpp"
#include "notes.hpp"

#include <algorithm>
#include <dlfcn.h>

namespace check::host {

namespace {

Note note_of(const Pending& one, u64 begin, u64 end, Did did) {
    Note note;
    note.begin = std::max(begin, one.begin);
    note.end = std::min(end, one.end);
    note.did = did;
    note.site = current_site();
    return note;
}

// Notes what would fault, with all its bytes. The driver's copies fault: the handler knows what to open for them.
bool before_copy(u64 begin, u64 bytes, int writes, u64 instruction) {
    if (pages().empty() || !bytes || Spin::inside()) return false;
    u64 end = begin + bytes;
    Window wanted{page_of(begin), next_page(end)};
    Spin spin;
    auto meets = [&](const Pending& one) {
        bool meets_pages = wanted.begin < one.pages.end && one.pages.begin < wanted.end;
        return meets_pages && (writes || one.closed);
    };
    if (std::none_of(pages().begin(), pages().end(), meets) || is_in_driver()) return false;
    for (Pending& one : pages()) {
        if (!meets(one)) continue;
        Note note = note_of(one, std::max(begin, one.pages.begin), std::min(end, one.pages.end),
                            writes ? Did::Write : Did::Read);
        note.instruction = instruction;
        if (note.begin < note.end) note_hit(one, note);
    }
    return pages().open_for_now(wanted);
}

bool before_call(u64 begin, u64 bytes, int writes) {
    if (pages().empty() || !bytes || Spin::inside()) return false;
    u64 end = begin + bytes;
    Spin spin;
    for (Pending& one : pages()) {
        bool meets = begin < one.end && one.begin < end;
        if (!meets || !(writes || one.closed)) continue;
        note_hit(one, note_of(one, begin, end, writes ? Did::Write : Did::Read));
    }
    return pages().open_for_now({page_of(begin), next_page(end)});
}

void after_call(u64 begin, u64 bytes) {
    Spin spin;
    pages().close({page_of(begin), next_page(begin + bytes)});
}

// The addresses may mean other memory afterwards.
void before_end(u64 begin, u64 bytes) {
    if (pages().empty() || Spin::inside()) return;
    u64 end = begin + bytes;
    Spin spin;
    for (Pending* one = pages().begin(); one != pages().end();) {
        if (end <= one->begin || one->end <= begin) {
            one++;
            continue;
        }
        note_hit(*one, note_of(*one, begin, end, Did::Free));
        pages().remove(one);
    }
}

bool is_needed() { return !pages().empty(); }

}  // namespace

xlogmem_host_set_action* watch_calls() {
    using Watch = xlogmem_host_set_action*(const xlogmem_host_hooks*);
    auto watch = reinterpret_cast<Watch*>(dlsym(RTLD_DEFAULT, "xlogmem_host_watch_calls"));
    static xlogmem_host_hooks hooks{before_call, after_call, before_copy,    pages().bounds(),
                                    is_needed,   before_end, &others().segv, &others().trap};
    return watch ? watch(&hooks) : nullptr;
}

}  // namespace check::host
