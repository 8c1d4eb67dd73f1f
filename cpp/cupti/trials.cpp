// Sums before and after launches: see trials.hpp.
#include "trials.hpp"

#include "driver.hpp"

#include <cstdlib>

namespace check {

namespace {

constexpr std::size_t kPage = 4096;
static_assert(Laboratory::kSlots * sizeof(u32) <= kPage);
constexpr u32 kChanged = 2;  // a verdict; 1: equal sums

// sum: adds up mixed words, so that equal words at other places give another sum. verdict: 1 if both sums are equal,
// else 2, for the host.
const char kKernels[] = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry sum(.param .u64 begin, .param .u64 words, .param .u64 result)
{
    .reg .pred %done;
    .reg .b32 %block, %threads, %thread, %blocks;
    .reg .b64 %at, %words, %result, %i, %stride, %place, %word, %shifted, %total;
    ld.param.u64 %at, [begin];
    ld.param.u64 %words, [words];
    ld.param.u64 %result, [result];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %i, %block, %threads;
    cvt.u64.u32 %place, %thread;
    add.u64 %i, %i, %place;
    mul.wide.u32 %stride, %blocks, %threads;
    mov.u64 %total, 0;
next:
    setp.ge.u64 %done, %i, %words;
    @%done bra end;
    shl.b64 %place, %i, 3;
    add.u64 %place, %place, %at;
    ld.volatile.global.u64 %word, [%place];
    mul.lo.u64 %shifted, %i, 0x9E3779B97F4A7C15;
    xor.b64 %word, %word, %shifted;
    mul.lo.u64 %word, %word, 0xBF58476D1CE4E5B9;
    shr.u64 %shifted, %word, 29;
    xor.b64 %word, %word, %shifted;
    mul.lo.u64 %word, %word, 0x94D049BB133111EB;
    add.u64 %total, %total, %word;
    add.u64 %i, %i, %stride;
    bra next;
end:
    red.global.add.u64 [%result], %total;
    ret;
}
.visible .entry verdict(.param .u64 sums, .param .u64 flag)
{
    .reg .pred %equal;
    .reg .b32 %what;
    .reg .b64 %sums, %flag, %first, %second;
    ld.param.u64 %sums, [sums];
    ld.param.u64 %flag, [flag];
    ld.volatile.global.u64 %first, [%sums];
    ld.volatile.global.u64 %second, [%sums+8];
    setp.eq.u64 %equal, %first, %second;
    selp.u32 %what, 1, 2, %equal;
    st.volatile.global.u32 [%flag], %what;
    ret;
}
)";

}  // namespace

void Laboratory::add(Trials& trials, Trial trial) {
    if (free_.empty()) return;
    trial.slot = free_.back();
    free_.pop_back();
    volatile u32* flag = &trials.bench.flags[trial.slot];
    *flag = 0;
    trials.all.push_back(trial);
    running_.push_back({flag, trial});
}

void Laboratory::abandon(const Trials& trials) {
    for (const Trial& trial : trials.all)
        std::erase_if(running_, [&](auto& running) { return running.flag == &trials.bench.flags[trial.slot]; });
}

void Laboratory::drop(const Trials& trials) {
    abandon(trials);
    for (const Trial& trial : trials.all) free_.push_back(trial.slot);
}

void Laboratory::forget() {
    running_.clear();
    benches_.clear();
    free_.clear();
    for (u32 slot = 0; slot < kSlots; slot++) free_.push_back(slot);
}

void Laboratory::collect(Engine& engine) {
    auto is_done = [&](const Running& running) {
        u32 verdict = *running.flag;
        if (!verdict) return false;
        const Trial& trial = running.trial;
        if (verdict == kChanged && trial.found)
            engine.saw_write(trial.word, trial.time, trial.address);
        else if (verdict == kChanged)
            engine.learn(trial.word, Role::Write);
        free_.push_back(running.trial.slot);
        return true;
    };
    std::erase_if(running_, is_done);
}

// Making the bench must not disturb a capture that is under way in this thread.
Bench make_bench() {
    const Driver& driver = Driver::get();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    Bench bench;
    CUmodule module;
    void* flags = aligned_alloc(kPage, kPage);  // never freed: kernels of a lost context may still write there
    if (!flags || !driver.complete || driver.exchange_capture_mode(&mode)) return bench;
    bool made = !driver.load_module(&module, kKernels) && !driver.get_function(&bench.sum, module, "sum") &&
                !driver.get_function(&bench.verdict, module, "verdict") &&
                !driver.allocate(&bench.sums, Laboratory::kSlots * 16) &&
                !driver.register_host(flags, kPage, CU_MEMHOSTREGISTER_PORTABLE);
    driver.exchange_capture_mode(&mode);
    if (made) bench.flags = static_cast<volatile u32*>(flags);
    return bench;
}

namespace {

bool sum_up(const Trials& trials, Trial trial, CUdeviceptr result) {
    void* arguments[] = {&trial.begin, &trial.words, &result};
    return !Driver::get().launch(trials.bench.sum, 32, 1, 1, 256, 1, 1, 0, trials.stream, arguments, nullptr);
}

bool compare(const Trials& trials, const Trial& trial, CUdeviceptr sums) {
    u64 flag = reinterpret_cast<u64>(&trials.bench.flags[trial.slot]);
    void* arguments[] = {&sums, &flag};
    return !Driver::get().launch(trials.bench.verdict, 1, 1, 1, 1, 1, 1, 0, trials.stream, arguments, nullptr);
}

}  // namespace

bool sum_before(const Trials& trials) {
    for (const Trial& trial : trials.all) {
        CUdeviceptr sums = trials.bench.sums + trial.slot * 16;
        if (Driver::get().fill(sums, 0, 4, trials.stream) || !sum_up(trials, trial, sums)) return false;
    }
    return true;
}

bool sum_after(const Trials& trials) {
    for (const Trial& trial : trials.all) {
        CUdeviceptr sums = trials.bench.sums + trial.slot * 16;
        if (!sum_up(trials, trial, sums + 8) || !compare(trials, trial, sums)) return false;
    }
    return true;
}

}  // namespace check
