// Arithmetic on single elements: widening of storage types, rounding back, scaling and combining.
//
// All functions are branch-free, so that loops over them vectorize, and free of undefined behaviour: signed integers
// wrap, out-of-range conversions saturate.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "dtype.hpp"

#define FARANDOLE_INLINE inline __attribute__((always_inline))

// Before a loop whose iterations are independent although it may write to one of the arrays that it reads.
#ifdef __clang__
#define FARANDOLE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FARANDOLE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace farandole {

template <class To, class From>
FARANDOLE_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Accumulator type for values of T.
template <class T>
struct Wide {
    using type = T;
};
template <>
struct Wide<Float16> {
    using type = float;
};
template <>
struct Wide<BFloat16> {
    using type = float;
};
template <class T>
using wide_t = typename Wide<T>::type;

template <class T>
FARANDOLE_INLINE T widen(T value) {
    return value;
}
template <class T>
FARANDOLE_INLINE T narrow(T value, Type<T>) {
    return value;
}

FARANDOLE_INLINE float widen(BFloat16 value) { return bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

FARANDOLE_INLINE BFloat16 narrow(float value, Type<BFloat16>) {
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    const std::uint32_t quiet = bits | 0x400000u;  // rounding could turn a NaN into an infinity
    return {static_cast<std::uint16_t>(((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded) >> 16)};
}

// IEEE 754 half precision: exponent and mantissa are moved into place, and one float operation does the normalising.
FARANDOLE_INLINE float widen(Float16 value) {
    const std::uint32_t sign = (value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7FFFu;
    const std::uint32_t shifted = magnitude << 13;
    const auto finite =
        bit_cast<std::uint32_t>(bit_cast<float>(shifted) * bit_cast<float>(0x77800000u));  // times 2^112
    return bit_cast<float>(sign | (magnitude >= 0x7C00u ? shifted | 0x7F800000u : finite));
}

FARANDOLE_INLINE Float16 narrow(float value, Type<Float16>) {
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 makes the float unit itself round at the last bit of a subnormal half.
    const std::uint32_t subnormal = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
    const std::uint32_t special = magnitude > 0x7F800000u ? 0x7E00u | ((magnitude >> 13) & 0x3FFu) : 0x7C00u;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    return {static_cast<std::uint16_t>(sign | (magnitude >= 0x477FF000u ? special : finite))};
}

// double to T, truncating; NaN becomes 0, and values out of range become the nearest value of T.
template <class T>
FARANDOLE_INLINE T saturate(double value) {
    using Limits = std::numeric_limits<T>;
    constexpr double low = static_cast<double>(Limits::min());
    constexpr double past = 2.0 * static_cast<double>(T{1} << (Limits::digits - 1));
    if (!(value > low - 1.0 || value >= low)) return value < low ? Limits::min() : T{0};
    return value >= past ? Limits::max() : static_cast<T>(value);
}

// For integers with a factor or divisor see exact.hpp.
template <class W>
FARANDOLE_INLINE W times(W value, double factor) {
    return value * static_cast<W>(factor);
}
template <class T>
FARANDOLE_INLINE Complex<T> times(Complex<T> value, double factor) {
    return {value.re * static_cast<T>(factor), value.im * static_cast<T>(factor)};
}

template <class W>
FARANDOLE_INLINE W over(W value, std::int64_t divisor) {
    return value / static_cast<W>(divisor);
}
template <class T>
FARANDOLE_INLINE Complex<T> over(Complex<T> value, std::int64_t divisor) {
    return {value.re / static_cast<T>(divisor), value.im / static_cast<T>(divisor)};
}

// Unsigned and at least as wide as int, so that neither promotion nor sign can overflow.
template <class W>
using modular_t = std::conditional_t<sizeof(W) <= 4, std::uint32_t, std::uint64_t>;

struct Sum {
    template <class W>
    static FARANDOLE_INLINE W apply(W a, W b) {
        if constexpr (std::is_integral_v<W>) {
            return static_cast<W>(static_cast<modular_t<W>>(a) + static_cast<modular_t<W>>(b));
        } else {
            return a + b;
        }
    }
    template <class T>
    static FARANDOLE_INLINE Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {a.re + b.re, a.im + b.im};
    }
    static FARANDOLE_INLINE Bool apply(Bool a, Bool b) { return {static_cast<std::uint8_t>((a.value | b.value) != 0)}; }
};

struct Product {
    template <class W>
    static FARANDOLE_INLINE W apply(W a, W b) {
        if constexpr (std::is_integral_v<W>) {
            return static_cast<W>(static_cast<modular_t<W>>(a) * static_cast<modular_t<W>>(b));
        } else {
            return a * b;
        }
    }
    template <class T>
    static FARANDOLE_INLINE Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
    static FARANDOLE_INLINE Bool apply(Bool a, Bool b) {
        return {static_cast<std::uint8_t>((a.value != 0) & (b.value != 0))};
    }
};

// Min and Max keep a NaN of either side, as NumPy and PyTorch do.
struct Min {
    template <class W>
    static FARANDOLE_INLINE W apply(W a, W b) {
        return ((b < a) | (b != b)) ? b : a;
    }
    static FARANDOLE_INLINE Bool apply(Bool a, Bool b) { return Product::apply(a, b); }
};

struct Max {
    template <class W>
    static FARANDOLE_INLINE W apply(W a, W b) {
        return ((b > a) | (b != b)) ? b : a;
    }
    static FARANDOLE_INLINE Bool apply(Bool a, Bool b) { return Sum::apply(a, b); }
};

}  // namespace farandole
