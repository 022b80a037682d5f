// Averages of integers and integers with a factor: exact where plain sums of their type would wrap or lose digits.
//
// Contributions are multiplied, summed in 128 bits, divided and multiplied again; each step truncates toward zero, and
// the result is limited to the range of the type. Intermediate contributions and products are limited to 64 bits.
// Integer factors and factors 1/n for an integer n are exact; others multiply in double, because they are rounded
// anyway. One loop without vector code is enough: the case is rare, and mostly for a few counters.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "arithmetic.hpp"
#include "dtype.hpp"

namespace farandole {

__extension__ using Int128 = __int128;

// The nearest value of T.
template <class T>
FARANDOLE_INLINE Int128 limited(Int128 value) {
    constexpr Int128 low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    return std::min(std::max(value, low), high);
}

class Factor {
public:
    explicit Factor(double factor) : real_(factor) {
        constexpr double whole = 9007199254740992.0;  // from 2^53 on, several n have the same 1/n
        const double inverse = std::nearbyint(1.0 / factor);
        if (std::trunc(factor) == factor && std::fabs(factor) < 1024.0 * whole) {
            multiplier_ = static_cast<std::int64_t>(factor);
        } else if (inverse != 0.0 && std::fabs(inverse) < whole && 1.0 / inverse == factor) {
            divisor_ = static_cast<std::int64_t>(inverse);
        } else {
            is_exact_ = false;
        }
    }

    // The product, limited to 64 bits.
    Int128 times(Int128 value) const {
        if (!is_exact_) return saturate<std::int64_t>(static_cast<double>(value) * real_);
        constexpr Int128 beyond = (Int128{1} << 63) + 1;  // larger values stay out of range after the multiplication
        if (divisor_ == 1) value = std::min(std::max(value, -beyond), beyond);
        return limited<std::int64_t>(value * multiplier_ / divisor_);
    }

private:
    double real_;
    std::int64_t multiplier_ = 1, divisor_ = 1;
    bool is_exact_ = true;
};

template <class T, class F, class Job>
__attribute__((noinline)) void reduce_exactly_by(F combined, const Job& job) {
    const Factor before(job.scaling.prescale), after(job.scaling.postscale);
    T* target = reinterpret_cast<T*>(job.target);
    for (std::size_t i = 0; i < job.count; ++i) {
        const auto scaled = [&](int k) { return before.times(reinterpret_cast<const T*>(job.sources[k])[i]); };
        Int128 total = scaled(0);
        for (int k = 1; k < job.source_count; ++k) total = combined(total, scaled(k));
        target[i] = static_cast<T>(limited<T>(after.times(total / job.scaling.divisor)));
    }
}

template <class T, class Job>
void reduce_exactly(const Job& job, Op op) {
    switch (op) {
        case Op::product:
            return reduce_exactly_by<T>([](Int128 a, Int128 b) { return limited<std::int64_t>(a * b); }, job);
        case Op::min: return reduce_exactly_by<T>([](Int128 a, Int128 b) { return std::min(a, b); }, job);
        case Op::max: return reduce_exactly_by<T>([](Int128 a, Int128 b) { return std::max(a, b); }, job);
        case Op::average:
        case Op::sum: return reduce_exactly_by<T>([](Int128 a, Int128 b) { return a + b; }, job);
        case Op::adasum: break;
    }
    refuse(op);
}

}  // namespace farandole
