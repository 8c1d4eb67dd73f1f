// Sets of items, and operations on them: see origins.hpp.
#include "origins.hpp"

#include <algorithm>
#include <tuple>

namespace check::machine {

namespace {

constexpr std::size_t kMostPlaces = 2;  // a loop that walks through the parameters has one for each round

auto key(const Item& item) { return std::make_tuple(item.what, item.part, item.offset); }

bool is_whole(const Item& item) { return item.part != Part::Bits; }

Trust trust_of_either(Trust a, Trust b) {
    if (a == b) return a;
    if (a > b) std::swap(a, b);
    if (a == Trust::Sole && (b == Trust::Term || b == Trust::Either)) return b;
    return Trust::Maybe;
}

// The trust in an item that is there on one path, and not on the other.
Trust trust_of_one(Trust trust) {
    return trust == Trust::Sole || trust == Trust::Either ? Trust::Either : Trust::Maybe;
}

// Merges two sets: sorted, each item once. `both` makes one item of two, `one` changes an item that only one set has.
template <class Both, class One>
std::vector<Item> merged(const std::vector<Item>& a, const std::vector<Item>& b, Both both, One one) {
    std::vector<Item> result;
    for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
        bool from_a = j == b.size() || (i < a.size() && key(a[i]) <= key(b[j]));
        bool from_b = i == a.size() || (j < b.size() && key(b[j]) <= key(a[i]));
        Item item = from_a ? a[i] : b[j];
        item.trust = from_a && from_b ? both(a[i].trust, b[j].trust) : one(item.trust);
        i += from_a, j += from_b;
        result.push_back(item);
    }
    return result;
}

void scatter(std::vector<Item>* items) {
    for (Item& item : *items)
        if (item.what == What::Place) item.what = What::Within;
}

bool has_whole(const std::vector<Item>& items) { return std::any_of(items.begin(), items.end(), is_whole); }

}  // namespace

std::size_t Origins::Hash::operator()(const std::vector<Item>& items) const {
    u64 sum = 0;
    for (const Item& item : items) {
        u64 bits = u64(item.what) | u64(item.part) << 8 | u64(item.trust) << 16 | u64(u32(item.offset)) << 24;
        sum = (sum ^ bits) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 29;
    }
    return sum;
}

bool Origins::Equal::operator()(const std::vector<Item>& a, const std::vector<Item>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Item& x, const Item& y) { return key(x) == key(y) && x.trust == y.trust; });
}

Origin Origins::number_of(std::vector<Item> items) {
    // Items that were changed may be equal now.
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return key(a) < key(b); });
    std::vector<Item> unique;
    for (const Item& item : items) {
        if (!unique.empty() && key(unique.back()) == key(item))
            unique.back().trust = Trust::Maybe;
        else
            unique.push_back(item);
    }
    for (Item& item : unique)
        if (item.part == Part::Bits) item.trust = Trust::Maybe;
    auto entry = numbers_.emplace(std::move(unique), Origin(sets_.size()));
    if (entry.second) sets_.push_back(&entry.first->first);
    return entry.first->second;
}

template <class Make>
Origin Origins::remember(Operation operation, Origin a, Origin b, Make make) {
    u64 which = u64(operation) << 60 | u64(a) << 30 | b;
    auto known = known_.find(which);
    if (known != known_.end()) return known->second;
    return known_[which] = number_of(make());
}

template <class Change>
Origin Origins::each(Operation operation, Origin a, Change change) {
    if (!a) return 0;
    return remember(operation, a, 0, [&] {
        std::vector<Item> items = *sets_[a];
        for (Item& item : items) change(item);
        return items;
    });
}

Origin Origins::either(Origin a, Origin b) {
    if (a == b) return a;
    if (a > b) std::swap(a, b);
    return remember(Operation::Either, a, b, [&] {
        std::vector<Item> items = merged(*sets_[a], *sets_[b], trust_of_either, trust_of_one);
        auto is_place = [](const Item& item) { return item.what == What::Place && item.part == Part::Low; };
        if (std::size_t(std::count_if(items.begin(), items.end(), is_place)) > kMostPlaces) scatter(&items);
        return items;
    });
}

Origin Origins::sum(Origin a, Origin b) {
    if (!a || !b) return a + b;
    if (a > b) std::swap(a, b);
    return remember(Operation::Sum, a, b, [&] {
        bool both = has_whole(*sets_[a]) && has_whole(*sets_[b]);
        return merged(
            *sets_[a], *sets_[b], [](Trust, Trust) { return Trust::Maybe; },
            [both](Trust trust) { return both && trust == Trust::Sole ? Trust::Term : trust; });
    });
}

Origin Origins::negative(Origin a) {
    return each(Operation::Negative, a, [](Item& item) {
        if (item.what == What::Place) item.what = What::Within;
        if (item.trust == Trust::Sole || item.trust == Trust::Term)
            item.trust = Trust::Minus;
        else
            item.trust = item.trust == Trust::Minus ? Trust::Term : Trust::Maybe;
    });
}

Origin Origins::moved(Origin a, i64 distance) {
    if (!a || !distance) return a;
    std::vector<Item> items = *sets_[a];
    bool changed = false;
    for (Item& item : items) {
        if (item.what != What::Place || item.part != Part::Low) continue;
        i64 offset = item.offset + distance;
        changed = true;
        if (offset > -i64(kLargestParameters) && offset < i64(kLargestParameters))
            item.offset = i32(offset);
        else
            item.what = What::Within;
    }
    return changed ? number_of(items) : a;
}

Origin Origins::scattered(Origin a) {
    return each(Operation::Scattered, a, [](Item& item) {
        if (item.what == What::Place) item.what = What::Within;
    });
}

Origin Origins::unplaced(Origin a) {
    if (!a) return 0;
    return remember(Operation::Unplaced, a, 0, [&] {
        std::vector<Item> items = *sets_[a];
        auto is_place = [](const Item& item) { return item.what == What::Place || item.what == What::Within; };
        items.erase(std::remove_if(items.begin(), items.end(), is_place), items.end());
        return items;
    });
}

Origin Origins::maybe(Origin a) {
    return each(Operation::Maybe, a, [](Item& item) { item.trust = Trust::Maybe; });
}

Origin Origins::bits(Origin a) {
    return each(Operation::Bits, a, [](Item& item) {
        item.part = Part::Bits;
        if (item.what == What::Place) item.what = What::Within;
    });
}

Origin Origins::product(Origin a) {
    if (!a) return 0;
    return remember(Operation::Product, a, 0, [&] {
        std::vector<Item> items = *sets_[a];
        items.erase(std::remove_if(items.begin(), items.end(), is_whole), items.end());
        return items;
    });
}

Origin Origins::forked(Origin a) {
    return each(Operation::Forked, a, [](Item& item) {
        if (item.trust == Trust::Either) item.trust = Trust::Maybe;
    });
}

}  // namespace check::machine
