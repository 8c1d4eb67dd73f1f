// Declared uses: see declared.hpp.
#include "declared.hpp"

namespace check {

void Declared::close(u64 window, bool launched) {
    auto is_of = [&](const Use& use) { return use.window == window; };
    for (const Use& use : uses_) {
        if (!is_of(use) || !launched || use.worked || !use.elsewhere) continue;
        add(*use.elsewhere);
        break;  // one says it
    }
    remove_if(uses_, is_of);
}

void Declared::note_work(u64 stream) {
    for (Use& use : uses_) use.worked |= use.stream == stream;
}

void Declared::look_elsewhere(u64 thread, const Stream& stream, u64 at, const Omission& omission) {
    for (const Use& use : uses_)
        if (use.stream == stream.id && use.names(at)) return;
    for (Use& use : uses_) {
        if (!use.names(at) || (use.elsewhere && use.elsewhere->entry)) continue;
        if (use.thread != thread) continue;
        bool ordered = (use.legacy || stream.legacy) && use.blocking && stream.blocking;
        if (ordered && use.elsewhere) continue;
        use.elsewhere = omission;
        use.elsewhere->kind = Omission::Kind::Elsewhere;
        use.elsewhere->declared = use.site;
        use.elsewhere->named = use.stream;
        use.elsewhere->entry = !ordered;
    }
}

Role Declared::role_at(u64 stream, u64 at, Role unless) const {
    bool reads = false, writes_too = false;
    for (const Use& use : uses_) {
        if (use.stream != stream || at < use.begin || at >= use.end) continue;
        reads |= use.role != Role::Write;
        writes_too |= writes(use.role);
    }
    if (!reads && !writes_too) return unless;
    return !writes_too ? Role::Read : reads ? Role::ReadWrite : Role::Write;
}

Known Declared::look(u64 thread, Access& access, const Omission& omission, bool own) {
    Omission found = omission;
    u32 around = 0;
    u64 at = access.anchor ? access.anchor : access.begin;
    bool named = false, may_write = false;
    for (const Use& use : uses_) {
        if (use.stream != access.stream) continue;
        if (use.thread == thread) around = use.site;
        if (!use.names(at)) continue;
        named = true;
        may_write |= writes(use.role);
        found.declared = use.site;
    }
    if (named && (!writes(access.role) || may_write)) return Known::Declared;
    if (!named && own) return Known::New;
    found.kind = named ? Omission::Kind::Written : Omission::Kind::Outside;
    if (audits_) add(found);
    access.window = named ? found.declared : around;
    return named ? Known::Written : around ? Known::Lacking : Known::Not;
}

void Declared::add(const Omission& omission) {
    for (Omission& known : omissions_) {
        if (known.kind == omission.kind && known.what.site == omission.what.site &&
            known.what.name == omission.what.name && known.declared == omission.declared) {
            known.count++;
            known.entry |= omission.entry;
            return;
        }
    }
    if (omissions_.size() < kMost) omissions_.push_back(omission);
}

}  // namespace check
