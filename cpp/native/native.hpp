// The check of a process in which no Python begins it: a program in C++, say.
//
// `xlogmem check` names a folder in XLOGMEM_CHECK. A process of Python begins the check before its program does; in any
// other process the front end begins it, in the first cuInit. The process has a journal (engine/journal.hpp) and no other
// file. A place in the program is a stack of addresses, of which the command finds the lines when the program has ended:
// xlogmem/check/native.py.
#pragma once

#include <cstdint>

namespace check::native {

// A new, empty journal, which is open; -1: `xlogmem check` has not started this process, or the folder that it names is
// not this user's alone.
int new_journal();

// The numbers of places have this bit, which those of places in Python have not: xlogmem/check/sites.hpp.
constexpr std::uint32_t kPlace = 1u << 30;

// The number of the calling thread's stack; 0: there is no room for more. It takes no lock and allocates nothing, because
// handlers of signals call it, too.
std::uint32_t place_of_caller();

using PlaceOf = std::uint32_t (*)();
// A function that gives the place in Python as this one does, and the stack of addresses in a thread that runs no Python.
PlaceOf with_native(PlaceOf of_python);

// The stack of this number as JSON, the innermost frame first: {"module": path of the file, "offset": where in the file's
// own addresses, "symbol": name of the function, if the file exports it}. To be freed with free().
char* frames_of(std::uint32_t place);

}  // namespace check::native
