// See edges.hpp.
#include "edges.hpp"

#include "notes.hpp"

#include <string_view>

namespace check::host {

namespace {

u64 hash_of(Window bytes) {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.begin), bytes.end - bytes.begin});
}

}  // namespace

void Edges::add(const HostUse& use, u64 begin, u64 end) {
    if (begin >= end) return;
    Window bytes{begin, end};
    u64 hash = hash_of(bytes);
    for (Edge& one : edges_) {
        if (one.bytes.begin != begin || one.bytes.end != end || one.time.slot != use.time.slot || one.hash != hash)
            continue;
        one.time = use.time;  // a buffer of a loop
        return;
    }
    edges_.push_back({bytes, {use.block_begin, use.block_end}, hash, use.time});
}

// What the device writes is no change of the host's.
void Edges::add(const HostUse& use, Window pages) {
    if (use.may_write) {
        std::erase_if(edges_, [&](const Edge& one) { return one.block.begin == use.block_begin; });
        return;
    }
    if (pages.begin >= pages.end) return add(use, use.begin, use.end);
    add(use, use.begin, std::min(use.end, pages.begin));
    add(use, std::max(use.begin, pages.end), use.end);
}

void Edges::examine(const Clock& coming) {
    std::erase_if(edges_, [&](const Edge& one) {
        if (!coming.covers(one.time)) return false;
        if (hash_of(one.bytes) == one.hash) return true;
        Note note;
        note.begin = one.bytes.begin;
        note.end = one.bytes.end;
        note.did = Did::WriteBefore;
        Spin spin;
        notes().add(note);
        return true;
    });
}

void Edges::forget(u64 begin, u64 end) {
    std::erase_if(edges_, [&](const Edge& one) { return one.bytes.begin < end && begin < one.bytes.end; });
}

}  // namespace check::host
