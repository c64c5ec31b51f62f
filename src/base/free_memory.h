/* free_memory.h - memory that this process may still take: the machine's, or its control group's if
 * that has less. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stdint.h>

/* Bytes that can be had now without swapping, the cache of files that the system would drop for us
 * included.  total (may be NULL): bytes in all, free or not. */
uint64_t memory_free_bytes(uint64_t *total);
/* The same of a control group whose files are in this folder, on a machine where `available` bytes
 * can be had. */
uint64_t memory_free_in_group(const char *folder, uint64_t available);

#endif
