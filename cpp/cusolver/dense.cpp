// What the functions compute.
#include "solver.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cusolver {

namespace {

constexpr int kMostSweeps = 40;
constexpr double kSmall = 1e-15;

// The columns of `b` from this one on become (I - factor v v^H) b, with v in column k of `a`, below a one.
void reflect(Matrix& b, const Matrix& a, i64 k, Complex factor, i64 from) {
    for (i64 j = from; j < b.columns; j++) {
        Complex sum = b(k, j);
        for (i64 i = k + 1; i < b.rows; i++) sum += std::conj(a(i, k)) * b(i, j);
        sum *= factor;
        b(k, j) -= sum;
        for (i64 i = k + 1; i < b.rows; i++) b(i, j) -= sum * a(i, k);
    }
}

// Columns p and q of `a` are turned by a rotation: (x, y) becomes (c x - s' y, s x + c y).
void rotate(Matrix& a, i64 p, i64 q, double c, Complex s) {
    for (i64 i = 0; i < a.rows; i++) {
        Complex x = a(i, p), y = a(i, q);
        a(i, p) = c * x - std::conj(s) * y;
        a(i, q) = s * x + c * y;
    }
}

void rotate_rows(Matrix& a, i64 p, i64 q, double c, Complex s) {
    for (i64 j = 0; j < a.columns; j++) {
        Complex x = a(p, j), y = a(q, j);
        a(p, j) = c * x - s * y;
        a(q, j) = std::conj(s) * x + c * y;
    }
}

// The rotation of columns after which the Hermitian matrix (alpha, gamma; gamma', beta) is diagonal. False: it is already.
bool find_rotation(double alpha, double beta, Complex gamma, double* c, Complex* s) {
    double size = std::abs(gamma);
    if (!(size > kSmall * std::sqrt(std::fabs(alpha * beta))) || size < 1e-300) return false;
    double zeta = (beta - alpha) / (2 * size);
    double t = (zeta < 0 ? -1 : 1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
    *c = 1 / std::sqrt(1 + t * t);
    *s = *c * t * gamma / size;
    return true;
}

Complex product(const Matrix& a, i64 p, const Matrix& b, i64 q) {
    Complex sum = 0;
    for (i64 i = 0; i < a.rows; i++) sum += std::conj(a(i, p)) * b(i, q);
    return sum;
}

// Of the columns from `from` on, each of length 1 and orthogonal to those before it.
void complete(Matrix& u, i64 from) {
    for (i64 j = from, unit = 0; j < u.columns && unit < u.rows; unit++) {
        for (i64 i = 0; i < u.rows; i++) u(i, j) = i == unit;
        for (int twice = 0; twice < 2; twice++)
            for (i64 k = 0; k < j; k++) {
                Complex part = product(u, k, u, j);
                for (i64 i = 0; i < u.rows; i++) u(i, j) -= part * u(i, k);
            }
        double length = std::sqrt(product(u, j, u, j).real());
        if (!(length > 1e-3 / double(u.rows))) continue;
        for (i64 i = 0; i < u.rows; i++) u(i, j) /= length;
        j++;
    }
}

// Solves T x = b for each column of b: `t(row, column)` is the triangle.
template <class T>
void solve(Matrix& b, bool is_lower, bool is_unit, T&& t) {
    i64 n = b.rows;
    for (i64 j = 0; j < b.columns; j++)
        for (i64 k = 0; k < n; k++) {
            i64 i = is_lower ? k : n - 1 - k;
            for (i64 l = is_lower ? 0 : i + 1; l < (is_lower ? i : n); l++) b(i, j) -= t(i, l) * b(l, j);
            if (!is_unit) b(i, j) /= t(i, i);
        }
}

void swap_rows(Matrix& a, i64 p, i64 q) {
    if (p != q && q < a.rows)
        for (i64 j = 0; j < a.columns; j++) std::swap(a(p, j), a(q, j));
}

}  // namespace

Matrix identity(i64 rows, i64 columns) {
    Matrix made(rows, columns);
    for (i64 i = 0; i < std::min(rows, columns); i++) made(i, i) = 1;
    return made;
}

Matrix hermitian(const Matrix& a, int triangle) {
    Matrix made = a;
    for (i64 j = 0; j < a.columns; j++) {
        for (i64 i = 0; i < a.rows; i++)
            if (i != j && (i < j) == (triangle == kLower)) made(i, j) = std::conj(a(j, i));
        made(j, j) = a(j, j).real();
    }
    return made;
}

void getrf(Matrix& a, std::vector<int>& pivots) {
    for (i64 k = 0; k < std::min(a.rows, a.columns); k++) {
        i64 pivot = k;
        for (i64 i = k; i < a.rows; i++)
            if (std::abs(a(i, k)) > std::abs(a(pivot, k))) pivot = i;
        pivots.push_back(int(pivot + 1));
        swap_rows(a, k, pivot);
        if (a(k, k) == 0.0) continue;
        for (i64 i = k + 1; i < a.rows; i++) a(i, k) /= a(k, k);
        for (i64 j = k + 1; j < a.columns; j++)
            for (i64 i = k + 1; i < a.rows; i++) a(i, j) -= a(i, k) * a(k, j);
    }
}

void getrs(const Matrix& a, const std::vector<int>& pivots, int operation, Matrix& b) {
    i64 n = a.rows;
    auto swap_all = [&](bool back) {
        for (i64 k = 0; k < n; k++) {
            i64 at = back ? n - 1 - k : k, other = pivots[std::size_t(at)] - 1;
            if (other >= 0) swap_rows(b, at, other);
        }
    };
    auto as_it_is = [&](i64 i, i64 j) { return a(i, j); };
    auto turned = [&](i64 i, i64 j) { return operation == 2 ? std::conj(a(j, i)) : a(j, i); };
    if (operation == 0) {
        swap_all(false);
        solve(b, true, true, as_it_is);
        solve(b, false, false, as_it_is);
    } else {
        solve(b, true, false, turned);
        solve(b, false, true, turned);
        swap_all(true);
    }
}

void potrf(Matrix& a, int triangle) {
    auto at = [&](i64 i, i64 j) { return triangle == kLower ? a(i, j) : std::conj(a(j, i)); };
    for (i64 j = 0; j < a.columns; j++)
        for (i64 i = j; i < a.rows; i++) {
            Complex sum = i == j ? Complex(at(i, i).real()) : at(i, j);
            for (i64 k = 0; k < j; k++) sum -= at(i, k) * std::conj(at(j, k));
            if (i == j)
                a(i, i) = std::sqrt(std::max(sum.real(), 0.0));
            else
                (triangle == kLower ? a(i, j) : a(j, i)) =
                    triangle == kLower ? sum / a(j, j) : std::conj(sum / a(j, j));
        }
}

void potrs(const Matrix& a, int triangle, Matrix& b) {
    auto lower = [&](i64 i, i64 j) { return triangle == kLower ? a(i, j) : std::conj(a(j, i)); };
    solve(b, true, false, lower);
    solve(b, false, false, [&](i64 i, i64 j) { return std::conj(lower(j, i)); });
}

void geqrf(Matrix& a, std::vector<Complex>& factors) {
    for (i64 k = 0; k < std::min(a.rows, a.columns); k++) {
        double below = 0;
        for (i64 i = k + 1; i < a.rows; i++) below += std::norm(a(i, k));
        Complex alpha = a(k, k);
        if (below == 0 && alpha.imag() == 0) {
            factors.push_back(0);
            continue;
        }
        double beta = -std::copysign(std::sqrt(below + std::norm(alpha)), alpha.real());
        for (i64 i = k + 1; i < a.rows; i++) a(i, k) /= alpha - beta;
        factors.push_back((beta - alpha) / beta);
        reflect(a, a, k, std::conj(factors.back()), k + 1);
        a(k, k) = beta;
    }
}

void ungqr(Matrix& a, const std::vector<Complex>& factors) {
    Matrix made = identity(a.rows, a.columns);
    for (i64 k = i64(factors.size()) - 1; k >= 0; k--) reflect(made, a, k, factors[std::size_t(k)], 0);
    a = made;
}

void unmqr(const Matrix& a, const std::vector<Complex>& factors, bool adjoint, Matrix& c) {
    i64 count = i64(factors.size());
    for (i64 i = 0; i < count; i++) {
        i64 k = adjoint ? i : count - 1 - i;
        Complex factor = factors[std::size_t(k)];
        reflect(c, a, k, adjoint ? std::conj(factor) : factor, 0);
    }
}

Matrix adjoint(const Matrix& a) {
    Matrix made(a.columns, a.rows);
    for (i64 j = 0; j < a.columns; j++)
        for (i64 i = 0; i < a.rows; i++) made(j, i) = std::conj(a(i, j));
    return made;
}

void heevd(Matrix& a, std::vector<double>& values) {
    i64 n = a.rows;
    Matrix vectors = identity(n, n);
    for (int sweep = 0, turned = 1; turned && sweep < kMostSweeps; sweep++) {
        turned = 0;
        for (i64 p = 0; p < n; p++)
            for (i64 q = p + 1; q < n; q++) {
                double c, scale = std::abs(a(p, p)) + std::abs(a(q, q));
                Complex s;
                if (std::abs(a(p, q)) <= kSmall * scale) continue;
                if (!find_rotation(a(p, p).real(), a(q, q).real(), a(p, q), &c, &s)) continue;
                turned = 1;
                rotate(a, p, q, c, s);
                rotate_rows(a, p, q, c, s);
                rotate(vectors, p, q, c, s);
            }
    }
    std::vector<i64> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](i64 p, i64 q) { return a(p, p).real() < a(q, q).real(); });
    Matrix diagonal = a;
    for (i64 j = 0; j < n; j++) {
        i64 from = order[std::size_t(j)];
        values.push_back(diagonal(from, from).real());
        for (i64 i = 0; i < n; i++) a(i, j) = vectors(i, from);
    }
}

void gesvd(const Matrix& given, Matrix& u, std::vector<double>& values, Matrix& vt) {
    Matrix a = given, v = identity(a.columns, a.columns);
    i64 n = a.columns;
    for (int sweep = 0, turned = 1; turned && sweep < kMostSweeps; sweep++) {
        turned = 0;
        for (i64 p = 0; p < n; p++)
            for (i64 q = p + 1; q < n; q++) {
                double c, alpha = product(a, p, a, p).real(), beta = product(a, q, a, q).real();
                Complex s;
                if (!find_rotation(alpha, beta, product(a, p, a, q), &c, &s)) continue;
                turned = 1;
                rotate(a, p, q, c, s);
                rotate(v, p, q, c, s);
            }
    }
    std::vector<double> lengths;
    std::vector<i64> order;
    for (i64 j = 0; j < n; j++) {
        lengths.push_back(std::sqrt(product(a, j, a, j).real()));
        order.push_back(j);
    }
    auto length = [&](i64 j) { return lengths[std::size_t(j)]; };
    std::stable_sort(order.begin(), order.end(), [&](i64 p, i64 q) { return length(p) > length(q); });
    i64 rank = 0;
    for (i64 j = 0; j < n; j++) {
        i64 from = order[std::size_t(j)];
        values.push_back(length(from));
        for (i64 i = 0; i < n; i++) vt(j, i) = std::conj(v(i, from));
        if (length(from) > kSmall * values[0] && j < u.columns) rank = j + 1;
        for (i64 i = 0; i < a.rows && rank > j; i++) u(i, j) = a(i, from) / length(from);
    }
    complete(u, rank);
}

void svd(const Matrix& a, Matrix& u, std::vector<double>& values, Matrix& v) {
    if (a.rows < a.columns) return svd(adjoint(a), v, values, u);
    Matrix vt(a.columns, a.columns);
    gesvd(a, u, values, vt);
    Matrix found = adjoint(vt);
    for (i64 j = 0; j < v.columns; j++)
        for (i64 i = 0; i < v.rows; i++) v(i, j) = found(i, j);
}

double residual(const Matrix& a, const Matrix& u, const std::vector<double>& values, const Matrix& v) {
    double sum = 0;
    i64 count = std::min({i64(values.size()), u.columns, v.columns});
    for (i64 j = 0; j < a.columns; j++)
        for (i64 i = 0; i < a.rows; i++) {
            Complex left = a(i, j);
            for (i64 k = 0; k < count; k++) left -= u(i, k) * values[std::size_t(k)] * std::conj(v(j, k));
            sum += std::norm(left);
        }
    return std::sqrt(sum);
}

}  // namespace cusolver
