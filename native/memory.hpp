// Available memory: checked before large allocations, because otherwise the kernel kills a process on a shortage,
// without an error.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace farandole {

// Bytes that can be allocated, and the place of the limit.
struct Room {
    std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
    std::string where;

    void limit(std::uint64_t bytes_there, const std::string& there) {
        if (bytes_there >= bytes) return;
        bytes = bytes_there;
        where = there;
    }
};

// The number after `name` in a file of "name number" lines; `otherwise` without such a line.
inline std::uint64_t field(const std::string& path, const std::string& name, std::uint64_t otherwise) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string word;
        std::uint64_t value = 0;
        if (words >> word >> value && word == name) return value;
    }
    return otherwise;
}

// Limit the room by one control group, of either version: its limit minus the unreclaimable memory of its processes.
inline void limit_by_group(Room& room, const std::string& folder) {
    static constexpr const char* vocabulary[][3] = {{"/memory.max", "anon", "shmem"},
                                                    {"/memory.limit_in_bytes", "total_rss", "total_shmem"}};
    for (const auto& [limit_file, anonymous, shared] : vocabulary) {
        std::uint64_t limit = 0;
        if (!(std::ifstream(folder + limit_file) >> limit)) continue;  // "max", or no such file
        const std::string held_file = folder + "/memory.stat";
        const std::uint64_t held = field(held_file, anonymous, 0) + field(held_file, shared, 0);
        room.limit(limit - std::min(limit, held), "in the control group " + folder);
    }
}

// Memory that the host and the control groups of this process (of either version) leave free.
inline Room room_for_memory() {
    Room room;
    room.limit(field("/proc/meminfo", "MemAvailable:", room.bytes / 1024) * 1024, "on this host");
    std::ifstream groups("/proc/self/cgroup");
    std::string line;
    while (std::getline(groups, line)) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (!controllers.empty() && controllers != "memory") continue;
        const std::string mount = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        for (std::string path = line.substr(second + 1); !path.empty(); path.erase(path.rfind('/'))) {
            limit_by_group(room, mount + path);
        }
        limit_by_group(room, mount);
    }
    return room;
}

inline std::string limit_text(__rlimit_resource resource, const char* name) {
    rlimit limit{};
    getrlimit(resource, &limit);
    return std::string(name) + " is " +
           (limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur));
}

// Error text with the requested size, the available memory, and remedies.
inline std::string shortage_text(std::uint64_t nbytes, const std::string& said) {
    const Room room = room_for_memory();
    return "asked for " + std::to_string(nbytes) + " bytes of memory shared with the other ranks; " + said + " while " +
           std::to_string(room.bytes) + " bytes are free " + room.where + ", " +
           limit_text(RLIMIT_AS, "the limit of address space (ulimit -v)") + " and " +
           limit_text(RLIMIT_FSIZE, "the limit of file size (ulimit -f)") +
           "; raise the limit that is too low, run fewer ranks, use smaller buckets (--bucket-bytes) or another engine "
           "(--engine tcp)";
}

}  // namespace farandole
