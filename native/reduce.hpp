// Reduce the same slice of several ranks' arrays, and store the result in several places.
//
// The order of operations on one element is a tree over the ranks: the first 2^k of them, for the largest power of two
// below their number, and the rest. The order does not depend on addresses or on slicing, so every path of the engine
// gives the same bits, and a caller's tree over the parts of each rank can continue with this tree. float16 and
// bfloat16 are accumulated in float32 and rounded once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "arithmetic.hpp"
#include "dtype.hpp"
#include "exact.hpp"
#include "versions.hpp"

namespace farandole {

// Factors around the reduction: contributions times `prescale`; result divided by `divisor`, times `postscale`.
struct Scaling {
    double prescale = 1.0;
    double postscale = 1.0;
    std::int64_t divisor = 1;

    bool has_factors() const { return prescale != 1.0 || postscale != 1.0 || divisor != 1; }
};

// `sources` are in rank order; the target is one of them, or overlaps none of them.
struct ReduceJob {
    const std::byte* const* sources;
    int source_count;
    std::byte* target;
    std::size_t count;
    Scaling scaling;
};

template <class T, class O>
struct ReduceKernel {
    using W = wide_t<T>;
    static constexpr bool has_factors = !std::is_integral_v<T> && !std::is_same_v<T, Bool>;
    // Only for plain sums, a multiplication by one takes noticeable time.
    static constexpr bool is_plain_sum = std::is_same_v<T, W> && std::is_same_v<O, Sum>;
    // One block of accumulators fits into the L1 cache together with the block being added.
    static constexpr std::size_t block = 8192 / sizeof(W);

    // Few loops: every loop is compiled for every type, operation and processor level.
    static FARANDOLE_INLINE void run(const ReduceJob& job) {
        alignas(64) W sum[block];
        const std::unique_ptr<W[]> waiting(new W[waiting_sums(job.source_count) * block]);
        for (std::size_t start = 0; start < job.count; start += block) {
            const std::size_t n = std::min(block, job.count - start);
            T* target = reinterpret_cast<T*>(job.target) + start;
            W* into = sum;
            // Up to two arrays that are not widened need no accumulator.
            if constexpr (std::is_same_v<T, W>) into = job.source_count <= 2 ? target : sum;
            accumulate(job, start, n, into, waiting.get());
            finish(job.scaling, into, n);
            if constexpr (std::is_same_v<T, W>) {
                if (into == sum) std::memcpy(target, sum, n * sizeof(T));
            } else {
                FARANDOLE_INDEPENDENT
                for (std::size_t i = 0; i < n; ++i) target[i] = narrow(sum[i], Type<T>{});
            }
        }
    }

    static FARANDOLE_INLINE const T* source(const ReduceJob& job, int rank, std::size_t start) {
        return reinterpret_cast<const T*>(job.sources[rank]) + start;
    }

    // Number of blocks that `accumulate` needs besides `sum`.
    static FARANDOLE_INLINE std::size_t waiting_sums(int source_count) {
        std::size_t levels = 0;
        for (int pairs = (source_count + 1) / 2; pairs > 1; pairs /= 2) ++levels;
        return levels;
    }

    // Sums are kept on a stack, with `sum` at the bottom and the others in `waiting`; two sums of equal size are added.
    static FARANDOLE_INLINE void accumulate(const ReduceJob& job, std::size_t start, std::size_t n, W* sum,
                                            W* waiting) {
        const int pairs = (job.source_count + 1) / 2;
        int depth = 0;
        for (int k = 0; k < pairs; ++k) {
            pair(job, 2 * k, start, n, depth == 0 ? sum : waiting + static_cast<std::size_t>(depth - 1) * block);
            ++depth;
            for (int full = k; depth > 1 && (full % 2 == 1 || k == pairs - 1); full /= 2) {
                --depth;
                W* left = depth == 1 ? sum : waiting + static_cast<std::size_t>(depth - 2) * block;
                const W* right = waiting + static_cast<std::size_t>(depth - 1) * block;
                FARANDOLE_INDEPENDENT
                for (std::size_t i = 0; i < n; ++i) left[i] = O::apply(left[i], right[i]);
            }
        }
    }

    // Sum of the sources of `rank` and of the next rank, if there is one.
    static FARANDOLE_INLINE void pair(const ReduceJob& job, int rank, std::size_t start, std::size_t n, W* sum) {
        const auto as_is = [](W value) { return value; };
        if constexpr (!has_factors) {
            pair(job, rank, start, n, sum, as_is);
        } else {
            const double factor = job.scaling.prescale;
            if constexpr (is_plain_sum) {
                if (factor == 1.0) return pair(job, rank, start, n, sum, as_is);
            }
            pair(job, rank, start, n, sum, [factor](W value) { return times(value, factor); });
        }
    }

    template <class F>
    static FARANDOLE_INLINE void pair(const ReduceJob& job, int rank, std::size_t start, std::size_t n, W* sum,
                                      F scaled) {
        const T* first = source(job, rank, start);
        if (rank + 1 == job.source_count) {
            FARANDOLE_INDEPENDENT
            for (std::size_t i = 0; i < n; ++i) sum[i] = scaled(widen(first[i]));
            return;
        }
        const T* second = source(job, rank + 1, start);
        FARANDOLE_INDEPENDENT
        for (std::size_t i = 0; i < n; ++i) sum[i] = O::apply(scaled(widen(first[i])), scaled(widen(second[i])));
    }

    static FARANDOLE_INLINE void finish(const Scaling& scaling, W* sum, std::size_t n) {
        if constexpr (has_factors) {
            if (scaling.divisor != 1) {
                for (std::size_t i = 0; i < n; ++i) sum[i] = over(sum[i], scaling.divisor);
            }
            if (scaling.postscale != 1.0) {
                for (std::size_t i = 0; i < n; ++i) sum[i] = times(sum[i], scaling.postscale);
            }
        }
    }
};

inline void reduce_booleans(const ReduceJob& job, Op op) {
    // The average of booleans is "and"; booleans are not scaled.
    switch (op) {
        case Op::sum:
        case Op::max: return portable<ReduceKernel<Bool, Sum>>(job);
        case Op::average:
        case Op::min:
        case Op::product: return portable<ReduceKernel<Bool, Product>>(job);
        case Op::adasum: break;
    }
    refuse(op);
}

// Sums and products have the same bits for signed and unsigned numbers.
template <class T>
void reduce_integers(const ReduceJob& job, Op op) {
    using Unsigned = std::make_unsigned_t<T>;
    if (job.scaling.has_factors()) return reduce_exactly<T>(job, op);
    switch (op) {
        case Op::product: return portable<ReduceKernel<Unsigned, Product>>(job);
        case Op::min: return portable<ReduceKernel<T, Min>>(job);
        case Op::max: return portable<ReduceKernel<T, Max>>(job);
        case Op::average:
        case Op::sum: return portable<ReduceKernel<Unsigned, Sum>>(job);
        case Op::adasum: break;
    }
    refuse(op);
}

template <class T>
void reduce_floats(const ReduceJob& job, Op op) {
    switch (op) {
        case Op::product: return portable<ReduceKernel<T, Product>>(job);
        case Op::min: return portable<ReduceKernel<T, Min>>(job);
        case Op::max: return portable<ReduceKernel<T, Max>>(job);
        case Op::average:
        case Op::sum: return fastest<ReduceKernel<T, Sum>>(job);
        case Op::adasum: break;
    }
    refuse(op);
}

// Complex numbers are added, scaled and divided by parts (real, imaginary).
template <class Part>
void reduce_complex(const ReduceJob& job, Op op) {
    if (op == Op::product) return portable<ReduceKernel<Complex<Part>, Product>>(job);
    ReduceJob parts = job;
    parts.count *= 2;
    reduce_floats<Part>(parts, op);
}

// Run `job` on arrays of `dtype`. For `average` the caller must set the divisor.
inline void reduce(const ReduceJob& job, DType dtype, Op op) {
    require_served(dtype, op);
    if (job.count == 0) return;
    switch (dtype) {
        case DType::uint8: return reduce_integers<std::uint8_t>(job, op);
        case DType::int8: return reduce_integers<std::int8_t>(job, op);
        case DType::uint16: return reduce_integers<std::uint16_t>(job, op);
        case DType::int16: return reduce_integers<std::int16_t>(job, op);
        case DType::int32: return reduce_integers<std::int32_t>(job, op);
        case DType::int64: return reduce_integers<std::int64_t>(job, op);
        case DType::float16: return reduce_floats<Float16>(job, op);
        case DType::bfloat16: return reduce_floats<BFloat16>(job, op);
        case DType::float32: return reduce_floats<float>(job, op);
        case DType::float64: return reduce_floats<double>(job, op);
        case DType::boolean: return reduce_booleans(job, op);
        case DType::complex64: return reduce_complex<float>(job, op);
        case DType::complex128: return reduce_complex<double>(job, op);
    }
}

// dst = dst op src, element by element.
inline void reduce_into(std::byte* dst, const std::byte* src, std::size_t count, DType dtype, Op op) {
    const std::byte* sources[] = {dst, src};
    reduce({sources, 2, dst, count, {}}, dtype, op);
}

// Multiply by `factor`.
inline void scale(std::byte* address, std::size_t count, DType dtype, double factor) {
    const std::byte* source = address;
    reduce({&source, 1, address, count, {factor, 1.0, 1}}, dtype, Op::sum);
}

// Divide by `divisor`.
inline void divide(std::byte* address, std::size_t count, DType dtype, std::int64_t divisor) {
    if (divisor <= 0) throw Unsupported("a divisor must be positive, got " + std::to_string(divisor));
    const std::byte* source = address;
    reduce({&source, 1, address, count, {1.0, 1.0, divisor}}, dtype, Op::sum);
}

}  // namespace farandole
