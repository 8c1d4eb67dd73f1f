// Reading PTX: see ptx.hpp.
#include "ptx.hpp"

#include <algorithm>
#include <cctype>

namespace check {

namespace {

constexpr u64 kLargestVariable = u64(1) << 40;  // bytes

bool is_of_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    // The next token; empty at the end.
    Token next() {
        for (;;) {
            Token token = read();
            if (token != ".loc" && token != ".file") return token;
            skip_to("\n", 0);  // these end with their line
        }
    }

  private:
    std::string_view text_;
    std::size_t at_ = 0;

    // The :: in .shared::cta is of the word.
    bool is_scope(std::size_t at) const { return text_.compare(at, 2, "::") == 0; }

    Token read() {
        skip();
        std::size_t begin = at_;
        while (at_ < text_.size() && (is_of_word(text_[at_]) || is_scope(at_))) at_ += is_scope(at_) ? 2 : 1;
        if (at_ == begin && at_ < text_.size()) at_++;
        return text_.substr(begin, at_ - begin);
    }

    void skip_to(const char* end, std::size_t more) {
        std::size_t found = text_.find(end, at_);
        at_ = found == std::string_view::npos ? text_.size() : found + more;
    }

    // Blanks, comments and strings.
    void skip() {
        while (at_ < text_.size()) {
            if (std::isspace(static_cast<unsigned char>(text_[at_])))
                at_++;
            else if (text_.compare(at_, 2, "//") == 0)
                skip_to("\n", 1);
            else if (text_.compare(at_, 2, "/*") == 0)
                at_ += 2, skip_to("*/", 2);
            else if (text_[at_] == '"')
                at_++, skip_to("\"", 1);
            else
                return;
        }
    }
};

// One parameter, as in .param .u64 .ptr .global .align 4 name, .param .align 8 .b8 name[24].
bool read_parameter(const Statement& words, u32* end, PtxParameter* parameter) {
    u64 align = 0, count = 1, size = 0;
    bool array = false;
    for (std::size_t i = 0; i < words.size(); i++) {
        Token word = words[i];
        Token following = i + 1 < words.size() ? words[i + 1] : Token{};
        if (word == ".ptr") {
            parameter->is_pointer = true;
        } else if (word == ".align") {
            u64 value;
            if (!is_number(following, &value)) return false;
            if (!parameter->is_pointer) align = value;  // else of what it points to
            i++;
        } else if (word == "[") {
            array = true;
            if (!is_number(following, &count)) return false;
            i += 2;
        } else if (word[0] == '.') {
            if (u32 bits = bits_of_type(word)) size = bits / 8;
        } else {
            parameter->name = word;
        }
    }
    if (!size || parameter->name.empty() || count > kLargestParameters || align > kLargestParameters) return false;
    if (!array || !align) align = size;
    if (align & (align - 1)) return false;
    u64 begin = (*end + align - 1) / align * align;
    if (begin + size * count > kLargestParameters) return false;
    parameter->place = {u32(begin), u32(size * count)};
    *end = u32(begin + size * count);
    return true;
}

// From behind the opening parenthesis to the closing one.
bool read_parameters(Reader& reader, std::vector<PtxParameter>* parameters) {
    u32 end = 0;
    Statement words;
    for (;;) {
        Token token = reader.next();
        if (token.empty()) return false;
        if (token != "," && token != ")") {
            words.push_back(token);
            continue;
        }
        if (!words.empty()) {
            PtxParameter parameter;
            if (!read_parameter(words, &end, &parameter)) return false;
            parameters->push_back(parameter);
            words.clear();
        }
        if (token == ")") return true;
    }
}

// From behind the opening brace to the closing one. The braces of a block are not part of a statement; those of a
// vector are: an instruction stands in front of them.
bool read_body(Reader& reader, PtxKernel* kernel) {
    std::vector<Statement>* statements = &kernel->statements;
    Statement words;
    std::size_t depth = 1, vectors = 0;
    for (;;) {
        Token token = reader.next();
        if (token.empty()) return false;
        if (token == ";") {
            if (!words.empty()) statements->push_back(std::move(words));
            words.clear();
            vectors = 0;
        } else if (token == ":" && words.size() == 1) {
            bool is_new = kernel->labels.emplace(words[0], statements->size()).second;
            if (!is_new) kernel->labels[words[0]] = kNoStatement;
            words.clear();
        } else if (token == "{" && words.empty()) {
            depth++;
        } else if (token == "}" && !vectors) {
            words.clear();
            if (--depth == 0) return true;
        } else {
            if (token == "{") vectors++;
            if (token == "}") vectors--;
            words.push_back(token);
        }
    }
}

bool read_kernel(Reader& reader, PtxKernel* kernel) {
    kernel->name = reader.next();
    for (Token token = reader.next(); token != "{"; token = reader.next()) {
        if (token.empty() || token == ";") return false;
        if (token == "(" && !read_parameters(reader, &kernel->parameters)) return false;
    }
    return read_body(reader, kernel);
}

// One declaration outside of functions, as in .visible .const .align 4 .b8 table[2][16] = {…}. False: it is none of a
// variable of the module, or its size is not understood.
bool read_variable(const Statement& words, PtxVariable* variable) {
    u64 count = 1, size = 0;
    bool is_variable = false;
    for (std::size_t i = 0; i < words.size(); i++) {
        Token word = words[i];
        Token following = i + 1 < words.size() ? words[i + 1] : Token{};
        u64 number;
        if (word == ".extern") return false;
        if (word == ".global" || word == ".const") {
            is_variable = true;
        } else if (word == ".attribute") {  // (.managed), or (.unified(1, 2), .managed)
            for (int depth = 0; ++i < words.size();) {
                variable->is.is_managed |= words[i] == ".managed";
                depth += words[i] == "(" ? 1 : words[i] == ")" ? -1 : 0;
                if (!depth) break;
            }
        } else if (word == ".align") {
            i++;
        } else if (word == ".v2" || word == ".v4") {
            count *= word == ".v2" ? 2 : 4;
        } else if (word == "[") {
            if (!is_number(following, &number) || (number && count > kLargestVariable / number)) return false;
            count *= number;
            i += 2;
        } else if (word == "=") {
            break;
        } else if (is_variable && word[0] == '.') {
            if (u32 bits = bits_of_type(word)) size = bits / 8;
        } else if (is_variable && variable->name.empty()) {
            variable->name = word;
        }
    }
    variable->is.bytes = size * count;
    return is_variable && variable->is.bytes && !variable->name.empty();
}

// From behind an opening brace to the closing one.
void skip_braces(Reader& reader) {
    for (std::size_t depth = 1; depth;) {
        Token token = reader.next();
        if (token.empty()) return;
        if (token == "{") depth++;
        if (token == "}") depth--;
    }
}

}  // namespace

u32 bits_of_type(Token word) {
    Token type = word.substr(word.rfind('.') + 1);
    static constexpr struct {
        const char* name;
        u32 bits;
    } types[] = {{"b8", 8},     {"u8", 8},    {"s8", 8},   {"b16", 16}, {"u16", 16}, {"s16", 16},
                 {"f16", 16},   {"bf16", 16}, {"b32", 32}, {"u32", 32}, {"s32", 32}, {"f32", 32},
                 {"f16x2", 32}, {"b64", 64},  {"u64", 64}, {"s64", 64}, {"f64", 64}, {"b128", 128}};
    for (auto& known : types)
        if (type == known.name) return known.bits;
    return 0;
}

bool is_number(Token word, u64* value) {
    std::size_t at = 0;
    u64 base = 10;
    if (word.size() > 2 && word[0] == '0' && (word[1] == 'x' || word[1] == 'X')) base = 16, at = 2;
    if (!word.empty() && (word.back() == 'U' || word.back() == 'u')) word.remove_suffix(1);
    if (at >= word.size()) return false;
    *value = 0;
    for (; at < word.size(); at++) {
        unsigned char c = static_cast<unsigned char>(word[at]);
        u64 digit = std::isdigit(c) ? u64(c - '0') : std::isxdigit(c) ? u64(std::tolower(c) - 'a' + 10) : base;
        if (digit >= base) return false;
        *value = *value * base + digit;
    }
    return true;
}

PtxModule module_in(std::string_view text) {
    PtxModule module;
    Reader reader(text);
    Statement words;
    for (Token token = reader.next(); !token.empty(); token = reader.next()) {
        bool is_end = token == ";";  // a function ends with its braces, a declaration behind those of its value
        if (token == ".entry") {
            PtxKernel kernel;
            if (read_kernel(reader, &kernel)) module.kernels.push_back(std::move(kernel));
            is_end = true;
        } else if (token == "{") {
            skip_braces(reader);
            is_end = std::find(words.begin(), words.end(), "=") == words.end();
        } else if (token == ";") {
            PtxVariable variable{};
            if (read_variable(words, &variable)) module.variables.push_back(variable);
        }
        if (is_end)
            words.clear();
        else
            words.push_back(token);
    }
    return module;
}

}  // namespace check
