// Kernels on one or two arrays other than reductions: constants, identities, Adasum's dot products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "arithmetic.hpp"
#include "dtype.hpp"
#include "versions.hpp"

namespace farandole {

template <class T>
T number(double value) {
    using W = wide_t<T>;
    if constexpr (std::is_integral_v<W>) {
        return saturate<W>(value);
    } else if constexpr (std::is_same_v<T, Bool>) {
        return {static_cast<std::uint8_t>(value != 0.0)};
    } else if constexpr (std::is_floating_point_v<W>) {
        return narrow(static_cast<W>(value), Type<T>{});
    } else {
        return {static_cast<decltype(T::re)>(value), 0};
    }
}

// Set every element to `value`; integers saturate.
inline void fill(std::byte* address, std::size_t count, DType dtype, double value) {
    visit(dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        std::fill_n(reinterpret_cast<T*>(address), count, number<T>(value));
    });
}

// Set every element to the identity of `op`: the contribution of a rank without one.
inline void fill_identity(std::byte* address, std::size_t count, DType dtype, Op op) {
    require_served(dtype, op);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const bool boolean = dtype == DType::boolean;
    switch (op) {
        case Op::min: return fill(address, count, dtype, infinity);
        case Op::max: return fill(address, count, dtype, boolean ? 0.0 : -infinity);
        case Op::product: return fill(address, count, dtype, 1.0);
        case Op::average: return fill(address, count, dtype, boolean ? 1.0 : 0.0);
        case Op::sum: return fill(address, count, dtype, 0.0);
        case Op::adasum: break;
    }
    refuse(op);
}

// Sums of products in float64, from which Adasum computes the weights of two gradients.
struct Dots {
    double aa = 0.0, ab = 0.0, bb = 0.0;
};

struct DotsJob {
    const std::byte* a;
    const std::byte* b;
    std::size_t count;
    Dots* result;
};

template <class T>
struct DotsKernel {
    // Independent partial sums: the compiler may not reorder float additions by itself.
    static constexpr std::size_t width = 16;

    static FARANDOLE_INLINE void run(const DotsJob& job) {
        const T* a = reinterpret_cast<const T*>(job.a);
        const T* b = reinterpret_cast<const T*>(job.b);
        double aa[width] = {}, ab[width] = {}, bb[width] = {};
        const std::size_t whole = job.count - job.count % width;
        for (std::size_t i = 0; i < whole; i += width) {
            for (std::size_t k = 0; k < width; ++k) add(widen(a[i + k]), widen(b[i + k]), aa[k], ab[k], bb[k]);
        }
        for (std::size_t i = whole; i < job.count; ++i) add(widen(a[i]), widen(b[i]), aa[0], ab[0], bb[0]);
        for (std::size_t k = 0; k < width; ++k) {
            job.result->aa += aa[k];
            job.result->ab += ab[k];
            job.result->bb += bb[k];
        }
    }

    static FARANDOLE_INLINE void add(double x, double y, double& aa, double& ab, double& bb) {
        aa += x * x;
        ab += x * y;
        bb += y * y;
    }
};

// Call `f(Type<T>{})` for the four real floating-point types, the only ones for which Adasum is defined.
template <class F>
void visit_floating(DType dtype, F&& f) {
    switch (dtype) {
        case DType::float16: return f(Type<Float16>{});
        case DType::bfloat16: return f(Type<BFloat16>{});
        case DType::float32: return f(Type<float>{});
        case DType::float64: return f(Type<double>{});
        default:
            throw Unsupported(std::string("Adasum of ") + label(dtype) +
                              ": it is defined for float16, bfloat16, float32 and float64; use Sum or Average");
    }
}

inline Dots adasum_dots(const std::byte* a, const std::byte* b, std::size_t count, DType dtype) {
    Dots dots;
    visit_floating(dtype,
                   [&](auto type) { fastest<DotsKernel<typename decltype(type)::type>>(DotsJob{a, b, count, &dots}); });
    return dots;
}

struct CombineJob {
    const std::byte* a;
    const std::byte* b;
    std::byte* out;
    std::size_t count;
    double weight_a, weight_b;
};

template <class T>
struct CombineKernel {
    static FARANDOLE_INLINE void run(const CombineJob& job) {
        const T* a = reinterpret_cast<const T*>(job.a);
        const T* b = reinterpret_cast<const T*>(job.b);
        T* out = reinterpret_cast<T*>(job.out);
        for (std::size_t i = 0; i < job.count; ++i) {
            const double value = job.weight_a * widen(a[i]) + job.weight_b * widen(b[i]);
            out[i] = narrow(static_cast<wide_t<T>>(value), Type<T>{});
        }
    }
};

// out = weight_a * a + weight_b * b, computed in float64; `out` may be `a` or `b`.
inline void adasum_combine(const CombineJob& job, DType dtype) {
    visit_floating(dtype, [&](auto type) { portable<CombineKernel<typename decltype(type)::type>>(job); });
}

}  // namespace farandole
