// Ranks as threads of one process, so that the sanitizers see all of them; checks that a case makes.
#pragma once

#include <sys/mman.h>

#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator.hpp"
#include "endpoint.hpp"

namespace test {

using namespace farandole;

// End the program unless `condition` holds: a case that goes on after a wrong answer only hides it.
inline void check(bool condition, const std::string& what) {
    if (condition) return;
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    std::abort();
}

inline void check_contains(const std::string& text, const std::string& part) {
    check(text.find(part) != std::string::npos, "expected '" + part + "' in '" + text + "'");
}

// Call `f` and return the text of the `E` that it must throw.
template <class E, class F>
std::string thrown(F&& f) {
    try {
        f();
    } catch (const E& error) {
        return error.what();
    }
    check(false, "nothing was thrown");
    return {};
}

inline std::vector<std::string> names(int size) {
    std::vector<std::string> all;
    for (int rank = 0; rank < size; ++rank) all.push_back("rank " + std::to_string(rank));
    return all;
}

inline GroupOptions options(int place, int size, std::int64_t deadline_ns = 60 * second_ns) {
    GroupOptions options;
    options.place = place;
    options.names = names(size);
    options.label = "the test group";
    options.deadline_ns = deadline_ns;
    return options;
}

// Run `f(rank)` in `size` threads.
template <class F>
void run_threads(int size, F&& f) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back([&f, rank] { f(rank); });
    for (std::thread& thread : threads) thread.join();
}

// Zeroed stations in the memory of this process.
class Stations {
public:
    explicit Stations(int size) {
        for (int rank = 0; rank < size; ++rank) {
            all_.push_back(static_cast<Station*>(std::aligned_alloc(page_bytes, rounded)));
            std::memset(static_cast<void*>(all_.back()), 0, rounded);
        }
    }
    ~Stations() {
        for (Station* station : all_) std::free(station);
    }
    Stations(const Stations&) = delete;
    Stations& operator=(const Stations&) = delete;
    const std::vector<Station*>& all() const { return all_; }

private:
    static constexpr std::size_t rounded = ceil_div(sizeof(Station), page_bytes) * page_bytes;
    std::vector<Station*> all_;
};

// Run `f(group)` on `size` ranks that share stations.
template <class F>
void run_ranks(int size, F&& f, std::int64_t deadline_ns = 60 * second_ns) {
    const Stations stations(size);
    run_threads(size, [&](int rank) {
        Communicator group(options(rank, size, deadline_ns), stations.all());
        f(group);
    });
}

// All-gather among threads, as the control plane gives it to processes.
class Hub {
public:
    explicit Hub(int size) : mine_(static_cast<std::size_t>(size)) {}

    std::vector<std::string> exchange(int rank, const std::string& payload) {
        std::unique_lock lock(mutex_);
        mine_[static_cast<std::size_t>(rank)] = payload;
        const std::uint64_t round = round_;
        if (++came_ == mine_.size()) {
            came_ = 0;
            ++round_;
            all_ = mine_;
            moved_.notify_all();
        }
        moved_.wait(lock, [&] { return round_ != round; });
        return all_;
    }

private:
    std::mutex mutex_;
    std::condition_variable moved_;
    std::vector<std::string> mine_, all_;
    std::size_t came_ = 0;
    std::uint64_t round_ = 0;
};

// Run `f(endpoint, rank)` on `size` ranks with segments of their own.
template <class F>
void run_endpoints(int size, F&& f) {
    Hub hub(size);
    run_threads(size, [&](int rank) {
        Endpoint endpoint(options(rank, size),
                          [&hub, rank](const std::string& mine) { return hub.exchange(rank, mine); });
        f(endpoint, rank);
    });
}

template <class T>
Array array_of(std::vector<T>& values, DType dtype) {
    return {reinterpret_cast<std::byte*>(values.data()), values.size(), dtype};
}

}  // namespace test
