// What is known of kernels: where in their parameters pointers may be, and what is done through them.
//
// The driver says where the parameters lie. What is done through them is in the text of a kernel that was loaded as PTX;
// of others the mangled name says what is const, and trials say what is written (trials.hpp).
#pragma once

#include "check/kernels/facts.hpp"

#include <cuda.h>

#include <memory>
#include <unordered_map>

namespace check {

// A word of eight bytes that may be a pointer.
struct Word {
    u32 offset;  // in the parameters
    Role role = Role::Unknown;
    Start start = {};
    u32 number = 0;  // the engine's: see words.hpp
};

struct Kernel {
    u32 name = 0;
    std::vector<Word> words;
    std::vector<Parameter> parameters;  // none: the driver has not said where they are
    u32 launches = 0, next_trial = 1;
    bool is_due() {  // for a trial
        if (++launches < next_trial) return false;
        next_trial = next_trial < 1024 ? next_trial * 2 : ~u32(0);
        return true;
    }
};

using Image = std::shared_ptr<const std::map<std::string, Facts>>;

class Kernels {
  public:
    Kernel* find(CUfunction function) {
        auto found = kernels_.find(function);
        return found == kernels_.end() ? nullptr : &found->second;
    }
    Kernel& add(CUfunction function, Kernel kernel) { return kernels_[function] = std::move(kernel); }

    // By the handle of a module or a library.
    void add_image(u64 handle, Image image) { images_[handle] = std::move(image); }
    void share_image(u64 handle, u64 source) {
        images_[handle] = images_[source];
        libraries_[handle] = source;
    }
    void add_function(CUfunction function, u64 handle, const char* name);
    void share_function(CUfunction function, CUfunction source) {
        texts_[function] = texts_[source];
        owners_[function] = owners_[source];
    }
    // What the text of its kernel says; nullptr where there is none.
    std::shared_ptr<const Facts> text(CUfunction function) const;

    // A module is unloaded: the driver gives the handles of its functions out again.
    void forget(u64 handle);

  private:
    std::unordered_map<CUfunction, Kernel> kernels_;
    std::unordered_map<u64, Image> images_;
    std::unordered_map<CUfunction, std::shared_ptr<const Facts>> texts_;
    std::unordered_map<CUfunction, u64> owners_;  // the module or library of a function, as far as that was seen
    std::unordered_map<u64, u64> libraries_;  // of modules
};

// PTX, or nothing: what else can be loaded says less than the driver.
Image read_image(const void* image);

// As the driver says, in the order of the parameters; none where it does not. No lock may be held.
std::vector<Parameter> parameters_of(CUfunction function);

// Where pointers may be, with their roles after the kernel's text or, without one, its mangled name.
std::vector<Word> words_of(const std::vector<Parameter>& parameters, const Facts* text, const std::string& mangled);

// What people call it: not mangled, without the arguments of templates.
std::string readable(const char* mangled);

}  // namespace check
