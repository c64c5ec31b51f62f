/* cast.c - another dtype, element by element.  x [..] of any dtype -> the plain dtype that is
 * named.
 *
 * Floats round to nearest even; a float becomes an integer towards zero, held at the ends of its
 * range (NaN: 0); an integer that does not fit a narrower one keeps its low bits; bool is "not
 * zero".
 *
 *   f32 2.5 -> i32 2;  f32 1e30 -> i32 2147483647;  i32 300 -> u8 44;  f64 0.5 -> bool true
 *
 * Idea: most conversions go through fp32; those for which it would lose digits go directly.
 * Cost: one conversion an element.
 */
#include "op/fill.h"
#include "op/runs.h"
#include "op/walk.h"

/* The shape stays.  Blocks can only be unpacked: no operator makes them. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    shape_like(x, out);
    CHECK(cx, ir_dtype_from_name(op->attributes[0].s, &out->dtype) && SHAPE_PLAIN >> out->dtype & 1,
          MPK_EUNSUPPORTED, "cast: dtype \"%.*s\" is not a plain dtype",
          STR_ARG(op->attributes[0].s));
    return MPK_OK;
}

/* Rows of blocks are cut at blocks, others into runs. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const int64_t block = ir_dtype_table[x->dtype].block_elements;
    if (block == 1) {
        runs_axes(g, op, axes);
        return;
    }
    shape_axes_all(g, op, axes);
    if (x->rank)
        axes[x->rank - 1].grain = block;
}

/* Scratch: a run of the box as floats. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const ir_tensor *x = shape_input(g, op, 0);
    return x->rank ? (size_t)(box->hi[x->rank - 1] - box->lo[x->rank - 1]) * sizeof(float)
                   : sizeof(float);
}

/* Convert one element between dtypes for which fp32 would lose digits; false if fp32 is exact
 * enough. */
static bool convert_wide(const op_view *x, int64_t i, const op_view *y, int64_t o)
{
    if (ir_dtype_table[x->dtype].block_elements > 1)
        return false;
    if (walk_is_exact(x->dtype))
        walk_store_int(y, o, walk_load_int(x, i));
    else if (x->dtype == IR_F64 || y->dtype == IR_F64)
        walk_store_double(y, o, walk_load_double(x, i));
    else
        return false;
    return true;
}

/* A run goes either element by element without fp32, or as a whole through it. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], n = y->rank ? box->hi[last] - box->lo[last] : 1;
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t from = walk_offset(x, at), to = walk_offset(y, at), i = 0;
        while (i < n && convert_wide(x, from + i * x->stride[last], y, to + i * y->stride[last]))
            i++;
        if (i == n)
            continue;
        walk_load_row(x, from, 0, n, scratch);
        walk_store_row(y, to, 0, n, scratch);
    } while (walk_next(box, last, at));
}

/* Integers of every magnitude, so that narrowing is tested. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    for (int64_t i = 0; t->dtype != IR_F32 && i < ir_elements(t); i++)
        fill_store(t, i, (int64_t)rng_u64(seed, (uint64_t)i) >> i % 60, data);
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("dtype", STR)};

#define CASE(from, to)                                                          \
    {                                                                           \
        "input %x : " from " live=tokens\n%y = cast(%x) {dtype = \"" to "\"}\n" \
    }
static const op_case cases[] = {
    CASE("f32[7, 320]", "bf16"), CASE("bf16[7, 3, 5]", "f32"),
    CASE("f32[7, 17]", "f16"),   CASE("f16[7]", "f64"),
    CASE("f64[7, 3]", "i32"),    CASE("bf16[7, 3, 16]", "f16"),
    CASE("f64[7, 3]", "f32"),    CASE("i64[7, 3]", "i32"),
    CASE("i32[7, 3]", "i64"),    CASE("i64[7, 3]", "f32"),
    CASE("f32[7, 3]", "i64"),    CASE("bool[7, 3]", "f32"),
    CASE("i64[7]", "bool"),      CASE("i64[7]", "f64"),
    CASE("f64[7]", "bool"),      CASE("i32[7, 3]", "u8"),
    CASE("i8[7, 3]", "i64"),     CASE("f64[7, 3]", "i16"),
    CASE("u8[7, 3]", "bf16"),    {"const %x : q5_k[3, 512]\n%y = cast(%x) {dtype = \"f32\"}\n"},
};

const op_def op_cast = {
    .name = "cast",
    .summary = "another dtype, element by element",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_ELEMENTWISE,
    .infer = infer,
    .axes = axes,
    .reads = shape_reads_broadcast,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
