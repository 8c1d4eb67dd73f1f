// State shared by all calls: see front.hpp.
#include "front.hpp"

#include "driver.hpp"

#include "host/judge.hpp"
#include "host/pageable.hpp"

namespace check {

Front& front() {
    static Front& only = *new Front;
    return only;
}

const Pinned* Front::find_pinned(u64 address) const {
    auto after = pinned_.upper_bound(address);
    if (after == pinned_.begin()) return nullptr;
    const Pinned& before = std::prev(after)->second;
    return before.end > address ? &before : nullptr;
}

bool Front::has_pinned(const std::vector<u8>& space) const {
    if (pinned_.empty()) return false;
    for (std::size_t offset = 0; offset + sizeof(u64) <= space.size(); offset += sizeof(u64))
        if (find_pinned(word_at(space, u32(offset)))) return true;
    return false;
}

void Front::pin(u64 begin, u64 bytes, Operation by, bool registered) {
    host::judge_late_reads(engine(), begin, begin + bytes, by.site);
    pinned_[begin] = {begin + bytes, by, 0, registered};
    engine().pin(by, begin, bytes);
}

void Front::guard_host() {
    for (const HostUse& use : engine().take_host_uses()) {
        const Pinned* known = find_pinned(use.begin);  // of which the block may be a piece
        if (!known || engine_.host_knows(use.time)) continue;
        host::guard(use, known->registered);
    }
}

void Front::judge_host(u32 site) {
    if (host::has_notes()) host::judge(engine(), site);
}

void Front::judge_host(u32 site, const Clock& coming) {
    Clock known = engine().host();
    known.join(coming);
    host::examine(known);
    judge_host(site);
    host::judge_late_reads(engine(), known, site);
}

// An allocation that another thread has not handed over yet looks like other memory, too: its use before is not found.
void Front::settle_freed_uses() {
    std::vector<u64> used;
    {
        std::lock_guard<xlogmem_mutex> guard(lock);
        used = engine().take_freed_uses();
    }
    auto is_memory = Driver::get().address_range;
    for (u64 address : used) {
        CUdeviceptr begin;
        size_t bytes;
        if (!is_memory || is_memory(&begin, &bytes, address) != CUDA_SUCCESS) continue;
        std::lock_guard<xlogmem_mutex> guard(lock);
        engine().find_memory(address);
    }
}

void Front::undo(const Changes& changes) {
    for (const Changes::Ordered& one : changes.ordered)
        if (one.stream->changes == one.changes) engine().refuse_order(*one.stream, one.before);
    for (const Changes::Launched& one : changes.launched)
        if (Executable* known = find(one.graph)) known->last = one.before;
    if (changes.first_noted)
        for (u64 number = changes.first_noted; number <= changes.last_noted; number++) backlog.refuse(number);
    for (const Changes::Fed& fed : changes.fed) engine().refuse(*fed.stream, fed.what, fed.time);
    for (u64 event : changes.recorded) engine().refuse_record(event);
    for (u64 address : changes.freed) engine().keep(address);
    for (u64 number : changes.late_reads) host::forget_late_read(number);
    for (auto& [begin, was] : changes.unpinned) {
        pinned_[begin] = {was.end, was.by, 0, was.registered};
        if (was.generation) engine().refuse_unpin(was.generation, was.by, begin, was.end - begin);
    }
}

std::string Front::notes() {
    std::string calls;
    for (auto& [name, count] : unseen_)
        calls += (calls.empty() ? "" : ", ") + quoted(name) + ": " + std::to_string(count);
    return "\"unseen\": {" + calls + "}, \"launches\": " + std::to_string(launches_) +
           ", \"unknown_launches\": " + std::to_string(unknown_launches_) +
           ", \"dropped\": " + std::to_string(engine().dropped());
}

std::string Front::report() {
    Engine& engine = this->engine();
    judge_host(0);
    engine.decide_all_frees();
    return "{\"findings\": " + as_json(engine, handles_.notes()) +
           ", \"omissions\": " + omissions_as_json(engine, handles_.notes()) + ", " + notes() + "}";
}

}  // namespace check
