// Rows of a batch, read from files by one call: Python would release and take its lock for each of them, while other
// threads want it.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

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

// Fill rows of `nbytes` bytes at `addresses`; the numbers of those that could not be filled.
inline std::vector<std::size_t> read_rows(const std::vector<int>& fds, const std::vector<std::int64_t>& offsets,
                                          const std::vector<std::uintptr_t>& addresses, std::size_t nbytes) {
    std::vector<std::size_t> failed;
    for (std::size_t i = 0; i < fds.size(); ++i) {
        if (!read_row(fds[i], offsets[i], reinterpret_cast<std::byte*>(addresses[i]), nbytes)) failed.push_back(i);
    }
    return failed;
}

}  // namespace farandole
