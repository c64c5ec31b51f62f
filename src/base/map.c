/* map.c - a map from texts to numbers: open addressing with linear probing.
 *
 * Slots lie in an arena and keep the hash, so that growing reads no key.  There is no removal,
 * hence no tombstones.  An empty slot is one whose key has no address.
 */
#include "base/map.h"

#include "base/rng.h"

/* Eight bytes a step by multiply and shift, read in the host's order.  Not safe against keys made
 * to collide, whatever the seed is. */
uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = seed ^ (n * UINT64_C(0x9e3779b97f4a7c15));
    for (; n; n -= n < 8 ? n : 8, p += 8) {
        uint64_t word = 0;
        memcpy(&word, p, n < 8 ? n : 8);
        h = (h ^ word) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
        if (n < 8)
            break;
    }
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ (h >> 29);
}

__extension__ typedef unsigned __int128 wide;

/* The hash of a key in this table.  Keys may be a stranger's (names in a request), so they are
 * mixed with two secret numbers, hash and value of the slot after the last: a difference of two
 * words comes out of the product as one that depends on them, so no keys can be made that collide
 * in every table. */
static uint64_t hash_key(const map *m, str key)
{
    const map_slot *secret = &m->slots[m->capacity];
    uint64_t h = secret->hash ^ key.n;
    for (size_t at = 0; at < key.n; at += 8) {
        uint64_t word = 0;
        memcpy(&word, key.at + at, key.n - at < 8 ? key.n - at : 8);
        const wide product = (wide)(h ^ word) * secret->value;
        h = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return h;
}

/* From the place of the first slots, which differs from process to process. */
static map_slot make_secret(const map_slot *slots)
{
    const uint64_t place = (uintptr_t)slots;
    return (map_slot){.hash = rng_u64(place, 0), .value = rng_u64(place, 1) | 1};
}

/* The slot of the key, or the empty one where it belongs.  Ends because the table is never full:
 * map_put keeps a quarter of it empty.  m->capacity is not 0. */
static map_slot *find(const map *m, str key, uint64_t hash)
{
    size_t i = hash & (m->capacity - 1);
    while (m->slots[i].key.at && !(m->slots[i].hash == hash && str_equal(m->slots[i].key, key)))
        i = (i + 1) & (m->capacity - 1);
    return &m->slots[i];
}

/* The capacity is a power of two; the old slots stay in the arena.  The secret stays the same, so
 * that hashes do, and entries move in the order of memory. */
static mpk_status grow(mpk_context *cx, arena *a, map *m)
{
    map bigger = {.n = m->n, .capacity = m->capacity ? m->capacity * 2 : 16};
    NEW(cx, a, bigger.slots, bigger.capacity + 1);
    bigger.slots[bigger.capacity] = m->capacity ? m->slots[m->capacity] : make_secret(bigger.slots);
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].key.at)
            *find(&bigger, m->slots[i].key, m->slots[i].hash) = m->slots[i];
    *m = bigger;
    return MPK_OK;
}

/* The key's bytes are borrowed, not copied.  At three quarters full the table doubles. */
mpk_status map_put(mpk_context *cx, arena *a, map *m, str key, uint64_t value)
{
    if (!key.at)
        key.at = "";
    if (m->n + 1 > m->capacity / 4 * 3)
        TRY(grow(cx, a, m));
    const uint64_t hash = hash_key(m, key);
    map_slot *slot = find(m, key, hash);
    if (!slot->key.at)
        m->n++;
    *slot = (map_slot){key, hash, value};
    return MPK_OK;
}

/* A key without an address is the empty text, which may be a key. */
bool map_get(const map *m, str key, uint64_t *value)
{
    if (!m->n)
        return false;
    if (!key.at)
        key.at = "";
    const map_slot *slot = find(m, key, hash_key(m, key));
    if (!slot->key.at)
        return false;
    if (value)
        *value = slot->value;
    return true;
}
