/* decode_graph_test.c - a decode step of small operators, as PyTorch writes it, becomes what a GPU
 * is fast at: how many operators are left, what they compute, and which bodies they get.
 *
 * Input: tests/golden/4-recognise-decode.in, two layers of Qwen3 over static caches.
 */
#include "check.h"

#include <math.h>

#include "base/file.h"
#include "base/rng.h"
#include "gen/arch.h"
#include "gen/source.h"
#include "ir/op.h"
#include "pass/pass.h"

enum { POSITION = 40 };

static mpk_context cx;
static uint64_t base_seed;

/* The step, with one text in the place of another if `old` is not NULL. */
static ir_graph *read_step(arena *a, const char *old, const char *by)
{
    ir_graph *g;
    str source;
    text t = {0};
    check_ok(&cx, file_read(&cx, a, "tests/golden/4-recognise-decode.in", 1 << 20, &source));
    const char *at = old ? strstr(source.at, old) : source.at;
    assert_non_null(at);
    text_add(&t, source.at, (size_t)(at - source.at));
    text_print(&t, "%s%s", old ? by : "", at + (old ? strlen(old) : 0));
    check_ok(&cx, ir_parse(&cx, a, (str){arena_copy(a, t.at, t.n), t.n}, &g));
    text_free(&t);
    return g;
}

/* As for a GPU of 132 workers. */
static ir_graph *compile_step(arena *a, ir_graph *g)
{
    arena scratch = {0};
    pass_options options = {.n_workers = 132,
                            .split_tokens = 16,
                            .norm_elements = 1 << 24,
                            .relaxed = true,
                            .whole_tiles = true,
                            .logits = true};
    pass_state s = {&cx, a, &scratch, &options};
    check_ok(&cx, pass_simplify(&s, &g));
    check_ok(&cx, pass_recognise(&s, &g));
    check_ok(&cx, pass_fuse_ops(&s, &g));
    check_ok(&cx, pass_fuse_map(&s, &g));
    check_ok(&cx, ir_verify(&cx, g));
    arena_free(&scratch);
    return g;
}

/* The operator has tasks: it is no view. */
static bool works(const ir_graph *g, const ir_op *op)
{
    return !(op->def->flags & OP_VIEW) || g->tensors.at[op->out[0]].shares == IR_NONE;
}

static size_t count_of(const ir_graph *g, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += works(g, &g->ops.at[i]) && (!name || strcmp(g->ops.at[i].def->name, name) == 0);
    return n;
}

static void a_layer_becomes_six_operators(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = compile_step(&a, read_step(&a, NULL, NULL));
    assert_int_equal(count_of(g, "linear"), 2 * 4 + 1);
    assert_int_equal(count_of(g, "attention_cache"), 2);
    assert_int_equal(count_of(g, "attention_fold"), 2);
    assert_int_equal(count_of(g, "embedding"), 1);
    assert_int_equal(count_of(g, "rms_norm") + count_of(g, "sdpa") + count_of(g, "index_put") +
                         count_of(g, "add"),
                     0);
    /* positions and mask; a counter of each cache */
    assert_true(count_of(g, NULL) <= 2 * 6 + 2 + 7 + 2 * 2);
    arena_free(&a);
}

static void the_products_stream_their_weights(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = compile_step(&a, read_step(&a, NULL, NULL));
    const gen_arch *arch = gen_arch_find("sm_90a");
    for (size_t i = 0; i < g->ops.n; i++) {
        const ir_op *op = &g->ops.at[i];
        static const char *const expected[][2] = {{"linear", "linear_stream"},
                                                  {"attention_cache", "attention_cache_rows"},
                                                  {"attention_fold", "fold_rows"},
                                                  {"embedding", "embedding_rows"}};
        gen_call c = {.ir = g,
                      .op = op,
                      .n_tokens = 1,
                      .n_workers = arch->n_sms,
                      .needs = arch->features,
                      .halves = IR_BF16};
        const gen_body *body = works(g, op) ? gen_body_choose(&c, UINT32_MAX) : NULL;
        assert_true(body || !works(g, op));
        for (size_t k = 0; body && k < sizeof expected / sizeof *expected; k++)
            if (strcmp(op->def->name, expected[k][0]) == 0)
                assert_string_equal(body->name, expected[k][1]);
        if (body && getenv("MPK_VERBOSE"))
            print_message("%s: %s\n", op->def->name, body->name);
    }
    arena_free(&a);
}

/* Numbers that a step could have: rising positions as constants, the caches filled up to one
 * position. */
static void fill(const ir_graph *g, ir_tensor_id id, void *data)
{
    const ir_tensor *t = &g->tensors.at[id];
    op_view v = {.data = data, .dtype = t->dtype};
    uint64_t seed = hash_bytes(t->name.at, t->name.n, base_seed);
    for (int64_t i = 0; i < ir_elements(t); i++)
        if (t->dtype == IR_I64)
            ((int64_t *)data)[i] = t->kind == IR_CONST ? i : POSITION;
        else
            op_store(&v, i, rng_normal(seed, (uint64_t)i) * (t->kind == IR_STATE ? 1 : 0.3f));
}

static void evaluate(arena *a, const ir_graph *g, ir_values *values)
{
    *values = (ir_values){.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, values));
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        if (g->tensors.at[t].kind != IR_TEMP)
            fill(g, t, values->data[t]);
    check_ok(&cx, ir_eval(&cx, a, g, values));
}

/* Outputs and state agree, by name, as far as bf16 allows; the logits may have another rank. */
static void check_results(const ir_graph *plain, const ir_graph *fused, const ir_values *x,
                          const ir_values *y)
{
    uint32_t compared = 0;
    for (ir_tensor_id t = 0; t < plain->tensors.n; t++) {
        const ir_tensor *one = &plain->tensors.at[t];
        char name[64];
        snprintf(name, sizeof name, "%.*s", STR_ARG(one->name));
        if (one->kind != IR_STATE && plain->outputs.at[0] != t)
            continue;
        ir_tensor_id u = ir_find(fused, name);
        assert_int_not_equal(u, IR_NONE);
        assert_int_equal(ir_bytes(one), ir_bytes(&fused->tensors.at[u]));
        op_view v = {.data = x->data[t], .dtype = one->dtype},
                w = {.data = y->data[u], .dtype = one->dtype};
        float most = 0;
        for (int64_t i = 0; i < ir_elements(one); i++)
            most = fmaxf(most, fabsf(op_load(&v, i)));
        for (int64_t i = 0; i < ir_elements(one); i++) {
            float p = op_load(&v, i), q = op_load(&w, i);
            if (!(fabsf(p - q) <= 0.1f * most))
                fail_msg("%s element %lld is %g, expected %g", name, (long long)i, (double)q,
                         (double)p);
        }
        compared++;
    }
    assert_int_equal(compared, 1 + 2 * 3);
}

static void results_stay(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *plain = read_step(&a, NULL, NULL),
             *fused = compile_step(&a, read_step(&a, NULL, NULL));
    ir_values x, y;
    evaluate(&a, plain, &x);
    evaluate(&a, fused, &y);
    check_results(plain, fused, &x, &y);
    arena_free(&a);
}

/* Changes of the step after which the caches of a layer, or of both, may not be hidden in one
 * operator. */
static void what_else_touches_a_cache_keeps_it_apart(void **state)
{
    (void)state;
    static const struct {
        const char *old, *by;
        size_t left, split; /* of attention_cache and of sdpa_split */
    } changes[] = {
        {"output %r0\n", "%other = copy(%transpose_83)\noutput %r0\noutput %other\n", 1, 1},
        {"%index_put_86 = index_put(%transpose_84, %transpose_85, %reshape_78)",
         "%later = map(%reshape_78) {expr = \"x0 + 1\", dtype = \"i64\"}\n%index_put_86 = "
         "index_put(%transpose_84, "
         "%transpose_85, "
         "%later)",
         1, 1},
        {"%sdpa_95 = sdpa(%add_69, %reshape_90, %reshape_93, %map_94) {scale = 0.25}",
         "%sdpa_95 = sdpa(%add_69, %reshape_90, %reshape_93, %map_94) {scale = 0.25, causal = 1}",
         1, 0},
        {"%sdpa_95 = sdpa(%add_69, %reshape_90, %reshape_93, %map_94) {scale = 0.25}",
         "%sdpa_95 = sdpa(%add_69, %reshape_90, %reshape_93, %map_94) {scale = 0.25, window = 3}",
         1, 0},
        {"%sdpa_95 = sdpa(%add_69, %reshape_90, %reshape_93, %map_94)",
         "%sdpa_95 = sdpa(%add_69, %reshape_93, %reshape_90, %map_94)", 1, 1},
        {"output %r0\n", "%other = copy(%transpose_87)\noutput %r0\noutput %other\n", 1, 1},
        /* not of two caches */
        {"%reshape_91 = reshape(%transpose_87)", "%reshape_91 = reshape(%transpose_83)", 1, 1},
        {"%reshape_91 = reshape(%transpose_87)",
         "%twice = map(%transpose_87) {expr = \"x0 * 2\", dtype = \"bf16\"}\n"
         "%reshape_91 = reshape(%twice)",
         1, 1},
        {"%reshape_88 = reshape(%transpose_83)",
         "%twice = map(%transpose_83) {expr = \"x0 * 2\", dtype = \"bf16\"}\n"
         "%reshape_88 = reshape(%twice)",
         1, 1},
        /* one token at two positions, and an index that is no row of them */
        {"%reshape_78 = reshape(%map_77) {shape = [1]} : i64[1]",
         "%reshape_78 = reshape(%map_77) {shape = [1, 1]}", 1, 1},
        {"%reshape_78 = reshape(%map_77) {shape = [1]} : i64[1]", "const %reshape_78 : i64[2]", 1,
         1},
        /* keys or queries that are not rotated, the others are */
        {"%transpose_81 = transpose(%add_76)", "%transpose_81 = transpose(%transpose_54)", 1, 1},
        {"%sdpa_95 = sdpa(%add_69", "%sdpa_95 = sdpa(%transpose_40", 1, 1},
        /* or by other cosines or sines */
        {"%mul_70 = mul(%transpose_54, %reshape_61)", "%mul_70 = mul(%transpose_54, %reshape_62)",
         1, 1},
        {"%mul_75 = mul(%concat_74, %reshape_62)", "%mul_75 = mul(%concat_74, %reshape_61)", 1, 1},
        /* another part of the product than that of the values */
        {"%transpose_85 = transpose(%transpose_60)", "%transpose_85 = transpose(%transpose_54)", 1,
         1},
        /* norms of heads have weights and one eps */
        {"%transpose_40 = transpose(%mul_39)", "%transpose_40 = transpose(%cast_38)", 1, 1},
        {"%map_35 = map(%reduce_34) {expr = \"x0 + 1e-06\"",
         "%map_35 = map(%reduce_34) {expr = \"x0 + 1e-03\"", 1, 1},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        arena a = {0};
        ir_values x, y;
        ir_graph *plain = read_step(&a, changes[i].old, changes[i].by),
                 *fused = compile_step(&a, read_step(&a, changes[i].old, changes[i].by));
        assert_int_equal(count_of(fused, "attention_cache"), changes[i].left);
        assert_int_equal(count_of(fused, "sdpa_split"), changes[i].split);
        evaluate(&a, plain, &x);
        evaluate(&a, fused, &y);
        check_results(plain, fused, &x, &y);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_layer_becomes_six_operators),
                                       cmocka_unit_test(the_products_stream_their_weights),
                                       cmocka_unit_test(results_stay),
                                       cmocka_unit_test(what_else_touches_a_cache_keeps_it_apart)};
    base_seed = check_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
