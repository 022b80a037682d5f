// Content of a member's segment: the words of the barrier, the reason of an abort, and two halves for staging.
//
// One rule makes every collective free of races. The time between two barriers is an *epoch*. In epoch e a member
// writes its own half e % 2, and reads the others' halves (e - 1) % 2, written in the last epoch. There it may
// overwrite data for itself alone by an answer; the owner reads it in epoch e + 1, when it may write that half again.
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

// Bytes that one member can stage for the others in one epoch. Measured from 64 KB to 8 MB: with less, barriers
// dominate; with more, staged data is evicted from the L2 cache before the others read it.
constexpr std::size_t stage_bytes = 512 * 1024;

struct Half {
    alignas(line_bytes) Signature signature;
    std::uint64_t counts[2 * max_members];
    alignas(line_bytes) std::byte contributions[stage_bytes];
};

enum class Cause : std::uint32_t { none, writing, aborted, stalled };

// Reason for the end of the group. The first member to end it writes the text, and all members read this text.
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

    // Waits shortly for the writer; if the writer died meanwhile, the text is lost.
    std::string reason() const {
        for (int look = 0; look < 1000 && why() == Cause::writing; ++look) sched_yield();
        return why() > Cause::writing ? text : "the group was aborted";
    }
};

// Only the words and the ending of member 0 are used.
struct Station {
    BarrierWords words;
    alignas(line_bytes) Ending ending;
    // Number of barriers that this member has reached, from which a timed-out member finds the missing ones.
    alignas(line_bytes) std::atomic<std::uint64_t> arrivals;
    Half halves[2];
};

}  // namespace farandole
