/* attend.cuh - the operator attention as its bodies for many tokens see it: operands, shape,
 * what a token sees.
 *
 * attention_tile.cuh, attention_group.cuh and attention_lone.cuh include it; the host prints
 * attend_shape in gen/body_attention_tile.c and body_attention_group.c.
 */
#ifndef TASK_ATTEND_CUH
#define TASK_ATTEND_CUH

#include "tile/kv.cuh"
#include "tile/worker.cuh"

/* Positions of a KV page that these bodies take; other page sizes get the generic body. */
enum { ATTEND_PAGE = 64 };

/* A use of the operator: heads of q, KV heads, and how scores are made. */
struct attend_shape {
    int heads, kv_heads;
    int cache; /* which of mpk_caches */
    int window;
    float scale; /* with log2(e) */
};

/* Operands in rt_entry.at. */
enum {
    ATTEND_Q,
    ATTEND_K,
    ATTEND_V,
    ATTEND_POSITIONS,
    ATTEND_SLOTS,
    ATTEND_PAGES,
    ATTEND_SINKS, /* there are none where these bodies are */
    ATTEND_Y
};

/* The first position that a token at `position` sees: 0, or with a window the last `window`
 * ones, itself counted. */
MPK_FN int attend_from(const attend_shape &s, int position)
{
    return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

#endif
