// Knowledge about pointers of kernels, gained during the run: see words.hpp.
#include "engine.hpp"
#include "trace.hpp"

#include <utility>

namespace check {

bool KernelWords::learn(u32 word, Role role) {
    // Memory that was seen to change was written; the code says more: that atomic operations write it.
    bool is_more = word && role == Role::Atomic && all_[word].role == Role::Write;
    bool is_new = is_more || (word && role != Role::Unknown && all_[word].role == Role::Unknown);
    if (is_new) all_[word].role = role;
    return is_new;
}

bool KernelWords::vary(u32 word, ParameterPlaces anywhere, ParameterPlaces between_streams) {
    if (!word) return false;
    Word& of = all_[word];
    bool is_new = (anywhere & ~of.varied) || (between_streams & ~of.varied_between_streams);
    of.varied |= anywhere;
    of.varied_between_streams |= between_streams;
    return is_new;
}

bool KernelWords::limit(u32 word, const LaunchNumbers& numbers) {
    if (!word) return false;
    Word& of = all_[word];
    bool was_moved = of.is_moved(), was_skipped = of.is_skipped();
    of.numbers = numbers;
    return of.is_moved() != was_moved || of.is_skipped() != was_skipped;
}

bool KernelWords::settle(u32 word, bool used) {
    bool is_new = word && all_[word].code == Code::NotRead;
    if (is_new) all_[word].code = used ? Code::Uses : Code::DoesNotUse;
    return is_new;
}

namespace {

constexpr std::size_t kMostKept = 1 << 14;  // different numbers

ParameterPlaces different_places(const std::vector<u64>& a, const std::vector<u64>& b) {
    ParameterPlaces places = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); i++) {
        u64 different = a[i] ^ b[i];
        if (u32(different)) places |= place_in_parameters(u32(8 * i));
        if (different >> 32) places |= place_in_parameters(u32(8 * i + 4));
    }
    return places;
}

}  // namespace

void KernelWords::keep(Launch& launch) {
    launch.hash = launch.numbers.size();
    for (u64 number : launch.numbers) {
        launch.hash = (launch.hash ^ number) * 0x9E3779B97F4A7C15ull;
        launch.hash ^= launch.hash >> 29;
    }
    if (kept_.empty()) kept_.resize(kMostKept);
    Kept& kept = kept_[launch.hash % kMostKept];
    if (kept.hash == launch.hash) return;
    kept.hash = launch.hash;
    kept.numbers = launch.numbers;
}

// Where the numbers of the last launch with this address are not kept any more, each of them may be another one.
bool KernelWords::launch(u32 word, u64 address, const Block& block, const Launch& launch) {
    Word& of = all_[word];
    u64 key = address ^ block.generation << 48;
    std::size_t at = std::size_t(std::find(of.addresses.begin(), of.addresses.end(), key) - of.addresses.begin());
    bool is_first = at == kAddresses;
    if (is_first) {
        at = of.newest++ % kAddresses;
        of.addresses[at] = key;
    }
    bool other_stream = std::exchange(of.streams[at], launch.stream) != launch.stream;
    u64 last = std::exchange(of.hashes[at], launch.hash);
    if (is_first || last == launch.hash) return false;
    const Kept& kept = kept_[last % kMostKept];
    ParameterPlaces places = kept.hash == last ? different_places(kept.numbers, launch.numbers) : ~ParameterPlaces(0);
    return vary(word, places, other_stream ? places : 0);
}

void Engine::judge_again(u32 word) {
    findings_.judge_again([&](Finding& finding) {
        if (finding.first.word != word && finding.second.word != word) return;
        words_.refresh(finding.first);
        words_.refresh(finding.second);
        finding.verdict = verdict_of(finding);
    });
}

u32 Engine::add_word() {
    if (trace_) trace_->line(":word");
    return words_.add();
}

void Engine::learn(u32 word, Role role) {
    if (trace_) trace_->line(":learn-word", word, role);
    if (words_.learn(word, role)) judge_again(word);
}

void Engine::add_pointer(std::vector<Range>& ranges, u64 address, const Through& through,
                         const KernelWords::Launch& launch) {
    Block* block = blocks_.find(address);
    if (!block) return;
    ranges.push_back(anchored(*block, address, through.role));
    ranges.back().word = through.word;
    ranges.back().absent = through.absent;
    ranges.back().found = through.found;
    if (through.word && words_.launch(through.word, address, *block, launch)) note_varied(through.word);
}

void Engine::settle(u32 word, bool used) {
    if (trace_) trace_->line(":settle-word", word, used);
    if (words_.settle(word, used)) judge_again(word);
}

std::set<u32> Engine::open_words() const {
    std::set<u32> open;
    for (const std::vector<Finding>* list : {&findings_.all(), &findings_.aside()})
        for (const Finding& finding : *list)
            for (const Access* access : {&finding.first, &finding.second})
                if (access->word && !words_.is_settled(access->word)) open.insert(access->word);
    return open;
}

// A change that another stream may have made meanwhile says nothing about this launch: so an access with a finding
// stays as it is.
void Engine::saw_write(u32 word, Time time, u64 address) {
    if (trace_) trace_->line(":saw-write", word, time.slot, time.number, address);
    auto is_it = [&](const Access& access) {
        return access.word == word && access.time.slot == time.slot && access.time.number == time.number;
    };
    for (const Finding& finding : findings_.all())
        if (is_it(finding.first) || is_it(finding.second)) return;
    Block* block = blocks_.find(address);
    if (!block) return;
    block->shadow.each([&](Access& access) {
        if (!is_it(access)) return;
        access.role = Role::Write;
        access.found = access.maybe_end = false;
    });
}

void Engine::note_varied(u32 word) {
    if (trace_) trace_->line(":vary-word", word, words_.varied(word), words_.varied_between_streams(word));
    judge_again(word);
}

void Engine::vary(u32 word, ParameterPlaces anywhere, ParameterPlaces between_streams) {
    if (words_.vary(word, anywhere, between_streams)) note_varied(word);
}

void Engine::limit(u32 word, const LaunchNumbers& numbers) {
    if (trace_) trace_->line(":limit-word", word, numbers.added, numbers.deciding);
    if (words_.limit(word, numbers)) judge_again(word);
}

}  // namespace check
