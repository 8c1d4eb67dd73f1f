// References to user objects: see user_objects.hpp.
#include "user_objects.hpp"

#include <utility>

namespace sim {

namespace {

struct Retired {
    Position position;
    Kept kept;
};

std::vector<Retired>& retired() {
    static auto& all = *new std::vector<Retired>;
    return all;
}

// Takes out the objects that nothing needs any more.
Kept finished() {
    Kept result;
    std::vector<Retired> waiting;
    for (Retired& one : retired()) {
        if (!one.position.stream || one.position.stream->reached(one.position.sequence))
            result.insert(result.end(), one.kept.begin(), one.kept.end());
        else
            waiting.push_back(std::move(one));
    }
    retired() = std::move(waiting);
    return result;
}

}  // namespace

HandleTable<UserObject>& user_objects() {
    static auto& table = *new HandleTable<UserObject>(0x3600000000ull);
    return table;
}

void release(Lock& lock, UserObject* object, u64 count) {
    object->references -= count;
    if (object->references) return;
    UserObject ended = *object;
    user_objects().remove(object->handle);
    delete object;
    lock.unlock();
    ended.destroy(ended.value);
    lock.lock();
}

void release_all(Lock& lock, Kept& kept) {
    for (UserObject* object : std::exchange(kept, {})) release(lock, object);
}

void release_later(Lock& lock, Kept& kept, const Position& position) {
    if (!kept.empty()) retired().push_back({position, std::exchange(kept, {})});
    Kept free = finished();
    release_all(lock, free);
}

Kept retained(const Kept& kept) {
    for (UserObject* object : kept) object->references++;
    return kept;
}

}  // namespace sim
