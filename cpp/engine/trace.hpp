// Traces: the calls of a front end to the engine, as text, a line each, and their reader.
//
// A trace recorded while a program ran gives the findings of that run when it is fed to an engine of its own. Streams
// have the front end's numbers, 0 is the host; a name of an operation is written once, as `:name`, and afterwards by
// its number. Knowledge that the host gains is written as a clock, so that queries need no lines. The last line says how
// many bytes are before it: where it is missing, or says something else, the trace was cut.
#pragma once

#include "engine.hpp"
#include "journal.hpp"

#include <map>
#include <unistd.h>

namespace check {

class Trace {
  public:
    explicit Trace(int file) : output_(file) {}  // an open one, which is closed at the end
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;

    template <class... Words>
    void line(const char* call, const Words&... words) {
        text_ += call;
        (add(words), ...);
        text_ += '\n';
        if (text_.size() >= kFull) flush();
    }
    void work(const Stream& stream, Operation what, const Range* ranges, std::size_t count, bool may_signal);
    // A number for the graph that was captured last at this address; 0: none was.
    u64 number_of(const Graph* graph, bool is_new);
    void flush();

  private:
    static constexpr std::size_t kFull = 1 << 16;
    Output output_;
    pid_t process_ = getpid();
    u64 made_ = 0;  // bytes, without those of `text_`
    std::string text_;
    std::map<const Graph*, u64> graphs_;
    u64 newest_graph_ = 0;

    void add(u64 number);
    void add(u32 number) { add(u64(number)); }
    void add(bool flag) { add(u64(flag)); }
    void add(Role role) { add(u64(role)); }
    void add(Kind kind) { add(u64(kind)); }
    void add(Pool pool) { add(u64(pool)); }
    void add(Operation what) {
        add(what.name);
        add(what.site);
    }
    void add(const Stream* stream) { add(stream ? stream->id : 0); }
    void add(const std::string& name);
    void add(const Clock& clock);
};

// Feeds an engine with a trace.
class Player {
  public:
    explicit Player(Engine& engine) : engine_(engine) {}
    // True if the words are a line of a trace. Throws std::exception if the line is malformed.
    bool line(const std::vector<std::string>& words);

  private:
    Engine& engine_;
    std::map<u64, Stream*> streams_{{0, nullptr}};
    std::map<u64, std::shared_ptr<const Graph>> graphs_;
    std::map<u64, u32> names_;
    const std::vector<std::string>* words_ = nullptr;

    u64 number(std::size_t index) const;
    Pool pool() const { return words_->size() > 6 ? Pool(number(6)) : Pool::Driver; }  // older traces have none
    Stream* stream(std::size_t index) const { return streams_.at(number(index)); }
    Operation operation(std::size_t index) const;
    Operation operation_behind(std::size_t index) const {  // older traces have none
        return index < words_->size() ? operation(index) : Operation{};
    }
    Clock clock(std::size_t first = 1) const;
    bool on_order(const std::string& call);
    bool on_memory(const std::string& call);
    bool on_rest(const std::string& call);
    void work();
};

}  // namespace check
