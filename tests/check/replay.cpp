// Feeds traces to the engine alone, and prints what it finds. test_traces.py compiles it, and says what a trace is.
#include "engine/handles.hpp"
#include "engine/trace.hpp"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>

using namespace check;

namespace {

const std::map<std::string, Role> kRoles{{"read", Role::Read},           {"write", Role::Write},
                                         {"readwrite", Role::ReadWrite}, {"unknown", Role::Unknown},
                                         {"atomic", Role::Atomic},       {"free", Role::Free}};

using Words = std::vector<std::string>;

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error(text); }

class Replay {
  public:
    explicit Replay(int record) : journal_(memfd_create("journal", 0)) {  // an open file; -1: none
        if (record >= 0) engine_.record_to(std::make_shared<Trace>(record));
        writer_ = std::make_shared<Journal>(dup(journal_), engine_, handles_.notes(), nullptr);
        engine_.write_to(writer_);
        lseek(journal_, Journal::kPage, SEEK_SET);  // both have one position
    }
    ~Replay() { close(journal_); }
    void line(Words words);
    void print();

  private:
    int journal_;
    std::shared_ptr<Journal> writer_;
    Engine engine_;
    Handles handles_{engine_};
    Player player_{engine_};
    std::map<std::string, u64> stream_handles_, event_handles_, blocks_;
    std::map<u64, std::string> stream_names_, block_names_;
    std::map<std::string, std::shared_ptr<const Graph>> graphs_;
    std::map<std::string, Clock> notes_;
    std::map<std::string, u64> windows_;
    std::map<std::string, u32> kernel_words_;
    std::map<std::string, Time> launches_;  // the last one through a word
    std::map<std::string, u64> unpinned_;  // generations
    std::map<std::string, std::pair<Operation, Time>> newest_;  // work, by the name of its stream
    KernelWords::Launch launch_;  // its numbers
    u64 next_handle_ = 0x100, next_address_ = 0x7f0000000000;
    Words words_;
    Operation what_;

    const std::string& word(std::size_t index) const {
        if (index >= words_.size()) refuse("a word is missing");
        return words_[index];
    }
    bool has(const char* text) const {
        for (const std::string& word : words_)
            if (word == text) return true;
        return false;
    }
    u64 handle(std::map<std::string, u64>& table, const std::string& name);
    Stream* stream(const std::string& name);
    u64 address(const std::string& text) const;
    u64 place(const std::string& name, u64 bytes);
    Range range(const std::string& text);
    Range pointer(const std::string& text, Role role, const std::string& more);

    bool on_handles();
    bool on_order();
    bool on_memory();
    void touch_by_host(const Range& touched);
    bool on_host_memory();
    bool on_graphs();
    bool on_declarations();
    bool on_words();
    void run();
    void sync();
    std::map<u64, bool> journal();
    std::string text_of(const Finding& finding) const;
    std::string text_of(const Omission& omission) const;
    std::string text_of(const Idle& idle) const;
    std::string text_of(const Access& access) const;
};

u64 Replay::handle(std::map<std::string, u64>& table, const std::string& name) {
    auto made = table.try_emplace(name, 0);
    if (made.second) made.first->second = next_handle_ += 8;
    return made.first->second;
}

// A name, or the default stream of a context or a thread: legacy1, thread1, thread1/2 (in context 2). The host: nullptr.
Stream* Replay::stream(const std::string& name) {
    if (name == "host") return nullptr;
    Caller caller{1, 0};
    Stream* found;
    if (name.rfind("legacy", 0) == 0) {
        caller.context = std::stoull(name.substr(6));
        found = handles_.stream(0, caller, what_);
    } else if (name.rfind("thread", 0) == 0) {
        std::size_t slash = name.find('/');
        if (slash != std::string::npos) caller.context = std::stoull(name.substr(slash + 1));
        caller.thread = std::stoull(name.substr(6));
        found = handles_.stream(Handles::kPerThread, caller, what_);
    } else {
        found = handles_.stream(handle(stream_handles_, name), caller, what_);
    }
    if (!found) throw found;  // the handle of a destroyed stream: the driver would refuse the call
    stream_names_[found->id] = name;
    return found;
}

u64 Replay::address(const std::string& text) const {
    std::size_t plus = text.find('+');
    auto found = blocks_.find(text.substr(0, plus));
    if (found == blocks_.end()) refuse("no block " + text);
    return found->second + (plus == std::string::npos ? 0 : std::stoull(text.substr(plus + 1)));
}

// Through a word of the kernel's parameters, where one is named.
Range Replay::pointer(const std::string& text, Role role, const std::string& more) {
    std::vector<Range> ranges;
    Through through{0, role, more.find('?') != std::string::npos, more.find('~') != std::string::npos};
    std::size_t named = more.find('#');
    if (named != std::string::npos) {
        auto made = kernel_words_.try_emplace(more.substr(named + 1), 0);
        if (made.second) made.first->second = engine_.add_word();
        through.word = made.first->second;
    }
    engine_.add_pointer(ranges, address(text), through, launch_);
    return ranges.empty() ? Range{} : ranges[0];
}

// p[0:64]:write is exactly these bytes, p[0:36/16:4]:write of these rows of 4 bytes that begin 16 bytes apart,
// p[0:64]:read~ some of these bytes, p+8:write a kernel's pointer. Behind the role of a pointer: ~ if the kernel goes
// somewhere else from there, ? if the address was found in a struct, #w where it stands in the word w. 16=7: the launch
// is handed the number 7 at the offset 16. silent: the kernel cannot signal the host.
Range Replay::range(const std::string& text) {
    std::size_t colon = text.rfind(':'), open = text.find('['), more = std::min(text.find_first_of("~?#"), text.size());
    auto role = kRoles.find(text.substr(colon + 1, more - colon - 1));
    if (role == kRoles.end()) refuse("no role in " + text);
    if (open == std::string::npos) return pointer(text.substr(0, colon), role->second, text.substr(more));
    u64 base = address(text.substr(0, open));
    Range exact;
    exact.begin = base + std::stoull(text.substr(open + 1));
    exact.end = base + std::stoull(text.substr(text.find(':', open) + 1));
    std::size_t slash = text.find('/', open);
    if (slash != std::string::npos)
        exact.rows = {std::stoull(text.substr(slash + 1)), std::stoull(text.substr(text.find(':', slash) + 1))};
    exact.role = role->second;
    exact.moved = text.find('~', more) != std::string::npos;
    if (exact.moved) exact.anchor = exact.begin;
    return exact;
}

bool Replay::on_handles() {
    const std::string& call = word(0);
    if (call == "stream") {
        u64 context = has("of") ? std::stoull(words_.back()) : 1;
        u32 library = has("by") ? engine_.name(words_.back()) : 0;
        handles_.create_stream(handle(stream_handles_, word(1)), context, {has("blocking"), library});
    } else if (call == "event") {
        handles_.create_event(handle(event_handles_, word(1)), 1);
    } else if (call == "destroy" && stream_handles_.count(word(1))) {
        handles_.destroy_stream(stream_handles_[word(1)], what_);
    } else if (call == "destroy") {
        handles_.destroy_event(handle(event_handles_, word(1)), what_);
    } else if (call == "end-thread") {
        handles_.end_thread(std::stoull(word(1)));
    } else if (call == "end-context") {
        handles_.end_context(std::stoull(word(1)), what_);
    } else {
        return false;
    }
    return true;
}

void Replay::sync() {
    if (word(1) == "context")
        engine_.host_learns(engine_.queued_in(std::stoull(word(2))));
    else if (event_handles_.count(word(1))) {
        u64 event = event_handles_[word(1)];
        if (handles_.is_alive(event, what_)) engine_.host_learns(engine_.recorded(event));
    } else {
        engine_.host_awaits(*stream(word(1)));
        engine_.host_learns(engine_.queued_on(*stream(word(1))));
    }
}

bool Replay::on_order() {
    const std::string& call = word(0);
    if (call == "record" || call == "wait") {
        bool record = call == "record";
        u64 event = handle(event_handles_, word(record ? 1 : 2));
        Stream* on = stream(word(record ? 2 : 1));
        if (!handles_.is_alive(event, what_)) return true;
        if (record)
            engine_.record(event, *on, what_);
        else
            engine_.wait(*on, event, what_);
    } else if (call == "refuse") {
        auto& [what, time] = newest_.at(word(1));
        engine_.refuse(*stream(word(1)), what, time);
    } else if (call == "refuse-record") {
        engine_.refuse_record(handle(event_handles_, word(1)));
    } else if (call == "wait-unseen") {
        engine_.wait_unseen(*stream(word(1)));
    } else if (call == "sync") {
        sync();
    } else if (call == "may-learn") {  // what a synchronize would wait for
        engine_.host_may_learn(engine_.queued_on(*stream(word(1))));
    } else if (call == "note") {  // a synchronize begins …
        notes_[word(1)] = engine_.queued_on(*stream(word(2)));
    } else if (call == "learn") {  // … and returns
        engine_.host_learns(notes_[word(1)]);
    } else {
        return false;
    }
    return true;
}

// Of a new block: behind the others, or where the last word says.
u64 Replay::place(const std::string& name, u64 bytes) {
    u64 at = next_address_;
    if (has("at"))
        at = address(words_.back());
    else
        next_address_ += (bytes / 0x10000 + 1) * 0x10000;
    blocks_[name] = at;
    block_names_[at] = name;
    return at;
}

// "?": the program may have meant other bytes.
void Replay::touch_by_host(const Range& touched) {
    engine_.touch_by_host(what_, touched.begin, touched.end, touched.role, !has("?"));
}

bool Replay::on_host_memory() {
    const std::string& call = word(0);
    if (call == "pin")
        engine_.pin(what_, place(word(1), std::stoull(word(2))), std::stoull(word(2)));
    else if (call == "unpin")
        unpinned_[word(1)] = engine_.unpin(what_, address(word(1)));
    else if (call == "refuse-unpin")
        engine_.refuse_unpin(unpinned_.at(word(1)), what_, address(word(1)), std::stoull(word(2)));
    else if (call == "pools-learn")
        engine_.host_pools_learn(engine_.queued_on(*stream(word(1))));
    else if (call == "manage")
        engine_.manage(address(word(1)));
    else if (call == "host")
        touch_by_host(range(word(1)));
    else
        return false;
    return true;
}

bool Replay::on_memory() {
    const std::string& call = word(0);
    bool piece = call == "piece" || call == "unpiece";
    if (call == "alloc" || call == "piece") {
        u64 bytes = std::stoull(word(2)), at = place(word(1), bytes);
        Stream* on = stream(word(3));
        if (piece)
            engine_.allocate_piece(on, what_, at, bytes, has("cached") ? Pool::Caching : Pool::Driver);
        else
            engine_.allocate(on, what_, at, bytes, has("replaced") ? Pool::Replaced : Pool::Driver);
    } else if (call == "free") {
        engine_.free(stream(word(2)), what_, address(word(1)));
    } else if (call == "free-after") {
        engine_.free_after(engine_.queued_on(*stream(word(2))), what_, address(word(1)));
    } else if (call == "keep") {
        engine_.keep(address(word(1)));
    } else if (call == "unpiece") {
        engine_.free_piece(stream(word(2)), what_, address(word(1)));
    } else if (call == "release") {
        engine_.release_piece(what_, address(word(1)));
    } else if (call == "adopt") {
        engine_.adopt_piece(blocks_[word(1)] = address(word(4)), std::stoull(word(2)));
        block_names_[address(word(4))] = word(1);
    } else if (call == "record-piece") {
        engine_.record_piece(*stream(word(2)), address(word(1)));
    } else if (call == "return") {
        engine_.return_piece(stream(word(2)), what_, address(word(1)));
    } else if (call == "forget") {
        engine_.forget_piece(address(word(1)));
    } else {
        return false;
    }
    return true;
}

bool Replay::on_graphs() {
    const std::string& call = word(0);
    if (call == "capture")
        engine_.begin_capture(*stream(word(1)));
    else if (call == "end")
        graphs_[word(2)] = engine_.end_capture(*stream(word(1)));
    else if (call == "launch")
        engine_.launch(*stream(word(2)), what_, *graphs_.at(word(1)));
    else
        return false;
    return true;
}

// window w A p[0:64]:read … opens a window, close w ends it, cancel w too: nothing was launched; track p 64 name: xlogmem's, with a tag.
bool Replay::on_declarations() {
    const std::string& call = word(0);
    if (call == "window") {
        u64 window = windows_.try_emplace(word(1), windows_.size()).first->second;
        for (std::size_t i = 3; i < words_.size(); i++) {
            Range declared = range(words_[i]);
            engine_.declare(window, *stream(word(2)), what_, declared.begin, declared.end - declared.begin,
                            declared.role);
        }
    } else if (call == "close" || call == "cancel") {
        engine_.close_window(windows_.at(word(1)), call == "close");
    } else if (call == "track") {
        u64 bytes = std::stoull(word(2));
        if (!engine_.track(address(word(1)), bytes, engine_.name(word(3)))) refuse("no such block");
    } else if (call == "audit") {
        engine_.audit(true);
    } else if (call == "thread") {
        engine_.act_in(std::stoull(word(1)));
    } else {
        return false;
    }
    return true;
}

// The places behind `name=`, by their offsets.
ParameterPlaces places_in(const std::string& list) {
    ParameterPlaces places = 0;
    std::istringstream offsets(list.substr(list.find('=') + 1));
    for (std::string offset; std::getline(offsets, offset, ',');)
        if (!offset.empty()) places |= place_in_parameters(u32(std::stoul(offset)));
    return places;
}

// settle w used, settle w unused: the kernel's code was read. limit w added=16 deciding=20,24: these numbers matter.
// saw-write w p: the last launch with the word w has changed p.
bool Replay::on_words() {
    const std::string& call = word(0);
    if (call != "settle" && call != "learn-word" && call != "saw-write" && call != "limit") return false;
    u32 number = kernel_words_.at(word(1));
    if (call == "settle")
        engine_.settle(number, word(2) == "used");
    else if (call == "limit")
        engine_.limit(number, {places_in(word(2)), places_in(word(3))});
    else if (call == "learn-word")
        engine_.learn(number, kRoles.at(word(2)));
    else
        engine_.saw_write(number, launches_.at(word(1)), address(word(2)));
    return true;
}

void Replay::run() {
    what_.name = engine_.name(word(2));
    Stream* on = stream(word(1));
    launch_ = {on->id, {}, 0};
    for (std::size_t equals; (equals = words_.back().find('=')) != std::string::npos; words_.pop_back()) {
        std::size_t number = std::stoull(words_.back()) / 8;
        if (launch_.numbers.size() <= number) launch_.numbers.resize(number + 1);
        launch_.numbers[number] = std::stoull(words_.back().substr(equals + 1));
    }
    engine_.keep_numbers(launch_);
    std::vector<Range> ranges;
    for (std::size_t i = 3; i < words_.size(); i++)
        if (word(i) != "silent") ranges.push_back(range(words_[i]));
    Time time = engine_.work(*on, what_, ranges.data(), ranges.size(), !has("silent"));
    newest_[word(1)] = {what_, time};
    for (auto& [name, number] : kernel_words_)
        for (const Range& range : ranges)
            if (range.word == number) launches_[name] = time;
}

void Replay::line(Words words) {
    words_ = std::move(words);
    if (player_.line(words_)) return;  // it was recorded
    what_ = {engine_.name(word(0)), 0};
    if (words_.back()[0] == '@') {
        what_.site = u32(std::stoul(words_.back().substr(1)));
        words_.pop_back();
    }
    try {
        if (word(0) == "run")
            run();
        else if (!on_handles() && !on_order() && !on_memory() && !on_host_memory() && !on_graphs() &&
                 !on_declarations() && !on_words())
            refuse("no call " + word(0));
    } catch (Stream*) {
    }
}

std::string Replay::text_of(const Access& access) const {
    std::string text = engine_.name(access.what.name) + "@" + std::to_string(access.what.site);
    if (access.captured) text += "<" + std::to_string(access.captured);
    static const char* const ways[] = {"", "(new)", "(declared)", "(lacking@", "(written@"};
    text += ways[int(access.known)];
    if (access.known > Known::Declared) text += std::to_string(access.window) + ")";
    if (!access.stream) return text + "/host";
    auto name = stream_names_.find(access.stream);
    return text + "/" + (name == stream_names_.end() ? std::to_string(access.stream) : name->second);
}

std::string Replay::text_of(const Finding& finding) const {
    static const char* const roles[] = {"read", "write", "readwrite", "unknown", "alloc", "free", "atomic"};
    static const char* const kinds[] = {"", "use-after-free ", "stale-graph ", "dead-stream ", "dead-event "};
    std::string text = finding.certain() ? "certain " : "possible ";
    if (finding.first.of_driver || finding.second.of_driver) text += "of-driver ";
    text += kinds[int(finding.kind)];
    if (finding.kind == Kind::DeadStream || finding.kind == Kind::DeadEvent)
        return text + engine_.name(finding.second.what.name) + "@" + std::to_string(finding.second.what.site) +
               (finding.first.what.site ? " after " + text_of(finding.first) : "");
    text += std::string(roles[int(finding.first.role)]) + "/" + roles[int(finding.second.role)] + " ";
    text += text_of(finding.first) + " " + text_of(finding.second) + " ";
    auto block = block_names_.find(finding.block_begin);
    text += (block == block_names_.end() ? "?" : block->second) + "[" +
            std::to_string(finding.begin - finding.block_begin) + ":" +
            std::to_string(finding.end - finding.block_begin) + "]";
    if (finding.tracked) text += " \"" + engine_.name(finding.tag) + "\"";
    text += text_of(finding.idle);
    return finding.count == 1 ? text : text + " x" + std::to_string(finding.count);
}

// Of a wait whose place is known.
std::string Replay::text_of(const Idle& idle) const {
    static const char* const reasons[] = {"", "never recorded", "recorded before", "recorded elsewhere"};
    if (!idle.what.site) return "";
    std::string text = " (wait@" + std::to_string(idle.what.site) + " " + reasons[int(idle.why)];
    return text + (idle.stream ? "@" + std::to_string(idle.recorded.site) : "") + ")";
}

std::string Replay::text_of(const Omission& omission) const {
    auto name = [&](u64 stream) {
        auto found = stream_names_.find(stream);
        return found == stream_names_.end() ? std::to_string(stream) : found->second;
    };
    std::string text = "outside ";
    if (omission.kind == Omission::Kind::Written) text = "declared@" + std::to_string(omission.declared) + " ";
    if (omission.kind == Omission::Kind::Elsewhere)
        text = "elsewhere@" + std::to_string(omission.declared) + "/" + name(omission.named) + " ";
    text += engine_.name(omission.what.name) + "@" + std::to_string(omission.what.site) + "/" + name(omission.stream);
    text += " \"" + engine_.name(omission.tag) + "\"";
    if (!omission.entry) text += " (no entry)";
    return omission.count == 1 ? text : text + " x" + std::to_string(omission.count);
}

// The numbers of the findings that the journal has in the end; true: certain. Its page counts their lines.
std::map<u64, bool> Replay::journal() {
    u64 count = 0;
    std::string text(std::size_t(lseek(journal_, 0, SEEK_END)), 0);
    if (pread(journal_, text.data(), text.size(), 0) != ssize_t(text.size())) refuse("the journal cannot be read");
    std::istringstream lines(text.substr(Journal::kPage));
    std::map<u64, bool> found;
    const std::string number = "{\"number\": ";
    for (std::string line; std::getline(lines, line);) {
        if (line == "{\"cleared\": true}") found.clear(), count++;
        if (line.rfind(number, 0) != 0) continue;
        count++;
        u64 of = std::stoull(line.substr(number.size()));
        if (line.find("\"finding\": null") != std::string::npos)
            found.erase(of);
        else
            found[of] = line.find("\"certain\": true") != std::string::npos;
    }
    if (count != engine_.page().lines) std::cout << "the journal has another number of lines\n";
    return found;
}

void Replay::print() {
    engine_.decide_all_frees();
    std::map<u64, bool> found;
    for (const Finding& finding : engine_.findings().all()) found[finding.number] = finding.certain();
    if (found != journal()) std::cout << "the journal has other findings\n";
    for (const Finding& finding : engine_.findings().all()) std::cout << text_of(finding) << "\n";
    for (const Omission& omission : engine_.omissions()) std::cout << text_of(omission) << "\n";
    if (engine_.dropped()) std::cout << "dropped " << engine_.dropped() << "\n";
    if (engine_.findings().left_out()) std::cout << "left out " << engine_.findings().left_out() << "\n";
    if (ftruncate(journal_, 0)) refuse("the journal cannot be truncated");
    writer_->clear();
    if (lseek(journal_, 0, SEEK_END)) std::cout << "the journal goes on behind a truncation\n";
    if (!engine_.page().failed) std::cout << "the page says of a truncation that all was written\n";
}

}  // namespace

#ifdef PLANTED
namespace check {
extern u64 planted_reached;
}
#endif

// Traces one after the other, each behind a line "== NAME"; what is found is printed behind the same line. With a folder,
// what the engine is fed is recorded there, in a file for each.
int main(int count, char** arguments) {
    std::ifstream in(arguments[1]);
    std::unique_ptr<Replay> replay;
    std::string text;
    int traces = 0;
    for (int number = 1; std::getline(in, text); number++) {
        std::istringstream stream(text);
        Words words;
        for (std::string word; stream >> word;) words.push_back(word);
        if (words.empty() || words[0][0] == '#') continue;
        if (words[0] == "==") {
            if (replay) replay->print();
            std::cout << text << "\n";
            std::string path = count > 2 ? std::string(arguments[2]) + "/" + std::to_string(traces++) : "";
            replay = std::make_unique<Replay>(path.empty() ? -1 : creat(path.c_str(), 0666));
            continue;
        }
        try {
            replay->line(std::move(words));
        } catch (const std::exception& error) {
            std::cerr << "line " << number << ": " << text << ": " << error.what() << "\n";
            return 2;
        }
    }
    if (replay) replay->print();
#ifdef PLANTED
    std::cout << "== reached\n" << check::planted_reached << "\n";
#endif
}
