/* dequantize.c - the matrices of a folder whose weights were quantised after training, as programs
 * read them.
 *
 * Input: the tensors of a folder (quantised.h).
 * Output: stem.weight [N, K] in the place of all parts of a matrix.  Blocks of GGUF hold the same
 * numbers: Q4_0, Q8_0 and MXFP4 the same values, Q4_1 all but the last bit of s z.  What does not
 * fit them (F8, NVFP4, tables, a scale that is no f16, groups that are no multiple of 32 columns,
 * ordered columns) becomes config.weight_dtype.  Scales of activations and of keys and values are
 * left out: programs compute with both as they are.
 *
 * The result lies in memory of its own, unlike other weights, which stay in their mapping.  Cost: a
 * pass over the numbers, on all processors.  Called by load.c before names and orders change.
 */
#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/thread.h"
#include "load/quantised.h"

/* Numbers of a block of Q4_0, Q4_1, Q8_0, MXFP4; rows that are read at a time. */
enum { BLOCK = 32, TILE = 16 };

/* ---- numbers ---- */

/* Number i of those that a row of words holds from word `first` on. */
static uint32_t number_of(const load_tensor *t, int64_t first, int64_t i, uint32_t bits)
{
    const int64_t at = i * bits;
    return quantised_word(t, first + at / 32) >> at % 32 & ((1u << bits) - 1);
}

/* Where AWQ's words hold row i of eight: in the order that quantised.h tells. */
static uint32_t awq_shift(int64_t i)
{
    return (uint32_t)(i % 2 * 4 + i / 2) * 4;
}

/* Rows first to first + n - 1, to q [n, columns].  In the order of memory. */
static void read_numbers(const quantised *x, int64_t first, int64_t n, uint8_t *q)
{
    const load_tensor *t = x->numbers;
    const int64_t K = x->columns, a_word = 32 / x->bits;
    const uint32_t mask = (1u << x->bits) - 1;
    switch (x->layout) {
    case QUANTISED_F8:
    case QUANTISED_BYTES:
        memcpy(q, (const char *)t->data + first * K, (size_t)(n * K));
        for (int64_t i = 0; x->layout == QUANTISED_BYTES && i < n * K; i++)
            q[i] ^= 0x80;
        return;
    case QUANTISED_NVFP4:
    case QUANTISED_MXFP4:
    case QUANTISED_TABLE:
        for (int64_t i = 0; i < n * K; i++) {
            const int64_t at = first * K + i;
            const uint8_t pair = ((const uint8_t *)t->data)[at / 2];
            const bool high = (at % 2 == 1) != (x->layout == QUANTISED_TABLE);
            q[i] = high ? pair >> 4 : pair & 15;
        }
        return;
    case QUANTISED_WORDS:
        for (int64_t r = 0; r < n; r++)
            for (int64_t k = 0; k < K; k++)
                q[r * K + k] = (uint8_t)number_of(t, (first + r) * t->dims[1], k, x->bits);
        return;
    case QUANTISED_GPTQ:
        for (int64_t w = 0; w < t->dims[0]; w++)
            for (int64_t r = 0; r < n; r++) {
                uint32_t word = quantised_word(t, w * x->rows + first + r);
                for (int64_t i = 0; i < a_word; i++, word >>= x->bits)
                    q[r * K + w * a_word + i] = (uint8_t)(word & mask);
            }
        return;
    case QUANTISED_AWQ:
        for (int64_t k = 0; k < K; k++)
            for (int64_t r = 0; r < n; r++)
                q[r * K + k] = (uint8_t)(quantised_word(t, k * t->dims[1] + (first + r) / 8) >>
                                             awq_shift((first + r) % 8) &
                                         mask);
        return;
    }
}

/* Groups of a table go on from row to row. */
static int64_t group_of(const quantised *x, int64_t row, int64_t k)
{
    if (x->layout == QUANTISED_TABLE)
        return (row * x->columns + k) / x->group_columns;
    return x->order ? quantised_integer(x->order, k) : k / x->group_columns;
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
static uint8_t scale_byte(const quantised *x, int64_t row, int64_t group)
{
    return ((const uint8_t *)x->scales->data)[row * x->groups + group];
}

static float scale_of_table(const quantised *x, int64_t group)
{
    if (!x->nested)
        return load_number(x->scales, group);
    return load_number(x->nested_values, ((const uint8_t *)x->scales->data)[group]) *
               load_number(x->nested, group / x->nested_group) +
           x->more;
}

static float scale_of(const quantised *x, int64_t row, int64_t group)
{
    if (x->layout == QUANTISED_TABLE)
        return scale_of_table(x, group);
    if (x->layout == QUANTISED_NVFP4)
        return from_f8(scale_byte(x, row, group)) * x->scale;
    if (x->layout == QUANTISED_MXFP4)
        return ldexpf(1, scale_byte(x, row, group) - 127);
    if (x->layout == QUANTISED_GPTQ || x->layout == QUANTISED_AWQ)
        return load_number(x->scales, group * x->rows + row);
    return load_number(x->scales, row / x->scale_rows * x->groups + group) * x->scale;
}

static int zero_of(const quantised *x, int64_t row, int64_t group)
{
    const load_tensor *z = x->zeros;
    if (!z)
        return x->zero;
    switch (x->layout) {
    case QUANTISED_GPTQ:
        return (int)number_of(z, group * z->dims[1], row, x->bits) + x->zero_more;
    case QUANTISED_AWQ:
        return (int)(quantised_word(z, group * z->dims[1] + row / 8) >> awq_shift(row % 8) & 15);
    case QUANTISED_WORDS: /* words go down a column */
        return (int)(quantised_word(z, row * x->bits / 32 * x->groups + group) >>
                         row * x->bits % 32 &
                     ((1u << x->bits) - 1));
    case QUANTISED_BYTES:
    case QUANTISED_F8:
    case QUANTISED_NVFP4:
    case QUANTISED_MXFP4:
    case QUANTISED_TABLE:
        break;
    }
    return ((const signed char *)z->data)[z->rank == 2 ? row * x->groups + group : 0] + 128;
}

/* What number q stands for, without its scale. */
static float value_of(const quantised *x, uint8_t q, int zero)
{
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    if (x->layout == QUANTISED_F8)
        return from_f8(q);
    if (x->layout == QUANTISED_NVFP4 || x->layout == QUANTISED_MXFP4)
        return q & 8 ? -e2m1[q & 7] : e2m1[q];
    if (x->layout == QUANTISED_TABLE)
        return load_number(x->values, q);
    return (float)(q - zero);
}

/* ---- results ---- */

/* A conversion that threads share, a tile of rows each. */
typedef struct job {
    const quantised *x;
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
    const quantised *x = j->x;
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
    const quantised *x = j->x;
    int64_t known = -1; /* the group whose scale and zero are at hand */
    float scale = 0;
    int zero = 0;
    for (int64_t k = 0; k < x->columns; k++) {
        const int64_t group = group_of(x, row, k);
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
    const quantised *x = j->x;
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
static ir_dtype find_blocks(const quantised *x)
{
    bool middle = true; /* all zero points are 2^(bits - 1) */
    if (x->layout == QUANTISED_F8 || x->layout == QUANTISED_NVFP4 || x->layout == QUANTISED_TABLE ||
        x->order || x->columns % BLOCK || x->group_columns % BLOCK)
        return IR_DTYPES;
    if (x->layout == QUANTISED_MXFP4)
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
static mpk_status add_matrix(mpk_context *cx, load_model *m, const quantised *x)
{
    const ir_dtype blocks = find_blocks(x);
    load_tensor t = {.dtype = blocks == IR_DTYPES ? m->config.weight_dtype : blocks,
                     .rank = 2,
                     .dims = {x->rows, x->columns}};
    char *bytes;
    TRY(load_make_name(cx, &m->arena, x->stem, ".weight", &t.name));
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

/* The list of tensors is made anew, unless none of them can be a part of a quantised matrix. */
mpk_status load_dequantize(mpk_context *cx, load_model *m)
{
    const load_model old = *m;
    TRY(check_family(cx, m));
    if (old.scheme.method == LOAD_PLAIN || old.scheme.method == LOAD_MXFP4) {
        for (size_t i = 0; i < old.tensors.n; i++)
            TRY(check_plain(cx, m, &old.tensors.at[i]));
        return MPK_OK;
    }
    load_empty_list(m);
    for (size_t i = 0; i < old.tensors.n; i++) {
        const load_tensor *t = &old.tensors.at[i];
        quantised x;
        TRY(quantised_find(cx, &old, t, &x));
        if (x.numbers) {
            TRY(add_matrix(cx, m, &x));
            continue;
        }
        if (quantised_is_part(t->name))
            continue;
        TRY(check_plain(cx, m, t));
        TRY(load_add_tensor(cx, m, t));
    }
    return MPK_OK;
}
