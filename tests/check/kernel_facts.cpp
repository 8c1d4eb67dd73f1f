// Prints what the images named on the command line say of their kernels; test_kernel_facts.py compiles it.
// With --mutate N each image is also read N times, damaged, out of a buffer that ends where the image does.
// With --parts it prints which bytes launches of element-wise kernels touch; the input's lines have the kernel's name, the
// offset of an array, the parameters' bytes in hexadecimal digits, and the parameters as offset+size.
#include "kernels/elementwise.hpp"
#include "kernels/first_thread.hpp"
#include "kernels/signature.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>

using namespace check;

namespace {

const char* const kRoles[] = {"read", "write", "readwrite", "unknown", "alloc", "free", "atomic"};

std::vector<char> contents(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Where the first thread goes. Each word of the parameters is the address of a megabyte of its own, but the third one,
// which is a number.
void print_touches(const Facts& facts, u64 number) {
    u32 end = 0;
    for (const Parameter& parameter : facts.parameters) end = std::max(end, parameter.offset + parameter.size);
    std::vector<u8> space((end + 7) / 8 * 8);
    for (u64 at = 0; at < space.size(); at += 8) {
        u64 value = at == 16 ? number : (at / 8 + 1) << 20;
        memcpy(space.data() + at, &value, 8);
    }
    std::vector<Touch> touches;
    facts.first->run(space, {{1, 1, 1}, {32, 1, 1}}, &touches);
    std::cout << " |";
    for (const Touch& touch : touches) {
        u64 word = touch.address >> 20;
        std::cout << " " << (word > 0 && word < 27 ? char('a' + word - 1) : '?') << "+" << (touch.address & 0xFFFFF)
                  << ":" << kRoles[int(touch.role())];
    }
}

std::vector<u8> bytes_of(const std::string& digits) {
    std::vector<u8> space;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
        space.push_back(u8(std::stoi(digits.substr(i, 2), nullptr, 16)));
    return space;
}

// Where the first thread goes in a launch with these parameters, in hexadecimal digits.
void print_touches(const Facts& facts, const std::string& digits) {
    std::vector<u8> space = bytes_of(digits);
    std::vector<Touch> touches;
    facts.first->run(space, {}, &touches);
    for (const Touch& touch : touches) std::cout << touch.address << ":" << kRoles[int(touch.role())] << " ";
    std::cout << "\n";
}

void print(const std::string& name, const Facts& facts) {
    std::cout << name << " |";
    for (const Parameter& parameter : facts.parameters) std::cout << " " << parameter.offset << "+" << parameter.size;
    std::cout << " |";
    for (const Pointer& pointer : facts.pointers)
        std::cout << " " << pointer.offset << ":" << kRoles[int(pointer.role)] << (pointer.found ? "?" : "");
    std::cout << " |" << (facts.may_signal ? " signals" : "");
    if (facts.first)
        for (u64 number : {u64(0), u64(24)}) print_touches(facts, number);
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

void print_parts() {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string name, digits, word;
        u32 offset = 0;
        std::vector<Parameter> parameters;
        words >> name >> offset >> digits;
        while (words >> word)
            parameters.push_back({u32(std::stoul(word)), u32(std::stoul(word.substr(word.find('+') + 1)))});
        auto arrays = ElementwiseArrays::of(name, parameters);
        std::cout << (arrays ? "" : "none");
        if (arrays)
            for (const ArrayPart& part : arrays->parts(bytes_of(digits), offset))
                std::cout << part.begin << " " << part.end << " " << part.rows.pitch << " " << part.rows.width << ";";
        std::cout << "\n";
    }
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
        Contents found = contents_of(exact, damaged.size());
        for (auto& entry : found.kernels) {
            add_roles_of_signature(entry.first, entry.second);
            std::vector<Touch> touches;
            if (entry.second.first) entry.second.first->run(std::vector<u8>(below(64)), {}, &touches);
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
    std::vector<std::string> spaces;
    for (; first < count && !strncmp(arguments[first], "--", 2); first++) {
        if (!strcmp(arguments[first], "--mutate")) mutations = atoi(arguments[++first]);
        if (!strcmp(arguments[first], "--signature")) signature = true;
        if (!strcmp(arguments[first], "--unsized")) unsized = true;
        if (!strcmp(arguments[first], "--parts")) print_parts();
        if (!strcmp(arguments[first], "--space")) spaces.push_back(arguments[++first]);
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
        Contents found = contents_of(image.data(), unsized ? 0 : size);
        for (auto& variable : found.variables)
            std::cout << "variable " << (variable.second.is_managed ? "managed:" : "") << variable.first << " "
                      << variable.second.bytes << "\n";
        for (auto& entry : found.kernels) {
            if (spaces.empty()) print(entry.first, entry.second);
            for (const std::string& space : spaces) print_touches(entry.second, space);
        }
    }
#ifdef PLANTED
    std::cout << "== reached\n" << check::planted_reached << "\n";
#endif
}
