// The Python face of the native core, module `farandole._native`. Memory arrives as plain addresses.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>
#include <vector>

#include "dtype.hpp"
#include "elementwise.hpp"
#include "reduce.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace farandole;

namespace {

// Below this, giving the GIL away costs more than the kernel.
constexpr std::size_t small_bytes = 16384;

template <class F>
void work(std::size_t nbytes, F&& f) {
    if (nbytes <= small_bytes) return f();
    nb::gil_scoped_release released;
    f();
}

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DType dtype_of(int number) {
    if (number < 0 || number >= dtype_count) throw Unsupported("no dtype has the number " + std::to_string(number));
    return static_cast<DType>(number);
}

Op op_of(int number) {
    if (number < 0 || number >= op_count) throw Unsupported("no reduction has the number " + std::to_string(number));
    return static_cast<Op>(number);
}

void bind_kernels(nb::module_& m) {
    m.def("copy", [](std::uintptr_t dst, std::uintptr_t src, std::size_t nbytes) {
        work(nbytes, [&] { std::memmove(at(dst), at(src), nbytes); });
    }, "dst"_a, "src"_a, "nbytes"_a);
    m.def("fill", [](std::uintptr_t address, std::size_t count, int dtype, double value) {
        const DType t = dtype_of(dtype);
        work(count * itemsize(t), [&] { fill(at(address), count, t, value); });
    }, "address"_a, "count"_a, "dtype"_a, "value"_a);
    m.def("fill_identity", [](std::uintptr_t address, std::size_t count, int dtype, int op) {
        const DType t = dtype_of(dtype);
        work(count * itemsize(t), [&] { fill_identity(at(address), count, t, op_of(op)); });
    }, "address"_a, "count"_a, "dtype"_a, "op"_a);
    m.def("scale", [](std::uintptr_t address, std::size_t count, int dtype, double factor) {
        const DType t = dtype_of(dtype);
        work(count * itemsize(t), [&] { scale(at(address), count, t, factor); });
    }, "address"_a, "count"_a, "dtype"_a, "factor"_a);
    m.def("divide", [](std::uintptr_t address, std::size_t count, int dtype, std::int64_t n) {
        const DType t = dtype_of(dtype);
        work(count * itemsize(t), [&] { divide(at(address), count, t, n); });
    }, "address"_a, "count"_a, "dtype"_a, "n"_a);
    m.def("reduce_into", [](std::uintptr_t dst, std::uintptr_t src, std::size_t count, int dtype, int op) {
        const DType t = dtype_of(dtype);
        work(count * itemsize(t), [&] { reduce_into(at(dst), at(src), count, t, op_of(op)); });
    }, "dst"_a, "src"_a, "count"_a, "dtype"_a, "op"_a);
    m.def("reduce",
          [](const std::vector<std::uintptr_t>& sources, std::uintptr_t dst, std::size_t count, int dtype, int op,
             double prescale, double postscale, std::int64_t divisor) {
              const DType t = dtype_of(dtype);
              const Op o = op_of(op);
              if (sources.empty()) throw Unsupported("a reduction needs at least one source");
              std::vector<const std::byte*> from;
              for (const std::uintptr_t source : sources) from.push_back(at(source));
              std::byte* targets[] = {at(dst)};
              const Reduction job{from.data(), static_cast<int>(from.size()), targets, 1, count, {prescale, postscale, divisor}};
              work(count * itemsize(t) * from.size(), [&] { reduce(job, t, o); });
          },
          "sources"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, "prescale"_a = 1.0, "postscale"_a = 1.0, "divisor"_a = 1);
    m.def("adasum_dots", [](std::uintptr_t a, std::uintptr_t b, std::size_t count, int dtype) {
        const DType t = dtype_of(dtype);
        Dots dots;
        work(count * itemsize(t), [&] { dots = adasum_dots(at(a), at(b), count, t); });
        return std::make_tuple(dots.aa, dots.ab, dots.bb);
    }, "a"_a, "b"_a, "count"_a, "dtype"_a);
    m.def("adasum_combine",
          [](std::uintptr_t a, std::uintptr_t b, std::uintptr_t out, std::size_t count, int dtype, double ca, double cb) {
              const DType t = dtype_of(dtype);
              work(count * itemsize(t), [&] { adasum_combine({at(a), at(b), at(out), count, ca, cb}, t); });
          },
          "a"_a, "b"_a, "out"_a, "count"_a, "dtype"_a, "ca"_a, "cb"_a);
}

}  // namespace

NB_MODULE(_native, m) {
    bind_kernels(m);
}
