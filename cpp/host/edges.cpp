// See edges.hpp.
#include "edges.hpp"

#include "notes.hpp"

#include <algorithm>
#include <string_view>

namespace check::host {

namespace {

// These bytes are not closed: no write of the device to them is pending.
u64 hash_of(Window bytes) {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.begin), bytes.end - bytes.begin});
}

bool meet(Window one, Window other) { return one.begin < other.end && other.begin < one.end; }

}  // namespace

void Edges::add(const HostUse& use, u64 begin, u64 end) {
    Window bytes{begin, end};
    bool written =
        std::any_of(writes_.begin(), writes_.end(), [&](const Write& one) { return meet(one.block, bytes); });
    if (begin >= end || written) return;
    u64 hash = hash_of(bytes);
    for (Edge& one : edges_) {
        if (one.bytes.begin != begin || one.bytes.end != end || one.time.slot != use.time.slot || one.hash != hash)
            continue;
        one.time = use.time;  // a buffer of a loop
        return;
    }
    edges_.push_back({bytes, hash, use.time});
}

void Edges::add_write(Window block, Time time) {
    std::erase_if(edges_, [&](const Edge& one) { return meet(one.bytes, block); });
    for (Write& one : writes_) {
        if (one.block.begin != block.begin || one.block.end != block.end || one.time.slot != time.slot) continue;
        one.time = time;
        return;
    }
    writes_.push_back({block, time});
}

void Edges::add(const HostUse& use, Window pages) {
    if (use.may_write) return add_write({use.block_begin, use.block_end}, use.time);
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
    std::erase_if(writes_, [&](const Write& one) { return coming.covers(one.time); });
}

void Edges::forget(u64 begin, u64 end) {
    std::erase_if(edges_, [&](const Edge& one) { return meet(one.bytes, {begin, end}); });
    std::erase_if(writes_, [&](const Write& one) { return meet(one.block, {begin, end}); });
}

}  // namespace check::host
