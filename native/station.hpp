// What lies in a member's segment: the words of the barrier, why the group was aborted, and two halves for staging.
//
// One rule makes every collective free of races. The time between two barriers is an *epoch*. In epoch e a member
// writes its own half e % 2, and reads what others wrote in their half (e - 1) % 2. What in it is for this member alone
// it may overwrite with an answer, which its owner finds in epoch e + 1, when that half is its own to write again.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "barrier.hpp"
#include "signature.hpp"

namespace farandole {

constexpr int max_members = 64;
constexpr std::size_t line_bytes = 64;

// Bytes that one member can stage for the others in one epoch. Measured from 64 KB to 8 MB: below, barriers count;
// above, what is staged falls out of the second-level cache before the others read it.
constexpr std::size_t stage_bytes = 512 * 1024;

struct Half {
    alignas(line_bytes) Signature signature;
    std::uint64_t counts[2 * max_members];
    alignas(line_bytes) std::byte contributions[stage_bytes];
};

enum class Cause : std::uint32_t { none, writing, aborted, stalled };

// Why the group ended. Whoever comes first writes the text, and everybody reads that one.
struct Ending {
    std::atomic<std::uint32_t> cause;
    char text[1000];

    void write(Cause why, const std::string& reason) {
        auto expected = static_cast<std::uint32_t>(Cause::none);
        if (!cause.compare_exchange_strong(expected, static_cast<std::uint32_t>(Cause::writing))) return;
        const std::size_t length = std::min(reason.size(), sizeof text - 1);
        std::memcpy(text, reason.data(), length);
        text[length] = '\0';
        cause.store(static_cast<std::uint32_t>(why), std::memory_order_release);
    }

    Cause why() const { return static_cast<Cause>(cause.load(std::memory_order_acquire)); }

    // A writer needs a moment; one that died in it leaves only the fact.
    std::string reason() const {
        for (int look = 0; look < 1000 && why() == Cause::writing; ++look) sched_yield();
        return why() > Cause::writing ? text : "the group was aborted";
    }
};

// Only the words and the ending of member 0 are used.
struct Station {
    BarrierWords words;
    alignas(line_bytes) Ending ending;
    // Barriers this member has come to: tells one that waited too long who is missing.
    alignas(line_bytes) std::atomic<std::uint64_t> arrivals;
    Half halves[2];
};

}  // namespace farandole
