/* arena.c - blocks of doubling size, each a header followed by its bytes.
 *
 * An allocation moves a pointer in the newest block; nothing is freed alone.  Relies on
 * aligned_alloc; used by all that compiles or loads.  An arena belongs to one thread at a time: it
 * has no lock.
 */
#include "base/arena.h"

#include <stdlib.h>

/* The list runs from the newest block to the oldest, which is the order in which a reset frees
 * them. */
struct arena_block {
    arena_block *before;
    size_t used, capacity; /* in bytes, of the memory after this header */
};

enum { FIRST_BLOCK = 16 << 10, LARGEST_BLOCK = 4 << 20, HEADER = 64 };

/* Sizes double up to LARGEST_BLOCK: a small arena stays small, and a large one seldom asks the
 * system. */
static arena_block *add_block(arena *a, size_t bytes)
{
    size_t size = a->block ? a->block->capacity * 2 : FIRST_BLOCK;
    if (size > LARGEST_BLOCK)
        size = LARGEST_BLOCK;
    if (size < bytes)
        size = bytes;
    if (size > SIZE_MAX - HEADER - 63)
        return NULL;
    arena_block *b = aligned_alloc(64, (HEADER + size + 63) & ~(size_t)63);
    if (!b)
        return NULL;
    *b = (arena_block){.before = a->block, .used = 0, .capacity = size};
    a->block = b;
    a->reserved_bytes += size;
    return b;
}

/* Zeroed.  Objects of 64 bytes or more begin on a cache line, smaller ones at 16 bytes; what is
 * left of the block before is given up, not searched.  NULL: out of memory, or the size
 * overflows. */
void *arena_alloc(arena *a, size_t n, size_t item_bytes)
{
    if (item_bytes && n > (SIZE_MAX >> 1) / item_bytes)
        return NULL;
    size_t bytes = n * item_bytes;
    size_t alignment = bytes >= 64 ? 64 : 16;
    arena_block *b = a->block;
    size_t start = b ? (b->used + alignment - 1) & ~(alignment - 1) : 0;
    if (!b || start > b->capacity || bytes > b->capacity - start) {
        b = add_block(a, bytes);
        if (!b)
            return NULL;
        start = 0;
    }
    b->used = start + bytes;
    void *p = (char *)b + HEADER + start;
    memset(p, 0, bytes);
    return p;
}

/* A copy with a zero after it.  NULL: out of memory. */
char *arena_copy(arena *a, const char *bytes, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = arena_alloc(a, n + 1, 1);
    if (p && n)
        memcpy(p, bytes, n);
    return p;
}

arena_mark arena_get_mark(const arena *a)
{
    return (arena_mark){a->block, a->block ? a->block->used : 0};
}

/* Everything that was allocated since the mark is gone.  Blocks made since are freed; the mark's
 * own block is used on. */
void arena_reset(arena *a, arena_mark mark)
{
    while (a->block != mark.block) {
        arena_block *b = a->block;
        a->block = b->before;
        a->reserved_bytes -= b->capacity;
        free(b);
    }
    if (a->block)
        a->block->used = mark.used;
}

void arena_free(arena *a)
{
    arena_reset(a, (arena_mark){0});
}

/* The adopted blocks become the newer ones, so marks of `a` taken before free them too. */
void arena_adopt(arena *a, arena *from)
{
    arena_block *oldest = from->block;
    if (!oldest)
        return;
    while (oldest->before)
        oldest = oldest->before;
    oldest->before = a->block;
    a->block = from->block;
    a->reserved_bytes += from->reserved_bytes;
    *from = (arena){0};
}

/* The old array stays where it is until the arena goes: growing by doubling wastes at most as much
 * as it holds. */
void *arena_grow(arena *a, const void *items, size_t n, size_t *capacity, size_t item_bytes)
{
    size_t grown = *capacity ? *capacity * 2 : 8;
    void *p = arena_alloc(a, grown, item_bytes);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, items, n * item_bytes);
    *capacity = grown;
    return p;
}
