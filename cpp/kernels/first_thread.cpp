// A thread's way through a kernel: see first_thread.hpp.
#include "first_thread.hpp"

#include "thread_code.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace check {

namespace thread {

namespace {

constexpr u32 kMostRounds = 2;  // of a loop
constexpr u32 kMostSteps = 10000;
constexpr std::size_t kMostTouches = 256;

struct Value {
    u64 bits = 0;
    std::array<u32, 2> words = {};  // as in Touch
    bool is_known = false;
};

// A value that may be an address keeps the words that it comes from.
std::array<u32, 2> words_of(const Value& a, const Value& b) {
    std::array<u32, 2> all = a.words;
    for (u32 word : b.words) {
        if (!word || word == all[0] || word == all[1]) continue;
        if (!all[0])
            all[0] = word;
        else if (!all[1])
            all[1] = word;
    }
    return all;
}

u64 masked(u64 bits, u32 width) { return width >= 64 ? bits : bits & ((u64(1) << width) - 1); }

// The value as a number of 64 bits.
u64 extended(u64 bits, const Type& type) {
    bits = masked(bits, type.bits);
    bool is_negative = type.is_signed && type.bits && type.bits < 64 && bits >> (type.bits - 1) & 1;
    return is_negative ? bits | ~u64(0) << type.bits : bits;
}

// The bits of a result.
u32 width_of(const Step& step) {
    if (step.op == Op::Compare) return 1;
    bool is_wide = step.op == Op::MultiplyWide || step.op == Op::MultiplyWideAdd;
    return is_wide ? 2 * step.type.bits : step.type.bits;
}

double number_of(u64 bits, const Type& type) {
    if (type.bits == 64) {
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    float value;
    u32 low = u32(bits);
    memcpy(&value, &low, sizeof value);
    return value;
}

template <class Number>
bool compared(Comparison how, Number a, Number b) {
    switch (how) {
        case Comparison::Equal: return a == b;
        case Comparison::NotEqual: return a != b;
        case Comparison::Less: return a < b;
        case Comparison::LessEqual: return a <= b;
        case Comparison::Greater: return a > b;
        default: return a >= b;
    }
}

class Walk {
  public:
    Walk(const Code& code, const std::vector<u8>& space, const GridShape& shape, std::vector<Touch>& touches)
        : code_(code),
          space_(space),
          shape_(shape),
          touches_(touches),
          registers_(code.registers),
          rounds_(code.blocks.size()) {}
    void run();

  private:
    const Code& code_;
    const std::vector<u8>& space_;
    const GridShape& shape_;
    std::vector<Touch>& touches_;
    std::vector<Value> registers_;
    std::vector<u32> rounds_;

    enum class Guard : u8 { True, False, Unknown };
    Guard guard(const Step& step) const;
    void follow(const Step& step);
    u32 behind(const Block& block);
    void forget_between(u32 from, u32 meeting);
    void forget(const Step& step) {
        for (u32 result : step.results) registers_[result] = {};
    }

    Value read(const Operand& operand) const;
    Value source(const Step& step, std::size_t number) const;
    std::array<Value, 3> sources(const Step& step) const { return {source(step, 0), source(step, 1), source(step, 2)}; }
    Value result(const Step& step) const;
    Value product(const Step& step, const Value& a, const Value& b) const;
    Value quotient(const Step& step, const Value& a, const Value& b) const;
    Value logic(Op op, u32 bits, const Value& a, const Value& b) const;
    Value comparison(const Step& step) const;
    void move(const Step& step);
    void load(const Step& step);
    void touch(const Step& step);
    void hand_over(const Value& value);
    Touch* touch_at(const Value& address);
};

// The parameters have addresses, too: any address where no memory is will do.
constexpr u64 kParameters = u64(0x7F5A) << 48;

Value Walk::read(const Operand& operand) const {
    using Form = Operand::Form;
    switch (operand.form) {
        case Form::Register: return registers_[operand.value];
        case Form::Number: return {operand.value, {}, true};
        case Form::Parameters: return {kParameters + operand.value, {}, true};
        case Form::GridSize: return {shape_.grid[operand.value], {}, shape_.grid[operand.value] != 0};
        case Form::BlockSize: return {shape_.block[operand.value], {}, shape_.block[operand.value] != 0};
        default: return {};
    }
}

Value Walk::source(const Step& step, std::size_t number) const {
    if (number >= step.sources.size() || step.sources[number].size() != 1) return {};
    return read(step.sources[number][0]);
}

// Zero where one factor is zero.
Value Walk::product(const Step& step, const Value& a, const Value& b) const {
    for (const Value* one : {&a, &b})
        if (one->is_known && !masked(one->bits, step.type.bits)) return {0, {}, true};
    if (!a.is_known || !b.is_known) return {};
    bool is_wide = step.op == Op::MultiplyWide || step.op == Op::MultiplyWideAdd;
    if (step.op != Op::MultiplyHigh)
        return {is_wide ? extended(a.bits, step.type) * extended(b.bits, step.type) : a.bits * b.bits, words_of(a, b),
                true};
    __int128 x =
        step.type.is_signed ? __int128(i64(extended(a.bits, step.type))) : __int128(masked(a.bits, step.type.bits));
    __int128 y =
        step.type.is_signed ? __int128(i64(extended(b.bits, step.type))) : __int128(masked(b.bits, step.type.bits));
    auto high = (unsigned __int128)(x) * (unsigned __int128)(y) >> step.type.bits;
    return {u64(high), {}, true};
}

Value Walk::quotient(const Step& step, const Value& a, const Value& b) const {
    u64 x = extended(a.bits, step.type), y = extended(b.bits, step.type);
    if (a.is_known && !x) return {0, {}, true};
    bool is_whole = step.type.is_signed && y == ~u64(0);  // the least number by -1 has no quotient
    if (!a.is_known || !b.is_known || !y || is_whole) return {};
    bool divides = step.op == Op::Divide;
    if (step.type.is_signed) return {u64(divides ? i64(x) / i64(y) : i64(x) % i64(y)), {}, true};
    return {divides ? x / y : x % y, {}, true};
}

// One of the two operands may determine the result.
Value Walk::logic(Op op, u32 bits, const Value& a, const Value& b) const {
    for (const Value* one : {&a, &b}) {
        u64 value = masked(one->bits, bits);
        if (one->is_known && op == Op::And && !value) return {0, {}, true};
        if (one->is_known && op == Op::Or && value == masked(~u64(0), bits)) return {value, {}, true};
    }
    if (!a.is_known || !b.is_known) return {};
    return {op == Op::And ? a.bits & b.bits : op == Op::Or ? a.bits | b.bits : a.bits ^ b.bits, words_of(a, b), true};
}

Value Walk::comparison(const Step& step) const {
    auto [a, b, c] = sources(step);
    if (!a.is_known || !b.is_known || step.comparison == Comparison::Unknown) return {};
    bool truth;
    if (step.type.is_float) {
        double x = number_of(a.bits, step.type), y = number_of(b.bits, step.type);
        if (std::isnan(x) || std::isnan(y)) return {};
        truth = compared(step.comparison, x, y);
    } else {
        u64 x = extended(a.bits, step.type), y = extended(b.bits, step.type);
        truth = step.type.is_signed ? compared(step.comparison, i64(x), i64(y)) : compared(step.comparison, x, y);
    }
    Value plain{truth, {}, true};
    return step.combined == Op::Unknown ? plain : logic(step.combined, 1, plain, c);
}

Value Walk::result(const Step& step) const {
    auto [a, b, c] = sources(step);
    bool both = a.is_known && b.is_known;
    u64 x = extended(a.bits, step.type), y = extended(b.bits, step.type);
    switch (step.op) {
        case Op::Convert: return {extended(a.bits, step.from), a.words, a.is_known};
        case Op::Add: return {a.bits + b.bits, words_of(a, b), both};
        case Op::Subtract: return {a.bits - b.bits, words_of(a, b), both};
        case Op::Multiply:
        case Op::MultiplyHigh:
        case Op::MultiplyWide: return product(step, a, b);
        case Op::MultiplyAdd:
        case Op::MultiplyWideAdd: {
            Value factors = product(step, a, b);
            return {factors.bits + c.bits, words_of(factors, c), factors.is_known && c.is_known};
        }
        case Op::Divide:
        case Op::Remainder: return quotient(step, a, b);
        case Op::ShiftLeft:
        case Op::ShiftRight: {
            if (a.is_known && !x) return {0, {}, true};
            bool is_left = step.op == Op::ShiftLeft;
            u64 by = masked(b.bits, 32), most = step.type.bits;
            if (by >= most) return {is_left || !step.type.is_signed ? 0 : u64(i64(x) >> 63), {}, both};
            return {is_left ? a.bits << by : step.type.is_signed ? u64(i64(x) >> by) : x >> by, a.words, both};
        }
        case Op::And:
        case Op::Or:
        case Op::Xor: return logic(step.op, step.type.bits, a, b);
        case Op::Not: return {~a.bits, {}, a.is_known};
        case Op::Negate: return {0 - a.bits, a.words, a.is_known};
        case Op::Absolute: return {i64(x) < 0 ? 0 - x : x, {}, a.is_known};
        case Op::Minimum:
        case Op::Maximum: {
            bool first = step.type.is_signed ? i64(x) < i64(y) : x < y;
            const Value& chosen = first == (step.op == Op::Minimum) ? a : b;
            return {chosen.bits, chosen.words, both};
        }
        case Op::Select: return !c.is_known ? Value{} : masked(c.bits, 1) ? a : b;
        case Op::Compare: return comparison(step);
        default: return {};
    }
}

// Moves one register, or between a register and its two halves.
void Walk::move(const Step& step) {
    if (step.sources.empty()) return forget(step);
    const std::vector<Operand>& from = step.sources[0];
    u32 half = step.type.bits / 2;
    if (step.results.size() == 2 && from.size() == 1) {
        Value value = read(from[0]);
        registers_[step.results[0]] = {masked(value.bits, half), {}, value.is_known};
        registers_[step.results[1]] = {masked(value.bits >> half, half), {}, value.is_known};
    } else if (step.results.size() == 1 && from.size() == 2) {
        Value low = read(from[0]), high = read(from[1]);
        registers_[step.results[0]] = {masked(low.bits, half) | high.bits << half, words_of(low, high),
                                       low.is_known && high.is_known};
    } else if (step.results.size() == 1 && from.size() == 1) {
        registers_[step.results[0]] = read(from[0]);
    } else {
        forget(step);
    }
}

void Walk::load(const Step& step) {
    forget(step);
    if (step.addresses.empty()) return;
    Value address = read(step.addresses[0].base);
    u64 at = address.bits + step.addresses[0].distance - kParameters, bytes = step.type.bits / 8;
    if (!address.is_known || at >= space_.size() || !bytes) return;
    for (u32 result : step.results) {
        if (at + bytes > space_.size()) return;
        Value& value = registers_[result];
        memcpy(&value.bits, space_.data() + at, bytes);
        value.bits = extended(value.bits, step.type);
        if (bytes == 8) value.words[0] = u32(at) + 1;
        value.is_known = true;
        at += bytes;
    }
}

Touch* Walk::touch_at(const Value& address) {
    if (!address.is_known || touches_.size() >= kMostTouches) return nullptr;
    auto is_it = [&](const Touch& one) { return one.address == address.bits && one.words == address.words; };
    auto known = std::find_if(touches_.begin(), touches_.end(), is_it);
    if (known != touches_.end()) return &*known;
    touches_.push_back({address.bits, address.words});
    return &touches_.back();
}

void Walk::touch(const Step& step) {
    if (step.addresses.empty()) return;
    Value address = read(step.addresses[0].base);
    address.bits += step.addresses[0].distance;
    if (address.bits - kParameters < kLargestParameters) return;
    Touch* touch = touch_at(address);
    if (!touch) return;
    touch->reads |= step.reads;
    touch->writes |= step.writes;
    touch->plain |= !step.is_atomic;
}

void Walk::hand_over(const Value& value) {
    if (!value.words[0]) return;
    if (Touch* touch = touch_at(value)) touch->handed_over = true;
}

void Walk::follow(const Step& step) {
    Guard when = guard(step);
    if (when == Guard::False) return;
    if (when == Guard::Unknown) return forget(step);
    if (step.reads || step.writes) touch(step);
    if (step.hands_over) {
        for (const std::vector<Operand>& all : step.sources)
            for (const Operand& one : all) hand_over(read(one));
        for (const Address& one : step.addresses) hand_over(read(one.base));
    }
    if (step.op == Op::Load) return load(step);
    if (step.op == Op::Move) return move(step);
    if (step.results.empty()) return;
    Value value = result(step);
    forget(step);
    if (value.is_known) value.bits = masked(value.bits, width_of(step));
    registers_[step.results[0]] = value;
    if (step.op == Op::Compare && step.results.size() == 2 && step.combined == Op::Unknown)
        registers_[step.results[1]] = {value.bits ^ 1, {}, value.is_known};
}

Walk::Guard Walk::guard(const Step& step) const {
    if (step.guard == kNone) return Guard::True;
    const Value& value = registers_[step.guard];
    if (!value.is_known) return Guard::Unknown;
    return (value.bits & 1) != step.negated ? Guard::True : Guard::False;
}

// Forgets the registers that are written on any way from one block to another.
void Walk::forget_between(u32 from, u32 meeting) {
    std::vector<bool> seen(code_.blocks.size(), false);
    std::vector<u32> left = {code_.blocks[from].taken, code_.blocks[from].next};
    while (!left.empty()) {
        u32 number = left.back();
        left.pop_back();
        if (number == kNone || number == meeting || seen[number]) continue;
        seen[number] = true;
        const Block& block = code_.blocks[number];
        for (u32 i = block.begin; i < block.end; i++) forget(code_.steps[i]);
        left.push_back(block.taken);
        left.push_back(block.next);
    }
}

u32 Walk::behind(const Block& block) {
    if (!block.branches) return block.next;
    const Step& last = code_.steps[block.end - 1];
    u32 number = u32(&block - code_.blocks.data());
    Guard when = guard(last);
    bool decides = last.guard != kNone && rounds_[number] > kMostRounds;
    if (when == Guard::Unknown || decides) {
        if (block.meeting != kNone) forget_between(number, block.meeting);
        return block.meeting;
    }
    return when == Guard::True ? block.taken : block.next;
}

void Walk::run() {
    u32 steps = 0;
    for (u32 number = code_.blocks.empty() ? kNone : 0; number != kNone && steps < kMostSteps;) {
        const Block& block = code_.blocks[number];
        rounds_[number]++;
        for (u32 i = block.begin; i < block.end; i++) follow(code_.steps[i]);
        steps += block.end - block.begin;
        number = behind(block);
    }
}

}  // namespace

}  // namespace thread

Role Touch::role() const {
    if (handed_over) return Role::Unknown;
    if (!plain) return Role::Atomic;
    return !writes ? Role::Read : reads ? Role::ReadWrite : Role::Write;
}

FirstThread::FirstThread(const PtxKernel& kernel, const std::vector<Instruction>& instructions)
    : code_(std::make_shared<const thread::Code>(thread::code_of(kernel, instructions))) {}

void FirstThread::run(const std::vector<u8>& space, const GridShape& shape, std::vector<Touch>* touches) const {
    touches->clear();
    thread::Walk(*code_, space, shape, *touches).run();
}

}  // namespace check
