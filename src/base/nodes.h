/* nodes.h - memory of machines with several nodes (NUMA). */
#ifndef BASE_NODES_H
#define BASE_NODES_H

#include <stddef.h>
#include <stdint.h>

/* The nodes of a list as Linux writes it, "0-1,3", as bits; those from 64 on are left out. */
uint64_t nodes_of_list(const char *list);

/* Spread what lies whole in [p, p + n) over all nodes that have memory, page by page: threads on
 * every node then read it at the bandwidth of all of them, where it would otherwise lie on the node
 * of the thread that fills it.  Before the memory is first touched.  With one node nothing is
 * done, and a refusal does no harm. */
void nodes_spread(void *p, size_t n);

#endif
