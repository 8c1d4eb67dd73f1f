// Taking the lines of a listing apart: see listing.hpp.
#include "listing.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>

namespace check::machine {

namespace {

constexpr u32 kAllPredicates = ~0u;
constexpr u64 kLargestNumber = u64(1) << 40;  // so that sums of a few have 64 bits

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
    return text;
}

bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// The decimal number that a text begins with.
u32 leading_number(std::string_view text) {
    u32 value = 0;
    for (std::size_t i = 0; i < text.size() && i < 4 && is_digit(text[i]); i++) value = value * 10 + u32(text[i] - '0');
    return value;
}

// Hexadecimal behind 0x, else decimal. Of a fraction it only matters that it is not a whole number, of a large number
// only its sign.
bool read_number(std::string_view text, i64* value) {
    bool is_negative = !text.empty() && text[0] == '-';
    if (is_negative) text.remove_prefix(1);
    if (text.empty() || !is_digit(text[0])) return false;
    u64 sum = 0;
    bool is_hex = starts(text, "0x");
    for (char c : text.substr(is_hex ? 2 : 0)) {
        if (!std::isxdigit(static_cast<unsigned char>(c)) || (!is_hex && !is_digit(c))) {
            sum = 2;
            break;
        }
        u64 digit = is_digit(c) ? u64(c - '0') : u64(std::tolower(c) - 'a' + 10);
        sum = std::min(sum * (is_hex ? 16 : 10) + digit, kLargestNumber);
    }
    *value = is_negative ? -i64(sum) : i64(sum);
    return true;
}

// R12, UR4 or B0, with any text behind it. False for RZ and URZ, and for text that is not a register.
bool read_register(std::string_view text, Cell* cell) {
    Cell first = 0, end = kUniform;
    if (starts(text, "UR")) {
        first = kUniform, end = kBarriers;
        text.remove_prefix(2);
    } else if (starts(text, "R") || starts(text, "B")) {
        if (text[0] == 'B') first = kBarriers, end = kCells;
        text.remove_prefix(1);
    } else {
        return false;
    }
    if (text.empty() || !is_digit(text[0])) return false;
    *cell = std::min(first + leading_number(text), end - 1);
    return true;
}

bool is_zero_register(std::string_view text) { return starts(text, "RZ") || starts(text, "URZ"); }

// P3, UP0, PT, !UPT. False for text that is not a predicate.
bool read_predicate(std::string_view text, Predicate* predicate) {
    bool is_inverted = starts(text, "!");
    if (is_inverted) text.remove_prefix(1);
    bool is_uniform = starts(text, "U");
    if (is_uniform) text.remove_prefix(1);
    if (text.size() != 2 || text[0] != 'P' || (text[1] != 'T' && !is_digit(text[1]))) return false;
    *predicate = text[1] == 'T' ? 0 : text[1] - '0' + (is_uniform ? 9 : 1);
    if (is_inverted) *predicate = -*predicate;
    return true;
}

// Reads the contents of brackets: registers and numbers, added up.
void read_sum(std::string_view text, Operand* operand) {
    std::size_t registers = 0;
    while (!text.empty()) {
        std::size_t end = std::min(text.find('+'), text.size());
        std::string_view part = trimmed(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        Cell cell;
        i64 value;
        if (read_register(part, &cell)) {
            if (!registers) operand->is_narrow = part.find(".U32") != part.npos;
            if (registers < operand->cells.size()) operand->cells[registers++] = cell;
        } else if (read_number(part, &value)) {
            operand->value += value;
        }
    }
}

// The contents of the first brackets of the text; `behind` is the text that follows them.
std::string_view bracketed(std::string_view text, std::string_view* behind) {
    std::size_t begin = text.find('['), end = text.find(']');
    if (begin == text.npos || end == text.npos || end < begin) return *behind = {};
    *behind = text.substr(end + 1);
    return text.substr(begin + 1, end - begin - 1);
}

void read_brackets(std::string_view text, Operand* operand) {
    std::string_view behind;
    std::string_view inner = bracketed(text, &behind);
    if (starts(text, "c[")) {
        i64 bank = 0;
        read_number(inner, &bank);
        operand->form = Form::Constant;
        operand->bank = u32(bank);
        read_sum(bracketed(behind, &behind), operand);
    } else if (starts(text, "[")) {
        operand->form = Form::Address;
        read_sum(inner, operand);
    } else if (starts(text, "desc[") && starts(behind, "[")) {
        operand->form = Form::Address;
        read_register(inner, &operand->descriptor);
        read_sum(bracketed(behind, &behind), operand);
    } else {
        if (starts(text, "cx[")) operand->form = Form::Bindless;
        read_sum(inner, operand);
    }
}

Operand operand_of(std::string_view text) {
    Operand operand;
    while (!text.empty() && (text[0] == '-' || text[0] == '~' || text[0] == '|' || text[0] == '!')) {
        if (text[0] == '-' && text.size() > 1 && is_digit(text[1])) break;
        operand.is_negative |= text[0] != '|';
        text.remove_prefix(1);
    }
    if (text.find('[') != text.npos) {
        read_brackets(text, &operand);
    } else if (is_zero_register(text)) {
        operand.form = Form::Zero;
    } else if (read_register(text, &operand.cells[0])) {
        operand.form = Form::Register;
    } else if (read_number(text, &operand.value)) {
        operand.form = Form::Number;
    }
    return operand;
}

// Predicates behind everything else are read. Predicates before or amid the rest are results; where there is nothing
// else, all of them may be.
void read_operands(std::string_view text, Instruction* instruction) {
    u32 seen = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        std::size_t end = std::min(text.find(',', begin), text.size());
        std::string_view word = trimmed(text.substr(begin, end - begin));
        begin = end + 1;
        Predicate predicate;
        if (read_predicate(word, &predicate)) {
            instruction->has_predicates |= predicate != 0;
            instruction->inverts_predicates |= predicate < 0;
            instruction->named_predicates |= 1u << std::abs(predicate);
            instruction->last_predicates |= 1u << std::abs(predicate);
            if (predicate > 0) seen |= 1u << predicate;
            continue;
        }
        instruction->last_predicates = 0;
        instruction->changed_predicates |= word == "PR" || word == "UPR" ? kAllPredicates : seen;
        instruction->operands.push_back(operand_of(word));
    }
    if (instruction->operands.empty()) instruction->changed_predicates = seen;
    if (starts(instruction->name, "B2R")) instruction->changed_predicates = kAllPredicates;  // its result stands last
}

// Reads the place, between /* and */, and the text that follows. Schedules are left out: &wr=0x0 ?trans1.
bool read_line(std::string_view line, u64* place, std::string_view* rest) {
    std::size_t begin = line.find("/*"), end = line.find("*/"), semicolon = line.find(';');
    i64 number;
    if (begin == line.npos || end == line.npos || semicolon == line.npos || end < begin || semicolon < end)
        return false;
    std::string digits = "0x" + std::string(line.substr(begin + 2, end - begin - 2));
    if (digits.size() > 18 || !read_number(digits, &number)) return false;
    *place = u64(number);
    line = line.substr(end + 2, semicolon - end - 2);
    *rest = trimmed(line.substr(0, std::min({line.size(), line.find(" &"), line.find(" ?")})));
    return true;
}

Instruction instruction_of(u64 place, std::string_view text) {
    Instruction instruction;
    instruction.place = place;
    if (starts(text, "@")) {
        std::size_t end = std::min(text.find(' '), text.size());
        std::string_view guard = text.substr(1, end - 1);
        if (guard == "!PT" || guard == "!UPT") return instruction;
        read_predicate(guard, &instruction.guard);
        text = trimmed(text.substr(end));
    }
    std::size_t end = std::min(text.find(' '), text.size());
    instruction.name = text.substr(0, end);
    instruction.effect = effect_of(instruction.name);
    read_operands(text.substr(end), &instruction);
    return instruction;
}

}  // namespace

std::vector<Instruction> instructions_in(std::string_view listing) {
    std::vector<Instruction> instructions;
    while (!listing.empty()) {
        std::size_t end = std::min(listing.find('\n'), listing.size());
        u64 place;
        std::string_view rest;
        if (read_line(listing.substr(0, end), &place, &rest)) instructions.push_back(instruction_of(place, rest));
        listing.remove_prefix(std::min(end + 1, listing.size()));
    }
    return instructions;
}

}  // namespace check::machine
