// Reading of machine code at the end of the program: the choice of kernels, and the verdicts that follow.
#include "front.hpp"

#include <algorithm>
#include <set>

namespace check {

std::vector<Front::FoundCode> Front::find_codes() {
    std::set<u32> open = engine().open_words();
    std::vector<FoundCode> found;
    for (std::size_t i = 0; i < kernels.launched().size(); i++) {
        const KernelTable::Read& kernel = kernels.launched()[i];
        auto is_open = [&](const Word& word) { return open.count(word.number) != 0; };
        if (std::none_of(kernel.words.begin(), kernel.words.end(), is_open)) continue;
        codes.each(kernel.symbol, [&](const Code& code) {
            const u8* begin = code.text.data();
            found.push_back({i, kernel.parameters, {begin, begin + code.text.size()}, code.sm, code.base, code.jumps});
        });
    }
    return found;
}

namespace {

enum class Says : u8 { Nothing, Unused, Used };

struct WordVerdict {
    Says says;
    Role role;
    LaunchNumbers numbers;
};

WordVerdict verdict_of(const CodeFacts& facts, u32 offset) {
    if (!facts.followed) return {Says::Nothing, Role::Unknown, {}};
    for (std::size_t i = 0; i < facts.pointers.size(); i++)
        if (facts.pointers[i].offset == offset) return {Says::Used, facts.pointers[i].role, facts.numbers[i]};
    for (const Parameter& parameter : facts.open)
        if (offset - parameter.offset < parameter.size) return {Says::Nothing, Role::Unknown, {}};
    return {Says::Unused, Role::Unknown, {}};
}

}  // namespace

void Front::read_codes(const std::vector<FoundCode>& codes) {
    for (auto first = codes.begin(); first != codes.end();) {
        auto last =
            std::find_if(first, codes.end(), [&](const FoundCode& code) { return code.kernel != first->kernel; });
        for (const Word& word : kernels.launched()[first->kernel].words) {
            WordVerdict all = verdict_of(first->facts, word.offset);
            for (auto other = first + 1; other != last; ++other) {
                WordVerdict verdict = verdict_of(other->facts, word.offset);
                if (verdict.says != all.says) all.says = Says::Nothing;
                if (verdict.role != all.role) all.role = Role::Unknown;
                all.numbers.added |= verdict.numbers.added;
                all.numbers.deciding |= verdict.numbers.deciding;
            }
            if (all.says == Says::Nothing) continue;
            engine().settle(word.number, all.says == Says::Used);
            if (all.says != Says::Used) continue;
            engine().learn(word.number, all.role);
            engine().limit(word.number, all.numbers);
        }
        first = last;
    }
}

}  // namespace check
