// An abortable barrier between processes, in three words of shared memory.
//
//   arrived   number of members that have arrived in the current phase
//   word      number of the phase; the high bit means that the group was aborted, permanently
//   sleepers  number of members that sleep on `word`, to avoid system calls when no member sleeps
//
// The last to arrive resets `arrived`, increments `word` and wakes the sleepers. A waiter returns when `word` has
// another phase (even if aborted: all arrived) or the abort bit. tests/unit/native/test_barrier_model.py explores every
// interleaving of this protocol, and shows that it fails if any memory order below is changed.
//
// A member that gives up (late, interrupted) stays counted in `arrived`, so the phase would end without it: the
// member's caller must abort the group (`Communicator::fail`).
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

// Processor hint in a loop that polls a word.
inline void pause_processor() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Counter and phase are on different cache lines: arriving members do not disturb polling ones.
struct BarrierWords {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> word;
    std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

// Written by one thread, read by any.
class Counter {
public:
    void add(std::uint64_t n) { value_.store(value() + n, std::memory_order_relaxed); }
    std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

enum class Wait { passed, aborted, late, interrupted };

// Called when a signal may have arrived: true ends the wait.
struct Interrupt {
    bool (*asked)(void*) = nullptr;
    void* context = nullptr;
    bool operator()() const { return asked != nullptr && asked(context); }
};

class Barrier {
public:
    // `spin_ns`: how long a waiter polls before it sleeps.
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

    // Number of times that this member slept.
    std::uint64_t sleeps() const { return sleeps_.value(); }

private:
    static constexpr std::uint32_t abort_bit = 0x80000000u;
    static constexpr std::int64_t long_absence_ns = 200'000;
    static constexpr std::int64_t crowded_ns = 20'000'000;
    // Maximum sleep: a signal that arrives while the member polls, or on another thread, does not interrupt the sleep.
    static constexpr std::int64_t look_ns = 250'000'000;

    Wait release(std::uint32_t phase) {
        // Before `word` changes: members in the next phase count themselves at once. The exchange publishes this store.
        words_.arrived.store(0, std::memory_order_relaxed);
        std::uint32_t expected = phase;
        // An exchange, not a store, which would erase the bit of a concurrent abort.
        if (!words_.word.compare_exchange_strong(expected, (phase + 1) & ~abort_bit, std::memory_order_seq_cst)) {
            return Wait::aborted;
        }
        if (words_.sleepers.load(std::memory_order_seq_cst) != 0) wake();  // read last: see sleep()
        return Wait::passed;
    }

    // Reason why `word` is no longer `phase`.
    Wait left(std::uint32_t phase) const {
        const bool moved = (words_.word.load(std::memory_order_acquire) & ~abort_bit) != phase;
        return moved ? Wait::passed : Wait::aborted;
    }

    // sched_yield between polls costs a third of a microsecond on a free processor. If members share a processor, the
    // awaited member gets it at once; without the yield a wait costs `spin_ns` plus sleeping and waking. If another
    // process takes the processor for long, members sleep at once for a while: the kernel favours woken threads.
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
        // Sequentially consistent with release() and abort(): either they see this sleeper, or it sees their `word`.
        words_.sleepers.fetch_add(1, std::memory_order_seq_cst);
        Wait outcome = Wait::passed;
        while (true) {
            if (words_.word.load(std::memory_order_seq_cst) != phase) {
                outcome = left(phase);
                break;
            }
            const std::int64_t until_ns = std::min(deadline_ns, now_ns() + look_ns);
            const timespec until = {until_ns / second_ns, until_ns % second_ns};
            // Not FUTEX_PRIVATE_FLAG, because other processes wake; not FUTEX_WAIT, whose timeout is relative.
            const long rc =
                syscall(SYS_futex, &words_.word, FUTEX_WAIT_BITSET, phase, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
            const int error = rc == 0 ? 0 : errno;
            const bool over = error == ETIMEDOUT;
            if (over && words_.word.load(std::memory_order_seq_cst) != phase) continue;
            if ((over || error == EINTR) && interrupt()) {
                outcome = Wait::interrupted;
                break;
            }
            // For all other reasons (changed word, ignored signal, spurious wake-up): check the word again.
            if (over && until_ns == deadline_ns && words_.word.load(std::memory_order_seq_cst) == phase) {
                outcome = Wait::late;
                break;
            }
        }
        words_.sleepers.fetch_sub(1, std::memory_order_relaxed);  // if seen late, it costs only a needless wake
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
