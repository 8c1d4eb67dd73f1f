// Streams and events by the driver's handles, for front ends that see nothing else of them.
//
// A destroyed handle may be given to a new stream or event, which is then a different one. A call with a destroyed
// handle that was not given out again is a finding. A handle that was never seen belongs to a stream or event that was
// made before the check began.
#pragma once

#include "records.hpp"

#include <map>
#include <set>

namespace check {

struct Caller {
    u64 context = 0;  // that is current
    u64 thread = 0;
};

class Handles {
  public:
    static constexpr u64 kLegacy = 1, kPerThread = 2;  // and 0 is the legacy default stream, too

    explicit Handles(Engine& engine) : engine_(engine) {}

    struct Making {
        bool blocking;
        u32 library = 0;  // the name of a library that makes the stream for itself
        u32 site = 0;
    };
    void create_stream(u64 handle, u64 context, const Making& making);
    // The stream that a call on this handle works on; nullptr, and a finding, if the stream was destroyed.
    Stream* stream(u64 handle, Caller caller, Operation what) {
        Stream* found = find(handle, caller, what.site);
        if (!found) engine_.dead_handle(Kind::DeadStream, what, dead_streams_[handle]);
        return found;
    }
    // The same, for a stream that was seen before; else nullptr. Changes nothing.
    Stream* known(u64 handle, Caller caller) const;
    // The same, without a finding, for handles that are not in a call: a pool may remember a stream that is gone.
    Stream* find(u64 handle, Caller caller, u32 site);
    void destroy_stream(u64 handle, Operation what) { end_stream(handle, doomed_stream(handle, what), what); }

    void create_event(u64 handle, u64 context);
    bool is_alive(u64 event, Operation what);  // else there is a finding
    void destroy_event(u64 handle, Operation what) { end_event(handle, doomed_event(handle, what), what); }

    // A front end that learns afterwards whether the driver has refused destroys in two steps: it finds what is to be
    // destroyed, and a finding if that was done before, and ends it. Meanwhile the handle may have been given out again.
    Stream* doomed_stream(u64 handle, Operation what);  // nullptr: none
    void end_stream(u64 handle, Stream* stream, Operation what);
    u64 doomed_event(u64 handle, Operation what);  // kNoEvent: none
    bool end_event(u64 handle, u64 event, Operation what);  // false: the handle is another event's
    static constexpr u64 kNoEvent = ~u64(0);

    void end_thread(u64 thread);  // with its default streams
    void end_context(u64 context, Operation what);  // with its streams and events

    const StreamNotes& notes() const { return notes_; }

  private:
    Engine& engine_;
    StreamNotes notes_;
    std::unordered_map<u64, Stream*> streams_;               // nullptr: destroyed
    std::unordered_map<u64, Stream*> legacy_;                // by context
    std::map<std::pair<u64, u64>, Stream*> own_;             // by thread and context
    std::unordered_map<u64, std::set<u64>> of_context_;      // handles of streams
    std::unordered_map<u64, Destroyed> dead_streams_, dead_events_;  // those, and streams made at their handles since
    struct Made {
        u64 context = 0, number = 0;
    };
    std::unordered_map<u64, Made> events_;  // by handle, those that were seen made
    u64 newest_id_ = 0, newest_event_ = 0;

    u64 new_id(const char* kind, u32 site);
};

}  // namespace check
