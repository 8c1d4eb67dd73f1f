// Reports of the simulated driver to the engine, made under the driver's lock.
//
// The engine also knows the order of operations, and the driver looks it up there: may this stream have that memory?
// The engine's findings become text here. The list also has calls with dead handles: not races, but as deadly.
#pragma once

#include "device.hpp"

#include "engine/journal.hpp"
#include "kernels/first_thread.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/layouts.hpp"

#include <string>
#include <vector>

namespace sim {

// The work that the stream has queued so far: its newest operation, and all that its operations come after.
check::Time newest(const Stream* stream);
check::Clock queued(const Stream* stream);

// A stream begins; its place in the program, and its kind, are kept for findings.
void note_stream(const Stream* stream, bool legacy);
void note_branch(const Stream* stream);  // of a graph's nodes: no stream of the program's

// An operation was queued on the stream; `work` says what it touches.
check::Time watch_work(Stream* stream, const Work& work);
// The same, of an operation that touches any number of ranges.
check::Time watch_ranges(Stream* stream, const char* name, const std::vector<Range>& ranges);
// The same, of a kernel that is not simulated.
struct KernelLaunch {
    const std::vector<check::Pointer>& pointers;
    const std::optional<check::StructLayout>& layout;
    const std::optional<check::ElementwiseArrays>& arrays;
    const std::vector<u8>& space;  // the values of its parameters
    const check::GridShape& shape;
    const check::FirstThread* first;  // nullptr: its code is not known
    bool may_signal;  // see check::Facts
};
check::Time watch_kernel(Stream* stream, const char* name, const KernelLaunch& launch);
check::Time watch_alloc(Stream* stream, u64 address, u64 bytes);
check::Time watch_free(Stream* stream, u64 address);
void watch_managed(u64 address, u64 bytes);  // its allocation
// Page-locked memory of the host begins, and ends.
void watch_pin(u64 address, u64 bytes);
void watch_unpin(u64 address);
// The host's own accesses to such memory, which the guard has noted since (host/guard.hpp): before the host's clock
// moves, and before findings are read.
void judge_host();
void judge_host(const check::Clock& coming);  // … which the host will know
void host_may_learn(const check::Clock& clock);
// The operation at this time reads pageable memory when it runs: see host/pageable.hpp. A copy writes there.
void watch_late_read(const Stream* stream, check::Time time, u64 begin, u64 bytes);
void forget_late_reads(u64 begin, u64 bytes);
check::Time watch_launch(Stream* stream, const check::Graph& graph);
check::Time watch_record(u64 event, Stream* stream);
void watch_wait(Stream* stream, u64 event);

// The call in progress was given a handle that has been destroyed.
void report_dead(check::Kind kind, u64 handle);
// The call of this thread destroys a handle.
void note_destroyed(check::Kind kind, u64 handle, u64 stream = 0);

// A pool was destroyed while frees into it were pending. The driver's documentation allows that, and it makes drivers
// hang or crash (seen with 580.159).
void report_early_pool();
void clear_reports();

std::vector<std::string> race_reports();
std::string findings_as_json();
// Findings go to this file as they are made. A forked child has a journal of its own, or none.
void keep_findings(int file, check::Journal::FramesOf frames_of);
std::string omissions_as_json();
// In the first cuInit: see native/native.hpp.
void begin_without_python();

}  // namespace sim
