// A member's end of a group: epochs, comparison of signatures, and the end of the group. Base of the collectives.
//
// A communicator owns no memory and starts no thread. One thread at a time may use it; only `abort` and `statistics`
// may be called from any thread. So `epoch_`, `sequence_` and `current_` are plain and the counters are atomic. Members
// write shared memory by the rule of station.hpp; the first member to end the group writes its `Ending`.
#pragma once

#include <cstdint>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "barrier.hpp"
#include "signature.hpp"
#include "station.hpp"

namespace farandole {

// Members called different collectives; all of them throw it, and the next collective works.
struct Mismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// A member did not arrive before the deadline.
struct Stalled : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// The group has ended.
struct Aborted : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// `GroupOptions::interrupt` ended a wait.
struct Interrupted : std::exception {};

struct GroupOptions {
    int place = 0;
    std::vector<std::string> names;  // of the members, for errors
    std::string label;               // of the group, for errors
    std::int64_t deadline_ns = 600 * second_ns;
    std::int64_t spin_ns = 50'000;  // about the cost of sleeping and waking: longer cannot pay
    Interrupt interrupt;
};

// Counters of a member.
struct Statistics {
    std::uint64_t collectives = 0;
    std::uint64_t bytes = 0;     // contributed to collectives
    std::uint64_t in_place = 0;  // collectives that worked in engine memory
    std::uint64_t sleeps = 0;    // waits that gave the processor away
};

class Communicator {
public:
    // `stations` by place; up to `max_members`.
    Communicator(GroupOptions options, std::vector<Station*> stations)
        : options_(std::move(options)),
          stations_(std::move(stations)),
          barrier_(stations_.at(0)->words, static_cast<std::uint32_t>(stations_.size()), options_.spin_ns) {}

    int place() const { return options_.place; }
    int size() const { return static_cast<int>(stations_.size()); }
    const std::string& name(int member) const { return options_.names[static_cast<std::size_t>(member)]; }
    const GroupOptions& options() const { return options_; }

    // The half that this member writes in this epoch, and the half that `member` wrote in the last, to read and answer.
    Half& mine() { return station(place()).halves[epoch_ % 2]; }
    Half& theirs(int member) const { return station(member).halves[(epoch_ + 1) % 2]; }

    // Begin a collective: publish its signature (`mine()` may already hold contributions and counts) and end the epoch.
    // Afterwards all signatures are equal, or every member throws `Mismatch` and the next collective works.
    void open(Signature signature) {
        signature.sequence = ++sequence_;
        current_ = signature;
        mine().signature = signature;
        collectives_.add(1);
        next_epoch();
        const Half& first = theirs(0);
        const std::size_t listed = static_cast<std::size_t>(signature.listed) * sizeof *first.counts;
        for (int member = 0; member < size(); ++member) {
            const Half& half = theirs(member);
            if (!half.signature.agrees(first.signature) || std::memcmp(half.counts, first.counts, listed) != 0)
                disagree();
        }
    }

    // Throw `Mismatch` with the signatures of all members.
    [[noreturn]] void disagree() const {
        std::string text = "the members of " + options_.label + " asked for different things: ";
        for (int member = 0; member < size(); ++member) {
            const Half& half = theirs(member);
            text += (member == 0 ? "" : "; ") + name(member) + " said " + describe(half.signature);
            if (half.signature.listed > 0) text += " with counts " + list_text(half.counts, half.signature.listed);
        }
        throw Mismatch(text);
    }

    // End the epoch: returns when every member has ended it, or throws.
    void next_epoch() {
        // Only for error texts, hence relaxed: a name too many or too few does no harm.
        station(place()).arrivals.store(epoch_ + 1, std::memory_order_relaxed);
        const Wait outcome = barrier_.wait(now_ns() + options_.deadline_ns, options_.interrupt);
        if (outcome != Wait::passed) fail(outcome);
        ++epoch_;
    }

    // End the group for all members, from any thread; the first reason is kept.
    void abort(const std::string& reason) { end(Cause::aborted, reason); }

    void count_bytes(std::size_t nbytes) { bytes_.add(nbytes); }
    void count_in_place() { in_place_.add(1); }

    // From any thread.
    Statistics statistics() const {
        return {collectives_.value(), bytes_.value(), in_place_.value(), barrier_.sleeps()};
    }

private:
    Station& station(int member) const { return *stations_[static_cast<std::size_t>(member)]; }
    Ending& ending() { return stations_[0]->ending; }

    void end(Cause cause, const std::string& reason) {
        ending().write(cause, reason);  // before the abort: woken members read it at once
        barrier_.abort();
    }

    [[noreturn]] void fail(Wait outcome) {
        if (outcome == Wait::interrupted) {
            end(Cause::aborted, name(place()) + " was interrupted by a signal in " + describe(current_));
            throw Interrupted();
        }
        if (outcome == Wait::late) end(Cause::stalled, late_text());
        const std::string reason = ending().reason();
        if (ending().why() == Cause::stalled) throw Stalled(reason);
        throw Aborted(reason);
    }

    std::string late_text() const {
        std::string missing;
        for (int member = 0; member < size(); ++member) {
            if (station(member).arrivals.load(std::memory_order_relaxed) > epoch_) continue;
            missing += (missing.empty() ? "" : ", ") + name(member);
        }
        const auto waited = static_cast<double>(options_.deadline_ns) / static_cast<double>(second_ns);
        std::ostringstream text;
        text << name(place()) << " waited " << waited << " s in " << describe(current_) << " on " << options_.label
             << "; missing: " << missing;
        return text.str();
    }

    GroupOptions options_;
    std::vector<Station*> stations_;
    Barrier barrier_;
    Counter collectives_, bytes_, in_place_;
    std::uint64_t epoch_ = 0;
    std::uint64_t sequence_ = 0;
    Signature current_;
};

}  // namespace farandole
