// See pageable.hpp.
#include "pageable.hpp"

#include "parts.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

namespace check::host {

namespace {

struct LateRead {
    u64 number, begin, end;
    u64 hash;
    Time time;
};

// In order of their numbers.
std::deque<LateRead>& late_reads() {
    static auto& all = *new std::deque<LateRead>;
    return all;
}

// False: the memory is gone, or the kernel refuses to read for us. A read of our own would be a fault.
bool add_hash(Window range, u64& hash) {
    constexpr u64 kRoom = 1 << 16;
    static auto& room = *new std::vector<char>(kRoom);
    for (u64 at = range.begin; at < range.end; at += kRoom) {
        u64 bytes = std::min(kRoom, range.end - at);
        iovec to{room.data(), bytes}, from{reinterpret_cast<void*>(at), bytes};
        if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != ssize_t(bytes)) return false;
        hash = hash * 31 + std::hash<std::string_view>{}({room.data(), bytes});
    }
    return true;
}

// Of the parts of the range. Nothing: one of them cannot be read.
std::optional<u64> hash_of(u64 begin, u64 end) {
    u64 hash = 0;
    bool is_there = true;
    each_part({begin, end}, [&](Window part) { is_there = is_there && add_hash(part, hash); });
    return is_there ? std::optional(hash) : std::nullopt;
}

// Compares those, and forgets them.
template <class Which>
void examine(Which which, const Changed& changed) {
    std::erase_if(late_reads(), [&](const LateRead& one) {
        if (!which(one)) return false;
        std::optional<u64> hash = hash_of(one.begin, one.end);
        if (hash != one.hash) changed(one.number, !hash);
        return true;
    });
}

}  // namespace

void read_late(u64 number, u64 begin, u64 end, Time time) {
    auto& all = late_reads();
    while (!all.empty() && all.front().number + kMostLateReads <= number) all.pop_front();
    if (std::optional<u64> hash = hash_of(begin, end)) all.push_back({number, begin, end, *hash, time});
}

void forget_late_reads(u64 begin, u64 end) {
    std::erase_if(late_reads(), [&](const LateRead& one) { return one.begin < end && begin < one.end; });
}

void forget_late_read(u64 number) {
    std::erase_if(late_reads(), [&](const LateRead& one) { return one.number == number; });
}

void examine_late_reads(const Clock& coming, const Changed& changed) {
    examine([&](const LateRead& one) { return coming.covers(one.time); }, changed);
}

void examine_late_reads(u64 begin, u64 end, const Changed& changed) {
    examine([&](const LateRead& one) { return one.begin < end && begin < one.end; }, changed);
}

}  // namespace check::host
