// Launching kernels that are not simulated: see unknown.hpp.
#include "unknown.hpp"

#include "arrays.hpp"
#include "watch.hpp"

#include "engine/records.hpp"
#include "kernels/arguments.hpp"

#include <algorithm>
#include <cstring>
#include <fnmatch.h>

namespace sim {

namespace {

struct Declaration {
    std::string pattern, roles;
    RunLaunch run;
};

std::vector<Declaration>& declarations() {
    static auto& all = *new std::vector<Declaration>;
    return all;
}

std::map<std::string, check::Facts>& learned() {
    static auto& facts = *new std::map<std::string, check::Facts>;
    return facts;
}

const Declaration* declaration_of(const Function& function) {
    auto& all = declarations();
    for (auto it = all.rbegin(); it != all.rend(); ++it)
        if (!fnmatch(it->pattern.c_str(), function.name, 0)) return &*it;
    return nullptr;
}

// The parameters of one launch as the driver hands them over, and all facts about them.
struct Prepared {
    const char *name, *shown;
    Shape shape;
    std::vector<check::Parameter> parameters;
    std::vector<u8> space;
    std::vector<check::Pointer> pointers;
    std::optional<check::StructLayout> layout;
    std::optional<check::ElementwiseArrays> arrays;
    std::shared_ptr<const check::FirstThread> first;
    bool may_signal = true, uses_objects = false;  // see check::Facts
    RunLaunch run = nullptr;
};

// The parameters of a launch with addresses in the places of objects: see arrays.hpp.
struct WithAddresses {
    std::vector<u8> space;
    std::vector<check::Pointer> pointers;
    bool any = false;

    explicit WithAddresses(const Prepared& prepared) : space(prepared.space), pointers(prepared.pointers) {
        for (check::Pointer& word : pointers) {
            const Object* object = find_object(check::word_at(space, word.offset));
            if (!object || word.offset + 8 > space.size()) continue;
            memcpy(space.data() + word.offset, &object->address, sizeof object->address);
            if (!object->is_surface && word.role == check::Role::Unknown) {  // a texture is read, if at all
                word.role = check::Role::Read;
                word.found = true;
            }
            any = true;
        }
    }
};

// The words of a parameter with this role, in place of the known facts about them.
void declare(Prepared& prepared, const check::Parameter& parameter, char role) {
    auto& pointers = prepared.pointers;
    auto inside = [&](const check::Pointer& one) { return one.offset - parameter.offset < parameter.size; };
    pointers.erase(std::remove_if(pointers.begin(), pointers.end(), inside), pointers.end());
    for (check::Pointer word : check::all_words({parameter})) {
        word.found = false;
        word.role = role == 'r' ? check::Role::Read : role == 'w' ? check::Role::Write : check::Role::ReadWrite;
        pointers.push_back(word);
    }
}

// A cubin says where pointers are, and not what is written. The operator that made the launch says more.
bool is_left_to_operator(const Prepared& prepared) {
    return this_thread().operation.begun &&
           std::none_of(prepared.pointers.begin(), prepared.pointers.end(), [](const check::Pointer& one) {
               return one.role != check::Role::Read && one.role != check::Role::Unknown;
           });
}

void run(const Prepared& prepared) {
    Launch launch{
        prepared.name,         prepared.shape,       u32(prepared.parameters.size()), prepared.parameters.data(),
        prepared.space.data(), prepared.space.size()};
    prepared.run(&launch);
}

}  // namespace

UnknownKernels& unknown_kernels() {
    static auto& all = *new UnknownKernels;
    return all;
}

CalledInVain& called_in_vain() {
    static auto& all = *new CalledInVain;
    return all;
}

std::string notes_as_json() {
    std::string text = "{\"computed_nothing\": " + std::to_string(unknown_kernels().launches) + ", \"not_judged\": {";
    const char* before = "";
    for (auto& kernel : unknown_kernels().not_judged) {
        if (!kernel.second) continue;
        text += before + check::quoted(kernel.first) + ": " + std::to_string(kernel.second);
        before = ", ";
    }
    text += "}, \"not_simulated\": [";
    before = "";
    for (const char* name : called_in_vain().functions) {
        text += before + check::quoted(name);
        before = ", ";
    }
    return text + "], \"private_tables\": " + (called_in_vain().private_tables ? "true}" : "false}");
}

void note_not_judged(const char* name, const Stream* stream) {
    unknown_kernels().not_judged[name]++;
    auto& operation = this_thread().operation;
    if (!operation.begun) return;
    operation.launches.push_back(name);
    operation.stream = stream->id;
    operation.site = this_thread().site;
}

void declare_kernel(const char* pattern, const char* roles, RunLaunch run) {
    declarations().push_back({pattern, roles, run});
}
void forget_declarations() { declarations().clear(); }

void learn_kernels(const char* image, u64 bytes) {
    for (auto& entry : check::contents_of(image, bytes).kernels) learned()[entry.first] = entry.second;
}

const check::Facts* learned_facts(const std::string& name) {
    auto found = learned().find(name);
    return found == learned().end() ? nullptr : &found->second;
}

CUresult prepare_unknown(const Function& function, const Shape& shape, void** pointers, void** extra,
                         Launchable* made) {
    auto prepared = std::make_shared<Prepared>();
    prepared->name = function.name;
    prepared->shown = function.shown;
    prepared->shape = shape;
    if (function.facts) {
        prepared->parameters = function.facts->parameters;
        prepared->pointers = function.facts->pointers;
        prepared->layout = function.layout;
        prepared->arrays = function.arrays;
        prepared->first = function.facts->first;
        prepared->may_signal = function.facts->may_signal;
        prepared->uses_objects = function.facts->uses_objects;
        if (!check::read_arguments(prepared->parameters, pointers, extra, prepared->space))
            return CUDA_ERROR_INVALID_VALUE;
    }
    Work work;
    work.name = function.shown;
    if (const Declaration* declared = declaration_of(function)) {
        for (std::size_t i = 0; i < std::min(declared->roles.size(), prepared->parameters.size()); i++)
            if (declared->roles[i] != '-') declare(*prepared, prepared->parameters[i], declared->roles[i]);
        prepared->layout = {};
        prepared->run = declared->run;
    }
    if (prepared->run) {
        work.host_function = true;  // it may take the GIL: no lock is held
        work.run = [prepared] { run(*prepared); };
    } else {
        unknown_kernels().launches++;
    }
    auto watch = [prepared, is_known = function.facts != nullptr](Stream* stream) {
        const Prepared& p = *prepared;
        WithAddresses given(p);
        bool lacks_object = p.uses_objects && !given.any;  // it is somewhere else than among the parameters
        if (is_known && !is_left_to_operator(p)) {
            if (lacks_object) note_not_judged(p.shown, stream);
            return watch_kernel(
                stream, p.shown,
                {given.pointers, p.layout, p.arrays, given.space, p.shape, p.first.get(), p.may_signal});
        }
        note_not_judged(p.shown, stream);
        return watch_kernel(stream, p.shown, {{}, {}, {}, p.space, p.shape, nullptr, p.may_signal});
    };
    *made = {std::move(work), watch};
    return CUDA_SUCCESS;
}

}  // namespace sim
