// Facts about kernels: pointers among their parameters, and the accesses through them.
//
// The driver says where the parameters lie. The text of a kernel that was loaded as PTX says which accesses go through
// them. For other kernels the mangled name says what is const, and which entries of a list count (layouts.hpp); trials
// say which memory is written (trials.hpp); and at the end the machine code says which memory is read and written
// (codes.hpp).
#pragma once

#include "kernels/names.hpp"
#include "kernels/first_thread.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/layouts.hpp"

#include <cuda.h>

#include <memory>
#include <unordered_map>

namespace check {

// A word of eight bytes that may be a pointer.
struct Word {
    u32 offset;  // in the parameters
    Role role = Role::Unknown;
    bool found = false, followed = false;  // see Pointer
    u32 number = 0;  // the engine's: see words.hpp
};

struct Kernel {
    u32 name = 0;
    std::vector<Word> words;
    std::vector<Parameter> parameters;  // none: the driver has not said where they are
    std::shared_ptr<const FirstThread> first;  // nullptr: its code is not known
    bool may_signal = true;  // see Facts
    std::optional<StructLayout> layout;  // of one of them
    std::optional<ElementwiseArrays> arrays;
    std::vector<u32> lists;  // the engine's numbers: the words of a list are one to it
    u32 launches = 0, next_trial = 1;
    bool is_due() { return ++launches >= next_trial; }  // for a trial
    void was_tried() { next_trial = launches < 1024 ? launches * 2 : ~u32(0); }
};

// A word that may be a pointer, in one launch.
struct LaunchedWord {
    u32 offset, number;
    Role role = Role::Unknown;
    bool found = false, followed = false;
    bool first_of_list = true;
};

using Image = std::shared_ptr<const std::map<std::string, Facts>>;

class KernelTable {
  public:
    Kernel* find(CUfunction function) {
        auto found = kernels_.find(function);
        return found == kernels_.end() ? nullptr : &found->second;
    }
    Kernel& add(CUfunction function, const char* symbol, Kernel kernel) {
        launched_.push_back({symbol, kernel.parameters, kernel.words});
        return kernels_[function] = std::move(kernel);
    }

    // By the handle of a module or a library.
    void add_image(u64 handle, Image image) { images_[handle] = std::move(image); }
    void share_image(u64 handle, u64 source) {
        images_[handle] = images_[source];
        libraries_[handle] = source;
    }
    void add_function(CUfunction function, u64 handle, const char* name);
    void share_function(CUfunction function, CUfunction source) {
        facts_[function] = facts_[source];
        owners_[function] = owners_[source];
    }
    // The facts in the image of the function's kernel; nullptr where there is none. Those of a text have the code.
    std::shared_ptr<const Facts> facts(CUfunction function) const;

    // A module is unloaded: the driver gives the handles of its functions out again.
    void forget(u64 handle);

    // The kernels that were launched, by their mangled names, with the words about which their code may say more.
    // Kernels of modules that are gone are included.
    struct Read {
        std::string symbol;
        std::vector<Parameter> parameters;
        std::vector<Word> words;
    };
    const std::vector<Read>& launched() const { return launched_; }

  private:
    std::vector<Read> launched_;
    std::unordered_map<CUfunction, Kernel> kernels_;
    std::unordered_map<u64, Image> images_;
    std::unordered_map<CUfunction, std::shared_ptr<const Facts>> facts_;
    std::unordered_map<CUfunction, u64> owners_;  // the module or library of a function, as far as that was seen
    std::unordered_map<u64, u64> libraries_;  // of modules
};

// PTX, or a cubin, which says whether a kernel may signal; else nothing. Where parameters are the driver says.
Image read_image(const void* image);

// The parameters in order, as the driver says; none where the driver does not say. No lock may be held.
std::vector<Parameter> parameters_of(CUfunction function);

// The words that may be pointers, with their roles from the kernel's text or, without a text, its mangled name.
std::vector<Word> words_of(const std::vector<Parameter>& parameters, const Facts* text, const std::string& mangled);

// The words through which a launch may go: of a struct whose layout is known, the words that count.
void words_of_launch(const Kernel& kernel, const std::vector<u8>& space, const u32 grid[3],
                     std::vector<LaunchedWord>* words);

}  // namespace check
