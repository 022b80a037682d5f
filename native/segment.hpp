// Shared memory without a name: a memfd that peers open through /proc, so that no file remains if a process dies.
//
// The maker sends a `Card`; a peer maps the descriptor in the card, and refuses unless the first page has the card's
// random token. When every peer has mapped the memory, descriptors are closed: the memory exists as long as some
// process maps it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "memory.hpp"

namespace farandole {

// Memory could not be allocated or mapped: becomes EngineError.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr std::size_t page_bytes = 4096;

// Data that a peer needs to map a segment; sent as bytes.
struct Card {
    std::uint64_t token[2];
    std::uint64_t nbytes;
    std::int32_t pid;
    std::int32_t descriptor;
};

// An open file descriptor.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    int number() const { return number_; }

private:
    int number_ = -1;
};

// A mapped segment: the first page holds the token, the usable memory begins after it.
//
// Forked children (a data loader's workers) do not inherit the mapping: a long-lived child would keep the memory of
// every session alive, and could write into its parent's reductions. In the child the addresses are unmapped, and may
// be reused. So a child that frees an inherited object must not unmap; a child that reads the memory gets SIGSEGV.
class Mapping {
public:
    Mapping() = default;
    Mapping(int descriptor, std::size_t nbytes) : length_(page_bytes + nbytes) {
        void* base = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (base == MAP_FAILED) {
            length_ = 0;
            return;
        }
        base_ = static_cast<std::byte*>(base);
        madvise(base_, length_, MADV_HUGEPAGE);  // fewer address translations where the system allows it
        madvise(base_, length_, MADV_DONTFORK);
    }
    Mapping(Mapping&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), length_(std::exchange(other.length_, 0)), owner_(other.owner_) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(length_, other.length_);
        std::swap(owner_, other.owner_);
        return *this;
    }
    ~Mapping() {
        if (base_ != nullptr && owner_ == getpid()) munmap(base_, length_);
    }

    explicit operator bool() const { return base_ != nullptr; }
    std::byte* data() const { return base_ == nullptr ? nullptr : base_ + page_bytes; }
    std::size_t nbytes() const { return length_ - page_bytes; }
    std::uint64_t* token() const { return reinterpret_cast<std::uint64_t*>(base_); }

    // Allocate every page now, so that a lack of memory is an error and not a later SIGBUS. Returns 0 or an errno.
    int populate(int descriptor) const {
        if (madvise(base_, length_, madv_populate_write) == 0) return 0;
        if (errno != EINVAL) return errno;
        return posix_fallocate(descriptor, 0, static_cast<off_t>(length_));  // Linux before 5.14
    }

private:
    static constexpr int madv_populate_write = 23;  // MADV_POPULATE_WRITE, absent from older headers

    std::byte* base_ = nullptr;
    std::size_t length_ = 0;
    pid_t owner_ = getpid();
};

inline Failure no_memory(const char* step, std::size_t nbytes, int error) {
    return Failure(shortage_text(nbytes, std::string(step) + " said '" + std::strerror(error) + "'"));
}

// A segment made by this process: zeroed memory, accessible to peers while `descriptor` is open.
struct Segment {
    Mapping mapping;
    Descriptor descriptor;
    Card card{};

    // `members`: number of processes on this host that make a segment of this size at the same time.
    static Segment make(std::size_t nbytes, std::size_t members) {
        const std::size_t free = room_for_memory().bytes / members;
        if (nbytes > free)
            throw Failure(
                shortage_text(nbytes, "as much for each of " + std::to_string(members) + " ranks does not fit"));
        const std::size_t length = page_bytes + nbytes;
        Segment made;
        made.descriptor = Descriptor(memfd_create("farandole", MFD_CLOEXEC));
        const int fd = made.descriptor.number();
        if (fd < 0) throw no_memory("memfd_create", nbytes, errno);
        if (ftruncate(fd, static_cast<off_t>(length)) != 0) throw no_memory("ftruncate", nbytes, errno);
        made.mapping = Mapping(fd, nbytes);
        if (!made.mapping) throw no_memory("mmap", nbytes, errno);
        if (const int error = made.mapping.populate(fd)) throw no_memory("reserving the pages", nbytes, error);
        made.card = {{}, nbytes, static_cast<std::int32_t>(getpid()), fd};
        if (getrandom(made.card.token, sizeof made.card.token, 0) != sizeof made.card.token) {
            throw Failure("getrandom gave no random bytes");
        }
        std::memcpy(made.mapping.token(), made.card.token, sizeof made.card.token);
        return made;
    }
};

// Map the segment that `card` describes.
inline Mapping attach(const Card& card) {
    const std::string path = "/proc/" + std::to_string(card.pid) + "/fd/" + std::to_string(card.descriptor);
    const std::string remedy =
        "; the ranks of one host must run as one user and see one another in /proc (use one container for all of "
        "them, or --engine tcp)";
    Descriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (descriptor.number() < 0) {
        throw Failure("the shared memory of process " + std::to_string(card.pid) + " cannot be opened: " + path + ": " +
                      std::strerror(errno) + remedy);
    }
    struct stat found{};
    if (fstat(descriptor.number(), &found) != 0 ||
        static_cast<std::uint64_t>(found.st_size) != page_bytes + card.nbytes) {
        throw Failure(path + " is not the shared memory that was announced" + remedy);
    }
    Mapping mapping(descriptor.number(), card.nbytes);
    if (!mapping) throw no_memory("mmap", card.nbytes, errno);
    if (std::memcmp(mapping.token(), card.token, sizeof card.token) != 0) {
        throw Failure(path + " does not hold the token that was announced" + remedy);
    }
    return mapping;
}

}  // namespace farandole
