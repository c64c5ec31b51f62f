/* map.h - a hash map from bytes to 64-bit values, inside an arena. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

typedef struct map_slot {
    str key; /* borrowed; at == NULL: empty */
    uint64_t hash, value;
} map_slot;

/* Zero-initialise.  Keys are borrowed and must outlive the map. */
typedef struct map {
    map_slot *slots; /* capacity is a power of two, at most 3/4 full */
    size_t n, capacity;
} map;

/* A 64-bit hash of n bytes; the same on every machine.  Not for adversaries to be kept from
 * collisions: give hostile keys a secret seed. */
uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed);

/* Set key to value, replacing an earlier value.  MPK_ENOMEM. */
mpk_status map_put(mpk_context *cx, arena *a, map *m, str key, uint64_t value);
/* True and *value (may be NULL) if key is there. */
bool map_get(const map *m, str key, uint64_t *value);

#endif
