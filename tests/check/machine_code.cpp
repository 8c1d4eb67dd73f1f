// Prints what kernels do with their parameters, from the listings in the files named on the command line, each of which
// may have several; test_machine_code.py compiles it.
// With --cubin it prints where the code is in a cubin instead, and what else is said there.
// With --mutate N each file is also read N times, damaged, as the one or the other.
#include "kernels/binary.hpp"

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

std::string contents(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// "name | base | 0+8 8+16 | 160>176,192": where the parameters are, and where jumps go.
struct Head {
    std::string name;
    u32 base = 0;
    std::vector<Parameter> parameters;
    std::vector<Jump> jumps;
};

Head head_of(const std::string& line) {
    Head head;
    std::istringstream fields(line);
    std::string field, word;
    std::getline(fields, head.name, '|');
    std::getline(fields, field, '|');
    head.base = u32(strtoul(field.c_str(), nullptr, 10));
    std::getline(fields, field, '|');
    for (std::istringstream words(field); words >> word;) {
        char* end = nullptr;
        u32 offset = u32(strtoul(word.c_str(), &end, 10));
        head.parameters.push_back({offset, *end ? u32(strtoul(end + 1, nullptr, 10)) : 0});
    }
    std::getline(fields, field, '|');
    for (std::istringstream words(field); words >> word;) {
        char* end = nullptr;
        Jump jump;
        jump.place = u32(strtoul(word.c_str(), &end, 10));
        while (*end) jump.targets.push_back(u32(strtoul(end + 1, &end, 10)));
        head.jumps.push_back(jump);
    }
    return head;
}

// The offsets of places: "all" where everything is meant.
std::string text_of(ParameterPlaces places) {
    std::string text;
    for (u32 offset = 0; offset < 256; offset += 4)
        if (places & place_in_parameters(offset)) text += (text.empty() ? "" : ",") + std::to_string(offset);
    return ~places ? text : "all";
}

void print(const std::string& name, const CodeFacts& facts) {
    std::cout << name << "| " << facts.followed << " |";
    for (const Pointer& pointer : facts.pointers)
        std::cout << " " << pointer.offset << ":" << kRoles[int(pointer.role)];
    std::cout << " |";
    for (const Parameter& open : facts.open) std::cout << " " << open.offset << "+" << open.size;
    std::cout << " |";
    for (std::size_t i = 0; i < facts.numbers.size(); i++)
        std::cout << " " << facts.pointers[i].offset << ":" << text_of(facts.numbers[i].added) << "/"
                  << text_of(facts.numbers[i].deciding);
    std::cout << "\n";
}

// Each kernel begins with a line "== " and its head.
std::size_t read_listings(const std::string& text, bool prints) {
    std::size_t followed = 0;
    for (std::size_t at = text.find("== "); at < text.size();) {
        std::size_t end = std::min(text.find('\n', at), text.size());
        std::size_t next = std::min(text.find("\n== ", end), text.size());
        Head head = head_of(text.substr(at + 3, end - at - 3));
        std::string exact = text.substr(end, next - end);  // a sanitizer knows where it ends
        CodeFacts facts = facts_of_code(exact, head.parameters, head.base, head.jumps);
        followed += facts.followed;
        if (prints) print(head.name, facts);
        at = next + 1;
    }
    return followed;
}

std::size_t read_cubin(const std::string& image, bool prints) {
    std::size_t there = 0;
    Bytes bytes(image.data(), image.size());
    for (auto& [name, facts] : contents_of_cubin(bytes).kernels) {
        Code code = code_of(bytes, name);
        there += code.text.size() != 0;
        if (!prints) continue;
        std::cout << name << " | " << code.base << " |";
        for (const Parameter& parameter : facts.parameters)
            std::cout << " " << parameter.offset << "+" << parameter.size;
        std::cout << " |";
        for (const Jump& jump : code.jumps) {
            std::cout << " " << jump.place;
            for (std::size_t i = 0; i < jump.targets.size(); i++) std::cout << (i ? "," : ">") << jump.targets[i];
        }
        auto* begin = reinterpret_cast<const u8*>(image.data());
        std::cout << " | " << code.sm << " " << (code.text.size() ? code.text.data() - begin : 0) << " "
                  << code.text.size() << "\n";
    }
    return there;
}

std::size_t mutate(const std::string& whole, int times, bool is_cubin) {
    std::mt19937 random(7);
    auto below = [&](std::size_t end) { return std::size_t(random() % end); };
    std::size_t sum = 0;
    for (int i = 0; i < times; i++) {
        std::string damaged = whole;
        if (below(3) == 0) damaged.resize(1 + below(damaged.size()));
        for (std::size_t n = below(20); n > 0; n--) damaged[below(damaged.size())] = char(random());
        // What else may stand there: a part of another line, or of the same one.
        for (std::size_t n = is_cubin ? 0 : below(8); n > 0; n--) {
            std::size_t size = 1 + below(12), from = below(damaged.size()), to = below(damaged.size());
            damaged.replace(to, std::min(size, damaged.size() - to), damaged.substr(from, size));
        }
        sum += is_cubin ? read_cubin(damaged, false) : read_listings(damaged, false);
    }
    return sum;
}

}  // namespace

int main(int count, char** arguments) {
    int mutations = 0, first = 1;
    bool is_cubin = false;
    for (; first < count && !strncmp(arguments[first], "--", 2); first++) {
        if (!strcmp(arguments[first], "--mutate")) mutations = atoi(arguments[++first]);
        if (!strcmp(arguments[first], "--cubin")) is_cubin = true;
    }
    for (int i = first; i < count; i++) {
        std::string text = contents(arguments[i]);
        if (mutations)
            std::cout << mutate(text, mutations, is_cubin) << "\n";
        else if (is_cubin)
            read_cubin(text, true);
        else
            read_listings(text, true);
    }
}
