// One finding for each pair of places and each place of the allocation: see findings.hpp.
#include "findings.hpp"

#include "journal.hpp"

namespace check {

namespace {

// Adds five words. Where the place is not known, each operation is one of its own.
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
    Finding made = finding;
    made.number = ++newest_;
    if (keep(made)) write(made);
}

void Findings::keep_again(Finding& finding, bool changed) {
    bool kept = finding.verdict != Verdict::Fine && keep(finding);
    if (kept && changed) write(finding);
    if (!kept && journal_ && !finding.is_aside()) journal_->drop(finding.number);
}

void Findings::write(const Finding& finding) {
    if (!journal_) return;
    if (!finding.is_aside()) journal_->write(finding.number, finding);
    journal_->page()->aside = aside_.all.size();
}

bool Findings::keep(const Finding& finding) {
    bool certain = finding.certain();
    Key key{u64(finding.kind), u64(certain)};
    add_access(add_access(&key[2], finding.first), finding.second);
    if (!finding.first.what.site || !finding.second.what.site) {
        key[12] = finding.begin;
        key[13] = finding.end;
    }
    List& list = finding.is_aside() ? aside_ : reported_;
    auto known_pair = list.places.find(key);
    bool is_room = list.kept[certain] < (known_pair == list.places.end() ? kMost : kMost - kForNew);
    Key pair = key;
    key[14] = u64(finding.allocated.site) + 1;
    auto known = list.places.find(key);
    if (known == list.places.end() && !is_room) known = known_pair;
    if (known != list.places.end()) {
        Finding& one = list.all[known->second];
        one.count += finding.count;
        one.newest_count =
            one.newest == finding.newest ? one.newest_count + finding.newest_count : finding.newest_count;
        one.newest = finding.newest;
    } else if (is_room) {
        list.kept[certain]++;
        list.places.emplace(key, list.all.size());
        list.places.emplace(pair, list.all.size());  // which the first one has
        list.all.push_back(finding);
        return true;
    } else if (&list == &reported_) {
        left_out_ += finding.count;
    }
    return false;
}

void Findings::clear() {
    reported_.clear();
    aside_.clear();
    left_out_ = 0;
    if (journal_) journal_->clear();
}

}  // namespace check
