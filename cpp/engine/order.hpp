// The order of a program's calls: streams, events, the host, and the rules of the default streams.
//
//   A stream      does its operations one after the other.
//   An event      stands for all that its stream had done, and come after, at the event's last record. A later record
//                 does not change a wait that is queued already; a wait for an event that was never recorded is
//                 nothing.
//   The legacy    default stream of a context comes after all that its blocking streams have queued, and they after it.
//   default       A per-thread default stream is a blocking stream like any other.
//   The host      has one clock for all its threads: the check does not see how threads hand over to each other
//                 (queues, locks), and a clock for each would make false alarms. The clock rises where a call has
//                 waited, or a query of the program's has found work done. Work that the host knows to be done is
//                 before everything that is queued afterwards.
#pragma once

#include "access.hpp"

#include <memory>
#include <unordered_map>
#include <vector>

namespace check {

class Capture;

// A wait of a stream for an event, as the event was then.
struct Waited {
    Operation what;
    bool recorded = false;
    u64 stream = 0;  // that it was recorded on
    Time time;
    Operation recorded_by;
};

struct Stream {
    u64 id = 0;  // the front end's number, for its reports
    u64 context = 0;
    bool blocking = true;
    bool legacy = false;  // the default stream of the context
    bool dead = false;
    u32 library = 0;  // the name of the library that has made it for itself
    u32 slot = 0;
    u64 newest = 0;  // the number of its newest operation
    Clock clock;
    u64 changes = 0;  // of the clock
    u64 host_seen = 0, legacy_seen = 0, seen_by_legacy = 0;  // whose clock was joined in which state
    // For which operation the stream came after the legacy stream, or that after the others, and its own clock before.
    u64 collected_for = 0;
    Clock before;
    // Of the legacy stream: Order::other_changes_ when it collected the others' clocks; what it took of destroyed ones.
    u64 collected = 0;
    Clock taken;

    // The newest waits between two operations; a finding says which did not order it.
    static constexpr std::size_t kMostWaits = 4;
    std::vector<Waited> waits;
    bool has_worked = false;  // since then

    // While the stream captures, its operations are those of the capture: see graphs.hpp.
    std::shared_ptr<Capture> capture;
    u32 lane = 0;

    Time now() const { return {slot, newest}; }
};

struct Record {
    Clock clock;
    bool recorded = false;
    std::weak_ptr<Capture> capture;  // recorded on a capturing stream
    bool captured = false;
    u64 stream = 0;
    Time time;
    Operation what;
};

struct Event : Record {
    Record before;  // which counts again if the driver refuses the newest
};

class Order {
  public:
    // `id` and `context` are the front end's numbers. A stream object stays valid until the stream is destroyed; the
    // object is reused for another stream as soon as nothing can show the difference.
    Stream* create(u64 context, u64 id, bool blocking, bool legacy);
    void destroy(Stream* stream);
    void destroy_context(u64 context);

    // The next operation of a stream. settle() orders the stream after everything that each of its operations comes
    // after.
    Time tick(Stream& stream) {
        if (stream.blocking || stream.host_seen != host_changes_) settle(stream);
        stream.newest++;
        note_change(stream);
        stream.clock.set(stream.now());
        return stream.now();
    }
    void settle(Stream& stream);
    void join(Stream& stream, const Clock& clock);
    // The driver has refused the operation: if it is the stream's newest, it has brought the stream after no other.
    void refuse(Stream& stream, Time time);
    // True if one is the legacy stream and the other a blocking one: each comes after what the other has queued before.
    bool order_themselves(const Access& access, const Stream& stream) const {
        if (!access.stream || !stream.blocking || access.time.slot >= streams_.size()) return false;
        const Stream& other = *streams_[access.time.slot];
        return other.id == access.stream && !other.dead && other.blocking && other.context == stream.context &&
               (other.legacy || stream.legacy);
    }
    void set_back(Stream& stream, const Clock& clock);

    Event& event(u64 handle) { return events_[handle]; }
    const Event* find_event(u64 handle) const;
    void destroy_event(u64 handle) { events_.erase(handle); }

    void host_learns(const Clock& clock);
    void host_may_learn(const Clock& clock);
    const Clock& host() const { return host_; }
    // What a pool of host memory has found done: it hands out memory to an owner who comes after that.
    void host_pools_learn(const Clock& clock) { pools_.join(clock); }
    // `clock` and that, made in `room` where a pool has found anything.
    const Clock& seen_from_host_memory(const Clock& clock, Clock& room) const {
        if (pools_.is_empty()) return clock;
        room = clock;
        room.join(pools_);
        return room;
    }
    // True if the host may have waited for this operation.
    bool is_doubtful(Time time) const { return doubtful_.covers(time); }
    void all_is_done();

    // What a synchronize of the stream waits for: for the legacy stream the context's blocking streams, too.
    Clock queued_on(const Stream& stream) const;
    // Adds what the streams of this context have queued, the destroyed ones too; or all streams.
    void add_queued(Clock& clock, u64 context) const;
    void add_queued(Clock& clock) const;
    const std::vector<std::unique_ptr<Stream>>& streams() const { return streams_; }

  private:
    // What the destroyed streams of a context have done and come after. Each has no clock of its own any more, or the
    // clocks would need the square of the number of streams that come and go.
    struct Ended {
        Clock all, blocking;  // `blocking`: which the legacy stream has not collected
    };
    std::vector<std::unique_ptr<Stream>> streams_;  // by slot
    std::vector<Stream*> live_, dead_, free_;  // `free_`: a new stream can count on in their slots
    std::unordered_map<u64, Ended> ended_;  // by context
    u64 looked_ = 0;  // at the dead ones: host_changes_ then
    std::unordered_map<u64, Stream*> legacy_;  // by context
    std::unordered_map<u64, Event> events_;
    Clock host_, doubtful_, pools_;
    u64 host_changes_ = 1;
    u64 other_changes_ = 1;  // of the clocks of all streams that are not legacy ones

    void note_change(Stream& stream) {
        stream.changes++;
        other_changes_ += !stream.legacy;
    }
    Stream* free_slot();
    bool is_free(const Stream& dead) const { return !dead.capture && host_.covers(dead.now()); }
    void collect(Stream& legacy);
};

}  // namespace check
