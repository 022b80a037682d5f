// Fast path of graph calls: all-reduces of a few bytes that all members of a host call at about the same time.
//
// A name that the ranks reduce without the controller (the peer lane) has a slot in memory that all members map. A call
// from a graph writes its part there and polls for the other members, for at most `limit_ns`. If all arrive, each
// reduces the parts. If not, the call leaves, and goes through Python as if it had not been here. The rest of the
// runtime does not depend on this path: waits, joins, withdrawals, stalls and deaths are handled in Python.
//
//   word = round << 16 | number of members in the round
//
//   enter   write the part, then add one to the word; the last to enter sets it to the next round, with 0 members
//   leave   subtract one from the word, unless the round has changed: then the round is over, for this member, too
//
// Each is one exchange of the word, so a round ends for all members or for none. A member has two parts, by the parity
// of the round: it enters a round after it has read the parts of the previous round, and overwrites a part two rounds
// later. tests/unit/native/test_fast_path_model.py explores every interleaving.
//
// Members in the same round are in the same call of the name: a member begins a call after it has ended the previous
// one, and no call ends before all members have begun it. Before anything goes through Python under the name (a call
// that has left, another call, a refusal), this member closes its fast path (`call`, `detach`); `attach` opens it when
// that call is over. A join closes all. The name means the same for all users of a slot: the slot's number is that of
// the peer lane's grant, under which all have made a call with the same dtype, shape and reduction.
//
// A member that dies in a round has contributed to that round. The next round never ends, and the others leave it.
//
// Threads. The framework's threads call `fast_call` without the interpreter's lock (GIL); Python attaches, detaches,
// stops and closes. The table's lock, held shortly, guards `entries`. An entry's own `busy` guards it and is held
// during a round: so two calls with one spec are sequential, and `detach` returns when no round is running. `stop`
// takes no lock, because a signal handler calls it. A forked child detects its parent's table, and does not use it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "barrier.hpp"
#include "endpoint.hpp"
#include "graph_request.hpp"
#include "reduce.hpp"

namespace farandole {

constexpr std::size_t fast_slots = 4096;

// A member's part of a slot. Only the word of the first member is used.
struct FastSlot {
    alignas(64) std::atomic<std::uint64_t> word;
    alignas(64) std::atomic<std::uint64_t> left;  // number of calls in which the member left a round: a hint
    alignas(64) std::byte parts[2][graph::fast_bytes];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// One slot, used by the member at `place`. For one thread at a time.
class FastRound {
public:
    FastRound(std::vector<FastSlot*> slots, int place)
        : slots_(std::move(slots)), own_(*slots_[static_cast<std::size_t>(place)]), word_(slots_[0]->word) {}

    // Join a call with a part of `nbytes`; true: all members did, and `sources` are their parts until the next call.
    bool meet(const std::byte* part, std::size_t nbytes, std::int64_t limit_ns, const std::byte** sources) {
        const std::uint64_t left = own_.left.load(std::memory_order_relaxed);
        if (most_left() > left) {  // another member has left this call
            align();
            return false;
        }
        std::uint64_t seen = word_.load(std::memory_order_acquire);
        const std::uint64_t round = seen >> count_bits;
        std::memcpy(own_.parts[round % 2], part, nbytes);
        if (!enter(seen, round) && !watch(round, left, now_ns() + limit_ns) && !leave(round)) {
            own_.left.store(std::max(left + 1, most_left()), std::memory_order_relaxed);
            return false;
        }
        for (const FastSlot* slot : slots_) *sources++ = slot->parts[round % 2];
        return true;
    }

    // Take over the members' largest count of left rounds. If it is wrong (members may also reach a name through
    // Python), a call goes through Python without need, or polls for `limit_ns` in vain.
    void align() { own_.left.store(most_left(), std::memory_order_relaxed); }

private:
    static constexpr int count_bits = 16;

    // True if this member is the last. The round cannot end earlier.
    bool enter(std::uint64_t seen, std::uint64_t round) {
        while (true) {
            const bool is_last = (seen & 0xffff) + 1 == slots_.size();
            const std::uint64_t next = is_last ? (round + 1) << count_bits : seen + 1;
            if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
                return is_last;
            }
        }
    }

    // True if the round has ended before `end_ns`. Yields between polls, like barrier.hpp.
    bool watch(std::uint64_t round, std::uint64_t left, std::int64_t end_ns) {
        while (true) {
            for (int i = 0; i < 32; ++i) {
                if (is_over(round)) return true;
                pause_processor();
            }
            if (now_ns() >= end_ns || most_left() > left) return false;
            sched_yield();
        }
    }

    // True if the round has ended before this member could leave it.
    bool leave(std::uint64_t round) {
        std::uint64_t seen = word_.load(std::memory_order_acquire);
        while (seen >> count_bits == round) {
            if (word_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
                return false;
            }
        }
        return true;
    }

    bool is_over(std::uint64_t round) const { return word_.load(std::memory_order_acquire) >> count_bits != round; }

    std::uint64_t most_left() const {
        std::uint64_t most = 0;
        for (const FastSlot* slot : slots_) most = std::max(most, slot->left.load(std::memory_order_relaxed));
        return most;
    }

    std::vector<FastSlot*> slots_;
    FastSlot& own_;
    std::atomic<std::uint64_t>& word_;
};

// Meaning of a name, the same in all its calls.
struct FastTerms {
    DType dtype;
    Op op;
    double prescale, postscale;
    std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> inputs;  // the framework's dtype, and the shape

    std::size_t nbytes(std::size_t input) const {
        std::size_t nbytes = itemsize(dtype);
        for (const std::int64_t dim : inputs[input].second) nbytes *= static_cast<std::size_t>(dim);
        return nbytes;
    }

    std::size_t nbytes() const {
        std::size_t all = 0;
        for (std::size_t input = 0; input < inputs.size(); ++input) all += nbytes(input);
        return all;
    }

    bool is_fast() const { return inputs.size() <= graph::fast_bytes && nbytes() > 0 && nbytes() <= graph::fast_bytes; }
};

// Slots of all members of one session.
struct FastMemory {
    std::vector<Mapping> mappings;
    int place;
    std::int64_t limit_ns;
    std::atomic<bool> is_stopped{false};
    std::atomic<std::uint64_t> met{0}, left{0};
    std::atomic<std::int64_t> last_ns{0}, longest_ns{0};  // the last call, and the longest time between two

    void note() {  // calls of several entries may race: then one measured time is too short
        met.fetch_add(1, std::memory_order_relaxed);
        const std::int64_t now = now_ns();
        const std::int64_t before = last_ns.exchange(now, std::memory_order_relaxed);
        if (before != 0 && now - before > longest_ns.load(std::memory_order_relaxed)) {
            longest_ns.store(now - before, std::memory_order_relaxed);
        }
    }

    FastRound round(std::size_t slot) const {
        std::vector<FastSlot*> slots;
        for (const Mapping& mapping : mappings) slots.push_back(reinterpret_cast<FastSlot*>(mapping.data()) + slot);
        return {std::move(slots), place};
    }
};

// A spec of graph calls.
class FastEntry {
public:
    FastEntry(std::shared_ptr<FastMemory> memory, std::string name)
        : memory_(std::move(memory)), name_(std::move(name)) {}

    const std::string& name() const { return name_; }
    const FastMemory* memory() const { return memory_.get(); }

    void attach(std::size_t slot, FastTerms terms, const graph::Origin& origin) {
        const std::lock_guard busy(busy_);
        nbytes_ = terms.nbytes();
        terms_ = std::move(terms);
        round_ = std::make_unique<FastRound>(memory_->round(slot));
        round_->align();
        origin_ = origin;
        has_news_ = false;
    }

    void detach() {
        const std::lock_guard busy(busy_);
        round_.reset();
    }

    void forget_origin() {
        const std::lock_guard busy(busy_);
        origin_ = {};
        has_news_ = false;
    }

    bool call(graph::Request* request, graph::FastResult* result) {
        const std::lock_guard busy(busy_);
        if (round_ && !memory_->is_stopped.load(std::memory_order_acquire) && serves(*request) && meets(*request, result)) {
            origin_ = request->origin;
            has_news_ = true;
            return true;
        }
        round_.reset();  // the call goes to Python, in any outcome: until it is over, no other call may enter
        if (has_news_) request->previous = origin_;
        has_news_ = false;
        return false;
    }

private:
    // False for a call with another meaning, or one that ranks could confuse with another: Python refuses it.
    bool serves(const graph::Request& request) const {
        const graph::Origin& now = request.origin;
        if (now.place >= 0 && origin_.place >= 0) {
            if (now.device != origin_.device || (now.run == origin_.run && now.place != origin_.place)) return false;
        }
        if (request.inputs != static_cast<std::int64_t>(terms_.inputs.size()) || request.outputs != request.inputs) {
            return false;
        }
        for (std::int64_t i = 0; i < request.inputs; ++i) {
            const graph::Buffer& buffer = request.buffers[i];
            const auto& [dtype, dims] = terms_.inputs[static_cast<std::size_t>(i)];
            if (buffer.dtype != dtype || buffer.rank != static_cast<std::int64_t>(dims.size())) return false;
            if (!std::equal(dims.begin(), dims.end(), buffer.dims)) return false;
        }
        return true;
    }

    bool meets(const graph::Request& request, graph::FastResult* result) {
        alignas(64) std::byte part[graph::fast_bytes];
        std::byte* end = part;
        for (std::size_t i = 0; i < terms_.inputs.size(); ++i) {
            const std::size_t nbytes = terms_.nbytes(i);
            copy_bytes(end, static_cast<const std::byte*>(request.buffers[i].data), nbytes);
            result->nbytes[i] = nbytes;
            end += nbytes;
        }
        const std::byte* sources[max_members];
        if (!round_->meet(part, nbytes_, memory_->limit_ns, sources)) {
            memory_->left.fetch_add(1, std::memory_order_relaxed);
            return false;
        }
        const auto members = static_cast<int>(memory_->mappings.size());
        const Scaling scaling{terms_.prescale, terms_.postscale, terms_.op == Op::average ? members : 1};
        reduce({sources, members, result->data, nbytes_ / itemsize(terms_.dtype), scaling}, terms_.dtype, terms_.op);
        memory_->note();
        return true;
    }

    const std::shared_ptr<FastMemory> memory_;
    const std::string name_;
    std::mutex busy_;
    std::unique_ptr<FastRound> round_;  // null: detached
    FastTerms terms_{};
    std::size_t nbytes_ = 0;
    graph::Origin origin_;  // of the last call here
    bool has_news_ = false;  // true if Python does not know that call
};

// All entries of this process.
class FastTable {
public:
    static FastTable& get() {
        static auto* const table = new FastTable;  // never destroyed: frameworks' threads run on after `exit` begins
        return *table;
    }

    bool is_ours() const { return process_ == getpid(); }

    std::shared_ptr<FastEntry> find(std::int64_t library, const char* spec, std::size_t spec_bytes) {
        const std::lock_guard locked(lock_);
        const auto found = entries_.find(key_of(library, spec, spec_bytes));
        return found == entries_.end() ? nullptr : found->second;
    }

    std::shared_ptr<FastEntry> make(std::int64_t library, const std::string& spec, const std::string& name,
                                    const std::shared_ptr<FastMemory>& memory) {
        const std::lock_guard locked(lock_);
        std::shared_ptr<FastEntry>& entry = entries_[key_of(library, spec.data(), spec.size())];
        if (!entry || entry->memory() != memory.get()) entry = std::make_shared<FastEntry>(memory, name);
        return entry;
    }

    // Entries of a name; only of one session, if `memory` is given.
    std::vector<std::shared_ptr<FastEntry>> named(const std::string& name, const FastMemory* memory = nullptr) {
        const std::lock_guard locked(lock_);
        std::vector<std::shared_ptr<FastEntry>> found;
        for (const auto& [_, entry] : entries_) {
            if (entry->name() == name && (memory == nullptr || entry->memory() == memory)) found.push_back(entry);
        }
        return found;
    }

    // Remove and return the entries of a session.
    std::vector<std::shared_ptr<FastEntry>> take(const FastMemory* memory) {
        const std::lock_guard locked(lock_);
        std::vector<std::shared_ptr<FastEntry>> taken;
        for (auto it = entries_.begin(); it != entries_.end();) {
            const bool is_taken = it->second->memory() == memory;
            if (is_taken) taken.push_back(it->second);
            it = is_taken ? entries_.erase(it) : std::next(it);
        }
        return taken;
    }

private:
    static std::string key_of(std::int64_t library, const char* spec, std::size_t spec_bytes) {
        std::string key(reinterpret_cast<const char*>(&library), sizeof library);
        return key.append(spec, spec_bytes);
    }

    const pid_t process_ = getpid();
    std::mutex lock_;
    std::unordered_map<std::string, std::shared_ptr<FastEntry>> entries_;
};

// Called by the graphs' libraries: see graph::FastCall.
inline bool fast_call(std::int64_t library, graph::Request* request, graph::FastResult* result) {
    FastTable& table = FastTable::get();
    if (!table.is_ours()) return false;
    std::shared_ptr<FastEntry> entry;
    try {
        entry = table.find(library, request->spec, static_cast<std::size_t>(request->spec_bytes));
    } catch (const std::bad_alloc&) {  // no exception may pass the framework's frames
        return false;
    }
    return entry && entry->call(request, result);
}

// Fast path of one session: the interface for Python.
class FastPath {
public:
    // Collective; throws the errors of `share`.
    FastPath(int place, const std::vector<std::string>& names, const Exchange& exchange, std::int64_t limit_ns)
        : memory_(std::make_shared<FastMemory>()) {
        memory_->mappings = share(fast_slots * sizeof(FastSlot), place, names, exchange);
        memory_->place = place;
        memory_->limit_ns = limit_ns;
    }
    ~FastPath() { close(); }
    FastPath(const FastPath&) = delete;
    FastPath& operator=(const FastPath&) = delete;

    // False: no such slot, or too many bytes. Must not be called between the begin and the end of a call of this name.
    bool attach(std::int64_t library, const std::string& spec, const std::string& name, std::size_t slot,
                FastTerms terms, const graph::Origin& origin) {
        FastTable& table = FastTable::get();
        if (slot >= fast_slots || !terms.is_fast() || !table.is_ours()) return false;
        table.make(library, spec, name, memory_)->attach(slot, std::move(terms), origin);
        return true;
    }

    // Close the fast path of a name on this member; returns when no call is on it.
    void detach(const std::string& name) {
        if (!FastTable::get().is_ours()) return;
        for (const auto& entry : FastTable::get().named(name, memory_.get())) entry->detach();
    }

    // Refuse further calls. Takes no lock.
    void stop() { memory_->is_stopped.store(true, std::memory_order_release); }

    // Stop, and return when no call is on the fast path.
    void close() {
        stop();
        if (!FastTable::get().is_ours()) return;
        for (const auto& entry : FastTable::get().take(memory_.get())) entry->detach();
    }

    std::uint64_t met() const { return memory_->met.load(std::memory_order_relaxed); }
    std::uint64_t left() const { return memory_->left.load(std::memory_order_relaxed); }
    std::int64_t last_ns() const { return memory_->last_ns.load(std::memory_order_relaxed); }
    std::int64_t take_longest_ns() { return memory_->longest_ns.exchange(0, std::memory_order_relaxed); }

private:
    std::shared_ptr<FastMemory> memory_;
};

}  // namespace farandole
