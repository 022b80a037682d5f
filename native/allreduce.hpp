// Allreduce by three algorithms that give the same bits:
//
//   small      every member stages its whole array and reduces everything itself: one barrier
//   in place   member r reduces slice r over all members' engine memory and stores it to all: two barriers
//   staged     chunk by chunk: each member copies in the slices for the others, member r reduces slice r and stores it
//              to all, and each member copies the results out
//
// No lock guards the shared memory; barriers order the accesses (station.hpp). With "in place" and "staged", between
// two barriers only member r reads and writes slice r of all contributions, so it may store results over contributions.
// The last barrier of "in place" protects the owners: before it, other members may still be storing into their arrays.
#pragma once

#include <cstddef>
#include <cstring>

#include "array.hpp"
#include "communicator.hpp"
#include "reduce.hpp"
#include "region.hpp"
#include "steps.hpp"

namespace farandole {

// Up to this size, saving one barrier is worth that every member reduces everything.
constexpr std::size_t small_allreduce_bytes = 8192;

// Results are stored to the other members in pieces of this size: large enough for the fast path of memcpy, which
// overwrites cache lines without fetching them from a peer's cache, and small enough to be still in the L1 cache.
constexpr std::size_t piece_bytes = 32 * 1024;

class Allreduce {
public:
    // `region` is the engine memory that `array` lies in, if any.
    Allreduce(Communicator& group, Array array, Reduction reduction, const Region* region)
        : group_(group), array_(array), reduction_(reduction), region_(region), item_(itemsize(array.dtype)) {
        signature_ = reduction_signature(Verb::allreduce, array, reduction);
        if (region != nullptr) {
            signature_.region = region->number();
            signature_.offset = static_cast<std::uint64_t>(array.address - region->data());
        }
        chunk_ = stage_bytes / item_;
    }

    void run() {
        require_served(array_.dtype, reduction_.op);
        group_.count_bytes(array_.nbytes());
        if (array_.nbytes() <= small_allreduce_bytes) return small();
        if (region_ == nullptr) stage(0);
        group_.open(signature_);
        int apart = 0;
        for (int member = 0; member < group_.size(); ++member) apart += signature_of(member).region == 0;
        if (apart == 0 && same_region()) return in_place();
        if (apart < group_.size()) {  // some members did not stage: all of them start again
            stage(0);
            group_.next_epoch();
        }
        staged();
    }

private:
    const Signature& signature_of(int member) const { return group_.theirs(member).signature; }

    bool same_region() const {
        for (int member = 0; member < group_.size(); ++member) {
            if (signature_of(member).region != signature_.region) return false;
        }
        return true;
    }

    void reduce_to(std::byte* target, const std::byte* const* sources, std::size_t count) const {
        reduce({sources, group_.size(), target, count, reduction_.scaling(group_.size())}, array_.dtype, reduction_.op);
    }

    // Reduce the data at each member's place and store the result to all places, this member's own first.
    void reduce_in(std::byte* const* places, std::size_t count) const {
        const std::size_t piece = piece_bytes / item_;
        for (std::size_t start = 0; start < count; start += piece) {
            const std::size_t n = std::min(piece, count - start);
            const std::byte* sources[max_members];
            for (int member = 0; member < group_.size(); ++member) sources[member] = places[member] + start * item_;
            std::byte* own = places[group_.place()] + start * item_;
            reduce_to(own, sources, n);
            for (int member = 0; member < group_.size(); ++member) {
                if (member != group_.place()) copy_bytes(places[member] + start * item_, own, n * item_);
            }
        }
    }

    void small() {
        copy_bytes(group_.mine().contributions, array_.address, array_.nbytes());
        group_.open(signature_);
        const std::byte* sources[max_members];
        for (int member = 0; member < group_.size(); ++member) sources[member] = group_.theirs(member).contributions;
        reduce_to(array_.address, sources, array_.count);
    }

    void in_place() {
        group_.count_in_place();
        const Slices slices(array_.count, group_.size(), item_);
        std::byte* places[max_members];
        for (int member = 0; member < group_.size(); ++member) {
            places[member] = region_->base(member) + signature_of(member).offset + slices.start(group_.place()) * item_;
        }
        reduce_in(places, slices.size(group_.place()));
        group_.next_epoch();
    }

    // Between two barriers: collect step k - 2, stage step k in the cache lines just read, reduce step k - 1. Step 0 is
    // staged already. The order matters: step k is staged over the results of step k - 2.
    void staged() {
        const std::size_t steps = ceil_div(array_.count, chunk_);
        for (std::size_t k = 1; k < steps + 2; ++k) {
            if (k >= 2) collect(k - 2);
            if (k < steps) stage(k);
            if (k <= steps) reduce_own(k - 1);
            if (k <= steps) group_.next_epoch();
        }
    }

    std::size_t start(std::size_t k) const { return k * chunk_; }
    Slices slices(std::size_t k) const {
        return Slices(std::min(chunk_, array_.count - start(k)), group_.size(), item_);
    }

    // Copy in the slices that other members reduce.
    void stage(std::size_t k) {
        const Slices cut = slices(k);
        std::byte* stage = group_.mine().contributions;
        const std::size_t before = cut.start(group_.place()), after = cut.start(group_.place() + 1);
        copy_bytes(stage, array_.at(start(k)), before * item_);
        copy_bytes(stage + after * item_, array_.at(start(k) + after), (cut.start(group_.size()) - after) * item_);
    }

    // Store the results where the other members staged their contributions.
    void reduce_own(std::size_t k) {
        const Slices cut = slices(k);
        const std::size_t first = cut.start(group_.place());
        std::byte* places[max_members];
        for (int member = 0; member < group_.size(); ++member) {
            places[member] = member == group_.place() ? array_.at(start(k) + first)
                                                      : group_.theirs(member).contributions + first * item_;
        }
        reduce_in(places, cut.size(group_.place()));
    }

    // Copy out the slices that other members reduced. They are in the half that this member may write again now.
    void collect(std::size_t k) {
        const Slices cut = slices(k);
        const std::byte* stage = group_.mine().contributions;
        const std::size_t before = cut.start(group_.place()), after = cut.start(group_.place() + 1);
        copy_bytes(array_.at(start(k)), stage, before * item_);
        copy_bytes(array_.at(start(k) + after), stage + after * item_, (cut.start(group_.size()) - after) * item_);
    }

    Communicator& group_;
    Array array_;
    Reduction reduction_;
    const Region* region_;
    std::size_t item_;
    std::size_t chunk_;
    Signature signature_;
};

}  // namespace farandole
