// One finding for each pair of places: see findings.hpp.
#include "findings.hpp"

namespace check {

namespace {

// Five words. Where the place is not known, each operation is one of its own.
u64* add_access(u64* key, const Access& access) {
    bool known = access.what.site != 0;
    *key++ = u64(access.what.name) << 32 | access.what.site;
    *key++ = u64(access.captured) << 32 | u64(access.role);
    *key++ = known ? 0 : access.time.slot;
    *key++ = known ? 0 : access.time.number;
    *key++ = known ? 0 : access.stream;
    return key;
}

}  // namespace

std::size_t Findings::Hash::operator()(const Key& key) const {
    u64 hash = 0;
    for (u64 word : key) hash = (hash ^ word) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 32;
    return hash;
}

void Findings::add(const Finding& finding) {
    added_++;
    Key key{u64(finding.kind), u64(finding.certain)};
    add_access(add_access(&key[2], finding.first), finding.second);
    if (!finding.first.what.site || !finding.second.what.site) {
        key[12] = finding.begin;
        key[13] = finding.end;
    }
    auto known = places_.find(key);
    if (known != places_.end()) {
        all_[known->second].count++;
    } else if (kept_[finding.certain] < kMost) {
        kept_[finding.certain]++;
        places_.emplace(std::move(key), all_.size());
        all_.push_back(finding);
    } else {
        left_out_++;
    }
}

void Findings::clear() {
    all_.clear();
    places_.clear();
    kept_[0] = kept_[1] = 0;
    left_out_ = 0;
}

}  // namespace check
