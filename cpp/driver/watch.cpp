// Feeding the engine: see watch.hpp.
#include "watch.hpp"

#include "memory.hpp"
#include "unknown.hpp"

#include "engine/records.hpp"
#include "host/guard.hpp"
#include "host/judge.hpp"
#include "host/pageable.hpp"
#include "kernels/followed.hpp"
#include "native/native.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <cstring>
#include <unordered_map>

namespace sim {

namespace {

check::Engine& engine() {
    driver().engine.act_in(this_thread().id);
    return driver().engine;
}

// Names are constants, or live as long as the driver.
check::Operation operation(const char* name) {
    static auto& known = *new std::unordered_map<const char*, u32>;
    auto made = known.try_emplace(name);
    if (made.second) made.first->second = engine().name(name);
    return {made.first->second, this_thread().site};
}

check::Role role_of(Use use) {
    return use == Use::Read ? check::Role::Read : use == Use::Write ? check::Role::Write : check::Role::ReadWrite;
}

std::string describe(const check::Access& access) {
    const std::string& name = engine().name(access.what.name);
    if (access.stream == 0) return name + " by the host";
    return name + " on stream " + std::to_string(access.stream) + " (op " + std::to_string(access.time.number) + ")";
}

std::string text_of(const check::Finding& finding) {
    std::string first = describe(finding.first), second = describe(finding.second);
    const std::string& call = engine().name(finding.second.what.name);
    std::string text = finding.certain() ? "" : "POSSIBLE ";
    switch (finding.kind) {
        case check::Kind::DeadStream:
            return "DEAD STREAM: " + call + " was called with the handle of a destroyed stream";
        case check::Kind::DeadEvent: return "DEAD EVENT: " + call + " was called with the handle of a destroyed event";
        case check::Kind::UseAfterFree: text += "USE-AFTER-FREE: " + second + " comes after " + first; break;
        case check::Kind::StaleGraph:
            text += "STALE GRAPH: " + second + " was captured for an earlier owner of what " + first + " gave out";
            break;
        case check::Kind::Race:
            text += "RACE " + check::pair_of(finding) + ": " + first + " and " + second + " are not ordered";
    }
    char range[100];
    snprintf(range, sizeof range, "; bytes [0x%llx,0x%llx) %llu B", (unsigned long long)finding.begin,
             (unsigned long long)finding.end, (unsigned long long)(finding.end - finding.begin));
    return text + range;
}

check::StreamNotes& stream_notes() {
    static auto& notes = *new check::StreamNotes;
    return notes;
}

void log_since(std::size_t before) {
    auto& all = engine().findings().all();
    for (std::size_t i = before; i < all.size(); i++) log_line("%s", text_of(all[i]).c_str());
}

void guard_host_uses() {
    for (const check::HostUse& use : engine().take_host_uses()) {
        auto* found = host_range(use.begin);  // of which the block may be a piece
        bool shared = !found || found->second.registered;
        if (!engine().host_knows(use.time)) check::host::guard(use, shared);
    }
}

// Feeds the engine; with a trace, the engine's findings are logged at once.
template <class Feed>
auto watched(Feed&& feed) {
    std::size_t before = engine().findings().all().size();
    bool guards = check::host::is_on();
    if (guards) check::host::judge(engine(), this_thread().site);  // what the host did comes before this
    auto result = feed();
    if (guards) guard_host_uses();
    if (driver().config.trace) log_since(before);
    return result;
}

}  // namespace

// The engine has given a dead stream's place to another stream, once the host knew all of the dead stream's work to be
// done.
check::Time newest(const Stream* stream) {
    return stream->order->id == stream->id ? stream->order->now() : check::Time{};
}

void note_branch(const Stream* stream) { stream_notes().add(stream->id, {"branch", this_thread().site}); }

check::Clock queued(const Stream* stream) {
    return stream->order->id == stream->id ? engine().queued(*stream->order) : check::Clock{};
}

void note_stream(const Stream* stream, bool legacy) {
    const char* kind = legacy ? "legacy" : this_thread().makes_own_stream ? "per-thread" : "made";
    stream_notes().add(stream->id, {kind, this_thread().site});
}

namespace {

check::Range seen_by_engine(const Range& range) {
    check::Range seen;
    seen.begin = range.address;
    seen.end = range.address + range.bytes;
    seen.role = role_of(range.use);
    seen.rows = range.rows;
    seen.anchor = range.anchor;
    seen.moved = range.some;
    return seen;
}

}  // namespace

check::Time watch_work(Stream* stream, const Work& work) {
    check::Range ranges[std::tuple_size<decltype(work.ranges)>::value];
    unsigned count = driver().config.races ? work.range_count : 0;
    for (unsigned i = 0; i < count; i++) ranges[i] = seen_by_engine(work.ranges[i]);
    return watched([&] { return engine().work(*stream->order, operation(work.name), ranges, count); });
}

check::Time watch_ranges(Stream* stream, const char* name, const std::vector<Range>& touched) {
    std::vector<check::Range> ranges;
    for (const Range& range : touched)
        if (range.bytes && driver().config.races) ranges.push_back(seen_by_engine(range));
    return watched([&] { return engine().work(*stream->order, operation(name), ranges.data(), ranges.size()); });
}

namespace {

constexpr u32 kLists = check::kLargestParameters;  // the words of a list are one to the engine

// Of the kernel with this name, the word at this offset.
u32 number_of_word(u32 name, u32 offset) {
    static auto& all = *new std::map<std::pair<u32, u32>, u32>;
    u32& number = all[{name, offset}];
    if (!number) number = engine().add_word();
    return number;
}

}  // namespace

check::Time watch_kernel(Stream* stream, const char* name, const KernelLaunch& launch) {
    check::Operation what = operation(name);
    if (!driver().config.races) return engine().work(*stream->order, what);
    std::vector<check::Range> ranges;
    check::Launched launched(engine(), *stream->order, launch.space, ranges);
    std::vector<check::Touch> touches;
    if (launch.first) launch.first->run(launch.space, launch.shape, &touches);
    check::FollowedWord followed(engine(), touches, launch.arrays, launch.space);
    auto through = [&](u32 word, check::Role role, bool found) {
        return check::Through{number_of_word(what.name, word), role, found};
    };
    check::each_word(
        launch.pointers, launch.layout, launch.space, launch.shape.grid,
        [&](const check::Pointer& one) {
            followed.add_to(launched, one.offset, through(one.offset, one.role, one.found), one.followed);
        },
        [&](u32 offset, u32 list) { launched.add(offset, through(kLists + list, check::Role::Unknown, false)); });
    return watched([&] { return launched.feed(what, launch.may_signal); });
}

check::Time watch_alloc(Stream* stream, u64 address, u64 bytes) {
    check::Stream* order = stream ? stream->order : nullptr;
    if (!driver().config.races) return order ? engine().work(*order, {}) : check::Time{};
    check::Pool pool = this_thread().replaces_pool ? check::Pool::Replaced : check::Pool::Driver;
    return watched([&] { return engine().allocate(order, operation(this_thread().call), address, bytes, pool); });
}

check::Time watch_free(Stream* stream, u64 address) {
    check::Stream* order = stream ? stream->order : nullptr;
    if (!driver().config.races) return order ? engine().work(*order, {}) : check::Time{};
    return watched([&] { return engine().free(order, operation(this_thread().call), address); });
}

void watch_managed(u64 address, u64 bytes) {
    watch_alloc(nullptr, address, bytes);
    if (driver().config.races) engine().manage(address);
}

void watch_pin(u64 address, u64 bytes) {
    if (!driver().config.races) return;
    watched([&] {
        check::host::judge_late_reads(engine(), address, address + bytes, this_thread().site);
        engine().pin(operation(this_thread().call), address, bytes);
        return 0;
    });
}

void watch_unpin(u64 address) {
    judge_host();
    watched([&] { return engine().unpin(operation(this_thread().call), address); });
    auto found = memory().pinned.find(address);
    if (found != memory().pinned.end()) check::host::forget(address, address + found->second.bytes);
}

void judge_host() {
    watched([] { return 0; });
}

void judge_host(const check::Clock& coming) {
    if (!check::host::is_on()) return;
    check::Clock known = engine().host();
    known.join(coming);
    check::host::examine(known);
    watched([&] {
        check::host::judge_late_reads(engine(), known, this_thread().site);
        return 0;
    });
}

void watch_late_read(const Stream* stream, check::Time time, u64 begin, u64 bytes) {
    if (!driver().config.races || !check::host::is_on()) return;
    u64 number = engine().read_late(*stream->order, operation(this_thread().call), time, begin, begin + bytes, true);
    check::host::read_late(number, begin, begin + bytes, time);
}

void forget_late_reads(u64 begin, u64 bytes) { check::host::forget_late_reads(begin, begin + bytes); }

void host_may_learn(const check::Clock& clock) {
    judge_host();
    driver().engine.host_may_learn(clock);
}

check::Time watch_record(u64 event, Stream* stream) {
    return engine().record(event, *stream->order, operation(this_thread().call));
}

void watch_wait(Stream* stream, u64 event) { engine().wait(*stream->order, event, operation(this_thread().call)); }

check::Time watch_launch(Stream* stream, const check::Graph& graph) {
    return watched([&] { return engine().launch(*stream->order, operation(this_thread().call), graph); });
}

namespace {

std::map<std::pair<check::Kind, u64>, check::Destroyed>& destroyed() {
    static auto& all = *new std::map<std::pair<check::Kind, u64>, check::Destroyed>;
    return all;
}

}  // namespace

void note_destroyed(check::Kind kind, u64 handle, u64 stream) {
    destroyed()[{kind, handle}] = {operation(this_thread().call), stream};
}

void report_dead(check::Kind kind, u64 handle) {
    watched([&] { return engine().dead_handle(kind, operation(this_thread().call), destroyed()[{kind, handle}]), 0; });
}

std::string findings_as_json() {
    judge_host();
    engine().decide_all_frees();
    return check::as_json(engine(), stream_notes());
}

namespace {

// A process ends by C's exit() too, where Python has no say. A thread that has the lock may be the one that exits.
void end_journal() {
    for (int turns = 0; turns < 100; turns++, usleep(1000)) {
        Lock lock(driver().mutex, std::try_to_lock);
        if (!lock) continue;
        judge_host();
        return engine().end_journal(notes_as_json());
    }
}

bool has_journal = false;  // findings of this process are kept

}  // namespace

void keep_findings(int file, check::Journal::FramesOf frames_of) {
    has_journal = true;
    static const bool once = [] {
        pthread_atfork(nullptr, nullptr, [] { engine().write_to(nullptr); });
        atexit(end_journal);
        return true;
    }();
    (void)once;
    engine().write_to(std::make_shared<check::Journal>(file, engine(), stream_notes(), frames_of));
}

void begin_without_python() {
    int journal = has_journal ? -1 : check::native::new_journal();
    if (journal < 0) return;
    keep_findings(journal, check::native::frames_of);
    site_of_caller = check::native::place_of_caller;
    driver().config.unknown_kernels = true;
    if (check::host::start(check::native::place_of_caller)) engine().take_host_uses();
}

std::string omissions_as_json() { return check::omissions_as_json(engine(), stream_notes()); }

namespace {
unsigned early_pools = 0;
}

void report_early_pool() { early_pools++; }

void clear_reports() {
    judge_host();
    early_pools = 0;
    engine().clear_findings();
}

std::vector<std::string> race_reports() {
    judge_host();
    engine().decide_all_frees();
    std::vector<std::string> texts(early_pools, "EARLY POOL: cuMemPoolDestroy was called while frees were pending");
    for (const check::Finding& finding : engine().findings().all()) texts.push_back(text_of(finding));
    return texts;
}

}  // namespace sim
