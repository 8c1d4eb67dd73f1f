// A result that the host reads before its copy is done: with the argument `right` the host waits.
#include <cstdio>
#include <cstring>

#define CHECK(call)                                                      \
    if (cudaError_t error = (call)) {                                    \
        std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
        return 3;                                                        \
    }

int main(int count, char** words) {
    bool right = count > 1 && !std::strcmp(words[1], "right");
    constexpr std::size_t kNumbers = 16 << 20;
    float *device, *host, sum = 0;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&device, kNumbers * sizeof(float)));
    CHECK(cudaMallocHost(&host, kNumbers * sizeof(float)));
    CHECK(cudaMemset(device, 0, kNumbers * sizeof(float)));
    CHECK(cudaDeviceSynchronize());

    CHECK(cudaMemcpyAsync(host, device, kNumbers * sizeof(float), cudaMemcpyDeviceToHost, stream));  // first
    if (right) CHECK(cudaStreamSynchronize(stream));
    for (std::size_t i = kNumbers; i-- > 0;) sum += host[i];  // then
    std::printf("%f\n", sum);
    CHECK(cudaStreamSynchronize(stream));
}
