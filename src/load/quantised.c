/* quantised.c - the parts of a quantised matrix among the tensors of a folder: what belongs
 * together by name, and whether shapes and dtypes fit each other.
 *
 * Input: the tensors of a folder and its scheme (hf_scheme.c).  Output: a `quantised` whose entries
 * may be read without another look at sizes.  Called by dequantize.c, for each tensor once.
 */
#include "load/quantised.h"

#include <stdio.h>

#include "base/json.h"

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

/* The group of each column; dropped where it only says that columns are in order. */
static mpk_status take_order(mpk_context *cx, const load_tensor *order, quantised *x)
{
    bool moves = false;
    if (!order)
        return MPK_OK;
    CHECK(cx, order->dtype == IR_I32 && order->rank == 1 && order->dims[0] == x->columns,
          MPK_ESHAPE, "tensor %.*s is not i32 [%lld], a group for each column",
          LOAD_NAME(order->name), (long long)x->columns);
    for (int64_t k = 0; k < x->columns; k++) {
        const int64_t group = quantised_integer(order, k);
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
static mpk_status set_groups(mpk_context *cx, const load_scheme *s, int64_t groups, quantised *x)
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
static mpk_status take_scales(mpk_context *cx, const load_scheme *s, quantised *x)
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
static mpk_status take_bytes(mpk_context *cx, const load_model *old, quantised *x)
{
    const load_tensor *t = x->numbers;
    CHECK(cx, t->rank == 2, MPK_EUNSUPPORTED,
          "tensor %.*s has %u axes: in 8 bits matrices are supported", LOAD_NAME(t->name), t->rank);
    x->layout = t->is_f8 ? QUANTISED_F8 : QUANTISED_BYTES;
    x->rows = t->dims[0];
    x->columns = t->dims[1];
    x->bits = 8;
    x->zero = 128; /* bytes are read with 128 more, so that they are unsigned */
    x->scales = find_part(old, x->stem, ".weight_scale_inv");
    if (old->scheme.method == LOAD_BITS_AND_BYTES) {
        TRY(need_part(cx, old, x->stem, ".SCB", &x->scales));
        x->scale = 1.0f / 127;
    } else if (!x->scales) {
        TRY(need_part(cx, old, x->stem, ".weight_scale", &x->scales));
    }
    TRY(take_scales(cx, &old->scheme, x));
    x->zeros = x->layout == QUANTISED_BYTES ? find_part(old, x->stem, ".weight_zero_point") : NULL;
    if (x->zeros && x->zeros->rank == 2)
        TRY(expect(cx, x->zeros, IR_I8, x->rows, x->groups));
    else if (x->zeros)
        CHECK(cx, x->zeros->dtype == IR_I8 && x->scale_rows == x->rows && x->zeros->n_bytes == 1,
              MPK_ESHAPE, "tensor %.*s is not an i8 for each scale", LOAD_NAME(x->zeros->name));
    return MPK_OK;
}

/* weight or weight_packed as E2M1. */
static mpk_status take_nibbles(mpk_context *cx, const load_model *old, quantised *x)
{
    const load_tensor *t = x->numbers, *all = find_part(old, x->stem, ".weight_scale_2");
    const bool divides = !all;
    TRY(need_part(cx, old, x->stem, ".weight_scale", &x->scales));
    CHECK(cx, t->rank == 2 && x->scales->rank == 2 && x->scales->dtype == IR_U8, MPK_ESHAPE,
          "tensor %.*s and its scales are no matrices of bytes", LOAD_NAME(t->name));
    x->layout = x->scales->is_f8 ? QUANTISED_NVFP4 : QUANTISED_MXFP4;
    x->bits = 4;
    x->rows = t->dims[0];
    x->columns = t->dims[1] * 2;
    TRY(expect(cx, x->scales, IR_U8, x->rows, x->scales->dims[1]));
    TRY(set_groups(cx, &old->scheme, x->scales->dims[1], x));
    if (x->layout == QUANTISED_MXFP4)
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

/* Is it a vector of n f32? */
static mpk_status expect_floats(mpk_context *cx, const load_tensor *t, int64_t n)
{
    CHECK(cx, t->dtype == IR_F32 && t->rank == 1 && t->dims[0] == n, MPK_ESHAPE,
          "tensor %.*s is not f32 [%lld], as its matrix needs it", LOAD_NAME(t->name),
          (long long)n);
    return MPK_OK;
}

/* Sizes of a table's matrix, from the document that a tensor holds. */
static mpk_status read_state(mpk_context *cx, const load_tensor *state, quantised *x)
{
    arena scratch = {0};
    const json_value *j = NULL, *shape;
    double group = 0, nested_group = 0, more = 0;
    mpk_status status = json_parse(cx, &scratch, (str){state->data, (size_t)state->n_bytes}, &j);
    if (status == MPK_OK)
        status = json_read_double(cx, j, "blocksize", &group);
    if (status == MPK_OK)
        status = json_read_double(cx, j, "nested_blocksize", &nested_group);
    if (status == MPK_OK)
        status = json_read_double(cx, j, "nested_offset", &more);
    shape = json_get(j, "shape");
    const bool is_matrix = json_is(shape, JSON_KIND_LIST) && shape->n == 2 &&
                           shape->items[0].is_integer && shape->items[1].is_integer;
    x->rows = is_matrix ? shape->items[0].integer : 0;
    x->columns = is_matrix ? shape->items[1].integer : 0;
    arena_free(&scratch);
    TRY(status);
    CHECK(cx,
          x->rows >= 1 && x->columns >= 1 && x->rows < INT64_C(1) << 31 &&
              x->columns < INT64_C(1) << 31 && group >= 1 && group <= 1 << 20 &&
              nested_group >= 0 && nested_group <= 1 << 20,
          MPK_EFORMAT, "tensor %.*s does not have the sizes of a matrix and its groups",
          LOAD_NAME(state->name));
    x->group_columns = (int64_t)group;
    x->nested_group = (int64_t)nested_group;
    x->more = (float)more;
    return MPK_OK;
}

/* weight of bitsandbytes in 4 bits. */
static mpk_status take_table(mpk_context *cx, const load_model *old, quantised *x)
{
    const load_tensor *t = x->numbers,
                      *state = find_part(old, x->stem, ".weight.quant_state.bitsandbytes__nf4");
    if (!state)
        TRY(need_part(cx, old, x->stem, ".weight.quant_state.bitsandbytes__fp4", &state));
    TRY(need_part(cx, old, x->stem, ".weight.quant_map", &x->values));
    TRY(need_part(cx, old, x->stem, ".weight.absmax", &x->scales));
    TRY(read_state(cx, state, x));
    TRY(expect_floats(cx, x->values, 16));
    x->layout = QUANTISED_TABLE;
    x->bits = 4;
    const int64_t all = x->rows * x->columns;
    x->groups = (all + x->group_columns - 1) / x->group_columns;
    CHECK(cx, t->n_bytes == (uint64_t)((all + 1) / 2), MPK_ESHAPE,
          "tensor %.*s has %llu bytes, its matrix [%lld, %lld] needs %lld", LOAD_NAME(t->name),
          (unsigned long long)t->n_bytes, (long long)x->rows, (long long)x->columns,
          (long long)((all + 1) / 2));
    if (x->scales->dtype != IR_U8)
        return expect_floats(cx, x->scales, x->groups);
    CHECK(cx, x->scales->n_bytes == (uint64_t)x->groups && x->nested_group, MPK_ESHAPE,
          "tensor %.*s is not a scale for each of %lld groups", LOAD_NAME(x->scales->name),
          (long long)x->groups);
    TRY(need_part(cx, old, x->stem, ".weight.nested_absmax", &x->nested));
    TRY(need_part(cx, old, x->stem, ".weight.nested_quant_map", &x->nested_values));
    TRY(expect_floats(cx, x->nested_values, 256));
    return expect_floats(cx, x->nested, (x->groups + x->nested_group - 1) / x->nested_group);
}

/* weight_packed.  Its bits follow from its width. */
static mpk_status take_words(mpk_context *cx, const load_model *old, quantised *x)
{
    const load_tensor *t = x->numbers, *sizes;
    TRY(need_part(cx, old, x->stem, ".weight_shape", &sizes));
    TRY(need_part(cx, old, x->stem, ".weight_scale", &x->scales));
    CHECK(cx,
          (sizes->dtype == IR_I64 || sizes->dtype == IR_I32) && sizes->rank == 1 &&
              sizes->dims[0] == 2 && quantised_integer(sizes, 0) >= 1 &&
              quantised_integer(sizes, 1) >= 1 && quantised_integer(sizes, 1) < INT64_C(1) << 40,
          MPK_EFORMAT, "tensor %.*s is not a pair of sizes", LOAD_NAME(sizes->name));
    x->layout = QUANTISED_WORDS;
    x->rows = quantised_integer(sizes, 0);
    x->columns = quantised_integer(sizes, 1);
    for (x->bits = 2; x->bits < 8 && t->rank == 2; x->bits *= 2)
        if (quantised_words(x->columns, x->bits) == t->dims[1])
            break;
    TRY(expect(cx, t, IR_I32, x->rows, quantised_words(x->columns, x->bits)));
    x->zero = 1 << (x->bits - 1);
    TRY(expect_scales(cx, x->scales));
    CHECK(cx, x->scales->rank == 2 && x->scales->dims[0] == x->rows, MPK_ESHAPE,
          "the scales %.*s are not [%lld, groups]", LOAD_NAME(x->scales->name), (long long)x->rows);
    TRY(set_groups(cx, &old->scheme, x->scales->dims[1], x));
    x->zeros = find_part(old, x->stem, ".weight_zero_point");
    if (x->zeros)
        TRY(expect(cx, x->zeros, IR_I32, quantised_words(x->rows, x->bits), x->groups));
    return take_order(cx, find_part(old, x->stem, ".weight_g_idx"), x);
}

/* qweight of either writer. */
static mpk_status take_qweight(mpk_context *cx, const load_model *old, quantised *x)
{
    const load_tensor *t = x->numbers;
    const uint32_t a_word = 32 / old->scheme.bits;
    CHECK(cx, t->dtype == IR_I32 && t->rank == 2, MPK_ESHAPE, "tensor %.*s is not an i32 matrix",
          LOAD_NAME(t->name));
    x->layout = old->scheme.method == LOAD_AWQ ? QUANTISED_AWQ : QUANTISED_GPTQ;
    x->bits = old->scheme.bits;
    x->rows = t->dims[1] * (x->layout == QUANTISED_AWQ ? a_word : 1);
    x->columns = t->dims[0] * (x->layout == QUANTISED_AWQ ? 1 : a_word);
    x->zero_more = x->layout == QUANTISED_GPTQ ? old->scheme.zero_more : 0;
    TRY(need_part(cx, old, x->stem, ".scales", &x->scales));
    TRY(need_part(cx, old, x->stem, ".qzeros", &x->zeros));
    TRY(expect_scales(cx, x->scales));
    CHECK(cx, x->scales->rank == 2 && x->scales->dims[1] == x->rows, MPK_ESHAPE,
          "the scales %.*s are not [groups, %lld]", LOAD_NAME(x->scales->name), (long long)x->rows);
    TRY(set_groups(cx, &old->scheme, x->scales->dims[0], x));
    TRY(expect(cx, x->zeros, IR_I32, x->groups, quantised_words(x->rows, x->bits)));
    return x->layout == QUANTISED_AWQ ? MPK_OK
                                      : take_order(cx, find_part(old, x->stem, ".g_idx"), x);
}

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
mpk_status quantised_find(mpk_context *cx, const load_model *old, const load_tensor *t,
                          quantised *x)
{
    str stem = {0};
    const bool plain = cut_end(t->name, ".weight", &stem),
               packed = !plain && cut_end(t->name, ".weight_packed", &stem),
               transposed = !plain && !packed && cut_end(t->name, ".qweight", &stem);
    *x = (quantised){.stem = stem, .numbers = t, .scale = 1};
    switch (old->scheme.method) {
    case LOAD_FP8:
    case LOAD_COMPRESSED:
        if (plain && (t->is_f8 || t->dtype == IR_I8))
            return take_bytes(cx, old, x);
        if ((plain || packed) && t->dtype == IR_U8)
            return take_nibbles(cx, old, x);
        if (packed)
            return take_words(cx, old, x);
        break;
    case LOAD_GPTQ:
    case LOAD_AWQ:
        if (transposed)
            return take_qweight(cx, old, x);
        break;
    case LOAD_BITS_AND_BYTES:
        if (plain && t->dtype == IR_I8)
            return take_bytes(cx, old, x);
        if (plain && t->dtype == IR_U8)
            return take_table(cx, old, x);
        break;
    case LOAD_PLAIN:
    case LOAD_MXFP4:
        break;
    }
    x->numbers = NULL;
    return MPK_OK;
}

/* Does the tensor only say how a matrix, its activations, or keys and values are quantised? */
bool quantised_is_part(str name)
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
                                       ".activation_scale",
                                       ".weight.absmax",
                                       ".weight.quant_map",
                                       ".weight.nested_absmax",
                                       ".weight.nested_quant_map",
                                       ".quant_state.bitsandbytes__nf4",
                                       ".quant_state.bitsandbytes__fp4",
                                       ".SCB",
                                       ".weight_format",
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
