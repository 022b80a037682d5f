// Combine the same slice of several ranks' arrays, in rank order, and store the result in several places.
//
// The order of operations on one element never depends on where the arrays lie or how they are cut, so every path of
// the engine gives the same bits. float16 and bfloat16 are accumulated in float32 and rounded once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arithmetic.hpp"
#include "dtype.hpp"
#include "versions.hpp"

namespace farandole {

// What happens to values around the reduction: contributions times `prescale`; result over `divisor`, times
// `postscale`.
struct Scaling {
    double prescale = 1.0;
    double postscale = 1.0;
    std::int64_t divisor = 1;
};

// `sources` in rank order; the target is one of them or apart from all of them.
struct Reduction {
    const std::byte* const* sources;
    int source_count;
    std::byte* target;
    std::size_t count;
    Scaling scaling;
};

template <class T, class O>
struct ReduceKernel {
    using W = wide_t<T>;
    // One block of accumulators stays in the first-level cache together with the block being added.
    static constexpr std::size_t block = 8192 / sizeof(W);

    static FARANDOLE_INLINE void run(const Reduction& job) {
        alignas(64) W sum[block];
        for (std::size_t start = 0; start < job.count; start += block) {
            const std::size_t n = std::min(block, job.count - start);
            T* target = reinterpret_cast<T*>(job.target) + start;
            if constexpr (std::is_same_v<T, W>) {
                // Two arrays that are neither widened nor scaled need no accumulator.
                if (job.source_count == 2 && job.scaling.prescale == 1.0) {
                    accumulate(job, start, n, target);
                    finish(job.scaling, target, n);
                    continue;
                }
            }
            accumulate(job, start, n, sum);
            finish(job.scaling, sum, n);
            for (std::size_t i = 0; i < n; ++i) target[i] = narrow(sum[i], Type<T>{});
        }
    }

    static FARANDOLE_INLINE const T* source(const Reduction& job, int rank, std::size_t start) {
        return reinterpret_cast<const T*>(job.sources[rank]) + start;
    }

    static FARANDOLE_INLINE void accumulate(const Reduction& job, std::size_t start, std::size_t n, W* sum) {
        if (job.scaling.prescale != 1.0) return accumulate_scaled(job, start, n, sum);
        const T* first = source(job, 0, start);
        if (job.source_count == 1) {
            for (std::size_t i = 0; i < n; ++i) sum[i] = widen(first[i]);
            return;
        }
        const T* second = source(job, 1, start);
        for (std::size_t i = 0; i < n; ++i) sum[i] = O::apply(widen(first[i]), widen(second[i]));
        for (int rank = 2; rank < job.source_count; ++rank) {
            const T* next = source(job, rank, start);
            for (std::size_t i = 0; i < n; ++i) sum[i] = O::apply(sum[i], widen(next[i]));
        }
    }

    static FARANDOLE_INLINE void accumulate_scaled(const Reduction& job, std::size_t start, std::size_t n, W* sum) {
        const double factor = job.scaling.prescale;
        const T* first = source(job, 0, start);
        for (std::size_t i = 0; i < n; ++i) sum[i] = times(widen(first[i]), factor);
        for (int rank = 1; rank < job.source_count; ++rank) {
            const T* next = source(job, rank, start);
            for (std::size_t i = 0; i < n; ++i) sum[i] = O::apply(sum[i], times(widen(next[i]), factor));
        }
    }

    static FARANDOLE_INLINE void finish(const Scaling& scaling, W* sum, std::size_t n) {
        if (scaling.divisor != 1) {
            for (std::size_t i = 0; i < n; ++i) sum[i] = over(sum[i], scaling.divisor);
        }
        if (scaling.postscale != 1.0) {
            for (std::size_t i = 0; i < n; ++i) sum[i] = times(sum[i], scaling.postscale);
        }
    }
};

// Run `job` on arrays of `dtype`. For `average` the divisor is the caller's to set.
inline void reduce(const Reduction& job, DType dtype, Op op) {
    require_served(dtype, op);
    if (job.count == 0) return;
    visit(dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        constexpr bool ordered = !std::is_same_v<T, Complex<float>> && !std::is_same_v<T, Complex<double>>;
        switch (op) {
            case Op::product: return fastest<ReduceKernel<T, Product>>(job);
            case Op::min:
                if constexpr (ordered) return fastest<ReduceKernel<T, Min>>(job);
                return;
            case Op::max:
                if constexpr (ordered) return fastest<ReduceKernel<T, Max>>(job);
                return;
            default:
                // The average of booleans is "all of them".
                if constexpr (std::is_same_v<T, Bool>) {
                    if (op == Op::average) return fastest<ReduceKernel<T, Product>>(job);
                }
                return fastest<ReduceKernel<T, Sum>>(job);
        }
    });
}

// dst = dst op src, element by element.
inline void reduce_into(std::byte* dst, const std::byte* src, std::size_t count, DType dtype, Op op) {
    const std::byte* sources[] = {dst, src};
    reduce({sources, 2, dst, count, {}}, dtype, op);
}

}  // namespace farandole
