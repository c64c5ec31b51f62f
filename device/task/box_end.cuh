/* box_end.cuh - what comes between the sums of products by boxes and the result: biases and an
 * activation of eight values, the residual, the store.
 *
 * Input: scaled sums in fp32; output: the same place, or 16 bytes of the result.  Eight values are
 * neighbouring columns of a token.  What no task of the kernel has is not compiled (MPK_FORMS).
 * Called by box_put.cuh and linear_parts.cuh.
 */
#ifndef TASK_BOX_END_CUH
#define TASK_BOX_END_CUH

#include "task/tile_plan.cuh"

#if MPK_WGMMA

/* Does some task that shares a tile take the loop, is it compiled, and does some task that has its
 * tile alone have the end after one? */
#define BOX_SHARES(loop)                    \
    ((TILE_ALL_SHARE || TILE_SOME_SHARE) && \
     ((loop) == TILE_BOX_128 || ((loop) == TILE_BOX_256 && TILE_HAS(TILE_FORM_LARGE_PARTS))))
#define BOX_HAS_LOOP(loop) ((TILE_HAS_LOOP(loop) && !TILE_ALL_SHARE) || BOX_SHARES(loop))
#define BOX_HAS_END(end)                                                   \
    (TILE_HAS_END(TILE_BOX_128, end) || TILE_HAS_END(TILE_BOX_192, end) || \
     TILE_HAS_END(TILE_BOX_256, end))
/* Does some loop make the sums of unit `u`, 64 rows, of a warpgroup?  Code for a unit that none
 * makes is left out. */
#define BOX_HAS_UNIT(u) \
    ((u) < 2 || BOX_HAS_LOOP(TILE_BOX_256) || ((u) == 2 && BOX_HAS_LOOP(TILE_BOX_192)))

/* A lane's sums of as many rows of w as a warpgroup has at most: half of them where all lots are
 * joint, since each warpgroup then has half of the rows.  Loops over sums end there, whatever a
 * task has. */
enum { BOX_SUMS = TILE_ALL_SHORT && !MPK_IMAGES ? 64 : 128 };

#define BOX_HAS_ENDS (MPK_IMAGES || TILE_HAS(TILE_FORM_BOX_ENDS))
#define BOX_HAS_AFTER (BOX_HAS_ENDS && TILE_HAS(TILE_FORM_AFTER))

/* This warpgroup's biases of the pass's columns, in scratch; of images factors follow.  By mpk_s,
 * as in box_scratch. */
MPK_FN float *box_biases(void)
{
    return (float *)(mpk_s + MPK_PAGES * MPK_PAGE_BYTES + TILE_BEFORE_BIASES_OF(MPK_ROOM)) +
           mpk_thread() / 128 * TILE_BIASES;
}
enum { BOX_FACTORS = 2 * TILE_BIASES }; /* from a column's bias to an image's factor of it */

#if MPK_IMAGES
/* Of a convolution's vector of filters, in f32 or 16 bits; `otherwise`, which changes nothing,
 * where it is absent. */
MPK_FN float box_filter(const mpk_task &t, const tile_vector &v, int filter, float otherwise)
{
    if (v.operand < 0)
        return otherwise;
    return v.is_f32 ? mpk_at<const float>(t, v.operand)[filter]
                    : halves_low(mpk_at<const rt_u16>(t, v.operand)[filter]);
}
#endif

/* A warpgroup: what n packed rows of w from `row` on add to the sums of all tokens, to scratch.  A
 * packed row is a column of y; with a gate, rows of the gate and of what it lets through take
 * turns.  A meeting of the warpgroup has to follow.  Once for a pass, whose tokens all have the
 * same. */
MPK_FN void box_put_biases(const mpk_task &t, const tile_shape &s, int row, int n)
{
#pragma unroll 1
    for (int i = mpk_thread() % 128; i < n; i += 128) {
        float *s_bias = box_biases() + i;
#if MPK_IMAGES
        if (TILE_IS_IMAGE(s)) {
            s_bias[0] =
                box_filter(t, s.image.bias, row + i, 0) + box_filter(t, s.image.shift, row + i, 0);
            s_bias[BOX_FACTORS] = box_filter(t, s.image.scale, row + i, 1);
            continue;
        }
#endif
        s_bias[0] = s.activation != ACTIVATE_NONE ? tile_bias_of_pair(t, s, row + i)
                                                  : tile_bias_of(t, s, row + i);
    }
}

/* Eight neighbours in scratch, at a multiple of 16 bytes. */
MPK_FN tile_eight box_eight(const float *s_at)
{
    const mpk_words a = ptx_load_shared_words(s_at), b = ptx_load_shared_words(s_at + 4);
    return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w),
             __uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z),
             __uint_as_float(b.w)}};
}

/* A value of y, at last: relu of a convolution follows the residual.  As written NaN stays. */
MPK_FN float box_last(bool relu, float x)
{
    return relu && x < 0 ? 0 : x;
}

/* Eight columns of a token with their residual, as one store of 16 bytes, which it returns: who
 * sums squares wants them as they are stored, rounded.  sends: rt_entry.sends; relu: box_last. */
MPK_FN mpk_words box_store(rt_u32 sends, rt_u64 y, const tile_eight &v, const mpk_words &residual,
                           bool relu)
{
    const rt_u32 r[4] = {residual.x, residual.y, residual.z, residual.w}; /* zeros: none */
    rt_u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = halves_pack(box_last(relu, v.at[2 * i] + halves_low(r[i])),
                               box_last(relu, v.at[2 * i + 1] + halves_high(r[i])));
    const mpk_words stored = {words[0], words[1], words[2], words[3]};
    ptx_store_words((void *)y, stored);
    mpk_send(sends, (mpk_words *)y, stored);
    return stored;
}

/* What comes between eight scaled sums and their residual, with the biases and, of images, factors
 * of their columns; after: s.after.  Kernels with BOX_HAS_ENDS alone have it: eight values at a
 * time, each step for all before the next (docs/gpu.md, "The end of a tile"). */
MPK_FN void box_finish_sums(const tile_shape &s, int after, const tile_eight &bias,
                            const tile_eight &factor, tile_eight *v)
{
#if MPK_IMAGES
    if (TILE_IS_IMAGE(s)) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v->at[i] = v->at[i] * factor.at[i] + bias.at[i];
        return;
    }
#endif
    (void)s, (void)factor;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v->at[i] += bias.at[i];
    if (after != ACTIVATE_NONE)
        tile_activate_eight(after, v);
}

#endif

#endif
