// The engine of the check: which accesses of a program to device memory are left unordered by the calls that it made.
//
// It is fed the program's calls, in the order in which they are made, by a front end that sees them: the simulated
// driver, callbacks on a GPU, a recorded trace. It makes no call of the driver, reads no memory, and takes no lock: a
// front end calls it under a lock of its own. Whether two operations are ordered follows from the calls, and not from
// what happened to run first; so one run finds every race of that sequence of calls.
//
// *Before* means here: on the same stream, earlier; or joined by an event that was recorded after the one and waited
// for before the other; or by the rules of the legacy default stream; or known to the host to be done when the other
// was queued; and any chain of these. order.hpp keeps that in vector clocks.
//
// *Remembered* is, for each block of memory (blocks.hpp), a list of accesses that may still turn out to be wrong
// (shadow.hpp): a new access is compared with them, and replaces those that it comes after and stands for. The list is
// bounded. A block begins with its allocation, which comes before every use, and ends with its free, which comes after:
//     alloc/use, alloc/free   the memory may not be there yet          read/write, write/read, write/write
//     read/free, write/free   it is freed too early                    (ReadWrite is a write here, Unknown a "use")
//     free/use                it may be gone; after the free: USE-AFTER-FREE
//     read/reuse, free/reuse  a pool hands a piece out again too early. What the driver hands out again itself it has
//                             put behind the free, which was judged already: that is not compared.
// An alloc is not reported beside a write that has the same cause, a free/… not beside the access before the free.
//
// *Certain*: both touch a common byte, one of them writes, and neither is before the other; or memory that is not there
// is handed to an operation. *Possible*: the same, but it depends on what a kernel does with its pointer: whether it
// writes through it (Role::Unknown), or how far it reaches from its anchor, the address that it was given, to which
// alone it goes for certain (access.hpp). An address that may be the end of the block before is not certain either, nor
// is a race of what comes after a wait that the engine cannot see, or on a stream that a library has made for itself.
//
// *Evidence*: a pointer that is a parameter is used. An address that was found among the bytes of a struct may be left
// over from an earlier launch: it makes a finding possible, and none if its memory is gone. What settles it is the
// kernel's code (settle()), a change of the memory that was seen (saw_write()), or that the front end knows the struct.
//
// *A capture* orders its operations among themselves, and judges them so; a launch of the graph is one operation of its
// stream that does all of it (graphs.hpp).
//
// A finding (findings.hpp) is a record of both accesses: stream, name and site of the operation, which are the front
// end's own numbers. The same two places are one finding with a count.
#pragma once

#include "declared.hpp"
#include "findings.hpp"
#include "graphs.hpp"
#include "pools.hpp"
#include "words.hpp"

#include <set>
#include <string>

namespace check {

class Trace;

class Engine {
  public:
    // A name of an operation, for Operation::name. These are there from the beginning.
    static constexpr u32 kAllocate = 1, kDeallocate = 2, kUse = 3;
    u32 name(const std::string& text);
    const std::string& name(u32 number) const { return names_[number]; }

    // -- streams and events. Events are named by their handles. ------------------------------------------------------
    // `library` is the name of a library that has made it for itself.
    Stream* create_stream(u64 context, u64 id, bool blocking, u32 library = 0);
    Stream* create_legacy(u64 context, u64 id);
    void destroy_stream(Stream* stream);
    void destroy_context(u64 context);
    Time record(u64 event, Stream& stream);
    void wait(Stream& stream, u64 event);
    void destroy_event(u64 event);
    // What the stream does next comes after this, by a rule of the driver's.
    void come_after(Stream& stream, const Clock& clock);
    // The stream waits in a way that is not modelled: for a value in memory, a semaphore, another process. Races of what
    // comes after that are possible, and no more.
    void wait_unseen(Stream& stream);

    // -- the host ----------------------------------------------------------------------------------------------------
    // What a call is going to wait for has to be noted when it is made, because other threads may queue more meanwhile;
    // when it returns, host_learns() takes the note.
    const Clock& queued(const Stream& stream) const { return stream.clock; }
    Clock queued_on(Stream& stream);  // of a synchronize: the legacy stream's includes the blocking streams
    Clock queued_in(u64 context) const;
    Clock queued() const;  // everywhere
    Clock recorded(u64 event) const;
    void host_learns(const Clock& clock);
    // … in a way that cannot be seen, as from a function of its own in a stream: what comes after it may be ordered.
    void host_may_learn(const Clock& clock);
    void all_is_done();

    bool host_knows(Time time) const { return order_.host().covers(time); }
    bool is_before(Time time, const Stream& stream) const { return host_knows(time) || stream.clock.covers(time); }

    // -- work --------------------------------------------------------------------------------------------------------
    // An operation that touches nothing, or these ranges.
    Time work(Stream& stream, Operation what, const Range* ranges = nullptr, std::size_t count = 0);
    // One word of a kernel's parameters: a range is added if it is an address in a block.
    void add_pointer(std::vector<Range>& ranges, u64 address, Role role) {
        if (Block* block = blocks_.find(address)) ranges.push_back(anchored(*block, address, role));
    }
    // The same, of a word that has a number, in a launch of which more is known: see launched.hpp.
    void add_pointer(std::vector<Range>& ranges, u64 address, const Through& through, const LaunchOrigin& origin);
    // Such a word, by its number: what is learned holds for what was done through it already, too.
    u32 add_word();
    void learn(u32 word, Role role);
    bool is_known(u32 word) const { return words_.is_known(word); }
    // A kernel may go somewhere else than to where it points: races there are possible, and no more.
    void doubt(u32 word);
    // The kernel's code was read: it uses the word as an address, or never does.
    void settle(u32 word, bool used);
    // Words of which a finding, or one that is kept aside, would have to know more.
    std::set<u32> open_words() const;
    // The launch at this time has changed what is behind the word, which held this address.
    void saw_write(u32 word, Time time, u64 address);

    // -- memory. Without a stream: the host's (cuMemAlloc, cuMemFree after it has waited). ---------------------------
    Time allocate(Stream* stream, Operation what, u64 address, u64 bytes, Pool pool = Pool::Driver);
    Time free(Stream* stream, Operation what, u64 address);
    // The driver has refused to free this: the memory stays.
    void keep(u64 address);
    // A pool hands out a piece of a block, and takes it again.
    void allocate_piece(Stream* stream, Operation what, u64 address, u64 bytes, Pool pool = Pool::Driver);
    void free_piece(Stream* stream, Operation what, u64 address);
    // Where the address is, or was until it was freed; nullptr: in no memory that is watched.
    const Block* find(u64 address) { return blocks_.find(address); }
    // The driver's own allocation, and not a piece of it.
    const Block* find_whole(u64 address) { return blocks_.whole(address); }
    // … into a pool that makes no stream wait: the next owner has to come after all uses, and not the free.
    void release_piece(Operation what, u64 address);
    // What was a piece is the pool's own, which may use it.
    void forget_piece(u64 address);
    // Of a caching pool: a piece of which it is not known for which stream it is; the pool waits for another stream as
    // well when the piece is returned; it is returned.
    void adopt_piece(u64 address, u64 bytes);
    void record_piece(Stream& stream, u64 address);
    void return_piece(Stream* home, Operation what, u64 address);
    // No more memory is handed out: what is withheld is decided.
    void decide_all_frees();

    // -- what xlogmem knows, see declared.hpp. A block of its own, whole or a piece, which may have a tag (a name). ------
    bool track(u64 address, u64 bytes, u32 tag);  // false: no block is just there
    void declare(u64 window, const Stream& stream, Operation what, u64 address, u64 bytes, Role role);
    void close_window(u64 window);
    void audit(bool wanted);
    const std::vector<Omission>& omissions() const { return declared_.omissions(); }
    // All addresses mean nothing any more.
    void forget_memory();

    // -- graphs ------------------------------------------------------------------------------------------------------
    void begin_capture(Stream& stream);
    // Has the stream waited for all work that other streams have captured with it? Only then is there a graph.
    bool is_joined(const Stream& stream) const { return stream.capture->is_joined(stream.lane); }
    std::shared_ptr<const Graph> end_capture(Stream& stream);
    Time launch(Stream& stream, Operation what, const Graph& graph);

    // -- findings ----------------------------------------------------------------------------------------------------
    void dead_handle(Kind kind, Operation what);
    const Findings& findings() const { return findings_; }
    void clear_findings();
    // All calls from here on are written there, see trace.hpp; nullptr ends that. From the beginning, or not at all.
    void record_to(std::shared_ptr<Trace> trace);
    u64 dropped() const { return dropped_; }  // accesses for which there was no room: races with them are not seen

  private:
    Order order_;
    Blocks blocks_;
    Findings findings_;
    Declared declared_;
    KernelWords words_;
    WithheldFrees withheld_;
    std::vector<std::string> names_{"", "allocate", "deallocate", "use"};
    std::unordered_map<std::string, u32> numbers_{
        {"", 0}, {"allocate", kAllocate}, {"deallocate", kDeallocate}, {"use", kUse}};
    std::vector<Access> found_;  // by the comparison in progress
    u64 dropped_ = 0;
    std::shared_ptr<Trace> trace_;

    Time tick(Stream& stream);
    Access access(const Stream* stream, Time time, Operation what, Role role) const;
    static Range anchored(Block& block, u64 address, Role role);
    Access launched(const Stream& stream, Time now, Operation what, const Access& captured) const;
    void end_own_memory(const Capture& capture);
    static void begin_again(Block& block, const Access& alloc);
    void touch(Stream& stream, const Access& access, Block* block);
    void touch_block(Stream& stream, const Access& access, Block& block);
    void look(const Stream& stream, const Access& access, const Block& block);
    bool gone(Stream& stream, const Access& access, const Block& block);
    void end_block(Stream* stream, const Access& free, Block& block, bool piece);
    void reuse(Stream* stream, const Access& alloc);
    void cut(u64 begin, u64 end);
    EarlierOwners earlier_owners(const Clock& home, const Access& alloc, bool piece);
    static void begin_pooled(Block& block, EarlierOwners owners);
    void meet_owners(const Stream& stream, const Access& access, Block& block);
    void withhold_found(const Access& freed, const Block& block);
    void drop_withheld(const Block& block);
    void end_withheld(const Stream* stream, const Block& whole);
    Stream* home_of_withheld(u64 id);
    void note_host_waits(const Clock& clock);
    void report_withheld(Withheld& one, bool ordered);
    void decide_frees(const Stream& home, const Access& alloc, bool piece);
    const Clock& clock_of(const Stream* stream) const { return stream ? stream->clock : order_.host(); }
    static Verdict verdict_of(const Finding& finding);
    void judge_again(u32 word);
    Finding finding_of(Kind kind, const Access& first, const Access& second, const Block& block) const;
    void report(Kind kind, const Access& first, const Access& second, const Block& block);
    void report_found(const Access& second, const Block& block);
};

}  // namespace check
