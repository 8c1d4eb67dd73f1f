// The names of instructions: see opcodes.hpp.
#include "opcodes.hpp"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <unordered_map>

namespace check::machine {

namespace {

using Name = std::string_view;

struct Group {
    Effect effect;
    std::initializer_list<Name> names;
};

// Effects by the first part of the name. A name that is not here is Unknown: its operands may be used in any way.
const Group kGroups[] = {
    {Effect::Constant, {"LDC", "ULDC", "LDCU"}},
    {Effect::Load, {"LD", "LDG"}},
    {Effect::Store, {"ST", "STG"}},
    {Effect::Atomic, {"ATOM", "ATOMG", "RED", "REDG"}},
    {Effect::CopyIn, {"LDGSTS"}},
    {Effect::Bulk, {"UBLKCP", "UBLKRED"}},
    {Effect::Tensor, {"UTMALDG", "UTMASTG", "UTMAREDG"}},
    {Effect::OnChip, {"LDS", "STS", "LDSM", "STSM", "STAS", "ATOMS"}},
    {Effect::FromLocal, {"LDL"}},
    {Effect::ToLocal, {"STL"}},
    {Effect::Move, {"MOV", "UMOV", "R2UR", "UR2R", "BMOV", "SHFL"}},
    {Effect::Select, {"SEL", "USEL", "FSEL", "UFSEL"}},
    {Effect::Sum, {"IADD", "IADD3", "UIADD3", "UIADD", "VIADD", "UVIADD"}},
    {Effect::ScaledSum, {"LEA", "ULEA"}},
    {Effect::Multiply, {"IMAD", "UIMAD"}},
    {Effect::Mask, {"LOP3", "ULOP3"}},
    {Effect::Shift, {"SHF", "USHF"}},
    {Effect::Permute, {"PRMT", "UPRMT"}},
    {Effect::Mixed,
     {"IMNMX", "VIMNMX", "UIMNMX", "UVIMNMX", "VIMNMX3", "UVIMNMX3", "VIADDMNMX", "UVIADDMNMX", "REDUX", "CREDUX",
      "IABS", "UIABS"}},
    {Effect::Bits,
     {"SGXT", "USGXT", "BREV", "UBREV", "BMSK", "UBMSK", "I2I", "I2IP", "UI2IP", "P2R", "UP2UR", "MOVM", "VABSDIFF",
      "VABSDIFF4"}},
    {Effect::Value,
     {"FADD",  "FMUL",  "FFMA",  "FMNMX", "FMNMX3", "FSET",  "FSWZADD", "MUFU",   "FADD2", "FMUL2", "FFMA2",
      "DADD",  "DMUL",  "DFMA",  "DMNMX", "HADD2",  "HMUL2", "HFMA2",   "HMNMX2", "HSET2", "I2F",   "I2FP",
      "F2I",   "F2F",   "F2FP",  "F2IP",  "FRND",   "HMMA",  "IMMA",    "DMMA",   "BMMA",  "QMMA",  "OMMA",
      "HGMMA", "IGMMA", "QGMMA", "BGMMA", "POPC",   "UPOPC", "FLO",     "UFLO",   "S2R",   "S2UR",  "CS2R",
      "CS2UR", "VOTE",  "VOTEU", "MATCH", "LEPC",   "IDP",   "UFADD",   "UFMUL",  "UFFMA", "UFSET", "UFMNMX",
      "UFRND", "UI2F",  "UI2FP", "UF2F",  "UF2FP",  "UF2I",  "UF2IP",   "ELECT",  "B2R"}},
    {Effect::Nothing,
     {"NOP",           "QSPC",         "ISETP",     "UISETP",     "FSETP",      "UFSETP",    "DSETP",    "HSETP2",
      "PLOP3",         "UPLOP3",       "PSETP",     "FCHK",       "R2P",        "BAR",       "DEPBAR",   "LDGDEPBAR",
      "MEMBAR",        "FENCE",        "ERRBAR",    "YIELD",      "NANOSLEEP",  "WARPGROUP", "WARPSYNC", "BREAK",
      "ENDCOLLECTIVE", "BPT",          "ACQBULK",   "PREEXIT",    "USETMAXREG", "UTMACCTL",  "UBLKPF",   "UTMAPF",
      "UTMACMDFLUSH",  "UCGABAR_WAIT", "CGAERRBAR", "UCGABAR_ARV"}},
    {Effect::Branch, {"BRA", "JMP"}},
    {Effect::IndirectBranch, {"BRX", "BRXU", "JMX", "JMXU"}},
    {Effect::Call, {"CALL"}},
    {Effect::Return, {"RET"}},
    {Effect::Exit, {"EXIT", "KILL"}},
    {Effect::Reconverge, {"BSSY"}},
    {Effect::Synchronize, {"BSYNC"}},
};

bool begins(Name text, Name with) { return text.substr(0, with.size()) == with; }

bool ends(Name text, Name with) { return text.size() >= with.size() && text.substr(text.size() - with.size()) == with; }

// Visits the parts of a name, one after the other; the first part is the operation.
template <class Visit>
void for_each_part(Name name, Visit visit) {
    while (!name.empty()) {
        std::size_t end = std::min(name.find('.'), name.size());
        visit(name.substr(0, end));
        name.remove_prefix(std::min(end + 1, name.size()));
    }
}

Name first_part(Name name) { return name.substr(0, name.find('.')); }

// Of HGMMA.64x128x16.F32: half of 128, because each of four warps has a quarter of 64 rows in 32 threads.
unsigned width_of_group(Name name) {
    std::size_t at = name.find(".64x");
    if (at == name.npos) return 1;
    unsigned columns = 0;
    for (at += 4; at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) && columns < 256; at++)
        columns = columns * 10 + unsigned(name[at] - '0');
    return std::max(1u, has(name, "F16") && !has(name, "F32") ? columns / 4 : columns / 2);
}

}  // namespace

bool has(Name name, Name part) {
    bool found = false;
    for_each_part(name, [&](Name one) { found |= one == part; });
    return found;
}

Effect effect_of(Name name) {
    static const std::unordered_map<Name, Effect> effects = [] {
        std::unordered_map<Name, Effect> all;
        for (const Group& group : kGroups)
            for (Name one : group.names) all[one] = group.effect;
        return all;
    }();
    Name first = first_part(name);
    auto found = effects.find(first);
    if (first == "WARPSYNC" && has(name, "COLLECTIVE")) return Effect::Collective;
    // A barrier in memory: threads give it counts, but for its first value.
    if (first == "SYNCS") return has(name, "EXCH") ? Effect::OnChip : Effect::Value;
    // Prefetches, and instructions that make other threads' writes visible. CCTL also discards lines.
    if (first == "CCTL" && (has(name, "IVALL") || name.find(".PF") != name.npos)) return Effect::Nothing;
    if (found != effects.end()) return found->second;
    // An instruction with the name of a branch may go anywhere.
    bool is_branch = false;
    for (Name name_of_branch : {"BR", "J", "CALL", "RET"}) is_branch |= begins(first, name_of_branch);
    return is_branch ? Effect::IndirectBranch : Effect::Unknown;
}

unsigned width_in_memory(Name name) {
    unsigned width = 1;
    bool is_matrix = first_part(name) == "LDSM" || first_part(name) == "STSM";
    for_each_part(name, [&](Name part) {
        if (ends(part, "128") || part == "256" || (is_matrix && part == "4")) width = 4;
        if (ends(part, "64") || (is_matrix && part == "2")) width = std::max(width, 2u);
    });
    return width;
}

bool is_partial(Name name) { return has(name, "U8") || has(name, "S8") || has(name, "U16") || has(name, "S16"); }

// The first register alone, where it is not certain that a second one is written.
unsigned width_of_value(Name name) {
    Name first = first_part(name);
    if (first == "CS2R") return has(name, "32") ? 1 : 2;
    if (first == "HMMA" || first == "QMMA") return has(name, "F32") ? 4 : 2;
    if (first == "DMMA") return 4;
    if (ends(first, "GMMA")) return width_of_group(name);
    if (first[0] == 'D' || first == "LEPC" || ends(first, "ADD2") || ends(first, "MUL2") || ends(first, "FMA2"))
        return first[0] == 'H' ? 1 : 2;
    // Conversions name their result first: I2F.F64.S32, F2I.S64.F64, and F2F.F32.F64.
    Name behind = name.size() > first.size() ? name.substr(first.size() + 1) : Name();
    Name made = first_part(behind);
    if (first == "F2I") return ends(made, "64") && made != "F64" ? 2 : 1;
    if (first == "I2F" || first == "F2F" || first == "FRND") return made == "F64" ? 2 : 1;
    return 1;
}

}  // namespace check::machine
