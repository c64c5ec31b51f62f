/* dequantize.c - the matrices of a folder whose weights were quantised after training.
 *
 * Input: the tensors of a folder, and its scheme (hf_scheme.c).  A matrix w [N, K] is stored as
 * numbers q, scales s and perhaps zero points z, a scale for each group of columns:
 *
 *   w[n, k] = (q[n, k] - z[n, k / group]) s[n, k / group]
 *
 *   layout   numbers                          scales, zero points, groups of columns
 *   F8       weight F8_E4M3 [N, K]            weight_scale or weight_scale_inv: one, [N], [N, 1],
 *   BYTES    weight I8 [N, K]                 [N, K / group], or of blocks of rows and columns
 *   NVFP4    weight or weight_packed U8,      weight_scale F8_E4M3 [N, K / 16], and one for all:
 *            E2M1 [N, K / 2]                  weight_scale_2, or divided by weight_global_scale
 *   MXFP4    weight_packed U8 [N, K / 2]      weight_scale U8 [N, K / 32], powers of two
 *   WORDS    weight_packed I32 [N, K b / 32]  weight_scale [N, K / group], weight_shape (N, K),
 *                                             weight_zero_point I32 [N b / 32, K / group],
 *                                             weight_g_idx
 *   GPTQ     qweight I32 [K b / 32, N]        scales [K / group, N],
 *                                             qzeros I32 [K / group, N b / 32], g_idx
 *   AWQ      qweight I32 [K, N / 8]           scales [K / group, N],
 *                                             qzeros I32 [K / group, N / 8]
 *
 * A byte of E2M1 holds two numbers, the first in the low bits.
 * b: bits of a number; words hold 32 / b, the first in the lowest bits, but for AWQ, whose words
 * hold rows 0 2 4 6 1 3 5 7 of eight.  Numbers of b bits are unsigned; where no zero points are
 * stored these are 2^(b - 1).  g_idx: the group of each column, where columns were ordered first.
 *
 * Output: stem.weight [N, K] in the place of all of these.  Blocks of GGUF hold the same numbers:
 * Q4_0, Q8_0 and MXFP4 the same values, Q4_1 all but the last bit of s z.  What does not fit them
 * (F8, NVFP4, a scale that is no f16, groups that are no multiple of 32 columns, ordered columns)
 * becomes config.weight_dtype.  Scales of activations and of keys and values are left out: programs
 * compute with both as they are.
 *
 * The result lies in memory of its own, unlike other weights, which stay in their mapping.  Cost: a
 * pass over the numbers, on all processors.  Called by load.c before names and orders change.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/thread.h"
#include "load/load.h"

enum {
    BLOCK = 32 /* numbers of a block of Q4_0, Q4_1, Q8_0, MXFP4 */,
    TILE = 16 /* rows at a time */
};

typedef enum layout { F8, BYTES, NVFP4, MXFP4, WORDS, GPTQ, AWQ } layout;

/* A matrix as the folder has it. */
typedef struct matrix {
    layout layout;
    str stem;                                            /* of its name: up to the last dot */
    const load_tensor *numbers, *scales, *zeros, *order; /* zeros, order: NULL if there are none */
    int64_t rows, columns;
    int64_t groups, group_columns, scale_rows; /* rows that share a scale */
    float scale;                               /* of NVFP4: of all scales */
    uint32_t bits;
    int zero, zero_more; /* of all numbers, if no zeros are stored; what is added to stored ones */
} matrix;

/* ---- the parts of a matrix ---- */

/* The tensor of the same matrix with another end, NULL if there is none. */
static const load_tensor *find_part(const load_model *old, str stem, const char *end)
{
    char name[256];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)stem.n, stem.at, end);
    return n > 0 && (size_t)n < sizeof name ? load_find(old, name) : NULL;
}

static mpk_status need_part(mpk_context *cx, const load_model *old, str stem, const char *end,
                            const load_tensor **out)
{
    *out = find_part(old, stem, end);
    CHECK(cx, *out, MPK_EFORMAT, "tensor %.*s%s is missing, by which its matrix was quantised",
          LOAD_NAME(stem), end);
    return MPK_OK;
}

/* Is it a matrix of this dtype and size? */
static mpk_status expect(mpk_context *cx, const load_tensor *t, ir_dtype dtype, int64_t rows,
                         int64_t columns)
{
    CHECK(cx, t->dtype == dtype && t->rank == 2 && t->dims[0] == rows && t->dims[1] == columns,
          MPK_ESHAPE, "tensor %.*s is not %s [%lld, %lld], as its matrix needs it",
          LOAD_NAME(t->name), ir_dtype_table[dtype].name, (long long)rows, (long long)columns);
    return MPK_OK;
}

static mpk_status expect_scales(mpk_context *cx, const load_tensor *t)
{
    CHECK(cx, t->dtype == IR_F32 || t->dtype == IR_F16 || t->dtype == IR_BF16, MPK_EUNSUPPORTED,
          "the scales %.*s are %s; f32, f16 and bf16 are supported", LOAD_NAME(t->name),
          t->is_f8 ? "f8_e4m3" : ir_dtype_table[t->dtype].name);
    return MPK_OK;
}

/* Words that hold n numbers. */
static int64_t words_of(int64_t n, uint32_t bits)
{
    return (n * bits + 31) / 32;
}

/* Entry i of an I32 or I64 tensor, whose data may be unaligned. */
static int64_t integer_at(const load_tensor *t, int64_t i)
{
    int32_t narrow;
    int64_t wide;
    if (t->dtype == IR_I64)
        return memcpy(&wide, (const char *)t->data + 8 * i, sizeof wide), wide;
    memcpy(&narrow, (const char *)t->data + 4 * i, sizeof narrow);
    return narrow;
}

static uint32_t word_at(const load_tensor *t, int64_t i)
{
    return (uint32_t)integer_at(t, i);
}

/* The group of each column; dropped where it only says that columns are in order. */
static mpk_status take_order(mpk_context *cx, const load_tensor *order, matrix *x)
{
    bool moves = false;
    if (!order)
        return MPK_OK;
    CHECK(cx, order->dtype == IR_I32 && order->rank == 1 && order->dims[0] == x->columns,
          MPK_ESHAPE, "tensor %.*s is not i32 [%lld], a group for each column",
          LOAD_NAME(order->name), (long long)x->columns);
    for (int64_t k = 0; k < x->columns; k++) {
        const int64_t group = integer_at(order, k);
        CHECK(cx, group >= 0 && group < x->groups, MPK_EFORMAT,
              "tensor %.*s: column %lld is of group %lld of %lld", LOAD_NAME(order->name),
              (long long)k, (long long)group, (long long)x->groups);
        moves |= group != k / x->group_columns;
    }
    x->order = moves ? order : NULL;
    return MPK_OK;
}

/* Columns are in `groups` groups: of the size that config.json says, the last one cut, or of equal
 * sizes. */
static mpk_status set_groups(mpk_context *cx, const load_scheme *s, int64_t groups, matrix *x)
{
    const bool said = s->group && (x->columns + s->group - 1) / s->group == groups;
    CHECK(cx, said || x->columns % groups == 0, MPK_ESHAPE,
          "tensor %.*s: %lld columns have %lld scales each row", LOAD_NAME(x->numbers->name),
          (long long)x->columns, (long long)groups);
    x->groups = groups;
    x->group_columns = said ? s->group : x->columns / groups;
    x->scale_rows = 1;
    return MPK_OK;
}

/* The scales of weights that lie as they are: one, one for each row, for groups of columns, or for
 * blocks of rows and columns. */
static mpk_status take_scales(mpk_context *cx, const load_scheme *s, matrix *x)
{
    const load_tensor *t = x->scales;
    const int64_t rows = t->rank ? t->dims[0] : 1, columns = t->rank > 1 ? t->dims[1] : 1;
    TRY(expect_scales(cx, t));
    CHECK(cx, t->rank <= 2, MPK_ESHAPE, "the scales %.*s have %u axes, expected at most 2",
          LOAD_NAME(t->name), t->rank);
    x->groups = columns;
    if (rows == x->rows)
        return set_groups(cx, s, columns, x);
    if (rows == 1 && columns == 1) {
        x->scale_rows = x->rows;
        x->group_columns = x->columns;
        return MPK_OK;
    }
    x->scale_rows = s->block[0];
    x->group_columns = s->block[1];
    CHECK(cx,
          rows == (x->rows + s->block[0] - 1) / s->block[0] &&
              columns == (x->columns + s->block[1] - 1) / s->block[1],
          MPK_ESHAPE,
          "the scales %.*s are [%lld, %lld]; a matrix [%lld, %lld] has one, one for each row, or "
          "one for each block of [%lld, %lld]",
          LOAD_NAME(t->name), (long long)rows, (long long)columns, (long long)x->rows,
          (long long)x->columns, (long long)s->block[0], (long long)s->block[1]);
    return MPK_OK;
}

/* weight in 8 bits. */
static mpk_status take_bytes(mpk_context *cx, const load_model *old, matrix *x)
{
    const load_tensor *t = x->numbers;
    CHECK(cx, t->rank == 2, MPK_EUNSUPPORTED,
          "tensor %.*s has %u axes: in 8 bits matrices are "
          "supported",
          LOAD_NAME(t->name), t->rank);
    x->layout = t->is_f8 ? F8 : BYTES;
    x->rows = t->dims[0];
    x->columns = t->dims[1];
    x->bits = 8;
    x->zero = 128; /* bytes are read with 128 more, so that they are unsigned */
    x->scales = find_part(old, x->stem, ".weight_scale_inv");
    if (!x->scales)
        TRY(need_part(cx, old, x->stem, ".weight_scale", &x->scales));
    TRY(take_scales(cx, &old->scheme, x));
    x->zeros = x->layout == BYTES ? find_part(old, x->stem, ".weight_zero_point") : NULL;
    if (x->zeros && x->zeros->rank == 2)
        TRY(expect(cx, x->zeros, IR_I8, x->rows, x->groups));
    else if (x->zeros)
        CHECK(cx, x->zeros->dtype == IR_I8 && x->scale_rows == x->rows && x->zeros->n_bytes == 1,
              MPK_ESHAPE, "tensor %.*s is not an i8 for each scale", LOAD_NAME(x->zeros->name));
    return MPK_OK;
}

/* weight or weight_packed as E2M1. */
static mpk_status take_nibbles(mpk_context *cx, const load_model *old, matrix *x)
{
    const load_tensor *t = x->numbers, *all = find_part(old, x->stem, ".weight_scale_2");
    const bool divides = !all;
    TRY(need_part(cx, old, x->stem, ".weight_scale", &x->scales));
    CHECK(cx, t->rank == 2 && x->scales->rank == 2 && x->scales->dtype == IR_U8, MPK_ESHAPE,
          "tensor %.*s and its scales are no matrices of bytes", LOAD_NAME(t->name));
    x->layout = x->scales->is_f8 ? NVFP4 : MXFP4;
    x->bits = 4;
    x->rows = t->dims[0];
    x->columns = t->dims[1] * 2;
    TRY(expect(cx, x->scales, IR_U8, x->rows, x->scales->dims[1]));
    TRY(set_groups(cx, &old->scheme, x->scales->dims[1], x));
    if (x->layout == MXFP4)
        return MPK_OK;
    if (divides)
        TRY(need_part(cx, old, x->stem, ".weight_global_scale", &all));
    CHECK(cx, all->dtype == IR_F32 && all->n_bytes == sizeof(float), MPK_ESHAPE,
          "tensor %.*s is not one f32", LOAD_NAME(all->name));
    x->scale = load_number(all, 0);
    if (divides)
        x->scale = 1 / x->scale;
    return MPK_OK;
}

/* weight_packed.  Its bits follow from its width. */
static mpk_status take_words(mpk_context *cx, const load_model *old, matrix *x)
{
    const load_tensor *t = x->numbers, *sizes;
    TRY(need_part(cx, old, x->stem, ".weight_shape", &sizes));
    TRY(need_part(cx, old, x->stem, ".weight_scale", &x->scales));
    CHECK(cx,
          (sizes->dtype == IR_I64 || sizes->dtype == IR_I32) && sizes->rank == 1 &&
              sizes->dims[0] == 2 && integer_at(sizes, 0) >= 1 && integer_at(sizes, 1) >= 1 &&
              integer_at(sizes, 1) < INT64_C(1) << 40,
          MPK_EFORMAT, "tensor %.*s is not a pair of sizes", LOAD_NAME(sizes->name));
    x->layout = WORDS;
    x->rows = integer_at(sizes, 0);
    x->columns = integer_at(sizes, 1);
    for (x->bits = 2; x->bits < 8 && t->rank == 2; x->bits *= 2)
        if (words_of(x->columns, x->bits) == t->dims[1])
            break;
    TRY(expect(cx, t, IR_I32, x->rows, words_of(x->columns, x->bits)));
    x->zero = 1 << (x->bits - 1);
    TRY(expect_scales(cx, x->scales));
    CHECK(cx, x->scales->rank == 2 && x->scales->dims[0] == x->rows, MPK_ESHAPE,
          "the scales %.*s are not [%lld, groups]", LOAD_NAME(x->scales->name), (long long)x->rows);
    TRY(set_groups(cx, &old->scheme, x->scales->dims[1], x));
    x->zeros = find_part(old, x->stem, ".weight_zero_point");
    if (x->zeros)
        TRY(expect(cx, x->zeros, IR_I32, words_of(x->rows, x->bits), x->groups));
    return take_order(cx, find_part(old, x->stem, ".weight_g_idx"), x);
}

/* qweight of either writer. */
static mpk_status take_qweight(mpk_context *cx, const load_model *old, matrix *x)
{
    const load_tensor *t = x->numbers;
    const uint32_t a_word = 32 / old->scheme.bits;
    CHECK(cx, t->dtype == IR_I32 && t->rank == 2, MPK_ESHAPE, "tensor %.*s is not an i32 matrix",
          LOAD_NAME(t->name));
    x->layout = old->scheme.method == LOAD_AWQ ? AWQ : GPTQ;
    x->bits = old->scheme.bits;
    x->rows = t->dims[1] * (x->layout == AWQ ? a_word : 1);
    x->columns = t->dims[0] * (x->layout == AWQ ? 1 : a_word);
    x->zero_more = x->layout == GPTQ ? old->scheme.zero_more : 0;
    TRY(need_part(cx, old, x->stem, ".scales", &x->scales));
    TRY(need_part(cx, old, x->stem, ".qzeros", &x->zeros));
    TRY(expect_scales(cx, x->scales));
    CHECK(cx, x->scales->rank == 2 && x->scales->dims[1] == x->rows, MPK_ESHAPE,
          "the scales %.*s are not [groups, %lld]", LOAD_NAME(x->scales->name), (long long)x->rows);
    TRY(set_groups(cx, &old->scheme, x->scales->dims[0], x));
    TRY(expect(cx, x->zeros, IR_I32, x->groups, words_of(x->rows, x->bits)));
    return x->layout == AWQ ? MPK_OK : take_order(cx, find_part(old, x->stem, ".g_idx"), x);
}

/* ---- numbers ---- */

/* Number i of those that a row of words holds from word `first` on. */
static uint32_t number_of(const load_tensor *t, int64_t first, int64_t i, uint32_t bits)
{
    const int64_t at = i * bits;
    return word_at(t, first + at / 32) >> at % 32 & ((1u << bits) - 1);
}

/* Where AWQ's words hold row i of eight: in the order of the opening comment. */
static uint32_t awq_shift(int64_t i)
{
    return (uint32_t)(i % 2 * 4 + i / 2) * 4;
}

/* Rows first to first + n - 1, to q [n, columns].  In the order of memory. */
static void read_numbers(const matrix *x, int64_t first, int64_t n, uint8_t *q)
{
    const load_tensor *t = x->numbers;
    const int64_t K = x->columns, a_word = 32 / x->bits;
    const uint32_t mask = (1u << x->bits) - 1;
    switch (x->layout) {
    case F8:
    case BYTES:
        memcpy(q, (const char *)t->data + first * K, (size_t)(n * K));
        for (int64_t i = 0; x->layout == BYTES && i < n * K; i++)
            q[i] ^= 0x80;
        return;
    case NVFP4:
    case MXFP4:
        for (int64_t i = 0; i < n * K; i++) {
            const uint8_t pair = ((const uint8_t *)t->data)[(first * K + i) / 2];
            q[i] = i % 2 ? pair >> 4 : pair & 15;
        }
        return;
    case WORDS:
        for (int64_t r = 0; r < n; r++)
            for (int64_t k = 0; k < K; k++)
                q[r * K + k] = (uint8_t)number_of(t, (first + r) * t->dims[1], k, x->bits);
        return;
    case GPTQ:
        for (int64_t w = 0; w < t->dims[0]; w++)
            for (int64_t r = 0; r < n; r++) {
                uint32_t word = word_at(t, w * x->rows + first + r);
                for (int64_t i = 0; i < a_word; i++, word >>= x->bits)
                    q[r * K + w * a_word + i] = (uint8_t)(word & mask);
            }
        return;
    case AWQ:
        for (int64_t k = 0; k < K; k++)
            for (int64_t r = 0; r < n; r++)
                q[r * K + k] = (uint8_t)(word_at(t, k * t->dims[1] + (first + r) / 8) >>
                                             awq_shift((first + r) % 8) &
                                         mask);
        return;
    }
}

static int64_t group_of(const matrix *x, int64_t k)
{
    return x->order ? integer_at(x->order, k) : k / x->group_columns;
}

/* E4M3 has 4 bits of exponent and 3 of fraction, no infinities.  Moved to the place of f16's it is
 * 2^8 too small, as the biases are 7 and 15. */
static float from_f8(uint8_t v)
{
    if ((v & 0x7f) == 0x7f)
        return NAN;
    return num_from_f16((f16)((v & 0x80) << 8 | (v & 0x7f) << 7)) * 256;
}

/* A scale of a byte: E4M3, or of MXFP4 an exponent. */
static uint8_t scale_byte(const matrix *x, int64_t row, int64_t group)
{
    return ((const uint8_t *)x->scales->data)[row * x->groups + group];
}

static float scale_of(const matrix *x, int64_t row, int64_t group)
{
    if (x->layout == NVFP4)
        return from_f8(scale_byte(x, row, group)) * x->scale;
    if (x->layout == MXFP4)
        return ldexpf(1, scale_byte(x, row, group) - 127);
    if (x->layout == GPTQ || x->layout == AWQ)
        return load_number(x->scales, group * x->rows + row);
    return load_number(x->scales, row / x->scale_rows * x->groups + group);
}

static int zero_of(const matrix *x, int64_t row, int64_t group)
{
    const load_tensor *z = x->zeros;
    if (!z)
        return x->zero;
    switch (x->layout) {
    case GPTQ:
        return (int)number_of(z, group * z->dims[1], row, x->bits) + x->zero_more;
    case AWQ:
        return (int)(word_at(z, group * z->dims[1] + row / 8) >> awq_shift(row % 8) & 15);
    case WORDS: /* words go down a column */
        return (int)(word_at(z, row * x->bits / 32 * x->groups + group) >> row * x->bits % 32 &
                     ((1u << x->bits) - 1));
    case BYTES:
    case F8:
    case NVFP4:
    case MXFP4:
        break;
    }
    return ((const signed char *)z->data)[z->rank == 2 ? row * x->groups + group : 0] + 128;
}

/* What number q stands for, without its scale. */
static float value_of(const matrix *x, uint8_t q, int zero)
{
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    if (x->layout == F8)
        return from_f8(q);
    if (x->layout == NVFP4 || x->layout == MXFP4)
        return q & 8 ? -e2m1[q & 7] : e2m1[q];
    return (float)(q - zero);
}

/* ---- results ---- */

/* A conversion that threads share, a tile of rows each. */
typedef struct job {
    const matrix *x;
    ir_dtype dtype; /* of the result */
    char *to;
    size_t row_bytes;
} job;

static void put_half(char *to, float v)
{
    const f16 half = num_to_f16(v);
    memcpy(to, &half, sizeof half);
}

/* Blocks of a row: scale, in Q4_1 what is added, then the numbers: of 4 bits number i and i + 16
 * share a byte. */
static void put_blocks(const job *j, int64_t row, const uint8_t *q, char *to)
{
    const matrix *x = j->x;
    for (int64_t k = 0; k < x->columns; k += BLOCK, q += BLOCK) {
        const int64_t group = k / x->group_columns;
        const float scale = scale_of(x, row, group);
        const int zero = zero_of(x, row, group);
        if (j->dtype == IR_MXFP4) {
            *to++ = (char)scale_byte(x, row, group);
        } else {
            put_half(to, scale);
            to += 2;
        }
        if (j->dtype == IR_Q4_1) {
            put_half(to, -scale * (float)zero);
            to += 2;
        }
        if (j->dtype == IR_Q8_0)
            for (int i = 0; i < BLOCK; i++)
                *to++ = (char)(q[i] - zero);
        else
            for (int i = 0; i < BLOCK / 2; i++)
                *to++ = (char)(q[i] | q[i + BLOCK / 2] << 4);
    }
}

static void put_values(const job *j, int64_t row, const uint8_t *q, char *to)
{
    const matrix *x = j->x;
    int64_t known = -1; /* the group whose scale and zero are at hand */
    float scale = 0;
    int zero = 0;
    for (int64_t k = 0; k < x->columns; k++) {
        const int64_t group = group_of(x, k);
        if (group != known) {
            known = group;
            scale = scale_of(x, row, group);
            zero = zero_of(x, row, group);
        }
        const float v = value_of(x, q[k], zero) * scale;
        const uint16_t half = j->dtype == IR_F16 ? num_to_f16(v) : num_to_bf16(v);
        if (j->dtype == IR_F32)
            memcpy(to + 4 * k, &v, sizeof v);
        else
            memcpy(to + 2 * k, &half, sizeof half);
    }
}

static mpk_status convert_tile(mpk_context *cx, void *user, uint32_t tile)
{
    const job *j = user;
    const matrix *x = j->x;
    const int64_t first = (int64_t)tile * TILE, n = x->rows - first < TILE ? x->rows - first : TILE;
    uint8_t *q = malloc((size_t)(n * x->columns));
    CHECK(cx, q, MPK_ENOMEM, "out of memory for %lld rows of %lld numbers", (long long)n,
          (long long)x->columns);
    read_numbers(x, first, n, q);
    for (int64_t r = 0; r < n; r++) {
        char *to = j->to + (size_t)(first + r) * j->row_bytes;
        if (ir_dtype_table[j->dtype].block_elements > 1)
            put_blocks(j, first + r, q + r * x->columns, to);
        else
            put_values(j, first + r, q + r * x->columns, to);
    }
    free(q);
    return MPK_OK;
}

/* Blocks that hold the matrix as it is, or IR_DTYPES: there are none. */
static ir_dtype find_blocks(const matrix *x)
{
    bool middle = true; /* all zero points are 2^(bits - 1) */
    if (x->layout == F8 || x->layout == NVFP4 || x->order || x->columns % BLOCK ||
        x->group_columns % BLOCK)
        return IR_DTYPES;
    if (x->layout == MXFP4)
        return IR_MXFP4;
    for (int64_t n = 0; n < x->rows; n++)
        for (int64_t g = 0; g < x->groups; g++) {
            const float scale = scale_of(x, n, g);
            const int zero = zero_of(x, n, g);
            middle &= zero == 1 << (x->bits - 1);
            if (!isfinite(scale) || num_from_f16(num_to_f16(scale)) != scale ||
                !isfinite(num_from_f16(num_to_f16(scale * (float)zero))))
                return IR_DTYPES;
        }
    if (x->bits == 8)
        return middle ? IR_Q8_0 : IR_DTYPES;
    return x->bits == 4 && middle ? IR_Q4_0 : IR_Q4_1;
}

/* Add stem.weight. */
static mpk_status add_matrix(mpk_context *cx, load_model *m, const matrix *x)
{
    const ir_dtype blocks = find_blocks(x);
    load_tensor t = {.dtype = blocks == IR_DTYPES ? m->config.weight_dtype : blocks,
                     .rank = 2,
                     .dims = {x->rows, x->columns}};
    static const char end[] = ".weight";
    char *name, *bytes;
    NEW(cx, &m->arena, name, x->stem.n + sizeof end);
    memcpy(name, x->stem.at, x->stem.n);
    memcpy(name + x->stem.n, end, sizeof end);
    t.name = str_from(name);
    TRY(load_tensor_bytes(cx, &t, &t.n_bytes));
    bytes = arena_alloc(&m->arena, (size_t)t.n_bytes, 1);
    CHECK(cx, bytes, MPK_ENOMEM, "out of memory for %.*s, %llu bytes", LOAD_NAME(t.name),
          (unsigned long long)t.n_bytes);
    t.data = bytes;
    job j = {x, t.dtype, bytes, (size_t)(t.n_bytes / (uint64_t)x->rows)};
    TRY(thread_each(cx, (uint32_t)((x->rows + TILE - 1) / TILE), convert_tile, &j));
    return load_add_tensor(cx, m, &t);
}

/* ---- a folder ---- */

/* The name without its end, if it has it. */
static bool cut_end(str name, const char *end, str *stem)
{
    const str e = str_from(end);
    if (!str_ends(name, e) || name.n == e.n)
        return false;
    *stem = (str){name.at, name.n - e.n};
    return true;
}

/* The matrix whose numbers the tensor holds; x->numbers is NULL if it holds none. */
static mpk_status find_matrix(mpk_context *cx, const load_model *old, const load_tensor *t,
                              matrix *x)
{
    const load_method method = old->scheme.method;
    *x = (matrix){.numbers = t};
    if ((method == LOAD_FP8 || method == LOAD_COMPRESSED) && (t->is_f8 || t->dtype == IR_I8) &&
        cut_end(t->name, ".weight", &x->stem))
        return take_bytes(cx, old, x);
    if ((method == LOAD_FP8 || method == LOAD_COMPRESSED) && t->dtype == IR_U8 &&
        (cut_end(t->name, ".weight_packed", &x->stem) || cut_end(t->name, ".weight", &x->stem)))
        return take_nibbles(cx, old, x);
    if (method == LOAD_COMPRESSED && cut_end(t->name, ".weight_packed", &x->stem))
        return take_words(cx, old, x);
    if ((method == LOAD_GPTQ || method == LOAD_AWQ) && cut_end(t->name, ".qweight", &x->stem))
        return take_qweight(cx, old, x);
    x->numbers = NULL;
    return MPK_OK;
}

/* Does the tensor only say how a matrix, its activations, or keys and values are quantised? */
static bool is_part(str name)
{
    static const char *const ends[] = {".weight_scale_inv",
                                       ".weight_scale",
                                       ".weight_zero_point",
                                       ".weight_shape",
                                       ".weight_g_idx",
                                       ".weight_scale_2",
                                       ".weight_global_scale",
                                       ".input_global_scale",
                                       ".scales",
                                       ".qzeros",
                                       ".g_idx",
                                       ".input_scale",
                                       ".input_zero_point",
                                       ".output_scale",
                                       ".output_zero_point",
                                       ".q_scale",
                                       ".k_scale",
                                       ".v_scale"};
    bool is = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        is |= str_ends(name, str_from(ends[i]));
    return is;
}

/* Of other tensors numbers are in the dtypes that programs read. */
static mpk_status check_plain(mpk_context *cx, const load_model *m, const load_tensor *t)
{
    CHECK(cx, !t->is_f8 && t->dtype != IR_I8 && t->dtype != IR_I32 && t->dtype != IR_I64,
          MPK_EUNSUPPORTED, "tensor %.*s is %s, and config.json does not say %s",
          LOAD_NAME(t->name), t->is_f8 ? "f8_e4m3" : ir_dtype_table[t->dtype].name,
          m->scheme.method == LOAD_PLAIN ? "how weights were quantised (\"quantization_config\")"
                                         : "what it stands for");
    return MPK_OK;
}

static mpk_status check_family(mpk_context *cx, const load_model *m)
{
    const model_def *def;
    TRY(model_find(cx, m->config.family, &def));
    CHECK(cx, m->scheme.method != LOAD_MXFP4 || def->expert_bias, MPK_EUNSUPPORTED,
          "\"quant_method\" \"mxfp4\" is not supported in this family");
    return MPK_OK;
}

/* The list of tensors is made anew. */
mpk_status load_dequantize(mpk_context *cx, load_model *m)
{
    const load_model old = *m;
    const bool plain = old.scheme.method == LOAD_PLAIN || old.scheme.method == LOAD_MXFP4;
    TRY(check_family(cx, m));
    m->tensors.at = NULL;
    m->tensors.n = m->tensors.capacity = 0;
    m->names = (map){0};
    for (size_t i = 0; i < old.tensors.n; i++) {
        const load_tensor *t = &old.tensors.at[i];
        matrix x;
        TRY(find_matrix(cx, &old, t, &x));
        if (x.numbers) {
            TRY(add_matrix(cx, m, &x));
            continue;
        }
        if (!plain && is_part(t->name))
            continue;
        TRY(check_plain(cx, m, t));
        TRY(load_add_tensor(cx, m, t));
    }
    return MPK_OK;
}
