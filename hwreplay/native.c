/* A batch of copies in one call, which Python makes without holding its lock; compiled when first needed. */
#include <stdint.h>
#include <string.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* the clock of time.perf_counter_ns */
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* times[0] and times[1]: when the first byte and when the last one was copied. */
void hwreplay_copy_batch(const uint64_t *destinations, const uint64_t *sources, const uint64_t *sizes, int64_t count,
                         int64_t *times) {
    times[0] = now_ns();
    for (int64_t i = 0; i < count; i++)
        memcpy((void *)(uintptr_t)destinations[i], (const void *)(uintptr_t)sources[i], sizes[i]);
    times[1] = now_ns();
}
