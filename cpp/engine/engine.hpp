// The engine of the check: finds the accesses of the device to memory that a program's calls leave unordered.
//
// A front end feeds the engine with the program's calls, in the order in which they are made: the simulated driver,
// callbacks on a GPU, or the reader of a recorded trace. The engine makes no driver call, reads no memory and takes no
// lock: a front end calls the engine under a lock of its own. The engine derives the order of two operations from the
// calls, and not from the order in which they happened to run; so one run finds every race of that sequence of calls.
//
// *Before*: an operation is before another if it is earlier on the same stream; or if an event that was recorded after
// it was waited for before the other; or by the rules of the legacy default stream; or if the host knew it to be done
// when the other was queued; or by any chain of these. order.hpp keeps this relation in vector clocks.
//
// *Remembered*: for each block of memory (blocks.hpp) the engine keeps a list of accesses that later accesses may
// conflict with (shadow.hpp). A new access is compared with the list, and replaces the accesses that it comes after and
// stands for. The list is bounded. A block begins with its allocation, which must come before every use, and ends with
// its free, which must come after every use:
//     alloc/use, alloc/free   the memory may not be there yet          read/write, write/read, write/write
//     read/free, write/free   it is freed too early                    (ReadWrite is a write here, Unknown a "use")
//     free/use                it may be gone; after the free: USE-AFTER-FREE
//     read/reuse, free/reuse  a pool hands a piece out again too early. Memory that the driver itself hands out again
//                             is not compared: the driver has ordered it after the free, which was judged already.
// The engine does not report an alloc beside a write that has the same cause, nor a free/… beside the access before the
// free.
//
// *Memory of the host* that is page-locked is watched as memory of a device is (host_memory.cpp). A front end that sees
// what the host itself does there, or in managed memory, says so (touch_by_host(); host/guard.hpp is how it sees that).
// A kernel that may write there, and may signal, may be how the host learns that earlier work is done: a finding that
// only this would order is possible. A free while the device may use the memory is possible too: drivers wait.
//
// *Certain*: both accesses touch a common byte, one of them writes, and neither is before the other; or memory that is
// not there is handed to an operation. *Possible*: the same, but the finding depends on how a kernel uses its pointer:
// whether it writes through the pointer (Role::Unknown), or how far it reaches from its anchor. The anchor is the
// address that the kernel was given, the only one that it touches for certain (access.hpp). Three more cases are
// possible only: an address that may be the end of the block before, a race of work that follows a wait which the
// engine cannot see, and a race of work on a stream that a library has made for itself.
//
// *Evidence*: a pointer that is a parameter is used. An address that was found among the bytes of a struct may be left
// over from an earlier launch: such an address makes a finding possible, and makes none if its memory is gone. The
// question is settled by the kernel's code (settle()), by a change of the memory that was seen (saw_write()), or by a
// front end that knows the struct.
//
// *A capture* orders its operations among themselves, and the engine judges them in that order; a launch of the graph
// is one operation of its stream that does all of them (graphs.hpp).
//
// A finding (findings.hpp) is a record of both accesses: stream, name and site of the operation, as the front end's own
// numbers. Findings at the same two places are one finding with a count.
#pragma once

#include "declared.hpp"
#include "findings.hpp"
#include "graphs.hpp"
#include "host_use.hpp"
#include "pools.hpp"
#include "replaced.hpp"
#include "words.hpp"

#include <atomic>
#include <deque>
#include <set>
#include <string>

namespace check {

class Trace;

class Engine {
  public:
    // A name of an operation, for Operation::name. The names below exist from the beginning.
    static constexpr u32 kAllocate = 1, kDeallocate = 2, kUse = 3;
    u32 name(const std::string& text);
    const std::string& name(u32 number) const { return names_[number]; }

    // -- streams and events. Events are named by their handles. ------------------------------------------------------
    // `library` is the name of the library that has made the stream for itself.
    Stream* create_stream(u64 context, u64 id, bool blocking, u32 library = 0);
    Stream* create_legacy(u64 context, u64 id);
    void destroy_stream(Stream* stream);
    void destroy_context(u64 context);
    Time record(u64 event, Stream& stream, Operation what = {});
    // The driver has refused the newest record: the one before it counts again.
    void refuse_record(u64 event);
    void wait(Stream& stream, u64 event, Operation what = {});
    void destroy_event(u64 event);
    // Orders all further work of the stream after `clock`, by a rule of the driver.
    void come_after(Stream& stream, const Clock& clock);
    // The driver has refused what ordered the stream: it comes after what it came after before.
    void refuse_order(Stream& stream, const Clock& before);
    // The stream waits in a way that is not modelled: for a value in memory, a semaphore, another process. Races of the
    // stream's later work are possible at most.
    void wait_unseen(Stream& stream);

    // -- the host ----------------------------------------------------------------------------------------------------
    // A front end notes the clock of a blocking call when the call is made, because other threads may queue more work
    // meanwhile, and passes the clock to host_learns() when the call returns.
    const Clock& queued(const Stream& stream) const { return stream.clock; }
    // Of a synchronize: the legacy stream's includes the blocking streams.
    Clock queued_on(const Stream& stream) const { return order_.queued_on(stream); }
    Clock queued_in(u64 context) const;
    Clock queued() const;  // everywhere
    Clock recorded(u64 event) const;
    void host_learns(const Clock& clock);
    void host_awaits(const Stream& stream);  // beside that: which stream a synchronize names
    // The host waits in a way that cannot be seen, as from a function of its own in a stream: later work may be
    // ordered.
    void host_may_learn(const Clock& clock);
    // A library has found this work done, by a query of its own for a pool of host memory.
    void host_pools_learn(const Clock& clock);
    // This memory, which was just allocated, is managed: the host reaches it, too.
    void manage(u64 address);
    // The host reads or writes these bytes of page-locked or managed memory itself. `sure`: else it may have meant others.
    void touch_by_host(Operation what, u64 begin, u64 end, Role role, bool sure);
    // The operation at this time reads pageable memory of the host when it runs; returns a number for that. `sure`: else
    // kernels may write there, too. `changed`: the host did that before the operation was known to be done.
    u64 read_late(const Stream& stream, Operation what, Time time, u64 begin, u64 end, bool sure);
    void find_changed(u64 number, Operation changed, Role role);
    // What was queued on such memory since the last call, from the first call on.
    std::vector<HostUse> take_host_uses();
    const Clock& host() const { return order_.host(); }
    void all_is_done();

    bool host_knows(Time time) const { return order_.host().covers(time); }
    bool is_before(Time time, const Stream& stream) const { return host_knows(time) || stream.clock.covers(time); }

    // -- work --------------------------------------------------------------------------------------------------------
    // Adds an operation that touches nothing, or these ranges. `may_signal`: a kernel that writes memory of the host may
    // let the host know by it of what came before.
    Time work(Stream& stream, Operation what, const Range* ranges = nullptr, std::size_t count = 0,
              bool may_signal = true);
    // The driver has refused this work: its accesses are forgotten, with their findings.
    void refuse(Stream& stream, Operation what, Time time);
    // Takes one word of a kernel's parameters, and adds a range if the word is an address in a block.
    void add_pointer(std::vector<Range>& ranges, u64 address, Role role) {
        if (Block* block = blocks_.find(address)) ranges.push_back(anchored(*block, address, role));
    }
    // The same, for a numbered word of a launch about which more is known: see launched.hpp.
    void add_pointer(std::vector<Range>& ranges, u64 address, const Through& through,
                     const KernelWords::Launch& launch);
    // For the launch that comes next: its numbers are to be filled in, and kept.
    KernelWords::Launch& new_launch() {
        launch_.numbers.clear();
        return launch_;
    }
    void keep_numbers(KernelWords::Launch& launch) { words_.keep(launch); }
    // Adds such a word and returns its number. A role learned later also holds for earlier accesses through the word.
    u32 add_word();
    void learn(u32 word, Role role);
    bool is_known(u32 word) const { return words_.is_known(word); }
    // The numbers in these places vary between launches on the same memory, and between two on different streams.
    void vary(u32 word, ParameterPlaces anywhere, ParameterPlaces between_streams);
    // The kernel's code was read: the kernel uses the word as an address, or never does; and these numbers matter.
    void settle(u32 word, bool used);
    void limit(u32 word, const LaunchNumbers& numbers);
    // Words about which a finding, or a finding that is kept aside, needs to know more.
    std::set<u32> open_words() const;
    // The launch at this time has changed the memory behind the word, which held this address.
    void saw_write(u32 word, Time time, u64 address);

    // -- memory. Without a stream: the host's (cuMemAlloc, cuMemFree after it has waited). ---------------------------
    Time allocate(Stream* stream, Operation what, u64 address, u64 bytes, Pool pool = Pool::Driver, u64 context = 0);
    Time free(Stream* stream, Operation what, u64 address);
    // The host's, which waits for the work that `clock` covers. The host learns of this work when the call returns.
    void free_after(const Clock& clock, Operation what, u64 address);
    // For memory that the host has freed. The driver may put a module's variables at its addresses, and no call says so:
    // the addresses of the uses found since the last call, for the front end to look there; and that there is memory,
    // so that no such use was one.
    bool has_freed_uses() const { return has_freed_uses_.load(std::memory_order_relaxed); }  // by any thread
    std::vector<u64> take_freed_uses();
    void find_memory(u64 address);
    // The driver has refused this free: the memory stays. What was done to it before is forgotten.
    void keep(u64 address);
    // Page-locked memory of the host begins: it was allocated or registered. It ends: its addresses mean nothing any
    // more; returns the generation of its block. The driver has refused that: it was `what` that had made it.
    void pin(Operation what, u64 address, u64 bytes);
    u64 unpin(Operation what, u64 address);
    void refuse_unpin(u64 generation, Operation what, u64 address, u64 bytes);
    // A pool hands out a piece of a block, and takes the piece again.
    void allocate_piece(Stream* stream, Operation what, u64 address, u64 bytes, Pool pool = Pool::Driver);
    void free_piece(Stream* stream, Operation what, u64 address);
    // The block that holds the address, or held it until it was freed; nullptr: the address is in no watched memory.
    const Block* find(u64 address) { return blocks_.find(address); }
    // The driver's own allocation at the address, and not a piece of it.
    const Block* find_whole(u64 address) { return blocks_.whole(address); }
    // Frees a piece into a pool that makes no stream wait: the next owner has to come after all uses, not after the
    // free.
    void release_piece(Operation what, u64 address);
    // The piece belongs to the pool again, which may use the memory itself.
    void forget_piece(u64 address);
    // For caching pools. adopt_piece(): a piece whose stream is not known. record_piece(): the pool waits for another
    // stream as well when the piece is returned. return_piece(): the piece is returned.
    void adopt_piece(u64 address, u64 bytes);
    void record_piece(Stream& stream, u64 address);
    void return_piece(Stream* home, Operation what, u64 address);
    // The program hands out no more memory: decides all withheld findings.
    void decide_all_frees();

    // -- declarations of xlogmem, see declared.hpp: its own blocks, whole or pieces, which may have a tag (a name). ---
    void act_in(u64 thread);  // the program's, which makes all further calls
    bool track(u64 address, u64 bytes, u32 tag);  // false: no block is just there
    void declare(u64 window, const Stream& stream, Operation what, u64 address, u64 bytes, Role role);
    void close_window(u64 window, bool launched);
    void audit(bool wanted);
    const std::vector<Omission>& omissions() const { return declared_.omissions(); }
    // Forgets all blocks: no address means anything any more.
    void forget_memory();

    // -- graphs ------------------------------------------------------------------------------------------------------
    void begin_capture(Stream& stream);
    // True if the stream has waited for all work that other streams have captured with it; only then is there a graph.
    bool is_joined(const Stream& stream) const { return stream.capture->is_joined(stream.lane); }
    std::shared_ptr<const Graph> end_capture(Stream& stream);
    Time launch(Stream& stream, Operation what, const Graph& graph);

    // -- findings ----------------------------------------------------------------------------------------------------
    void dead_handle(Kind kind, Operation what, const Destroyed& destroyed);
    const Findings& findings() const { return findings_; }
    void clear_findings();
    // Writes all further calls to a trace, see trace.hpp; nullptr ends that. To be called at the beginning, or not at
    // all.
    void record_to(std::shared_ptr<Trace> trace);
    // Writes findings to the journal as they are made; nullptr ends that.
    void write_to(std::shared_ptr<Journal> journal);
    JournalPage& page() { return *page_; }
    // The process ends, and no call is judged any more. `notes`: JSON of the front end's.
    void end_journal(const std::string& notes);
    u64 dropped() const { return dropped_; }  // accesses for which there was no room: races with them are not seen

  private:
    Order order_;
    Blocks blocks_;
    Findings findings_;
    Declared declared_;
    KernelWords words_;
    KernelWords::Launch launch_;
    WithheldFrees withheld_;
    std::vector<std::string> names_{"", "allocate", "deallocate", "use"};
    std::unordered_map<std::string, u32> numbers_{
        {"", 0}, {"allocate", kAllocate}, {"deallocate", kDeallocate}, {"use", kUse}};
    std::vector<Access> found_;  // by the comparison in progress
    Replaced replaced_;
    std::vector<HostUse> host_uses_;
    std::deque<Access> late_reads_;  // the newest, which are numbered from 1 on
    u64 late_count_ = 0;
    bool keeps_host_uses_ = false;
    std::vector<u64> freed_uses_;
    std::atomic<bool> has_freed_uses_{false};
    u64 dropped_ = 0;
    u64 thread_ = 0;
    std::shared_ptr<Trace> trace_;
    std::shared_ptr<Journal> journal_;
    JournalPage no_journal_;
    JournalPage* page_ = &no_journal_;

    Time tick(Stream& stream);
    Access access(const Stream* stream, Time time, Operation what, Role role) const;
    static Range anchored(Block& block, u64 address, Role role);
    Access launched(const Stream& stream, Time now, Operation what, const Access& captured) const;
    void end_own_memory(const Capture& capture);
    static void begin_again(Block& block, const Access& alloc);
    void touch(Stream& stream, const Access& access, Block* block);
    void touch_block(Stream& stream, const Access& access, Block& block);
    void touch_host(Stream& stream, const Access& access, Block& block);
    void keep_host_use(const Access& access, const Block& block);
    Known look(const Stream& stream, Access& access, const Block& block);
    bool gone(Stream& stream, const Access& access, const Block& block);
    void note_freed_use(const Access& access);
    void end_block(const Clock& clock, const Access& free, Block& block, bool piece);
    void end_whole(Stream* stream, const Clock& clock, const Access& free, Block& block);
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
    void note_varied(u32 word);
    Idle idle_wait(const Access& first, const Access& second) const;
    static void note_wait(Stream& stream, Operation what, const Event* event);
    Finding finding_of(Kind kind, const Access& first, const Access& second, const Block& block) const;
    void report(Kind kind, const Access& first, const Access& second, const Block& block);
    bool is_wrong(const Access& second, const Block& block) const;
    void report_found(const Access& second, const Block& block);
    // Drops the newest pairs of these findings.
    template <class Test>
    void drop_newest(Test&& test) {
        findings_.judge_again([&](Finding& finding) {
            if (!test(finding)) return;
            if (finding.count <= finding.newest_count) finding.verdict = Verdict::Fine;
            finding.count -= finding.newest_count;
        });
    }
};

}  // namespace check
