/* shape.c - what the infer, axes and reads of many records share (see shape.h).
 *
 * The shape_expect functions are the checks of infer: each compares one property of one input
 * and, if it differs, fails with a message that names operator, input and tensor.  No state;
 * cost: a few comparisons.
 */
#include "op/shape.h"

#include <stdio.h>

/* NULL for an absent input.  Inputs beyond those given count as absent, so records may ask for
 * any optional one. */
const ir_tensor *shape_input(const ir_graph *g, const ir_op *op, uint32_t input)
{
    return input < op->n_in && op->in[input] != IR_NONE ? &g->tensors.at[op->in[input]] : NULL;
}

/* The operand's name, for messages. */
static const char *input_name(const ir_op *op, uint32_t input)
{
    return op_operand_of(op->def, input)->name;
}

/* Of a shape or a list of dtypes in a message; longer ones are cut. */
enum { SHAPE_TEXT_BYTES = 256 };

/* The dims as text for a message, such as "[4, ?, 64]"; returns out. */
static const char *dims_text(uint32_t rank, const int64_t *dims, char out[SHAPE_TEXT_BYTES])
{
    size_t n = 0;
    n += (size_t)snprintf(out, SHAPE_TEXT_BYTES, "[");
    for (uint32_t i = 0; i < rank; i++) {
        const char *comma = i ? ", " : "";
        if (dims[i] == SHAPE_FREE)
            n += (size_t)snprintf(out + n, SHAPE_TEXT_BYTES - n, "%s?", comma);
        else
            n += (size_t)snprintf(out + n, SHAPE_TEXT_BYTES - n, "%s%lld", comma,
                                  (long long)dims[i]);
    }
    snprintf(out + n, SHAPE_TEXT_BYTES - n, "]");
    return out;
}

/* dtypes: a bit for each allowed dtype.  An absent input passes, here and below: whether it may
 * be absent is checked by the record's flags. */
mpk_status shape_expect_dtype(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                              uint32_t dtypes)
{
    const ir_tensor *t = shape_input(g, op, input);
    if (!t || dtypes >> t->dtype & 1)
        return MPK_OK;
    char wanted[SHAPE_TEXT_BYTES] = "";
    size_t n = 0;
    for (int i = 0; i < IR_DTYPES; i++)
        if (dtypes >> i & 1)
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s%s", n ? ", " : "",
                                  ir_dtype_table[i].name);
    FAIL(cx, MPK_ESHAPE, "%s: input %s (%%%.*s) has dtype %s, expected one of %s", op->def->name,
         input_name(op, input), STR_ARG(t->name), ir_dtype_table[t->dtype].name, wanted);
}

/* dims: SHAPE_FREE where any size is allowed. */
mpk_status shape_expect(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                        uint32_t dtypes, uint32_t rank, const int64_t *dims)
{
    const ir_tensor *t = shape_input(g, op, input);
    if (!t)
        return MPK_OK;
    TRY(shape_expect_dtype(cx, g, op, input, dtypes));
    bool same = t->rank == rank;
    for (uint32_t i = 0; same && i < rank; i++)
        same = dims[i] == SHAPE_FREE || dims[i] == t->dims[i];
    char found[SHAPE_TEXT_BYTES], wanted[SHAPE_TEXT_BYTES];
    CHECK(cx, same, MPK_ESHAPE, "%s: input %s (%%%.*s) has shape %s, expected %s", op->def->name,
          input_name(op, input), STR_ARG(t->name), dims_text(t->rank, t->dims, found),
          dims_text(rank, dims, wanted));
    return MPK_OK;
}

/* Axes of attributes count from the first; the front end has resolved negative ones. */
mpk_status shape_expect_axis(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             int64_t axis)
{
    const ir_tensor *t = shape_input(g, op, input);
    CHECK(cx, axis >= 0 && axis < t->rank, MPK_ESHAPE,
          "%s: axis %lld of input %s (%%%.*s), which has rank %u", op->def->name, (long long)axis,
          input_name(op, input), STR_ARG(t->name), t->rank);
    return MPK_OK;
}

/* Operators that mix the entries of axis 0 would read entries that are not alive. */
mpk_status shape_expect_whole(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input)
{
    const ir_tensor *t = shape_input(g, op, input);
    CHECK(cx, !t || t->live == IR_ALL, MPK_ESHAPE,
          "%s: axis 0 of input %s (%%%.*s) may not be partly alive", op->def->name,
          input_name(op, input), STR_ARG(t->name));
    return MPK_OK;
}

/* The mask broadcasts to scores [B, H, T, S], its axes matched from the last. */
mpk_status shape_expect_mask(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             const int64_t *scores)
{
    const ir_tensor *mask = shape_input(g, op, input);
    TRY(shape_expect_dtype(cx, g, op, input, SHAPE_REAL_NUMBER | 1 << IR_BOOL));
    TRY(shape_expect_whole(cx, g, op, input));
    CHECK(cx, !mask || mask->rank <= 4, MPK_ESHAPE, "%s: mask has rank %u, at most 4 is possible",
          op->def->name, mask->rank);
    for (uint32_t i = 0; mask && i < mask->rank; i++)
        CHECK(cx, mask->dims[i] == 1 || mask->dims[i] == scores[i + 4 - mask->rank], MPK_ESHAPE,
              "%s: axis %u of mask has %lld entries, the scores have %lld", op->def->name, i,
              (long long)mask->dims[i], (long long)scores[i + 4 - mask->rank]);
    return MPK_OK;
}

/* What axis 0 counts, for messages; by ir_live. */
static const char *const live_names[IR_LIVES] = {"nothing that varies", "tokens", "rows"};

mpk_status shape_expect_live(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             ir_live live)
{
    const ir_tensor *t = shape_input(g, op, input);
    CHECK(cx, !t || t->live == live, MPK_ESHAPE,
          "%s: axis 0 of input %s (%%%.*s) counts %s, expected %s", op->def->name,
          input_name(op, input), STR_ARG(t->name), live_names[t->live], live_names[live]);
    return MPK_OK;
}

void shape_like(const ir_tensor *from, ir_tensor *out)
{
    out->dtype = from->dtype;
    out->live = from->live;
    out->rank = from->rank;
    memcpy(out->dims, from->dims, sizeof out->dims);
}

/* Take over what axis 0 of an input counts.  An input that counts something must have the
 * result's rank and axis 0, and all inputs that count something must count the same. */
static mpk_status merge_live(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             ir_tensor *out)
{
    const ir_tensor *t = shape_input(g, op, input);
    if (t->live == IR_ALL)
        return MPK_OK;
    CHECK(cx, t->rank == out->rank && t->dims[0] == out->dims[0], MPK_ESHAPE,
          "%s: input %s (%%%.*s) counts %s along axis 0 and cannot be broadcast there",
          op->def->name, input_name(op, input), STR_ARG(t->name), live_names[t->live]);
    CHECK(cx, out->live == IR_ALL || out->live == t->live, MPK_ESHAPE,
          "%s: axis 0 of input %s (%%%.*s) counts %s, that of an earlier input %s", op->def->name,
          input_name(op, input), STR_ARG(t->name), live_names[t->live], live_names[out->live]);
    out->live = t->live;
    return MPK_OK;
}

/* numpy's rule: axes are matched from the last, and those of one entry repeat.  [4, 1] and [3]
 * give [4, 3].  No input may be absent. */
mpk_status shape_broadcast(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    out->rank = 0;
    out->live = IR_ALL;
    for (uint32_t i = 0; i < op->n_in; i++)
        if (shape_input(g, op, i)->rank > out->rank)
            out->rank = shape_input(g, op, i)->rank;
    for (uint32_t axis = 0; axis < out->rank; axis++)
        out->dims[axis] = 1;
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_tensor *t = shape_input(g, op, i);
        for (uint32_t axis = 0; axis < t->rank; axis++) {
            int64_t *dim = &out->dims[axis + out->rank - t->rank];
            CHECK(cx, t->dims[axis] == 1 || *dim == 1 || *dim == t->dims[axis], MPK_ESHAPE,
                  "%s: axis %u of input %s (%%%.*s) has %lld entries, the other inputs %lld",
                  op->def->name, axis, input_name(op, i), STR_ARG(t->name),
                  (long long)t->dims[axis], (long long)*dim);
            /* one entry repeats; whatever the others have takes its place */
            if (*dim == 1)
                *dim = t->dims[axis];
        }
    }
    for (uint32_t i = 0; i < op->n_in; i++)
        TRY(merge_live(cx, g, op, i, out));
    return MPK_OK;
}

/* The part of an input that a box of the broadcast result reads: entry 0 along axes that repeat. */
void shape_broadcast_box(const ir_tensor *in, uint32_t out_rank, const ir_box *box, ir_box *read)
{
    *read = (ir_box){0};
    for (uint32_t i = 0; i < in->rank; i++) {
        uint32_t axis = i + out_rank - in->rank;
        bool one = in->dims[i] == 1;
        read->lo[i] = one ? 0 : box->lo[axis];
        read->hi[i] = one ? 1 : box->hi[axis];
    }
}

void shape_axes_all(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    for (uint32_t i = 0; i < g->tensors.at[op->out[0]].rank; i++)
        axes[i].grain = 1;
}

void shape_axes_rows(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    for (uint32_t i = 0; i + 1 < g->tensors.at[op->out[0]].rank; i++)
        axes[i].grain = 1;
}

void shape_axes_first(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0].grain = 1;
}

void shape_reads_broadcast(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                           ir_box *read)
{
    shape_broadcast_box(shape_input(g, op, input), g->tensors.at[op->out[0]].rank, box, read);
}

/* For operators that need whole rows of input 0, and all of every other input. */
void shape_reads_rows(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                      ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input);
    *read = ir_box_whole(t);
    for (uint32_t i = 0; input == 0 && i + 1 < t->rank; i++) {
        read->lo[i] = box->lo[i];
        read->hi[i] = box->hi[i];
    }
}

/* The same for every box, since rows are never cut. */
size_t shape_scratch_row(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *t = shape_input(g, op, 0);
    return t->rank ? (size_t)t->dims[t->rank - 1] * sizeof(float) : sizeof(float);
}
