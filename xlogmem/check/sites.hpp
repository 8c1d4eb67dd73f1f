// The place of the calling thread in its Python program: a number for each stack.
//
// A call of the driver is made with the GIL or, mostly, without it. A thread reads its own frames all the same: no other
// thread changes them, and it does not run Python meanwhile. Only a stack that was never seen before takes the GIL, to
// keep its code objects; so a front end wants the number before it takes a lock of its own.
#pragma once

#include <Python.h>

#include "mutex.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace check {

struct Place {
    PyCodeObject* code;
    int instruction;  // offset in bytes
    bool operator==(const Place& other) const { return code == other.code && instruction == other.instruction; }
};

// The innermost frames of a stack.
struct Stack {
    static constexpr int kDeepest = 12;
    std::array<Place, kDeepest> places;
    int depth = 0;
    std::uint64_t hash = 0;

    bool operator==(const Stack& other) const {
        if (depth != other.depth) return false;
        for (int i = 0; i < depth; i++)
            if (!(places[i] == other.places[i])) return false;
        return true;
    }
    void add(PyCodeObject* code, int instruction) {
        places[depth++] = {code, instruction};
        hash = (hash ^ (reinterpret_cast<std::uintptr_t>(code) + std::uint64_t(instruction))) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
};

// The beginning of the interpreter's own description of a frame, whose header (pycore_interpframe_structs.h, before 3.14
// pycore_frame.h) is not meant for C++. works() compares with what Python says.
struct Frame {
#if PY_VERSION_HEX < 0x030C0000
    void *function, *globals, *builtins, *locals;
    std::uintptr_t executable;
    void* object;
    const Frame* previous;
    const char* instruction;  // of two bytes
    int stack_top;
    bool is_entry;
#else
    std::uintptr_t executable;  // from 3.14 on with tags in the lowest bits
    const Frame* previous;
    void *function, *globals, *builtins, *locals, *object;
    const char* instruction;  // of two bytes
#if PY_VERSION_HEX < 0x030E0000
    int stack_top;
#else
    void* stack_pointer;
#ifdef Py_GIL_DISABLED
    std::int32_t thread_local_code;
#endif
#endif
    std::uint16_t return_offset;
#endif
    char owner;  // 0 to 2: it runs Python code
};

inline const Frame* innermost(const PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
    return reinterpret_cast<const Frame*>(thread->current_frame);
#else
    return reinterpret_cast<const Frame*>(thread->cframe->current_frame);
#endif
}

// The code of a frame of Python; nullptr for one that stands for C.
inline PyCodeObject* code_of(const Frame* frame) {
    if (frame->owner > 2) return nullptr;
    auto* executable = reinterpret_cast<PyObject*>(frame->executable & ~std::uintptr_t{7});
    return executable && PyCode_Check(executable) ? reinterpret_cast<PyCodeObject*>(executable) : nullptr;
}

// The offset of the frame's current instruction; 0 where the instruction is not in the code object.
inline int offset_of(const Frame* frame, const PyCodeObject* code) {
    auto at = frame->instruction - code->co_code_adaptive;
    return at >= 0 && at < Py_SIZE(code) * 2 ? int(at) : 0;
}

inline Stack stack_of(const PyThreadState* thread) {
    Stack stack;
    for (auto* frame = innermost(thread); frame && stack.depth < Stack::kDeepest; frame = frame->previous)
        if (PyCodeObject* code = code_of(frame)) stack.add(code, offset_of(frame, code));
    return stack;
}

// With the GIL. True if a frame has the layout above: in a version of Python that is not known yet it may not.
inline bool works() {
    PyFrameObject* expected = PyEval_GetFrame();
    if (!expected) return false;
    PyCodeObject* code = PyFrame_GetCode(expected);
    const Frame* frame = innermost(PyThreadState_Get());
    while (frame && frame->owner > 2) frame = frame->previous;
    bool same = frame && (frame->executable & ~std::uintptr_t{7}) == reinterpret_cast<std::uintptr_t>(code) &&
                offset_of(frame, code) == PyFrame_GetLasti(expected);
    Py_DECREF(code);
    return same;
}

// -- text, for which the GIL is not needed: code objects that are kept do not change, and neither do their strings ----

template <class Text>
void add_as_code(Text& text, unsigned unit) {
    char code[16];
    snprintf(code, sizeof code, "\\u%04x", unit);
    text += code;
}

// The string as JSON, in ASCII.
template <class Text>
void add_quoted(Text& text, PyObject* string) {
    const int kind = int(PyUnicode_KIND(string));
    const void* data = PyUnicode_DATA(string);
    text += '"';
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(string); i++) {
        Py_UCS4 letter = PyUnicode_READ(kind, data, i);
        if (letter >= 0x10000) {
            add_as_code(text, 0xD800 + ((letter - 0x10000) >> 10));
            add_as_code(text, 0xDC00 + (letter & 0x3FF));
        } else if (letter < ' ' || letter > '~' || letter == '"' || letter == '\\') {
            add_as_code(text, letter);
        } else {
            text += char(letter);
        }
    }
    text += '"';
}

// `[file, line, function]`.
template <class Text>
void add_frame(Text& text, const Place& place) {
    int line = PyCode_Addr2Line(place.code, place.instruction);
    char number[24];
    snprintf(number, sizeof number, ", %d, ", line > 0 ? line : place.code->co_firstlineno);
    text += "[";
    add_quoted(text, place.code->co_filename);
    text += number;
    add_quoted(text, place.code->co_qualname);
    text += "]";
}

// A list of the frames, the innermost first.
inline std::string text_of(const Stack& stack) {
    std::string text = "[";
    for (int i = 0; i < stack.depth; i++) {
        if (i) text += ", ";
        add_frame(text, stack.places[i]);
    }
    return text + "]";
}

// -- places in handlers of signals, which neither allocate nor take the GIL -------------------------------------------

// Text with a fixed room. What does not fit is left out.
class FixedText {
  public:
    FixedText& operator+=(char letter) {
        if (length_ + 1 < sizeof text_)
            text_[length_++] = letter;
        else
            is_cut_ = true;
        text_[length_] = 0;
        return *this;
    }
    FixedText& operator+=(const char* letters) {
        while (*letters) *this += *letters++;
        return *this;
    }
    const char* text() const { return text_; }
    bool is_cut() const { return is_cut_; }
    std::size_t length() const { return length_; }
    void cut_to(std::size_t length) {
        text_[length_ = length] = 0;
        is_cut_ = false;
    }

  private:
    char text_[4096] = "";
    std::size_t length_ = 0;
    bool is_cut_ = false;
};

// Of cpp/native, which numbers stacks of addresses, in threads that run no Python.
inline bool is_native(std::uint32_t number) { return number >> 30 == 1; }

// Stacks that such handlers have seen, as JSON: the thread's frames run while it handles a signal, and their code
// objects may be gone afterwards. The numbers have a bit that those of Sites have not.
class SitesOfSignals {
  public:
    static constexpr std::uint32_t kBit = 0x80000000u, kMost = 512;

    std::uint32_t of_caller() {
        const PyThreadState* thread = PyGILState_GetThisThreadState();
        if (!thread) return 0;
        Stack stack = stack_of(thread);
        if (!stack.depth) return 0;
        std::uint64_t wanted = stack.hash | 1;
        for (std::uint32_t turn = 0; turn < kMost; turn++) {
            std::uint32_t at = std::uint32_t((wanted + turn) % kMost);
            std::uint64_t known = 0;
            if (claimed_[at].compare_exchange_strong(known, wanted)) fill(texts_[at], stack);
            if (known == 0 || known == wanted) return kBit | at;
        }
        return 0;
    }
    static bool is(std::uint32_t number) { return number & kBit; }
    const char* text(std::uint32_t number) const { return texts_[(number & ~kBit) % kMost].text(); }
    // The numbers that were given, from `number` on; 0: there are no more.
    std::uint32_t next(std::uint32_t number) const {
        for (std::uint32_t at = number & ~kBit; at < kMost; at++)
            if (claimed_[at]) return kBit | at;
        return 0;
    }

  private:
    std::atomic<std::uint64_t> claimed_[kMost] = {};  // hashes
    FixedText texts_[kMost];

    static void fill(FixedText& text, const Stack& stack) {
        text += '[';
        for (int i = 0; i < stack.depth; i++) {
            std::size_t before = text.length();
            if (i) text += ", ";
            add_frame(text, stack.places[i]);
            text += ']';
            if (text.is_cut()) return end(text, before);
            text.cut_to(text.length() - 1);
        }
        text += ']';
    }
    static void end(FixedText& text, std::size_t length) {
        text.cut_to(length);
        text += ']';
    }
};

// All stacks that were seen, by their numbers; 0 stands for none. They are kept until the process ends, and their code
// objects with them: a program has so many places.
class Sites {
  public:
    xlogmem_mutex lock;  // a leaf; of all below

    // The number of the calling thread's stack; 0 outside of Python, or where the interpreter ends.
    std::uint32_t of_caller() {
        const PyThreadState* thread = PyGILState_GetThisThreadState();
        if (!thread || !can_read_) return 0;
        return number_of(stack_of(thread));
    }

    std::size_t size() {
        std::lock_guard<xlogmem_mutex> guard(lock);
        return stacks_.size();
    }

    // A copy of the stack; empty for a number that was not given.
    Stack at(std::uint32_t number) {
        std::lock_guard<xlogmem_mutex> guard(lock);
        return number && number <= stacks_.size() ? stacks_[number - 1] : Stack{};
    }

    // With the GIL. Before this has returned true, no stack has a number.
    bool start() { return can_read_ = works(); }
    bool can_read() const { return can_read_; }

  private:
    std::atomic<bool> can_read_{false};
    struct Known {
        std::uint32_t number = 0;
        const Stack* stack = nullptr;
    };
    // Without memory for them the process is aborted.
    std::deque<Stack, xlogmem_allocator<Stack>> stacks_;
    using Item = std::pair<const std::uint64_t, Known>;
    std::unordered_multimap<std::uint64_t, Known, std::hash<std::uint64_t>, std::equal_to<std::uint64_t>,
                            xlogmem_allocator<Item>>
        known_;  // by the hash

    std::uint32_t number_of(const Stack& stack) {
        // Stacks that this thread looked up lately: a loop has a few places.
        static thread_local std::array<Known, 64> lately;
        if (!stack.depth) return 0;
        Known& known = lately[stack.hash % lately.size()];
        if (known.stack && *known.stack == stack) return known.number;
        Known found = find(stack);
        if (!found.stack) found = add(stack);
        if (found.stack) known = found;
        return found.number;
    }

    Known find_locked(const Stack& stack) const {
        auto range = known_.equal_range(stack.hash);
        for (auto it = range.first; it != range.second; ++it)
            if (*it->second.stack == stack) return it->second;
        return {};
    }
    Known find(const Stack& stack) {
        std::lock_guard<xlogmem_mutex> guard(lock);
        return find_locked(stack);
    }

    // The frames are the thread's own, and running: their code objects live until it returns, and from here on.
    Known add(const Stack& stack) {
#if PY_VERSION_HEX >= 0x030D0000
        if (Py_IsFinalizing()) return {};
#else
        if (_Py_IsFinalizing()) return {};
#endif
        PyGILState_STATE state = PyGILState_Ensure();
        Known known;
        {
            std::lock_guard<xlogmem_mutex> guard(lock);
            known = find_locked(stack);
            if (!known.stack) {
                for (int i = 0; i < stack.depth; i++) Py_INCREF(stack.places[i].code);
                stacks_.push_back(stack);
                known = {std::uint32_t(stacks_.size()), &stacks_.back()};
                known_.emplace(stack.hash, known);
            }
        }
        PyGILState_Release(state);
        return known;
    }
};

}  // namespace check
