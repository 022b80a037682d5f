/* A wall clock that a test sets for its processes: LD_PRELOAD it, and write seconds (int64) to the file WALL_CLOCK.
 *
 * CLOCK_REALTIME, gettimeofday and time move by that offset; the monotonic clocks do not, as when a machine's clock is
 * set. A wait until a moment of CLOCK_REALTIME then ends as wrongly as it would there: the kernel's clock has not moved.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none = 0, *offset_s = &none;

__attribute__((constructor)) static void open_clock(void) {
    const char* path = getenv("WALL_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void* memory = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) offset_s = memory;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return (int)failed;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
