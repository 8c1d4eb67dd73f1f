// The settings: XLOGMEM_SIM="devices=3,seed=7,quiet", and the devices that CUDA_VISIBLE_DEVICES names.
//
// This file alone reads XLOGMEM_SIM. A text that it cannot read makes the driver refuse to start: see cuInit, and
// xsim_wrong_settings for Python.
#include "base.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <locale>
#include <numeric>
#include <sstream>
#include <string_view>
#include <unistd.h>

namespace sim {

namespace {

using Text = std::string_view;

constexpr u64 kMiB = u64(1) << 20, kAddresses = u64(1) << 46;  // half of what a process can address

// A setting is a flag, or a value that `read` takes in. Where the value does not fit, `read` returns what would.
struct Setting {
    Text name;
    bool Config::* flag;
    std::string (*read)(Config& config, Text value);
};

template <class Number>
std::string whole(Text value, Number& target, u64 least, u64 most) {
    const bool hexadecimal = value.substr(0, 2) == "0x";
    const Text digits = value.substr(hexadecimal ? 2 : 0);
    u64 number = 0;
    auto [end, error] = std::from_chars(digits.begin(), digits.end(), number, hexadecimal ? 16 : 10);
    if (error != std::errc() || end != digits.end() || number < least || number > most)
        return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    target = Number(number);
    return "";
}

// Seconds are read in the same way in every locale of the program.
std::string seconds(Text value, double& target) {
    std::istringstream text{std::string(value)};
    text.imbue(std::locale::classic());
    double number = 0;
    if (!(text >> number) || text.peek() != EOF || number < .001 || number > 1e6)
        return "a number of seconds from 0.001 to 1000000";
    target = number;
    return "";
}

std::string policy(Text value, Policy& target) {
    if (!policy_from_name(std::string(value).c_str(), &target)) return "eager, min, max or seeded";
    return "";
}

const Setting kSettings[] = {
    {"arena", nullptr, [](Config& config, Text value) { return whole(value, config.arena, kMiB, kAddresses); }},
    {"deadlock_s", nullptr, [](Config& config, Text value) { return seconds(value, config.deadlock_seconds); }},
    {"devices", nullptr, [](Config& config, Text value) { return whole(value, config.machine, 0, kMaxDevices); }},
    {"free_waits", &Config::free_waits, nullptr},
    {"memory", nullptr, [](Config& config, Text value) { return whole(value, config.memory, kMiB, kAddresses); }},
    {"pageable", &Config::pageable, nullptr},
    {"peers", &Config::peers, nullptr},
    {"policy", nullptr, [](Config& config, Text value) { return policy(value, config.policy); }},
    {"queue", nullptr, [](Config& config, Text value) { return whole(value, config.queue_limit, 1, 1u << 31); }},
    {"quiet", &Config::quiet, nullptr},
    {"races", &Config::races, nullptr},
    {"seed", nullptr, [](Config& config, Text value) { return whole(value, config.seed, 0, ~u64(0)); }},
    {"trace", nullptr, [](Config& config, Text value) { return whole(value, config.trace, 0, 2); }},
    {"version", nullptr, [](Config& config, Text value) { return whole(value, config.version, 2000, 99990); }},
};

const Setting* setting_named(Text name) {
    auto found = std::find_if(std::begin(kSettings), std::end(kSettings),
                              [&](const Setting& setting) { return setting.name == name; });
    return found == std::end(kSettings) ? nullptr : found;
}

// The least number of letters to insert, to leave out and to replace, on the way from one word to the other.
std::size_t distance(Text one, Text other) {
    std::vector<std::size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 0; i < one.size(); i++) {
        std::size_t diagonal = row[0]++;
        for (std::size_t j = 0; j < other.size(); j++) {
            const std::size_t replaced = diagonal + (one[i] != other[j]);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
        }
    }
    return row.back();
}

std::string about_keys(Text unknown) {
    auto nearest =
        std::min_element(std::begin(kSettings), std::end(kSettings), [&](const Setting& one, const Setting& other) {
            return distance(unknown, one.name) < distance(unknown, other.name);
        });
    std::string text = "the nearest key is '" + std::string(nearest->name) + "', and all keys are";
    for (const Setting& setting : kSettings) text += (&setting == kSettings ? " " : ", ") + std::string(setting.name);
    return text;
}

Text trimmed(Text text) {
    const std::size_t first = text.find_first_not_of(" \t\n");
    if (first == Text::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// Takes in one entry of the list; returns what is wrong with it, if anything is.
std::string apply(Config& config, Text entry) {
    const std::size_t equals = entry.find('=');
    const bool bare = equals == Text::npos;
    const Text key = trimmed(entry.substr(0, equals));
    Text value = bare ? Text() : trimmed(entry.substr(equals + 1));
    const Setting* setting = setting_named(key);
    if (!setting) return "there is no key '" + std::string(key) + "': " + about_keys(key);
    std::string expected;
    if (setting->flag) {
        if (bare) value = "1";
        if (value == "0" || value == "1")
            config.*setting->flag = value == "1";
        else
            expected = "0 or 1";
    } else {
        expected = setting->read(config, value);
    }
    if (expected.empty()) return "";
    return std::string(key) + " is " + expected + ", and " +
           (value.empty() ? "has no value here" : "not '" + std::string(value) + "'");
}

// Each setting was a variable of its own once.
void find_old_variables(std::vector<std::string>& wrong) {
    constexpr Text prefix = "XLOGMEM_SIM_";
    for (char** variable = environ; variable && *variable; variable++) {
        const Text all = *variable, name = all.substr(0, all.find('='));
        if (name.substr(0, prefix.size()) != prefix) continue;
        std::string key;
        for (char letter : name.substr(prefix.size()))
            key += letter >= 'A' && letter <= 'Z' ? char(letter - 'A' + 'a') : letter;
        wrong.push_back(std::string(name) + " is set, but is not a variable of the simulated driver: " +
                        (setting_named(key) ? "unset it, and use the key '" + key + "' of XLOGMEM_SIM"
                                            : "the settings are in XLOGMEM_SIM; " + about_keys(key)));
    }
    std::sort(wrong.begin(), wrong.end());
}

std::string uuid_text(int number) {
    unsigned char bytes[16];
    uuid_of(number, bytes);
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits;
    }
    return text;
}

// The device that an entry names: by number, or by the beginning of its UUID that no other device has.  Else -1.
int device_named(const std::string& entry, int machine) {
    if (!entry.compare(0, 4, "GPU-")) {
        int found = -1;
        for (int number = 0; number < machine; number++) {
            if (uuid_text(number).compare(0, entry.size(), entry)) continue;
            if (found >= 0) return -1;
            found = number;
        }
        return found;
    }
    char* end = nullptr;
    const long number = strtol(entry.c_str(), &end, 10);
    return end != entry.c_str() && !*end && number >= 0 && number < machine ? int(number) : -1;
}

// The list as the driver reads it: an entry that names no device, or a device again, hides itself and all entries after
// it.
std::vector<int> visible_devices(const char* list, int machine) {
    std::vector<int> found;
    std::istringstream entries(list);
    std::string entry;
    while (std::getline(entries, entry, ',')) {
        entry.erase(0, entry.find_first_not_of(' '));
        entry.erase(entry.find_last_not_of(' ') + 1);
        const int number = device_named(entry, machine);
        if (number < 0 || std::find(found.begin(), found.end(), number) != found.end()) break;
        found.push_back(number);
    }
    return found;
}

}  // namespace

Config Config::from_environment() {
    Config config;
    find_old_variables(config.wrong);
    const char* text = getenv("XLOGMEM_SIM");
    for (Text left = text ? text : ""; !left.empty();) {
        const std::size_t comma = left.find(',');
        const Text entry = trimmed(left.substr(0, comma));
        left.remove_prefix(comma == Text::npos ? left.size() : comma + 1);
        if (entry.empty()) continue;  // "$XLOGMEM_SIM,quiet" where there was nothing
        std::string wrong = apply(config, entry);
        if (!wrong.empty()) config.wrong.push_back("XLOGMEM_SIM: " + wrong);
    }
    return config;
}

void Config::find_devices() {
    const char* list = getenv("CUDA_VISIBLE_DEVICES");
    visible.resize(std::size_t(machine));
    std::iota(visible.begin(), visible.end(), 0);
    if (list) visible = visible_devices(list, machine);
    devices = int(visible.size());
}

}  // namespace sim
