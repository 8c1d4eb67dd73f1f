// What is learned about pointers of kernels: see words.hpp.
#include "engine.hpp"
#include "trace.hpp"

namespace check {

bool KernelWords::learn(u32 word, Role role) {
    bool is_new = word && role != Role::Unknown && all_[word].role == Role::Unknown;
    if (is_new) all_[word].role = role;
    return is_new;
}

bool KernelWords::doubt(u32 word) {
    bool is_new = word && !all_[word].moved;
    if (is_new) all_[word].moved = true;
    return is_new;
}

bool KernelWords::launch(u32 word, u64 address, const LaunchOrigin& origin) {
    Word& of = all_[word];
    for (Last& last : of.last) {
        if (last.address != address || !last.origin.stream) continue;
        bool moved = last.origin.numbers != origin.numbers && last.origin.stream != origin.stream;
        last.origin = origin;
        return moved;
    }
    of.last[of.newest++ % of.last.size()] = {address, origin};
    return false;
}

void Engine::judge_again(u32 word) {
    findings_.each([&](Finding& finding) {
        if (finding.first.word != word && finding.second.word != word) return;
        words_.refresh(finding.first);
        words_.refresh(finding.second);
        finding.certain = is_certain(finding);
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

void Engine::add_pointer(std::vector<Range>& ranges, u64 address, Role role, u32 word, bool moved,
                         const LaunchOrigin& origin) {
    Block* block = blocks_.find(address);
    if (!block) return;
    ranges.push_back(anchored(*block, address, role));
    ranges.back().word = word;
    ranges.back().moved = moved;
    if (words_.launch(word, address, origin)) doubt(word);
}

void Engine::doubt(u32 word) {
    if (trace_) trace_->line(":doubt-word", word);
    if (words_.doubt(word)) judge_again(word);
}

}  // namespace check
