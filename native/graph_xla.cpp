// Handler of XLA's foreign function interface, which returns at once and completes a future later.
//
// This file declares the binary interface of OpenXLA's xla/ffi/api/c_api.h (0.1 to 0.3), so that one library works with
// every jaxlib, and compiling it needs none. Each struct begins with its size, and new fields are added at its end:
// sizes reveal a runtime that is too old, which gets an error.
#include "graph_call.hpp"

#include <cstddef>
#include <memory>

namespace {

struct Extension {
    size_t struct_size;
    int type;
    Extension* next;
};

struct Version {
    size_t struct_size;
    Extension* extensions;
    int major, minor;
};

struct Metadata {
    size_t struct_size;
    Version version;
    uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

constexpr int kMetadata = 1;

// For runtimes that query metadata without an API pointer (jaxlib 0.5, for example).
constexpr Version kFirst{sizeof(Version), nullptr, 0, 1};

struct XlaBuffer {
    size_t struct_size;
    Extension* extensions;
    int dtype;
    void* data;
    int64_t rank;
    int64_t* dims;
};

struct Buffers {  // arguments, or results
    size_t struct_size;
    Extension* extensions;
    int64_t size;
    int* types;
    void** items;
};

struct Bytes {
    const char* data;
    size_t size;
};

struct Attributes {
    size_t struct_size;
    Extension* extensions;
    int64_t size;
    int* types;
    Bytes** names;
    void** values;
};

constexpr int kString = 4;

struct Error;
struct Future;

struct ErrorArgs {
    size_t struct_size;
    Extension* extensions;
    const char* message;
    int code;
};

constexpr int kInternal = 13;

struct FutureArgs {  // for creation the future is an output, for success an input
    size_t struct_size;
    Extension* extensions;
    Future* future;
};

struct FutureErrorArgs {
    size_t struct_size;
    Extension* extensions;
    Future* future;
    Error* error;
};

struct RunArgs {
    size_t struct_size;
    Extension* extensions;
    void* context;
    int64_t run;
};

struct DeviceArgs {
    size_t struct_size;
    Extension* extensions;
    void* context;
    int32_t device;
};

using Other = void (*)();

struct Api {
    size_t struct_size;
    Extension* extensions;
    Version version;
    const void* internal;
    Error* (*create_error)(ErrorArgs*);
    Other between[12];  // unused: error messages, registration, streams, types, states, device memory, thread pools
    Error* (*create_future)(FutureArgs*);
    Error* (*complete_future)(FutureArgs*);
    Error* (*fail_future)(FutureErrorArgs*);
    Error* (*run_of)(RunArgs*);  // this and the next are missing in some runtimes with futures
    Error* (*device_of)(DeviceArgs*);
};

struct Frame {
    size_t struct_size;
    Extension* extensions;
    const Api* api;
    void* context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;
    Future* future;
};

Error* error_of(const Api* api, const char* message) {
    ErrorArgs args{sizeof(ErrorArgs), nullptr, message, kInternal};
    return api->create_error(&args);
}

// jaxlib 0.5 has futures, but reports a size that ends with the fourth function of `between`. Runtimes without futures
// that report the same size are older than jax.ffi, so they never call this handler.
bool has_futures(const Api* api) {
    return api->struct_size >= offsetof(Api, fail_future) + sizeof(Other) ||
           api->struct_size == offsetof(Api, between) + 4 * sizeof(Other);
}

bool knows_origins(const Api* api) { return api->struct_size >= offsetof(Api, device_of) + sizeof(Other); }

class XlaCall final : public farandole::graph::Call {
public:
    explicit XlaCall(const Frame* frame) : api_(frame->api) {
        read(frame->arguments);
        inputs_ = frame->arguments.size;
        read(frame->results);
        const Attributes& attributes = frame->attributes;
        if (knows_origins(api_)) {
            RunArgs run{sizeof(RunArgs), nullptr, frame->context, -1};
            DeviceArgs device{sizeof(DeviceArgs), nullptr, frame->context, -1};
            if (api_->run_of(&run) == nullptr && api_->device_of(&device) == nullptr) {
                // The attributes are made with the program and shared by all its runs.
                origin_ = {run.run, device.device, reinterpret_cast<int64_t>(attributes.values)};
            }
        }
        for (int64_t i = 0; i < attributes.size; ++i) {
            const std::string name(attributes.names[i]->data, attributes.names[i]->size);
            if (name == "spec" && attributes.types[i] == kString) {
                const auto* text = static_cast<const Bytes*>(attributes.values[i]);
                spec_.assign(text->data, text->size);
            }
        }
    }

    using Call::is_over;
    bool lacks_memory() const { return lacks_memory_; }

    void begin(Future* future) {
        future_ = future;
        Call::begin();
    }

    void* allocate(int64_t, const int64_t*, int64_t) override { return nullptr; }  // XLA knows all shapes beforehand

    void finish(const char* error) override {
        const std::unique_ptr<XlaCall> done(this);
        if (error == nullptr) {
            FutureArgs args{sizeof(FutureArgs), nullptr, future_};
            api_->complete_future(&args);
        } else {
            FutureErrorArgs args{sizeof(FutureErrorArgs), nullptr, future_, error_of(api_, error)};
            api_->fail_future(&args);
        }
    }

private:
    void read(const Buffers& buffers) {
        for (int64_t i = 0; i < buffers.size; ++i) {
            const auto* buffer = static_cast<const XlaBuffer*>(buffers.items[i]);
            add(buffer->data, buffer->dtype, buffer->dims, buffer->rank);
        }
    }

    const Api* api_;
    Future* future_ = nullptr;
};

}  // namespace

FARANDOLE_EXPORT Error* farandole_xla_call(Frame* frame) {
    const Api* api = frame->api;
    if (frame->extensions != nullptr && frame->extensions->type == kMetadata) {  // a query before the first call
        Metadata* metadata = reinterpret_cast<MetadataExtension*>(frame->extensions)->metadata;
        const Version version = api == nullptr ? kFirst : api->version;
        metadata->version = {sizeof(Version), nullptr, version.major, version.minor};
        metadata->traits = 0;
        return nullptr;
    }
    if (!has_futures(api) || frame->struct_size < offsetof(Frame, future)) {
        return error_of(api, "farandole: this XLA has no futures for foreign functions: jax >= 0.5 has");
    }
    auto call = std::make_unique<XlaCall>(frame);
    if (call->is_over()) {  // without a future, because the outputs are written already
        return call->lacks_memory() ? error_of(api, "farandole: there is no memory for the result") : nullptr;
    }
    FutureArgs args{sizeof(FutureArgs), nullptr, nullptr};
    if (Error* error = api->create_future(&args)) {
        return error;
    }
    frame->future = args.future;
    call.release()->begin(args.future);
    return nullptr;
}
