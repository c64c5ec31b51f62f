/* body_limits_test.c - what fast bodies for GPUs take, against tests/body_limits.txt.
 *
 * For the first graphs that each fast body of Hopper takes (cases of operators' records and those
 * of warps_graphs.h) each operand is changed in one way: another dtype, a place that is no multiple
 * of 8, gaps between rows or columns, other tokens alive, a constant or none; then each axis ("0:"
 * stands before its changes), by its length or by a stride of 2^30; then each attribute.  The file
 * says after each of these with which changes the same body is still chosen, and which bodies
 * other architectures choose.  A body that begins to take what its code cannot read, or no longer
 * takes what it took, shows as a line that differs; the new text is then in the build folder, to be
 * read and copied if it is meant.
 */
#include "check.h"

#include "gen/body_print.h"
#include "gen/source.h"
#include "ir/op.h"
#include "limits_file.h"
#include "warps_experts.h"
#include "warps_graphs.h"

enum { GRAPHS_OF_A_BODY = 3, MOST_BODIES = 128 };

static mpk_context cx;
static struct {
    const gen_body *body;
    int n;
} seen[MOST_BODIES];

/* ---- changes ---- */

/* Make change number n; its name, or NULL if it changes nothing here. */
static const char *change(ir_tensor *t, uint32_t n)
{
    static const ir_dtype dtypes[] = {IR_F32, IR_F16, IR_BF16, IR_I32, IR_I64};
    static const char *const names[] = {"f32",     "f16",     "bf16", "i32",     "i64",  "offset1",
                                        "offset4", "offset8", "rows", "columns", "live", "kind"};
    const ir_tensor was = *t;
    if (n < 5)
        t->dtype = dtypes[n];
    else if (n < 8)
        t->offset += n == 5 ? 1 : n == 6 ? 4 : 8;
    else if (n == 8 && t->rank > 1)
        t->stride[0] += 8;
    else if (n == 9 && t->rank)
        t->stride[t->rank - 1] *= 2;
    else if (n == 10)
        t->live = t->live == IR_ALL ? IR_TOKENS : IR_ALL;
    else if (n == 11)
        t->kind = t->kind == IR_CONST ? IR_INPUT : IR_CONST;
    return memcmp(&was, t, sizeof was) ? names[n] : NULL;
}
enum { CHANGES = 12 };

static const gen_body *choose_for(const ir_graph *g, const gen_arch *arch)
{
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    if (op->def->flags & OP_VIEW && y->shares != IR_NONE)
        return NULL;
    gen_call c = {.ir = g,
                  .op = op,
                  .n_tokens = (uint32_t)(y->rank ? y->dims[0] : 1),
                  .n_workers = arch->n_sms,
                  .needs = arch->features,
                  .halves = IR_BF16,
                  .maps = true};
    return gen_body_choose(&c, UINT32_MAX);
}

static const gen_body *choose(const ir_graph *g)
{
    return choose_for(g, gen_arch_find("sm_90a"));
}

/* Does the record take what the operator now is?  Then its results are as they follow. */
static bool infer(ir_graph *g)
{
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    ir_tensor out[IR_MAX_OUTPUTS] = {0};
    if (op->def->infer(&cx, g, op, out) != MPK_OK)
        return false;
    for (uint32_t i = 0; i < op->n_out; i++) {
        out[i].name = op->name;
        if (ir_check_tensor(&cx, &out[i]) != MPK_OK)
            return false;
        ir_tensor *t = &g->tensors.at[op->out[i]];
        const bool same =
            t->rank == out[i].rank && memcmp(t->dims, out[i].dims, t->rank * sizeof *t->dims) == 0;
        t->dtype = out[i].dtype;
        t->rank = out[i].rank;
        memcpy(t->dims, out[i].dims, sizeof t->dims);
        if (!same)
            ir_dense_strides(t->rank, t->dims, t->stride);
    }
    return true;
}

/* Make an axis of an input n long, or all axes of inputs that are as long as it.  False: the record
 * does not take it. */
static bool set_length(ir_graph *g, ir_tensor_id id, uint32_t axis, int64_t was, int64_t n,
                       bool all)
{
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    for (uint32_t i = 0; i < op->n_in; i++) {
        ir_tensor *t = op->in[i] == IR_NONE ? NULL : &g->tensors.at[op->in[i]];
        bool any = false;
        for (uint32_t k = 0; t && k < t->rank; k++)
            if ((all && t->dims[k] == was) || (op->in[i] == id && k == axis)) {
                t->dims[k] = n;
                any = true;
            }
        if (any && ir_check_tensor(&cx, t) != MPK_OK)
            return false;
        if (any)
            ir_dense_strides(t->rank, t->dims, t->stride);
    }
    return infer(g);
}

/* Make change number n of the length of an axis; its name, or NULL. */
static const char *change_axis(ir_graph *g, ir_tensor_id id, uint32_t axis, uint32_t n)
{
    static const char *const names[] = {"1", "-1", "+1", "-8", "+8", "*2", "*32", "huge", "far"};
    const int64_t was = g->tensors.at[id].dims[axis],
                  to[] = {1, was - 1, was + 1, was - 8, was + 8, 2 * was, 32 * was, 1 << 29};
    if (n == sizeof to / sizeof *to) {
        g->tensors.at[id].stride[axis] = 1 << 30;
        return names[n];
    }
    if (to[n] <= 0 || to[n] == was)
        return NULL;
    return set_length(g, id, axis, was, to[n], false) || set_length(g, id, axis, was, to[n], true)
               ? names[n]
               : NULL;
}
enum { AXIS_CHANGES = 9 };

/* ---- the text ---- */

/* " 0:NAME", and after the first of an axis " NAME". */
static void print_named(uint32_t axis, bool any, const char *name, text *out)
{
    if (any)
        text_print(out, " %s", name);
    else
        text_print(out, " %u:%s", axis, name);
}

/* With which lengths and strides of its axes the same body is chosen. */
static void print_axes(ir_graph *g, ir_tensor_id id, const gen_body *body, text *out)
{
    static ir_tensor was[64];
    const uint32_t rank = g->tensors.at[id].rank;
    const bool is_result = g->tensors.at[id].producer == g->ops.n - 1;
    assert_true(g->tensors.n <= 64);
    memcpy(was, g->tensors.at, g->tensors.n * sizeof *was);
    for (uint32_t axis = 0; axis < rank; axis++)
        for (uint32_t n = is_result ? AXIS_CHANGES - 1 : 0, any = 0; n < AXIS_CHANGES; n++) {
            const char *name = change_axis(g, id, axis, n);
            if (name && choose(g) == body)
                print_named(axis, any++, name, out);
            memcpy(g->tensors.at, was, g->tensors.n * sizeof *was);
        }
}

static void print_operand(ir_graph *g, ir_tensor_id id, const gen_body *body, const char *side,
                          uint32_t i, text *out)
{
    ir_tensor *t = &g->tensors.at[id], was = *t;
    text_print(out, "  %s%u %s[", side, i, ir_dtype_table[t->dtype].name);
    for (uint32_t k = 0; k < t->rank; k++)
        text_print(out, "%s%lld", k ? ", " : "", (long long)t->dims[k]);
    text_print(out, "]:");
    for (uint32_t n = 0; n < CHANGES; n++) {
        const char *name = change(t, n);
        if (name && choose(g) == body)
            text_print(out, " %s", name);
        *t = was;
    }
    print_axes(g, id, body, out);
    text_print(out, "\n");
}

/* Absent inputs, and other attributes. */
static void print_others(ir_graph *g, const gen_body *body, text *out)
{
    ir_op *op = &g->ops.at[g->ops.n - 1]; /* results follow: the graph is not looked at again */
    bool any = false;
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_tensor_id was = op->in[i];
        op->in[i] = IR_NONE;
        if (i < op->def->n_in && op->def->in[i].presence == OP_OPTIONAL && was != IR_NONE &&
            infer(g) && choose(g) == body) {
            text_print(out, any ? " %s" : "  without: %s", op->def->in[i].name);
            any = true;
        }
        op->in[i] = was;
    }
    text_print(out, any ? "\n" : "");
    for (uint32_t i = 0; i < op->def->n_attributes; i++) {
        const ir_attribute was = op->attributes[i];
        const int64_t to[] = {0,  1,  2,  was.i - 1,     was.i + 1, 2 * was.i,
                              32, 33, 64, INT32_MAX - 1, INT32_MAX};
        const bool is_int = op->def->attributes[i].type == IR_ATTRIBUTE_INT;
        if (!is_int && op->def->attributes[i].type != IR_ATTRIBUTE_FLOAT)
            continue;
        text_print(out, "  %s:", op->def->attributes[i].name);
        for (size_t n = 0; n < (is_int ? sizeof to / sizeof *to : 3); n++) {
            op->attributes[i].i = to[n];
            op->attributes[i].f = is_int ? was.f : (double)n / 2;
            if (!infer(g) || choose(g) != body)
                continue;
            if (is_int)
                text_print(out, " %lld", (long long)to[n]);
            else
                text_print(out, " %g", (double)n / 2);
        }
        op->attributes[i] = was;
        text_print(out, "\n");
    }
}

/* What other architectures choose. */
static void print_architectures(const ir_graph *g, const gen_body *body, text *out)
{
    for (const gen_arch *arch = gen_arch_table; arch->name; arch++) {
        const gen_body *other = choose_for(g, arch);
        if (other != body)
            text_print(out, " %s:%s", arch->name, other ? other->name : "none");
    }
    text_print(out, "\n");
}

/* One of the first graphs of the body. */
static bool is_wanted(const gen_body *body)
{
    int i = 0;
    while (seen[i].body && seen[i].body != body)
        i++;
    assert_true(i + 1 < MOST_BODIES);
    seen[i].body = body;
    return seen[i].n++ < GRAPHS_OF_A_BODY;
}

static void print_body(ir_graph *g, const gen_body *body, text *out)
{
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    text_print(out, "%s: %s", body->name, op->def->name);
    print_architectures(g, body, out);
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE)
            print_operand(g, op->in[i], body, "in", i, out);
    for (uint32_t i = 0; i < op->n_out; i++)
        print_operand(g, op->out[i], body, "out", i, out);
    print_others(g, body, out);
}

static void print_graph(const char *source, text *out)
{
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    const gen_body *body = choose(g);
    if (body && body->rank && is_wanted(body))
        print_body(g, body, out);
    arena_free(&a);
}

/* Graphs for this test alone, whatever others their bodies take: norms after products of many
 * tokens, shares of as many groups as a warp has lanes, experts in blocks. */
static const char *const limit_graphs[] = {
    X("100", "64") W("w", "136", "64") "%h = linear(%x, %w)\n%y = rms_norm(%h)\n",
    X("100", "64") W("w", "136", "64") "%h = linear(%x, %w)\n%y = layer_norm(%h, _, _)\n",
    X("100", "64") W("w", "136", "64") "const %v : bf16[96]\nconst %u : f32[40]\n%h = linear(%x, "
                                       "%w)\n%y = rms_norm_parts(%h, %v, %u)\n",
    X("5", "128") "%i, %w = route(%x) {experts = 2, sigmoid = 1, groups = 8, kept = 2}\n",
    GATED_BLOCKS("9", "1280", "3", "4", "24", "q6_k", "q4_k", EXPERT_NORM("1280"), ", _, _, %n"),
    SUMMED_BLOCKS("12", "1088", "4", "9", "40", "q8_0"),
    LIMITED_BLOCKS("140", "288", "4", "9", "104", "mxfp4", "", "_"),
    PAIRS_BLOCKS("130", "768", "4", "7", "136", "q4_k"),
};

static void print_always(const char *source, text *out)
{
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    const gen_body *body = choose(g);
    assert_non_null(body);
    print_body(g, body, out);
    arena_free(&a);
}

static void visit_all(void (*visit)(const char *source, text *out), text *out)
{
#define VISIT(graphs)                                              \
    for (size_t i = 0; i < sizeof(graphs) / sizeof *(graphs); i++) \
    visit((graphs)[i], out)
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            visit((*def)->cases[i].graph, out);
    VISIT(decode_graphs);
    VISIT(prefill_graphs);
    VISIT(paged_graphs);
    VISIT(pairs_graphs);
    VISIT(company_graphs);
    VISIT(head_graphs);
    VISIT(latent_graphs);
    VISIT(block_products);
    VISIT(block_windows);
    VISIT(block_rows);
}

static void bodies_take_what_the_file_says(void **state)
{
    text made = {0};
    (void)state;
    visit_all(print_graph, &made);
    for (size_t i = 0; i < sizeof limit_graphs / sizeof *limit_graphs; i++)
        print_always(limit_graphs[i], &made);
    check_limits("body_limits.txt", &made);
}

/* ---- what bodies that carry make ---- */

static uint32_t n_carried; /* results looked at */

/* Words of a result are polled and cleared one by one: it is no scalar, has no gaps, and a word is
 * one entry or two.  What is written in place is not carried. */
static void check_words(const ir_graph *g)
{
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    for (const gen_arch *arch = gen_arch_table; arch->name; arch++) {
        const gen_body *body = choose_for(g, arch);
        for (uint32_t i = 0; body && body->carries && i < op->n_out; i++) {
            const ir_tensor *t = &g->tensors.at[op->out[i]];
            if (t->shares != IR_NONE)
                continue;
            n_carried++;
            if (!t->rank || t->offset || !gen_is_dense(t, t->dtype) ||
                (t->dtype != IR_F32 && t->dtype != IR_I32 && t->dtype != IR_BF16 &&
                 t->dtype != IR_F16))
                fail_msg("%s: result %u of %s has no rows of words", body->name, i, op->def->name);
        }
    }
}

/* The graph, and with each change of an input that the operator takes. */
static void check_changes(const char *source, text *out)
{
    static ir_tensor was[64];
    arena a = {0};
    ir_graph *g;
    (void)out;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    check_words(g);
    assert_true(g->tensors.n <= 64);
    memcpy(was, g->tensors.at, g->tensors.n * sizeof *was);
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_tensor_id id = op->in[i];
        const uint32_t rank = id == IR_NONE ? 0 : g->tensors.at[id].rank;
        for (uint32_t n = 0; id != IR_NONE && n < CHANGES + rank * AXIS_CHANGES; n++) {
            const uint32_t axis = n < CHANGES ? 0 : (n - CHANGES) / AXIS_CHANGES;
            const char *name = n < CHANGES ? change(&g->tensors.at[id], n)
                                           : change_axis(g, id, axis, (n - CHANGES) % AXIS_CHANGES);
            if (name && infer(g))
                check_words(g);
            memcpy(g->tensors.at, was, g->tensors.n * sizeof *was);
        }
    }
    arena_free(&a);
}

static void carried_results_are_rows_of_words(void **state)
{
    (void)state;
    visit_all(check_changes, NULL);
    print_message("%u results\n", n_carried);
    assert_true(n_carried > 0);
}

/* Heads of up to 1,024 entries have a generic body, if a cache has them row by row; larger ones
 * have none, and the error names the operands that are there. */
static void generic_bodies_take_heads_that_fit(void **state)
{
#define HEADS(size, cache)                                                    \
    "input %q : f32[3, 2, " size "] live=tokens\n" cache                      \
    "input %p : i32[3] live=tokens\ninput %s : i32[3] live=tokens\ninput %pa" \
    "ges : i32[1, 4]\n%y = attention(%q, %k, _, %p, %s, %pages)\n"
    static const char *const sources[] = {
        HEADS("1024", "state %k : f32[4, 2, 4, 1024]\n"),
        HEADS("1032", "state %k : f32[4, 2, 4, 1032]\n"),
        HEADS("8", "state %c : f32[4, 2, 8, 4]\n%k = transpose(%c) {perm = [0, 1, 3, 2]}\n")};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        arena a = {0};
        ir_graph *g;
        check_ok(&cx, ir_parse(&cx, &a, str_from(sources[i]), &g));
        assert_int_equal(choose(g) != NULL, i == 0);
        const gen_call c = {.ir = g, .op = &g->ops.at[0], .n_tokens = 3, .n_workers = 132};
        if (i == 1)
            check_fails(&cx, MPK_EUNSUPPORTED,
                        "attention (%y): no code for sm_90a takes the operands %q f32[3, 2, 1032], "
                        "%k f32[4, 2, 4, 1032], %p i32[3], %s i32[3], %pages i32[1, 4]",
                        gen_fail_no_body(&cx, &c, UINT32_MAX, "sm_90a", false));
        arena_free(&a);
    }
}

/* Copies that turn axes go by pieces of eight entries of 16 bits. */
static void turned_copies_are_of_16_bits(void **state)
{
    static const char *const dtypes[] = {"bf16", "f16", "f32", "i32", "i16", "f64", "i64", "u8"};
    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        char source[128];
        arena a = {0};
        ir_graph *g;
        snprintf(source, sizeof source,
                 "input %%x : %s[64, 64]\n%%t = transpose(%%x) {perm = [1, 0]}\n%%y = copy(%%t)\n",
                 dtypes[i]);
        check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
        assert_int_equal(strcmp(choose(g)->name, "copies_turned") == 0, i < 2);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bodies_take_what_the_file_says),
                                       cmocka_unit_test(carried_results_are_rows_of_words),
                                       cmocka_unit_test(generic_bodies_take_heads_that_fit),
                                       cmocka_unit_test(turned_copies_are_of_16_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
