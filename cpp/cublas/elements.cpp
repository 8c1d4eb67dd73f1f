// Elements of arrays, and what calls share: see blas.hpp.
#include "blas.hpp"

#include <cmath>
#include <cstring>

namespace cublas {

namespace {

template <class T>
T bits(const u8* at) {
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}
template <class T>
void put_bits(u8* at, T value) {
    memcpy(at, &value, sizeof value);
}

double of_half(u16 half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                  : std::ldexp(fraction, -24);
    return half >> 15 ? -value : value;
}

// To the nearest; the even one of two.
u16 to_half(double value) {
    u16 sign = std::signbit(value) ? 0x8000 : 0;
    value = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00;
    if (value >= 65520) return sign | 0x7c00;
    if (value < std::ldexp(1, -14)) return u16(sign | u16(std::nearbyint(std::ldexp(value, 24))));
    int exponent = std::ilogb(value);
    return u16(sign + ((exponent + 15) << 10) + u16(std::nearbyint(std::ldexp(value, 10 - exponent))) - 1024);
}

u16 to_brain(double value) {
    u32 word;
    float number = float(value);
    memcpy(&word, &number, sizeof word);
    if (std::isnan(number)) return u16(word >> 16 | 0x40);
    return u16((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

double of_brain(u16 brain) {
    u32 word = u32(brain) << 16;
    float number;
    memcpy(&number, &word, sizeof number);
    return number;
}

}  // namespace

Status status_of(CUresult result) {
    if (!result) return kSuccess;
    return result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT ? kNotInitialized
                                                                                        : kExecutionFailed;
}

Complex load(const u8* at, Type type) {
    switch (type) {
        case kFloat: return bits<float>(at);
        case kDouble: return bits<double>(at);
        case kHalf: return of_half(bits<u16>(at));
        case kBrain: return of_brain(bits<u16>(at));
        case kInt8: return double(bits<signed char>(at));
        case kInt32: return bits<std::int32_t>(at);
        case kComplexFloat: return Complex(bits<std::complex<float>>(at));
        case kComplexDouble: return bits<Complex>(at);
    }
    return 0;
}

void store(u8* at, Type type, const Complex& value) {
    switch (type) {
        case kFloat: return put_bits(at, float(value.real()));
        case kDouble: return put_bits(at, value.real());
        case kHalf: return put_bits(at, to_half(value.real()));
        case kBrain: return put_bits(at, to_brain(value.real()));
        case kInt8: return put_bits(at, u8(i64(value.real())));
        case kInt32: return put_bits(at, u32(i64(value.real())));
        case kComplexFloat: return put_bits(at, std::complex<float>(value));
        case kComplexDouble: return put_bits(at, value);
    }
}

Scalar Call::scalar(const void* pointer, Type type) {
    if (handle_->pointer_mode == kHost) return {type, load(static_cast<const u8*>(pointer), type)};
    add(library::extent_of(pointer, size_of(type), 'r'));
    return {type, 0, int(count() - 1)};
}

}  // namespace cublas
