// Accesses of a launch through a word of its parameters, where the kernel's code is known: see first_thread.hpp.
#pragma once

#include "first_thread.hpp"

#include "engine/launched.hpp"

namespace check {

// Uses are anchored where the first thread goes. If the thread does not go to the block at all, nothing is certain.
class FollowedWord {
  public:
    FollowedWord(Engine& engine, const std::vector<Touch>& touches) : engine_(engine), touches_(touches) {}

    // `followed`: see Pointer.
    void add_to(Launched& launched, u32 offset, Through through, bool followed) const {
        if (!followed) return launched.add(offset, through);
        u64 pointer = launched.word(offset);
        const Block* block = engine_.find(pointer);
        if (!block) return;
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

    // The touch of the pointer's own address, or the first touch in the block.
    const Touch* best(const Block& block, u64 pointer, u32 offset, bool writes) const {
        const Touch* found = nullptr;
        for (const Touch& touch : touches_) {
            bool is_from = touch.words[0] == offset + 1 || touch.words[1] == offset + 1;
            if (!is_from || (touch.role() != Role::Read) != writes || engine_.find(touch.address) != &block) continue;
            if (!found || (touch.address == pointer && found->address != pointer)) found = &touch;
        }
        return found;
    }
};

}  // namespace check
