// The native core under the sanitizers: `make sanitize` builds and runs this with TSan, and with ASan + UBSan.
//
// Whether results are right in every dtype is the contract suite's business (tests/engines); here threads race for the
// same memory, and every wait is ended in every way.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>

#include "digest.hpp"
#include "elementwise.hpp"
#include "fast_path_cases.hpp"
#include "ranks.hpp"

namespace {

using namespace test;

constexpr int many = 7;  // more threads than the machines that run this have processors

void a_barrier_holds_everybody() {
    for (const int size : {1, 2, 3, many}) {
        std::atomic<int> came{0};
        run_ranks(size, [&](Communicator& group) {
            for (int round = 1; round <= 300; ++round) {
                came.fetch_add(1, std::memory_order_relaxed);
                barrier(group);
                check(came.load(std::memory_order_relaxed) >= round * size,
                      "a rank left the barrier before all had come");
                barrier(group);
            }
        });
        check(came == 300 * size, "a rank is missing");
    }
}

void a_late_rank_wakes_sleepers() {
    const Stations stations(3);
    const std::atomic<std::uint32_t>& sleepers = stations.all()[0]->words.sleepers;
    run_threads(3, [&](int rank) {
        Communicator group(options(rank, 3), stations.all());
        for (int round = 0; round < 30; ++round) {
            if (rank == round % 3) {
                while (sleepers.load() < 2) std::this_thread::yield();
            }
            barrier(group);
        }
        check(group.statistics().sleeps > 0, "a rank that waited for late ones never slept");
    });
}

std::vector<float> ramp(std::size_t count, int rank) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 97 + static_cast<std::size_t>(rank));
    return values;
}

void check_sum(const std::vector<float>& values, int size) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto expected = static_cast<float>(static_cast<std::size_t>(size) * (i % 97) +
                                                 static_cast<std::size_t>(size * (size - 1) / 2));
        check(values[i] == expected, "element " + std::to_string(i) + " of the sum");
    }
}

void allreduce_of_every_length() {
    for (const int size : {1, 2, 3, many}) {
        run_ranks(size, [&](Communicator& group) {
            for (const std::size_t count : {0, 1, 2047, 2048, 2049, 40'000, 131'072, 131'073, 300'001}) {
                std::vector<float> values = ramp(count, group.place());
                Allreduce(group, array_of(values, DType::float32), {}, nullptr).run();
                check_sum(values, size);
            }
        });
    }
}

void allgather_and_broadcast() {
    for (const int size : {2, 3, many}) {
        run_ranks(size, [&](Communicator& group) {
            for (const std::uint64_t length : {0, 5, 70'000, 150'000}) {
                Counts counts;
                for (int rank = 0; rank < size; ++rank) counts.push_back(length * static_cast<std::uint64_t>(rank));
                std::vector<std::int64_t> mine(counts[static_cast<std::size_t>(group.place())], group.place());
                std::vector<std::int64_t> all(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}), -1);
                allgather(group, array_of(mine, DType::int64), array_of(all, DType::int64), counts);
                std::size_t i = 0;
                for (int rank = 0; rank < size; ++rank) {
                    for (std::uint64_t n = 0; n < counts[static_cast<std::size_t>(rank)]; ++n)
                        check(all[i++] == rank, "gathered");
                }
                std::vector<std::int64_t> told(length, group.place());
                broadcast(group, array_of(told, DType::int64), size - 1);
                for (const std::int64_t value : told) check(value == size - 1, "broadcast");
            }
        });
    }
}

void alltoall_and_reducescatter() {
    for (const int size : {2, 3, many}) {
        run_ranks(size, [&](Communicator& group) {
            for (const std::uint64_t length : {0, 3, 60'000}) {
                const auto me = static_cast<std::uint64_t>(group.place());
                Counts out, in;
                for (std::uint64_t rank = 0; rank < static_cast<std::uint64_t>(size); ++rank) {
                    out.push_back(length * rank + me);  // rank r gets from sender s: length * r + s
                    in.push_back(length * me + rank);
                }
                std::vector<std::int32_t> send(std::accumulate(out.begin(), out.end(), std::uint64_t{0}),
                                               group.place());
                std::vector<std::int32_t> recv(std::accumulate(in.begin(), in.end(), std::uint64_t{0}), -1);
                alltoall(group, array_of(send, DType::int32), out, array_of(recv, DType::int32), in);
                std::size_t i = 0;
                for (int rank = 0; rank < size; ++rank) {
                    for (std::uint64_t n = 0; n < in[static_cast<std::size_t>(rank)]; ++n)
                        check(recv[i++] == rank, "alltoall");
                }
                const Counts parts(static_cast<std::size_t>(size), length);
                std::vector<float> whole = ramp(length * static_cast<std::uint64_t>(size), 1), part(length);
                reducescatter(group, array_of(whole, DType::float32), array_of(part, DType::float32), parts,
                              {Op::average, 1.0, 1.0});
                for (std::size_t n = 0; n < part.size(); ++n) check(part[n] == whole[me * length + n], "reducescatter");
            }
        });
    }
}

void a_mismatch_is_everybodys_and_the_next_call_works() {
    run_ranks(3, [&](Communicator& group) {
        for (int round = 0; round < 20; ++round) {
            std::vector<float> values = ramp(round % 2 == 0 ? 10 : 100'000, group.place());
            const std::string said = thrown<Mismatch>([&] {
                if (group.place() == 1) return barrier(group);
                Allreduce(group, array_of(values, DType::float32), {}, nullptr).run();
            });
            check_contains(said, "rank 1 said barrier");
            check_contains(said, "rank 2 said allreduce of " + std::to_string(values.size()) + " float32, Sum");
            Allreduce(group, array_of(values, DType::float32), {}, nullptr).run();
        }
    });
}

void splits_that_do_not_fit_are_a_mismatch() {
    run_ranks(2, [&](Communicator& group) {
        std::vector<std::uint8_t> send(8), recv(8);
        const std::string said = thrown<Mismatch>([&] {
            alltoall(group, array_of(send, DType::uint8), {4, 4}, array_of(recv, DType::uint8),
                     {4, group.place() == 0 ? 4u : 3u});
        });
        check_contains(said, "rank 1 sends 4 elements to rank 1, which expects 3");
        barrier(group);
    });
}

// Whatever the others are doing when the group is aborted, all of them leave with the same reason.
void an_abort_ends_every_call() {
    for (int round = 0; round < 60; ++round) {
        run_ranks(4, [&](Communicator& group) {
            std::vector<float> values(round % 2 == 0 ? 100 : 50'000);
            if (group.place() == 3) {
                for (int call = 0; call < round % 7; ++call)
                    Allreduce(group, array_of(values, DType::float32), {}, nullptr).run();
                return group.abort("rank 3 was killed");
            }
            const std::string said = thrown<Aborted>([&] {
                while (true) Allreduce(group, array_of(values, DType::float32), {}, nullptr).run();
            });
            check(said == "rank 3 was killed", said);
            check(thrown<Aborted>([&] { barrier(group); }) == said, "an abort is final");
        });
    }
}

void the_deadline_names_who_is_missing() {
    run_ranks(
        3,
        [&](Communicator& group) {
            barrier(group);
            if (group.place() == 1) return;
            check_contains(thrown<Stalled>([&] { barrier(group); }), "missing: rank 1");
        },
        second_ns / 5);
}

// A signal that came while a rank still watched, or to another thread, interrupts no sleep: the rank looks by itself.
void a_signal_that_interrupts_no_sleep_is_minded() {
    const Stations stations(2);
    GroupOptions alone = options(0, 2);
    alone.interrupt = {[](void*) { return true; }, nullptr};
    Communicator group(alone, stations.all());
    const std::int64_t began_ns = now_ns();
    thrown<Interrupted>([&] { barrier(group); });
    check(now_ns() - began_ns < 10 * second_ns, "a signal was seen only late");
}

void engine_memory_is_reduced_in_place() {
    run_endpoints(3, [&](Endpoint& endpoint, int rank) {
        const auto region = endpoint.allocate(400'000);
        auto* values = reinterpret_cast<float*>(region->data());
        for (const std::size_t count : {10, 5000, 100'000}) {
            const std::vector<float> mine = ramp(count, rank);
            std::copy(mine.begin(), mine.end(), values);
            endpoint.allreduce({region->data(), count, DType::float32}, {});
            check_sum(std::vector<float>(values, values + count), 3);
            endpoint.barrier();
        }
        check(endpoint.statistics().in_place == 2, "both large ones work in place");
    });
}

void ranks_may_drop_memory_at_different_times() {
    run_endpoints(2, [&](Endpoint& endpoint, int rank) {
        auto kept = endpoint.allocate(80'000);
        auto dropped = endpoint.allocate(80'000);
        if (rank == 0) dropped.reset();
        std::vector<float> ordinary(20'000, 1.0f);
        std::byte* address = rank == 0 ? reinterpret_cast<std::byte*>(ordinary.data()) : dropped->data();
        if (rank == 1) std::fill_n(reinterpret_cast<float*>(address), 20'000, 2.0f);
        endpoint.allreduce({address, 20'000, DType::float32}, {});
        check(reinterpret_cast<float*>(address)[19'999] == 3.0f, "mixed places");
        endpoint.close();
        check(kept->data()[79'999] == std::byte{0}, "memory outlives its endpoint");
    });
}

void a_failed_allocation_is_everybodys() {
    run_endpoints(2, [&](Endpoint& endpoint, int) {
        check_contains(thrown<Failure>([&] { endpoint.allocate(std::size_t{1} << 62); }),
                       "asked for 4611686018427387904 bytes");
        endpoint.barrier();
    });
}

void closing_and_aborting_may_come_from_other_threads() {
    for (int round = 0; round < 20; ++round) {
        run_endpoints(2, [&](Endpoint& endpoint, int) {
            std::thread other([&] {
                while (endpoint.statistics().collectives < static_cast<std::uint64_t>(10 * round))
                    std::this_thread::yield();
                if (round % 2 == 0) endpoint.abort("the user is bored");
                endpoint.close();
            });
            const std::string said = thrown<Aborted>([&] {
                while (true) endpoint.barrier();
            });
            check(!said.empty(), "no reason");
            other.join();
            check_contains(thrown<Aborted>([&] { endpoint.barrier(); }), "closed");
        });
    }
}

// The compiler sees to operations that have a name; a number that got past all checks is no sum either.
void an_operation_that_no_kernel_knows_is_refused() {
    alignas(16) std::byte values[16] = {};
    const std::byte* sources[] = {values, values};
    for (const Op op : {Op::adasum, static_cast<Op>(op_count)}) {
        const auto refused = [](auto run) { check_contains(thrown<Unsupported>(run), "no kernel knows the reduction"); };
        const ReduceJob plain{sources, 2, values, 1, {}}, scaled{sources, 2, values, 1, {0.5, 1.0, 1}};
        refused([&] { reduce_booleans(plain, op); });
        refused([&] { reduce_integers<std::int32_t>(plain, op); });
        refused([&] { reduce_integers<std::int32_t>(scaled, op); });
        refused([&] { reduce_floats<float>(plain, op); });
        refused([&] { reduce_complex<float>(plain, op); });
        thrown<Unsupported>([&] { reduce(plain, DType::float32, op); });
        thrown<Unsupported>([&] { fill_identity(values, 1, DType::float32, op); });
    }
}

// tests/unit/native/test_digest.py has the definition.
void a_digest_is_the_same_everywhere() {
    std::byte memory[101];
    for (const int offset : {0, 1}) {
        for (int i = 0; i < 100; ++i) memory[offset + i] = static_cast<std::byte>(i);
        check(Digest::of(memory + offset, 100) == 0xD371F6303E5C8166, "the digest of 0, 1, ... 99");
    }
}

}  // namespace

#define CASE(f) \
    std::pair<const char*, void (*)()> { #f, f }

int main() {
    for (const auto& [name, run] :
         {CASE(a_barrier_holds_everybody), CASE(a_late_rank_wakes_sleepers), CASE(allreduce_of_every_length),
          CASE(allgather_and_broadcast), CASE(alltoall_and_reducescatter),
          CASE(a_mismatch_is_everybodys_and_the_next_call_works), CASE(splits_that_do_not_fit_are_a_mismatch),
          CASE(an_abort_ends_every_call), CASE(the_deadline_names_who_is_missing),
          CASE(a_signal_that_interrupts_no_sleep_is_minded), CASE(engine_memory_is_reduced_in_place), CASE(ranks_may_drop_memory_at_different_times),
          CASE(a_failed_allocation_is_everybodys), CASE(closing_and_aborting_may_come_from_other_threads),
          CASE(an_operation_that_no_kernel_knows_is_refused), CASE(a_digest_is_the_same_everywhere),
          CASE(members_meet_in_a_slot_or_all_go_elsewhere), CASE(calls_of_libraries_meet_until_the_way_is_closed)}) {
        const auto began = std::chrono::steady_clock::now();
        run();
        std::printf("%-60s %5.1f s\n", name,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
        std::fflush(stdout);
    }
}
