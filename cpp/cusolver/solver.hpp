// The dense part of a cuSOLVER on top of the simulated driver, for programs that are checked without a GPU. Each function
// reads and writes what its documentation says, on the stream of its handle, and computes it in double precision.
//
// Kernels compute nothing here, so that a matrix need not be what the program means it to be: each function says that it
// has succeeded (`info` is 0), also for a matrix that is singular or not positive definite.
//
// The signatures are those of cusolverDn.h, with plain types: no header of cuSOLVER is needed to build this. Matrices are
// stored by columns.
#pragma once

#include "element_types.hpp"
#include "library_call.hpp"

#include <complex>
#include <cstddef>

#define CUSOLVER extern "C" __attribute__((visibility("default")))

namespace cusolver {

using u64 = std::uint64_t;
using i64 = std::int64_t;
using Complex = std::complex<double>;

enum Status : int {
    kSuccess = 0,
    kNotInitialized = 1,
    kAllocationFailed = 2,
    kInvalidValue = 3,
    kExecutionFailed = 6,
    kNotSupported = 9,
};

struct Handle {
    CUstream stream = nullptr;
};

using namespace element_types;

enum Triangle : int { kLower = 0, kUpper = 1 };

// A matrix that is computed with.
struct Matrix {
    i64 rows, columns;
    std::vector<Complex> numbers;

    Matrix(i64 m, i64 n) : rows(m), columns(n), numbers(std::size_t(m * n)) {}
    Complex& operator()(i64 row, i64 column) { return numbers[std::size_t(column * rows + row)]; }
    const Complex& operator()(i64 row, i64 column) const { return numbers[std::size_t(column * rows + row)]; }
};
Matrix identity(i64 rows, i64 columns);
// The Hermitian matrix of which one triangle is given.
Matrix hermitian(const Matrix& a, int triangle);

// In their places, as LAPACK's functions of these names do.
void getrf(Matrix& a, std::vector<int>& pivots);
void getrs(const Matrix& a, const std::vector<int>& pivots, int operation, Matrix& b);
void potrf(Matrix& a, int triangle);
void potrs(const Matrix& a, int triangle, Matrix& b);
void geqrf(Matrix& a, std::vector<Complex>& factors);
void ungqr(Matrix& a, const std::vector<Complex>& factors);
// C = Q C, or with the adjoint of Q
void unmqr(const Matrix& a, const std::vector<Complex>& factors, bool adjoint, Matrix& c);
Matrix adjoint(const Matrix& a);
void heevd(Matrix& a, std::vector<double>& values);  // the vectors are left in the matrix
// Of a matrix with at least as many rows as columns. `u` gets as many columns as it has.
void gesvd(const Matrix& a, Matrix& u, std::vector<double>& values, Matrix& vt);
// Of any matrix; `u` and `v` get as many columns as they have.
void svd(const Matrix& a, Matrix& u, std::vector<double>& values, Matrix& v);
// The length of A - U S V'.
double residual(const Matrix& a, const Matrix& u, const std::vector<double>& values, const Matrix& v);

}  // namespace cusolver
