/* attend.cuh - the operator attention as its bodies for many tokens see it: operands, shape,
 * what a token sees.
 *
 * attention_tile.cuh, attention_group.cuh and attention_lone.cuh include it; the host prints
 * attend_shape in gen/body_attention_tile.c and body_attention_group.c.
 */
#ifndef TASK_ATTEND_CUH
#define TASK_ATTEND_CUH

#include "tile/cap.cuh"
#include "tile/inverse.cuh"
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
/* What some uses have besides: bits of the parameter HOW of the bodies, so that others have no code
 * for it, and a shape of their own. */
enum { ATTEND_CAP = 1, ATTEND_SINK = 2 };
struct attend_more : attend_shape {
    float cap, cap_rate; /* as mpk_capped takes them, in powers of 2 */
    int f32_sinks;       /* else they are bf16 */
};

/* How products of queries and keys become scores, in powers of 2: softmax is the same in any base,
 * and 2^x is one instruction.  cap and cap_rate are 0 without ATTEND_CAP. */
struct attend_factor {
    float scale, cap, cap_rate;
};
template <int HOW> MPK_FN attend_factor attend_factor_of(const attend_shape &s)
{
    attend_factor f = {s.scale, 0, 0};
    if (HOW & ATTEND_CAP) {
        f.cap = static_cast<const attend_more &>(s).cap;
        f.cap_rate = static_cast<const attend_more &>(s).cap_rate;
    }
    return f;
}
template <int HOW> MPK_FN float attend_score_of(const attend_factor &f, float product)
{
    const float score = product * f.scale;
    return HOW & ATTEND_CAP ? mpk_capped(score, f.cap, f.cap_rate) : score;
}

/* Operands in rt_entry.at.  attention_parts has two results from ATTEND_SINKS on, as it has no
 * sinks (attention_latent.cuh). */
enum {
    ATTEND_Q,
    ATTEND_K,
    ATTEND_V,
    ATTEND_POSITIONS,
    ATTEND_SLOTS,
    ATTEND_PAGES,
    ATTEND_SINKS,
    ATTEND_Y
};

/* The first position that a token at `position` sees: 0, or with a window the last `window`
 * ones, itself counted. */
MPK_FN int attend_from(const attend_shape &s, int position)
{
    return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

/* What the results of a query head are multiplied by at the end; sum: of its weights, which are
 * relative to 2^zero.  A sink is one more score, without a value.  A row that saw nothing gets
 * 0. */
template <int HOW>
MPK_FN float attend_last(const mpk_task &t, const attend_shape &s, int head, float zero, float sum)
{
    if (!(HOW & ATTEND_SINK))
        return sum > 0 ? mpk_inverse(sum) : 0;
    const float sink =
        (static_cast<const attend_more &>(s).f32_sinks
             ? mpk_at<const float>(t, ATTEND_SINKS)[head]
             : __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, ATTEND_SINKS)[head] << 16)) *
        1.44269504f;
    const float most = fmaxf(zero, sink), kept = sum > 0 ? ptx_exp2(zero - most) : 0;
    return kept > 0 ? kept * mpk_inverse(fmaf(sum, kept, ptx_exp2(sink - most))) : 0;
}

#endif
