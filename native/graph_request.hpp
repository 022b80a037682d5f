// A call out of a compiled graph, as the libraries for XLA and for TensorFlow describe it.
#pragma once

#include <cstddef>
#include <cstdint>

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
    Origin previous;  // of the call with this spec before, where the fast path has taken that
    int64_t* has_come;  // Python sets it first: what a signal handler raises before that is told by nobody else
};

// The most that the inputs of a call on the fast path have together, and the most inputs.
constexpr std::size_t fast_bytes = 64;

// Outputs of such a call, one after the other, and the length of each.
struct FastResult {
    alignas(64) std::byte data[fast_bytes];
    std::size_t nbytes[fast_bytes];
};

// The fast path (fast_path.hpp): true if the call is over, and `result` has its outputs. Else it is Python's, and
// `previous` was filled in. Equal specs in calls of two libraries are two things.
using FastCall = bool (*)(std::int64_t library, Request* request, FastResult* result);

}  // namespace farandole::graph
