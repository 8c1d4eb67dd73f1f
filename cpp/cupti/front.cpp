// State shared by all calls: see front.hpp.
#include "front.hpp"

namespace check {

Front& front() {
    static Front& only = *new Front;
    return only;
}

bool Front::is_pageable(u64 address) {
    auto after = pinned_.upper_bound(address);
    return after == pinned_.begin() || std::prev(after)->second <= address;
}

std::string Front::report() {
    std::string calls;
    for (auto& [name, count] : unseen_)
        calls += (calls.empty() ? "" : ", ") + quoted(name) + ": " + std::to_string(count);
    Engine& engine = this->engine();
    engine.decide_all_frees();
    return "{\"findings\": " + as_json(engine, handles_.notes()) +
           ", \"omissions\": " + omissions_as_json(engine, handles_.notes()) + ", \"unseen\": {" + calls +
           "}, \"launches\": " + std::to_string(launches_) +
           ", \"unknown_launches\": " + std::to_string(unknown_launches_) +
           ", \"dropped\": " + std::to_string(engine.dropped()) + "}";
}

}  // namespace check
