// Division of arrays: slices for the members, steps for the staging.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "station.hpp"

namespace farandole {

// memcpy that accepts the null address of an empty array.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t nbytes) {
    if (nbytes != 0) std::memcpy(to, from, nbytes);
}

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// `count` elements cut into one contiguous slice for each of `parts` members; inner bounds are multiples of a cache
// line.
class Slices {
public:
    Slices(std::size_t count, int parts, std::size_t itemsize) : count_(count) {
        const std::size_t line = std::max<std::size_t>(1, line_bytes / itemsize);
        each_ = ceil_div(ceil_div(count, static_cast<std::size_t>(parts)), line) * line;
    }
    std::size_t start(int part) const { return std::min(count_, each_ * static_cast<std::size_t>(part)); }
    std::size_t size(int part) const { return start(part + 1) - start(part); }

private:
    std::size_t count_;
    std::size_t each_;
};

// The staging area cut into one lane for each of `parts` members, in elements.
class Lanes {
public:
    Lanes(int parts, std::size_t itemsize)
        : bytes_(stage_bytes / static_cast<std::size_t>(parts) / line_bytes * line_bytes),
          capacity_(bytes_ / itemsize) {}

    std::size_t steps(std::size_t count) const { return ceil_div(count, capacity_); }
    std::size_t offset(int part) const { return bytes_ * static_cast<std::size_t>(part); }

    // Elements of step `k` of an array of `count`: the first, and their number.
    std::size_t start(std::size_t k, std::size_t count) const { return std::min(count, k * capacity_); }
    std::size_t size(std::size_t k, std::size_t count) const { return start(k + 1, count) - start(k, count); }

private:
    std::size_t bytes_;
    std::size_t capacity_;
};

}  // namespace farandole
