// Findings as JSON: see records.hpp.
#include "records.hpp"

#include <cstdio>

namespace check {

namespace {

const char* word(Role role, bool later) {
    switch (role) {
        case Role::Read: return "read";
        case Role::Unknown: return "use";
        case Role::Alloc: return later ? "reuse" : "alloc";
        case Role::Free: return "free";
        default: return "write";
    }
}

std::string field(const char* key, const std::string& text) { return quoted(key) + ": " + quoted(text); }
std::string field(const char* key, const char* text) { return field(key, std::string(text)); }
std::string field(const char* key, u64 number) { return quoted(key) + ": " + std::to_string(number); }

struct Writer {
    const Engine& engine;
    const StreamNotes& notes;

    std::string json_of(const Access& access) const {
        static const char* const ways[] = {"", "new", "declared", "lacking", "written"};
        return "{" + field("name", engine.name(access.what.name)) + ", " + field("site", access.what.site) + ", " +
               field("captured", access.captured) + ", " + field("role", word(access.role, false)) + ", " +
               field("library", engine.name(access.library)) + ", " + field("known", ways[int(access.known)]) + ", " +
               field("window", access.window) + ", \"stream\": " + json_of_stream(access.stream) + "}";
    }

    std::string json_of(const Finding& finding) const {
        static const char* const kinds[] = {"race", "use-after-free", "stale-graph", "dead-stream", "dead-event"};
        return "{" + field("kind", kinds[int(finding.kind)]) + ", " + field("pair", pair_of(finding)) +
               ", \"certain\": " + (finding.certain() ? "true" : "false") +
               ", \"of_driver\": " + (finding.first.of_driver || finding.second.of_driver ? "true" : "false") +
               ", \"first\": " + json_of(finding.first) + ", \"second\": " + json_of(finding.second) + ", " +
               field("begin", finding.begin) + ", " + field("end", finding.end) + ", " +
               field("tag", engine.name(finding.tag)) + ", \"tracked\": " + (finding.tracked ? "true" : "false") +
               ", \"block\": {" + field("begin", finding.block_begin) + ", " + field("end", finding.block_end) + ", " +
               field("generation", finding.generation) + ", " + field("allocated", finding.allocated.site) + ", " +
               field("freed", finding.freed.site) + "}, " + "\"wait\": " + json_of(finding.idle) + ", " +
               field("count", finding.count) + "}";
    }

    std::string json_of(const Idle& idle) const {
        static const char* const reasons[] = {"", "never recorded", "recorded before", "recorded elsewhere"};
        if (idle.why == Idle::Why::None) return "null";
        return "{" + field("why", reasons[int(idle.why)]) + ", " + field("site", idle.what.site) + ", " +
               field("recorded", idle.recorded.site) + ", \"stream\": " + json_of_stream(idle.stream) + "}";
    }

    std::string json_of_stream(u64 number) const {
        StreamNote note = notes.of(number);
        return "{" + field("number", number) + ", " + field("kind", note.kind) + ", " + field("site", note.site) + "}";
    }

    std::string json_of(const Omission& one) const {
        static const char* const kinds[] = {"outside", "written", "elsewhere"};
        bool elsewhere = one.kind == Omission::Kind::Elsewhere;
        return "{" + field("kind", kinds[int(one.kind)]) + ", " + field("name", engine.name(one.what.name)) + ", " +
               field("tag", engine.name(one.tag)) + ", " + field("site", one.what.site) + ", " +
               field("declared", one.declared) + ", " + field("stream", one.stream) + ", " +
               field("stream_kind", notes.of(one.stream).kind) +
               ", \"named\": " + (elsewhere ? json_of_stream(one.named) : "null") + ", " + field("begin", one.begin) +
               ", " + field("end", one.end) + ", " + field("count", one.count) + ", " + field("entry", one.entry) + "}";
    }
};

template <class List>
std::string array_of(const List& list, const Writer& writer) {
    std::string text = "[";
    for (const auto& one : list) text += (text.size() > 1 ? ", " : "") + writer.json_of(one);
    return text + "]";
}

}  // namespace

std::string quoted(const std::string& text) {
    std::string made = "\"";
    for (unsigned char letter : text) {
        char escape[8] = {char(letter)};
        if (letter == '"' || letter == '\\') snprintf(escape, sizeof escape, "\\%c", letter);
        if (letter < 0x20) snprintf(escape, sizeof escape, "\\u%04x", letter);
        made += escape;
    }
    return made + "\"";
}

std::string pair_of(const Finding& finding) {
    bool life = is_life(finding.first.role) && !is_life(finding.second.role);
    return std::string(word(finding.first.role, false)) + "/" + (life ? "use" : word(finding.second.role, true));
}

std::string as_json(const Engine& engine, const StreamNotes& notes) {
    return array_of(engine.findings().all(), Writer{engine, notes});
}

std::string as_json(const Engine& engine, const StreamNotes& notes, const Finding& finding) {
    return Writer{engine, notes}.json_of(finding);
}

std::string omissions_as_json(const Engine& engine, const StreamNotes& notes) {
    return array_of(engine.omissions(), Writer{engine, notes});
}

}  // namespace check
