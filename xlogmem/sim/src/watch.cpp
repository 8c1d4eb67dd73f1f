// Feeding the engine: see watch.hpp.
#include "watch.hpp"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

namespace sim {

namespace {

check::Engine& engine() { return driver().engine; }

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

const char* word(check::Role role, bool later) {
    switch (role) {
        case check::Role::Read: return "read";
        case check::Role::Unknown: return "use";
        case check::Role::Alloc: return later ? "reuse" : "alloc";
        case check::Role::Free: return "free";
        default: return "write";
    }
}

std::string pair_of(const check::Finding& finding) {
    bool life = check::is_life(finding.first.role) && !check::is_life(finding.second.role);
    return std::string(word(finding.first.role, false)) + "/" + (life ? "use" : word(finding.second.role, true));
}

std::string text_of(const check::Finding& finding) {
    std::string first = describe(finding.first), second = describe(finding.second);
    const std::string& call = engine().name(finding.second.what.name);
    std::string text = finding.certain ? "" : "POSSIBLE ";
    switch (finding.kind) {
        case check::Kind::DeadStream:
            return "DEAD STREAM: " + call + " was called with the handle of a destroyed stream";
        case check::Kind::DeadEvent: return "DEAD EVENT: " + call + " was called with the handle of a destroyed event";
        case check::Kind::UseAfterFree: text += "USE-AFTER-FREE: " + second + " comes after " + first; break;
        case check::Kind::StaleGraph:
            text += "STALE GRAPH: " + second + " was captured for an earlier owner of what " + first + " gave out";
            break;
        case check::Kind::Race:
            text += "RACE " + pair_of(finding) + ": " + first + " and " + second + " are not ordered";
    }
    char range[100];
    snprintf(range, sizeof range, "; bytes [0x%llx,0x%llx) %llu B", (unsigned long long)finding.begin,
             (unsigned long long)finding.end, (unsigned long long)(finding.end - finding.begin));
    return text + range;
}

struct StreamNote {
    u32 site;
    const char* kind;
};

std::unordered_map<u64, StreamNote>& stream_notes() {
    static auto& notes = *new std::unordered_map<u64, StreamNote>;
    return notes;
}

// One finding as JSON. Names of operations are the driver's or a kernel's, which have no quotes in them.
std::string field(const char* key, const std::string& text) { return std::string("\"") + key + "\": \"" + text + "\""; }
std::string field(const char* key, const char* text) { return field(key, std::string(text)); }
std::string field(const char* key, u64 number) { return std::string("\"") + key + "\": " + std::to_string(number); }

std::string json_of(const check::Access& access) {
    auto found = stream_notes().find(access.stream);
    StreamNote note = found != stream_notes().end() ? found->second : StreamNote{0, "host"};
    return "{" + field("name", engine().name(access.what.name)) + ", " + field("site", access.what.site) + ", " +
           field("captured", access.captured) + ", " + field("role", word(access.role, false)) + ", \"stream\": {" +
           field("number", access.stream) + ", " + field("kind", note.kind) + ", " + field("site", note.site) + "}}";
}

std::string json_of(const check::Finding& finding) {
    static const char* const kinds[] = {"race", "use-after-free", "stale-graph", "dead-stream", "dead-event"};
    return "{" + field("kind", kinds[int(finding.kind)]) + ", " + field("pair", pair_of(finding)) +
           ", \"certain\": " + (finding.certain ? "true" : "false") + ", \"first\": " + json_of(finding.first) +
           ", \"second\": " + json_of(finding.second) + ", " + field("begin", finding.begin) + ", " +
           field("end", finding.end) + ", \"block\": {" + field("begin", finding.block_begin) + ", " +
           field("end", finding.block_end) + ", " + field("generation", finding.generation) + ", " +
           field("allocated", finding.allocated.site) + ", " + field("freed", finding.freed.site) + "}, " +
           field("count", finding.count) + "}";
}

void log_since(std::size_t before) {
    auto& all = engine().findings().all();
    for (std::size_t i = before; i < all.size(); i++) log_line("%s", text_of(all[i]).c_str());
}

// Feeds the engine; with a trace, what it finds is logged at once.
template <class Feed>
auto watched(Feed&& feed) {
    std::size_t before = engine().findings().all().size();
    auto result = feed();
    if (driver().config.trace) log_since(before);
    return result;
}

}  // namespace

// The engine has given the place of a dead stream to another one once the host knew all of its work to be done.
check::Time newest(const Stream* stream) {
    return stream->order->id == stream->id ? stream->order->now() : check::Time{};
}

check::Clock queued(const Stream* stream) {
    return stream->order->id == stream->id ? engine().queued(*stream->order) : check::Clock{};
}

void note_stream(const Stream* stream, bool legacy) {
    const char* kind = legacy ? "legacy" : this_thread().makes_own_stream ? "per-thread" : "made";
    stream_notes()[stream->id] = {this_thread().site, kind};
}

check::Time watch_work(Stream* stream, const Work& work) {
    check::Range ranges[std::tuple_size<decltype(work.ranges)>::value];
    unsigned count = driver().config.races ? work.range_count : 0;
    for (unsigned i = 0; i < count; i++) {
        const Range& range = work.ranges[i];
        ranges[i].begin = range.address;
        ranges[i].end = range.address + range.bytes;
        ranges[i].role = role_of(range.use);
    }
    return watched([&] { return engine().work(*stream->order, operation(work.name), ranges, count); });
}

check::Time watch_alloc(Stream* stream, u64 address, u64 bytes) {
    check::Stream* order = stream ? stream->order : nullptr;
    if (!driver().config.races) return order ? engine().work(*order, {}) : check::Time{};
    return watched([&] { return engine().allocate(order, operation("alloc"), address, bytes); });
}

check::Time watch_free(Stream* stream, const char* name, u64 address) {
    check::Stream* order = stream ? stream->order : nullptr;
    if (!driver().config.races) return order ? engine().work(*order, {}) : check::Time{};
    return watched([&] { return engine().free(order, operation(name), address); });
}

check::Time watch_launch(Stream* stream, const check::Graph& graph) {
    return watched([&] { return engine().launch(*stream->order, operation("graph"), graph); });
}

void report_dead(check::Kind kind) {
    watched([&] { return engine().dead_handle(kind, operation(this_thread().call)), 0; });
}

std::string findings_as_json() {
    std::string text = "[";
    for (const check::Finding& finding : engine().findings().all())
        text += (text.size() > 1 ? ", " : "") + json_of(finding);
    return text + "]";
}

std::vector<std::string> race_reports() {
    std::vector<std::string> texts;
    for (const check::Finding& finding : engine().findings().all()) texts.push_back(text_of(finding));
    return texts;
}

}  // namespace sim
