// Launches: the memory that a kernel is handed.
#include "calls.hpp"

#include <algorithm>
#include <utility>

namespace check {

namespace {

Kernel& kernel_of(const Call& call, CUfunction function) {
    Kernel* known = call.front.kernels.find(function);
    if (known) return *known;
    const char* symbol = call.data.symbolName ? call.data.symbolName : "a kernel";
    std::shared_ptr<const Facts> facts = call.front.kernels.facts(function);
    const Facts* text = facts && facts->first ? facts.get() : nullptr;
    Kernel made;
    std::string name;
    {
        Unlocked unlocked(call.front.lock);
        made.parameters = parameters_of(function);
        name = readable(symbol);
    }
    made.words = words_of(made.parameters, text, symbol);
    if (text) made.first = text->first;
    if (facts) made.may_signal = facts->may_signal;
    made.layout = StructLayout::of(symbol, made.parameters);
    made.arrays = ElementwiseArrays::of(symbol, made.parameters);
    made.name = call.front.engine().name(name);
    for (Word& word : made.words) {
        word.number = call.front.engine().add_word();
        call.front.engine().learn(word.number, word.role);
    }
    for (u32 list = 0; made.layout && list < made.layout->lists(); list++)
        made.lists.push_back(call.front.engine().add_word());
    return call.front.kernels.add(function, symbol, std::move(made));
}

// The bench of the context, made for the first trial there.
const Bench& bench_of(const Call& call) {
    u32 context = u32(call.context());
    if (!call.front.laboratory.bench(context)) {
        Bench made;
        {
            Unlocked unlocked(call.front.lock);
            made = make_bench();
        }
        call.front.laboratory.keep(context, made);
    }
    return *call.front.laboratory.bench(context);
}

// Tries the words about which nothing is known, and which have live memory behind them: of a list the first word.
void try_words(const Call& call, const Bench& bench, Time time, const std::vector<u8>& space, CUstream stream) {
    Trials& trials = call.thread.trials;
    trials.bench = bench;
    trials.stream = stream || !call.own_default ? stream : CU_STREAM_PER_THREAD;
    for (const LaunchedWord& word : call.front.backlog.words()) {
        u64 at = word_at(space, word.offset);
        bool wanted = word.first_of_list && !call.front.engine().is_known(word.number);
        const Block* block = wanted ? call.front.engine().find(at) : nullptr;
        if (!block || !block->live || !trials.bench.flags) continue;
        u64 begin = at & ~u64(7), end = std::min(block->end, at + Laboratory::kBytes);
        Trial trial{word.number, begin, (end - begin + 7) / 8, 0, time, at, word.found};
        call.front.laboratory.add(trials, trial);
        if (trials.all.size() == Laboratory::kMostOfLaunch) break;
    }
    if (trials.all.empty()) return;
    bool started;
    {
        Unlocked unlocked(call.front.lock);
        started = sum_before(trials);
    }
    if (!started) call.front.laboratory.drop(std::exchange(trials, {}));
}

// The arguments as the launch hands them over.
struct Arguments {
    void **values, **extra;
    GridShape shape;
};

template <class Launch>
GridShape shape_of(const Launch& launch) {
    return {{launch.gridDimX, launch.gridDimY, launch.gridDimZ},
            {launch.blockDimX, launch.blockDimY, launch.blockDimZ}};
}

void launch(const Call& call, CUfunction function, CUstream stream, const Arguments& arguments) {
    Front& front = call.front;
    if (front.laboratory.has_news()) front.laboratory.collect(front.engine());
    Kernel& known = kernel_of(call, function);
    Stream* on = call.stream(stream);
    if (!on) return;
    front.count_launch(known);
    bool due = front.laboratory.is_open && !on->capture && known.is_due();
    Bench bench = due ? bench_of(call) : Bench{};  // which may unlock, so that a kernel is forgotten meanwhile
    Kernel& kernel = due ? kernel_of(call, function) : known;
    Noted& noted = front.backlog.next();
    noted.kind = Noted::Kind::Launch;
    noted.thread = call.thread.number;
    noted.stream = on;
    noted.what = {kernel.name, call.what.site};
    noted.kernel = &kernel;
    noted.shape = arguments.shape;
    call.thread.changes.note(noted.number);
    read_arguments(kernel.parameters, arguments.values, arguments.extra, noted.space);
    call.thread.touches_host = host::is_on() && front.has_pinned(noted.space);
    if (!due) return front.backlog.keep();
    u64 found = front.engine().findings().added();
    Time time = front.backlog.feed(noted);
    // Writes of other streams meanwhile would be taken for the kernel's: after a finding a later launch is tried.
    if (found != front.engine().findings().added()) return;
    kernel.was_tried();
    try_words(call, bench, time, noted.space, stream);
}

// A launch can record events on its way: an event when the last block begins, which says nothing about the kernel's
// work, and an event that the kernel triggers.
void launch(const Call& call, const CUlaunchConfig& config, CUfunction function, void** values, void** extra) {
    const CUlaunchAttribute *begin = config.attrs, *end = begin + config.numAttrs;
    for (const CUlaunchAttribute* attribute = begin; attribute != end; attribute++)
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            call.record(attribute->value.launchCompletionEvent.event, config.hStream);
    launch(call, function, config.hStream, {values, extra, shape_of(config)});
    for (const CUlaunchAttribute* attribute = begin; attribute != end; attribute++)
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            call.record(attribute->value.programmaticEvent.event, config.hStream);
}

void add_kernels(Calls& calls) {
    BEFORE_BOTH(cuLaunchKernel, _ptsz) { launch(call, p.f, p.hStream, {p.kernelParams, p.extra, shape_of(p)}); });
    BEFORE_BOTH(cuLaunchKernelEx, _ptsz) { launch(call, *p.config, p.f, p.kernelParams, p.extra); });
    BEFORE_BOTH(cuLaunchCooperativeKernel, _ptsz) {
        launch(call, p.f, p.hStream, {p.kernelParams, nullptr, shape_of(p)});
    });
    calls.unseen(ENTRY(cuLaunchCooperativeKernelMultiDevice));
}

void read(const Call& call, u64 handle, const void* image) {
    Image facts;
    {
        Unlocked unlocked(call.front.lock);
        facts = read_image(image);
    }
    call.front.kernels.add_image(handle, std::move(facts));
}

CUfunction function_of(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

void add_modules(Calls& calls) {
    AFTER(cuModuleLoadData) { read(call, u64(*p.module), p.image); });
    AFTER(cuModuleLoadDataEx) { read(call, u64(*p.module), p.image); });
    AFTER(cuModuleGetFunction) { call.front.kernels.add_function(*p.hfunc, u64(p.hmod), p.name); });
    BEFORE(cuModuleUnload) { call.front.forget_kernels(u64(p.hmod)); });
    AFTER(cuLibraryLoadData) { read(call, u64(*p.library), p.code); });
    AFTER(cuLibraryGetModule) { call.front.kernels.share_image(u64(*p.pMod), u64(p.library)); });
    AFTER(cuLibraryGetKernel) { call.front.kernels.add_function(function_of(*p.pKernel), u64(p.library), p.name); });
    AFTER(cuKernelGetFunction) { call.front.kernels.share_function(*p.pFunc, function_of(p.kernel)); });
    for (auto entry : {ENTRY(cuCtxDestroy_v2), ENTRY(cuDevicePrimaryCtxReset_v2), ENTRY(cuDevicePrimaryCtxRelease_v2)})
        calls.before<int>(entry, [](const Call& call, const int&) {
            call.front.laboratory.collect(call.front.engine());
            call.front.laboratory.forget();
        });
    BEFORE(cuLibraryUnload) { call.front.forget_kernels(u64(p.library)); });
}

}  // namespace

void add_launches(Calls& calls) {
    add_kernels(calls);
    add_modules(calls);
    for (auto entry : {ENTRY(cuLaunch), ENTRY(cuLaunchGrid), ENTRY(cuLaunchGridAsync)}) calls.unseen(entry);
}

}  // namespace check
