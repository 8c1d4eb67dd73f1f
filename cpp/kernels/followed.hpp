// Accesses of a launch through a word of its parameters, where the kernel's code is known: see first_thread.hpp.
#pragma once

#include "elementwise.hpp"
#include "first_thread.hpp"

#include "engine/launched.hpp"

#include <set>

namespace check {

// Uses are anchored where the first thread goes. If the thread does not go to the block at all, nothing is certain. Of an
// array whose every element is used in the same way, the first thread shows the way, and the array its bytes.
class FollowedWord {
  public:
    FollowedWord(Engine& engine, const std::vector<Touch>& touches, const std::optional<ElementwiseArrays>& arrays,
                 const std::vector<u8>& space)
        : engine_(engine), touches_(touches), arrays_(arrays), space_(space) {}

    // `followed`: see Pointer.
    void add_to(Launched& launched, u32 offset, Through through, bool followed) const {
        if (!followed) return launched.add(offset, through);
        u64 pointer = launched.word(offset);
        const Block* block = engine_.find(pointer);
        if (!block) return;
        if (arrays_ && add_array(launched, offset)) return;
        const Touch* written = best(*block, pointer, offset, true);
        const Touch* read = best(*block, pointer, offset, false);
        for (const Touch* touch : {written, read})
            if (touch) launched.add_anchored(touch->address, {0, touch->role(), false, false});
        // A read does not conflict with all accesses that a write conflicts with.
        if (written || (read && through.role == Role::Read)) return;
        through.absent = true;
        launched.add(offset, through);
    }

  private:
    Engine& engine_;
    const std::vector<Touch>& touches_;
    const std::optional<ElementwiseArrays>& arrays_;
    const std::vector<u8>& space_;

    bool add_array(Launched& launched, u32 offset) const {
        std::vector<ArrayPart> parts = arrays_->parts(space_, offset);
        auto holds = [&](u64 at) {
            return std::any_of(parts.begin(), parts.end(), [at](const ArrayPart& one) {
                return touches(one.rows, one.begin, one.end, at, at + 1);
            });
        };
        std::set<Role> roles;
        for (const Touch& touch : touches_)
            if (is_from(touch, offset) && holds(touch.address)) roles.insert(touch.role());
        for (Role role : roles)
            for (const ArrayPart& part : parts) launched.add_exact(part.begin, part.end, role, part.rows);
        return !roles.empty();
    }

    static bool is_from(const Touch& touch, u32 offset) {
        return touch.words[0] == offset + 1 || touch.words[1] == offset + 1;
    }

    // The touch of the pointer's own address, or the first touch in the block.
    const Touch* best(const Block& block, u64 pointer, u32 offset, bool writes) const {
        const Touch* found = nullptr;
        for (const Touch& touch : touches_) {
            if (!is_from(touch, offset) || (touch.role() != Role::Read) != writes ||
                engine_.find(touch.address) != &block)
                continue;
            if (!found || (touch.address == pointer && found->address != pointer)) found = &touch;
        }
        return found;
    }
};

}  // namespace check
