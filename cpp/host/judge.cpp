// See judge.hpp.
#include "judge.hpp"

#include "guard.hpp"
#include "pageable.hpp"

#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <memory>

namespace check::host {

namespace {

std::string plain_name(const char* symbol) {
    std::unique_ptr<char, decltype(&free)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr), &free);
    return name ? name.get() : symbol;
}

// The function and the library that the instruction is in.
std::string where(u64 instruction) {
    Dl_info info{};
    if (!dladdr(reinterpret_cast<void*>(instruction), &info) || !info.dli_fname) return "";
    std::string file = info.dli_fname;
    file.erase(0, file.rfind('/') + 1);
    u64 begin = reinterpret_cast<u64>(info.dli_sname ? info.dli_saddr : info.dli_fbase);
    char offset[24];
    snprintf(offset, sizeof offset, "+0x%llx", (unsigned long long)(instruction - begin));
    return " in " + (info.dli_sname ? plain_name(info.dli_sname) + offset + " of " + file : file + offset);
}

constexpr char kWriteBefore[] = "host write, which was made before this call";
constexpr char kFreeBefore[] = "host free, which was made before this call";

const char* name_of(Did did) {
    switch (did) {
        case Did::Read: return "host read";
        case Did::Write: return "host write";
        case Did::WriteBefore: return kWriteBefore;
        default: return "host free";
    }
}

Role role_of(Did did) { return did == Did::Read ? Role::Read : did == Did::Free ? Role::Free : Role::Write; }

}  // namespace

// Of a place in Python the line says enough.
void judge(Engine& engine, u32 site) {
    Note note;
    while (take(note)) {
        std::string name = name_of(note.did);
        if (!note.site && note.instruction) name += where(note.instruction);
        Operation what{engine.name(name), note.did == Did::WriteBefore ? site : note.site};
        engine.touch_by_host(what, note.begin, note.end, role_of(note.did), note.sure);
    }
}

namespace {

Changed found_by(Engine& engine, u32 site) {
    return [&engine, site](u64 number, bool gone) {
        Operation what{engine.name(gone ? kFreeBefore : kWriteBefore), site};
        engine.find_changed(number, what, gone ? Role::Free : Role::Write);
    };
}

}  // namespace

void judge_late_reads(Engine& engine, const Clock& coming, u32 site) {
    examine_late_reads(coming, found_by(engine, site));
}

void judge_late_reads(Engine& engine, u64 begin, u64 end, u32 site) {
    examine_late_reads(begin, end, found_by(engine, site));
}

}  // namespace check::host
