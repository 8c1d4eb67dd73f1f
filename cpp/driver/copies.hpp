// Copies between any two places: the bytes of both sides, and the work that copies them. host_waits.hpp says for what the
// host waits.
#pragma once

#include "host_waits.hpp"
#include "memory.hpp"

namespace sim {

using check::Form;
enum class Peers { Checked, Any };  // cuMemcpyPeer finds a way between any two devices

// One side of a copy: rows of `width` bytes that begin `pitch` bytes apart, in planes that begin `plane` bytes apart.
struct Side {
    u64 begin;
    bool on_device;  // by the call
    size_t width, height = 1, pitch = 0, depth = 1, plane = 0;

    u64 bytes() const { return (depth - 1) * plane + (height - 1) * pitch + width; }
    bool has_gaps() const { return bytes() != width * height * depth; }
    // Planes with gaps between them are an extent of which the first byte alone is known to be touched.
    bool has_planes() const { return has_gaps() && depth > 1 && plane != height * pitch; }
    check::Rows rows() const { return has_gaps() && !has_planes() ? check::Rows{pitch, width} : check::Rows{}; }
    u8* row(u8* first, size_t of_plane, size_t index) const { return first + of_plane * plane + index * pitch; }
    void touched_by(Work& work, Use use) const { work.touches(begin, bytes(), use, rows(), has_planes() ? begin : 0); }
};

// As its address says.
check::Where where_is(const Side& side);

// Refused where one side does not exist, or the context cannot reach it.
CUresult check_copy(const Context* context, const Side& to, const Side& from, Peers peers);

// When it is read: when the operation runs, or in this call. Of memory that the host cannot read in its place the rules
// of that call count, and the operation reads it.
enum class Source { InOrder, Now, AsNow };
Work work_of_copy(const Side& to, const Side& from, Source source);

// The sides of a copy of planes, as the caller describes them.
CUresult sides_of(const CUDA_MEMCPY3D* copy, Side* to, Side* from);

// The memory that a fill writes: so many elements in each row; the rows begin `pitch` bytes apart.
struct FilledRows {
    size_t count, height, pitch;
    FilledRows(size_t count, size_t height = 1, size_t pitch = 0) : count(count), height(height), pitch(pitch) {}
};
// Elements of `width` bytes. Refused where the memory does not exist, or the context cannot reach it.
CUresult work_of_fill(const Context* context, u64 target, u32 value, size_t width, const FilledRows& rows, Work* work);

CUresult copy(Lock& lock, const Side& to, const Side& from, CUstream handle, Form form, Peers peers = Peers::Checked);

}  // namespace sim
