// Signature of a member's current collective; members compare them, so that a program error is reported and no hang.
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

// Compares bits: NaN equals itself, and zeros of different sign are not equal.
inline bool same_factor(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// In shared memory, so plain numbers only.
struct Signature {
    std::uint64_t sequence = 0;
    Verb verb = Verb::barrier;
    DType dtype = DType::uint8;
    Op op = Op::sum;
    std::int32_t root = -1;
    std::int32_t listed = 0;  // number of counts that are compared as well
    std::uint64_t count = 0;
    double prescale = 1.0;
    double postscale = 1.0;

    // The following fields may differ between members.
    std::uint64_t region = 0;  // number of the engine memory that holds the array; 0: ordinary memory
    std::uint64_t offset = 0;  // of the array in it, in bytes

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

// Description of the signature for the user.
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
