// Combine the same slice of several ranks' arrays, and store the result in several places.
//
// The order of operations on one element is a tree over the ranks: the first 2^k of them, the largest power of two below
// their number, and the rest. It never depends on where the arrays lie or how they are cut, so every path of the engine
// gives the same bits, and a tree over parts of what the ranks have can go on where this one begins. float16 and
// bfloat16 are accumulated in float32 and rounded once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

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
        const std::unique_ptr<W[]> waiting(new W[waiting_sums(job.source_count) * block]);
        for (std::size_t start = 0; start < job.count; start += block) {
            const std::size_t n = std::min(block, job.count - start);
            T* target = reinterpret_cast<T*>(job.target) + start;
            if constexpr (std::is_same_v<T, W>) {
                // Two arrays that are neither widened nor scaled need no accumulator.
                if (job.source_count == 2 && job.scaling.prescale == 1.0) {
                    accumulate(job, start, n, target, waiting.get());
                    finish(job.scaling, target, n);
                    continue;
                }
            }
            accumulate(job, start, n, sum, waiting.get());
            finish(job.scaling, sum, n);
            for (std::size_t i = 0; i < n; ++i) target[i] = narrow(sum[i], Type<T>{});
        }
    }

    static FARANDOLE_INLINE const T* source(const Reduction& job, int rank, std::size_t start) {
        return reinterpret_cast<const T*>(job.sources[rank]) + start;
    }

    // How many blocks `accumulate` needs besides `sum`.
    static FARANDOLE_INLINE std::size_t waiting_sums(int source_count) {
        std::size_t levels = 0;
        for (int pairs = (source_count + 1) / 2; pairs > 1; pairs /= 2) ++levels;
        return levels;
    }

    // Sums wait on a stack, `sum` below and the others in `waiting`; two of equally many pairs become one.
    static FARANDOLE_INLINE void accumulate(const Reduction& job, std::size_t start, std::size_t n, W* sum,
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
                for (std::size_t i = 0; i < n; ++i) left[i] = O::apply(left[i], right[i]);
            }
        }
    }

    // What `rank` and the next one have, if there is a next one.
    static FARANDOLE_INLINE void pair(const Reduction& job, int rank, std::size_t start, std::size_t n, W* sum) {
        const double factor = job.scaling.prescale;
        if (factor == 1.0) return pair(job, rank, start, n, sum, [](W value) { return value; });
        pair(job, rank, start, n, sum, [factor](W value) { return times(value, factor); });
    }

    template <class F>
    static FARANDOLE_INLINE void pair(const Reduction& job, int rank, std::size_t start, std::size_t n, W* sum,
                                      F scaled) {
        const T* first = source(job, rank, start);
        if (rank + 1 == job.source_count) {
            for (std::size_t i = 0; i < n; ++i) sum[i] = scaled(widen(first[i]));
            return;
        }
        const T* second = source(job, rank + 1, start);
        for (std::size_t i = 0; i < n; ++i) sum[i] = O::apply(scaled(widen(first[i])), scaled(widen(second[i])));
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
