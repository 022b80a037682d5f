// One call from a compiled graph into Python, which begins the call, and finishes it later from another thread.
//
// The libraries for XLA and for TensorFlow share this header. Each describes the buffers of a call in a `Call`, passes
// it to the function that Python has set, and returns to its framework at once. Nothing here waits for long: a
// framework has few threads, and a collective may have to wait for another one that the same thread would have to
// begin. Calls that the fast path (fast_path.hpp) can finish in the time of a thread wake-up do not reach Python.
//
// Threads. Python sets the function before a graph can run. A call has one owner at a time: the framework's thread
// until `begin`, then Python until it finishes the call, possibly before the function has returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "graph_request.hpp"

#define FARANDOLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace farandole::graph {

class Call {
public:
    virtual ~Call() = default;
    virtual void* allocate(int64_t output, const int64_t* dims, int64_t rank) = 0;  // null: no memory
    virtual void finish(const char* error) = 0;  // notifies the framework, and deletes this; null `error`: success

protected:
    // Try the fast path, if allowed. True: the call is over, and its outputs are written or `lacks_memory_` is set.
    bool is_over(bool may_go = true);
    // Pass the call to Python, after `is_over`.
    void begin();

    bool lacks_memory_ = false;

    void add(void* data, int64_t dtype, const int64_t* dims, int64_t rank) {
        buffers_.push_back({data, dtype, rank, nullptr});
        dims_.insert(dims_.end(), dims, dims + rank);
    }

    std::string spec_;
    std::vector<Buffer> buffers_;
    int64_t inputs_ = 0;
    Origin origin_;

private:
    std::vector<int64_t> dims_;  // of all buffers, copied: the framework's may be freed before Python reads them
    Request request_{};
};

using Begin = void (*)(void* call, const Request* request);

inline std::atomic<Begin> begin_in_python{nullptr};
inline std::atomic<FastCall> fast_call{nullptr};
inline std::atomic<std::int64_t> library{0};  // number of this library, set before `fast_call`

inline bool Call::is_over(bool may_go) {
    const int64_t* dims = dims_.data();
    for (Buffer& buffer : buffers_) {
        buffer.dims = dims;
        dims += buffer.rank;
    }
    request_ = {spec_.data(), static_cast<int64_t>(spec_.size()), inputs_,
                static_cast<int64_t>(buffers_.size()) - inputs_, buffers_.data(), origin_, {}, nullptr};
    const FastCall function = fast_call.load();
    FastResult result;
    if (!may_go || function == nullptr || !function(library.load(), &request_, &result)) return false;
    const std::byte* next = result.data;
    for (int64_t i = 0; i < inputs_ && !lacks_memory_; ++i) {  // as many outputs as inputs, of the same shapes
        const Buffer& input = request_.buffers[i];
        void* output = request_.buffers[inputs_ + i].data;
        if (output == nullptr) output = allocate(i, input.dims, input.rank);
        lacks_memory_ = output == nullptr && result.nbytes[i] != 0;
        if (output != nullptr) std::memcpy(output, next, result.nbytes[i]);
        next += result.nbytes[i];
    }
    return true;
}

inline void Call::begin() {
    if (Begin function = begin_in_python.load()) {
        int64_t has_come = 0;
        request_.has_come = &has_come;
        function(this, &request_);
        // From here on the call may be deleted: it must not be used, unless Python never got it.
        if (!has_come) finish("farandole: a signal handler raised before the call was begun");
    } else {
        finish("farandole: nobody takes the calls of compiled graphs in this process");
    }
}

}  // namespace farandole::graph

FARANDOLE_EXPORT void farandole_graph_set_begin(farandole::graph::Begin function) {
    farandole::graph::begin_in_python.store(function);
}

FARANDOLE_EXPORT void farandole_graph_set_fast(farandole::graph::FastCall function, int64_t library) {
    farandole::graph::library.store(library);
    farandole::graph::fast_call.store(function);
}

FARANDOLE_EXPORT void farandole_graph_finish(void* call, const char* error) {
    static_cast<farandole::graph::Call*>(call)->finish(error);
}

FARANDOLE_EXPORT void* farandole_graph_allocate(void* call, int64_t output, const int64_t* dims, int64_t rank) {
    return static_cast<farandole::graph::Call*>(call)->allocate(output, dims, rank);
}
