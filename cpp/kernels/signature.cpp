// Reading mangled names: see signature.hpp.
//
// Two things count: the types, and the meaning of a substitution (S_, S0_, T_). So each component that may be named
// again is put into the list in the order of the ABI. Names themselves are skipped.
#include "signature.hpp"

#include "facts.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace check {

namespace {

struct Failed {};  // inside of this file only: the name is not understood

struct Known {
    Type type = Type::Value;
    bool is_const = false;
};

class Demangler {
  public:
    explicit Demangler(const std::string& name) : text_(name) {}
    std::vector<Type> parameters();

  private:
    const std::string& text_;
    std::size_t at_ = 2;
    int depth_ = 0;
    std::vector<Known> substitutions_, arguments_;
    bool is_template_ = false;

    char peek(std::size_t more = 0) const { return at_ + more < text_.size() ? text_[at_ + more] : '\0'; }
    bool take(const char* prefix) {
        if (text_.compare(at_, strlen(prefix), prefix)) return false;
        at_ += strlen(prefix);
        return true;
    }
    void need(const char* prefix) {
        if (!take(prefix)) throw Failed{};
    }
    std::size_t number(std::size_t base) {
        std::size_t value = 0, begin = at_;
        for (; std::isdigit(static_cast<unsigned char>(peek())) || (base == 36 && std::isupper(peek())); at_++) {
            std::size_t digit =
                std::size_t(std::isdigit(static_cast<unsigned char>(peek())) ? peek() - '0' : peek() - 'A' + 10);
            value = value * base + digit;
            if (value > text_.size() * 36) throw Failed{};
        }
        if (at_ == begin) throw Failed{};
        return value;
    }
    void source_name() {
        std::size_t length = number(10);
        if (length > text_.size() - at_) throw Failed{};
        at_ += length;
        while (take("B")) source_tag();
    }
    void source_tag() {
        std::size_t length = number(10);
        if (length > text_.size() - at_) throw Failed{};
        at_ += length;
    }
    // The number between the letter and the underscore: nothing is the first, 0 the second.
    std::size_t index(std::size_t base) {
        std::size_t value = peek() == '_' ? 0 : number(base) + 1;
        need("_");
        return value;
    }
    Known known(const std::vector<Known>& list, std::size_t which) const {
        if (which >= list.size()) throw Failed{};
        return list[which];
    }
    Known add(Known one) {
        substitutions_.push_back(one);
        return one;
    }

    void name(bool of_function);
    void nested_name(bool of_function);
    void unqualified_name();
    bool standard_name();
    void template_arguments(bool of_function);
    void template_argument(bool of_function);
    Known type();
    Known type_itself();
    Known pointer();
    Known qualified();
    Known substituted();
    Known special();
    Known abbreviated();
    Known function();
};

// Std::allocator and the like: two letters that are no substitution of this name.
bool Demangler::standard_name() {
    return peek() == 'S' && std::islower(static_cast<unsigned char>(peek(1))) && peek(1) != 't' && (at_ += 2);
}

void Demangler::unqualified_name() {
    if (std::isdigit(static_cast<unsigned char>(peek()))) return source_name();
    if (take("L")) return source_name();  // static
    if (take("12_GLOBAL__N_1")) return;
    throw Failed{};  // operators, lambdas
}

void Demangler::template_argument(bool of_function) {
    if (take("L")) {  // a literal
        if (take("_Z")) throw Failed{};
        type();
        take("n");
        while (std::isalnum(static_cast<unsigned char>(peek())) && peek() != 'E') at_++;
        need("E");
        if (of_function) arguments_.push_back({});
    } else if (take("J")) {
        while (!take("E")) template_argument(false);
        if (of_function) arguments_.push_back({});
    } else if (peek() == 'X') {
        throw Failed{};
    } else {
        Known argument = type();
        if (of_function) arguments_.push_back(argument);
    }
}

void Demangler::template_arguments(bool of_function) {
    need("I");
    if (of_function) arguments_.clear();
    while (!take("E")) template_argument(of_function);
}

void Demangler::nested_name(bool of_function) {
    while (peek() == 'r' || peek() == 'V' || peek() == 'K') at_++;
    is_template_ = false;
    while (!take("E")) {
        bool last_of_template = peek() == 'I';
        if (last_of_template) {
            template_arguments(of_function);
        } else if (take("St")) {
            is_template_ = false;
            continue;  // std is not in the list
        } else if (peek() == 'S' && !std::islower(static_cast<unsigned char>(peek(1)))) {
            substituted();
            continue;
        } else if (standard_name()) {
            continue;
        } else {
            unqualified_name();
        }
        is_template_ = last_of_template;
        if (!(of_function && peek() == 'E')) add({});  // the function itself cannot be named again
    }
}

void Demangler::name(bool of_function) {
    if (take("N")) return nested_name(of_function);
    if (peek() == 'Z') throw Failed{};  // local
    bool standard = take("St");
    (void)standard;
    unqualified_name();
    is_template_ = peek() == 'I';
    if (!is_template_) return;
    add({});
    template_arguments(of_function);
}

Known Demangler::pointer() {
    Known pointee = type();
    return add({pointee.is_const ? Type::PointerToConst : Type::Pointer, false});
}

Known Demangler::qualified() {
    bool is_const = false;
    for (; peek() == 'r' || peek() == 'V' || peek() == 'K'; at_++) is_const |= peek() == 'K';
    Known one = type();
    one.is_const |= is_const;
    return add(one);
}

Known Demangler::substituted() {
    need("S");
    return known(substitutions_, index(36));
}

Known Demangler::function() {
    take("Y");
    while (!take("E")) type();
    return add({});
}

Known Demangler::type() {
    if (++depth_ > 200) throw Failed{};
    Known one = type_itself();
    depth_--;
    return one;
}

// Vectors, half floats and the like.
Known Demangler::special() {
    if (take("Dp") || take("DT") || take("Dt")) throw Failed{};  // packs, expressions
    if (take("Dv")) {
        number(10);
        need("_");
        type();
        return add({});
    }
    if (take("DF")) {
        number(10);
        if (!take("_") && !take("b")) throw Failed{};
        return {};
    }
    at_ += 2;  // Dh, Di, Dn …
    return {};
}

// A type that was named before, or one of the standard library, perhaps with arguments.
Known Demangler::abbreviated() {
    Known one = standard_name() ? Known{} : substituted();
    if (peek() != 'I') return one;
    template_arguments(false);
    return add({});
}

Known Demangler::type_itself() {
    char c = peek();
    if (strchr("vwbcahstijlmxynofdegz", c) && c) {
        at_++;
        return {};
    }
    if (take("P")) return pointer();
    if (take("R") || take("O")) return pointer();  // a reference is passed as a pointer
    if (c == 'r' || c == 'V' || c == 'K') return qualified();
    if (take("F")) return function();
    if (take("A")) {
        while (std::isdigit(static_cast<unsigned char>(peek()))) at_++;
        need("_");
        return add(type());
    }
    if (take("T")) {
        Known argument = known(arguments_, index(10));
        return add(argument);
    }
    if (c == 'D') return special();
    if (take("u")) {
        source_name();
        return add({});
    }
    if (c == 'S' && peek(1) != 't') return abbreviated();
    if (c != 'N' && c != 'S' && !std::isdigit(static_cast<unsigned char>(c))) throw Failed{};
    bool nested = c == 'N';
    name(false);
    return nested ? known(substitutions_, substitutions_.size() - 1) : add({});
}

std::vector<Type> Demangler::parameters() {
    name(true);
    std::vector<Type> types;
    if (is_template_) type();  // what it returns
    if (peek() == 'v' && at_ + 1 == text_.size()) return types;
    while (at_ < text_.size() && peek() != '.') types.push_back(type().type);
    return types;
}

}  // namespace

bool parameter_types(const std::string& mangled, std::vector<Type>* types) {
    if (mangled.compare(0, 2, "_Z") || mangled.size() > 10000) return false;
    try {
        *types = Demangler(mangled).parameters();
        return true;
    } catch (const Failed&) {
        return false;
    }
}

void add_roles_of_signature(const std::string& mangled, Facts& facts) {
    std::vector<Type> types;
    if (!parameter_types(mangled, &types) || types.size() != facts.parameters.size()) return;
    for (std::size_t i = 0; i < types.size(); i++) {
        if (types[i] != Type::PointerToConst || facts.parameters[i].size != 8) continue;
        for (Pointer& pointer : facts.pointers)
            if (pointer.offset == facts.parameters[i].offset && pointer.role == Role::Unknown)
                pointer.role = Role::Read;
    }
}

}  // namespace check
