// One call out of a compiled graph into Python, which begins it and finishes it later, from another thread.
//
// The libraries for XLA and for TensorFlow share this. Each describes the buffers of a call in a `Call`, hands that to
// the function that Python has set, and returns to its framework at once. Nothing here waits: the threads of a framework
// are few, and a collective may have to wait for one that the same thread would have to begin.
//
// Threads. The function is set before a graph can run. A call belongs to one party at a time: to the framework's thread
// until it is handed to Python, then to Python until that finishes it, which may be before the function has returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#define FARANDOLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace farandole::graph {

// What Python reads with ctypes: `farandole.graphs.library` has the same fields.
struct Buffer {
    void* data;  // null: an output that is yet to be allocated
    int64_t dtype;  // the framework's own number
    int64_t rank;
    const int64_t* dims;
};

// Where a call comes from, as far as the framework says; a place of -1: it does not.
struct Origin {
    int64_t run = -1;  // of a program; another one for each that has not ended
    int64_t device = -1;
    int64_t place = -1;  // in the program: another one for each call that stands there
};

struct Request {
    const char* spec;
    int64_t spec_bytes;
    int64_t inputs, outputs;
    const Buffer* buffers;  // inputs, then outputs
    Origin origin;
};

class Call {
public:
    virtual ~Call() = default;
    virtual void* allocate(int64_t output, const int64_t* dims, int64_t rank) = 0;  // null: it cannot
    virtual void finish(const char* error) = 0;  // tells the framework, and deletes this; `error` null: all went well

protected:
    void begin();

    void add(void* data, int64_t dtype, const int64_t* dims, int64_t rank) {
        buffers_.push_back({data, dtype, rank, nullptr});
        dims_.insert(dims_.end(), dims, dims + rank);
    }

    std::string spec_;
    std::vector<Buffer> buffers_;
    int64_t inputs_ = 0;
    Origin origin_;

private:
    std::vector<int64_t> dims_;  // of all buffers: those of the framework may be gone when Python looks
    Request request_{};
};

using Begin = void (*)(void* call, const Request* request);

inline std::atomic<Begin> begin_in_python{nullptr};

inline void Call::begin() {
    const int64_t* dims = dims_.data();
    for (Buffer& buffer : buffers_) {
        buffer.dims = dims;
        dims += buffer.rank;
    }
    request_ = {spec_.data(), static_cast<int64_t>(spec_.size()), inputs_,
                static_cast<int64_t>(buffers_.size()) - inputs_, buffers_.data(), origin_};
    if (Begin function = begin_in_python.load()) {
        function(this, &request_);  // nothing after this may touch the call: it may be over
    } else {
        finish("farandole: nobody takes the calls of compiled graphs in this process");
    }
}

}  // namespace farandole::graph

FARANDOLE_EXPORT void farandole_graph_set_begin(farandole::graph::Begin function) {
    farandole::graph::begin_in_python.store(function);
}

FARANDOLE_EXPORT void farandole_graph_finish(void* call, const char* error) {
    static_cast<farandole::graph::Call*>(call)->finish(error);
}

FARANDOLE_EXPORT void* farandole_graph_allocate(void* call, int64_t output, const int64_t* dims, int64_t rank) {
    return static_cast<farandole::graph::Call*>(call)->allocate(output, dims, rank);
}
