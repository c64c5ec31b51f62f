/* linear_kernels.h - the inner loops of linear over the vectors of vec_*.h; linear_fast.h
 * defines their arithmetic.  Included by one .c file for each instruction set.
 *
 * Two kernels compute the products:
 *
 *   direct: few tokens; each weight is unpacked in registers and used at once, so memory is the
 *           only limit;
 *   panel:  many tokens; rows were unpacked into scratch, V_PANEL_TOKENS x V_PANEL_ROWS
 *           accumulators in registers.
 *
 * Register blocks, with accumulators acc[t][r] for token t and weight row r:
 *
 *   direct  n tokens x V_DIRECT_ROWS_n: a weight vector is unpacked once and used n times
 *   panel   V_PANEL_TOKENS x V_PANEL_ROWS, both from memory as f32
 *
 * At the end the sixteen lanes of each accumulator are added, eight accumulators at once
 * (v_sum8).
 */
#ifndef CPU_LINEAR_KERNELS_H
#define CPU_LINEAR_KERNELS_H

#include "cpu/block_kernels.h"
#include "cpu/expert_fast.h"
#include "cpu/norm_kernels.h"

/* ---- 32 weights of a row, the group-th, as two vectors ---- */

/* The scale of a block, and its offset, from f16.  They go through memory, because a broadcast
 * from memory is free, where one from a register uses the same ports as the permutations. */
V_INLINE void load_scales(ir_dtype dtype, const uint8_t *row, int64_t group, float scale[4])
{
    int64_t bytes = dtype == IR_Q4_1   ? 20 /* of a block that begins with f16 scales */
                    : dtype == IR_Q5_0 ? 22
                    : dtype == IR_Q5_1 ? 24
                    : dtype == IR_Q8_0 ? 34
                                       : 0;
    /* One load takes scale and offset (and two that are not used); the formats whose offset
     * follows from the scale, or whose scale is no f16, come after. */
    if (bytes)
        _mm_storeu_ps(scale, _mm_cvtph_ps(_mm_loadl_epi64(
                                 (const __m128i *)(const void *)(row + group * bytes))));
    else if (dtype == IR_Q4_0)
        _mm_storeu_ps(scale,
                      _mm_mul_ps(_mm_setr_ps(1, -8, 0, 0), _mm_set1_ps(half_at(row + group * 18))));
    else if (dtype == IR_IQ4_NL)
        scale[0] = half_at(row + group * 18);
    else if (dtype == IR_MXFP4)
        scale[0] = codebook_mxfp4_scale(row[group * 17]);
}

/* Group `group` of a row: two vectors of sixteen weights, in the order of K. */
V_INLINE void load_q8_0(const uint8_t *row, int64_t group, const float *scale, vf w[2])
{
    const uint8_t *q = row + group * 34 + 2; /* after the f16 scale */
    w[0] = v_mul(vi_float(vi_load_i8(q)), v_set(scale[0]));
    w[1] = v_mul(vi_float(vi_load_i8(q + 16)), v_set(scale[0]));
}

/* Sixteen bytes whose low nibbles are weights 0-15 and whose high nibbles are 16-31: a nibble is
 * looked up in the sixteen levels scale * q + offset, so neither conversion nor product is
 * needed. */
V_INLINE void load_levels(v_levels levels, const uint8_t *q, vf w[2])
{
    vi bytes = vi_load_u8(q); /* a byte a lane */
    w[0] = v_level(levels, bytes);
    w[1] = v_level(levels, vi_shr(bytes, 4));
}

/* 18 bytes: f16 scale, 16 bytes of nibbles; a weight is scale * (q - 8). */
V_INLINE void load_q4_0(const uint8_t *row, int64_t group, const float *scale, vf w[2])
{
    load_levels(v_make_levels(v_set(scale[0]), v_set(scale[1])), row + group * 18 + 2, w);
}

/* 20 bytes: f16 scale, f16 offset, 16 bytes of nibbles; a weight is scale * q + offset. */
V_INLINE void load_q4_1(const uint8_t *row, int64_t group, const float *scale, vf w[2])
{
    load_levels(v_make_levels(v_set(scale[0]), v_set(scale[1])), row + group * 20 + 4, w);
}

/* The 16 bits from *p on, each as bit 4 of a byte. */
V_INLINE __m128i fifth_bits(const uint8_t *p)
{
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201u);
    __m128i bits = _mm_shuffle_epi8(_mm_set1_epi16((short)(p[0] | p[1] << 8)),
                                    _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bits, bit), bit), _mm_set1_epi8(16));
}

/* 32 fifth bits, then 16 bytes of nibbles: q - below, as floats. */
V_INLINE void load_five_bits(const uint8_t *p, int below, vf q[2])
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(p + 4)),
                  nibbles = _mm_set1_epi8(15), less = _mm_set1_epi8((char)below);
    __m128i half[2] = {_mm_and_si128(low, nibbles), _mm_and_si128(_mm_srli_epi16(low, 4), nibbles)};
    for (int i = 0; i < 2; i++) {
        half[i] = _mm_sub_epi8(_mm_or_si128(half[i], fifth_bits(p + 2 * i)), less);
        q[i] = vi_float(vi_load_i8(&half[i]));
    }
}

/* 22 bytes: f16 scale, 32 fifth bits, nibbles; a weight is scale * (q - 16). */
V_INLINE void load_q5_0(const uint8_t *row, int64_t group, const float *scale, vf w[2])
{
    load_five_bits(row + group * 22 + 2, 16, w);
    for (int i = 0; i < 2; i++)
        w[i] = v_mul(w[i], v_set(scale[0]));
}

/* 24 bytes: f16 scale, f16 offset, 32 fifth bits, nibbles. */
V_INLINE void load_q5_1(const uint8_t *row, int64_t group, const float *scale, vf w[2])
{
    load_five_bits(row + group * 24 + 4, 0, w);
    for (int i = 0; i < 2; i++)
        w[i] = v_fma(w[i], v_set(scale[0]), v_set(scale[1]));
}

/* 16 bytes of four-bit indices into `values`, times the scale. */
V_INLINE void load_values(const int8_t values[16], const uint8_t *indices, const float *scale,
                          vf w[2])
{
    int8_t q[32];
    _mm256_storeu_si256((__m256i *)(void *)q, look_up(values, nibbles_at(indices)));
    for (int i = 0; i < 2; i++)
        w[i] = v_mul(vi_float(vi_load_i8(q + 16 * i)), v_set(scale[0]));
}

/* The group-th 32 weights of any format with blocks of 32, or of floats; dtype is a constant
 * wherever this is called, so one case remains. */
V_INLINE void load_weights(ir_dtype dtype, const uint8_t *row, int64_t group, const float *scale,
                           vf w[2])
{
    if (dtype == IR_Q4_0)
        load_q4_0(row, group, scale, w);
    else if (dtype == IR_Q4_1)
        load_q4_1(row, group, scale, w);
    else if (dtype == IR_Q8_0)
        load_q8_0(row, group, scale, w);
    else if (dtype == IR_Q5_0)
        load_q5_0(row, group, scale, w);
    else if (dtype == IR_Q5_1)
        load_q5_1(row, group, scale, w);
    else if (dtype == IR_IQ4_NL)
        load_values(codebook_iq4, row + group * 18 + 2, scale, w);
    else if (dtype == IR_MXFP4)
        load_values(codebook_mxfp4, row + group * 17 + 1, scale, w);
    else
        for (int i = 0; i < 2; i++)
            w[i] = row_load(row, dtype, group * 32 + 16 * i, 16);
}

/* ---- direct ---- */

/* How far ahead of their use weights are prefetched, in bytes: whole groups of nr rows, which
 * are read side by side. */
V_INLINE int64_t bytes_ahead(int64_t row_bytes, int64_t nr)
{
    enum { LEAST = 8192 }; /* bytes a row stream: covers the latency of memory */
    int64_t group = nr * row_bytes;
    return group > 0 ? (LEAST + group - 1) / group * group : LEAST;
}

/* Prefetch what is `ahead` of bytes [first, end) of nr rows: the rows of a box follow each
 * other.  Into the second cache only: the few fills that the first can have in flight are for
 * the loads themselves. */
V_INLINE void ask_ahead(const uint8_t *const *row, int nr, int64_t ahead, int64_t first,
                        int64_t end)
{
    for (int64_t i = (first + 63) / 64 * 64; i < end; i += 64)
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++)
            _mm_prefetch((const char *)row[r] + ahead + i, _MM_HINT_T1);
}

/* Sums of nt tokens x nr rows over the groups [g0, g1) of 32 weights; out[t * nr + r]. */
V_INLINE void direct_block(ir_dtype dtype, int nt, int nr, const float *const *x,
                           const uint8_t *const *row, int64_t ahead, int64_t g0, int64_t g1,
                           float *out)
{
    vf acc[16], w[2];  /* acc[t * nr + r]; of one row's group */
    float scale[8][4]; /* of each row's group; [1] is the offset */
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        acc[i] = v_zero();
    const int64_t group_bytes =
        ir_dtype_table[dtype].block_bytes * 32 / ir_dtype_table[dtype].block_elements;
    for (int64_t g = g0; g < g1; g++) {
        ask_ahead(row, nr, ahead, g * group_bytes, (g + 1) * group_bytes);
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++)
            load_scales(dtype, row[r], g, scale[r]);
        /* the compiler must not keep them in registers */
        __asm__ volatile("" : "+m"(scale));
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++) {
            load_weights(dtype, row[r], g, scale[r], w);
#pragma GCC unroll 4
            for (int t = 0; t < nt; t++) {
                acc[t * nr + r] = v_fma(w[0], v_load(x[t] + 32 * g), acc[t * nr + r]);
                acc[t * nr + r] = v_fma(w[1], v_load(x[t] + 32 * g + 16), acc[t * nr + r]);
            }
        }
    }
#pragma GCC unroll 2
    /* eight accumulators at a time; with fewer than eight some are zeros */
    for (int i = 0; i < nt * nr; i += 8)
        v_sum8(acc + i, out + i);
}

/* Add 64 weights of a Q4_K block, its p-th quarter, as four vectors: two permutations of a table
 * of levels each, which saves taking bytes apart first. */
V_INLINE void add_quarter(const uint8_t *block, const block_parts *scales, int p, int nt,
                          int stride, const float *const *x, int64_t k, vf *acc)
{
    vf w[4]; /* 64 weights */
    for (int i = 0; i < 2; i++) {
        vi bytes = vi_load_u8(block + 16 + 32 * p + 16 * i);
        w[i] = v_level(v_make_levels(v_set(scales->scale[4 * p]), v_set(scales->offset[4 * p])),
                       bytes);
        w[2 + i] = v_level(
            v_make_levels(v_set(scales->scale[4 * p + 2]), v_set(scales->offset[4 * p + 2])),
            vi_shr(bytes, 4));
    }
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            acc[t * stride] = v_fma(w[i], v_load(x[t] + k + 64 * p + 16 * i), acc[t * stride]);
}

/* Add block b of each row to the accumulators. */
V_INLINE void add_blocks(ir_dtype dtype, int nt, int nr, const float *const *x,
                         const uint8_t *const *row, int64_t b, vf *acc)
{
    block_parts parts[8]; /* of each row's block */
    const int64_t at = b * ir_dtype_table[dtype].block_bytes, k = b * BLOCK_WEIGHTS;
    if (dtype == IR_Q4_K) {
        for (int r = 0; r < nr; r++)
            take_pairs(row[r] + at, &parts[r]);
        for (int p = 0; p < 4; p++)
#pragma GCC unroll 8
            for (int r = 0; r < nr; r++)
                add_quarter(row[r] + at, &parts[r], p, nt, nr, x, k, acc + r);
        return;
    }
    for (int r = 0; r < nr; r++)
        take_block(dtype, row[r] + at, &parts[r]);
    for (int i = 0; i < 16; i++)
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++) {
            vf w = block_weights(dtype, &parts[r], i);
#pragma GCC unroll 4
            for (int t = 0; t < nt; t++)
                acc[t * nr + r] = v_fma(w, v_load(x[t] + k + 16 * i), acc[t * nr + r]);
        }
}

/* As direct_block, for blocks [b0, b1) of 256 weights. */
V_INLINE void direct_parts(ir_dtype dtype, int nt, int nr, const float *const *x,
                           const uint8_t *const *row, int64_t ahead, int64_t b0, int64_t b1,
                           float *out)
{
    vf acc[16]; /* acc[t * nr + r] */
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        acc[i] = v_zero();
    const int64_t block_bytes = ir_dtype_table[dtype].block_bytes;
    for (int64_t b = b0; b < b1; b++) {
        ask_ahead(row, nr, ahead, b * block_bytes, (b + 1) * block_bytes);
        add_blocks(dtype, nt, nr, x, row, b, acc);
    }
#pragma GCC unroll 2
    for (int i = 0; i < nt * nr; i += 8)
        v_sum8(acc + i, out + i);
}

/* Store n sums, or add them to the sums of earlier chunks. */
V_INLINE void sums_put(float *sums, const float *from, int64_t n, bool add)
{
    for (int64_t i = 0; i < n; i++)
        sums[i] = add ? sums[i] + from[i] : from[i];
}

/* All rows, nr at a time; past the end the last row and the last token are repeated, and their
 * sums are dropped. */
V_INLINE void direct_rows(ir_dtype dtype, int nt, int nr, linear_rows x, const uint8_t *w,
                          int64_t row_bytes, int64_t n, int64_t k0, int64_t k1, bool add,
                          float *sums, int64_t ld)
{
    const float *token[4];
    const uint8_t *row[8];                            /* that are side by side */
    float out[16];                                    /* sums of a block of tokens and rows */
    const int64_t ahead = bytes_ahead(row_bytes, nr); /* of the rows after these */
    for (int64_t t = 0; t < nt; t++)
        token[t] = linear_row(&x, t < x.n ? t : x.n - 1);
    for (int64_t r0 = 0; r0 < n; r0 += nr) {
        for (int64_t r = 0; r < nr; r++)
            row[r] = w + (r0 + r < n ? r0 + r : n - 1) * row_bytes;
        if (has_parts(dtype))
            direct_parts(dtype, nt, nr, token, row, ahead, k0 / BLOCK_WEIGHTS, k1 / BLOCK_WEIGHTS,
                         out);
        else
            direct_block(dtype, nt, nr, token, row, ahead, k0 / 32, k1 / 32, out);
        for (int64_t t = 0; t < x.n; t++)
            sums_put(sums + t * ld + r0, out + t * nr, n - r0 < nr ? n - r0 : nr, add);
    }
}

/* Rows side by side for one token.  Four wide rows of floats fill memory's queues; of block
 * formats eight hide the unpacking. */
V_INLINE int one_token_rows(ir_dtype dtype)
{
    bool plain = dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16; /* nothing to unpack */
    return plain && V_DIRECT_ROWS_1 > 4 ? 4 : V_DIRECT_ROWS_1;
}

#define LINEAR_DIRECT(name, dtype)                                                              \
    static void direct_##name(linear_rows x, const void *w, int64_t row_bytes, int64_t n,       \
                              int64_t k0, int64_t k1, bool add, float *sums, int64_t ld)        \
    {                                                                                           \
        if (x.n == 1)                                                                           \
            direct_rows(dtype, 1, one_token_rows(dtype), x, w, row_bytes, n, k0, k1, add, sums, \
                        ld);                                                                    \
        else if (x.n == 2)                                                                      \
            direct_rows(dtype, 2, V_DIRECT_ROWS_2, x, w, row_bytes, n, k0, k1, add, sums, ld);  \
        else                                                                                    \
            direct_rows(dtype, 4, V_DIRECT_ROWS_4, x, w, row_bytes, n, k0, k1, add, sums, ld);  \
    }
LINEAR_DIRECT(f32, IR_F32)
LINEAR_DIRECT(f16, IR_F16)
LINEAR_DIRECT(bf16, IR_BF16)
LINEAR_DIRECT(q8_0, IR_Q8_0)
LINEAR_DIRECT(q4_0, IR_Q4_0)
LINEAR_DIRECT(q4_1, IR_Q4_1)
LINEAR_DIRECT(q5_0, IR_Q5_0)
LINEAR_DIRECT(q5_1, IR_Q5_1)
LINEAR_DIRECT(q2_k, IR_Q2_K)
LINEAR_DIRECT(q3_k, IR_Q3_K)
LINEAR_DIRECT(q4_k, IR_Q4_K)
LINEAR_DIRECT(q5_k, IR_Q5_K)
LINEAR_DIRECT(q6_k, IR_Q6_K)
LINEAR_DIRECT(iq4_nl, IR_IQ4_NL)
LINEAR_DIRECT(mxfp4, IR_MXFP4)
LINEAR_DIRECT(iq1_s, IR_IQ1_S)
LINEAR_DIRECT(iq1_m, IR_IQ1_M)
LINEAR_DIRECT(iq2_xxs, IR_IQ2_XXS)
LINEAR_DIRECT(iq2_xs, IR_IQ2_XS)
LINEAR_DIRECT(iq2_s, IR_IQ2_S)
LINEAR_DIRECT(iq3_xxs, IR_IQ3_XXS)
LINEAR_DIRECT(iq3_s, IR_IQ3_S)
LINEAR_DIRECT(iq4_xs, IR_IQ4_XS)
LINEAR_DIRECT(tq1_0, IR_TQ1_0)
LINEAR_DIRECT(tq2_0, IR_TQ2_0)

/* ---- unpack ---- */

/* Unpack n weights, a multiple of 32, of a format with blocks of 32. */
V_INLINE void unpack_groups(ir_dtype dtype, const void *from, int64_t n, float *to)
{
    vf w[2];
    float scale[4];
    for (int64_t g = 0; g < n / 32; g++) {
        load_scales(dtype, from, g, scale);
        load_weights(dtype, from, g, scale, w);
        v_store(to + 32 * g, w[0]);
        v_store(to + 32 * g + 16, w[1]);
    }
}

/* Unpack n weights, a multiple of 256, of a format with blocks of 256. */
V_INLINE void unpack_parts(ir_dtype dtype, const void *from, int64_t n, float *to)
{
    block_parts parts;
    for (int64_t b = 0; b < n / BLOCK_WEIGHTS; b++) {
        take_block(dtype, (const uint8_t *)from + b * ir_dtype_table[dtype].block_bytes, &parts);
        for (int i = 0; i < 16; i++)
            v_store(to + BLOCK_WEIGHTS * b + 16 * i, block_weights(dtype, &parts, i));
    }
}

/* Convert n floats of any of the three dtypes to f32; `to` is written up to n only. */
static void widen_row(const void *from, ir_dtype dtype, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i += 16)
        v_store_n(to + i, n - i, row_load(from, dtype, i, n - i));
}

#define UNPACK(how, name)       \
    case name:                  \
        how(name, from, n, to); \
        return true;

/* Unpack a row, or a part of it that begins at a block; false: no kernel for this dtype, so
 * blocks_unpack_row does it. */
static bool unpack_row(ir_dtype dtype, const void *from, int64_t n, float *to)
{
    switch (dtype) {
        UNPACK(unpack_groups, IR_Q4_0)
        UNPACK(unpack_groups, IR_Q4_1)
        UNPACK(unpack_groups, IR_Q5_0)
        UNPACK(unpack_groups, IR_Q5_1)
        UNPACK(unpack_groups, IR_Q8_0)
        UNPACK(unpack_parts, IR_Q2_K)
        UNPACK(unpack_parts, IR_Q3_K)
        UNPACK(unpack_parts, IR_Q4_K)
        UNPACK(unpack_parts, IR_Q5_K)
        UNPACK(unpack_parts, IR_Q6_K)
        UNPACK(unpack_groups, IR_IQ4_NL)
        UNPACK(unpack_groups, IR_MXFP4)
        UNPACK(unpack_parts, IR_IQ1_S)
        UNPACK(unpack_parts, IR_IQ1_M)
        UNPACK(unpack_parts, IR_IQ2_XXS)
        UNPACK(unpack_parts, IR_IQ2_XS)
        UNPACK(unpack_parts, IR_IQ2_S)
        UNPACK(unpack_parts, IR_IQ3_XXS)
        UNPACK(unpack_parts, IR_IQ3_S)
        UNPACK(unpack_parts, IR_IQ4_XS)
        UNPACK(unpack_parts, IR_TQ1_0)
        UNPACK(unpack_parts, IR_TQ2_0)
    case IR_F32:
    case IR_F16:
    case IR_BF16:
        widen_row(from, dtype, n, to);
        return true;
    default:
        return false;
    }
}
#undef UNPACK

/* ---- panel ---- */

enum { PANEL_SUMS = (V_PANEL_TOKENS * V_PANEL_ROWS + 7) / 8 * 8 };

/* V_PANEL_ROWS sums of one token. */
V_INLINE void panel_put(float *sums, const float *from, bool add)
{
    vf v = v_load_n(from, V_PANEL_ROWS);
    v_store_n(sums, V_PANEL_ROWS, add ? v_add(v_load_n(sums, V_PANEL_ROWS), v) : v);
}

/* The sums of one part of every vector: n elements of each token with those of each row. */
V_INLINE void panel_part(const float *const *x, const float *const *w, int64_t n, int part,
                         vp acc[PANEL_SUMS])
{
#pragma GCC unroll 32
    for (int i = 0; i < PANEL_SUMS; i++)
        acc[i] = vp_zero();
    for (int64_t k = 0; k < n; k += 16) {
        vp token[V_PANEL_TOKENS];
#pragma GCC unroll 4
        for (int t = 0; t < V_PANEL_TOKENS; t++)
            token[t] = vp_load(x[t] + k, part);
#pragma GCC unroll 8
        for (int r = 0; r < V_PANEL_ROWS; r++) {
            vp row = vp_load(w[r] + k, part);
#pragma GCC unroll 4
            for (int t = 0; t < V_PANEL_TOKENS; t++)
                acc[t * V_PANEL_ROWS + r] = vp_fma(row, token[t], acc[t * V_PANEL_ROWS + r]);
        }
    }
}

/* All sums of a block of tokens and rows.  Vectors are summed in V_PARTS parts, one after the
 * other over all of n: on AVX2 a vector of sixteen lanes is two registers, and accumulators for
 * both at once would not fit. */
V_INLINE void panel_block(const float *const *x, const float *const *w, int64_t n,
                          float out[PANEL_SUMS])
{
    vp acc[V_PARTS][PANEL_SUMS];
#pragma GCC unroll 2
    for (int part = 0; part < V_PARTS; part++)
        panel_part(x, w, n, part, acc[part]);
#pragma GCC unroll 4
    for (int i = 0; i < PANEL_SUMS; i += 8) {
        vf eight[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            vp parts[V_PARTS];
            for (int part = 0; part < V_PARTS; part++)
                parts[part] = acc[part][i + j];
            eight[j] = vp_whole(parts);
        }
        v_sum8(eight, out + i);
    }
}

/* linear_kernels.panel.  Past the last token it is repeated, so that the kernel has one shape;
 * its sums are dropped. */
static void panel(linear_rows x, const float *const *w, int64_t n, bool add, float *sums,
                  int64_t ld)
{
    const float *token[V_PANEL_TOKENS];
    float out[PANEL_SUMS];
    for (int64_t t0 = 0; t0 < x.n; t0 += V_PANEL_TOKENS) {
        int64_t nt = x.n - t0 < V_PANEL_TOKENS ? x.n - t0 : V_PANEL_TOKENS;
        for (int64_t t = 0; t < V_PANEL_TOKENS; t++)
            token[t] = linear_row(&x, t0 + (t < nt ? t : nt - 1));
        panel_block(token, w, n, out);
        for (int64_t t = 0; t < nt; t++)
            panel_put(sums + (t0 + t) * ld, out + t * V_PANEL_ROWS, add);
    }
}

/* ---- finish ---- */

/* a plus sixteen elements of an optional row (NULL: a). */
V_INLINE vf add_row(vf a, const void *row, ir_dtype dtype, int64_t i, int64_t n)
{
    return row ? v_add(a, row_load(row, dtype, i, n)) : a;
}

/* The gate's function. */
V_INLINE vf activate(linear_activation activation, vf a)
{
    switch (activation) {
    case LINEAR_SILU:
        return v_silu(a);
    case LINEAR_GELU:
        return v_gelu(a);
    case LINEAR_GELU_TANH:
        return v_gelu_tanh(a);
    default:
        return a;
    }
}

/* The gate's function of a, times b; limits keep NaN, as v_min and v_max return their second. */
V_INLINE vf activate_gated(const linear_finish *f, vf a, vf b)
{
    if (f->activation != LINEAR_SWIGLU_OAI)
        return v_mul(activate(f->activation, a), b);
    const vf limit = v_set(f->limit), by = v_set(1.702f);
    a = v_min(limit, a);
    b = v_max(v_sub(v_zero(), limit), v_min(limit, b));
    return v_mul(v_div(v_silu(v_mul(by, a)), by), v_add(b, v_set(1.0f)));
}

/* Bias, activation and product with the other weight's sums, residual, rounding: in this order,
 * each rounded to fp32, as the reference does. */
V_INLINE void finish_row(const linear_finish *f, ir_dtype a, ir_dtype b, ir_dtype residual,
                         ir_dtype out)
{
    for (int64_t i = 0; i < f->n; i += 16) {
        int64_t n = f->n - i;
        vf v = add_row(v_load_n(f->a + i, n), f->bias_a, a, i, n);
        if (f->b) {
            vf up = add_row(v_load_n(f->b + i, n), f->bias_b, b, i, n);
            v = activate_gated(f, v, up);
        }
        v = add_row(v, f->residual, residual, i, n);
        row_store(f->out, out, i, n, v);
    }
}

/* linear_kernels.finish, compiled for rows of f32, the common case, and for any. */
static void finish(const linear_finish *f)
{
    if (!f->bias_a && !f->bias_b && (!f->residual || f->residual_dtype == IR_F32) &&
        f->out_dtype == IR_F32)
        finish_row(f, IR_F32, IR_F32, IR_F32, IR_F32);
    else
        finish_row(f, f->bias_a_dtype, f->bias_b_dtype, f->residual_dtype, f->out_dtype);
}

static void norm_to_f32(const void *x, ir_dtype dtype, int64_t n, const void *weight,
                        ir_dtype weight_dtype, float eps, float *to)
{
    norm_rms_row(x, dtype, n, weight, weight_dtype, NULL, false, eps, to, IR_F32);
}

/* Defines a linear_kernels with the given products for 8-bit activations and by tiles (NULL:
 * none), and the functions of its two bodies. */
#define LINEAR_SET(name, products, by_tiles)                                             \
    static const linear_kernels name = {                                                 \
        .panel_rows = V_PANEL_ROWS,                                                      \
        .direct = {[IR_F32] = direct_f32,         [IR_F16] = direct_f16,                 \
                   [IR_BF16] = direct_bf16,       [IR_Q8_0] = direct_q8_0,               \
                   [IR_Q4_0] = direct_q4_0,       [IR_Q4_1] = direct_q4_1,               \
                   [IR_Q5_0] = direct_q5_0,       [IR_Q5_1] = direct_q5_1,               \
                   [IR_Q2_K] = direct_q2_k,       [IR_Q3_K] = direct_q3_k,               \
                   [IR_Q4_K] = direct_q4_k,       [IR_Q5_K] = direct_q5_k,               \
                   [IR_Q6_K] = direct_q6_k,       [IR_IQ4_NL] = direct_iq4_nl,           \
                   [IR_MXFP4] = direct_mxfp4,     [IR_IQ1_S] = direct_iq1_s,             \
                   [IR_IQ1_M] = direct_iq1_m,     [IR_IQ2_XXS] = direct_iq2_xxs,         \
                   [IR_IQ2_XS] = direct_iq2_xs,   [IR_IQ2_S] = direct_iq2_s,             \
                   [IR_IQ3_XXS] = direct_iq3_xxs, [IR_IQ3_S] = direct_iq3_s,             \
                   [IR_IQ4_XS] = direct_iq4_xs,   [IR_TQ1_0] = direct_tq1_0,             \
                   [IR_TQ2_0] = direct_tq2_0},                                           \
        .unpack = unpack_row,                                                            \
        .panel = panel,                                                                  \
        .norm = norm_to_f32,                                                             \
        .widen = widen_row,                                                              \
        .finish = finish,                                                                \
        .int8 = &(products),                                                             \
        .tiles = by_tiles,                                                               \
    };                                                                                   \
    static size_t name##_scratch_bytes(const op_call *call, const ir_box *box)           \
    {                                                                                    \
        return linear_scratch_bytes(call, box, &name);                                   \
    }                                                                                    \
    static void name##_run(const op_call *call, const ir_box *box, void *scratch)        \
    {                                                                                    \
        linear_run(call, box, scratch, &name);                                           \
    }                                                                                    \
    static size_t name##_expert_scratch_bytes(const op_call *call, const ir_box *box)    \
    {                                                                                    \
        return expert_scratch_bytes(call, box, &name);                                   \
    }                                                                                    \
    static void name##_expert_run(const op_call *call, const ir_box *box, void *scratch) \
    {                                                                                    \
        expert_run(call, box, scratch, &name);                                           \
    }

#endif
