// Handle tables: the opaque pointers that the driver gives out.
//
// A handle is an invented address that nothing is mapped at, so a wild or stale one is distinguished from a
// good one without touching memory. A destroyed handle's value goes to the next create, as it does on hardware:
// code that identifies a stream by its handle is shown wrong quickly.
#pragma once

#include "base.hpp"

#include <vector>

namespace sim {

template <class T>
class HandleTable {
  public:
    explicit HandleTable(u64 base) : base_(base) {}

    u64 add(T* object) {
        u64 index;
        if (free_.empty()) {
            index = objects_.size();
            objects_.push_back(object);
            if (objects_.size() > ever_) ever_ = objects_.size();
        } else {
            index = free_.back();
            free_.pop_back();
            objects_[index] = object;
        }
        live_++;
        return base_ + (index + 1) * kStep;
    }

    // The object, or nullptr for anything that is not a live handle of this table.
    T* get(u64 handle) const {
        u64 offset = handle - base_ - kStep;  // wraps round for anything below: fails the range check
        if (offset % kStep || offset / kStep >= objects_.size()) return nullptr;
        return objects_[offset / kStep];
    }
    T* get(const void* handle) const { return get(reinterpret_cast<u64>(handle)); }

    // True if this was a handle of the table once, and is not one now. A reset does not make a dead handle unknown.
    bool is_dead(u64 handle) const {
        u64 offset = handle - base_ - kStep;
        return offset % kStep == 0 && offset / kStep < ever_ && !get(handle);
    }
    bool is_dead(const void* handle) const { return is_dead(reinterpret_cast<u64>(handle)); }

    void remove(u64 handle) {
        u64 index = (handle - base_) / kStep - 1;
        objects_[index] = nullptr;
        live_--;
        free_.push_back(index);
    }

    // With nothing alive, start again: the same program gets the same handles, whatever ran before it.
    void restart_if_empty() {
        if (live_) return;
        objects_.clear();
        free_.clear();
    }

    u64 live() const { return live_; }

    template <class F>
    void each(F&& visit) {
        for (std::size_t i = 0; i < objects_.size(); i++)
            if (T* object = objects_[i]) visit(object, base_ + (i + 1) * kStep);
    }

  private:
    static constexpr u64 kStep = 64;
    u64 base_;
    std::vector<T*> objects_;
    std::vector<u64> free_;
    u64 live_ = 0;
    u64 ever_ = 0;  // how many different handles there have been
};

}  // namespace sim
