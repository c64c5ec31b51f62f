/* tile_end.cuh - the end of a tile of a product of many tokens: sums in registers become columns
 * of y.
 *
 * Input: sums as ptx_group_multiply leaves them, the factor of each token.  Output: the task's box
 * of y, and of logits the peaks.  linear_tile.cuh, linear_panel.cuh and linear_box.cuh call it,
 * in warps that each have 16 tokens.
 *
 * Sums of a warp go through scratch, 16 tokens x 64 columns at a time, so that a row is stored
 * together:
 *
 *   registers: lane (g, c) has columns 8n + 2c, + 1 of tokens g and g + 8      (tile_put)
 *   scratch:   [16 tokens][TILE_ROW floats]
 *   stores:    lane l has columns 2l, 2l + 1 of each token, 128 bytes a warp   (tile_finish)
 *
 * On the way they are scaled by a norm (row_sums), get biases and residual, become the columns of a
 * gate, or logits with their peaks.  A __syncwarp of the caller stands between the two, and
 * before the next tile_put.
 */
#ifndef TASK_TILE_END_CUH
#define TASK_TILE_END_CUH

#include "ptx/ptx.cuh"
#include "shape/linear_tile_shape.h"
#include "task/activate.cuh"
#include "task/peaks.cuh"
#include "tile/halves.cuh"
#include "tile/inverse.cuh"
#include "tile/task.cuh"

/* Does some task of this kernel need it (shape/linear_tile_shape.h)?  Constants, but where the
 * emulator's MPK_FORMS are those of the call. */
#define TILE_HAS(form) (MPK_FORMS >> (form)&1)
#define TILE_HAS_END(loop, end) TILE_HAS((loop)*TILE_ENDS + (end))
#define TILE_HAS_LOOP(loop) (MPK_FORMS >> (loop)*TILE_ENDS & ((1 << TILE_ENDS) - 1))
/* In units, tasks that share a tile have one of their own, without the loops of the others. */
#define TILE_ALL_SHARE (MPK_UNIT == MPK_UNIT_PARTS)
#define TILE_SOME_SHARE (TILE_HAS(TILE_FORM_PARTS) && MPK_UNIT != MPK_UNIT_PRODUCTS)
/* Tasks of at most 64 tokens have a unit of their own too, if some of them are joint; MPK_FORMS of
 * the other products' units then has no forms of theirs. */
#define TILE_ALL_SHORT (MPK_UNIT == MPK_UNIT_SHORT)
#define TILE_SOME_JOINT TILE_HAS(TILE_FORM_JOINT)

/* Floats from a row of sums in scratch to the next: 64 and 8 more, so that the pairs which lanes
 * of neighbouring g store (8 g + 2 c banks on) meet no conflict within each half of the warp. */
enum { TILE_ROW = 72 };

#if MPK_IMAGES
/* A vector of filters: its operand, -1: absent; 0: 16 bits, 1: f32. */
struct tile_vector {
    int operand, is_f32;
};
/* Of a convolution (box_image.cuh): what its rows and columns are.  Of two numbers the first is of
 * lines, the second of places in a line. */
struct tile_image {
    int channels; /* of x; 0: the product is no convolution */
    int across;   /* places of a window's line: entries of the kernel's times the dilation */
    int rows;     /* of y */
    int out[2];   /* places of y */
    int stride[2], padding[2], dilation[2];
    tile_vector scale, bias, shift; /* y = sum scale + bias + shift + residual */
    int relu;                       /* 1: what of that is less than 0 becomes 0 */
};
#define TILE_IS_IMAGE(s) ((s).image.channels != 0)
#define TILE_HAS_RELU(s) ((s).image.relu != 0)
#else
#define TILE_IS_IMAGE(s) false
#define TILE_HAS_RELU(s) false
#endif

/* A use of the body: where the operands stand in rt_entry.at, and what surrounds the product.
 * In constant memory; gen/body_linear_tile.c prints it field by field. */
struct tile_shape {
    int columns, blocks; /* of x; blocks of 32 columns in a packed group */
    int rows;            /* of w, or with an activation half of them: columns of y */
    int wide;            /* 1: all tasks are, also one of at most 64 tokens (gen_is_wide) */
    int norm;            /* TILE_NORM_*: of x */
    float eps;           /* of the norm; without one a factor of the sums */
    int activation;      /* ACTIVATE_*: not NONE: groups hold pairs of rows */
    int after;           /* ACTIVATE_* of each column, where none are pairs */
    int x, y, residual;  /* operands; -1: absent */
    int bias[3], bias_rows[3], bias_type[3]; /* operand, rows of that weight, 0: 16 bits, 1: f32 */
    /* operand rows i32[R]: row r is token rows[r] below T, if alive; -1: r */
    int gathered, tokens;
    int peaks;       /* operand of the peaks: y is f32; -1: y has 16 bits */
    float cap, rate; /* of logits (peaks.cuh); read only where there are peaks */
#if MPK_IMAGES
    tile_image image;
#endif
};

/* What the bias of a layer_norm adds to packed row `row` (gen_pack): w times the norm's bias, one
 * f32 a row, which packing puts after all groups, which are even in number where rows are pairs; 0
 * without such a norm. */
MPK_FN float tile_added(const mpk_task &t, const tile_shape &s, int row)
{
    if (!MPK_CENTRED || s.norm != TILE_NORM_LAYER)
        return 0;
    const rt_u32 groups = (rt_u32)(s.rows + 7) / 8 * (s.activation != ACTIVATE_NONE ? 2 : 1);
    return ((const float *)(t.e->at[RT_PACKED] + (rt_u64)groups * (rt_u32)s.blocks * 512))[row];
}

/* Bias i of row `row` of the packed weights; 0 where there is none. */
MPK_FN float tile_bias(const mpk_task &t, const tile_shape &s, int i, int row)
{
    if (!TILE_HAS(TILE_FORM_BIAS) || s.bias[i] < 0)
        return 0;
    if (s.bias_type[i])
        return mpk_at<const float>(t, s.bias[i])[row];
    return halves_low(mpk_at<const rt_u16>(t, s.bias[i])[row]);
}

/* What is added to a column of y, where the weights stand one after the other; 0 after the last
 * column. */
MPK_FN float tile_bias_of(const mpk_task &t, const tile_shape &s, int column)
{
    if (column >= s.rows)
        return 0;
    const float added = tile_added(t, s, column);
    if (column < s.bias_rows[0])
        return tile_bias(t, s, 0, column) + added;
    column -= s.bias_rows[0]; /* counted from the second weight */
    return (column < s.bias_rows[1] ? tile_bias(t, s, 1, column)
                                    : tile_bias(t, s, 2, column - s.bias_rows[1])) +
           added;
}

/* The same of a packed row where they are pairs: of a gate, or of what it lets through. */
MPK_FN float tile_bias_of_pair(const mpk_task &t, const tile_shape &s, int row)
{
    return row < 2 * s.rows ? tile_bias(t, s, row % 2, row / 2) + tile_added(t, s, row) : 0;
}

/* As activate() (activate.cuh), of what the kernel has (MPK_FORMS), by the hardware's exponential.
 * No function here is called: in a kernel that calls one, ptxas waits after every product (C7509).
 * GELU by tanh is x / (1 + exp(-2 v)): 1.5957... is
 * twice sqrt(2 / pi). */
MPK_FN float tile_activate(int activation, float x)
{
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_GELU) && activation == ACTIVATE_GELU)
        return activate_gelu(x);
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_RELU) && activation == ACTIVATE_RELU)
        return activate_relu(x);
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_QUICK_GELU) && activation == ACTIVATE_QUICK_GELU)
        return __fdividef(x, 1 + __expf(-1.702f * x));
    const bool silu =
        !TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_GELU_TANH) || activation == ACTIVATE_SILU;
    const float u = silu ? x : 1.59576912160573072f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1 + __expf(-u));
}

/* Eight values that a lane makes at a time. */
struct tile_eight {
    float at[8];
};

/* x / (1 + 2^tile_exponent(x)) is the activation of x (activate.cuh): SILU, or GELU by tanh or
 * by a sigmoid. */
MPK_FN float tile_exponent(int activation, float x)
{
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_QUICK_GELU) && activation == ACTIVATE_QUICK_GELU)
        return x * (-1.44269504f * 1.702f);
    const bool silu =
        !TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_GELU_TANH) || activation == ACTIVATE_SILU;
    return silu ? x * -1.44269504f : x * (1 + 0.044715f * x * x) * (-1.44269504f * 1.59576912f);
}

/* GELU of eight values, x (1 - erfc(x / sqrt 2) / 2).  erfc(z) exp(z^2) of z >= 0 is a polynomial
 * of 1 / (1 + z / 2) to 4e-5 of itself, a tenth of what half an f16 tells: half of the
 * instructions of erff. */
MPK_FN void tile_gelu_eight(tile_eight *v)
{
    float u[8], half[8]; /* 1 / (1 + z / 2); erfc(z) exp(z^2) / 2, coefficient after coefficient */
#pragma unroll
    for (int i = 0; i < 8; i++)
        u[i] = ptx_rcp(1 + 0.35355339f * fabsf(v->at[i]));
    ptx_keep_eight(u);
    const float of[] = {0.00928089f, 0.13622748f, 0.10261191f, 0.14475293f, 0.14081881f};
#pragma unroll
    for (int i = 0; i < 8; i++)
        half[i] = -0.03370857f * u[i] + of[0];
#pragma unroll
    for (int k = 1; k < 5; k++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            half[i] = half[i] * u[i] + of[k];
    ptx_keep_eight(half);
#pragma unroll
    for (int i = 0; i < 8; i++)
        half[i] *= u[i] * ptx_exp2(v->at[i] * v->at[i] * -0.72134752f); /* erfc(z) / 2 */
#pragma unroll
    for (int i = 0; i < 8; i++)
        v->at[i] *= v->at[i] < 0 ? half[i] : 1 - half[i];
}

/* Has some task an activation by tile_exponent? */
#define TILE_HAS_EXPONENT                                   \
    (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_SILU) ||      \
     TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_GELU_TANH) || \
     TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_QUICK_GELU))

/* An activation of eight values.  One value is a chain of some 100 cycles, so each step of it is
 * made for all before the next. */
MPK_FN void tile_activate_eight(int activation, tile_eight *v)
{
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_GELU) && activation == ACTIVATE_GELU) {
        tile_gelu_eight(v);
        return;
    }
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_RELU) && activation == ACTIVATE_RELU) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v->at[i] = activate_relu(v->at[i]);
        return;
    }
    if (!TILE_HAS_EXPONENT)
        return;
    float part[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        part[i] = 1 + ptx_exp2(tile_exponent(activation, v->at[i]));
    ptx_keep_eight(part);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v->at[i] *= ptx_rcp(part[i]);
}

/* Where a tile goes; read before the first store, or it would be read again after each.  y and
 * residual are of the whole tensors: rows are counted in the operator, not in the task. */
struct tile_end {
    rt_u16 *y;
    const rt_u16 *residual; /* NULL: none */
    int rows, lo, hi;       /* columns of y, and those of the task */
    int tokens;             /* end of the task's that are alive */
    int after;
    rt_u32 sends; /* rt_entry.sends */
};

/* Copied once into registers: read through the task, they would be loaded again after every
 * store, of which the compiler cannot know that it changes none of them. */
MPK_FN tile_end tile_end_of(const mpk_task &t, const tile_shape &s)
{
    tile_end e; /* copied field by field */
    e.y = mpk_at<rt_u16>(t, s.y);
    e.residual = s.residual >= 0 ? mpk_at<const rt_u16>(t, s.residual) : 0;
    e.rows = s.rows;
    e.lo = (int)t.e->lo[1];
    e.hi = (int)t.e->hi[1];
    e.tokens = (int)t.hi0;
    e.after = s.after;
    e.sends = t.e->sends;
    return e;
}

/* Two neighbours of a row, of which the first stands at an even column: as one word where both
 * are the task's and the row begins at a whole word, else one by one. */
MPK_FN void tile_store(const tile_end &e, int row, int column, float a, float b)
{
    rt_u16 *y = e.y + (rt_u64)row * e.rows + column;
    const rt_u32 v = halves_pack(a, b); /* the two columns */
    if (column >= e.lo && column + 1 < e.hi && e.rows % 2 == 0) {
        ptx_store_word(y, v);
        mpk_send(e.sends, (rt_u32 *)y, v);
        return;
    }
    if (column >= e.lo && column < e.hi) {
        y[0] = (rt_u16)v;
        mpk_send(e.sends, y, (rt_u16)v);
    }
    if (column + 1 >= e.lo && column + 1 < e.hi) {
        y[1] = (rt_u16)(v >> 16);
        mpk_send(e.sends, y + 1, (rt_u16)(v >> 16));
    }
}

/* Two neighbours of the residual as one word where both are the task's and the row is aligned for
 * it, else one by one: a word beyond the task may not be there yet.  0 for a token that is not
 * alive. */
MPK_FN rt_u32 tile_residual(const tile_end &e, int row, int column)
{
    const rt_u16 *r = e.residual + (rt_u64)row * e.rows + column; /* of the two columns */
    rt_u32 v = 0;
    if (row >= e.tokens)
        return 0;
    if (column >= e.lo && column + 1 < e.hi && e.rows % 2 == 0)
        return ptx_load_word(r);
    if (column >= e.lo && column < e.hi)
        v = r[0];
    if (column + 1 >= e.lo && column + 1 < e.hi)
        v |= (rt_u32)r[1] << 16;
    return v;
}

/* Sums of a row of x: of its squares, and, where the kernel has a layer_norm, of its entries
 * (MPK_CENTRED).  In fp32; who adds what, and in which order, is each body's own. */
struct row_sums {
    float square, entry;
};

/* Those of two entries more. */
MPK_FN row_sums row_sums_add_word(rt_u32 word, row_sums sums)
{
    const float a = halves_low(word), b = halves_high(word);
    sums.square = fmaf(b, b, fmaf(a, a, sums.square));
    if (MPK_CENTRED)
        sums.entry += a + b;
    return sums;
}
/* Of eight. */
MPK_FN row_sums row_sums_add(const mpk_words &v, row_sums sums)
{
    const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++)
        sums = row_sums_add_word(words[e], sums);
    return sums;
}

/* The same of all lanes whose numbers differ in the bits from `first` to before `end`, in each of
 * them; neighbours first: the same order in every lane, so the bits are the same. */
MPK_FN row_sums row_sums_of_lanes(row_sums sums, int first, int end)
{
#pragma unroll
    for (int d = first; d < end; d *= 2) {
        sums.square += __shfl_xor_sync(0xffffffffu, sums.square, d);
        if (MPK_CENTRED)
            sums.entry += __shfl_xor_sync(0xffffffffu, sums.entry, d);
    }
    return sums;
}

/* Four tokens' sums of eight lanes: those of one token for each lane, number row_sums_token().  In
 * each exchange a lane gives half of what it has for the other half, so there are a third of the
 * shuffles of four row_sums_of_lanes; the order of additions is the same. */
MPK_FN int row_sums_token(void)
{
    const int lane = mpk_thread() % 32;
    return lane % 2 * 2 + lane / 2 % 2;
}
MPK_FN row_sums row_sums_exchange(const row_sums &low, const row_sums &high, int d)
{
    const bool keeps_high = mpk_thread() & d;
    row_sums own = keeps_high ? high : low;
    const row_sums given = keeps_high ? low : high;
    own.square += __shfl_xor_sync(0xffffffffu, given.square, d);
    if (MPK_CENTRED)
        own.entry += __shfl_xor_sync(0xffffffffu, given.entry, d);
    return own;
}
MPK_FN row_sums row_sums_of_four(const row_sums *sums)
{
    const row_sums first = row_sums_exchange(sums[0], sums[2], 1),
                   second = row_sums_exchange(sums[1], sums[3], 1);
    return row_sums_of_lanes(row_sums_exchange(first, second, 2), 4, 8);
}

/* The factor of a token: that of an rms_norm, 1 / sqrt(mean of squares + eps), or of a layer_norm,
 * whose mean is in the weights (rt/rt_centre.h), 1 / sqrt(variance + eps); without a norm that of
 * the sums.
 *
 * The variance is the mean of squares less the square of the mean.  In fp32 that loses
 * 2^-24 mean^2 / variance, times a few, of itself: with a mean of ten deviations 2e-5, less than a
 * factor may be off before 16 bits tell; with one of 300, where it would be a hundredth, entries of
 * 8 bits have nothing left of their deviations. */
MPK_FN float tile_factor(int norm, row_sums sums, int columns, float eps)
{
    if (norm == TILE_NORM_NONE)
        return eps;
    const float each = mpk_inverse((float)columns), mean = sums.entry * each;
    float square = sums.square * each;
    if (MPK_CENTRED && norm == TILE_NORM_LAYER)
        square = fmaxf(square - mean * mean, 0);
    return rsqrtf(square + eps);
}

/* A warp's 16 tokens from `row` on and 64 packed rows from group `group` of the operator on; s_sum
 * f32[16][TILE_ROW], s_scale: factors of the tokens.  Lane l has columns 2 l and 2 l + 1, so a warp
 * stores 128 bytes of a row together.  Residuals of eight tokens are requested together, so that
 * their latencies overlap.  Factor, bias, activation, residual; rounded once. */
MPK_FN void tile_finish(const mpk_task &t, const tile_shape &s, int row, int group,
                        const float *s_sum, const float *s_scale)
{
    const int lane = mpk_thread() % 32, column = group * 8 + 2 * lane; /* of y */
    const tile_end e = tile_end_of(t, s);
    const float bias[2] = {tile_bias_of(t, s, column), tile_bias_of(t, s, column + 1)};
    /* eight tokens at a time: their residuals take eight registers */
    for (int r0 = 0; r0 < 16; r0 += 8) {
        rt_u32 residual[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (e.residual)
#pragma unroll
            for (int i = 0; i < 8; i++)
                residual[i] = tile_residual(e, row + r0 + i, column);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float2 v = *(const float2 *)(s_sum + (r0 + i) * TILE_ROW + 2 * lane);
            const float scale = s_scale[r0 + i];
            float a = v.x * scale + bias[0], b = v.y * scale + bias[1];
            if (TILE_HAS(TILE_FORM_AFTER) && e.after != ACTIVATE_NONE) {
                a = tile_activate(e.after, a);
                b = tile_activate(e.after, b);
            }
            /* tokens that are not alive have sums too, which are dropped */
            if (row + r0 + i < e.tokens)
                tile_store(e, row + r0 + i, column, a + halves_low(residual[i]),
                           b + halves_high(residual[i]));
        }
    }
}

/* The same with an activation: packed rows 2 l and 2 l + 1 are gate and up of one column of y. Even
 * lanes store their own and their neighbour's, as a word; 64 packed rows are 32 columns, 64 bytes
 * of a row of y. */
MPK_FN void tile_finish_pairs(const mpk_task &t, const tile_shape &s, int row, int group,
                              const float *s_sum, const float *s_scale)
{
    const int lane = mpk_thread() % 32, column = group * 4 + lane, activation = s.activation;
    const tile_end e = tile_end_of(t, s);
    const float gate = tile_bias_of_pair(t, s, 2 * column);   /* bias of the gate */
    const float up = tile_bias_of_pair(t, s, 2 * column + 1); /* and of its partner */
#pragma unroll 4
    for (int i = 0; i < 16; i++) {
        const float2 v = *(const float2 *)(s_sum + i * TILE_ROW + 2 * lane);
        const float scale = s_scale[i];
        const float a = tile_activate(activation, v.x * scale + gate) * (v.y * scale + up);
        const float b = __shfl_down_sync(0xffffffffu, a, 1);
        if (row + i < e.tokens && lane % 2 == 0)
            tile_store(e, row + i, column, a, b);
    }
}

/* The same for logits: f32, and the largest of the 64 columns, which `group` begins: a multiple of
 * 8.  The operand `peaks` has a pair for each 64 columns of a row. */
MPK_FN void tile_finish_logits(const mpk_task &t, const tile_shape &s, int row, int group,
                               const float *s_sum, const float *s_scale)
{
    const int lane = mpk_thread() % 32, column = group * 8 + 2 * lane;
    const tile_end e = tile_end_of(t, s);
    const bool has_a = column < e.rows, has_b = column + 1 < e.rows; /* of the vocabulary */
    for (int i = 0; i < 16 && row + i < e.tokens; i++) {
        const float2 v = *(const float2 *)(s_sum + i * TILE_ROW + 2 * lane);
        const float scale = s_scale[i], a = logits_bent(v.x * scale, s.cap, s.rate),
                    b = logits_bent(v.y * scale, s.cap, s.rate);
        float *y = (float *)e.y + (rt_u64)(row + i) * e.rows + column;
        if (has_a)
            y[0] = a;
        if (has_b)
            y[1] = b;
        const peak p = peak_of_lanes<32>(peak_of_pair(a, b, column, has_a, has_b));
        if (lane == 0) {
            float *to = mpk_at<float>(t, s.peaks) +
                        ((rt_u64)(row + i) * ((e.rows + 63) / 64) + group / 8) * 2;
            to[0] = p.best;
            to[1] = (float)p.at;
        }
    }
}

/* Sums of this warp's 16 x 64, or of fewer columns, `n` times 8, from registers to shared memory.
 * The caller meets the lanes before they are read. */
MPK_FN void tile_put(const float *sum, float *s_sum, int n = 8)
{
    const int thread = mpk_thread(), g = thread % 32 / 4, c = thread % 4;
#pragma unroll
    for (int i = 0; i < 8 && i < n; i++) {
        ptx_store_shared_pair(s_sum + g * TILE_ROW + 8 * i + 2 * c, sum[4 * i], sum[4 * i + 1]);
        ptx_store_shared_pair(s_sum + (g + 8) * TILE_ROW + 8 * i + 2 * c, sum[4 * i + 2],
                              sum[4 * i + 3]);
    }
}

/* Those of unit `unit`, 64 of N columns; the last unit may have fewer.  Registers have no index at
 * run time, so each unit has a copy of tile_put; what comes after them is there once. */
template <int N> MPK_FN void tile_put_unit(const float *sum, int unit, float *s_sum)
{
#pragma unroll
    for (int u = 0; u < (N + 63) / 64; u++)
        if (u == unit)
            tile_put(sum + 32 * u, s_sum, N / 8 - 8 * u);
}

/* Which of the three ends a task has is told by its shape; ends that no task of this loop has
 * are not compiled (MPK_FORMS).  PLAIN: plain ends are among those that come here. */
template <int LOOP, bool PLAIN>
MPK_FN void tile_finish_unit(const mpk_task &t, const tile_shape &s, int row, int group,
                             const float *s_sum, const float *s_scale)
{
    if (TILE_HAS_END(LOOP, TILE_END_LOGITS) && s.peaks >= 0)
        tile_finish_logits(t, s, row, group, s_sum, s_scale);
    else if (TILE_HAS_END(LOOP, TILE_END_PAIRS) && s.activation != ACTIVATE_NONE)
        tile_finish_pairs(t, s, row, group, s_sum, s_scale);
    else if (PLAIN && TILE_HAS_END(LOOP, TILE_END_PLAIN))
        tile_finish(t, s, row, group, s_sum, s_scale);
}

#endif
