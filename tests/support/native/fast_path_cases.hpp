// The fast path of graph calls, with threads that come late, take the other way, and go away.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <random>

#include "fast_path.hpp"
#include "ranks.hpp"

namespace test {

constexpr int fast_calls = 2000;

// The way that a call takes when its members have not met: all of them come, each with its part.
class SlowWay {
public:
    explicit SlowWay(int size) : hub_(size) {}

    std::vector<std::string> gather(int rank, std::int64_t part) {
        return hub_.exchange(rank, std::string(reinterpret_cast<const char*>(&part), sizeof part));
    }

    static std::int64_t sum(const std::vector<std::string>& parts) {
        std::int64_t sum = 0;
        for (const std::string& part : parts) {
            std::int64_t value = 0;
            std::memcpy(&value, part.data(), sizeof value);
            sum += value;
        }
        return sum;
    }

private:
    Hub hub_;
};

inline std::int64_t part_of(int rank, int call) { return (std::int64_t{call} + 1) * 1000 + rank; }

inline std::int64_t sum_of(int size, int call) {
    std::int64_t sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += part_of(rank, call);
    return sum;
}

// Now and then a member is late, or takes the slow way without having looked.
class Whims {
public:
    explicit Whims(int rank) : random_(static_cast<unsigned>(rank) + 1) {}

    bool is_elsewhere() { return random_() % 50 == 0; }
    void dawdle() {
        if (random_() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    }

private:
    std::minstd_rand random_;
};

// Slots in the memory of this process, where the sanitizers see who touches what.
inline void members_meet_in_a_slot_or_all_go_elsewhere() {
    for (const int size : {2, 3, 5}) {
        const std::unique_ptr<FastSlot[]> memory(new FastSlot[static_cast<std::size_t>(size)]());
        std::vector<FastSlot*> slots;
        for (int rank = 0; rank < size; ++rank) slots.push_back(&memory[static_cast<std::size_t>(rank)]);
        SlowWay slow(size);
        std::vector<std::atomic<int>> met(fast_calls);
        run_threads(size, [&](int rank) {
            FastRound round(slots, rank);
            Whims whims(rank);
            const std::byte* sources[max_members];
            for (int call = 0; call < fast_calls; ++call) {
                whims.dawdle();
                const std::int64_t part = part_of(rank, call);
                std::int64_t sum = 0;
                if (!whims.is_elsewhere() &&
                    round.meet(reinterpret_cast<const std::byte*>(&part), sizeof part, 100'000, sources)) {
                    for (int other = 0; other < size; ++other) {
                        std::int64_t value = 0;
                        std::memcpy(&value, sources[other], sizeof value);
                        sum += value;
                    }
                    met[static_cast<std::size_t>(call)].fetch_add(1, std::memory_order_relaxed);
                } else {
                    sum = SlowWay::sum(slow.gather(rank, part));
                    round.align();
                }
                check(sum == sum_of(size, call), "the sum of call " + std::to_string(call));
            }
        });
        int fast = 0;
        for (const std::atomic<int>& members : met) {
            check(members == 0 || members == size, "a call ended in two ways");
            fast += members == size;
        }
        check(fast > 0, "no call has met");
        check(fast < fast_calls, "all calls have met");
    }
}

// The call of one scalar with the spec "loss", as a library describes it.
struct ScalarCall {
    std::int64_t input, output = 0;
    graph::Buffer buffers[2];
    graph::Request request{};

    explicit ScalarCall(std::int64_t value) : input(value) {
        buffers[0] = {&input, 4, 0, nullptr};
        buffers[1] = {&output, 4, 0, nullptr};
        request = {"loss", 4, 1, 1, buffers, {}, {}, nullptr};
    }

    bool meets(int library) {
        graph::FastResult result;
        if (!fast_call(library, &request, &result)) return false;
        check(result.nbytes[0] == sizeof output, "the length of the output");
        std::memcpy(&output, result.data, sizeof output);
        return true;
    }
};

inline FastTerms scalar_terms() { return {DType::int64, Op::sum, 1.0, 1.0, {{4, {}}}}; }

// Each rank is another library of this process. Other threads come with the same spec, close the way, and end it.
inline void calls_of_libraries_meet_until_the_way_is_closed() {
    constexpr int size = 3;
    for (int session = 0; session < 4; ++session) {
        Hub hub(size);
        SlowWay slow(size);
        run_threads(size, [&](int rank) {
            FastPath path(rank, names(size), [&](const std::string& mine) { return hub.exchange(rank, mine); }, 100'000);
            std::atomic<bool> is_over{false};
            std::thread other([&] {
                Whims whims(rank + 10);
                while (!is_over.load()) {
                    whims.dawdle();
                    if (whims.is_elsewhere()) path.detach("another name");
                    if (whims.is_elsewhere()) path.detach("allreduce.loss");
                }
            });
            Whims whims(rank);
            for (int call = 0; call < fast_calls / 4; ++call) {
                whims.dawdle();
                ScalarCall asked(part_of(rank, call));
                if (!asked.meets(rank + 1)) {
                    path.detach("allreduce.loss");
                    asked.output = SlowWay::sum(slow.gather(rank, asked.input));
                    check(path.attach(rank + 1, "loss", "allreduce.loss", 7, scalar_terms(), {}), "no such slot");
                }
                check(asked.output == sum_of(size, call), "the sum of call " + std::to_string(call));
            }
            is_over.store(true);
            other.join();
            check(path.met() > 0, "no call has met");
            path.stop();
            check(!ScalarCall(0).meets(rank + 1), "a call went in after the end");
            path.close();
            check(!path.attach(rank + 1, "loss", "allreduce.loss", fast_slots, scalar_terms(), {}), "a slot too many");
        });
    }
}

}  // namespace test
