// Description of a call from a compiled graph, shared by the libraries for XLA and for TensorFlow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::graph {

// Read by Python with ctypes: `farandole.graphs.library` has the same fields.
struct Buffer {
    void* data;  // null: an output that is not yet allocated
    int64_t dtype;  // the framework's own number
    int64_t rank;
    const int64_t* dims;
};

// Origin of a call, as reported by the framework; a place of -1: not reported.
struct Origin {
    int64_t run = -1;  // of a program; unique among runs that have not ended
    int64_t device = -1;
    int64_t place = -1;  // in the program; unique for each call in it
};

struct Request {
    const char* spec;
    int64_t spec_bytes;
    int64_t inputs, outputs;
    const Buffer* buffers;  // inputs, then outputs
    Origin origin;
    Origin previous;  // of the previous call with this spec, if the fast path has run it
    int64_t* has_come;  // set by Python first: if unset, a signal handler raised before, and native code reports it
};

// Maximum total bytes of the inputs of a call on the fast path, and maximum number of inputs.
constexpr std::size_t fast_bytes = 64;

// Outputs of such a call, one after the other, and their lengths.
struct FastResult {
    alignas(64) std::byte data[fast_bytes];
    std::size_t nbytes[fast_bytes];
};

// The fast path (fast_path.hpp): true if the call is over, and `result` has its outputs. Otherwise the call goes to
// Python, and `previous` is set. Equal specs of two libraries are different.
using FastCall = bool (*)(std::int64_t library, Request* request, FastResult* result);

}  // namespace farandole::graph
