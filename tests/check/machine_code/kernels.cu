// Kernels that show what is followed through machine code. tests/helpers/machine_listings.py has them compiled.
// What is expected of each is in tests/check/test_machine_code.py.
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void

KERNEL a_load_and_a_store(float* p, const float* q) { p[threadIdx.x] = q[threadIdx.x]; }
KERNEL both(float* p, int i) { p[i] = p[i + 1]; }
KERNEL vectors(float4* p, const float4* q) { p[threadIdx.x] = q[threadIdx.x]; }

struct Fields {
    float* a;
    float* unused;
    const float* b;
    int n;
};
KERNEL unused_fields(Fields f) {
    if (threadIdx.x < f.n) f.a[threadIdx.x] = f.b[threadIdx.x];
}

struct Outer {
    int n;
    struct Inner {
        int n;
        float* p[3];
    } inner[2];
};
KERNEL nested(Outer o) { o.inner[1].p[2][threadIdx.x] = *o.inner[0].p[1]; }

struct Array {
    float* p[4];
    int sizes[4];
    float* last;
};
KERNEL by_an_index(float* before, Array s, int i) { s.p[i][threadIdx.x] = *before; }
KERNEL by_an_index_in_front(u64 before, const __grid_constant__ Array s, int i) { s.p[i - 1][threadIdx.x] = before; }
KERNEL sizes_by_an_index(const __grid_constant__ Array s, int i) { s.last[i * s.sizes[i & 3]] = 1; }

__device__ __noinline__ float through(const Array& s, int i) { return s.p[i][i] + *s.last; }
KERNEL by_address(const __grid_constant__ Array s, float* out, int i) { *out = through(s, i); }
KERNEL by_address_of_a_copy(Array s, float* out, int i) { *out = through(s, i); }

struct __attribute__((packed)) Packed {
    char c;
    float* p;
};
KERNEL packed(Packed s, float* q) { *s.p = *q; }

KERNEL chosen(float* p, float* q, int c, int i) { (c > 3 ? p : q)[i] = 1; }
KERNEL chosen_to_read(float* p, float* q, float* out, int c, int i) { *out = (c > 3 ? p : q)[i]; }
KERNEL bytes_with_an_offset(char* p, long n) { p[n] = 1; }
KERNEL bytes_with_an_offset_of_32_bits(char* p, int n, int i) { p[n + i] = 1; }
KERNEL until_the_end(float* p, float* end) {
    for (; p < end; p += 8) *p = 1;
}
KERNEL a_distance(float* p, float* end, float* q) { q[end - p] = 1; }
KERNEL aligned(char* p, int* q) {
    u64 rest = (u64)p & 15;
    *(int*)(p - rest) = 3;
    q[rest] = 1;
}
KERNEL a_loop(const float* p, float* q, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += p[i];
    q[threadIdx.x] = sum;
}
KERNEL under_conditions(const float* p, const float* q, float* r, int n) {
    int i = threadIdx.x;
    float x = 0, y = 0;
    if (i < n) x = p[i];
    if (i >= n) y = q[i];
    if (x > y) r[i] = x * y;
}

KERNEL atomics(int* p, u64* q, int* r, double* s) {
    atomicAdd(p + threadIdx.x, 1);
    q[1] = atomicCAS(q, 1ull, 2ull);
    r[atomicExch(r, 5)] = 1;
    atomicAdd(s, 1.0);
}
KERNEL stored(float** out, float* p) { out[threadIdx.x] = p; }
KERNEL exchanged(u64* q, float* p) { *(float*)atomicExch(q, (u64)p) = 1; }
KERNEL on_the_chip(float* p, const float* q, int i) {
    __shared__ float* s[32];
    s[threadIdx.x] = p + threadIdx.x;
    __syncthreads();
    *s[i] = *q;
}
KERNEL from_another_lane(u64 p, u64 q) {
    u64 mine = threadIdx.x & 1 ? p : q;
    *(float*)__shfl_xor_sync(~0u, mine, 1) = 1;
}

__device__ __noinline__ float sum(const float* p, int n) {
    float all = 0;
    for (int i = 0; i < n; i++) all += p[i];
    return all;
}
KERNEL called(const float* p, const float* q, float* r, float* unused, int n) { *r = sum(p, n) + sum(q + n, n); }

typedef float (*Function)(float*, Array);
KERNEL handed_over(Function f, float* p, float* q, Array s) { *q = f(p, s); }

KERNEL a_table_of_jumps(int k, float* a, float* b, float* c, float* d, float* e, float* f, int i) {
    switch (k) {
        case 0: a[i] = 1; break;
        case 1: b[i] = a[i] * 2;
        case 2: c[i] = d[i]; break;
        case 3: d[i] = e[i] + a[i];
        case 4: e[i] = 7; break;
        case 5: a[i] = d[i] * c[i]; break;
        default: return;
    }
    f[k] = 2;
}

// Twenty pointers that are needed before and after a place where most registers are used: the compiler stores some.
#define TWENTY(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) \
    F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19)
struct Twenty {
    float* p[20];
};
KERNEL __launch_bounds__(1024, 2) spilled(Twenty s, float* never, int n) {
#define TAKE(i) float* p##i = s.p[i] + threadIdx.x; asm volatile("" : "+l"(p##i));
    TWENTY(TAKE)
    for (int k = 0; k < n; k++) {
#define ADD(i) *p##i += k; p##i += n; asm volatile("" : "+l"(p##i));
        TWENTY(ADD)
    }
}

#if __CUDA_ARCH__ >= 800
KERNEL copied(float4* p, const float4* q) {
    __shared__ float4 s[32];
    unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16; cp.async.wait_all;" ::"r"(to), "l"(q) : "memory");
    *p = s[threadIdx.x];
}
#endif

#if __CUDA_ARCH__ >= 900
struct alignas(64) Map {
    u64 opaque[16];
};
KERNEL copied_in_bulk(float* p, const float* q, float* r, unsigned n) {
    extern __shared__ __align__(128) float s[];
    __shared__ u64 barrier;
    unsigned at = (unsigned)__cvta_generic_to_shared(s), b = (unsigned)__cvta_generic_to_shared(&barrier);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at),
                 "l"(q), "r"(n), "r"(b) : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(p), "r"(at), "r"(n) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(r), "r"(at), "r"(n)
                 : "memory");
}
KERNEL maps_of_tensors(float* p, const __grid_constant__ Map a, const __grid_constant__ Map b, const Map* c, Map d) {
    extern __shared__ __align__(128) float s[];
    unsigned at = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %1}], [%2];" ::"l"(&b), "r"(0),
                 "r"(at) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %1}], [%2];" ::"l"(c), "r"(0),
                 "r"(at) : "memory");
    *p = 1;
}
#endif
