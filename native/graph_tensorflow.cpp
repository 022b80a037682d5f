// Operation "FarandoleCall" of TensorFlow: asynchronous, any number of inputs and outputs of any dtypes.
//
// It uses TensorFlow's C functions, which are looked up in the process at run time: so one library works with many
// versions of TensorFlow, and compiling it needs none.
//
// `done` of an asynchronous kernel is TensorFlow's `std::function<void()>`, on a stack frame that ends with `compute`.
// It is copied, which needs libstdc++ on both sides; `farandole.tensorflow` tests this once before use.
#include "graph_call.hpp"

#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <memory>

namespace {

struct TF_Status;
struct TF_Tensor;
struct TF_Context;
struct TF_Construction;
struct TF_OpBuilder;
struct TF_KernelBuilder;
struct TF_Shapes;

// The C functions, by their own names.
#define FUNCTIONS(F)                                                                                              \
    F(TF_Status*, TF_NewStatus, ())                                                                               \
    F(void, TF_DeleteStatus, (TF_Status*))                                                                        \
    F(void, TF_SetStatus, (TF_Status*, int, const char*))                                                         \
    F(int, TF_GetCode, (const TF_Status*))                                                                        \
    F(const char*, TF_Message, (const TF_Status*))                                                                \
    F(TF_OpBuilder*, TF_NewOpDefinitionBuilder, (const char*))                                                    \
    F(void, TF_OpDefinitionBuilderAddAttr, (TF_OpBuilder*, const char*))                                          \
    F(void, TF_OpDefinitionBuilderAddInput, (TF_OpBuilder*, const char*))                                         \
    F(void, TF_OpDefinitionBuilderAddOutput, (TF_OpBuilder*, const char*))                                        \
    F(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpBuilder*, bool))                                           \
    F(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpBuilder*, void (*)(TF_Shapes*, TF_Status*)))   \
    F(void, TF_RegisterOpDefinition, (TF_OpBuilder*, TF_Status*))                                                 \
    F(void, TF_ShapeInferenceContextSetUnknownShape, (TF_Shapes*, TF_Status*))                                    \
    F(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                                \
      (const char*, const char*, void* (*)(TF_Construction*), void (*)(void*, TF_Context*, void*),                \
       void (*)(void*)))                                                                                          \
    F(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                               \
    F(void, TF_OpKernelConstruction_GetAttrSize,                                                                  \
      (TF_Construction*, const char*, int32_t*, int32_t*, TF_Status*))                                            \
    F(void, TF_OpKernelConstruction_GetAttrString,                                                                \
      (TF_Construction*, const char*, char*, size_t, TF_Status*))                                                 \
    F(void, TF_OpKernelConstruction_Failure, (TF_Construction*, TF_Status*))                                      \
    F(void, TF_OpKernelContext_Failure, (TF_Context*, TF_Status*))                                                \
    F(int, TF_NumInputs, (TF_Context*))                                                                           \
    F(int, TF_NumOutputs, (TF_Context*))                                                                          \
    F(void, TF_GetInput, (TF_Context*, int, TF_Tensor**, TF_Status*))                                             \
    F(int, TF_ExpectedOutputDataType, (TF_Context*, int))                                                         \
    F(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                                \
      (TF_Context*, const int*, int, int, const int64_t*, int, int*, TF_Status*))                                 \
    F(int, TF_TensorType, (const TF_Tensor*))                                                                     \
    F(int, TF_NumDims, (const TF_Tensor*))                                                                        \
    F(int64_t, TF_Dim, (const TF_Tensor*, int))                                                                   \
    F(void*, TF_TensorData, (const TF_Tensor*))                                                                   \
    F(size_t, TF_DataTypeSize, (int))                                                                             \
    F(void, TF_DeleteTensor, (TF_Tensor*))

struct Functions {
#define FIELD(result, name, arguments) result(*name) arguments = nullptr;
    FUNCTIONS(FIELD)
#undef FIELD
    bool are_complete = true;

    Functions() {
        void* library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
        void* other = dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD);
        for (void* each : {library, other}) {
            if (each == nullptr) continue;
#define LOOK_UP(result, name, arguments) \
    if (name == nullptr) name = reinterpret_cast<result(*) arguments>(dlsym(each, #name));
            FUNCTIONS(LOOK_UP)
#undef LOOK_UP
        }
#define CHECK(result, name, arguments) are_complete = are_complete && name != nullptr;
        FUNCTIONS(CHECK)
#undef CHECK
    }
};

const Functions& tf() {
    static const Functions functions;
    return functions;
}

class Status {
public:
    Status() : status_(tf().TF_NewStatus()) {}
    ~Status() { tf().TF_DeleteStatus(status_); }
    Status(const Status&) = delete;
    Status& operator=(const Status&) = delete;

    operator TF_Status*() const { return status_; }
    bool is_ok() const { return tf().TF_GetCode(status_) == 0; }

private:
    TF_Status* status_;
};

constexpr int kFailedPrecondition = 9;
constexpr int kInternal = 13;

// Horovod's status code for mismatches and usage errors, which scripts catch.
int code_of(const char* error) {
    for (const char* kind : {"farandole.errors.MismatchError", "farandole.errors.UsageError"}) {
        if (std::strncmp(error, kind, std::strlen(kind)) == 0) return kFailedPrecondition;
    }
    return kInternal;
}
constexpr int kMostNested = 8;

struct Kernel {
    std::string spec;
};

void* create(TF_Construction* construction) {
    const Status status;
    int32_t count = 0, bytes = 0;
    tf().TF_OpKernelConstruction_GetAttrSize(construction, "spec", &count, &bytes, status);
    auto kernel = std::make_unique<Kernel>();
    if (status.is_ok() && bytes > 0) {
        kernel->spec.resize(static_cast<size_t>(bytes));
        tf().TF_OpKernelConstruction_GetAttrString(construction, "spec", kernel->spec.data(), kernel->spec.size(), status);
    }
    if (!status.is_ok()) {
        tf().TF_OpKernelConstruction_Failure(construction, status);
    }
    return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

class TensorFlowCall final : public farandole::graph::Call {
public:
    TensorFlowCall(const Kernel* kernel, TF_Context* context, std::function<void()> done)
        : context_(context), done_(std::move(done)) {
        spec_ = kernel->spec;
    }

    ~TensorFlowCall() override {
        for (TF_Tensor* tensor : outputs_) tf().TF_DeleteTensor(tensor);
    }

    void start() {
        const Status status;
        inputs_ = tf().TF_NumInputs(context_) - 1;
        for (int i = 0; i < inputs_; ++i) {
            TF_Tensor* tensor = nullptr;
            tf().TF_GetInput(context_, i + 1, &tensor, status);  // input 0 is the empty resource

            if (!status.is_ok()) return finish(tf().TF_Message(status));
            std::vector<int64_t> dims;
            for (int d = 0; d < tf().TF_NumDims(tensor); ++d) dims.push_back(tf().TF_Dim(tensor, d));
            add(tf().TF_TensorData(tensor), tf().TF_TensorType(tensor), dims.data(), static_cast<int64_t>(dims.size()));
            // The context keeps the memory until `done`. A reference held here would prevent its reuse for an output.
            tf().TF_DeleteTensor(tensor);
        }
        for (int i = 0; i < tf().TF_NumOutputs(context_); ++i) {
            add(nullptr, tf().TF_ExpectedOutputDataType(context_, i), nullptr, 0);
        }
        thread_local int nested = 0;  // calls nested on this thread: `done` of a call may run the next call inside
        if (is_over(nested < kMostNested)) {
            ++nested;
            finish(lacks_memory_ ? "farandole: there is no memory for the result" : nullptr);
            --nested;
        } else {
            begin();
        }
    }

    void* allocate(int64_t output, const int64_t* dims, int64_t rank) override {
        const Status status;
        const int index = static_cast<int>(output);
        size_t bytes = tf().TF_DataTypeSize(tf().TF_ExpectedOutputDataType(context_, index));
        for (int64_t d = 0; d < rank; ++d) bytes *= static_cast<size_t>(dims[d]);
        // Reuse the memory of the input with the same number, if there is no other reference: so a gradient is reduced
        // in place. Not of other inputs, which are not read yet.
        const int input = index + 1;
        int forwarded = -1;
        TF_Tensor* tensor = tf().TF_ForwardInputOrAllocateOutput(
            context_, &input, index < inputs_ ? 1 : 0, index, dims, static_cast<int>(rank), &forwarded, status);
        if (tensor == nullptr || !status.is_ok()) return nullptr;
        outputs_.push_back(tensor);
        return bytes == 0 ? static_cast<void*>(this) : tf().TF_TensorData(tensor);  // for 0 bytes, any non-null pointer
    }

    void finish(const char* error) override {
        std::unique_ptr<TensorFlowCall> over(this);
        if (error != nullptr) {
            const Status status;
            tf().TF_SetStatus(status, code_of(error), error);
            tf().TF_OpKernelContext_Failure(context_, status);
        }
        const std::function<void()> done = std::move(done_);
        over.reset();  // free the tensors first: after `done` the context is invalid
        done();
    }

private:
    TF_Context* context_;
    std::function<void()> done_;
    std::vector<TF_Tensor*> outputs_;
};

void compute(void* kernel, TF_Context* context, void* done) {
    auto* copied = static_cast<std::function<void()>*>(done);
    (new TensorFlowCall(static_cast<const Kernel*>(kernel), context, *copied))->start();
}

void leave_shapes_open(TF_Shapes* shapes, TF_Status* status) {
    tf().TF_ShapeInferenceContextSetUnknownShape(shapes, status);
}

bool register_operation() {
    if (!tf().are_complete) return false;
    const Status status;
    TF_OpBuilder* op = tf().TF_NewOpDefinitionBuilder("FarandoleCall");
    tf().TF_OpDefinitionBuilderAddAttr(op, "Tin: list(type) >= 0");
    tf().TF_OpDefinitionBuilderAddAttr(op, "Tout: list(type) >= 0");
    tf().TF_OpDefinitionBuilderAddAttr(op, "spec: string");
    // Stateful: an operation with a side effect runs exactly as often as the program calls it, even if its result is
    // not used, and is not folded to a constant. The resource, one for each name, tells TensorFlow which calls must
    // keep the order of the program: calls of the same name, also in loops and if a function is called twice. Without
    // resources TensorFlow would run all calls in order, one at a time.
    tf().TF_OpDefinitionBuilderSetIsStateful(op, true);
    tf().TF_OpDefinitionBuilderAddInput(op, "order: resource");
    tf().TF_OpDefinitionBuilderAddInput(op, "inputs: Tin");
    tf().TF_OpDefinitionBuilderAddOutput(op, "outputs: Tout");
    tf().TF_OpDefinitionBuilderSetShapeInferenceFunction(op, leave_shapes_open);
    tf().TF_RegisterOpDefinition(op, status);
    if (!status.is_ok()) return false;
    TF_KernelBuilder* builder = tf().TF_NewAsyncKernelBuilder("FarandoleCall", "CPU", create, compute, destroy);
    tf().TF_RegisterKernelBuilder("FarandoleCall", builder, status);
    return status.is_ok();
}

const bool is_registered = register_operation();

}  // namespace

FARANDOLE_EXPORT int farandole_tensorflow_is_registered() { return is_registered ? 1 : 0; }
