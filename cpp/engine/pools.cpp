// Memory of caching pools: see pools.hpp.
#include "engine.hpp"
#include "trace.hpp"

#include <algorithm>
#include <utility>

namespace check {

bool WithheldFrees::add(const Withheld& one) {
    if (*count_ == kMost) return false;
    by_home_[one.home].push_back(one);
    ++*count_;
    return true;
}

std::vector<u64> WithheldFrees::homes() const {
    std::vector<u64> all;
    for (auto& entry : by_home_) all.push_back(entry.first);
    std::sort(all.begin(), all.end());
    return all;
}

u64 WithheldFrees::places(const Finding& finding) {
    u64 hash = 0;
    for (const Access* access : {&finding.first, &finding.second})
        for (u64 word :
             {u64(access->what.name) << 32 | access->what.site, u64(access->captured) << 8 | u64(access->role)})
            hash = (hash ^ word) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
    return hash;
}

// -- allocations ------------------------------------------------------------------------------------------------------

namespace {

// A sum that takes the place of older uses on one stream, this use among them: a conflict with it is possible at most.
Access summary_of(const Access& use) {
    Access made;
    made.begin = use.begin;
    made.end = use.end;
    made.time = use.time;
    made.role = use.role == Role::Read ? Role::Read : Role::Unknown;
    made.moved = true;
    return made;
}

// False if there is no room.
bool summarize(std::vector<Access>& sums, const Access& use) {
    Access made = summary_of(use);
    for (Access& sum : sums) {
        if (sum.time.slot != made.time.slot || sum.role != made.role) continue;
        sum.begin = std::min(sum.begin, made.begin);
        sum.end = std::max(sum.end, made.end);
        return true;
    }
    if (sums.size() == EarlierOwners::kSums) return false;
    sums.push_back(made);
    return true;
}

}  // namespace

u64 EarlierOwners::shorten(u64 begin, u64 end) {
    if (before.size() <= kMany) return 0;
    u64 dropped = 0;
    std::vector<const Access*> all;
    for (const Access& use : before) all.push_back(&use);
    std::stable_sort(all.begin(), all.end(),
                     [](const Access* a, const Access* b) { return a->time.number > b->time.number; });
    std::vector<Access> kept, sums;
    for (const Access* use : all) {
        auto covers = [&](const Access& later) {
            return later.time.slot == use->time.slot && stands_for(later, *use, begin, end);
        };
        if (std::any_of(kept.begin(), kept.end(), covers)) continue;
        if (kept.size() < kMost)
            kept.push_back(*use);
        else if (!summarize(sums, *use))
            dropped++;
    }
    kept.insert(kept.end(), sums.begin(), sums.end());
    before = std::move(kept);
    return dropped;
}

// The earlier owners of memory that is handed out again. The owner of a piece has returned the piece; where the
// driver's pool is in the place of the library's, a block counts if it was the same stream's.
EarlierOwners Engine::earlier_owners(const Clock& home, const Access& alloc, bool piece) {
    EarlierOwners owners;
    auto counts = [&](const Access& use) {
        return !is_life(use.role) && !use.unused && overlap(use, alloc) && !order_.host().covers(use.time);
    };
    auto drop_others = [&] { remove_if(owners.before, [&](const Access& use) { return !counts(use); }); };
    auto is_covered = [&](const Access& use) { return home.covers(use.time); };
    auto add_early = [&](const Access& use, const Block& old) {
        if (old.pool != Pool::Caching) return;
        if (owners.early.size() < EarlierOwners::kMany)
            owners.early.push_back(finding_of(Kind::Race, use, alloc, old));
        else
            dropped_++;
    };
    blocks_.each(alloc.begin, alloc.end, piece, [&](Block& old) {
        if (old.live || (!piece && (old.pool != Pool::Replaced || old.allocated.stream != alloc.stream))) return;
        auto add = [&](const Access& use) {
            bool awaited = old.recorded.covers(use.time);  // by the pool, before this allocation
            if (awaited || !counts(use)) return;
            if (is_covered(use))
                owners.before.push_back(use);
            else
                add_early(use, old);
        };
        // A block that ends passes its list on to the same stream, which still comes after the listed accesses: nearly
        // every block does, and the list is long.
        std::vector<Access>& given = old.owners.before;
        bool ends = alloc.begin <= old.begin && old.end <= alloc.end;
        if (ends && owners.before.empty() && old.allocated.stream == alloc.stream) {
            owners.before = std::move(given);
            // The rest of a piece has the list of the whole; and begin_pooled() wants to know whether uses are left.
            bool whole = piece && old.begin == old.allocated.begin && old.end == old.allocated.end;
            if (!whole) drop_others();
        } else {
            for (const Access& use : given) add(use);
        }
        for (const Finding& found : old.owners.early) add(found.first);
        old.shadow.each(add);
    });
    if (owners.before.size() > EarlierOwners::kMany) drop_others();
    dropped_ += owners.shorten(alloc.begin, alloc.end);
    return owners;
}

void Engine::begin_pooled(Block& block, EarlierOwners owners) {
    block.owners = std::move(owners);
    if (!block.owners.before.empty() || block.pool == Pool::Caching) return;
    Access made = block.allocated;
    made.of_driver = true;
    block.shadow.add(made);
}

// Compares an access of the new owner. A kernel about which nothing is known writes: the memory has nothing that the
// kernel could read.
void Engine::meet_owners(const Stream& stream, const Access& access, Block& block) {
    Access use = access;
    if (use.role == Role::Unknown) use.role = Role::Write;
    auto is_done = [&](const Access& earlier) { return stream.clock.covers(earlier.time); };
    auto verdict = [&](Access& earlier) {
        if (is_done(earlier) || !overlap(earlier, use)) return Verdict::Fine;
        words_.refresh(earlier);
        return judge(earlier, use);
    };
    auto report_as = [&](Finding finding, Verdict as) {
        finding.doubtful |= as == Verdict::Possible;
        finding.verdict = verdict_of(finding);
        findings_.add(finding);
    };
    Verdict worst = Verdict::Fine;
    Access made = block.allocated;
    for (Access& earlier : block.owners.before) {
        Verdict found = verdict(earlier);
        if (found <= worst) continue;
        worst = found;
        made.time = earlier.time;
    }
    if (worst != Verdict::Fine) report_as(finding_of(Kind::Race, made, access, block), worst);
    auto is_reported = [&](Finding& finding) {
        Verdict found = verdict(finding.first);
        if (found != Verdict::Fine) report_as(finding, found);
        return found == Verdict::Certain;
    };
    std::vector<Finding>& early = block.owners.early;
    remove_if(early, is_reported);
}

void Engine::adopt_piece(u64 address, u64 bytes) {
    if (trace_) trace_->line(":adopt", address, bytes);
    cut(address, address + bytes);
    blocks_.forget(address, address + bytes, true);
    Block& block = *blocks_.add(address, address + bytes, true);
    block.pool = Pool::Caching;
}

void Engine::cut(u64 begin, u64 end) {
    blocks_.each(begin, end, false, [](Block& whole) { whole.cut = true; });
}

// -- frees ------------------------------------------------------------------------------------------------------------

// Withholds uses that the home stream does not come after, of a block that it frees.
void Engine::withhold_found(const Access& freed, const Block& block) {
    for (const Access& first : found_) {
        if (first.role == Role::Alloc) continue;  // no use was reported, and so none is wrong
        Withheld one;
        one.finding = finding_of(Kind::Race, first, freed, block);
        one.home = block.allocated.stream;
        one.pool = block.pool;
        if (!home_of_withheld(one.home))
            report_withheld(one, true);  // it hands nothing out any more
        else if (!withheld_.add(one))
            dropped_++;
    }
    found_.clear();
}

void Engine::record_piece(Stream& stream, u64 address) {
    if (trace_) trace_->line(":record-piece", &stream, address);
    Block* block = blocks_.at(address, true);
    if (block && block->live) block->recorded.join(queued_on(stream));
}

void Engine::return_piece(Stream* home, Operation what, u64 address) {
    if (trace_) trace_->line(":return", home, what, address);
    if (home && !home->capture) tick(*home);
    Block* block = blocks_.at(address, true);
    if (!block || !block->live || block->captured) return;
    block->live = false;
    block->released = true;
    block->freed = access(home, home ? home->now() : Time{}, what, Role::Free);
    block->freed.begin = block->begin;
    block->freed.end = block->end;
    Clock before = clock_of(home);
    before.join(order_.host());
    before.join(block->recorded);
    block->shadow.compare(block->freed, before, found_);
    withhold_found(block->freed, *block);
}

// Drops the withheld findings of a free that the driver has refused.
void Engine::drop_withheld(const Block& block) {
    withheld_.decide(
        block.allocated.stream, [&](const Withheld& one) { return one.meets(block.freed); }, [](Withheld&) {});
}

// A caching pool returns this memory to the driver, and hands none of it out any more. Uses that do not come before
// that free are reported there.
void Engine::end_withheld(const Stream* stream, const Block& whole) {
    for (u64 home : withheld_.homes())
        withheld_.decide(
            home, [&](const Withheld& one) { return one.pool == Pool::Caching && one.meets(whole.allocated); },
            [&](Withheld& one) {
                if (clock_of(stream).covers(one.finding.first.time)) report_withheld(one, true);
            });
}

// -- decisions about withheld findings --------------------------------------------------------------------------------

void Engine::report_withheld(Withheld& one, bool ordered) {
    Finding& finding = one.finding;
    if (ordered) withheld_.note_ordered(finding);
    if (ordered && one.pool == Pool::Caching) return;
    finding.second.of_driver = ordered;
    words_.refresh(finding.first);
    words_.refresh(finding.second);
    finding.verdict = verdict_of(finding);
    if (finding.verdict != Verdict::Fine) findings_.add(finding);
}

// The home stream hands out this memory: decides findings whose memory this could have been, and findings whose first
// access the home stream comes after by now.
void Engine::decide_frees(const Stream& home, const Access& alloc, bool piece) {
    if (!withheld_.any()) return;
    auto is_ordered = [&](const Withheld& one) { return home.clock.covers(one.finding.first.time); };
    withheld_.decide(
        home.id,
        [&](const Withheld& one) {
            bool taken =
                piece ? one.meets(alloc) : could_take(alloc.end - alloc.begin, one.bytes()) || one.meets(alloc);
            return taken || is_ordered(one);
        },
        [&](Withheld& one) {
            bool ordered = is_ordered(one);
            if (ordered || !piece) report_withheld(one, ordered);  // else the reuse is reported
        });
}

Stream* Engine::home_of_withheld(u64 id) {
    for (auto& stream : order_.streams()) {
        if (stream->id != id || stream->dead) continue;
        if (stream->blocking && !stream->capture) order_.settle(*stream);
        return stream.get();
    }
    return nullptr;
}

// The host is about to learn that this is done. The home stream has waited itself for accesses that it comes after by
// then.
void Engine::note_host_waits(const Clock& clock) {
    for (u64 id : withheld_.homes()) {
        Stream* home = home_of_withheld(id);
        withheld_.decide(
            id,
            [&](const Withheld& one) { return home && !one.host_waits && home->clock.covers(one.finding.first.time); },
            [&](Withheld& one) { report_withheld(one, true); });
        withheld_.each(id, [&](Withheld& one) { one.host_waits |= clock.covers(one.finding.first.time); });
    }
}

void Engine::decide_all_frees() {
    if (trace_) trace_->line(":decide");
    if (!withheld_.any()) return;
    note_host_waits(order_.host());
    for (u64 id : withheld_.homes())
        withheld_.decide(
            id, [](const Withheld&) { return true; },
            [&](Withheld& one) { report_withheld(one, withheld_.was_ordered(one.finding)); });
}

}  // namespace check
