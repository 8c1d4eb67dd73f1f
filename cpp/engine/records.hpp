// Findings as text for other programs: JSON, which the front ends hand to Python.
#pragma once

#include "engine.hpp"

namespace check {

// Facts about a stream that a front end knows, and the engine does not need.
struct StreamNote {
    const char* kind = "host";  // or legacy, per-thread, made
    u32 site = 0;               // where it was made
};

// Notes by the numbers of the streams. A finding may name a stream long after its end.
class StreamNotes {
  public:
    void add(u64 id, StreamNote note) { notes_[id] = note; }
    StreamNote of(u64 id) const {
        auto found = notes_.find(id);
        return found == notes_.end() ? StreamNote{} : found->second;
    }

  private:
    std::unordered_map<u64, StreamNote> notes_;
};

// The kinds of the two accesses, as in write/read.
std::string pair_of(const Finding& finding);

// An array of findings; xlogmem/check/findings.py has the fields.
std::string as_json(const Engine& engine, const StreamNotes& notes);

// One of them.
std::string as_json(const Engine& engine, const StreamNotes& notes, const Finding& finding);

// An array of an audit's omissions; xlogmem/check/audit.py has the fields.
std::string omissions_as_json(const Engine& engine, const StreamNotes& notes);

// The text, with quotes around it.
std::string quoted(const std::string& text);

}  // namespace check
