// Facts about kernels: pointers among their parameters, and the accesses through them.
//
// The driver says where the parameters lie. What is done through them is in the text of a kernel that was loaded as PTX;
// of others the mangled name says what is const, and which entries of a list count (layouts.hpp), trials say what is
// written (trials.hpp), and at the end the machine code what is read and written (codes.hpp).
#pragma once

#include "kernels/first_thread.hpp"
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
    std::optional<StructLayout> layout;  // of one of them
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
        texts_[function] = texts_[source];
        owners_[function] = owners_[source];
    }
    // What the text of its kernel says; nullptr where there is none.
    std::shared_ptr<const Facts> text(CUfunction function) const;

    // A module is unloaded: the driver gives the handles of its functions out again.
    void forget(u64 handle);

    // The kernels that were launched, by their mangled names, with the words of which their code may say more. Those of
    // modules that are gone, too.
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

// The words through which a launch may go: of a struct whose layout is known those that count.
void words_of_launch(const Kernel& kernel, const std::vector<u8>& space, const u32 grid[3],
                     std::vector<LaunchedWord>* words);

// What people call it: not mangled, without the arguments of templates.
std::string readable(const char* mangled);

}  // namespace check
