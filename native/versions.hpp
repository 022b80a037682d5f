// Function multi-versioning: one binary has each kernel for several x86-64 levels and selects one at run time.
//
// A kernel is a struct with `static FARANDOLE_INLINE void run(const Job&)`; `fastest<Kernel>(job)` runs the version for
// this processor. On other architectures (aarch64 always has its vector unit) there is one version.
// `portable<Kernel>(job)` runs the baseline version: each further version costs compile time, which pays off only for
// sums of floating-point numbers, for which training waits.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define FARANDOLE_VERSIONS 1
#endif

namespace farandole {

#ifdef FARANDOLE_VERSIONS

#ifdef __clang__
#define FARANDOLE_V4 "arch=x86-64-v4"
#else
#define FARANDOLE_V4 "arch=x86-64-v4,prefer-vector-width=512"
#endif

template <class Kernel, class Job>
__attribute__((target("arch=x86-64-v3"))) void version3(const Job& job) {
    Kernel::run(job);
}

template <class Kernel, class Job>
__attribute__((target(FARANDOLE_V4))) void version4(const Job& job) {
    Kernel::run(job);
}

inline int processor_level() {
    static const int level = [] {
        __builtin_cpu_init();
        const bool v3 =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
        const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
        return v3 && v4 ? 4 : v3 ? 3 : 2;
    }();
    return level;
}

template <class Kernel, class Job>
void fastest(const Job& job) {
    switch (processor_level()) {
        case 4: return version4<Kernel>(job);
        case 3: return version3<Kernel>(job);
        default: return Kernel::run(job);
    }
}

#else

inline int processor_level() { return 0; }

template <class Kernel, class Job>
void fastest(const Job& job) {
    Kernel::run(job);
}

#endif

template <class Kernel, class Job>
__attribute__((noinline)) void portable(const Job& job) {
    Kernel::run(job);
}

}  // namespace farandole
