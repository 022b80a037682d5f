// Rows of a batch, read from files by one call: Python would release and take its lock for each of them, while other
// threads want it.
//
// Python calls this by ctypes, and not through nanobind: a daemon thread that takes the lock back when the interpreter
// exits is ended there (`pthread_exit`), and no C++ frame may be below it, or the process aborts.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace farandole {

// Fill a row; false if the file ends before, or cannot be read.
inline bool read_row(int fd, std::int64_t offset, std::byte* into, std::size_t nbytes) {
    for (std::size_t done = 0; done < nbytes;) {
        const ssize_t count = pread(fd, into + done, nbytes - done, offset + static_cast<std::int64_t>(done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        done += static_cast<std::size_t>(count);
    }
    return true;
}

}  // namespace farandole

// Fill rows of `nbytes` bytes at `addresses`; writes the numbers of those that could not be filled, returns how many.
extern "C" __attribute__((visibility("default"), used)) inline std::size_t farandole_read_rows(
    std::size_t rows, const int* fds, const std::int64_t* offsets, const std::uintptr_t* addresses, std::size_t nbytes,
    std::size_t* failed) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < rows; ++i) {
        if (!farandole::read_row(fds[i], offsets[i], reinterpret_cast<std::byte*>(addresses[i]), nbytes)) {
            failed[found++] = i;
        }
    }
    return found;
}
