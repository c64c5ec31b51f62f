/* body_rows.c - generic bodies of operators that reduce along axes (device/task/rows.cuh), and batch_matmul. */
#include "gen/body_print.h"

/* One call with eps behind the operands. */
static void print_with_eps(const gen_call *c, uint32_t n, const char *function, text *out)
{
    gen_print_head(c, n, out);
    gen_print_call(c, function, out);
    text_print(out, ", ");
    gen_print_double(c->op->attributes[0].f, out);
    text_print(out, ");\n}\n");
}

static mpk_status print_rms_norm(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_with_eps(c, n, "rms_norm_run", out);
    return MPK_OK;
}

static mpk_status print_layer_norm(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_with_eps(c, n, "layer_norm_run", out);
    return MPK_OK;
}

static void print_along_axis(const gen_call *c, uint32_t n, bool logarithm, text *out)
{
    int64_t axis = c->op->attributes[0].i;
    gen_print_head(c, n, out);
    gen_print_call(c, "softmax_run", out);
    text_print(out, ", %lld, %s);\n}\n", (long long)(axis < 0 ? axis + gen_input(c, 0)->rank : axis),
               logarithm ? "true" : "false");
}

static mpk_status print_softmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_along_axis(c, n, false, out);
    return MPK_OK;
}

static mpk_status print_log_softmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_along_axis(c, n, true, out);
    return MPK_OK;
}

static mpk_status print_reduce(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    static const char *const kinds[][2] = {{"sum", "SUM"},   {"mean", "MEAN"}, {"max", "MAX"}, {"min", "MIN"},
                                           {"prod", "PROD"}, {"any", "ANY"},   {"all", "ALL"}};
    const ir_attribute *axes = &c->op->attributes[0], *keep = &c->op->attributes[1], *kind = &c->op->attributes[2];
    unsigned set = 0, k = 0;
    int64_t n_reduced = 1;
    for (uint32_t i = 0; i < axes->ints.n; i++) {
        set |= 1u << axes->ints.at[i];
        n_reduced *= gen_input(c, 0)->dims[axes->ints.at[i]];
    }
    while (k < sizeof kinds / sizeof *kinds && !str_is(kind->s, kinds[k][0]))
        k++;
    CHECK(cx, k < sizeof kinds / sizeof *kinds, MPK_EUNSUPPORTED, "reduce: no code for kind \"%.*s\"",
          STR_ARG(kind->s));
    gen_print_head(c, n, out);
    gen_print_call(c, "reduce_run", out);
    text_print(out, ", REDUCE_%s, %u, %s, %lld);\n}\n", kinds[k][1], set, keep->i ? "true" : "false",
               (long long)n_reduced);
    return MPK_OK;
}

static mpk_status print_argmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "argmax_run", "", out);
    return MPK_OK;
}

static mpk_status print_argmax_partial(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    gen_print_call(c, "argmax_partial_run", out);
    text_print(out, ", %lld);\n}\n", (long long)c->op->attributes[0].i);
    return MPK_OK;
}

static mpk_status print_argmax_reduce(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "argmax_reduce_run", "", out);
    return MPK_OK;
}

static mpk_status print_batch_matmul(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "batch_matmul_run", c->op->attributes[0].i ? ", true" : ", false", out);
    return MPK_OK;
}

#define ROWS(operator, printer)                                                         \
    {                                                                                   \
        .op = operator, .name = "rows", .accepts = gen_accepts_plain, .print = printer, \
        .scratch_bytes = gen_scratch_reduce                                             \
    }
const gen_body gen_body_rms_norm = ROWS("rms_norm", print_rms_norm);
const gen_body gen_body_layer_norm = ROWS("layer_norm", print_layer_norm);
const gen_body gen_body_softmax = ROWS("softmax", print_softmax);
const gen_body gen_body_log_softmax = ROWS("log_softmax", print_log_softmax);
const gen_body gen_body_reduce = ROWS("reduce", print_reduce);
const gen_body gen_body_argmax = ROWS("argmax", print_argmax);
const gen_body gen_body_argmax_partial = ROWS("argmax_partial", print_argmax_partial);
const gen_body gen_body_argmax_reduce = ROWS("argmax_reduce", print_argmax_reduce);
const gen_body gen_body_batch_matmul = {
    .op = "batch_matmul", .name = "matmul", .accepts = gen_accepts_plain, .print = print_batch_matmul};
