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

/* One call for each input, with where it begins along the axis. */
static mpk_status print_concat(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    int64_t axis = c->op->attributes[0].i, first = 0;
    gen_print_head(c, n, out);
    for (uint32_t i = 0; i < c->op->n_in; i++) {
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
