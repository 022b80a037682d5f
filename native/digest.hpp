// Digest of memory: 64 bits by which ranks compare data, at the speed of the memory.
//
// Four lanes take every fourth pair of words, with one wide multiplication each, and are merged in order. In cheaper
// schemes, differences that occur in gradients cancel: with multiply-add modulo 2^64 two flipped signs (the top bits of
// their words), with an additional rotation a sign and one bit of a mantissa. Here the effect of a changed word depends
// on the other word and on all words before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arithmetic.hpp"

namespace farandole {

class Digest {
public:
    // Digest of the bytes at `from`. The last block is padded with zeros; the length distinguishes them from data.
    static std::uint64_t of(const std::byte* from, std::size_t nbytes) {
        Digest lanes;
        std::size_t at = 0;
        for (; at + block <= nbytes; at += block) lanes.take(from + at);
        if (at < nbytes) {
            std::byte rest[block] = {};
            std::memcpy(rest, from + at, nbytes - at);
            lanes.take(rest);
        }
        return lanes.merged(nbytes);
    }

private:
    static constexpr std::size_t block = 64;
    // The first hexadecimal digits of pi.
    static constexpr std::uint64_t starts[] = {0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0,
                                               0x082EFA98EC4E6C89};
    static constexpr std::uint64_t keys[] = {0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD,
                                             0x3F84D5B5B5470917};

    // Both halves of the product.
    static FARANDOLE_INLINE std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
        __extension__ using Product = unsigned __int128;
        const Product product = static_cast<Product>(a) * b;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }

    static FARANDOLE_INLINE std::uint64_t step(std::uint64_t lane, std::uint64_t key, const std::byte* from) {
        std::uint64_t words[2];
        std::memcpy(words, from, sizeof words);
        return fold(words[0] ^ key, words[1] ^ lane);
    }

    FARANDOLE_INLINE void take(const std::byte* from) {
        a_ = step(a_, keys[0], from);
        b_ = step(b_, keys[1], from + 16);
        c_ = step(c_, keys[2], from + 32);
        d_ = step(d_, keys[3], from + 48);
    }

    std::uint64_t merged(std::uint64_t nbytes) const {
        std::uint64_t all = nbytes;
        for (const std::uint64_t lane : {a_, b_, c_, d_}) all = fold(all ^ keys[0], lane ^ keys[1]);
        return all;
    }

    std::uint64_t a_ = starts[0], b_ = starts[1], c_ = starts[2], d_ = starts[3];
};

}  // namespace farandole
