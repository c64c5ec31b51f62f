/* body_print.c - the text of an instance of a generic body (see body_print.h), and what the records
 * of bodies ask of operands.
 *
 * Called by all src/gen/body_*.c.  Operators with equal text share an instance, so what need not
 * differ must not be printed: that is why a head may leave out how many rows there are.  An
 * instance of a cast from fp32 to bf16, as it is printed:
 *
 *   static __device__ __noinline__ void body_3(const mpk_task &t)
 *   {
 *       constexpr mpk_view in_x = {0, MPK_F32, RT_TOKENS, 2, {8, 512}, {512, 1}};
 *       constexpr mpk_view out_y = {1, MPK_BF16, RT_TOKENS, 2, {8, 512}, {512, 1}};
 *       cast_run(t, in_x, out_y);
 *   } */
#include "gen/body_print.h"

#include <math.h>

#include "gen/packed_form.h"
#include "rt/rt_lane.h"

/* Absent tensors are dense.  Strides of axes of one entry mean nothing and are not compared. */
bool gen_is_dense(const ir_tensor *t, ir_dtype dtype)
{
    int64_t stride = 1;
    if (t && t->offset * ir_dtype_table[dtype].block_bytes % 16)
        return false;
    for (uint32_t i = t ? t->rank : 0; i-- > 0; stride *= t->dims[i])
        if (t->dtype != dtype || (t->dims[i] > 1 && t->stride[i] != stride))
            return false;
    return true;
}

bool gen_is_short_float(const ir_tensor *t)
{
    return t->dtype == IR_F32 || t->dtype == IR_F16 || t->dtype == IR_BF16;
}

/* A result with a row for each pair has three axes. */
void gen_own_words(const gen_body *body, const ir_tensor *t, ir_box *box)
{
    if (!body || !body->shares || t->rank != 3 || (t->dtype != IR_BF16 && t->dtype != IR_F16))
        return;
    box->lo[2] -= box->lo[2] % 2;
    box->hi[2] -= box->hi[2] % 2;
}

/* Can bodies read the vector by index: fp32 or the given type of 16 bits, entries side by side? */
bool gen_is_vector(const ir_tensor *t, ir_dtype halves)
{
    return !t || ((t->dtype == halves || t->dtype == IR_F32) && t->stride[0] == 1);
}

/* Only constants are packed, since packing happens once, when weights are loaded. */
bool gen_is_streamed(const ir_tensor *t, ir_dtype halves)
{
    return !t || (t->kind == IR_CONST && gen_is_dense(t, halves));
}

/* The names are those that infer accepts, so whatever is left is gelu_tanh. */
const char *gen_glu_name(str glu)
{
    if (str_is(glu, "silu"))
        return "SILU";
    if (str_is(glu, "gelu"))
        return "GELU";
    if (str_is(glu, "relu"))
        return "RELU";
    if (str_is(glu, "quick_gelu"))
        return "QUICK_GELU";
    if (str_is(glu, "swiglu_oai"))
        return "SWIGLU_OAI";
    return glu.n ? "GELU_TANH" : "NONE";
}

/* n, rounded up to a whole number of units. */
static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Columns are padded to the unit of a stream's pages, so that every page but the last is full; in
 * blocks to whole slabs, or whole pieces of one. */
void gen_pad_pack(gen_pack *p, int64_t row_unit, int64_t column_unit)
{
    p->padded_rows = round_up(p->rows, row_unit);
    p->padded_columns = round_up(p->columns, column_unit);
    if (p->form) {
        p->n_bytes = (uint64_t)(p->padded_rows / 8 * (p->padded_columns / RT_PIECE_COLUMNS)) *
                     RT_PIECE_BYTES(p->form);
        return;
    }
    p->n_bytes = (uint64_t)p->padded_rows * (uint64_t)p->padded_columns * 2;
    if (p->centred)
        p->n_bytes += (uint64_t)p->padded_rows * sizeof(float);
}

uint32_t gen_form_of_weights(const gen_call *c, uint32_t first, uint32_t most, int *zero)
{
    ir_dtype dtypes[IR_MAX_INPUTS];
    uint32_t n = 0;
    for (; n < most && gen_input(c, first + n); n++)
        dtypes[n] = gen_input(c, first + n)->dtype;
    return gen_packed_form(dtypes, n, zero);
}

/* A page holds STREAM_PAGE_UNITS units of columns of a group of rows; `last` is how many the last
 * page of a row has, 1 to STREAM_PAGE_UNITS.  Groups side by side are as one with the columns of
 * all of them.  In blocks a page is a slab, in which a warp's columns are always those of a whole
 * one. */
void gen_shape_columns(const gen_pack *p, stream_shape *out, int sides)
{
    const int64_t units = p->padded_columns * sides / STREAM_UNIT_COLUMNS;
    out->columns = (int)p->columns;
    out->columns_inverse = 1 / (float)p->columns;
    out->pages = (int)((units + STREAM_PAGE_UNITS - 1) / STREAM_PAGE_UNITS);
    out->last = (int)(units - STREAM_PAGE_UNITS * (out->pages - 1));
    if (p->form) {
        out->pages = (int)(round_up(p->columns, RT_SLAB_COLUMNS) / RT_SLAB_COLUMNS);
        out->last = STREAM_PAGE_UNITS;
    }
}

/* As gen_glu_name, but for gates alone.  The records that call it refuse an activation after the
 * product, which may be relu. */
int gen_shape_glu(str glu)
{
    if (str_is(glu, "silu"))
        return GLU_SILU;
    if (str_is(glu, "gelu"))
        return GLU_GELU;
    if (str_is(glu, "swiglu_oai"))
        return GLU_SWIGLU_OAI;
    return glu.n ? GLU_GELU_TANH : GLU_NONE;
}

/* Fields stand in the order of the struct, with their names as comments: CUDA C++ as NVRTC takes it
 * has no designators. */
void gen_print_field(const char *name, const int *values, uint32_t n, text *out)
{
    text_print(out, "/* %s */ %s", name, n > 1 ? "{" : "");
    for (uint32_t i = 0; i < n; i++)
        text_print(out, "%s%d", i ? ", " : "", values[i]);
    text_print(out, "%s, ", n > 1 ? "}" : "");
}

void gen_print_float_field(const char *name, float value, text *out)
{
    text_print(out, "/* %s */ ", name);
    gen_print_float(value, out);
    text_print(out, ", ");
}

/* The fields come from the list that makes the struct on the device, so the two cannot drift
 * apart. */
void gen_print_stream_shape(const stream_shape *s, text *out)
{
#define PRINT_INT(name) gen_print_field(#name, &s->name, 1, out);
#define PRINT_FLOAT(name) gen_print_float_field(#name, s->name, out);
#define PRINT_INTS(name, n) gen_print_field(#name, s->name, n, out);
    text_print(out, "{");
    STREAM_SHAPE_FIELDS(PRINT_INT, PRINT_FLOAT, PRINT_INTS)
    text_print(out, "}");
#undef PRINT_INT
#undef PRINT_FLOAT
#undef PRINT_INTS
}

/* NULL if the operand is absent, whether it was left out at the end or in the middle. */
const ir_tensor *gen_input(const gen_call *c, uint32_t i)
{
    return i < c->op->n_in && c->op->in[i] != IR_NONE ? &c->ir->tensors.at[c->op->in[i]] : NULL;
}

const ir_tensor *gen_output(const gen_call *c, uint32_t i)
{
    return &c->ir->tensors.at[c->op->out[i]];
}

/* Has each entry an element of its own, which dtypes of blocks lack?  Absent tensors are plain. */
static bool is_plain(const ir_tensor *t)
{
    return !t || ir_dtype_table[t->dtype].block_elements == 1;
}

/* A task's descriptor has RT_PACKED operands; an operator with more cannot run on a GPU at all. */
bool gen_accepts_plain(const gen_call *c)
{
    bool plain = c->op->n_in + c->op->n_out <= RT_PACKED;
    for (uint32_t i = 0; i < c->op->n_in; i++)
        plain = plain && is_plain(gen_input(c, i));
    for (uint32_t i = 0; i < c->op->n_out; i++)
        plain = plain && is_plain(gen_output(c, i));
    return plain;
}

/* In a page [G, P, K] the rows of a head must be neighbours; pages and heads may lie anywhere. */
bool gen_accepts_caches(const gen_call *c, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        const ir_tensor *t = gen_input(c, i);
        if (t && (t->stride[3] != 1 || t->stride[2] != t->dims[3]))
            return false;
    }
    return gen_accepts_plain(c);
}

/* The scratch of a body that only reduces over the threads of its block. */
uint32_t gen_scratch_reduce(const gen_call *c)
{
    (void)c;
    return GEN_REDUCE_BYTES;
}

static const char *const live_names[IR_LIVES] = {"RT_ALL", "RT_TOKENS", "RT_ROWS"};
static const char *const dtype_names[IR_DTYPES] = {
    [IR_F32] = "MPK_F32", [IR_F16] = "MPK_F16", [IR_BF16] = "MPK_BF16", [IR_F64] = "MPK_F64",
    [IR_I32] = "MPK_I32", [IR_I64] = "MPK_I64", [IR_BOOL] = "MPK_BOOL", [IR_U8] = "MPK_U8",
    [IR_I8] = "MPK_I8",   [IR_I16] = "MPK_I16"};

/* NULL for dtypes of blocks: no body reads them, so the table has no row for them. */
const char *gen_dtype_name(ir_dtype dtype)
{
    return dtype_names[dtype];
}

/* "in_x" or, of the operands that a variadic one stands for, "in_x0", "in_x1" */
static void print_name(const op_operand *operands, uint32_t n, uint32_t i, const char *kind,
                       text *out)
{
    const op_operand *o = &operands[i < n ? i : n - 1];
    if (o->presence == OP_VARIADIC)
        text_print(out, "%s_%s%u", kind, o->name, i + 1 - n);
    else
        text_print(out, "%s_%s", kind, o->name);
}

/* Print dims or strides: "{2, 3}". */
static void print_numbers(uint32_t n, const int64_t *numbers, text *out)
{
    text_print(out, "{");
    for (uint32_t i = 0; i < n; i++)
        text_print(out, "%s%lld", i ? ", " : "", (long long)numbers[i]);
    text_print(out, "}");
}

/* Lists may be shorter than the axes they are for: what is missing has the operator's default. */
void gen_print_list(const gen_call *c, uint32_t attribute, uint32_t n, int64_t otherwise, text *out)
{
    const ir_attribute *a = &c->op->attributes[attribute];
    for (uint32_t i = 0; i < n; i++) {
        const int64_t number = i < a->ints.n ? a->ints.at[i] : otherwise;
        text_print(out, "%s%lld", i ? ", " : "", (long long)number);
    }
}

/* By how many rows a loop over n of them is unrolled: the next power of two, at most 8. */
int gen_rows_at_once(int64_t n)
{
    int rows = 1;
    while (rows < n && rows < 8)
        rows *= 2;
    return rows;
}

enum { MOST_ROWS = 1 << 20 }; /* more than any step has */

/* Which operands are printed as if they had MOST_ROWS rows: none, those of which a step has only
 * some rows, or all. */
enum { ROWS_AS_THEY_ARE, ANY_LIVE_ROWS, ANY_ROWS };

/* How far apart rows would lie that follow each other: what the axes after the first span. */
static int64_t span_of_row(const ir_tensor *t)
{
    int64_t span = 1;
    for (uint32_t i = 1; i < t->rank; i++)
        if (t->dims[i] * t->stride[i] > span)
            span = t->dims[i] * t->stride[i];
    return span;
}

/* The mpk_view of an operand: its number in the task, dtype, which rows count, dims and strides;
 * an absent one has the number -1.  A view of one row may have any distance between rows.  Where it
 * is printed with more, a body would take that for the rows' own, and find them not aligned: so it
 * is what they span, as of other steps. */
static void print_view(const ir_tensor *t, uint32_t operand, int any_rows, text *out)
{
    int64_t dims[IR_MAX_RANK], stride[IR_MAX_RANK];
    if (!t) {
        text_print(out, " = {-1};\n");
        return;
    }
    memcpy(dims, t->dims, sizeof dims);
    memcpy(stride, t->stride, sizeof stride);
    if (any_rows == ANY_ROWS || (any_rows == ANY_LIVE_ROWS && t->live != IR_ALL)) {
        stride[0] = dims[0] == 1 ? span_of_row(t) : stride[0];
        dims[0] = MOST_ROWS;
    }
    text_print(out, " = {%u, %s, %s, %u, ", operand, dtype_names[t->dtype], live_names[t->live],
               t->rank);
    print_numbers(t->rank, dims, out);
    text_print(out, ", ");
    print_numbers(t->rank, stride, out);
    text_print(out, "};\n");
}

/* Print the views of all operands.  They are constexpr, so the compiler folds strides and dtypes
 * and drops the code for absent operands. */
static void print_views(const gen_call *c, int any_rows, text *out)
{
    const op_def *def = c->op->def;
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        text_print(out, "    constexpr mpk_view ");
        print_name(def->in, def->n_in, i, "in", out);
        print_view(gen_input(c, i), gen_operand_of_input(c->op, i), any_rows, out);
    }
    for (uint32_t i = 0; i < c->op->n_out; i++) {
        text_print(out, "    constexpr mpk_view ");
        print_name(def->out, def->n_out, i, "out", out);
        print_view(gen_output(c, i), gen_operand_of_output(c->op, i), any_rows, out);
    }
}

/* The first lines of an instance; the caller prints its statements and the closing brace. */
static void print_head(const gen_call *c, uint32_t n, int any_rows, text *out)
{
    text_print(out, "static __device__ __noinline__ void body_%u(const mpk_task &t)\n{\n", n);
    print_views(c, any_rows, out);
}

void gen_print_head(const gen_call *c, uint32_t n, text *out)
{
    print_head(c, n, ROWS_AS_THEY_ARE, out);
}

/* The head of a body that waits for its event itself (device_body.h).  It cuts t to the entries
 * that are alive, which the dispatcher does for all other bodies. */
static void print_head_of_waiting(const gen_call *c, const char *linkage, uint32_t n, text *out)
{
    text_print(out,
               "%s void body_%u(const mpk_task &task)\n{\n"
               "    mpk_task t = task;\n    t.hi0 = mpk_end(task);\n",
               linkage, n);
    print_views(c, ROWS_AS_THEY_ARE, out);
}

void gen_print_head_of_waiting(const gen_call *c, uint32_t n, text *out)
{
    print_head_of_waiting(c, "static __device__ __noinline__", n, out);
}

/* The head of a body that waits and multiplies by warpgroups: such a body must be inlined into the
 * kernel (gpu.md). */
void gen_print_head_of_groups(const gen_call *c, uint32_t n, text *out)
{
    print_head_of_waiting(c, "MPK_FN", n, out);
}

/* The head of a body that asks the task how many rows count, so steps of all sizes share it. */
void gen_print_head_of_rows(const gen_call *c, uint32_t n, text *out)
{
    print_head(c, n, ANY_LIVE_ROWS, out);
}

/* As above, also for operands with a row for each slot rather than for each token. */
void gen_print_head_of_slots(const gen_call *c, uint32_t n, text *out)
{
    print_head(c, n, ANY_ROWS, out);
}

/* Has each operand a row for each row of the result, or the same for all?  Where there is one row,
 * its stride means nothing, and would be taken for that of many. */
static bool has_rows_of_result(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    bool has = y->live != IR_ALL && y->rank >= 2 && y->dims[0] > 1;
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        const ir_tensor *t = gen_input(c, i);
        if (t && t->live != IR_ALL)
            has = has && t->rank == y->rank && t->dims[0] == y->dims[0];
        else if (t)
            has = has && (t->rank < y->rank || t->dims[0] == 1);
    }
    return has;
}

void gen_print_head_of_elements(const gen_call *c, uint32_t n, text *out)
{
    print_head(c, n, has_rows_of_result(c) ? ANY_LIVE_ROWS : ROWS_AS_THEY_ARE, out);
}

/* Print a call up to its last operand; the caller adds attributes and the closing parenthesis. */
void gen_print_call(const gen_call *c, const char *function, text *out)
{
    const op_def *def = c->op->def;
    text_print(out, "    %s(t", function);
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        text_print(out, ", ");
        print_name(def->in, def->n_in, i, "in", out);
    }
    for (uint32_t i = 0; i < c->op->n_out; i++) {
        text_print(out, ", ");
        print_name(def->out, def->n_out, i, "out", out);
    }
}

/* kind: 'i' a whole number, 'b' a flag, 'd' a real one. */
static void print_attribute(const ir_attribute *a, char kind, text *out)
{
    if (kind == 'i')
        text_print(out, ", %lld", (long long)a->i);
    else if (kind == 'b')
        text_print(out, ", %s", str_bool(a->i));
    else {
        text_print(out, ", ");
        gen_print_double(a->f, out);
    }
}

/* Attributes are named by digit, so only the first ten of an operator can be printed so. */
void gen_print_simple(const gen_call *c, uint32_t n, const char *function, const char *what,
                      text *out)
{
    gen_print_head(c, n, out);
    gen_print_call(c, function, out);
    for (; *what; what += 2)
        print_attribute(&c->op->attributes[what[1] - '0'], what[0], out);
    text_print(out, ");\n}\n");
}

/* 17 digits give a double back, 9 a float; C wants a point or an exponent. */
static void print_real(double x, int digits, text *out)
{
    size_t from = out->n;
    text_print(out, "%.*g", digits, x);
    if (!out->failed && !strpbrk(out->at + from, ".e"))
        text_print(out, ".0");
}

/* The constant for a number that no literal spells: an infinity or NaN. */
static const char *constant_of(double x)
{
    if (isnan(x))
        return "MPK_NAN";
    return x > 0 ? "MPK_INFINITY" : "-MPK_INFINITY";
}

void gen_print_double(double x, text *out)
{
    if (isfinite(x))
        print_real(x, 17, out);
    else
        text_print(out, "(double)%s", constant_of(x));
}

void gen_print_float(float x, text *out)
{
    if (!isfinite(x)) {
        text_print(out, "%s", constant_of((double)x));
        return;
    }
    print_real((double)x, 9, out);
    text_print(out, "f");
}

/* The body of the operator that makes x is chosen again, since a record does not hold what other
 * operators have become. */
bool gen_follows_many(const gen_call *c)
{
    const ir_tensor_id x = c->op->in[0];
    const ir_op_id by = x == IR_NONE ? IR_NONE : c->ir->tensors.at[x].producer;
    if (by == IR_NONE || !c->ir->ops.at[by].n_in)
        return false;
    gen_call maker = *c;
    maker.op = &c->ir->ops.at[by];
    maker.box = NULL;
    const gen_body *body = gen_body_choose(&maker, UINT32_MAX);
    return body && body->many;
}

/* Equal caches have one number, so instances of different layers have the same text. */
mpk_status gen_number_cache(mpk_context *cx, const gen_call *c, uint32_t pages, uint32_t keys,
                            uint32_t *out)
{
    const int64_t *of_slots = gen_input(c, pages)->dims;
    const gen_cache cache = {(int32_t)of_slots[0], (int32_t)of_slots[1],
                             (int32_t)gen_input(c, keys)->dims[0]};
    uint32_t i = 0;
    while (i < c->caches->n && memcmp(&c->caches->at[i], &cache, sizeof cache) != 0)
        i++;
    if (i == c->caches->n)
        PUSH(cx, c->arena, c->caches, cache);
    *out = i;
    return MPK_OK;
}
