/* body_copies.c - generic bodies of operators that move elements and compute nothing
 * (device/task/copies.cuh).
 *
 * They take any plain dtype and any strides.  transfer, which brings a tensor of another peer, is a
 * copy: that peer's memory has addresses here. */
#include "gen/body_print.h"

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

const gen_body gen_body_copy = GEN_BODY("copy", "copies", print_copy, NULL);
const gen_body gen_body_transfer = GEN_BODY("transfer", "copies", print_transfer, NULL);
const gen_body gen_body_reshape = GEN_BODY("reshape", "copies", print_reshape, NULL);
const gen_body gen_body_gather = GEN_BODY("gather", "copies", print_gather, NULL);
const gen_body gen_body_embedding = GEN_BODY("embedding", "copies", print_embedding, NULL);
const gen_body gen_body_concat = GEN_BODY("concat", "copies", print_concat, NULL);
