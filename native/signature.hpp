// What a member says about the collective it is in; members compare, so that a program error is an error and no hang.
#pragma once

#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

#include "dtype.hpp"

namespace farandole {

enum class Verb : std::uint8_t { allreduce, allgather, broadcast, alltoall, reducescatter, barrier, gather, allocate };

inline const char* label(Verb verb) {
    static constexpr const char* labels[] = {"allreduce",     "allgather", "broadcast",    "alltoall",
                                             "reducescatter", "barrier",   "gather_small", "allocate"};
    return labels[static_cast<int>(verb)];
}

// By bits: one that is not a number is the same as itself, and zeros of two signs are not.
inline bool same_factor(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Lies in shared memory: plain numbers only.
struct Signature {
    std::uint64_t sequence = 0;
    Verb verb = Verb::barrier;
    DType dtype = DType::uint8;
    Op op = Op::sum;
    std::int32_t root = -1;
    std::int32_t listed = 0;  // how many counts are compared as well
    std::uint64_t count = 0;
    double prescale = 1.0;
    double postscale = 1.0;

    // From here on members may differ.
    std::uint64_t region = 0;  // which engine memory the array lies in; 0: ordinary memory
    std::uint64_t offset = 0;  // where in it, in bytes

    bool agrees(const Signature& other) const {
        return sequence == other.sequence && verb == other.verb && dtype == other.dtype && op == other.op &&
               root == other.root && listed == other.listed && count == other.count &&
               same_factor(prescale, other.prescale) && same_factor(postscale, other.postscale);
    }
};

// `counts` as "[3, 4]".
inline std::string list_text(const std::uint64_t* counts, int size) {
    std::string text = "[";
    for (int i = 0; i < size; ++i) text += (i == 0 ? "" : ", ") + std::to_string(counts[i]);
    return text + "]";
}

// The signature as its user would say it.
inline std::string describe(const Signature& s) {
    std::ostringstream text;
    text << label(s.verb);
    if (s.verb == Verb::allocate) {
        text << " of " << s.count << " bytes";
    } else if (s.verb != Verb::barrier && s.verb != Verb::gather) {
        text << " of ";
        if (s.verb == Verb::allreduce || s.verb == Verb::broadcast) text << s.count << ' ';
        text << label(s.dtype);
    }
    if (s.verb == Verb::allreduce || s.verb == Verb::reducescatter) text << ", " << label(s.op);
    if (s.root >= 0) text << " from place " << s.root;
    if (s.prescale != 1.0) text << ", prescale " << s.prescale;
    if (s.postscale != 1.0) text << ", postscale " << s.postscale;
    return text.str();
}

}  // namespace farandole
