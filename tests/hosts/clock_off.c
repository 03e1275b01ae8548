/* Shifts the time of day of one process by CLOCK_OFF_S seconds; loaded by LD_PRELOAD. Only the wall clock: intervals, sleeps and
   timeouts of locks run on the monotonic clock and stay as they are. (libfaketime 0.9.10 breaks those: a timed lock in Python either
   waits for the whole shift or fails with EINVAL.) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t off(void) {
    const char *seconds = getenv("CLOCK_OFF_S");
    return seconds ? (time_t)atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(now, zone);
    if (!failed) now->tv_sec += off();
    return failed;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
