// A member's end of a group with all that it owns: segments, regions, and the locks that make ending safe.
//
// One thread calls collectives; any other thread may call `abort` and `close` at any time. Hence two locks, taken in
// this order: `busy_` is held while a collective runs, possibly for minutes, and `alive_` only shortly. `group_`
// changes under both locks, so it may be read under either: a collective reads it under `busy_`, and `abort` and
// `statistics` under `alive_`, so that they work while a collective waits. `busy_` alone guards `regions_`. `close`
// first aborts under `alive_`; otherwise it would get `busy_` only when the collective ends by itself.
//
// Code under `alive_` must not need the GIL, because `abort` and `statistics` wait for `alive_` with the GIL held.
#pragma once

#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "allreduce.hpp"
#include "collectives.hpp"
#include "communicator.hpp"
#include "region.hpp"
#include "segment.hpp"

namespace farandole {

// All-gather of a few bytes among the members.
using Exchange = std::function<std::vector<std::string>(const std::string&)>;

// Every member makes a segment of `nbytes` and maps the segments of all members; returns the mappings by place. If one
// member fails, all throw. The descriptors are closed at return.
inline std::vector<Mapping> share(std::size_t nbytes, int place, const std::vector<std::string>& names,
                                  const Exchange& exchange) {
    // A member sends '+' and its card, or '-' and its error.
    auto settle = [&](const std::string& mine) {
        const std::vector<std::string> all = exchange(mine);
        for (std::size_t member = 0; member < names.size(); ++member) {
            if (all.at(member).empty() || all[member][0] != '+') {
                throw Failure(names[member] +
                              " could not share memory: " + all[member].substr(all[member].empty() ? 0 : 1));
            }
        }
        return all;
    };
    auto attempt = [](auto&& f) -> std::string {
        try {
            return "+" + f();
        } catch (const Failure& failure) {
            return std::string("-") + failure.what();
        }
    };

    Segment own;
    const std::vector<std::string> cards = settle(attempt([&] {
        own = Segment::make(nbytes, names.size());
        return std::string(reinterpret_cast<const char*>(&own.card), sizeof own.card);
    }));
    std::vector<Mapping> mappings(names.size());
    settle(attempt([&] {
        for (std::size_t member = 0; member < names.size(); ++member) {
            if (static_cast<int>(member) == place) continue;
            Card card;
            if (cards[member].size() != 1 + sizeof card)
                throw Failure("a card of " + std::to_string(cards[member].size()) + " bytes came");
            std::memcpy(&card, cards[member].data() + 1, sizeof card);
            mappings[member] = attach(card);
        }
        return std::string();
    }));
    mappings[static_cast<std::size_t>(place)] = std::move(own.mapping);
    return mappings;
}

class Endpoint {
public:
    Endpoint(const GroupOptions& options, const Exchange& exchange)
        : names_(options.names), mappings_(share(sizeof(Station), options.place, options.names, exchange)) {
        std::vector<Station*> stations;
        for (const Mapping& mapping : mappings_) stations.push_back(reinterpret_cast<Station*>(mapping.data()));
        group_ = std::make_unique<Communicator>(options, std::move(stations));
    }
    ~Endpoint() { close(); }
    Endpoint(const Endpoint&) = delete;
    Endpoint& operator=(const Endpoint&) = delete;

    // Run `f(group)`, a collective, unless the endpoint was closed.
    template <class F>
    auto collective(F&& f) {
        if (!is_mine())
            throw Aborted("this engine belongs to process " + std::to_string(process_) + ", not to its fork");
        const std::lock_guard busy(busy_);
        if (!group_) throw Aborted("this engine was closed");
        return f(*group_);
    }

    void allreduce(Array array, const Reduction& reduction) {
        collective([&](Communicator& group) {
            const std::shared_ptr<Region> region = region_of(array);
            Allreduce(group, array, reduction, region.get()).run();
        });
    }

    void allgather(std::byte* send, std::byte* recv, DType dtype, const Counts& counts) {
        collective([&](Communicator& group) {
            require_members(group, counts);
            farandole::allgather(group, {send, counts[own(group)], dtype}, {recv, sum(counts), dtype}, counts);
        });
    }

    void broadcast(Array array, int root) {
        collective([&](Communicator& group) {
            if (root < 0 || root >= group.size()) {
                throw Unsupported("broadcast from place " + std::to_string(root) + " in a group of " +
                                  std::to_string(group.size()));
            }
            farandole::broadcast(group, array, root);
        });
    }

    void alltoall(std::byte* send, const Counts& send_counts, std::byte* recv, const Counts& recv_counts, DType dtype) {
        collective([&](Communicator& group) {
            require_members(group, send_counts);
            require_members(group, recv_counts);
            farandole::alltoall(group, {send, sum(send_counts), dtype}, send_counts, {recv, sum(recv_counts), dtype},
                                recv_counts);
        });
    }

    void reducescatter(std::byte* send, std::byte* recv, DType dtype, const Counts& counts,
                       const Reduction& reduction) {
        collective([&](Communicator& group) {
            require_members(group, counts);
            farandole::reducescatter(group, {send, sum(counts), dtype}, {recv, counts[own(group)], dtype}, counts,
                                     reduction);
        });
    }

    std::vector<std::string> gather(const std::string& mine) {
        return collective([&](Communicator& group) { return farandole::gather(group, mine); });
    }

    void barrier() {
        collective([](Communicator& group) { farandole::barrier(group); });
    }

    // Engine memory of `nbytes` on every member.
    std::shared_ptr<Region> allocate(std::size_t nbytes) {
        return collective([&](Communicator& group) {
            const Exchange exchange = [&](const std::string& mine) {
                return farandole::gather(group, mine, Verb::allocate, nbytes);
            };
            std::vector<Mapping> mappings = share(nbytes, group.place(), names_, exchange);
            auto region = std::make_shared<Region>(++regions_made_, group.place(), std::move(mappings));
            regions_.push_back(region);
            return region;
        });
    }

    void abort(const std::string& reason) {
        if (!is_mine()) return;
        const std::lock_guard alive(alive_);
        if (group_) group_->abort(reason);
    }

    // Needs no peer. Later collectives of peers fail with an error that this member has left.
    void close() {
        if (!is_mine()) return;
        {
            const std::lock_guard alive(alive_);
            if (!group_) return;
            group_->abort(group_->name(group_->place()) + " has left the group");
        }
        const std::lock_guard busy(busy_);
        const std::lock_guard alive(alive_);
        group_.reset();
        mappings_.clear();
        for (const std::weak_ptr<Region>& region : regions_) {
            if (const std::shared_ptr<Region> used = region.lock()) used->forget_peers();
        }
    }

    Statistics statistics() {
        if (!is_mine()) return {};
        const std::lock_guard alive(alive_);
        return group_ ? group_->statistics() : Statistics{};
    }

private:
    // A forked child (a data loader's worker) inherits this object, and must not end the group when it frees it. It
    // must not take locks either: a thread that held one at the fork does not exist in the child and never releases it.
    bool is_mine() const { return getpid() == process_; }

    static std::size_t own(const Communicator& group) { return static_cast<std::size_t>(group.place()); }
    static std::uint64_t sum(const Counts& counts) {
        return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    }
    static void require_members(const Communicator& group, const Counts& counts) {
        if (counts.size() == static_cast<std::size_t>(group.size())) return;
        throw Unsupported(std::to_string(counts.size()) + " counts were given for a group of " +
                          std::to_string(group.size()));
    }

    std::shared_ptr<Region> region_of(const Array& array) {
        for (auto it = regions_.begin(); it != regions_.end();) {
            std::shared_ptr<Region> region = it->lock();
            if (region == nullptr) {
                it = regions_.erase(it);
                continue;
            }
            if (region->holds(array.address)) return region;
            ++it;
        }
        return nullptr;
    }

    const pid_t process_ = getpid();
    std::vector<std::string> names_;
    std::vector<Mapping> mappings_;
    std::unique_ptr<Communicator> group_;
    std::vector<std::weak_ptr<Region>> regions_;
    std::uint64_t regions_made_ = 0;
    std::mutex busy_;   // held during a collective
    std::mutex alive_;  // held while the segments must stay mapped
};

}  // namespace farandole
