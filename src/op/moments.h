/* moments.h - how group_moments and group_scale number the places of an image [N, .., C], and cut
 * them into parts.
 *
 * Places are the axes between the first and the last, in row-major order.
 *
 *   9 places in 4 parts: 0 1 2 | 3 4 5 | 6 7 8 | none
 */
#ifndef OP_MOMENTS_H
#define OP_MOMENTS_H

#include "ir/op.h"

/* MOMENTS_GROUPS: what a task's scratch has room for (gen/body_group_split.c). */
enum { MOMENTS_GROUPS = 1024 };

/* Places, and those of each part; the last parts may have fewer, or none. */
typedef struct moments_parts {
    int64_t places, each;
} moments_parts;

static inline moments_parts moments_parts_of(const int64_t *dims, uint32_t rank, int64_t parts)
{
    moments_parts p = {1, 0};
    for (uint32_t i = 1; i + 1 < rank; i++)
        p.places *= dims[i];
    p.each = (p.places + parts - 1) / parts;
    return p;
}

/* The first place after a part; at most that after its first if it has none. */
static inline int64_t moments_end(const moments_parts *p, int64_t part)
{
    const int64_t end = (part + 1) * p->each, begin = part * p->each;
    if (end <= p->places)
        return end;
    return begin < p->places ? p->places : begin;
}

/* Place number i as the axes of at[]. */
static inline void moments_place(const int64_t *dims, uint32_t rank, int64_t i, int64_t *at)
{
    for (uint32_t axis = rank - 2; axis > 0; axis--) {
        at[axis] = i % dims[axis];
        i /= dims[axis];
    }
}

static inline mpk_status moments_check_groups(mpk_context *cx, const char *op, int64_t groups,
                                              int64_t channels)
{
    CHECK(cx, groups > 0 && groups <= MOMENTS_GROUPS && channels % groups == 0, MPK_ESHAPE,
          "%s: %lld groups for %lld channels, of at most %d", op, (long long)groups,
          (long long)channels, MOMENTS_GROUPS);
    return MPK_OK;
}

#endif
