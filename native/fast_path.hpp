// Fast path of graph calls: all-reduces of a few bytes to which all members of a host come at about the same time.
//
// A name that the ranks reduce without the controller (the peer lane) has a slot in memory that all members map. A call
// out of a graph puts its part there and watches for the others, for `limit_ns` at most. If all come, each reduces what
// it finds. If not, the call leaves, and goes through Python as if it had never been here. Nothing else in the runtime
// needs to know: who waits, joins, withdraws, stalls or dies does so on that other way, because nobody waits on this one.
//
//   word = round << 16 | number of members in the round
//
//   enter   write the part, then add one to the word; the last to enter moves it on to the next round, with nobody in it
//   leave   take one from the word, unless it has moved on: then the round is over, for this member, too
//
// Each is one exchange of the word, so a round is over for all members or for none of them. A member has two parts, by
// the parity of the round: it enters a round when it has read those of the round before, and writes over a part two
// rounds later. tests/unit/native/test_fast_path_model.py explores every interleaving.
//
// Members that are in a round together are in the same call of the name: a member begins a call when it has ended the
// one before, and no call ends before all members have come to it. What goes through Python under the name, be it a call
// that has left, another one, or a refusal, closes the way on this member first (`call`, `detach`); `attach` opens it when
// that call is over. A join closes all. All who use a slot mean the same by the name: its number is that of the grant of
// the peer lane by which they have made a call with the same dtype, shape and reduction.
//
// A member that dies in a round has contributed to it. The next one never ends, and the others leave it.
//
// Threads. The framework's threads call `fast_call`, without the interpreter's lock; Python attaches, detaches, stops and
// closes. `entries` is guarded by the table's lock, held for moments. An entry is guarded by its own `busy`, which is
// held during a round: so two calls with one spec follow each other, and `detach` returns when no round is under way.
// `stop` takes no lock, as a signal handler calls it. A forked child finds another process's table, and uses nothing.
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

// What a member has of a slot. The word that counts is the one of the first member.
struct FastSlot {
    alignas(64) std::atomic<std::uint64_t> word;
    alignas(64) std::atomic<std::uint64_t> left;  // calls in which the member has left a round: a hint
    alignas(64) std::byte parts[2][graph::fast_bytes];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// One slot, as the member at `place` uses it. Called by one thread at a time.
class FastRound {
public:
    FastRound(std::vector<FastSlot*> slots, int place)
        : slots_(std::move(slots)), own_(*slots_[static_cast<std::size_t>(place)]), word_(slots_[0]->word) {}

    // Come to a call with `nbytes` of one's own; true: all have, and `sources` are their parts until the next call.
    bool meet(const std::byte* part, std::size_t nbytes, std::int64_t limit_ns, const std::byte** sources) {
        const std::uint64_t left = own_.left.load(std::memory_order_relaxed);
        if (most_left() > left) {  // somebody has, in this very call
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

    // Agree with the others on how often rounds were left. Where that is wrong, as members may also come to a name
    // otherwise, a call goes through Python that need not, or watches for `limit_ns` in vain.
    void align() { own_.left.store(most_left(), std::memory_order_relaxed); }

private:
    static constexpr int count_bits = 16;

    // True if this member is the last. The round cannot end before.
    bool enter(std::uint64_t seen, std::uint64_t round) {
        while (true) {
            const bool is_last = (seen & 0xffff) + 1 == slots_.size();
            const std::uint64_t next = is_last ? (round + 1) << count_bits : seen + 1;
            if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
                return is_last;
            }
        }
    }

    // True if the round has ended before `end_ns`. Giving way between looks, as in barrier.hpp.
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

    // True if the round has ended first.
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

// What is meant by a name, in a call and in every later one.
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

    void note() {  // calls of several entries may: what they overwrite of each other is one time too short
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

// A spec that graphs call with.
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
        round_.reset();  // Python's, whatever becomes of it there: until that call is over, none may go in
        if (has_news_) request->previous = origin_;
        has_news_ = false;
        return false;
    }

private:
    // A call that means something else, or that two ranks could take for another one, is Python's to refuse.
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
    std::unique_ptr<FastRound> round_;  // none: detached
    FastTerms terms_{};
    std::size_t nbytes_ = 0;
    graph::Origin origin_;  // of the last call here
    bool has_news_ = false;  // Python does not know of that call
};

// All entries of this process.
class FastTable {
public:
    static FastTable& get() {
        static auto* const table = new FastTable;  // never destroyed: frameworks' threads outlive what `exit` destroys
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

    // The entries of a name; those of one session only, if it is given.
    std::vector<std::shared_ptr<FastEntry>> named(const std::string& name, const FastMemory* memory = nullptr) {
        const std::lock_guard locked(lock_);
        std::vector<std::shared_ptr<FastEntry>> found;
        for (const auto& [_, entry] : entries_) {
            if (entry->name() == name && (memory == nullptr || entry->memory() == memory)) found.push_back(entry);
        }
        return found;
    }

    // Take out the entries of a session.
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

// What the graphs' libraries call: see graph::FastCall.
inline bool fast_call(std::int64_t library, graph::Request* request, graph::FastResult* result) {
    FastTable& table = FastTable::get();
    if (!table.is_ours()) return false;
    std::shared_ptr<FastEntry> entry;
    try {
        entry = table.find(library, request->spec, static_cast<std::size_t>(request->spec_bytes));
    } catch (const std::bad_alloc&) {  // there are frames of the framework above
        return false;
    }
    return entry && entry->call(request, result);
}

// The fast path of one session, as Python sees it.
class FastPath {
public:
    // Collective, as `share` is, whose errors it throws.
    FastPath(int place, const std::vector<std::string>& names, const Exchange& exchange, std::int64_t limit_ns)
        : memory_(std::make_shared<FastMemory>()) {
        memory_->mappings = share(fast_slots * sizeof(FastSlot), place, names, exchange);
        memory_->place = place;
        memory_->limit_ns = limit_ns;
    }
    ~FastPath() { close(); }
    FastPath(const FastPath&) = delete;
    FastPath& operator=(const FastPath&) = delete;

    // False: there is no such slot, or too much to reduce. Not between the beginning and the end of a call with this name.
    bool attach(std::int64_t library, const std::string& spec, const std::string& name, std::size_t slot,
                FastTerms terms, const graph::Origin& origin) {
        FastTable& table = FastTable::get();
        if (slot >= fast_slots || !terms.is_fast() || !table.is_ours()) return false;
        table.make(library, spec, name, memory_)->attach(slot, std::move(terms), origin);
        return true;
    }

    // Close the way of a name here; returns when no call is on it.
    void detach(const std::string& name) {
        if (!FastTable::get().is_ours()) return;
        for (const auto& entry : FastTable::get().named(name, memory_.get())) entry->detach();
    }

    // Let no further call in. Takes no lock.
    void stop() { memory_->is_stopped.store(true, std::memory_order_release); }

    // Returns when no call is on its way here.
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
