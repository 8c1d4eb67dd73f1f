// Judgement of accesses by the origins of their addresses: see evidence.hpp.
//
// An address is that of a word if both halves of the word are in both of its registers. If that is so for one word
// only, everything else was added to the word. If it is so for several words of a sum, other evidence has to show which
// word is the address and which words are distances: an access through one of them alone. A difference of two words may
// be the distance between them, so that an access that starts from one word goes to the other.
#include "evidence.hpp"

#include <algorithm>

namespace check::machine {

namespace {

constexpr u32 kLargestScalar = 8;  // what is larger may have fields and elements
constexpr u32 kMap = 128;  // the size of a map of a tensor

// The trust in the word's halves, where both are there.
struct Full {
    Trust low = Trust::Maybe, high = Trust::Maybe;
    bool is_term() const { return low <= Trust::Term && high <= Trust::Term; }
    bool is_either() const { return low == Trust::Either && high == Trust::Either; }
};

std::map<u32, Full> full_words(const std::vector<Item>& low, const std::vector<Item>& high) {
    std::map<u32, Full> words;
    for (const Item& item : low) {
        if (item.what != What::Word || item.part != Part::Low) continue;
        for (const Item& other : high)
            if (other.what == What::Word && other.part == Part::High && other.offset == item.offset)
                words[u32(item.offset)] = {item.trust, other.trust};
    }
    return words;
}

// True if an item was read by an index, or is an address of parameters.
bool has_more_than_words(const std::vector<Item>& items, bool with_bits) {
    return std::any_of(items.begin(), items.end(), [&](const Item& item) {
        return item.what != What::Word && (with_bits || item.part != Part::Bits);
    });
}

}  // namespace

// One half alone is not an address.
Role Evidence::Use::role() const {
    if (low_leaves && high_leaves) return Role::Unknown;
    if (writes && reads && !plain) return Role::Atomic;
    if (writes) return reads || may_read ? Role::ReadWrite : Role::Write;
    return may_write ? Role::Unknown : Role::Read;
}

const Parameter* Evidence::parameter_at(i64 offset) const {
    for (const Parameter& parameter : parameters_)
        if (offset >= parameter.offset && offset < i64(parameter.offset) + parameter.size) return &parameter;
    return nullptr;
}

void Evidence::Use::add(const Use& other) {
    reads |= other.reads;
    writes |= other.writes;
    may_read |= other.may_read;
    may_write |= other.may_write;
    plain |= other.plain;
    low_leaves |= other.low_leaves;
    high_leaves |= other.high_leaves;
}

// An index may be negative, and compilers add constants to the beginning of an array: a[i - 1] is read from a place in
// front of the array, which may be in another parameter. So any parameter that may have elements is meant.
void Evidence::open_from(i64 offset, const Use& use) {
    for (const Parameter& parameter : parameters_)
        if (parameter.size > kLargestScalar || &parameter == parameter_at(offset))
            open_[std::size_t(&parameter - parameters_.data())].add(use);
}

// Notes a word that is in an address but not known to be the address, or that leaves. Both halves of a place are
// treated as one.
void Evidence::touch(const Item& item, const Use& use) {
    if (item.what == What::Word)
        uses_[u32(item.offset)].add(use);
    else if (item.what == What::Group || item.part != Part::High)
        open_from(item.offset, use);
}

void Evidence::touch(const Item& item, const Kind& kind) {
    Use use;
    use.may_read = kind.reads;
    use.may_write = kind.writes;
    use.plain = !kind.is_atomic;
    touch(item, use);
}

void Evidence::leave(Origin origin) {
    for (const Item& item : origins_[origin]) {
        Use use;
        bool is_place = item.what == What::Place || item.what == What::Within;
        use.low_leaves = is_place || item.part != Part::High;
        use.high_leaves = is_place || item.part != Part::Low;
        touch(item, use);
    }
}

void Evidence::follow_map(Origin low, Origin high) {
    for (const Item& item : origins_[low]) {
        if (item.what == What::Place && item.part == Part::Low && parameter_at(item.offset))
            maps_.insert(u32(item.offset));
        else
            touch(item, Kind{true, true});
    }
    for (const Item& item : origins_[high])
        if (item.what == What::Word || item.what == What::Group) touch(item, Kind{true, true});
}

void Evidence::use(u32 word, bool alone, const Kind& kind) {
    Use& use = uses_[word];
    use.is_address = true;
    use.plain |= !kind.is_atomic;
    (alone ? use.reads : use.may_read) |= kind.reads;
    (alone ? use.writes : use.may_write) |= kind.writes;
}

void Evidence::access(Origin low, Origin high, const Kind& kind) {
    std::map<u32, Full> words = full_words(origins_[low], origins_[high]);
    auto all = [&](auto is) {
        return std::all_of(words.begin(), words.end(), [&](auto& one) { return is(one.second); });
    };
    bool is_clear = !words.empty() && !has_more_than_words(origins_[high], false);
    // A value that was read by an index is a number, unless the other half has such a value too.
    bool is_indexed = has_more_than_words(origins_[low], true) && has_more_than_words(origins_[high], true);
    bool are_terms = is_clear && all([](const Full& full) { return full.is_term(); });
    bool is_one = are_terms && words.size() == 1;
    for (Origin half : {low, high}) {
        for (const Item& item : origins_[half]) {
            bool is_it = is_one && item.what == What::Word && words.count(u32(item.offset));
            if (!is_it && (item.what == What::Word || is_indexed)) touch(item, kind);
        }
    }
    if (is_one) {
        use(words.begin()->first, true, kind);
    } else if (are_terms) {
        sums_.push_back({{}, kind});
        for (auto& [word, full] : words) sums_.back().words.insert(word);
    } else if (is_clear && kind.always && all([](const Full& full) { return full.is_either(); })) {
        for (auto& [word, full] : words) use(word, false, kind);
    }
}

// A word that is known from elsewhere to be an address is the address here.
void Evidence::settle_sums() {
    auto is_address = [&](u32 word) { return uses_[word].is_address; };
    for (const Sum& sum : sums_)
        if (std::count_if(sum.words.begin(), sum.words.end(), is_address) == 1)
            use(*std::find_if(sum.words.begin(), sum.words.end(), is_address), true, sum.kind);
}

void Evidence::add_to(CodeFacts* facts) {
    settle_sums();
    for (u32 map : maps_) {
        const Parameter* parameter = parameter_at(map);
        facts->open.push_back({map, std::min(parameter->offset + parameter->size - map, kMap)});
        for (auto& [word, use] : uses_)
            if (word >= map && word < map + kMap) use.may_write = true;
    }
    for (auto& [number, use] : open_) {
        const Parameter& parameter = parameters_[number];
        facts->open.push_back(parameter);
        for (auto& [word, of_word] : uses_)
            if (parameter_at(word) == &parameter) of_word.add(use);
    }
    for (auto& [word, use] : uses_) {
        if (use.is_address)
            facts->pointers.push_back({word, use.role()});
        else if (parameter_at(word) || parameter_at(i64(word) + 7))
            facts->open.push_back({word, 8});
    }
}

}  // namespace check::machine
