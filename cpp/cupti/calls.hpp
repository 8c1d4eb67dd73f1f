// The meaning of driver calls: a table by CUPTI's numbers of the calls.
#pragma once

#include "front.hpp"

#include <array>
#include <string>

namespace check {

struct Handler {
    using Meaning = void (*)(const Call&, const void* parameters);
    std::string name;  // as the documentation has it: without the version of the entry point
    bool own_default = false;
    Meaning before = nullptr, after = nullptr, failed = nullptr;  // of the last two the one that the result says
    bool unseen = false;  // it is counted, and means nothing to the engine
    mutable u32 number = 0;  // of its name, from the first call on
};

class Calls {
  public:
    static constexpr std::size_t kMost = 1024;  // CUDA 13.3 has 877

    // The entry points of one call: CUPTI's numbers, the one that means the thread's own default stream second.
    struct Entry {
        const char* symbol;
        CUpti_CallbackId number, own_default = 0;
    };

    // A call without parameters has none to point at.
    template <class Parameters>
    static const Parameters& given(const void* parameters) {
        static const Parameters none{};
        return parameters ? *static_cast<const Parameters*>(parameters) : none;
    }

    template <class Parameters, class Body>
    void before(Entry entry, Body) {
        set(entry, &Handler::before,
            [](const Call& call, const void* parameters) { Body{}(call, given<Parameters>(parameters)); });
    }
    template <class Parameters, class Body>
    void after(Entry entry, Body) {
        set(entry, &Handler::after,
            [](const Call& call, const void* parameters) { Body{}(call, given<Parameters>(parameters)); });
    }
    template <class Parameters, class Body>
    void failed(Entry entry, Body) {
        set(entry, &Handler::failed,
            [](const Call& call, const void* parameters) { Body{}(call, given<Parameters>(parameters)); });
    }
    // For a call that would have to be modelled, and is not: the report says so.
    void unseen(Entry entry) {
        set(entry, &Handler::before, [](const Call& call, const void*) { call.front.count_unseen(call.what.name); });
        for (CUpti_CallbackId number : {entry.number, entry.own_default}) table_[number].unseen = number;
    }

    const Handler* find(CUpti_CallbackId number) const {
        return number < kMost && !table_[number].name.empty() ? &table_[number] : nullptr;
    }

  private:
    std::array<Handler, kMost> table_;

    void set(Entry entry, Handler::Meaning Handler::* moment, Handler::Meaning meaning);
};

const Calls& calls();

// Each function adds its part of the table.
void add_memory(Calls& calls);
void add_copies(Calls& calls);
void add_fills(Calls& calls);
void add_order(Calls& calls);
void add_launches(Calls& calls);
void add_graphs(Calls& calls);

// No macro hands its symbol to another one: cuda.h has macros of the same names, which stand for the newest versions.
#define ENTRY(symbol) (Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol})
#define ENTRIES(symbol, letters) \
    (Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol, CUPTI_DRIVER_TRACE_CBID_##symbol##letters})
// The meaning of a call, with its parameters `p`: BEFORE(cuMemUnmap) { call.unmap(p.ptr, p.size); });
// With a second entry point, for the thread's own default stream, its letters: BEFORE_BOTH(cuMemFreeAsync, _ptsz)
#define BEFORE(symbol) \
    calls.before<symbol##_params>(Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol}, \
                                  [](const Call& call, [[maybe_unused]] const symbol##_params& p)
#define AFTER(symbol) \
    calls.after<symbol##_params>(Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol}, \
                                 [](const Call& call, [[maybe_unused]] const symbol##_params& p)
#define BEFORE_BOTH(symbol, letters) \
    calls.before<symbol##_params>( \
        Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol, CUPTI_DRIVER_TRACE_CBID_##symbol##letters}, \
        [](const Call& call, [[maybe_unused]] const symbol##_params& p)
#define AFTER_BOTH(symbol, letters) \
    calls.after<symbol##_params>( \
        Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol, CUPTI_DRIVER_TRACE_CBID_##symbol##letters}, \
        [](const Call& call, [[maybe_unused]] const symbol##_params& p)
#define FAILED_BOTH(symbol, letters) \
    calls.failed<symbol##_params>( \
        Calls::Entry{#symbol, CUPTI_DRIVER_TRACE_CBID_##symbol, CUPTI_DRIVER_TRACE_CBID_##symbol##letters}, \
        [](const Call& call, [[maybe_unused]] const symbol##_params& p)

}  // namespace check
