// Writing and reading traces: see trace.hpp.
#include "trace.hpp"

#include <charconv>
#include <set>
#include <stdexcept>
#include <unistd.h>

namespace check {

// -- writing ----------------------------------------------------------------------------------------------------------

Trace::~Trace() {
    line(":end-of-trace", made_ + text_.size());
    flush();
}

void Trace::flush() {
    // A forked child writes none of the lines that its parent has not written yet. On a full disk the trace ends.
    if (process_ == getpid()) output_.append(text_);
    made_ += text_.size();
    text_.clear();
}

void Trace::add(u64 number) {
    char digits[24] = " ";
    text_.append(digits, std::to_chars(digits + 1, digits + sizeof digits, number).ptr);
}

// Writes the name as one word, whatever characters it has.
void Trace::add(const std::string& name) {
    static const char digits[] = "0123456789abcdef";
    text_ += " .";
    for (char letter : name) {
        bool plain = u8(letter) > ' ' && letter != '%';
        text_ += plain ? letter : '%';
        if (!plain) text_ += {digits[u8(letter) >> 4], digits[u8(letter) & 15]};
    }
}

void Trace::add(const Clock& clock) {
    for (u32 slot = 0; slot < clock.slots(); slot++) {
        if (!clock.at(slot)) continue;
        add(slot);
        add(clock.at(slot));
    }
    if (clock.has_unseen()) text_ += " ?";
}

void Trace::work(const Stream& stream, Operation what, const Range* ranges, std::size_t count, bool may_signal) {
    bool in_rows = std::any_of(ranges, ranges + count, [](const Range& range) { return range.rows.pitch; });
    text_ += may_signal ? ":work" : ":silent-work";
    if (in_rows) text_ += "-in-rows";
    add(&stream);
    add(what);
    for (std::size_t i = 0; i < count; i++) {
        add(ranges[i].begin);
        add(ranges[i].end);
        add(ranges[i].role);
        add(ranges[i].anchor);
        add(ranges[i].word);
        add(u64(ranges[i].absent) | u64(ranges[i].moved) << 1);
        add(ranges[i].found);
        if (in_rows) add(ranges[i].rows.pitch), add(ranges[i].rows.width);
    }
    line("");
}

u64 Trace::number_of(const Graph* graph, bool is_new) {
    if (is_new) graphs_[graph] = ++newest_graph_;
    auto found = graphs_.find(graph);
    return found == graphs_.end() ? 0 : found->second;
}

// -- reading ----------------------------------------------------------------------------------------------------------

u64 Player::number(std::size_t index) const {
    const std::string& word = words_->at(index);
    u64 value = 0;
    auto end = std::from_chars(word.data(), word.data() + word.size(), value);
    if (end.ec != std::errc() || end.ptr != word.data() + word.size()) throw std::runtime_error("no number: " + word);
    return value;
}

Operation Player::operation(std::size_t index) const { return {names_.at(number(index)), u32(number(index + 1))}; }

Clock Player::clock(std::size_t first) const {
    Clock made;
    std::size_t count = words_->size();
    if (words_->back() == "?") {
        made.add_unseen();
        count--;
    }
    for (std::size_t i = first; i < count; i += 2) made.set({u32(number(i)), number(i + 1)});
    return made;
}

void Player::work() {
    std::vector<Range> ranges;
    const std::string& call = words_->at(0);
    bool is_silent = call.rfind(":silent", 0) == 0, in_rows = call.find("-in-rows") != std::string::npos;
    for (std::size_t words = in_rows ? 9 : 7, i = 4; i + words <= words_->size(); i += words) {
        Range range;
        if (in_rows) range.rows = {number(i + 7), number(i + 8)};
        range.begin = number(i);
        range.end = number(i + 1);
        range.role = Role(number(i + 2));
        range.anchor = number(i + 3);
        range.word = u32(number(i + 4));
        range.absent = number(i + 5) & 1;
        range.moved = number(i + 5) & 2;
        range.found = number(i + 6);
        ranges.push_back(range);
    }
    engine_.work(*stream(1), operation(2), ranges.data(), ranges.size(), !is_silent);
}

bool Player::on_order(const std::string& call) {
    if (call == ":stream") {
        u64 context = number(2);
        bool legacy = number(4);
        u32 library = legacy ? 0 : names_.at(number(5));
        streams_[number(1)] = legacy ? engine_.create_legacy(context, number(1))
                                     : engine_.create_stream(context, number(1), number(3), library);
    } else if (call == ":end-stream") {
        engine_.destroy_stream(stream(1));
    } else if (call == ":end-context") {
        engine_.destroy_context(number(1));
    } else if (call == ":record") {
        engine_.record(number(2), *stream(1), operation_behind(3));
    } else if (call == ":wait") {
        engine_.wait(*stream(1), number(2), operation_behind(3));
    } else if (call == ":end-event") {
        engine_.destroy_event(number(1));
    } else if (call == ":unseen") {
        engine_.wait_unseen(*stream(1));
    } else if (call == ":refuse-record") {
        engine_.refuse_record(number(1));
    } else if (call == ":learn") {
        engine_.host_learns(clock());
    } else if (call == ":await") {
        engine_.host_awaits(*stream(1));
    } else if (call == ":after") {
        engine_.come_after(*stream(1), clock(2));
    } else if (call == ":settle") {  // older traces have it, and the next operation does it
    } else if (call == ":refuse-order") {
        engine_.refuse_order(*stream(1), clock(2));
    } else if (call == ":may-learn") {
        engine_.host_may_learn(clock());
    } else if (call == ":pools-learn") {
        engine_.host_pools_learn(clock());
    } else if (call == ":done") {
        engine_.all_is_done();
    } else {
        return false;
    }
    return true;
}

bool Player::on_memory(const std::string& call) {
    if (call == ":alloc") {
        engine_.allocate(stream(1), operation(2), number(4), number(5), pool());
    } else if (call == ":free") {
        engine_.free(stream(1), operation(2), number(4));
    } else if (call == ":free-after") {
        engine_.free_after(clock(4), operation(1), number(3));
    } else if (call == ":pin") {
        engine_.pin(operation(1), number(3), number(4));
    } else if (call == ":unpin") {
        engine_.unpin(operation(1), number(3));
    } else if (call == ":manage") {
        engine_.manage(number(1));
    } else if (call == ":host") {
        engine_.touch_by_host(operation(1), number(3), number(4), Role(number(5)), number(6));
    } else if (call == ":late-read") {
        engine_.read_late(*stream(1), operation(2), {u32(number(4)), number(5)}, number(6), number(7), number(8));
    } else if (call == ":changed") {
        engine_.find_changed(number(1), operation(2), Role(number(4)));
    } else if (call == ":refuse-unpin") {
        engine_.refuse_unpin(number(1), operation(2), number(4), number(5));
    } else if (call == ":piece") {
        engine_.allocate_piece(stream(1), operation(2), number(4), number(5), pool());
    } else if (call == ":unpiece") {
        engine_.free_piece(stream(1), operation(2), number(4));
    } else if (call == ":release") {
        engine_.release_piece(operation(1), number(3));
    } else if (call == ":forget") {
        engine_.forget_piece(number(1));
    } else if (call == ":adopt") {
        engine_.adopt_piece(number(1), number(2));
    } else if (call == ":record-piece") {
        engine_.record_piece(*stream(1), number(2));
    } else if (call == ":return") {
        engine_.return_piece(stream(1), operation(2), number(4));
    } else if (call == ":decide") {
        engine_.decide_all_frees();
    } else if (call == ":found") {
        engine_.find_memory(number(1));
    } else if (call == ":keep") {
        engine_.keep(number(1));
    } else if (call == ":refuse") {
        engine_.refuse(*stream(1), operation(2), {u32(number(4)), number(5)});
    } else if (call == ":forget-all") {
        engine_.forget_memory();
    } else if (call == ":track") {
        engine_.track(number(1), number(2), names_.at(number(3)));
    } else {
        return false;
    }
    return true;
}

namespace {

std::string decoded(const std::string& word) {
    std::string text;
    for (std::size_t i = 1; i < word.size(); i++) {
        bool coded = word[i] == '%' && i + 2 < word.size();
        text += coded ? char(std::stoi(word.substr(i + 1, 2), nullptr, 16)) : word[i];
        if (coded) i += 2;
    }
    return text;
}

}  // namespace

bool Player::on_rest(const std::string& call) {
    if (call == ":name") {
        names_[number(1)] = engine_.name(decoded(words_->at(2)));
    } else if (call == ":capture") {
        engine_.begin_capture(*stream(1));
    } else if (call == ":end-capture") {
        graphs_[number(2)] = engine_.end_capture(*stream(1));
    } else if (call == ":launch") {
        engine_.launch(*stream(1), operation(2), *graphs_.at(number(4)));
    } else if (call == ":declare") {
        engine_.declare(number(1), *stream(2), operation(3), number(5), number(6), Role(number(7)));
    } else if (call == ":close") {
        engine_.close_window(number(1), words_->size() < 3 || number(2));  // older traces do not say it
    } else if (call == ":thread") {  // older traces do not have it
        engine_.act_in(number(1));
    } else if (call == ":audit") {
        engine_.audit(number(1));
    } else if (call == ":word") {
        engine_.add_word();
    } else if (call == ":learn-word") {
        engine_.learn(u32(number(1)), Role(number(2)));
    } else if (call == ":vary-word") {
        engine_.vary(u32(number(1)), number(2), number(3));
    } else if (call == ":limit-word") {
        engine_.limit(u32(number(1)), {number(2), number(3)});
    } else if (call == ":settle-word") {
        engine_.settle(u32(number(1)), number(2));
    } else if (call == ":saw-write") {
        engine_.saw_write(u32(number(1)), {u32(number(2)), number(3)}, number(4));
    } else if (call == ":dead") {
        bool older = words_->size() < 7;  // which does not say what destroyed the handle
        engine_.dead_handle(Kind(number(1)), operation(2), older ? Destroyed{} : Destroyed{operation(4), number(6)});
    } else if (call == ":clear") {
        engine_.clear_findings();
    } else if (call == ":end-of-trace") {
    } else {
        return false;
    }
    return true;
}

bool Player::line(const std::vector<std::string>& words) {
    words_ = &words;
    const std::string& call = words.at(0);
    if (call[0] != ':') return false;
    static const std::set<std::string> works{":work", ":work-in-rows", ":silent-work", ":silent-work-in-rows"};
    if (works.count(call))
        work();
    else if (!on_order(call) && !on_memory(call) && !on_rest(call))
        throw std::runtime_error("no call " + call);
    return true;
}

}  // namespace check
