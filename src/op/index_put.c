/* index_put.c - write, or add, values at entries named by index tensors on the leading axes of
 * x.
 *
 * x [N0 .. Nk-1, rest], values (broadcast to [I .., rest]), k indices [I ..] -> y like x, with
 * y[indices] = values.  The indices are broadcast among themselves; a negative number counts
 * from the end; an index that names nothing is skipped.  Entries named twice: the later value
 * stays, or with accumulate all are added, in order.  in_place: y is x's storage.
 *
 *   x [10, 20, 30, 40], values [1, 2], index [0, -1] -> [1, 20, 30, 2]
 *
 * A task goes through all indices and writes those that fall into its box: no index has to be
 * sorted, and tasks write disjoint entries whatever the indices are.  Cost: a copy of x (none in
 * place), and for each task one pass over the indices.
 */
#include "op/index.h"
#include "op/update.h"

/* Inputs and attributes, by index. */
enum { X, VALUES, FIRST };
enum { ACCUMULATE, IN_PLACE };

/* `whole` is the shape of everything that the indices name; values must broadcast to it. For x [5,
 * 4, 3] and one index of shape [2] it is [2, 4, 3]. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *values = shape_input(g, op, VALUES);
    ir_tensor whole = {0};
    uint32_t k = op->n_in - FIRST;
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_PLAIN));
    TRY(shape_expect_dtype(cx, g, op, VALUES, 1u << x->dtype));
    for (uint32_t i = 0; i < op->n_in; i++)
        TRY(shape_expect_whole(cx, g, op, i));
    TRY(index_shape(cx, g, op, FIRST, &whole));
    CHECK(cx, whole.rank + x->rank - k <= IR_MAX_RANK, MPK_ESHAPE,
          "index_put: what is named has rank %u, at most %d", whole.rank + x->rank - k,
          IR_MAX_RANK);
    /* after the indices' own axes come those of x that no index names */
    for (uint32_t i = k; i < x->rank; i++)
        whole.dims[whole.rank++] = x->dims[i];
    CHECK(cx, values->rank <= whole.rank, MPK_ESHAPE,
          "index_put: values have rank %u, what is named %u", values->rank, whole.rank);
    for (uint32_t i = 0; i < values->rank; i++) {
        int64_t named = whole.dims[i + whole.rank - values->rank];
        CHECK(cx, values->dims[i] == 1 || values->dims[i] == named, MPK_ESHAPE,
              "index_put: axis %u of values has %lld entries, what is named %lld", i,
              (long long)values->dims[i], (long long)named);
    }
    update_infer(g, op, op->attributes[IN_PLACE].i, out);
    return MPK_OK;
}

/* Of the values: along the indices' axes all, since any may fall into the box; along the rest
 * the box's part. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, X), *t = shape_input(g, op, input);
    uint32_t rest = x->rank - (op->n_in - FIRST);
    if (input == X) {
        update_reads(op->attributes[IN_PLACE].i, op->attributes[ACCUMULATE].i, box, read);
        return;
    }
    *read = ir_box_whole(t);
    for (uint32_t i = 1; input == VALUES && i <= rest && i <= t->rank; i++)
        if (t->dims[t->rank - i] > 1) {
            read->lo[t->rank - i] = box->lo[x->rank - i];
            read->hi[t->rank - i] = box->hi[x->rank - i];
        }
}

/* The box of all positions of the broadcast indices; returns its rank. */
static uint32_t named_box(const op_call *call, ir_box *box)
{
    uint32_t rank = 0;
    *box = (ir_box){0};
    for (uint32_t k = FIRST; k < call->n_in; k++)
        rank = call->in[k].rank > rank ? call->in[k].rank : rank;
    for (uint32_t i = 0; i < rank; i++)
        box->hi[i] = 1;
    for (uint32_t k = FIRST; k < call->n_in; k++)
        for (uint32_t i = 0; i < call->in[k].rank; i++)
            if (call->in[k].dims[i] > 1)
                box->hi[i + rank - call->in[k].rank] = call->in[k].dims[i];
    return rank;
}

/* Write the part of the box that one position of the indices names: to[] holds the entries of
 * the leading axes, outside the box nothing is written. */
static void put_entry(const op_call *call, const ir_box *box, uint32_t rank,
                      const int64_t *position, int64_t *to)
{
    const op_view *values = &call->in[VALUES], *y = &call->out[0];
    uint32_t k = call->n_in - FIRST;
    int64_t from[IR_MAX_RANK];
    ir_box part = *box;
    for (uint32_t i = 0; i < k; i++) {
        if (to[i] < box->lo[i] || to[i] >= box->hi[i])
            return;
        part.lo[i] = to[i];
        part.hi[i] = to[i] + 1;
    }
    memcpy(to, part.lo, sizeof part.lo);
    memcpy(from, position, rank * sizeof *from);
    do {
        memcpy(from + rank, to + k, (y->rank - k) * sizeof *from);
        int64_t at = walk_broadcast(values, rank + y->rank - k, from);
        if (call->attributes[ACCUMULATE].i)
            update_add(y, walk_offset(y, to), values, at);
        else
            walk_copy(y, walk_offset(y, to), 1, values, at, 1, 1);
    } while (walk_next(&part, y->rank, to));
}

/* In the order of the indices, so that of two equal ones the later stays. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    ir_box named;
    uint32_t rank = named_box(call, &named);
    int64_t at[IR_MAX_RANK] = {0}, to[IR_MAX_RANK];
    update_begin(call, box, call->attributes[IN_PLACE].i);
    do
        if (index_load(call, FIRST, rank, at, to))
            put_entry(call, box, rank, at, to);
    while (walk_next(&named, rank, at));
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    index_fill(g, op, input, FIRST, seed, data);
}

static const op_operand in[] = {{"x", 0}, {"values", 0}, {"index", OP_VARIADIC}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("accumulate", 0), SHAPE_INT("in_place", 0)};
/* A copy; in place with two indices; accumulation with many repeats, of integers and in place. */
static const op_case cases[] = {
    {"input %x : f32[9, 33]\ninput %v : f32[4, 2, 33]\ninput %i : i64[4, 2]\n%y = index_put(%x, "
     "%v, %i)\n"},
    {"state %x : bf16[9, 5, 4]\ninput %v : bf16[3, 1]\ninput %i : i32[3]\ninput %k : i64[]\n%y = "
     "index_put(%x, %v, %i, "
     "%k) {in_place = 1}\n"},
    {"input %x : i32[4, 3]\ninput %v : i32[]\ninput %i : i32[20]\n%y = index_put(%x, %v, %i) "
     "{accumulate = 1}\n"},
    {"state %x : f32[4, 3]\ninput %v : f32[20]\ninput %i : i32[20]\ninput %k : i32[20]\n%y = "
     "index_put(%x, %v, %i, %k) "
     "{accumulate = 1, in_place = 1}\n"},
};

const op_def op_index_put = {
    .name = "index_put",
    .summary = "x with values written, or added, at entries named by index tensors",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
