// Discrete Fourier transforms, as they are defined: of lengths with small prime factors by these, of others as a
// convolution (Bluestein).
#include "fft.hpp"

#include <cmath>
#include <cstring>
#include <memory>

namespace cufft {

namespace {

using Numbers = std::vector<Complex>;

constexpr i64 kLargestFactor = 64;
constexpr i64 kLargestDirect = 127, kOneKernel = 4096;  // NVIDIA's: see work_of()

i64 smallest_factor(i64 n) {
    for (i64 p = 2; p * p <= n; p++)
        if (n % p == 0) return p;
    return n;
}
i64 largest_factor(i64 n) {
    i64 largest = 1;
    for (; n > 1; n /= largest) largest = smallest_factor(n);
    return largest;
}
i64 sum_of_factors(i64 n) {
    i64 sum = 0;
    for (i64 p; n > 1; n /= p) sum += p = smallest_factor(n);
    return sum;
}
i64 length_of_convolution(i64 n) {
    i64 length = 1;
    while (length < 2 * n - 1) length *= 2;
    return length;
}

// exp(2 pi i part / whole)
Complex root(double part, double whole) { return std::polar(1.0, 2 * M_PI * part / whole); }

class Line {
  public:
    Line(i64 n, int direction) : n_(n), roots_(std::size_t(n)) {
        for (i64 i = 0; i < n; i++) roots_[std::size_t(i)] = root(double(direction * i), double(n));
        if (largest_factor(n) > kLargestFactor) prepare_convolution(direction);
    }
    void compute(const Complex* from, i64 step, Complex* to) const {
        forward_ ? convolve(from, step, to) : by_factors(from, step, to, n_);
    }

  private:
    void by_factors(const Complex* from, i64 step, Complex* to, i64 count) const {
        if (count == 1) return void(*to = *from);
        i64 p = smallest_factor(count), part = count / p;
        for (i64 i = 0; i < p; i++) by_factors(from + i * step, step * p, to + i * part, part);
        if (p == 2) return by_two(to, part);
        Complex column[kLargestFactor], turns[kLargestFactor];
        for (i64 i = 0; i < p; i++) turns[i] = roots_[std::size_t(i * (n_ / p))];
        for (i64 k = 0; k < part; k++) {
            for (i64 i = 0; i < p; i++) column[i] = to[i * part + k] * roots_[std::size_t(i * k * (n_ / count))];
            for (i64 j = 0; j < p; j++) {
                Complex sum = column[0];
                for (i64 i = 1, turn = j; i < p; i++, turn = (turn + j) % p) sum += column[i] * turns[turn];
                to[j * part + k] = sum;
            }
        }
    }
    void by_two(Complex* to, i64 part) const {
        i64 step = n_ / (2 * part);
        for (i64 k = 0; k < part; k++) {
            Complex even = to[k], odd = to[part + k] * roots_[std::size_t(k * step)];
            to[k] = even + odd;
            to[part + k] = even - odd;
        }
    }
    void prepare_convolution(int direction) {
        i64 length = length_of_convolution(n_);
        forward_ = std::make_unique<Line>(length, int(kForward));
        back_ = std::make_unique<Line>(length, int(kInverse));
        chirp_.resize(std::size_t(n_));
        Numbers other(std::size_t(length), 0);
        for (i64 i = 0; i < n_; i++) {
            Complex one = root(double(direction * (i * i % (2 * n_))), double(2 * n_));
            chirp_[std::size_t(i)] = one;
            other[std::size_t(i)] = other[std::size_t((length - i) % length)] = std::conj(one);
        }
        spectrum_.resize(other.size());
        forward_->compute(other.data(), 1, spectrum_.data());
    }
    void convolve(const Complex* from, i64 step, Complex* to) const {
        Numbers one(spectrum_.size(), 0), other(spectrum_.size());
        for (i64 i = 0; i < n_; i++) one[std::size_t(i)] = from[i * step] * chirp_[std::size_t(i)];
        forward_->compute(one.data(), 1, other.data());
        for (std::size_t i = 0; i < other.size(); i++) other[i] *= spectrum_[i] / double(other.size());
        back_->compute(other.data(), 1, one.data());
        for (i64 i = 0; i < n_; i++) to[i] = one[std::size_t(i)] * chirp_[std::size_t(i)];
    }

    i64 n_;
    Numbers roots_, chirp_, spectrum_;
    std::unique_ptr<Line> forward_, back_;
};

// Of an array without gaps, along one of its dimensions.
void along(Numbers& data, const Sizes& sizes, std::size_t dimension, int direction) {
    i64 n = sizes[dimension], step = 1;
    for (std::size_t i = dimension + 1; i < sizes.size(); i++) step *= sizes[i];
    if (n == 1) return;
    Line line(n, direction);
    Numbers made(std::size_t(n), 0);
    for (i64 block = 0; block < i64(data.size()); block += n * step)
        for (i64 first = block; first < block + step; first++) {
            line.compute(&data[std::size_t(first)], step, made.data());
            for (i64 i = 0; i < n; i++) data[std::size_t(first + i * step)] = made[std::size_t(i)];
        }
}

template <class T>
Complex load(const unsigned char* at, bool is_complex) {
    T parts[2] = {};
    memcpy(parts, at, is_complex ? sizeof parts : sizeof(T));
    return {double(parts[0]), double(parts[1])};
}
template <class T>
void store(unsigned char* at, bool is_complex, const Complex& number) {
    T parts[2] = {T(number.real()), T(number.imag())};
    memcpy(at, parts, is_complex ? sizeof parts : sizeof(T));
}

// Calls visit(place) for the numbers of one transform, in their order.
template <class Visit>
void each(const Layout& layout, const Sizes& sizes, Visit&& visit) {
    for (i64 plane = 0; plane < sizes[0]; plane++)
        for (i64 row = 0; row < sizes[1]; row++)
            for (i64 column = 0; column < sizes[2]; column++) visit(layout.place(plane, row, column));
}

// Each row has the numbers of the first half; the others are their conjugates, in the other order.
Numbers with_other_half(const Numbers& half, i64 kept, i64 n) {
    Numbers all;
    for (std::size_t row = 0; row < half.size(); row += std::size_t(kept))
        for (i64 i = 0; i < n; i++) {
            Complex one = i < kept ? half[row + std::size_t(i)] : std::conj(half[row + std::size_t(n - i)]);
            all.push_back(i == 0 || 2 * i == n ? one.real() : one);
        }
    return all;
}

void compute(const Shape& shape, int direction, Numbers& data) {
    if (shape.kind == kToComplex) direction = kForward;
    if (shape.kind == kToReal) direction = kInverse;
    Sizes sizes = shape.numbers_in();
    for (std::size_t dimension = 0; dimension < 2; dimension++) along(data, sizes, dimension, direction);
    if (shape.kind == kToReal) data = with_other_half(data, sizes[2], shape.sizes[2]);
    along(data, shape.sizes, 2, direction);
}

template <class T>
void transform_all(const Shape& shape, int direction, const unsigned char* in, unsigned char* out) {
    for (i64 i = 0; i < shape.batch; i++) {
        Numbers data;
        data.reserve(std::size_t(product(shape.numbers_in())));
        const unsigned char* from = in + i * shape.in.distance * shape.bytes_in();
        each(shape.in, shape.numbers_in(),
             [&](i64 place) { data.push_back(load<T>(from + place * shape.bytes_in(), shape.kind != kToComplex)); });
        compute(shape, direction, data);
        i64 made = 0, kept = shape.numbers_out()[2], n = shape.sizes[2];
        unsigned char* to = out + i * shape.out.distance * shape.bytes_out();
        each(shape.out, shape.numbers_out(), [&](i64 place) {
            const Complex& number = data[std::size_t(made / kept * n + made % kept)];
            store<T>(to + place * shape.bytes_out(), shape.kind != kToReal, number);
            made++;
        });
    }
}

}  // namespace

// As far as it is documented: lengths without a prime factor above 127 are computed directly, the others with room for
// more. A short one takes one kernel, which needs no room.
std::size_t work_of(const Shape& shape) {
    bool needs_room = false;
    for (i64 n : shape.sizes) needs_room |= n > kOneKernel || largest_factor(n) > kLargestDirect;
    i64 number = shape.is_double ? 16 : 8;
    return needs_room ? std::size_t(product(shape.sizes) * shape.batch * number) : 0;
}

double cost_of(const Shape& shape) {
    double of_a_number = 1;
    for (i64 n : shape.sizes) {
        bool is_convolution = largest_factor(n) > kLargestFactor;
        double length = double(is_convolution ? length_of_convolution(n) : n);
        of_a_number += is_convolution ? 4 * length * std::log2(length) / double(n) : double(sum_of_factors(n));
    }
    return of_a_number * double(product(shape.sizes)) * double(shape.batch);
}

void transform(const Shape& shape, int direction, const unsigned char* in, unsigned char* out) {
    (shape.is_double ? transform_all<double> : transform_all<float>)(shape, direction, in, out);
}

}  // namespace cufft
