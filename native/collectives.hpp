// Collectives other than allreduce. Each member stages the data for the others, in steps of the staging area's size.
//
// One barrier for each step is enough, because halves alternate (station.hpp): while a step is staged in one half, the
// previous step is collected from the other half, which no member writes before all have passed the next barrier. So a
// collective needs no barrier at its end: the next one is staged in the half that no member reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "array.hpp"
#include "communicator.hpp"
#include "reduce.hpp"
#include "steps.hpp"

namespace farandole {

using Counts = std::vector<std::uint64_t>;

// Begin of each member's part in consecutive parts of `counts` elements.
inline std::vector<std::size_t> offsets(const Counts& counts) {
    std::vector<std::size_t> starts;
    std::size_t sum = 0;
    for (const std::uint64_t count : counts) {
        starts.push_back(sum);
        sum += count;
    }
    return starts;
}

// Copy a member's own part; an in-place call has it in its place already.
inline void copy_own(std::byte* to, const std::byte* from, std::size_t nbytes) {
    if (to != from) copy_bytes(to, from, nbytes);
}

// Stage step `k` of every other member's part of `array` in that member's lane.
inline void stage_parts(Communicator& group, const Lanes& lane, const Array& array, const Counts& counts,
                        std::size_t k) {
    const std::size_t item = itemsize(array.dtype);
    std::size_t part = 0;
    for (int member = 0; member < group.size(); ++member) {
        const std::size_t count = counts[static_cast<std::size_t>(member)];
        if (member != group.place()) {
            copy_bytes(group.mine().contributions + lane.offset(member), array.at(part + lane.start(k, count)),
                       lane.size(k, count) * item);
        }
        part += count;
    }
}

// Stage step k and collect the others' step k - 1; one barrier for each step. `steps` is called only after the first
// step, because members may get the number of steps from one another.
template <class Stage, class Steps, class Collect>
void exchange_steps(Communicator& group, const Signature& signature, Stage stage, Steps steps, Collect collect) {
    stage(0);
    group.open(signature);
    const std::size_t last = steps();
    for (std::size_t k = 1; k <= last; ++k) {
        if (k < last) stage(k);
        collect(k - 1);
        if (k < last) group.next_epoch();
    }
}

inline void list_counts(Communicator& group, const Counts& counts, int from = 0) {
    std::copy(counts.begin(), counts.end(), group.mine().counts + from);
}

inline void barrier(Communicator& group) { group.open(Signature{}); }

// All-gather of a few bytes; lengths may differ.
inline std::vector<std::string> gather(Communicator& group, const std::string& payload, Verb verb = Verb::gather,
                                       std::uint64_t count = 0) {
    if (payload.size() > stage_bytes)
        throw Unsupported("gather carries at most " + std::to_string(stage_bytes) + " bytes");
    Signature signature;
    signature.verb = verb;
    signature.count = count;
    group.mine().counts[0] = payload.size();
    std::memcpy(group.mine().contributions, payload.data(), payload.size());
    group.open(signature);
    std::vector<std::string> all;
    for (int member = 0; member < group.size(); ++member) {
        const Half& half = group.theirs(member);
        all.emplace_back(reinterpret_cast<const char*>(half.contributions), half.counts[0]);
    }
    return all;
}

inline void allgather(Communicator& group, Array send, Array recv, const Counts& counts) {
    const std::size_t item = itemsize(send.dtype);
    const Lanes lane(1, item);
    const std::vector<std::size_t> starts = offsets(counts);
    group.count_bytes(send.nbytes());
    Signature signature;
    signature.verb = Verb::allgather;
    signature.dtype = send.dtype;
    signature.listed = group.size();
    list_counts(group, counts);

    auto stage = [&](std::size_t k) {
        copy_bytes(group.mine().contributions, send.at(lane.start(k, send.count)), lane.size(k, send.count) * item);
    };
    auto collect = [&](std::size_t k) {
        for (int member = 0; member < group.size(); ++member) {
            if (member == group.place()) continue;
            const std::size_t count = counts[static_cast<std::size_t>(member)], start = lane.start(k, count);
            std::byte* to = recv.at(starts[static_cast<std::size_t>(member)] + start);
            copy_bytes(to, group.theirs(member).contributions, lane.size(k, count) * item);
        }
    };
    exchange_steps(
        group, signature, stage, [&] { return lane.steps(*std::max_element(counts.begin(), counts.end())); }, collect);
    copy_own(recv.at(starts[static_cast<std::size_t>(group.place())]), send.address, send.nbytes());
}

inline void broadcast(Communicator& group, Array array, int root) {
    const std::size_t item = itemsize(array.dtype);
    const Lanes lane(1, item);
    group.count_bytes(array.nbytes());
    Signature signature;
    signature.verb = Verb::broadcast;
    signature.dtype = array.dtype;
    signature.count = array.count;
    signature.root = root;

    auto stage = [&](std::size_t k) {
        if (group.place() != root) return;
        copy_bytes(group.mine().contributions, array.at(lane.start(k, array.count)), lane.size(k, array.count) * item);
    };
    auto collect = [&](std::size_t k) {
        if (group.place() == root) return;
        copy_bytes(array.at(lane.start(k, array.count)), group.theirs(root).contributions,
                   lane.size(k, array.count) * item);
    };
    exchange_steps(group, signature, stage, [&] { return lane.steps(array.count); }, collect);
}

// After `open`: check that counts to send equal counts to receive. Returns the largest staged part.
inline std::size_t matched_parts(const Communicator& group) {
    std::uint64_t largest = 0;
    const int size = group.size();
    for (int from = 0; from < size; ++from) {
        for (int to = 0; to < size; ++to) {
            const std::uint64_t sent = group.theirs(from).counts[to];
            if (sent != group.theirs(to).counts[size + from]) {
                throw Mismatch("the members of " + group.options().label +
                               " asked for different things: in an alltoall " + group.name(from) + " sends " +
                               std::to_string(sent) + " elements to " + group.name(to) + ", which expects " +
                               std::to_string(group.theirs(to).counts[size + from]));
            }
            if (from != to) largest = std::max(largest, sent);
        }
    }
    return largest;
}

inline void alltoall(Communicator& group, Array send, const Counts& send_counts, Array recv,
                     const Counts& recv_counts) {
    const std::size_t item = itemsize(send.dtype);
    const Lanes lane(group.size(), item);
    const std::vector<std::size_t> send_starts = offsets(send_counts), recv_starts = offsets(recv_counts);
    group.count_bytes(send.nbytes());
    Signature signature;
    signature.verb = Verb::alltoall;
    signature.dtype = send.dtype;
    list_counts(group, send_counts);
    list_counts(group, recv_counts, group.size());

    auto stage = [&](std::size_t k) { stage_parts(group, lane, send, send_counts, k); };
    auto collect = [&](std::size_t k) {
        for (int member = 0; member < group.size(); ++member) {
            if (member == group.place()) continue;
            const std::size_t count = recv_counts[static_cast<std::size_t>(member)], start = lane.start(k, count);
            std::byte* to = recv.at(recv_starts[static_cast<std::size_t>(member)] + start);
            copy_bytes(to, group.theirs(member).contributions + lane.offset(group.place()), lane.size(k, count) * item);
        }
    };
    exchange_steps(group, signature, stage, [&] { return lane.steps(matched_parts(group)); }, collect);
    const auto own = static_cast<std::size_t>(group.place());
    copy_own(recv.at(recv_starts[own]), send.at(send_starts[own]), send_counts[own] * item);
}

inline void reducescatter(Communicator& group, Array send, Array recv, const Counts& counts,
                          const Reduction& reduction) {
    require_served(send.dtype, reduction.op);
    const std::size_t item = itemsize(send.dtype);
    const Lanes lane(group.size(), item);
    const std::vector<std::size_t> starts = offsets(counts);
    const std::size_t own_count = counts[static_cast<std::size_t>(group.place())];
    group.count_bytes(send.nbytes());
    Signature signature = reduction_signature(Verb::reducescatter, send, reduction);
    signature.listed = group.size();
    list_counts(group, counts);

    auto stage = [&](std::size_t k) { stage_parts(group, lane, send, counts, k); };
    auto collect = [&](std::size_t k) {
        const std::size_t start = lane.start(k, own_count);
        const std::byte* sources[max_members];
        for (int member = 0; member < group.size(); ++member) {
            sources[member] = member == group.place() ? send.at(starts[static_cast<std::size_t>(member)] + start)
                                                      : group.theirs(member).contributions + lane.offset(group.place());
        }
        reduce({sources, group.size(), recv.at(start), lane.size(k, own_count), reduction.scaling(group.size())},
               send.dtype, reduction.op);
    };
    exchange_steps(
        group, signature, stage, [&] { return lane.steps(*std::max_element(counts.begin(), counts.end())); }, collect);
}

}  // namespace farandole
