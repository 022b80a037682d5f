// Element types and reductions: their numbers (shared with farandole/collective.py), names, and C++ types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

namespace farandole {

enum class DType : std::uint8_t {
    uint8,
    int8,
    uint16,
    int16,
    int32,
    int64,
    float16,
    bfloat16,
    float32,
    float64,
    boolean,
    complex64,
    complex128
};
constexpr int dtype_count = 13;

enum class Op : std::uint8_t { average, sum, adasum, min, max, product };
constexpr int op_count = 6;

// The call itself is not supported, independent of the other ranks.
struct Unsupported : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Storage types; for arithmetic they are widened (arithmetic.hpp).
struct Float16 {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};
struct Bool {
    std::uint8_t value;
};
template <class T>
struct Complex {
    T re, im;
};

inline const char* label(DType dtype) {
    static constexpr const char* labels[dtype_count] = {"uint8", "int8",      "uint16",    "int16",   "int32",
                                                        "int64", "float16",   "bfloat16",  "float32", "float64",
                                                        "bool",  "complex64", "complex128"};
    return labels[static_cast<int>(dtype)];
}

inline const char* label(Op op) {
    static constexpr const char* labels[] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
    static_assert(std::size(labels) == op_count);
    return labels[static_cast<int>(op)];
}

inline std::size_t itemsize(DType dtype) {
    static constexpr std::uint8_t sizes[dtype_count] = {1, 1, 2, 2, 4, 8, 2, 2, 4, 8, 1, 8, 16};
    return sizes[static_cast<int>(dtype)];
}

constexpr bool is_complex(DType dtype) { return dtype >= DType::complex64; }
constexpr bool is_floating(DType dtype) { return dtype >= DType::float16 && dtype <= DType::float64; }

template <class T>
struct Type {
    using type = T;
};

// Call `f(Type<T>{})` with the C++ type of `dtype`.
template <class F>
decltype(auto) visit(DType dtype, F&& f) {
    switch (dtype) {
        case DType::uint8: return f(Type<std::uint8_t>{});
        case DType::int8: return f(Type<std::int8_t>{});
        case DType::uint16: return f(Type<std::uint16_t>{});
        case DType::int16: return f(Type<std::int16_t>{});
        case DType::int32: return f(Type<std::int32_t>{});
        case DType::int64: return f(Type<std::int64_t>{});
        case DType::float16: return f(Type<Float16>{});
        case DType::bfloat16: return f(Type<BFloat16>{});
        case DType::float32: return f(Type<float>{});
        case DType::float64: return f(Type<double>{});
        case DType::boolean: return f(Type<Bool>{});
        case DType::complex64: return f(Type<Complex<float>>{});
        case DType::complex128: return f(Type<Complex<double>>{});
    }
    throw Unsupported("no dtype has the number " + std::to_string(static_cast<int>(dtype)));
}

// Every switch over operations names all of them (-Werror=switch ensures it), and calls this for any other value: an
// operation without a kernel is refused, and never treated as a sum.
[[noreturn]] inline void refuse(Op op) {
    throw Unsupported("no kernel knows the reduction with the number " + std::to_string(static_cast<int>(op)));
}

// Refuse combinations without a kernel; the user sees the text.
inline void require_served(DType dtype, Op op) {
    switch (op) {
        case Op::average:
        case Op::sum:
        case Op::product: return;
        case Op::min:
        case Op::max:
            if (!is_complex(dtype)) return;
            throw Unsupported(std::string(label(op)) + " of " + label(dtype) +
                              ": complex numbers have no order; Sum, Average and Product are served");
        case Op::adasum: throw Unsupported("Adasum is composed by the runtime, engines do not serve it");
    }
    refuse(op);
}

}  // namespace farandole
