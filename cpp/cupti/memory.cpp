// Allocations and frees.
#include "calls.hpp"

namespace check {

void Call::allocate(u64 address, u64 bytes, Home home) const {
    front.engine().allocate(nullptr, what, address, bytes, Pool::Driver, home == Home::Context ? context() : 0);
}

void Call::allocate(u64 address, u64 bytes, CUstream handle, Home home) const {
    Pool pool = thread.replaces_pool ? Pool::Replaced : Pool::Driver;
    if (Stream* on = stream(handle))
        front.engine().allocate(on, what, address, bytes, pool, home == Home::Context ? on->context : 0);
}

void Call::note_free(u64 address) const {
    const Block* block = front.engine().find_whole(address);
    if (block && block->live && block->begin == address) thread.changes.freed.push_back(address);
}

// The free waits for everything that the context has queued, and the context of the memory, unless the memory is
// stream-ordered; if the device of the memory is not known, for everything.
void Call::free(u64 address) const {
    if (!address) return;
    note_free(address);
    const Block* block = front.engine().find_whole(address);
    if (block && block->allocated.stream) {
        front.engine().free(nullptr, what, address);
        return;
    }
    bool anywhere = block && !block->context;
    Clock queued = anywhere ? front.engine().queued() : front.queued_in(context());
    if (block && block->context) queued.join(front.queued_in(block->context));
    front.engine().free_after(queued, what, address);
    wait_for(std::move(queued));
}

void Call::free(u64 address, CUstream handle) const {
    note_free(address);
    if (Stream* on = stream(handle)) thread.changes.fed.push_back({on, what, front.engine().free(on, what, address)});
}

// Unmapping waits for nothing, and ends all mappings in its range.
void Call::unmap(u64 address, u64 bytes) const {
    for (u64 at = address; at < address + bytes;) {
        const Block* block = front.engine().find_whole(at);
        if (!block) return;
        at = block->end;
        note_free(block->begin);
        front.engine().free(nullptr, what, block->begin);
    }
}

namespace {

void add_ordinary(Calls& calls) {
    AFTER(cuMemAlloc_v2) { call.allocate(*p.dptr, p.bytesize); });
    AFTER(cuMemAllocPitch_v2) { call.allocate(*p.dptr, *p.pPitch * p.Height); });
    AFTER(cuMemAllocManaged) {
        call.allocate(*p.dptr, p.bytesize, Home::Unknown);
        call.front.note_managed(*p.dptr);
        call.front.note_mapped(*p.dptr, p.bytesize);
    });
    AFTER(cuMemMap) { call.allocate(p.ptr, p.size, Home::Unknown); });
    for (auto entry : {ENTRY(cuIpcOpenMemHandle), ENTRY(cuIpcOpenMemHandle_v2), ENTRY(cuMemPoolImportPointer),
                       ENTRY(cuExternalMemoryGetMappedBuffer)})
        calls.unseen(entry);
    BEFORE(cuMemFree_v2) {
        call.free(p.dptr);
        call.front.unpin(p.dptr, call.what, call.thread.changes);
    });
    BEFORE(cuMemUnmap) { call.unmap(p.ptr, p.size); });
}

void add_stream_ordered(Calls& calls) {
    AFTER_BOTH(cuMemAllocAsync, _ptsz) { call.allocate(*p.dptr, p.bytesize, p.hStream); });
    AFTER_BOTH(cuMemAllocFromPoolAsync, _ptsz) { call.allocate(*p.dptr, p.bytesize, p.hStream, Home::Unknown); });
    BEFORE_BOTH(cuMemFreeAsync, _ptsz) { call.free(p.dptr, p.hStream); });
}

void pin(const Call& call, const void* begin, u64 bytes, bool registered = false) {
    call.front.pin(reinterpret_cast<u64>(begin), bytes, call.what, registered);
}
void unpin(const Call& call, const void* begin) {
    call.front.unpin(reinterpret_cast<u64>(begin), call.what, call.thread.changes);
}

void add_page_locked(Calls& calls) {
    AFTER(cuMemHostAlloc) { pin(call, *p.pp, p.bytesize); });
    AFTER(cuMemAllocHost_v2) { pin(call, *p.pp, p.bytesize); });
    AFTER(cuMemHostRegister) { pin(call, p.p, p.bytesize, true); });
    AFTER(cuMemHostRegister_v2) { pin(call, p.p, p.bytesize, true); });
    BEFORE(cuMemFreeHost) { unpin(call, p.p); });
    BEFORE(cuMemHostUnregister) { unpin(call, p.p); });
}

}  // namespace

void add_memory(Calls& calls) {
    add_ordinary(calls);
    add_stream_ordered(calls);
    add_page_locked(calls);
}

}  // namespace check
