/* nodes.c - which nodes of memory there are, and the kernel's policy that spreads pages over them.
 *
 * Relies on: /sys/devices/system/node and mbind(2), which is called by number, since libc has no
 * name for it.
 */
#include "base/nodes.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t nodes_of_list(const char *list)
{
    uint64_t nodes = 0;
    unsigned from, to;
    int used;
    while (sscanf(list, "%u%n", &from, &used) == 1) {
        list += used;
        to = from;
        if (sscanf(list, "-%u%n", &to, &used) == 1)
            list += used;
        for (unsigned i = from; i <= to && i < 64; i++)
            nodes |= (uint64_t)1 << i;
        if (*list++ != ',')
            break;
    }
    return nodes;
}

/* Nodes that have memory; 0 if the system does not say. */
static uint64_t nodes_with_memory(void)
{
    char list[512] = "";
    FILE *f = fopen("/sys/devices/system/node/has_memory", "re");
    if (!f)
        return 0;
    const char *line = fgets(list, sizeof list, f);
    fclose(f);
    return line ? nodes_of_list(line) : 0;
}

void nodes_spread(void *p, size_t n)
{
    enum { MPOL_INTERLEAVE = 3 };
    const uint64_t nodes = nodes_with_memory();
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
                    first = ((uintptr_t)p + page - 1) & ~(page - 1),
                    end = ((uintptr_t)p + n) & ~(page - 1);
    const unsigned long mask = (unsigned long)nodes;
    if ((nodes & (nodes - 1)) && end > first)
        syscall(SYS_mbind, first, end - first, MPOL_INTERLEAVE, &mask, 8 * sizeof mask + 1, 0);
}
