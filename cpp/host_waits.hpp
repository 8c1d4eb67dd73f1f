// What the host knows to be done when a copy or a fill returns: one table for the check's two front ends.
//
// From "API synchronization behavior" (docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html). Hardware often waits
// longer; what the page leaves open counts as not done, so that a program which needs it is found.
//
//   | copy                         | without a stream             | Async   | with attributes |
//   |------------------------------|------------------------------|---------|-----------------|
//   | to pageable memory           | Copy                         | Copy    | Nothing         |
//   | from host to host            | Copy                         | Copy    | Nothing         |
//   | a side is managed            | Copy                         | Nothing | Nothing         |
//   | device to device             | Nothing                      | Nothing | Nothing         |
//   | from pageable memory         | Before: then it is staged    | Nothing | Nothing         |
//   | a side is page-locked        | Copy                         | Nothing | Nothing         |
//
// The first row that fits counts. A fill waits where it has no stream and its memory is page-locked or managed.
//
// Of copies with attributes (cuMemcpyBatchAsync, cuMemcpyWithAttributesAsync) nothing is promised. On an H100 they return
// before the bytes have come to pageable memory, and they wait for work that was queued before them where they read
// pageable memory in stream order, or page-locked memory during the call.
#pragma once

namespace check {

enum class Where { Device, Managed, PageLocked, Pageable };
enum class Form { Sync, Async, Attributes };  // of a copy: without a stream, on one, on one and with attributes
enum class Wait { Nothing, Before, Copy };  // for nothing, for what was queued before, for the copy

inline bool is_of_device(Where side) { return side == Where::Device || side == Where::Managed; }

// What a copy in this form waits for.
inline Wait wait_of_copy(Where target, Where source, Form form) {
    if (form == Form::Attributes) return Wait::Nothing;
    if (target == Where::Pageable || !(is_of_device(target) || is_of_device(source))) return Wait::Copy;
    if (form == Form::Async) return Wait::Nothing;
    if (target == Where::Managed || source == Where::Managed) return Wait::Copy;
    if (is_of_device(target) && is_of_device(source)) return Wait::Nothing;
    return source == Where::Pageable ? Wait::Before : Wait::Copy;
}

// Of a fill without a stream.
inline bool fill_waits(Where target) { return target != Where::Device; }

}  // namespace check
