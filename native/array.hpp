// Operands of a collective: a flat array, and the reduction of contributions.
#pragma once

#include <cstddef>

#include "dtype.hpp"
#include "reduce.hpp"
#include "signature.hpp"

namespace farandole {

struct Array {
    std::byte* address;
    std::size_t count;
    DType dtype;

    std::size_t nbytes() const { return count * itemsize(dtype); }
    std::byte* at(std::size_t element) const { return address + element * itemsize(dtype); }
};

struct Reduction {
    Op op = Op::sum;
    double prescale = 1.0;
    double postscale = 1.0;

    Scaling scaling(int members) const { return {prescale, postscale, op == Op::average ? members : 1}; }
};

inline Signature reduction_signature(Verb verb, const Array& array, const Reduction& reduction) {
    Signature signature;
    signature.verb = verb;
    signature.dtype = array.dtype;
    signature.op = reduction.op;
    signature.count = array.count;
    signature.prescale = reduction.prescale;
    signature.postscale = reduction.postscale;
    return signature;
}

}  // namespace farandole
