// A barrier between processes that can be aborted, in three words of shared memory.
//
//   arrived   how many members have come to the current phase
//   word      number of the phase; its high bit says that the group was aborted, for good
//   sleepers  how many members sleep on `word`, so that nobody calls the kernel to wake nobody
//
// The last to arrive resets `arrived`, moves `word` on and wakes the sleepers. A waiter leaves when `word` shows
// another phase (even if aborted meanwhile: everybody did come) or the abort bit. tests/unit/native/test_barrier_model.py
// explores every interleaving of this protocol, and shows that it fails with any of the orders below changed.
//
// A member that has given up (late, interrupted) stays counted in `arrived`, so it must abort the group: the phase
// would end without it. Its caller does (`Communicator::fail`).
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace farandole {

constexpr std::int64_t second_ns = 1'000'000'000;

inline std::int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * second_ns + t.tv_nsec;
}

// Tell the processor that this thread watches a word.
inline void pause_processor() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Counter and phase lie on different cache lines: members that arrive do not disturb those that watch.
struct BarrierWords {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> word;
    std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

// Counted by one thread, read by any.
class Counter {
public:
    void add(std::uint64_t n) { value_.store(value() + n, std::memory_order_relaxed); }
    std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

enum class Wait { passed, aborted, late, interrupted };

// Asked when a signal may have come: true ends the wait.
struct Interrupt {
    bool (*asked)(void*) = nullptr;
    void* context = nullptr;
    bool operator()() const { return asked != nullptr && asked(context); }
};

class Barrier {
public:
    // `spin_ns` is how long a waiter watches before it sleeps.
    Barrier(BarrierWords& words, std::uint32_t members, std::int64_t spin_ns)
        : words_(words), members_(members), spin_ns_(spin_ns) {}

    Wait wait(std::int64_t deadline_ns, Interrupt interrupt = {}) {
        const std::uint32_t phase = words_.word.load(std::memory_order_acquire);
        if (phase & abort_bit) return Wait::aborted;
        if (words_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) return release(phase);
        if (spin(phase)) return left(phase);
        return sleep(phase, deadline_ns, interrupt);
    }

    void abort() {
        words_.word.fetch_or(abort_bit, std::memory_order_seq_cst);
        wake();
    }

    bool aborted() const { return words_.word.load(std::memory_order_acquire) & abort_bit; }

    // How often this member slept.
    std::uint64_t sleeps() const { return sleeps_.value(); }

private:
    static constexpr std::uint32_t abort_bit = 0x80000000u;
    static constexpr std::int64_t long_absence_ns = 200'000;
    static constexpr std::int64_t crowded_ns = 20'000'000;
    // A signal that comes while a member watches, or to another thread, interrupts no sleep.
    static constexpr std::int64_t look_ns = 250'000'000;

    Wait release(std::uint32_t phase) {
        // Before the word moves: who sees the next phase counts itself at once. Relaxed, as the exchange publishes it.
        words_.arrived.store(0, std::memory_order_relaxed);
        std::uint32_t expected = phase;
        // An exchange and no store, which would wipe out the bit of an abort that came since.
        if (!words_.word.compare_exchange_strong(expected, (phase + 1) & ~abort_bit, std::memory_order_seq_cst)) {
            return Wait::aborted;
        }
        if (words_.sleepers.load(std::memory_order_seq_cst) != 0) wake();  // read last: see sleep()
        return Wait::passed;
    }

    // Why `word` is no longer `phase`.
    Wait left(std::uint32_t phase) const {
        const bool moved = (words_.word.load(std::memory_order_acquire) & ~abort_bit) != phase;
        return moved ? Wait::passed : Wait::aborted;
    }

    // Giving way between looks costs a third of a microsecond on a free processor. Where members share one, whoever is
    // waited for gets it at once; without, a wait costs the whole of `spin_ns`, and sleeping and waking on top. If
    // somebody else takes the processor for long, members sleep at once for a while: the kernel favours who wakes.
    bool spin(std::uint32_t phase) {
        const std::int64_t end = now_ns() + spin_ns_;
        while (true) {
            for (int i = 0; i < 32; ++i) {
                if (words_.word.load(std::memory_order_acquire) != phase) return true;
                pause_processor();
            }
            const std::int64_t before = now_ns();
            if (before >= end || before < crowded_until_ns_) return false;
            sched_yield();
            const std::int64_t after = now_ns();
            if (after - before > long_absence_ns) crowded_until_ns_ = after + crowded_ns;
        }
    }

    Wait sleep(std::uint32_t phase, std::int64_t deadline_ns, Interrupt interrupt) {
        sleeps_.add(1);
        // Sequentially consistent with release() and abort(): either they see this sleeper, or it sees their word.
        words_.sleepers.fetch_add(1, std::memory_order_seq_cst);
        Wait outcome = Wait::passed;
        while (true) {
            if (words_.word.load(std::memory_order_seq_cst) != phase) {
                outcome = left(phase);
                break;
            }
            const std::int64_t until_ns = std::min(deadline_ns, now_ns() + look_ns);
            const timespec until = {until_ns / second_ns, until_ns % second_ns};
            // Neither FUTEX_PRIVATE_FLAG, as other processes wake, nor FUTEX_WAIT, whose time would be relative.
            const long rc =
                syscall(SYS_futex, &words_.word, FUTEX_WAIT_BITSET, phase, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
            const int error = rc == 0 ? 0 : errno;
            const bool over = error == ETIMEDOUT;
            if (over && words_.word.load(std::memory_order_seq_cst) != phase) continue;
            if ((over || error == EINTR) && interrupt()) {
                outcome = Wait::interrupted;
                break;
            }
            // Whatever else ended it (another word, a signal that is not minded, nothing): look at the word again.
            if (over && until_ns == deadline_ns && words_.word.load(std::memory_order_seq_cst) == phase) {
                outcome = Wait::late;
                break;
            }
        }
        words_.sleepers.fetch_sub(1, std::memory_order_relaxed);  // seen late it costs a needless wake, no more
        return outcome;
    }

    void wake() { syscall(SYS_futex, &words_.word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0); }

    BarrierWords& words_;
    std::uint32_t members_;
    std::int64_t spin_ns_;
    std::int64_t crowded_until_ns_ = 0;
    Counter sleeps_;
};

}  // namespace farandole
