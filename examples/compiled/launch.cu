// A kernel that does not wait for the fill of its memory: with the argument `right` it does.
#include <cstdio>
#include <cstring>

#define CHECK(call)                                                      \
    if (cudaError_t error = (call)) {                                    \
        std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
        return 3;                                                        \
    }

__global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}

int main(int count, char** words) {
    bool right = count > 1 && !std::strcmp(words[1], "right");
    constexpr int kNumbers = 1 << 20;
    float* x;
    cudaStream_t fills, scales;
    cudaEvent_t filled;
    CHECK(cudaMalloc(&x, kNumbers * sizeof(float)));
    CHECK(cudaStreamCreateWithFlags(&fills, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&scales, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));

    CHECK(cudaMemsetAsync(x, 0, kNumbers * sizeof(float), fills));  // first
    CHECK(cudaEventRecord(filled, fills));
    if (right) CHECK(cudaStreamWaitEvent(scales, filled, 0));
    scale<<<kNumbers / 256, 256, 0, scales>>>(x, kNumbers);  // then
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}
