// Plans, their settings and the sizes of their work areas.
#include "fft.hpp"
#include "not_simulated.hpp"

#include <memory>
#include <mutex>
#include <utility>

namespace cufft {

namespace {

std::mutex plans_mutex;
std::map<int, std::unique_ptr<Plan>>& plans() {
    static auto& all = *new std::map<int, std::unique_ptr<Plan>>;
    return all;
}

constexpr int kVersion = LIBRARY_MAJOR * 1000 + (LIBRARY_MAJOR == 11 ? 401 : 0);
constexpr i64 kMostNumbers = i64(1) << 40;

// What a program names a transform by.
struct Type {
    int code;
    Kind kind;
    bool is_double;
};
constexpr Type kTypes[] = {{0x29, kComplex, false}, {0x2a, kToComplex, false}, {0x2c, kToReal, false},
                           {0x69, kComplex, true},  {0x6a, kToComplex, true},  {0x6c, kToReal, true}};

// The layout of one side, as a program gives it.
template <class Int>
struct Given {
    const Int* embed;
    i64 stride, distance;

    Layout layout(int rank) const {
        Layout made{{1, 1, 1}, stride, distance};
        for (int i = 0; i < rank; i++) made.embed[std::size_t(3 - rank + i)] = embed[i];
        return made;
    }
};

bool is_right(const Layout& layout, const Sizes& sizes) {
    bool is_room = layout.stride > 0 && layout.distance >= 0;
    for (std::size_t i = 1; i < 3; i++) is_room &= layout.embed[i] >= sizes[i] || sizes[i] == 1;
    return is_room;
}

template <class Int>
Status set_sizes(Shape* shape, int rank, const Int* sizes, const Given<Int>& in, const Given<Int>& out, i64 batch) {
    if (rank < 1 || rank > 3 || !sizes) return kInvalidValue;
    i64 all = shape->batch = batch;
    if (batch < 1) return kInvalidSize;
    for (int i = 0; i < rank; i++) {
        if (sizes[i] < 1 || all > kMostNumbers / sizes[i]) return kInvalidSize;
        all *= shape->sizes[std::size_t(3 - rank + i)] = sizes[i];
    }
    shape->is_basic = !in.embed || !out.embed;
    if (shape->is_basic) return kSuccess;
    shape->in = in.layout(rank);
    shape->out = out.layout(rank);
    bool fits = is_right(shape->in, shape->numbers_in()) && is_right(shape->out, shape->numbers_out());
    return fits ? kSuccess : kInvalidSize;
}

// The size of the work area is written to `work`.
template <class Int>
Status shape_of(Shape* shape, int type, int rank, const Int* sizes, const Given<Int>& in, const Given<Int>& out,
                i64 batch, std::size_t* work) {
    for (const Type& known : kTypes)
        if (known.code == type) {
            shape->kind = known.kind;
            shape->is_double = known.is_double;
            Status refused = set_sizes(shape, rank, sizes, in, out, batch);
            if (!refused && work) *work = work_of(*shape);
            return refused;
        }
    return kInvalidType;
}

int add_plan() {
    static int newest = 0;
    std::lock_guard<std::mutex> guard(plans_mutex);
    plans()[++newest] = std::make_unique<Plan>();
    return newest;
}

Status create(int* handle) {
    if (!handle) return kInvalidValue;
    if (library::begin()) return kSetupFailed;
    *handle = add_plan();
    return kSuccess;
}

Status destroy(int handle) {
    std::unique_ptr<Plan> plan;
    {
        std::lock_guard<std::mutex> guard(plans_mutex);
        auto found = plans().find(handle);
        if (found == plans().end()) return kInvalidPlan;
        plan = std::move(found->second);
        plans().erase(found);
    }
    if (plan->own) cuMemFree_v2(plan->own);
    return kSuccess;
}

template <class Int>
Status make(int handle, int type, int rank, const Int* sizes, const Given<Int>& in, const Given<Int>& out, i64 batch,
            std::size_t* work) {
    Plan* plan = find_plan(handle);
    if (!plan || plan->is_made) return kInvalidPlan;
    Shape shape;
    if (Status refused = shape_of(&shape, type, rank, sizes, in, out, batch, &plan->work)) return refused;
    plan->shape = shape;
    if (plan->allocates && plan->work && cuMemAlloc_v2(&plan->own, plan->work)) return kAllocationFailed;
    plan->is_made = true;
    if (work) *work = plan->work;
    return kSuccess;
}

// A plan, and what it is made with, in one call.
template <class Make>
Status plan_made(int* handle, Make&& make) {
    if (Status refused = create(handle)) return refused;
    Status refused = make(*handle);
    if (refused) destroy(*handle);
    return refused;
}

// Of a transform by the types of its two sides, as cudaDataType numbers them; -1: there is none.
int type_of(int in, int out) {
    static constexpr int types[][3] = {{kComplexFloat, kComplexFloat, 0x29}, {kFloat, kComplexFloat, 0x2a},
                                       {kComplexFloat, kFloat, 0x2c},        {kComplexDouble, kComplexDouble, 0x69},
                                       {kDouble, kComplexDouble, 0x6a},      {kComplexDouble, kDouble, 0x6c}};
    for (auto& known : types)
        if (known[0] == in && known[1] == out) return known[2];
    if (!is_type(in)) xsim_not_simulated("cufftXtMakePlanMany of 16-bit numbers");
    return -1;
}

template <class Change>
Status change(int handle, Change&& change) {
    Plan* plan = find_plan(handle);
    return plan ? Status(change(*plan)) : kInvalidPlan;
}

constexpr Given<int> kBasic{nullptr, 1, 0};

}  // namespace

Plan* find_plan(int handle) {
    std::lock_guard<std::mutex> guard(plans_mutex);
    auto found = plans().find(handle);
    return found == plans().end() ? nullptr : found->second.get();
}

// Rows of real numbers have room for the complex ones, if they share their memory.
void Shape::lay_out(bool in_place) {
    if (!is_basic) return;
    in.embed = numbers_in();
    out.embed = numbers_out();
    if (in_place && kind == kToComplex) in.embed[2] = 2 * out.embed[2];
    if (in_place && kind == kToReal) out.embed[2] = 2 * in.embed[2];
    in.distance = product(in.embed);
    out.distance = product(out.embed);
}

}  // namespace cufft

using namespace cufft;

CUFFT Status cufftCreate(int* handle) { return create(handle); }
CUFFT Status cufftDestroy(int handle) { return destroy(handle); }
CUFFT Status cufftGetVersion(int* version) {
    if (!version) return kInvalidValue;
    *version = kVersion;
    return kSuccess;
}
CUFFT Status cufftGetProperty(int part, int* value) {  // major, minor, patch
    if (part < 0 || part > 2 || !value) return kInvalidValue;
    *value = part == 0 ? kVersion / 1000 : part == 1 ? kVersion / 100 % 10 : kVersion % 100;
    return kSuccess;
}

CUFFT Status cufftSetStream(int handle, CUstream stream) {
    return change(handle, [&](Plan& plan) { return plan.stream = stream, kSuccess; });
}
CUFFT Status cufftSetAutoAllocation(int handle, int allocates) {
    return change(handle, [&](Plan& plan) { return plan.allocates = allocates, kSuccess; });
}
CUFFT Status cufftSetWorkArea(int handle, void* area) {
    return change(handle, [&](Plan& plan) {
        if (plan.own) cuMemFree_v2(std::exchange(plan.own, 0));
        return plan.area = area, kSuccess;
    });
}
CUFFT Status cufftSetPlanPropertyInt64(int handle, int property, i64 value) {
    return change(handle, [&](Plan& plan) {
        if (!plan.is_made) plan.properties[property] = value;
        return plan.is_made ? kInvalidPlan : kSuccess;
    });
}
CUFFT Status cufftGetPlanPropertyInt64(int handle, int property, i64* value) {
    return change(handle, [&](Plan& plan) {
        if (value) *value = plan.properties[property];
        return value ? kSuccess : kInvalidValue;
    });
}
CUFFT Status cufftResetPlanProperty(int handle, int property) {
    return change(handle, [&](Plan& plan) { return plan.properties.erase(property), kSuccess; });
}
CUFFT Status cufftGetSize(int handle, std::size_t* work) {
    return change(handle, [&](Plan& plan) {
        if (work) *work = plan.work;
        return !plan.is_made ? kInvalidPlan : work ? kSuccess : kInvalidValue;
    });
}

// The functions of one form: GIVEN is made of PARAMETERS, and is what make() takes behind the type.
#define FORM(form, PARAMETERS, GIVEN) \
    CUFFT Status cufftMakePlan##form(int handle, EXPAND PARAMETERS, std::size_t* work) { \
        return make(handle, type, EXPAND GIVEN, work); \
    } \
    CUFFT Status cufftGetSize##form(int handle, EXPAND PARAMETERS, std::size_t* work) { \
        Shape shape; \
        return find_plan(handle) ? shape_of(&shape, type, EXPAND GIVEN, work) : kInvalidPlan; \
    }
#define SHORT_FORM(form, PARAMETERS, GIVEN) \
    FORM(form, PARAMETERS, GIVEN) \
    CUFFT Status cufftEstimate##form(EXPAND PARAMETERS, std::size_t* work) { \
        Shape shape; \
        return shape_of(&shape, type, EXPAND GIVEN, work); \
    } \
    CUFFT Status cufftPlan##form(int* handle, EXPAND PARAMETERS) { \
        return plan_made(handle, [&](int made) { return make(made, type, EXPAND GIVEN, nullptr); }); \
    }
#define EXPAND(...) __VA_ARGS__
#define MANY(Int) \
    (int rank, const Int* sizes, const Int* inembed, Int istride, Int idist, const Int* onembed, Int ostride, \
     Int odist, int type, Int batch)
#define GIVEN_MANY(Int) rank, sizes, Given<Int>{inembed, istride, idist}, Given<Int>{onembed, ostride, odist}, batch

SHORT_FORM(1d, (int nx, int type, int batch), (1, &nx, kBasic, kBasic, batch))
SHORT_FORM(2d, (int nx, int ny, int type), (2, std::array<int, 2>{nx, ny}.data(), kBasic, kBasic, 1))
SHORT_FORM(3d, (int nx, int ny, int nz, int type), (3, std::array<int, 3>{nx, ny, nz}.data(), kBasic, kBasic, 1))
SHORT_FORM(Many, MANY(int), (GIVEN_MANY(int)))
FORM(Many64, MANY(i64), (GIVEN_MANY(i64)))

#define XT_MANY \
    int rank, const i64 *sizes, const i64 *inembed, i64 istride, i64 idist, int in, const i64 *onembed, i64 ostride, \
        i64 odist, int out, i64 batch, std::size_t *work, int
CUFFT Status cufftXtMakePlanMany(int handle, XT_MANY) { return make(handle, type_of(in, out), GIVEN_MANY(i64), work); }
CUFFT Status cufftXtGetSizeMany(int handle, XT_MANY) {
    Shape shape;
    return find_plan(handle) ? shape_of(&shape, type_of(in, out), GIVEN_MANY(i64), work) : kInvalidPlan;
}

// A function that loads (the first four types) or stores the numbers, for a plan that is still to be made.
CUFFT Status cufftXtSetJITCallback(int handle, const char*, const void* image, std::size_t bytes, int type, void**) {
    Plan* plan = find_plan(handle);
    if (!plan || plan->is_made) return kInvalidPlan;
    if (!image || !bytes || type < 0 || type > 7) return kInvalidValue;
    (type < 4 ? plan->loads : plan->stores) = true;
    return kSuccess;
}
CUFFT Status __cufftXtSetJITCallback_12_7(int handle, const char* name, const void* image, std::size_t bytes, int type,
                                          void** info) {
    return cufftXtSetJITCallback(handle, name, image, bytes, type, info);
}
