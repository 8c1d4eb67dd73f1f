// The driver puts a module's variables where memory was that the host has freed: a copy to them is no use of that memory.
#include <cuda_runtime.h>

#include <cstdio>

__device__ float table[1 << 20];

int main() {
    void *memory, *variable;
    float values[64] = {};
    if (cudaMalloc(&memory, 16 << 20) || cudaFree(memory)) return 3;
    if (cudaGetSymbolAddress(&variable, table) || cudaMemcpyToSymbol(table, values, sizeof values)) return 3;
    puts(variable == memory ? "there" : "elsewhere");
    return 0;
}
