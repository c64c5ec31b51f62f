/* free_memory.c - free memory of the host: /proc/meminfo, limited by the control group (version 2)
 * of the process. */
#include "base/free_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* A decimal number in a file of the folder, or UINT64_MAX. */
static uint64_t read_limit(const char *folder, const char *name)
{
    uint64_t value = UINT64_MAX;
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    if (f)
        fclose(f);
    return value;
}

/* Bytes of the group's inactive file cache, which the kernel reclaims first. */
static uint64_t read_droppable(const char *folder)
{
    uint64_t value, found = 0;
    char path[256], line[128];
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %" SCNu64, &value) == 1)
            found = value;
    if (f)
        fclose(f);
    return found;
}

/* The file cache counts as used: a group that has read large files is at its limit most of the
 * time, though most of that memory can be reclaimed. */
uint64_t memory_free_in_group(const char *folder, uint64_t available)
{
    const uint64_t limit = read_limit(folder, "memory.max"),
                   used = read_limit(folder, "memory.current"), droppable = read_droppable(folder);
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return available;
    const uint64_t kept = used > droppable ? used - droppable : 0;
    const uint64_t free = kept < limit ? limit - kept : 0;
    return free < available ? free : available;
}

/* The least of what the machine has available and of what the process's control group still may
 * take.  Inside a container only the second is true. */
uint64_t memory_free_bytes(uint64_t *total)
{
    static const char group[] = "/sys/fs/cgroup";
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), all = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    uint64_t available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page, kib;
    const uint64_t limit = read_limit(group, "memory.max");
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available =
                kib * 1024; /* counts the cache that can be dropped, which the C library does not */
    if (f)
        fclose(f);
    if (limit < all)
        all = limit;
    available = memory_free_in_group(group, available);
    if (total)
        *total = all;
    return available < all ? available : all;
}
