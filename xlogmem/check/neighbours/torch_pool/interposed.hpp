// Leads calls that a library makes of functions in others, or of its own exported functions, to ours.
//
// Such calls go by a table of addresses (the GOT), which the dynamic linker fills in as the library's relocations say.
// Compilers and linkers make different code for a call (lazily bound or not, with a PLT or without one, in memory that
// is read-only afterwards), but the same table.
#pragma once

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace xlogmem_torch {

#if defined(__x86_64__)
constexpr unsigned kJump = R_X86_64_JUMP_SLOT, kData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJump = R_AARCH64_JUMP_SLOT, kData = R_AARCH64_GLOB_DAT;
#else
#error "What are the relocations of calls called here?"
#endif

class Library {
  public:
    // A loaded library, by the end of its path.
    explicit Library(const char* name) {
        wanted_ = name;
        dl_iterate_phdr(
            [](dl_phdr_info* info, std::size_t, void* self) { return static_cast<Library*>(self)->take(*info); }, this);
        if (!path_.empty()) handle_ = dlopen(path_.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;
    ~Library() {
        if (handle_) dlclose(handle_);
    }

    bool is_loaded() const { return handle_; }
    void* function(const char* symbol) const { return handle_ ? dlsym(handle_, symbol) : nullptr; }

    // Leads the library's calls of this function to ours from here on. False: the library makes none in this way.
    bool lead(const char* symbol, void* ours) const {
        std::vector<void**> places = places_of(symbol);
        for (void** place : places) write(place, ours);
        return !places.empty();
    }

  private:
    const char* wanted_ = nullptr;
    std::string path_;
    ElfW(Addr) base_ = 0, sealed_ = 0, sealed_end_ = 0;  // read-only once it is relocated
    const ElfW(Dyn) * dynamic_ = nullptr;
    void* handle_ = nullptr;

    int take(const dl_phdr_info& info) {
        std::string path = info.dlpi_name ? info.dlpi_name : "";
        std::string end = std::string("/") + wanted_;
        if (path.size() < end.size() || path.compare(path.size() - end.size(), end.size(), end)) return 0;
        path_ = path;
        base_ = info.dlpi_addr;
        for (int i = 0; i < info.dlpi_phnum; i++) {
            const ElfW(Phdr) & part = info.dlpi_phdr[i];
            if (part.p_type == PT_DYNAMIC) dynamic_ = reinterpret_cast<const ElfW(Dyn)*>(base_ + part.p_vaddr);
            if (part.p_type == PT_GNU_RELRO) {
                sealed_ = base_ + part.p_vaddr;
                sealed_end_ = sealed_ + part.p_memsz;
            }
        }
        return 1;
    }

    // Addresses here are relocated already, with glibc.
    ElfW(Addr) entry(ElfW(Sxword) tag, bool is_address) const {
        for (const ElfW(Dyn)* one = dynamic_; one && one->d_tag != DT_NULL; one++)
            if (one->d_tag == tag)
                return is_address && one->d_un.d_ptr < base_ ? base_ + one->d_un.d_ptr : one->d_un.d_val;
        return 0;
    }

    std::vector<void**> places_of(const char* symbol) const {
        std::vector<void**> places;
        auto* symbols = reinterpret_cast<const ElfW(Sym)*>(entry(DT_SYMTAB, true));
        auto* names = reinterpret_cast<const char*>(entry(DT_STRTAB, true));
        if (!symbols || !names) return places;
        for (auto [table, size] : {std::pair{DT_JMPREL, DT_PLTRELSZ}, std::pair{DT_RELA, DT_RELASZ}}) {
            auto* one = reinterpret_cast<const ElfW(Rela)*>(entry(table, true));
            std::size_t count = entry(size, false) / sizeof *one;
            for (std::size_t i = 0; one && i < count; i++, one++) {
                unsigned type = ELF64_R_TYPE(one->r_info);
                if (type != kJump && type != kData) continue;
                if (!std::strcmp(names + symbols[ELF64_R_SYM(one->r_info)].st_name, symbol))
                    places.push_back(reinterpret_cast<void**>(base_ + one->r_offset));
            }
        }
        return places;
    }

    void write(void** place, void* value) const {
        auto at = reinterpret_cast<ElfW(Addr)>(place);
        ElfW(Addr) size = ElfW(Addr)(sysconf(_SC_PAGESIZE)), page = at & ~(size - 1);
        bool sealed = at >= (sealed_ & ~(size - 1)) && at < sealed_end_;
        if (sealed) mprotect(reinterpret_cast<void*>(page), size, PROT_READ | PROT_WRITE);
        __atomic_store_n(place, value, __ATOMIC_RELEASE);
        if (sealed) mprotect(reinterpret_cast<void*>(page), size, PROT_READ);
    }
};

}  // namespace xlogmem_torch
