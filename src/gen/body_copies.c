/* body_copies.c - generic bodies of operators that move elements and compute nothing
 * (device/task/copies.cuh).
 *
 * They take any plain dtype and any strides.  transfer, which brings a tensor of another peer, is a
 * copy: that peer's memory has addresses here.  A copy that turns rows into columns goes by tiles,
 * by a record of rank 5:
 *
 *   copy_turned<1, 3>(t, in_x, out_y);      x's neighbours lie along axis 1, y's along axis 3 */
#include "gen/body_print.h"
#include "shape/copies_turned_shape.h"

GEN_PRINTER(copy, "copy_run", "")
GEN_PRINTER(transfer, "copy_run", "")
GEN_PRINTER(reshape, "reshape_run", "")
GEN_PRINTER(gather, "gather_run", "")

static mpk_status print_embedding(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { FACTOR = 1 };
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    embedding_run(t, in_tokens, in_table, out_x, ");
    gen_print_float((float)c->op->attributes[FACTOR].f, out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* Are runs of neighbours that come from one input shorter than 16 bytes, as where columns become
 * rows?  Then there are many inputs to few entries. */
static bool is_of_slivers(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    const int64_t axis = c->op->attributes[0].i;
    int64_t after = 1, most = 0;
    for (uint32_t k = (uint32_t)axis + 1; k < y->rank; k++)
        after *= y->dims[k];
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        const int64_t n = gen_input(c, i)->dims[axis];
        most = n > most ? n : most;
    }
    return c->op->n_in > 1 && after * most * (int64_t)ir_dtype_table[y->dtype].block_bytes < 16;
}

/* By entries of the output: a lambda finds the input of each, so that all loads of a task are under
 * way together, and not those of one input after those of another. */
static void print_slivers(const gen_call *c, text *out)
{
    const int64_t axis = c->op->attributes[0].i;
    int64_t end = 0;
    text_print(out, "    const auto find = [&](rt_i64 *at, const char **g) -> rt_i64 {\n");
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        const int64_t first = end;
        end += gen_input(c, i)->dims[axis];
        text_print(out, "        if (at[%lld] < %lld) {\n", (long long)axis, (long long)end);
        text_print(out,
                   "            at[%lld] -= %lld;\n            *g = mpk_data(t, in_x%u);\n"
                   "            return mpk_offset(in_x%u, at);\n        }\n",
                   (long long)axis, (long long)first, i, i);
    }
    text_print(out, "        return 0;\n    };\n    concat_slivers(t, out_y, find);\n");
}

/* One call for each input, with where it begins along the axis; or one for all. */
static mpk_status print_concat(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const bool slivers = is_of_slivers(c);
    int64_t axis = c->op->attributes[0].i, first = 0;
    gen_print_head(c, n, out);
    if (slivers)
        print_slivers(c, out);
    for (uint32_t i = 0; !slivers && i < c->op->n_in; i++) {
        text_print(out, "    concat_part(t, in_x%u, out_y, %lld, %lld);\n", i, (long long)axis,
                   (long long)first);
        first += gen_input(c, i)->dims[axis];
    }
    text_print(out, "}\n");
    return MPK_OK;
}

/* ---- copies whose neighbours lie along another axis (device/task/copies_turned.cuh) ---- */

/* Are the strides of all axes but `along`, which has neighbours, whole pieces? */
static bool has_pieces(const ir_tensor *t, uint32_t along)
{
    bool has = t->stride[along] == 1 && t->offset % TURNED_PIECE == 0;
    for (uint32_t i = 0; i < t->rank; i++)
        has = has && (i == along || t->dims[i] == 1 || t->stride[i] % TURNED_PIECE == 0);
    return has;
}

/* The axis along which x has neighbours, if it is not the last and both tensors have whole pieces
 * of 16-bit entries along their own; else -1. */
static int turned_axis(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, 0), *y = gen_output(c, 0);
    const uint32_t last = y->rank - 1;
    if (!y->rank || (x->dtype != IR_BF16 && x->dtype != IR_F16) || y->dtype != x->dtype ||
        !has_pieces(y, last) || y->dims[last] % TURNED_PIECE)
        return -1;
    for (uint32_t i = 0; i < last; i++)
        if (x->dims[i] > 1 && x->dims[i] % TURNED_PIECE == 0 && has_pieces(x, i))
            return (int)i;
    return -1;
}

static bool accepts_turned(const gen_call *c)
{
    return gen_accepts_plain(c) && turned_axis(c) >= 0;
}

static mpk_status print_turned(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    copy_turned<%d, %u>(t, in_x, out_y);\n}\n", turned_axis(c),
               gen_output(c, 0)->rank - 1);
    return MPK_OK;
}

static uint32_t scratch_of_turned(const gen_call *c)
{
    (void)c;
    return TURNED_BYTES;
}

const gen_body gen_body_copy_turned = {.op = "copy",
                                       .name = "copies_turned",
                                       .rank = 5,
                                       .accepts = accepts_turned,
                                       .print = print_turned,
                                       .scratch_bytes = scratch_of_turned};
const gen_body gen_body_copy = GEN_BODY("copy", "copies", print_copy, NULL);
const gen_body gen_body_transfer = GEN_BODY("transfer", "copies", print_transfer, NULL);
const gen_body gen_body_reshape = GEN_BODY("reshape", "copies", print_reshape, NULL);
const gen_body gen_body_gather = GEN_BODY("gather", "copies", print_gather, NULL);
const gen_body gen_body_embedding = GEN_BODY("embedding", "copies", print_embedding, NULL);
const gen_body gen_body_concat = GEN_BODY("concat", "copies", print_concat, NULL);
