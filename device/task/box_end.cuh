/* box_end.cuh - what comes between the sums of products by boxes and the result: biases and an
 * activation of eight neighbouring columns of a token, the residual, the store.
 *
 * Input: scaled sums in fp32; output: the same place, or 16 bytes of the result.  Values are made
 * eight at a time.  What no task of the kernel has is not compiled (MPK_FORMS).  Called by
 * box_put.cuh and linear_parts.cuh.
 */
#ifndef TASK_BOX_END_CUH
#define TASK_BOX_END_CUH

#include "task/tile_end.cuh"

#if MPK_WGMMA

/* Eight neighbouring entries of a vector: f32, or halves. */
MPK_FN tile_eight box_load(const mpk_task &t, int operand, int is_f32, int column)
{
    if (is_f32) {
        const float *at = mpk_at<const float>(t, operand) + column;
        const mpk_words a = ptx_load_words(at), b = ptx_load_words(at + 4);
        return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z),
                 __uint_as_float(a.w), __uint_as_float(b.x), __uint_as_float(b.y),
                 __uint_as_float(b.z), __uint_as_float(b.w)}};
    }
    const mpk_words w = ptx_load_words(mpk_at<const rt_u16>(t, operand) + column);
    return {{halves_low(w.x), halves_high(w.x), halves_low(w.y), halves_high(w.y), halves_low(w.z),
             halves_high(w.z), halves_low(w.w), halves_high(w.w)}};
}

/* The biases of eight columns of y from `column` on, all of one weight; zeros where it has none. */
MPK_FN tile_eight box_bias(const mpk_task &t, const tile_shape &s, int column)
{
    int i = 0; /* the weight */
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (i == k && column >= s.bias_rows[k]) {
            column -= s.bias_rows[k];
            i = k + 1;
        }
    if (s.bias[i] < 0)
        return {};
    return box_load(t, s.bias[i], s.bias_type[i], column);
}

#if MPK_IMAGES
/* Of a convolution's vector of filters; `otherwise` each where it is absent. */
MPK_FN tile_eight box_vector(const mpk_task &t, const tile_vector &v, int column, float otherwise)
{
    if (v.operand >= 0)
        return box_load(t, v.operand, v.is_f32, column);
    const float x = otherwise;
    return {{x, x, x, x, x, x, x, x}};
}
#endif

/* What eight columns of y have in common for all tokens. */
struct box_ends {
    tile_eight bias;
#if MPK_IMAGES
    tile_eight scale; /* of a convolution */
#endif
};
#define BOX_HAS_ENDS (MPK_IMAGES || TILE_HAS(TILE_FORM_BOX_ENDS))

/* That of the columns from `column` on, if some task of the kernel has any. */
MPK_FN box_ends box_ends_of(const mpk_task &t, const tile_shape &s, int column)
{
    box_ends e = {};
#if MPK_IMAGES
    if (TILE_IS_IMAGE(s)) {
        const tile_eight shift = box_vector(t, s.image.shift, column, 0);
        e.scale = box_vector(t, s.image.scale, column, 1);
        e.bias = box_vector(t, s.image.bias, column, 0);
#pragma unroll
        for (int i = 0; i < 8; i++)
            e.bias.at[i] += shift.at[i];
        return e;
    }
#endif
    if (TILE_HAS(TILE_FORM_BOX_ENDS))
        e.bias = box_bias(t, s, column);
    return e;
}

/* A value of y, at last. */
MPK_FN float box_last(bool relu, float x)
{
    return relu && x < 0 ? 0 : x;
}

/* Eight columns of a token with their residual, as one store of 16 bytes, which it returns.  sends:
 * rt_entry.sends; relu: box_last. */
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

/* What comes between eight scaled sums and their residual. */
MPK_FN void box_finish_sums(const tile_shape &s, const box_ends &ends, tile_eight *v)
{
#if MPK_IMAGES
    if (TILE_IS_IMAGE(s)) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v->at[i] = v->at[i] * ends.scale.at[i] + ends.bias.at[i];
        return;
    }
#endif
    if (TILE_HAS(TILE_FORM_BOX_ENDS))
#pragma unroll
        for (int i = 0; i < 8; i++)
            v->at[i] += ends.bias.at[i];
    if (TILE_HAS(TILE_FORM_BOX_ENDS) && s.after != ACTIVATE_NONE)
        tile_activate_eight(s.after, v);
}

#endif

#endif
