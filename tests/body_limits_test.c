/* body_limits_test.c - what fast bodies for GPUs take, against tests/body_limits.txt.
 *
 * For the first graphs that each fast body of Hopper takes (cases of operators' records and those
 * of warps_graphs.h) each operand is changed in one way: another dtype, a place that is no multiple
 * of 8, gaps between rows or columns, other tokens alive, a constant or none.  The file says after
 * each operand with which changes the same body is still chosen.  A body that begins to take what
 * its code cannot read, or no longer takes what it took, shows as a line that differs; the new text
 * is then in the build folder, to be read and copied if it is meant.
 */
#include "check.h"

#include "gen/source.h"
#include "ir/op.h"
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

static const gen_body *choose(const ir_graph *g)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
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

/* ---- the text ---- */

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
    text_print(out, "\n");
}

static bool is_wanted(const gen_body *body)
{
    int i = 0;
    while (seen[i].body && seen[i].body != body)
        i++;
    assert_true(i + 1 < MOST_BODIES);
    seen[i].body = body;
    return seen[i].n++ < GRAPHS_OF_A_BODY;
}

static void print_graph(const char *source, text *out)
{
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    const gen_body *body = choose(g);
    if (body && body->rank && is_wanted(body)) {
        text_print(out, "%s: %s\n", body->name, op->def->name);
        for (uint32_t i = 0; i < op->n_in; i++)
            if (op->in[i] != IR_NONE)
                print_operand(g, op->in[i], body, "in", i, out);
        for (uint32_t i = 0; i < op->n_out; i++)
            print_operand(g, op->out[i], body, "out", i, out);
    }
    arena_free(&a);
}

static void print_all(text *out)
{
#define PRINT(graphs)                                              \
    for (size_t i = 0; i < sizeof(graphs) / sizeof *(graphs); i++) \
    print_graph((graphs)[i], out)
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            print_graph((*def)->cases[i].graph, out);
    PRINT(decode_graphs);
    PRINT(prefill_graphs);
    PRINT(paged_graphs);
    PRINT(pairs_graphs);
    PRINT(company_graphs);
    PRINT(block_products);
    PRINT(block_windows);
    PRINT(block_rows);
}

/* ---- the comparison ---- */

static size_t line_of(const char *words, size_t at)
{
    size_t n = 1;
    for (size_t i = 0; i < at; i++)
        n += words[i] == '\n';
    return n;
}

static void bodies_take_what_the_file_says(void **state)
{
    (void)state;
    static char expected[1 << 20];
    const char *folder = getenv("MPK_BUILD");
    char path[512];
    text made = {0};
    print_all(&made);
    assert_false(made.failed);
    FILE *f = fopen("tests/body_limits.txt", "r");
    size_t n = f ? fread(expected, 1, sizeof expected - 1, f) : 0, same = 0;
    if (f)
        fclose(f);
    while (same < n && same < made.n && expected[same] == made.at[same])
        same++;
    if (same < n || same < made.n) {
        snprintf(path, sizeof path, "%s/body_limits.txt", folder ? folder : "build");
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(made.at, 1, made.n, f), made.n);
        fclose(f);
        fail_msg("tests/body_limits.txt differs from line %zu on; what bodies take now is in %s",
                 line_of(made.at, same), path);
    }
    text_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bodies_take_what_the_file_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
