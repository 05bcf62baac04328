/* SPDX-License-Identifier: Apache-2.0 */
/* A wall clock that tests set: LD_PRELOADed into an agent. The file named by WALL_OFFSET holds seconds, as a 64-bit
 * number, by which the machine's time is wrong; it may change at any moment. Clocks that only go forward stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset(void) {
    static volatile int64_t *page;
    if (page == NULL) {
        const char *path = getenv("WALL_OFFSET");
        int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return 0;
        void *found = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (found == MAP_FAILED)
            return 0;
        page = found;
    }
    return *page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result != NULL)
        *result = exact.tv_sec;
    return exact.tv_sec;
}
