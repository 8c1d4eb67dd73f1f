// User objects: resources that a program keeps alive for graphs and their executables.
//
// Graphs and executables hold references; instantiating takes those of the graph once more. The last release calls the
// object's destructor: here at once, in the thread that has made the call and without the driver's lock. What an
// executable keeps stays until its last launch is done.
#pragma once

#include "device.hpp"

#include <vector>

namespace sim {

struct UserObject {
    u64 handle = 0;
    void* value = nullptr;
    CUhostFn destroy = nullptr;
    u64 references = 0;
};

using Kept = std::vector<UserObject*>;  // one entry for each reference

HandleTable<UserObject>& user_objects();

// May drop the lock around destructors.
void release(Lock& lock, UserObject* object, u64 count = 1);
void release_all(Lock& lock, Kept& kept);
// ... as soon as everything before the position has happened.
void release_later(Lock& lock, Kept& kept, const Position& position);

Kept retained(const Kept& kept);

}  // namespace sim
