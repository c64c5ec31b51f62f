/* embedding.c - rows of a table by token id.  tokens i32[T] or i64[T], table [V, D] -> x [T, D];
 * an id outside 0 .. V - 1 gives zeros.
 *
 *   tokens [2, 0, 9], V = 5 -> rows 2 and 0 of the table, and a row of zeros
 *
 * factor: of every row (Gemma, Granite); one rounding, when stored.
 *
 * Which rows are read is known only at run time, so a task is said to read every row of its
 * columns.  Block dtypes are unpacked, so columns are cut at blocks.  Cost: one row of memory a
 * token.
 */
#include "op/fill.h"
#include "op/walk.h"

enum { TOKENS, TABLE };
enum { DTYPE, FACTOR }; /* attributes */

/* The table may be quantised; the result is of the float dtype that is named. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect(cx, g, op, TOKENS, SHAPE_INDEX, 1, (int64_t[]){SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, TABLE, SHAPE_WEIGHT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    const ir_tensor *tokens = shape_input(g, op, TOKENS);
    CHECK(cx,
          ir_dtype_from_name(op->attributes[DTYPE].s, &out->dtype) && SHAPE_FLOAT >> out->dtype & 1,
          MPK_EUNSUPPORTED, "embedding: dtype \"%.*s\" is not one of f32, f16, bf16",
          STR_ARG(op->attributes[DTYPE].s));
    const double factor = op->attributes[FACTOR].f;
    CHECK(cx, factor > 0 && factor < 1e30, MPK_EARG,
          "embedding: factor is %g, expected more than 0", factor);
    out->live = tokens->live;
    out->rank = 2;
    out->dims[0] = tokens->dims[0];
    out->dims[1] = shape_input(g, op, TABLE)->dims[1];
    return MPK_OK;
}

/* A block is unpacked whole.  With whole tiles fewer than 64 columns are not worth a task of
 * their own. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    axes[0].grain = 1;
    axes[1].grain = ir_dtype_table[shape_input(g, op, TABLE)->dtype].block_elements;
    axes[1].tile = axes[1].grain > 64 ? axes[1].grain : 64;
}

/* The box's tokens, and its columns of every row. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = *box;
    if (input == TABLE) {
        read->lo[0] = 0;
        read->hi[0] = shape_input(g, op, TABLE)->dims[0];
    }
}

/* Cut columns: each peer holds its share of every row, whichever rows are asked for. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    out->in[TABLE] = out->out[0] = 1;
    return way == 0;
}

/* Scratch: the box's columns of a row. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op;
    return (size_t)(box->hi[1] - box->lo[1]) * sizeof(float);
}

/* Row by row through f32, so that any dtype of the table gives any dtype of x. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *tokens = &call->in[TOKENS], *table = &call->in[TABLE], *out = &call->out[0];
    float *row = scratch, factor = (float)call->attributes[FACTOR].f;
    int64_t n = box->hi[1] - box->lo[1];
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        int64_t id = walk_load_int(tokens, t * tokens->stride[0]);
        if (id >= 0 && id < table->dims[0])
            walk_load_row(table, id * table->stride[0], box->lo[1], n, row);
        else
            memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t i = 0; i < n && factor != 1; i++)
            row[i] *= factor;
        walk_store_row(out, t * out->stride[0], box->lo[1], n, row);
    }
}

/* Ids, some of which the table does not have. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == TOKENS)
        fill_indices(shape_input(g, op, TOKENS), shape_input(g, op, TABLE)->dims[0], seed, data);
}

static const op_operand in[] = {{"tokens", 0}, {"table", 0}}, out[] = {{"x", 0}};
static const op_attribute attributes[] = {SHAPE_WORD("dtype", "f32"), SHAPE_REAL("factor", 1)};

#define CASE(tokens, table, width)                                            \
    {                                                                         \
        "input %t : i32[" tokens "] live=tokens\nconst %w : " table "[" width \
        "]\n%x = embedding(%t, %w)\n"                                         \
    }
/* Every kind of table dtype, each with rows that are not whole vectors where its blocks allow
 * it; factors. */
static const op_case cases[] = {
    CASE("1", "f32", "1003, 320"),
    CASE("7", "f16", "1003, 320"),
    CASE("7", "bf16", "1003, 320"),
    CASE("7", "q4_0", "1003, 320"),
    CASE("3", "q4_1", "1003, 320"),
    CASE("3", "q5_0", "1003, 320"),
    CASE("3", "q5_1", "1003, 320"),
    CASE("3", "q8_0", "1003, 320"),
    CASE("3", "q2_k", "17, 768"),
    CASE("3", "q3_k", "17, 768"),
    CASE("3", "q4_k", "17, 768"),
    CASE("3", "q5_k", "17, 768"),
    CASE("3", "iq4_nl", "17, 320"),
    CASE("3", "iq2_s", "17, 768"),
    CASE("7", "q6_k", "17, 768"),
    {"input %t : i32[5] live=tokens\nconst %w : q8_0[11, 64]\n%x = embedding(%t, %w) {dtype = "
     "\"bf16\"}\n"},
    {"input %t : i64[9]\nconst %w : bf16[103, 320]\n%x = embedding(%t, %w) {dtype = \"bf16\"}\n"},
    {"input %t : i32[40] live=tokens\nconst %w : bf16[1003, 328]\n%x = embedding(%t, %w) {dtype = "
     "\"bf16\"}\n"},
    {"input %t : i32[3] live=tokens\nconst %w : q8_0[11, 64]\n%x = embedding(%t, %w) {factor = "
     "12.5}\n"},
    {"input %t : i32[9] live=tokens\nconst %w : bf16[103, 328]\n%x = embedding(%t, %w) {dtype = "
     "\"bf16\", factor = 50.5}\n"},
    {"input %t : i64[40]\nconst %w : f16[103, 64]\n%x = embedding(%t, %w) {dtype = \"f16\", factor "
     "= 0.3}\n"},
};

const op_def op_embedding = {
    .name = "embedding",
    .summary = "rows of a table by token id; zeros for an id that the table does not have",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_LOOKS_UP,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
