// Shadow memory and the comparison of accesses: see races.hpp for the idea.
#include "races.hpp"

#include "memory.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_set>

namespace sim {

namespace {

constexpr std::size_t kMaxReports = 1000;  // a loop with a bug in it reports every round

std::unordered_set<std::string>& seen() {
    static auto& set = *new std::unordered_set<std::string>;
    return set;
}

std::string describe(const Access& access) {
    char text[160];
    if (access.stream_id == 0)
        snprintf(text, sizeof text, "%s by the host", access.name);
    else
        snprintf(text, sizeof text, "%s on stream %llu (op %llu)", access.name, (unsigned long long)access.stream_id,
                 (unsigned long long)access.sequence);
    return text;
}

Access access_of(const Actor& actor) {
    if (!actor.stream) return {actor.name, 0, 0, 0};
    return {actor.name, actor.stream->slot, actor.sequence, actor.stream->id};
}

void add_report(const std::string& text) {
    if (race_reports().size() >= kMaxReports || !seen().insert(text).second) return;
    race_reports().push_back(text);
    if (driver().config.trace) log_line("%s", text.c_str());
}

void report(const char* kind, const Access& earlier, const Actor& actor, u64 begin, u64 end, bool ordered = false) {
    char range[100];
    snprintf(range, sizeof range, "; bytes [0x%llx,0x%llx) %llu B", (unsigned long long)begin, (unsigned long long)end,
             (unsigned long long)(end - begin));
    std::string text = kind;
    if (ordered)
        text += ": " + describe(access_of(actor)) + " comes after " + describe(earlier);
    else
        text += ": " + describe(earlier) + " and " + describe(access_of(actor)) + " are not ordered";
    add_report(text + range);
}

// What the host did is before everything that it queues later.
bool ordered(const Access& earlier, const Clock& clock) {
    return !earlier.name || earlier.stream_id == 0 || clock.covers(earlier.slot, earlier.sequence);
}

bool is_alloc(const Access& access) { return access.name && !strcmp(access.name, "alloc"); }

// Splits a segment so that a boundary falls on `at`.
void split(std::vector<Segment>& shadow, u64 at) {
    for (std::size_t i = 0; i < shadow.size(); i++) {
        if (shadow[i].begin < at && at < shadow[i].end) {
            Segment tail = shadow[i];
            tail.begin = at;
            shadow[i].end = at;
            shadow.insert(shadow.begin() + i + 1, std::move(tail));
            return;
        }
    }
}

void add_read(Segment& segment, const Access& read) {
    for (Access& known : segment.reads) {
        if (known.slot == read.slot) {  // the newest of a stream stands for all of them
            known = read;
            return;
        }
    }
    segment.reads.push_back(read);
}

// Reports everything in the segment that is not ordered before the actor. `kinds` names the pairs.
struct Kinds {
    const char *after_alloc, *after_write, *after_read;
};
constexpr Kinds kRead{"RACE alloc/use", "RACE write/read", nullptr};
constexpr Kinds kWrite{"RACE alloc/use", "RACE write/write", "RACE read/write"};
constexpr Kinds kFree{"RACE alloc/free", "RACE write/free", "RACE read/free"};
constexpr Kinds kReuse{"RACE alloc/reuse", "RACE write/reuse", "RACE read/reuse"};

void compare(const Segment& segment, const Actor& actor, const Kinds& kinds, u64 begin, u64 end) {
    const Clock& clock = actor.clock();
    if (!ordered(segment.write, clock))
        report(is_alloc(segment.write) ? kinds.after_alloc : kinds.after_write, segment.write, actor, begin, end);
    if (!kinds.after_read) return;
    for (const Access& read : segment.reads)
        if (!ordered(read, clock)) report(kinds.after_read, read, actor, begin, end);
}

}  // namespace

std::vector<std::string>& race_reports() {
    static auto& reports = *new std::vector<std::string>;
    return reports;
}

void clear_races() {
    race_reports().clear();
    seen().clear();
}

void report_dead(const char* kind, const char* what) {
    add_report(std::string("DEAD ") + kind + ": " + this_thread().call + " was called with the handle of a destroyed " +
               what);
}

void check_range(const Actor& actor, const Range& range) {
    Block* block = find_block(range.address);
    if (!block) return;  // host memory is not watched
    u64 begin = range.address, end = std::min(range.address + range.bytes, block->address + block->capacity);
    if (!block->live) {
        bool after = ordered(block->freed_by, actor.clock());
        report(after ? "USE-AFTER-FREE" : "RACE free/use", block->freed_by, actor, begin, end, after);
    }
    split(block->shadow, begin);
    split(block->shadow, end);
    const Kinds& kinds = range.use == Use::Read ? kRead : kWrite;
    Access access = access_of(actor);
    std::size_t first = block->shadow.size(), last = 0;
    for (std::size_t i = 0; i < block->shadow.size(); i++) {
        Segment& segment = block->shadow[i];
        if (segment.end <= begin || segment.begin >= end) continue;
        // A freed block was reported above; against its earlier accesses there is nothing more to say.
        if (block->live) compare(segment, actor, kinds, segment.begin, segment.end);
        if (range.use == Use::Read) {
            add_read(segment, access);
        } else {
            segment.write = access;
            segment.reads.clear();
        }
        first = std::min(first, i);
        last = i;
    }
    // After a write all its segments are the same: one will do.
    if (range.use != Use::Read && first < last) {
        block->shadow[first].end = block->shadow[last].end;
        block->shadow.erase(block->shadow.begin() + first + 1, block->shadow.begin() + last + 1);
    }
}

void check_free(const Actor& actor, Block* block) {
    if (!driver().config.races) return;
    for (Segment& segment : block->shadow) compare(segment, actor, kFree, segment.begin, segment.end);
    block->freed_by = access_of(actor);
    block->shadow.resize(1);
    block->shadow[0].begin = block->address;
    block->shadow[0].end = block->address + block->size;
    block->shadow[0].write = block->freed_by;
    block->shadow[0].reads.clear();
}

void check_alloc(const Actor& actor, Block* block, bool check) {
    if (!driver().config.races) return;
    if (check)
        for (Segment& segment : block->shadow) compare(segment, actor, kReuse, segment.begin, segment.end);
    block->shadow.resize(1);
    block->shadow[0].begin = block->address;
    block->shadow[0].end = block->address + block->size;
    block->shadow[0].write = actor.stream ? access_of(actor) : Access{};
    block->shadow[0].reads.clear();
}

}  // namespace sim
