// See pageable.hpp.
#include "pageable.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
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

std::vector<LateRead>& late_reads() {
    static auto& all = *new std::vector<LateRead>;
    return all;
}

// Nothing: the memory is gone, or the kernel refuses to read for us. A read of our own would be a fault.
std::optional<u64> hash_of(u64 begin, u64 end) {
    constexpr u64 kPart = 1 << 16;
    static auto& part = *new std::vector<char>(kPart);
    u64 hash = 0;
    for (u64 at = begin; at < end; at += kPart) {
        u64 bytes = std::min(kPart, end - at);
        iovec to{part.data(), bytes}, from{reinterpret_cast<void*>(at), bytes};
        if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != ssize_t(bytes)) return std::nullopt;
        hash = hash * 31 + std::hash<std::string_view>{}({part.data(), bytes});
    }
    return hash;
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
    if (std::optional<u64> hash = hash_of(begin, end)) late_reads().push_back({number, begin, end, *hash, time});
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
