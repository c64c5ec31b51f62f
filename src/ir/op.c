/* op.c - find an operator's record, bind an operator to memory, load and store elements (see
 * op.h).
 *
 * Called by every room that runs or cuts operators.  Loading and storing by element is for
 * reference code and odd dtypes; fast bodies have loops of their own.
 */
#include "ir/op.h"

#include "base/num.h"
#include "base/rng.h"
#include "ir/blocks.h"

/* There are about a hundred records and callers look up once for each operator that they build, so
 * a search by name will do. */
const op_def *op_find(str name)
{
    for (const op_def *const *def = op_table; *def; def++)
        if (str_is(name, (*def)->name))
            return *def;
    return NULL;
}

/* Elementwise operators can be split along any axis of the result, one way for each; inputs that
 * are broadcast along it stay whole.  Not along an axis of which only the first entries may be
 * alive: peers would have unequal shares. */
static bool split_elementwise(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    uint32_t axis = way + (y->live != IR_ALL);
    if (axis >= y->rank)
        return false;
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_tensor *x = op->in[i] == IR_NONE ? NULL : &g->tensors.at[op->in[i]];
        uint32_t missing = x ? y->rank - x->rank : 0;
        if (x && axis >= missing && x->dims[axis - missing] > 1)
            out->in[i] = (int)(axis - missing);
    }
    out->out[0] = (int)axis;
    return true;
}

/* Operators with a rule of their own have `split`; elementwise ones share a rule; all others cannot
 * be split.  Operands start as whole, which rules overwrite. */
bool op_find_split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    *out = (op_split){.sized = -1};
    for (uint32_t i = 0; i < IR_MAX_INPUTS; i++)
        out->in[i] = OP_WHOLE;
    for (uint32_t i = 0; i < IR_MAX_OUTPUTS; i++)
        out->out[i] = OP_WHOLE;
    if (op->def->split)
        return op->def->split(g, op, way, out);
    return op->def->flags & OP_ELEMENTWISE && split_elementwise(g, op, way, out);
}

/* An absent operand is a view of zeros, whose data is NULL. */
static void bind_view(const ir_graph *g, ir_tensor_id tensor, void *const *data, op_view *view)
{
    *view = (op_view){0};
    if (tensor == IR_NONE)
        return;
    const ir_tensor *t = &g->tensors.at[tensor];
    view->data = data[tensor];
    view->dtype = t->dtype;
    view->live = t->live;
    view->rank = t->rank;
    memcpy(view->dims, t->dims, sizeof view->dims);
    memcpy(view->stride, t->stride, sizeof view->stride);
}

/* Copy what reference code needs of the graph, so that it never sees the graph itself. */
void op_bind(const ir_graph *g, const ir_op *op, void *const *data, const uint32_t *live,
             op_call *call)
{
    call->op = op;
    call->attributes = op->attributes;
    call->n_in = op->n_in;
    call->n_out = op->n_out;
    call->live = live;
    for (uint32_t i = 0; i < op->n_in; i++)
        bind_view(g, op->in[i], data, &call->in[i]);
    for (uint32_t i = 0; i < op->n_out; i++)
        bind_view(g, op->out[i], data, &call->out[i]);
}

int64_t op_live_entries(const op_call *call, const op_view *v)
{
    if (v->rank == 0)
        return 1;
    int64_t live = v->live == IR_ALL ? v->dims[0] : (int64_t)call->live[v->live];
    return live < v->dims[0] ? live : v->dims[0];
}

/* Counted by the boxes of the inputs, whatever their strides; an input that is read twice counts
 * twice. */
int64_t op_bytes_read(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const int64_t made = ir_box_elements(box, g->tensors.at[op->out[0]].rank);
    int64_t bytes = 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (op->in[i] == IR_NONE)
            continue;
        const ir_tensor *t = &g->tensors.at[op->in[i]];
        ir_box read = {0};
        op->def->reads(g, op, i, box, &read);
        int64_t elements = ir_box_elements(&read, t->rank);
        if (op->def->flags & OP_LOOKS_UP && elements > made)
            elements = made;
        bytes += ir_row_bytes(t->dtype, elements);
    }
    return bytes;
}

/* Booleans do not count: tests fill them with either value. */
static bool dtype_is_integer(ir_dtype dtype)
{
    return dtype == IR_I32 || dtype == IR_I64 || dtype == IR_U8 || dtype == IR_I8 ||
           dtype == IR_I16;
}

/* Random data: normal floats, zero integers (a valid index everywhere), random bools. */
static void fill_plain(ir_dtype dtype, int64_t n, uint64_t seed, void *data)
{
    op_view view = {.data = data, .dtype = dtype};
    for (int64_t i = 0; i < n; i++) {
        float x = rng_normal(seed, (uint64_t)i);
        if (dtype_is_integer(dtype))
            x = 0;
        else if (dtype == IR_BOOL)
            x = x > 0;
        op_store(&view, i, x);
    }
}

/* Test data.  A record's `fill` runs after the plain one, and corrects what must not be
 * arbitrary, such as indices. */
void op_fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = &g->tensors.at[op->in[input]];
    if (op->def->fill && (dtype_is_integer(t->dtype) || t->dtype == IR_F32)) {
        fill_plain(t->dtype, ir_elements(t), seed, data);
        op->def->fill(g, op, input, seed, data);
    } else if (!blocks_fill_random(t->dtype, ir_elements(t), seed, data)) {
        fill_plain(t->dtype, ir_elements(t), seed, data);
    }
}

/* Load any plain dtype as f32.  Integers of more than 24 bits are rounded: code that needs them
 * exactly reads them itself. */
float op_load(const op_view *v, int64_t offset)
{
    switch (v->dtype) {
    case IR_F32:
        return ((const float *)v->data)[offset];
    case IR_F16:
        return num_from_f16(((const f16 *)v->data)[offset]);
    case IR_BF16:
        return num_from_bf16(((const bf16 *)v->data)[offset]);
    case IR_F64:
        return (float)((const double *)v->data)[offset];
    case IR_I32:
        return (float)((const int32_t *)v->data)[offset];
    case IR_I64:
        return (float)((const int64_t *)v->data)[offset];
    case IR_BOOL:
        return ((const uint8_t *)v->data)[offset] ? 1.0f : 0.0f;
    case IR_U8:
        return (float)((const uint8_t *)v->data)[offset];
    case IR_I8:
        return (float)((const int8_t *)v->data)[offset];
    case IR_I16:
        return (float)((const int16_t *)v->data)[offset];
    default:
        return 0; /* a block dtype has no single elements; records refuse it where they load one */
    }
}

/* Round towards zero and clamp to lo .. hi; NaN becomes 0.  2^63 itself is not an int64_t, hence
 * the first comparison. */
static int64_t to_integer(float x, int64_t lo, int64_t hi)
{
    if (!(x == x))
        return 0;
    if (x >= 0x1p63f)
        return hi;
    int64_t integer = x < -0x1p63f ? lo : (int64_t)x;
    return op_clamp(integer, lo, hi);
}

/* Floats are rounded to nearest even; integers take the nearest value inside their range
 * (to_integer). */
void op_store(const op_view *v, int64_t offset, float value)
{
    switch (v->dtype) {
    case IR_F32:
        ((float *)v->data)[offset] = value;
        break;
    case IR_F16:
        ((f16 *)v->data)[offset] = num_to_f16(value);
        break;
    case IR_BF16:
        ((bf16 *)v->data)[offset] = num_to_bf16(value);
        break;
    case IR_F64:
        ((double *)v->data)[offset] = (double)value;
        break;
    case IR_I32:
        ((int32_t *)v->data)[offset] = (int32_t)to_integer(value, INT32_MIN, INT32_MAX);
        break;
    case IR_I64:
        ((int64_t *)v->data)[offset] = to_integer(value, INT64_MIN, INT64_MAX);
        break;
    case IR_U8:
        ((uint8_t *)v->data)[offset] = (uint8_t)to_integer(value, 0, UINT8_MAX);
        break;
    case IR_I8:
        ((int8_t *)v->data)[offset] = (int8_t)to_integer(value, INT8_MIN, INT8_MAX);
        break;
    case IR_I16:
        ((int16_t *)v->data)[offset] = (int16_t)to_integer(value, INT16_MIN, INT16_MAX);
        break;
    case IR_BOOL:
        ((uint8_t *)v->data)[offset] = value != 0;
        break;
    default:
        break;
    }
}

/* The three dtypes of activations have a loop of their own, which compilers vectorise; blocks
 * are unpacked whole; other dtypes go one by one. */
void op_load_row(const op_view *v, int64_t offset, int64_t first, int64_t n, float *to)
{
    int64_t at = offset + first;
    if (v->dtype == IR_F32) {
        memcpy(to, (const float *)v->data + at, (size_t)n * sizeof *to);
        return;
    }
    const uint8_t *bytes = (const uint8_t *)v->data + ir_row_bytes(v->dtype, at);
    if (v->dtype == IR_BF16) {
        for (int64_t i = 0; i < n; i++)
            to[i] = num_from_bf16(((const bf16 *)bytes)[i]);
    } else if (v->dtype == IR_F16) {
        for (int64_t i = 0; i < n; i++)
            to[i] = num_from_f16(((const f16 *)bytes)[i]);
    } else if (!blocks_unpack_row(v->dtype, bytes, n, to)) {
        for (int64_t i = 0; i < n; i++)
            to[i] = op_load(v, at + i);
    }
}
