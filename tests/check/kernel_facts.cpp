// Prints what the images named on the command line say of their kernels; test_kernel_facts.py compiles it.
// With --mutate N each image is also read N times, damaged, out of a buffer that ends where the image does.
#include "kernels/facts.hpp"
#include "kernels/signature.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

using namespace check;

namespace {

const char* const kRoles[] = {"read", "write", "readwrite", "unknown"};

std::vector<char> contents(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void print(const std::string& name, const Facts& facts) {
    std::cout << name << " |";
    for (const Parameter& parameter : facts.parameters) std::cout << " " << parameter.offset << "+" << parameter.size;
    std::cout << " |";
    for (const Pointer& pointer : facts.pointers)
        std::cout << " " << pointer.offset << ":" << kRoles[int(pointer.role)] << (pointer.found ? "?" : "");
    std::cout << " |";
    for (const Pointer& pointer : facts.pointers) {
        if (pointer.start.is_there && pointer.start.zeros.empty()) continue;
        std::cout << " " << pointer.offset << ":";
        for (const Parameter& zero : pointer.start.zeros) std::cout << zero.offset << "+" << zero.size << ",";
        if (!pointer.start.is_there) std::cout << "never";
    }
    std::cout << "\n";
}

void print_types(const std::string& name) {
    static const char* const types[] = {" value", " pointer", " const"};
    std::vector<Type> found;
    std::cout << name << " |";
    if (!parameter_types(name, &found)) std::cout << " ?";
    for (Type type : found) std::cout << types[int(type)];
    std::cout << "\n";
}

std::size_t mutate(const std::vector<char>& image, int times) {
    std::mt19937 random(7);
    auto below = [&](std::size_t end) { return std::size_t(random() % end); };
    std::size_t kernels = 0;
    for (int i = 0; i < times; i++) {
        std::vector<char> damaged = image;
        if (below(3) == 0) damaged.resize(1 + below(damaged.size()));
        for (std::size_t n = below(20); n > 0; n--) damaged[below(damaged.size())] = char(random());
        if (below(4) == 0) memmove(damaged.data() + below(damaged.size()), damaged.data(), 1);
        char* exact = static_cast<char*>(malloc(damaged.size()));  // a sanitizer knows where it ends
        memcpy(exact, damaged.data(), damaged.size());
        for (auto& entry : facts_of(exact, damaged.size())) {
            add_roles_of_signature(entry.first, entry.second);
            kernels++;
        }
        free(exact);
    }
    return kernels;
}

}  // namespace

#ifdef PLANTED
namespace check {
extern u64 planted_reached;
}
#endif

int main(int count, char** arguments) {
    int mutations = 0, first = 1;
    bool signature = false, unsized = false;
    for (; first < count && !strncmp(arguments[first], "--", 2); first++) {
        if (!strcmp(arguments[first], "--mutate")) mutations = atoi(arguments[++first]);
        if (!strcmp(arguments[first], "--signature")) signature = true;
        if (!strcmp(arguments[first], "--unsized")) unsized = true;
    }
    for (int i = first; i < count; i++) {
        if (signature) {
            print_types(arguments[i]);
            continue;
        }
        std::vector<char> image = contents(arguments[i]);
        std::cout << "== " << arguments[i] << "\n";
        if (mutations) {
            std::cout << mutate(image, mutations) << "\n";
            continue;
        }
        std::size_t size = image.size();
        image.push_back('\0');
        for (auto& entry : facts_of(image.data(), unsized ? 0 : size)) print(entry.first, entry.second);
    }
#ifdef PLANTED
    std::cout << "== reached\n" << check::planted_reached << "\n";
#endif
}
