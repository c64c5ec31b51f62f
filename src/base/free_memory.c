/* free_memory.c - free memory of the host: /proc/meminfo, limited by the control group (version 2)
 * of the process. */
#include "base/free_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* A decimal number in a file, or UINT64_MAX. */
static uint64_t read_limit(const char *path)
{
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    if (f)
        fclose(f);
    return value;
}

/* The least of what the machine has available and of what the process's control group still may
 * take.  Inside a container only the second is true. */
uint64_t memory_free_bytes(uint64_t *total)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), all = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    uint64_t available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page, kib;
    uint64_t limit = read_limit("/sys/fs/cgroup/memory.max"),
             used = read_limit("/sys/fs/cgroup/memory.current");
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available =
                kib * 1024; /* counts the cache that can be dropped, which the C library does not */
    if (f)
        fclose(f);
    if (limit < all)
        all = limit;
    if (limit != UINT64_MAX && used != UINT64_MAX && used < limit && limit - used < available)
        available = limit - used;
    if (total)
        *total = all;
    return available < all ? available : all;
}
