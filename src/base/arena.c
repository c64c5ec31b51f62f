/* arena.c - blocks of doubling size, each a header followed by its bytes.
 *
 * An allocation moves a pointer in the newest block; nothing is freed alone.  A reset keeps the
 * blocks that it empties: a pass after a pass, or a request after a request, writes memory that
 * the system has already given, instead of faulting in new pages.  Relies on aligned_alloc; used
 * by all that compiles or loads.  An arena belongs to one thread at a time: it has no lock.
 *
 * Under the address sanitizer every byte that is not part of an allocation is poisoned, so a read
 * beyond an item, or of one that a reset took, is reported as one of freed memory would be.
 */
#include "base/arena.h"

#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__ /* gcc's name, which ./dev asan builds with */
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

/* Both lists of an arena are made of these.  That of blocks in use runs from the newest to the
 * oldest, which is the order in which a reset empties them. */
struct arena_block {
    arena_block *before;
    size_t used, capacity; /* in bytes, of the memory after this header */
};

enum { FIRST_BLOCK = 16 << 10, LARGEST_BLOCK = 4 << 20, HEADER = 64 };

static char *bytes_of(arena_block *b)
{
    return (char *)b + HEADER;
}

/* Sizes double up to LARGEST_BLOCK: a small arena stays small, and a large one seldom asks the
 * system. */
static arena_block *make_block(const arena *a, size_t bytes)
{
    size_t size = a->block ? a->block->capacity * 2 : FIRST_BLOCK;
    if (size > LARGEST_BLOCK)
        size = LARGEST_BLOCK;
    if (size < bytes)
        size = bytes;
    if (size > SIZE_MAX - HEADER - 63)
        return NULL;
    arena_block *b = aligned_alloc(64, (HEADER + size + 63) & ~(size_t)63);
    if (b) {
        b->capacity = size;
        ASAN_POISON_MEMORY_REGION(bytes_of(b), size);
    }
    return b;
}

/* The smallest kept block of at least so many bytes, taken out of its list, or NULL. */
static arena_block *take_kept(arena *a, size_t bytes)
{
    arena_block **best = NULL;
    for (arena_block **at = &a->kept; *at; at = &(*at)->before)
        if ((*at)->capacity >= bytes && (!best || (*at)->capacity < (*best)->capacity))
            best = at;
    arena_block *b = best ? *best : NULL;
    if (b)
        *best = b->before;
    return b;
}

/* A block that was kept from before if one is large enough, else a new one; it becomes the one
 * that is filled.
 */
static arena_block *add_block(arena *a, size_t bytes)
{
    arena_block *b = take_kept(a, bytes);
    if (!b)
        b = make_block(a, bytes);
    if (!b)
        return NULL;
    b->before = a->block;
    b->used = 0;
    a->block = b;
    a->reserved_bytes += b->capacity;
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
    void *p = bytes_of(b) + start;
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
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

/* Everything that was allocated since the mark is gone.  Blocks made since are kept for later
 * allocations; the mark's own block is used on. */
void arena_reset(arena *a, arena_mark mark)
{
    while (a->block != mark.block) {
        arena_block *b = a->block;
        a->block = b->before;
        a->reserved_bytes -= b->capacity;
        b->before = a->kept;
        a->kept = b;
        ASAN_POISON_MEMORY_REGION(bytes_of(b), b->capacity);
    }
    if (!a->block)
        return;
    ASAN_POISON_MEMORY_REGION(bytes_of(a->block) + mark.used, a->block->capacity - mark.used);
    a->block->used = mark.used;
}

void arena_free(arena *a)
{
    arena_reset(a, (arena_mark){0});
    while (a->kept) {
        arena_block *b = a->kept;
        a->kept = b->before;
        free(b);
    }
}

/* The adopted blocks become the newer ones, so marks of `a` taken before empty them too.  Blocks
 * that `from` kept are freed. */
void arena_adopt(arena *a, arena *from)
{
    arena_block *oldest = from->block;
    while (oldest && oldest->before)
        oldest = oldest->before;
    if (oldest) {
        oldest->before = a->block;
        a->block = from->block;
        a->reserved_bytes += from->reserved_bytes;
    }
    *from = (arena){.kept = from->kept};
    arena_free(from);
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
