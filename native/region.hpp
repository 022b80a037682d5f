// Engine memory: the same number of bytes on every member, mapped by all, for allreduces without copying.
//
// There are no locks. Members access one another's memory only in an in-place allreduce, between two barriers, and each
// only its own slice (allreduce.hpp). A region outlives its endpoint, because tensors use its memory: `close` unmaps
// the peers' memory, and `bases_` then has invalid addresses, which only a collective would use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "segment.hpp"

namespace farandole {

class Region {
public:
    // `mappings` by place; the one at `place` is this member's own.
    Region(std::uint64_t number, int place, std::vector<Mapping> mappings)
        : number_(number), own_(std::move(mappings[static_cast<std::size_t>(place)])), peers_(std::move(mappings)) {
        for (const Mapping& mapping : peers_) bases_.push_back(mapping ? mapping.data() : own_.data());
    }

    std::uint64_t number() const { return number_; }
    std::byte* data() const { return own_.data(); }
    std::size_t nbytes() const { return own_.nbytes(); }
    bool holds(const std::byte* address) const { return address >= data() && address < data() + nbytes(); }

    // Address of the memory of `member` in this process.
    std::byte* base(int member) const { return bases_[static_cast<std::size_t>(member)]; }

    // Unmap the peers' memory; this member's own stays mapped as long as the region exists.
    void forget_peers() { peers_.clear(); }

private:
    std::uint64_t number_;
    Mapping own_;
    std::vector<Mapping> peers_;
    std::vector<std::byte*> bases_;
};

}  // namespace farandole
