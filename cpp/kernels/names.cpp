#include "kernels/names.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace check {

std::string readable(const char* mangled) {
    int status = 0;
    std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
    if (!name) return mangled;
    std::string full = name.get(), shown;
    int depth = 0;
    bool numba = false;
    for (std::size_t i = 0; i < full.size(); i++) {
        if (full.compare(i, 9, "operator<") == 0 || full.compare(i, 9, "operator(") == 0) return full;
        if (!depth && full[i] == '(' && full.compare(i, 21, "(anonymous namespace)") != 0) break;
        if (full.compare(i, 5, "[abi:") == 0) {  // the version of a function, and a hash of its options
            numba = true;
            i = full.find(']', i);
            if (i == std::string::npos) break;
            continue;
        }
        depth -= full[i] == '>';
        if (!depth) shown += full[i];
        if (full[i] == '<' && !depth++) shown += "...";
    }
    if (shown.compare(0, 5, "void ") == 0) shown.erase(0, 5);
    std::size_t module = shown.rfind("::");
    return numba && module != std::string::npos ? shown.substr(module + 2) : shown;
}

}  // namespace check
