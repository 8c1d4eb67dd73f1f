// Launches of kernels known by their parameters alone: addresses among the parameters, and their memory.
#pragma once

#include "engine.hpp"

namespace check {

class Launched {
  public:
    // Stands for any address of memory, among the numbers. A null pointer is another number: a kernel may test for it.
    static constexpr u64 kOfMemory = 0x100000001;

    // `space` has the values of all parameters, at their offsets; the ranges are added to `ranges`.
    Launched(Engine& engine, Stream& stream, const std::vector<u8>& space, std::vector<Range>& ranges)
        : engine_(engine), stream_(stream), space_(space), ranges_(ranges), launch_(engine.new_launch()) {
        ranges_.clear();
        launch_.stream = stream.id;
        for (std::size_t offset = 0; offset < space.size(); offset += 8) {
            u64 value = word(offset);
            launch_.numbers.push_back(engine.find(value) ? kOfMemory : value);
        }
        engine.keep_numbers(launch_);
    }

    u64 word(std::size_t offset) const { return word_at(space_, offset); }

    // Adds the access of the kernel through the word at this offset.
    void add(std::size_t offset, const Through& through) {
        if (offset + 8 <= space_.size()) engine_.add_pointer(ranges_, word(offset), through, launch_);
    }

    // Adds an access of the kernel to this address, whatever the word.
    void add_anchored(u64 address, const Through& through) { engine_.add_pointer(ranges_, address, through, launch_); }

    // Adds an access of the kernel to exactly these bytes.
    void add_exact(u64 begin, u64 end, Role role, const Rows& rows) { ranges_.push_back({begin, end, role, 0, rows}); }

    // Feeds the engine with the launch. `may_signal`: see Facts.
    Time feed(Operation what, bool may_signal) {
        return engine_.work(stream_, what, ranges_.data(), ranges_.size(), may_signal);
    }

  private:
    Engine& engine_;
    Stream& stream_;
    const std::vector<u8>& space_;
    std::vector<Range>& ranges_;
    KernelWords::Launch& launch_;
};

}  // namespace check
