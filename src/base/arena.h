/* arena.h - memory with the lifetime of a purpose, freed all at once.
 *
 * An arena is a list of blocks; an allocation moves a pointer.  Nothing is freed alone: the whole
 * arena goes, or everything allocated after a mark.  Memory is zeroed.  A NULL result means that
 * the system has no memory; NEW turns it into MPK_ENOMEM.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct arena_block arena_block;

/* Zero-initialise before use; not thread-safe. */
typedef struct arena {
    arena_block *block;    /* newest in use; each points to the one before */
    arena_block *kept;     /* emptied by a reset; used again before the system is asked */
    size_t reserved_bytes; /* of the blocks in use, for statistics and limits */
} arena;

typedef struct arena_mark {
    arena_block *block;
    size_t used;
} arena_mark;

/* n * item_bytes zeroed bytes aligned to 16 (to 64 from 64 bytes on), or NULL if there is no memory
 * or the product overflows.  n = 0 gives a valid pointer that must not be read. */
void *arena_alloc(arena *a, size_t n, size_t item_bytes);
/* A NUL-terminated copy of n bytes, or NULL. */
char *arena_copy(arena *a, const char *bytes, size_t n);
/* Everything allocated after the mark is given up by arena_reset, and its memory used again by
 * later allocations of this arena; arena_free gives it back to the system. */
arena_mark arena_get_mark(const arena *a);
void arena_reset(arena *a, arena_mark mark);
/* Free every block; the arena is empty and usable again. */
void arena_free(arena *a);
/* What lies in `from` now lies in a, as if allocated there last; from is empty.  For what a thread
 * has made. */
void arena_adopt(arena *a, arena *from);

/* NEW(cx, a, p, n): p = n zeroed items in arena *a, or MPK_ENOMEM from the enclosing function. */
#define NEW(cx, a, p, n)                                                                          \
    do {                                                                                          \
        size_t new_n_ = (size_t)(n);                                                              \
        (p) = arena_alloc((a), new_n_, sizeof *(p));                                              \
        if (!(p))                                                                                 \
            return status_fail((cx), MPK_ENOMEM, "out of memory for %zu items of %zu bytes (%s)", \
                               new_n_, sizeof *(p), __func__);                                    \
    } while (0)

/* A growable array inside an arena: VEC(type) v; zero-initialise.  Growing doubles and leaves the
 * old items in the arena, so the sum of all sizes is at most twice the last. */
#define VEC(type)           \
    struct {                \
        type *at;           \
        size_t n, capacity; \
    }

/* PUSH(cx, a, v, item): append, or MPK_ENOMEM from the enclosing function. */
#define PUSH(cx, a, v, ...)                                                                      \
    do {                                                                                         \
        if ((v)->n == (v)->capacity) {                                                           \
            void *push_at_ = arena_grow((a), (v)->at, (v)->n, &(v)->capacity, sizeof *(v)->at);  \
            if (!push_at_)                                                                       \
                return status_fail((cx), MPK_ENOMEM, "out of memory for %zu items of %zu bytes", \
                                   (v)->capacity, sizeof *(v)->at);                              \
            (v)->at = push_at_;                                                                  \
        }                                                                                        \
        (v)->at[(v)->n++] = (__VA_ARGS__);                                                       \
    } while (0)

/* A copy of n items with at least twice the capacity (in and out), or NULL.  For PUSH. */
void *arena_grow(arena *a, const void *items, size_t n, size_t *capacity, size_t item_bytes);

#endif
