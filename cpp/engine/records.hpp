// Findings as text for other programs: JSON, which the front ends hand to Python.
#pragma once

#include "engine.hpp"

namespace check {

// What a front end knows about a stream, and the engine does not care for.
struct StreamNote {
    const char* kind = "host";  // or legacy, per-thread, made
    u32 site = 0;               // where it was made
};

// By the numbers of the streams. A finding may name a stream long after its end.
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

// What the two did, as in write/read.
std::string pair_of(const Finding& finding);

// An array of findings; xlogmem/check/findings.py has the fields.
std::string as_json(const Engine& engine, const StreamNotes& notes);

// An array of what an audit has found; xlogmem/check/audit.py has the fields.
std::string omissions_as_json(const Engine& engine, const StreamNotes& notes);

// With quotes around it.
std::string quoted(const std::string& text);

}  // namespace check
