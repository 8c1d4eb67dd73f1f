// Transforms, on the streams of their plans.
#include "fft.hpp"

#include <algorithm>

namespace cufft {

namespace {

constexpr double kAffordable = 1e9;  // multiplications of all calls: a CPU takes seconds for them
constexpr std::size_t kMostExtents = 4096;

// So many equal parts, `step` bytes apart.
struct Level {
    u64 count, step;
};

// The memory of all transforms of one side, without the gaps between the numbers. False: some of it was left out.
bool add_extents(std::vector<library::Extent>& extents, const void* first, const Layout& layout, const Sizes& sizes,
                 i64 batch, i64 bytes, char use) {
    u64 step = u64(bytes * layout.stride), width = u64(bytes);
    std::vector<Level> levels, left;
    for (std::size_t i = 3; i-- > 0; step *= u64(layout.embed[i])) levels.push_back({u64(sizes[i]), step});
    levels.push_back({u64(batch), u64(layout.distance * bytes)});
    std::sort(levels.begin(), levels.end(), [](const Level& a, const Level& b) { return a.step < b.step; });
    for (const Level& level : levels) {
        if (level.count == 1 || !level.step) continue;
        if (left.empty() && level.step == width)
            width *= level.count;
        else if (!left.empty() && level.step == left.back().step * left.back().count)
            left.back().count *= level.count;
        else
            left.push_back(level);
    }
    if (left.empty()) left.push_back({1, width});
    u64 places = 1;
    for (std::size_t i = 1; i < left.size(); i++) places *= left[i].count;
    for (u64 place = 0; place < std::min<u64>(places, kMostExtents); place++) {
        u64 address = reinterpret_cast<u64>(first), rest = place;
        for (std::size_t i = 1; i < left.size(); rest /= left[i++].count)
            address += rest % left[i].count * left[i].step;
        extents.push_back({address, width, left[0].count, left[0].step, use});
    }
    return places <= kMostExtents;
}

// Returns the number of the extent where the output begins.
std::size_t add_sides(library::Call& call, const Shape& shape, const void* in, const void* out) {
    bool is_same = in == out && shape.kind == kComplex && shape.in == shape.out;
    // A transform to real numbers may change its input.
    char of_input = is_same || shape.kind == kToReal ? 'b' : 'r';
    bool is_whole =
        add_extents(call.extents, in, shape.in, shape.numbers_in(), shape.batch, shape.bytes_in(), of_input);
    std::size_t of_output = is_same ? 0 : call.extents.size();
    if (!is_same)
        is_whole &= add_extents(call.extents, out, shape.out, shape.numbers_out(), shape.batch, shape.bytes_out(), 'w');
    call.touches_more = !is_whole;
    return of_output;
}

// Where a function of the program's loads or stores the numbers, that side is not known, and nothing is computed.
void add_known_side(library::Call& call, const Plan& plan, const Shape& shape, const void* in, const void* out) {
    if (!plan.loads) add_extents(call.extents, in, shape.in, shape.numbers_in(), shape.batch, shape.bytes_in(), 'r');
    if (!plan.stores)
        add_extents(call.extents, out, shape.out, shape.numbers_out(), shape.batch, shape.bytes_out(), 'w');
    call.touches_more = true;
}

Status execute(const char* name, Plan& plan, const void* in, void* out, int direction) {
    if (!in || !out || (direction != kForward && direction != kInverse)) return kInvalidValue;
    const void* area = plan.own ? reinterpret_cast<const void*>(plan.own) : plan.area;
    if (plan.work && !area) return kNoWorkspace;
    Shape shape = plan.shape;
    shape.lay_out(in == out);
    library::Call call{name, plan.stream, {}, {}, false};
    const bool has_functions = plan.loads || plan.stores;
    std::size_t of_output = 0;
    if (has_functions)
        add_known_side(call, plan, shape, in, out);
    else
        of_output = add_sides(call, shape, in, out);
    if (plan.work) call.extents.push_back(library::extent_of(area, plan.work, 'w'));
    if (!has_functions && library::can_afford(cost_of(shape), kAffordable))
        call.run = [shape, direction, of_output](const library::Views& views) {
            transform(shape, direction, views[0], views[of_output]);
        };
    return xsim_library_call(&call) ? kExecutionFailed : kSuccess;
}

Status execute(const char* name, int handle, Kind kind, bool is_double, const void* in, void* out, int direction) {
    Plan* plan = find_plan(handle);
    if (!plan || !plan->is_made) return kInvalidPlan;
    if (plan->shape.kind != kind || plan->shape.is_double != is_double) return kInvalidType;
    return execute(name, *plan, in, out, direction);
}

}  // namespace

}  // namespace cufft

using namespace cufft;

CUFFT Status cufftExecC2C(int plan, void* in, void* out, int direction) {
    return execute(__func__, plan, kComplex, false, in, out, direction);
}
CUFFT Status cufftExecZ2Z(int plan, void* in, void* out, int direction) {
    return execute(__func__, plan, kComplex, true, in, out, direction);
}
CUFFT Status cufftExecR2C(int plan, void* in, void* out) {
    return execute(__func__, plan, kToComplex, false, in, out, kForward);
}
CUFFT Status cufftExecD2Z(int plan, void* in, void* out) {
    return execute(__func__, plan, kToComplex, true, in, out, kForward);
}
CUFFT Status cufftExecC2R(int plan, void* in, void* out) {
    return execute(__func__, plan, kToReal, false, in, out, kInverse);
}
CUFFT Status cufftExecZ2D(int plan, void* in, void* out) {
    return execute(__func__, plan, kToReal, true, in, out, kInverse);
}
CUFFT Status cufftXtExec(int handle, void* in, void* out, int direction) {
    Plan* plan = find_plan(handle);
    if (!plan || !plan->is_made) return kInvalidPlan;
    return execute(__func__, *plan, in, out, plan->shape.kind == kComplex ? direction : int(kForward));
}
