/* body_copies.c - generic bodies of operators that move elements and compute nothing (device/task/copies.cuh). */
#include "gen/body_print.h"

static mpk_status print_copy(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "copy_run", "", out);
    return MPK_OK;
}

static mpk_status print_reshape(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "reshape_run", "", out);
    return MPK_OK;
}

static mpk_status print_gather(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "gather_run", "", out);
    return MPK_OK;
}

static mpk_status print_embedding(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "embedding_run", "", out);
    return MPK_OK;
}

/* One call for each input, with where it begins along the axis. */
static mpk_status print_concat(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    int64_t axis = c->op->attributes[0].i, first = 0;
    gen_print_head(c, n, out);
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        text_print(out, "    concat_part(t, in_x%u, out_y, %lld, %lld);\n", i, (long long)axis, (long long)first);
        first += gen_input(c, i)->dims[axis];
    }
    text_print(out, "}\n");
    return MPK_OK;
}

const gen_body gen_body_copy = {.op = "copy", .name = "copies", .accepts = gen_accepts_plain, .print = print_copy};
const gen_body gen_body_reshape = {
    .op = "reshape", .name = "copies", .accepts = gen_accepts_plain, .print = print_reshape};
const gen_body gen_body_gather = {
    .op = "gather", .name = "copies", .accepts = gen_accepts_plain, .print = print_gather};
const gen_body gen_body_embedding = {
    .op = "embedding", .name = "copies", .accepts = gen_accepts_plain, .print = print_embedding};
const gen_body gen_body_concat = {
    .op = "concat", .name = "copies", .accepts = gen_accepts_plain, .print = print_concat};
