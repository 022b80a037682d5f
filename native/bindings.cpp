// Python module `farandole.native.core` of the native core. Memory is passed as plain addresses.
//
// Collectives and `close` run without the GIL: they wait for other processes, and a thread that aborts them needs the
// GIL. A collective interrupted by a signal takes the GIL while it holds the endpoint's `busy_`; so a thread that waits
// for `busy_` must not hold the GIL. Only the destructor does, when no call is running any more.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "digest.hpp"
#include "dtype.hpp"
#include "elementwise.hpp"
#include "endpoint.hpp"
#include "fast_path.hpp"
#include "reduce.hpp"
#include "rows.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace farandole;

namespace {

// Below this size, releasing the GIL costs more than the kernel.
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

// -- threads ----------------------------------------------------------------------------------------------------------

// A reference to a frame of another thread keeps all variables of the frame alive. In Python code, other threads run
// meanwhile: an optimizer that a script has dropped could then live on for some steps, on this rank alone. Here no
// other thread runs: no code releases the GIL, and the collector, whose finalizers might, is off. Reading `f_code` as
// an attribute might release it, too: this is an audit event, and audit hooks may be Python code (filelock has one).
nb::dict call_stacks() {
    nb::object current_frames = nb::module_::import_("sys").attr("_current_frames");
    const int collects = PyGC_Disable();
    nb::dict stacks;
    {
        nb::dict frames = nb::cast<nb::dict>(current_frames());
        for (auto [thread, top] : frames) {
            nb::list calls;
            for (nb::object frame = nb::borrow(top); !frame.is_none(); frame = frame.attr("f_back")) {
                nb::object module = frame.attr("f_globals").attr("get")("__name__");
                auto* code = PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()));
                calls.append(nb::make_tuple(module, nb::steal(reinterpret_cast<PyObject*>(code)).attr("co_name")));
            }
            stacks[thread] = calls;
        }
    }
    if (collects) PyGC_Enable();
    return stacks;
}

// -- kernels ----------------------------------------------------------------------------------------------------------

void copy_at(std::uintptr_t dst, std::uintptr_t src, std::size_t nbytes) {
    work(nbytes, [&] { std::memmove(at(dst), at(src), nbytes); });
}

void fill_at(std::uintptr_t address, std::size_t count, int dtype, double value) {
    const DType t = dtype_of(dtype);
    work(count * itemsize(t), [&] { fill(at(address), count, t, value); });
}

void fill_identity_at(std::uintptr_t address, std::size_t count, int dtype, int op) {
    const DType t = dtype_of(dtype);
    work(count * itemsize(t), [&] { fill_identity(at(address), count, t, op_of(op)); });
}

void scale_at(std::uintptr_t address, std::size_t count, int dtype, double factor) {
    const DType t = dtype_of(dtype);
    work(count * itemsize(t), [&] { scale(at(address), count, t, factor); });
}

void divide_at(std::uintptr_t address, std::size_t count, int dtype, std::int64_t n) {
    const DType t = dtype_of(dtype);
    work(count * itemsize(t), [&] { divide(at(address), count, t, n); });
}

void reduce_into_at(std::uintptr_t dst, std::uintptr_t src, std::size_t count, int dtype, int op) {
    const DType t = dtype_of(dtype);
    work(count * itemsize(t), [&] { reduce_into(at(dst), at(src), count, t, op_of(op)); });
}

void reduce_at(const std::vector<std::uintptr_t>& sources, std::uintptr_t dst, std::size_t count, int dtype, int op,
               double prescale, double postscale, std::int64_t divisor) {
    if (sources.empty()) throw Unsupported("a reduction needs at least one source");
    if (divisor <= 0) throw Unsupported("a divisor must be positive, got " + std::to_string(divisor));
    const DType t = dtype_of(dtype);
    const Op o = op_of(op);
    std::vector<const std::byte*> from;
    for (const std::uintptr_t source : sources) from.push_back(at(source));
    const Scaling scaling{prescale, postscale, divisor};
    const ReduceJob job{from.data(), static_cast<int>(from.size()), at(dst), count, scaling};
    work(count * itemsize(t) * from.size(), [&] { reduce(job, t, o); });
}

std::tuple<double, double, double> adasum_dots_at(std::uintptr_t a, std::uintptr_t b, std::size_t count, int dtype) {
    const DType t = dtype_of(dtype);
    Dots dots;
    work(count * itemsize(t), [&] { dots = adasum_dots(at(a), at(b), count, t); });
    return {dots.aa, dots.ab, dots.bb};
}

void adasum_combine_at(std::uintptr_t a, std::uintptr_t b, std::uintptr_t out, std::size_t count, int dtype, double ca,
                       double cb) {
    const DType t = dtype_of(dtype);
    work(count * itemsize(t), [&] { adasum_combine({at(a), at(b), at(out), count, ca, cb}, t); });
}

std::vector<std::uint64_t> digest_at(const std::vector<std::uintptr_t>& addresses,
                                     const std::vector<std::size_t>& nbytes) {
    if (addresses.size() != nbytes.size()) {
        throw Unsupported("as many lengths as addresses are needed, got " + std::to_string(nbytes.size()) + " for " +
                          std::to_string(addresses.size()));
    }
    std::vector<std::uint64_t> digests(addresses.size());
    const auto all = [&] {
        for (std::size_t i = 0; i < addresses.size(); ++i) digests[i] = Digest::of(at(addresses[i]), nbytes[i]);
    };
    // Data is read once and not written, so the limit is higher than for other kernels.
    constexpr std::size_t small_digest_bytes = 1 << 20;
    if (std::accumulate(nbytes.begin(), nbytes.end(), std::size_t{0}) <= small_digest_bytes) {
        all();
    } else {
        const nb::gil_scoped_release released;
        all();
    }
    return digests;
}

void bind_kernels(nb::module_& m) {
    m.def("call_stacks", call_stacks);
    m.def("digest", digest_at, "addresses"_a, "nbytes"_a);
    m.def("copy", copy_at, "dst"_a, "src"_a, "nbytes"_a);
    m.def("fill", fill_at, "address"_a, "count"_a, "dtype"_a, "value"_a);
    m.def("fill_identity", fill_identity_at, "address"_a, "count"_a, "dtype"_a, "op"_a);
    m.def("scale", scale_at, "address"_a, "count"_a, "dtype"_a, "factor"_a);
    m.def("divide", divide_at, "address"_a, "count"_a, "dtype"_a, "n"_a);
    m.def("reduce_into", reduce_into_at, "dst"_a, "src"_a, "count"_a, "dtype"_a, "op"_a);
    m.def("reduce", reduce_at, "sources"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, "prescale"_a = 1.0,
          "postscale"_a = 1.0, "divisor"_a = 1);
    m.def("adasum_dots", adasum_dots_at, "a"_a, "b"_a, "count"_a, "dtype"_a);
    m.def("adasum_combine", adasum_combine_at, "a"_a, "b"_a, "out"_a, "count"_a, "dtype"_a, "ca"_a, "cb"_a);
}

// -- errors -----------------------------------------------------------------------------------------------------------

// Conversion of the core's errors to Farandole's; only this table knows both.
void translate(const std::exception_ptr& caught, void*) {
    auto raise = [](const char* name, const char* text) {
        PyErr_SetString(nb::module_::import_("farandole.errors").attr(name).ptr(), text);
    };
    try {
        std::rethrow_exception(caught);
    } catch (const Mismatch& error) {
        raise("MismatchError", error.what());
    } catch (const Stalled& error) {
        raise("StallError", error.what());
    } catch (const Aborted& error) {
        raise("AbortError", error.what());
    } catch (const Failure& error) {
        raise("EngineError", error.what());
    } catch (const Unsupported& error) {
        raise("UnsupportedError", error.what());
    }
}

// Python's signal handlers run while a collective waits; a handler that raises ends the collective. Handlers run only
// on the main thread, so only the main thread checks. It never waits here after the interpreter's end, but a daemon
// thread that requests the GIL of a finalizing interpreter would never return.
bool signal_raised(void*) {
    if (syscall(SYS_gettid) != getpid()) return false;
    nb::gil_scoped_acquire held;
    return PyErr_CheckSignals() != 0;
}

// Run a collective without the GIL. `Interrupted` means that a Python exception is pending.
template <class F>
auto wait_for(F&& f) {
    try {
        nb::gil_scoped_release released;
        return f();
    } catch (const Interrupted&) {
        throw nb::python_error();
    }
}

// -- the endpoint -----------------------------------------------------------------------------------------------------

Exchange exchange_of(const nb::callable& exchange) {
    return [exchange](const std::string& mine) {
        std::vector<std::string> all;
        for (nb::handle each : exchange(nb::bytes(mine.data(), mine.size()))) {
            const auto bytes = nb::cast<nb::bytes>(each);
            all.emplace_back(bytes.c_str(), bytes.size());
        }
        return all;
    };
}

Array array_of(std::uintptr_t address, std::size_t count, int dtype) { return {at(address), count, dtype_of(dtype)}; }

void make_endpoint(Endpoint* self, int place, std::vector<std::string> names, std::string label, double deadline_s,
                   const nb::callable& exchange, double spin_s) {
    if (names.size() > max_members) {
        throw Unsupported("a group in shared memory has at most " + std::to_string(max_members) + " members, got " +
                          std::to_string(names.size()));
    }
    GroupOptions options;
    options.place = place;
    options.names = std::move(names);
    options.label = std::move(label);
    options.deadline_ns = static_cast<std::int64_t>(std::min(deadline_s, 1e9) * second_ns);
    options.spin_ns = static_cast<std::int64_t>(spin_s * second_ns);
    options.interrupt = {signal_raised, nullptr};
    new (self) Endpoint(options, exchange_of(exchange));
}

std::shared_ptr<Region> allocate(Endpoint& self, std::size_t nbytes) {
    return wait_for([&] { return self.allocate(nbytes); });
}

void allreduce(Endpoint& self, std::uintptr_t address, std::size_t count, int dtype, int op, double prescale,
               double postscale) {
    const Array array = array_of(address, count, dtype);
    const Reduction reduction{op_of(op), prescale, postscale};
    wait_for([&] { self.allreduce(array, reduction); });
}

void allgather(Endpoint& self, std::uintptr_t send, std::uintptr_t recv, int dtype, const Counts& counts) {
    const DType t = dtype_of(dtype);
    wait_for([&] { self.allgather(at(send), at(recv), t, counts); });
}

void broadcast(Endpoint& self, std::uintptr_t address, std::size_t count, int dtype, int root) {
    const Array array = array_of(address, count, dtype);
    wait_for([&] { self.broadcast(array, root); });
}

void alltoall(Endpoint& self, std::uintptr_t send, const Counts& send_counts, std::uintptr_t recv,
              const Counts& recv_counts, int dtype) {
    const DType t = dtype_of(dtype);
    wait_for([&] { self.alltoall(at(send), send_counts, at(recv), recv_counts, t); });
}

void reducescatter(Endpoint& self, std::uintptr_t send, std::uintptr_t recv, int dtype, const Counts& counts, int op,
                   double prescale, double postscale) {
    const DType t = dtype_of(dtype);
    const Reduction reduction{op_of(op), prescale, postscale};
    wait_for([&] { self.reducescatter(at(send), at(recv), t, counts, reduction); });
}

nb::list gather(Endpoint& self, const nb::bytes& payload) {
    const std::string mine(payload.c_str(), payload.size());
    const std::vector<std::string> parts = wait_for([&] { return self.gather(mine); });
    nb::list all;
    for (const std::string& part : parts) all.append(nb::bytes(part.data(), part.size()));
    return all;
}

nb::dict statistics(Endpoint& self) {
    const Statistics now = self.statistics();
    nb::dict all;
    all["collectives"] = now.collectives;
    all["bytes"] = now.bytes;
    all["in_place"] = now.in_place;
    all["sleeps"] = now.sleeps;
    return all;
}

void bind_endpoint(nb::module_& m) {
    nb::class_<Region>(m, "Region")
        .def_prop_ro("address", [](const Region& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
        .def_prop_ro("nbytes", &Region::nbytes);

    nb::class_<Endpoint>(m, "Endpoint")
        .def("__init__", make_endpoint, "place"_a, "names"_a, "label"_a, "deadline_s"_a, "exchange"_a,
             "spin_s"_a = 50e-6)
        .def("allocate", allocate, "nbytes"_a)
        .def("allreduce", allreduce, "address"_a, "count"_a, "dtype"_a, "op"_a, "prescale"_a, "postscale"_a)
        .def("allgather", allgather, "send"_a, "recv"_a, "dtype"_a, "counts"_a)
        .def("broadcast", broadcast, "address"_a, "count"_a, "dtype"_a, "root"_a)
        .def("alltoall", alltoall, "send"_a, "send_counts"_a, "recv"_a, "recv_counts"_a, "dtype"_a)
        .def("reducescatter", reducescatter, "send"_a, "recv"_a, "dtype"_a, "counts"_a, "op"_a, "prescale"_a,
             "postscale"_a)
        .def("gather", gather, "payload"_a)
        .def("barrier", [](Endpoint& self) { wait_for([&] { self.barrier(); }); })
        .def("abort", &Endpoint::abort, "reason"_a)
        .def("close", [](Endpoint& self) { wait_for([&] { self.close(); }); })
        .def("statistics", statistics);
}

// -- the fast path ----------------------------------------------------------------------------------------------------

using Shapes = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;

void make_fast_path(FastPath* self, int place, const std::vector<std::string>& names, const nb::callable& exchange,
                    double limit_s) {
    const Exchange all_gather = exchange_of(exchange);
    new (self) FastPath(place, names, all_gather, static_cast<std::int64_t>(limit_s * second_ns));
}

// Without the GIL, because the wait for the end of a round may be long.
bool attach(FastPath& self, std::int64_t library, const nb::bytes& spec, const std::string& name, std::size_t slot,
            int dtype, int op, double prescale, double postscale, const Shapes& inputs,
            const std::vector<std::int64_t>& origin) {
    FastTerms terms{dtype_of(dtype), op_of(op), prescale, postscale, inputs};
    const std::string text(spec.c_str(), spec.size());
    const nb::gil_scoped_release released;
    return self.attach(library, text, name, slot, std::move(terms), {origin.at(0), origin.at(1), origin.at(2)});
}

void forget_origins(const std::string& name) {
    const nb::gil_scoped_release released;
    if (!FastTable::get().is_ours()) return;
    for (const auto& entry : FastTable::get().named(name)) entry->forget_origin();
}

void bind_fast_path(nb::module_& m) {
    const nb::call_guard<nb::gil_scoped_release> released;
    nb::class_<FastPath>(m, "FastPath")
        .def("__init__", make_fast_path, "place"_a, "names"_a, "exchange"_a, "limit_s"_a)
        .def("attach", attach, "library"_a, "spec"_a, "name"_a, "slot"_a, "dtype"_a, "op"_a, "prescale"_a,
             "postscale"_a, "inputs"_a, "origin"_a)
        .def("detach", &FastPath::detach, "name"_a, released)
        .def("stop", &FastPath::stop)
        .def("close", &FastPath::close, released)
        .def_prop_ro("met", &FastPath::met)
        .def_prop_ro("left", &FastPath::left)
        .def("pace", [](FastPath& self) {
            const double last_s = static_cast<double>(self.last_ns()) / second_ns;
            return std::tuple(last_s, static_cast<double>(self.take_longest_ns()) / second_ns);
        });
    m.def("fast_call", [] { return reinterpret_cast<std::uintptr_t>(&fast_call); });
    m.def("forget_origins", forget_origins, "name"_a);
}

}  // namespace

NB_MODULE(core, m) {
    nb::set_leak_warnings(false);  // a script may end while tensors in engine memory are alive
    // A tensor may view an engine's memory and outlive the interpreter: every script that ends with a living model is
    // an example. The process's exit frees that memory, so a warning is useless.
    nb::register_exception_translator(translate);
    bind_kernels(m);
    bind_endpoint(m);
    bind_fast_path(m);
}
