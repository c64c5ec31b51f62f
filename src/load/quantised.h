/* quantised.h - a matrix of a folder whose weights were quantised after training, as it is stored.
 *
 * A matrix w [N, K] is numbers q, scales s and perhaps zero points z, a scale for each group of
 * columns:
 *
 *   w[n, k] = (q[n, k] - z[n, k / group]) s[n, k / group]
 *
 *   layout   numbers                          scales, zero points, groups of columns
 *   F8       weight F8_E4M3 [N, K]            weight_scale or weight_scale_inv: one, [N], [N, 1],
 *   BYTES    weight I8 [N, K]                 [N, K / group], or of blocks of rows and columns
 *   NVFP4    weight or weight_packed U8,      weight_scale F8_E4M3 [N, K / 16], and one for
 *            E2M1 [N, K / 2]                  all: weight_scale_2, or weight_global_scale, which
 *                                             divides
 *   MXFP4    weight_packed U8 [N, K / 2]      weight_scale U8 [N, K / 32], powers of two
 *   TABLE    weight U8 [N K / 2, 1]           weight.absmax F32 [N K / group], or U8 that stand for
 *                                             weight.nested_quant_map times weight.nested_absmax
 *                                             and an offset; weight.quant_map F32 [16], what
 *                                             numbers stand for; weight.quant_state, sizes as JSON
 *   WORDS    weight_packed I32 [N, K b / 32]  weight_scale [N, K / group], weight_shape (N, K),
 *                                             weight_zero_point I32 [N b / 32, K / group],
 *                                             weight_g_idx
 *   GPTQ     qweight I32 [K b / 32, N]        scales [K / group, N],
 *                                             qzeros I32 [K / group, N b / 32], g_idx
 *   AWQ      qweight I32 [K, N / 8]           scales [K / group, N],
 *                                             qzeros I32 [K / group, N / 8]
 *
 * INT8 of bitsandbytes is BYTES with SCB F32 [N], 127 times the scales.
 * A byte of E2M1 holds two numbers, the first in the low bits; of a table's the first in the high
 * ones.
 * b: bits of a number; words hold 32 / b, the first in the lowest bits, but for AWQ, whose words
 * hold rows 0 2 4 6 1 3 5 7 of eight.  Numbers of b bits are unsigned; where no zero points are
 * stored these are 2^(b - 1).  g_idx: the group of each column, where columns were ordered first.
 *
 * quantised.c finds the parts, dequantize.c reads them.
 */
#ifndef LOAD_QUANTISED_H
#define LOAD_QUANTISED_H

#include "load/load.h"

typedef enum quantised_layout {
    QUANTISED_F8,
    QUANTISED_BYTES,
    QUANTISED_NVFP4,
    QUANTISED_MXFP4,
    QUANTISED_TABLE,
    QUANTISED_WORDS,
    QUANTISED_GPTQ,
    QUANTISED_AWQ
} quantised_layout;

/* A matrix as the folder has it. */
typedef struct quantised {
    quantised_layout layout;
    str stem;                                            /* of its name: up to the last dot */
    const load_tensor *numbers, *scales, *zeros, *order; /* zeros, order: NULL if there are none */
    int64_t rows, columns;
    int64_t groups, group_columns, scale_rows; /* rows that share a scale */
    float scale;                               /* of all scales */
    /* of TABLE; nested: NULL if scales are f32, else the scales of these, each of nested_group, to
     * which `more` is added */
    const load_tensor *values, *nested, *nested_values;
    int64_t nested_group;
    float more;
    uint32_t bits;
    int zero, zero_more; /* of all numbers, if no zeros are stored; what is added to stored ones */
} quantised;

/* The matrix whose numbers tensor t of a folder holds; x->numbers is NULL if it holds none.
 * MPK_EFORMAT: a part is missing; MPK_ESHAPE, MPK_EUNSUPPORTED. */
mpk_status quantised_find(mpk_context *cx, const load_model *old, const load_tensor *t,
                          quantised *x);
/* Does a tensor of this name only say how a matrix, its activations, or keys and values are
 * quantised? */
bool quantised_is_part(str name);

/* Words that hold n numbers. */
static inline int64_t quantised_words(int64_t n, uint32_t bits)
{
    return (n * bits + 31) / 32;
}

/* Entry i of an I32 or I64 tensor, whose data may be unaligned. */
static inline int64_t quantised_integer(const load_tensor *t, int64_t i)
{
    int32_t narrow;
    int64_t wide;
    if (t->dtype == IR_I64)
        return memcpy(&wide, (const char *)t->data + 8 * i, sizeof wide), wide;
    memcpy(&narrow, (const char *)t->data + 4 * i, sizeof narrow);
    return narrow;
}

static inline uint32_t quantised_word(const load_tensor *t, int64_t i)
{
    return (uint32_t)quantised_integer(t, i);
}

#endif
