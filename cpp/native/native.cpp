// See native.hpp.
#include "native.hpp"

#include "engine/records.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

namespace check::native {

namespace {

// The part of the address space that has this library's code.
struct Here {
    std::uintptr_t begin = 0, end = 0;

    Here() {
        auto address = reinterpret_cast<std::uintptr_t>(&place_of_caller);
        begin = end = address;
        dl_iterate_phdr(
            [](dl_phdr_info* info, std::size_t, void* wanted) {
                auto& here = *static_cast<Here*>(wanted);
                for (int i = 0; i < info->dlpi_phnum; i++) {
                    const auto& part = info->dlpi_phdr[i];
                    std::uintptr_t first = info->dlpi_addr + part.p_vaddr;
                    if (part.p_type != PT_LOAD || here.begin < first || here.begin >= first + part.p_memsz) continue;
                    here = Here(first, first + part.p_memsz);
                    return 1;
                }
                return 0;
            },
            this);
    }
    Here(std::uintptr_t begin, std::uintptr_t end) : begin(begin), end(end) {}
    bool has(std::uintptr_t code) const { return begin <= code && code < end; }
};

const Here here;  // before the first handler could want it

struct Addresses {
    static constexpr int kMost = 32;
    std::array<std::uintptr_t, kMost> all{};
    int count = 0;
    std::uint64_t hash = 0;

    void add(std::uintptr_t address) {
        all[std::size_t(count++)] = address;
        hash = (hash ^ address) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
};

Addresses stack_here() {
    Addresses found;
    _Unwind_Backtrace(
        [](_Unwind_Context* frame, void* all) {
            auto& found = *static_cast<Addresses*>(all);
            int is_next = 0;  // not after a call: where a signal came
            std::uintptr_t at = _Unwind_GetIPInfo(frame, &is_next);
            if (!at || found.count == Addresses::kMost) return _URC_END_OF_STACK;
            if (is_next)
                found = {};  // what is in it belongs to the handler
            else
                at--;
            if (!here.has(at)) found.add(at);
            return _URC_NO_REASON;
        },
        &found);
    return found;
}

// All stacks that were seen. A place is taken by comparing and exchanging, and for ever.
struct Places {
    static constexpr std::uint32_t kMost = 1 << 15;
    struct Place {
        std::atomic<std::uint64_t> hash{0};
        std::atomic<bool> is_filled{false};
        Addresses stack;
    };
    Place all[kMost];

    std::uint32_t number_of(const Addresses& stack) {
        std::uint64_t wanted = stack.hash | 1;
        for (std::uint32_t turn = 0; turn < kMost; turn++) {
            Place& place = all[(wanted / 2 + turn) % kMost];
            std::uint64_t known = 0;
            if (place.hash.compare_exchange_strong(known, wanted)) {
                place.stack = stack;
                place.is_filled = true;
            } else if (known != wanted) {
                continue;
            }
            return kPlace | std::uint32_t(&place - all);
        }
        return 0;
    }
};

constinit Places places;  // nothing of it is touched before it is used

std::atomic<PlaceOf> place_in_python{nullptr};

std::string path_of(const char* name) {
    char path[PATH_MAX];
    return realpath(name, path) ? path : name;
}

std::string frame_at(std::uintptr_t address) {
    Dl_info info;
    link_map* map = nullptr;
    if (!dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map)
        return "{\"module\": \"\", \"offset\": " + std::to_string(address) + ", \"symbol\": \"\"}";
    const char* name = map->l_name && *map->l_name ? map->l_name : "/proc/self/exe";
    return "{\"module\": " + quoted(path_of(name)) + ", \"offset\": " + std::to_string(address - map->l_addr) +
           ", \"symbol\": " + quoted(info.dli_sname ? info.dli_sname : "") + "}";
}

// A folder of this user's, in which no other user can have laid anything.
int open_private(const char* path) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat found;
    if (folder >= 0 && !fstat(folder, &found) && found.st_uid == geteuid() && !(found.st_mode & 077)) return folder;
    if (folder >= 0) close(folder);
    return -1;
}

}  // namespace

int new_journal() {
    const char* path = getenv("XLOGMEM_CHECK");
    int folder = path ? open_private(path) : -1, file = -1;
    for (int turn = 0; folder >= 0 && turn < 1000; turn++) {
        std::string name = std::to_string(getpid()) + (turn ? "-" + std::to_string(turn) : "") + ".journal";
        file = openat(folder, name.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (file >= 0 || errno != EEXIST) break;
    }
    if (folder >= 0) close(folder);
    return file;
}

std::uint32_t place_of_caller() { return places.number_of(stack_here()); }

PlaceOf with_native(PlaceOf of_python) {
    place_in_python = of_python;
    return [] {
        std::uint32_t place = place_in_python.load()();
        return place ? place : place_of_caller();
    };
}

char* frames_of(std::uint32_t place) {
    std::string text;
    place &= ~kPlace;
    if (place < Places::kMost && places.all[place].is_filled) {
        const Addresses& stack = places.all[place].stack;
        for (int i = 0; i < stack.count; i++) text += (i ? ", " : "") + frame_at(stack.all[std::size_t(i)]);
    }
    return strdup(("[" + text + "]").c_str());
}

}  // namespace check::native
