// The types of the elements of arrays, as cudaDataType numbers them, for the libraries that are simulated.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>

namespace element_types {

enum Type : int {
    kFloat = 0,
    kDouble = 1,
    kHalf = 2,
    kInt8 = 3,
    kComplexFloat = 4,
    kComplexDouble = 5,
    kInt32 = 10,
    kBrain = 14,
};
inline bool is_complex(int type) { return type == kComplexFloat || type == kComplexDouble; }
inline std::uint64_t size_of(int type) {  // 0: there is none
    switch (type) {
        case kInt8: return 1;
        case kHalf:
        case kBrain: return 2;
        case kFloat:
        case kInt32: return 4;
        case kDouble:
        case kComplexFloat: return 8;
        case kComplexDouble: return 16;
        default: return 0;
    }
}

// The four of linear algebra: float or double, real or complex.
inline bool is_type(int type) { return type == kFloat || type == kDouble || is_complex(type); }
inline bool is_double(int type) { return type & 1; }
inline Type real_of(int type) { return Type(type & 1); }

template <class T>
std::complex<double> load_parts(const unsigned char* at, bool is_complex) {
    T parts[2] = {};
    memcpy(parts, at, is_complex ? sizeof parts : sizeof(T));
    return {double(parts[0]), double(parts[1])};
}
template <class T>
void store_parts(unsigned char* at, bool is_complex, const std::complex<double>& number) {
    T parts[2] = {T(number.real()), T(number.imag())};
    memcpy(at, parts, is_complex ? sizeof parts : sizeof(T));
}
// Of these four.
inline std::complex<double> load_number(const unsigned char* at, int type) {
    return (is_double(type) ? load_parts<double> : load_parts<float>)(at, is_complex(type));
}
inline void store_number(unsigned char* at, int type, const std::complex<double>& number) {
    (is_double(type) ? store_parts<double> : store_parts<float>)(at, is_complex(type), number);
}

}  // namespace element_types
