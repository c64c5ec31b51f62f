/* attention_fold.c - put the parts of attention_split together: part [T, S, H K], lse f32[T, S,
 * H], sinks [H] -> y [T, H K].
 *
 * y = sum of exp(lse_s - M) part_s / sum of exp(lse_s - M) with M the largest lse_s, splits in
 * rising order, fp32, rounded once.  Splits whose lse is -inf are skipped and their rows of part
 * not read; zeros if all are.  The sink of a head, as in attention, is a lse whose part is zero,
 * taken in first.
 *
 *   splits that saw 3 and 1 positions of equal score c: lse = c + log 3 and c, weights 3/4, 1/4
 *
 * Cost: one pass over the parts.
 */
#include "op/fill.h"
#include "op/fold.h"

enum { PART, LSE, SINKS };

/* The axis of splits goes; the rest is part's. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect(cx, g, op, PART, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(fold_expect(cx, g, op, PART, LSE));
    TRY(shape_expect(cx, g, op, SINKS, SHAPE_FLOAT, 1, &shape_input(g, op, LSE)->dims[2]));
    const ir_tensor *part = shape_input(g, op, PART);
    out->dtype = part->dtype;
    out->live = part->live;
    out->rank = 2;
    out->dims[0] = part->dims[0];
    out->dims[1] = part->dims[2];
    return MPK_OK;
}

/* The size of a head, K, from the widths of both inputs. */
static int64_t head_size(const ir_graph *g, const ir_op *op)
{
    return shape_input(g, op, PART)->dims[2] / shape_input(g, op, LSE)->dims[2];
}

/* Whole heads, since the weights of the splits are those of a head. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    axes[0].grain = 1;
    axes[1].grain = head_size(g, op);
}

/* All splits of the box's tokens and heads; lse has one column where part has a head, sinks one
 * entry. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    int64_t size = input == PART ? 1 : head_size(g, op);
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == SINKS) {
        read->lo[0] = box->lo[1] / size;
        read->hi[0] = (box->hi[1] + size - 1) / size;
        return;
    }
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
    read->lo[2] = box->lo[1] / size;
    read->hi[2] = (box->hi[1] + size - 1) / size;
}

/* Scratch: a row of y, and a head of a part. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    return (size_t)(box->hi[1] - box->lo[1] + head_size(g, op)) * sizeof(float);
}

/* Token by token: the splits of a token are read one after the other. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *out = &call->out[0];
    int64_t n = box->hi[1] - box->lo[1];
    float *y = scratch;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        fold_columns(&call->in[PART], &call->in[LSE], &call->in[SINKS], t, box->lo[1], box->hi[1],
                     y + n, y);
        walk_store_row(out, t * out->stride[0], box->lo[1], n, y);
    }
}

/* One split in four has seen nothing. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    for (int64_t i = 0; input == LSE && i < ir_elements(t); i++)
        ((float *)data)[i] =
            rng_u64(seed, (uint64_t)i) % 4 ? 3 * rng_normal(seed ^ 1, (uint64_t)i) : -INFINITY;
}

static const op_operand in[] = {{"part", 0}, {"lse", 0}, {"sinks", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
/* One split; odd widths; many splits, as many as workers of a GPU. */
static const op_case cases[] = {
    {"input %p : f32[1, 1, 64] live=tokens\ninput %l : f32[1, 1, 2] live=tokens\n%y = "
     "attention_fold(%p, %l)\n"},
    {"input %p : bf16[7, 5, 96] live=tokens\ninput %l : f32[7, 5, 6] live=tokens\n%y = "
     "attention_fold(%p, %l)\n"},
    {"input %p : bf16[3, 33, 512] live=tokens\ninput %l : f32[3, 33, 4] live=tokens\n%y = "
     "attention_fold(%p, %l)\n"},
    {"input %p : bf16[2, 132, 128] live=tokens\ninput %l : f32[2, 132, 1] live=tokens\n%y = "
     "attention_fold(%p, %l)\n"},
    {"input %p : f32[3, 16, 80] live=tokens\ninput %l : f32[3, 16, 1] live=tokens\n%y = "
     "attention_fold(%p, %l)\n"},
    {"input %p : f32[3, 16, 80] live=tokens\ninput %l : f32[3, 16, 2] live=tokens\nconst %s : "
     "f32[2]\n%y = attention_fold(%p, %l, %s)\n"},
    {"input %p : bf16[5, 40, 512] live=tokens\ninput %l : f32[5, 40, 8] live=tokens\nconst %s : "
     "bf16[8]\n%y = attention_fold(%p, %l, %s)\n"},
    {"input %p : bf16[20, 3, 256] live=tokens\ninput %l : f32[20, 3, 2] live=tokens\nconst %s : "
     "f32[2]\n%y = attention_fold(%p, %l, %s)\n"},
};

const op_def op_attention_fold = {
    .name = "attention_fold",
    .summary = "put the parts of an attention that was cut over its context together",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
