/* plans_test.c - what becomes of models, against tests/plans_models.txt.
 *
 * True models, cut to two layers and without their weights, are compiled as the CPU target, a GPU
 * and two or three peers have it.  The file says for each how many operators of each kind are left,
 * how many tasks, events and pairs they have, how many tasks a scheduler launches, and the bytes of
 * temporaries and states; a way with the same plan as the one before is left out.  A rule that no
 * longer holds where it did, or a cut that moves, shows as a line that differs.
 */
/* ctest: slow */
#include "check.h"

#include "ir/op.h"
#include "limits_file.h"
#include "load/load.h"
#include "pass/pass.h"

static mpk_context cx;

/* ---- the ways to compile ---- */

static const struct {
    const char *name;
    pass_options o;
} ways[] = {
    {"cpu", {.n_workers = 4}},
    {"gpu",
     {.n_workers = 24,
      .splits = 6,
      .split_tokens = 16,
      .norm_elements = 1 << 24,
      .share_tokens = 64,
      .even_over = 32,
      .even_up_to = 64,
      .context_tasks = 2,
      .relaxed = true,
      .whole_tiles = true,
      .logits = true,
      .flatten = true}},
    {"peers",
     {.n_workers = 6,
      .n_peers = 2,
      .launch = PASS_LAUNCH_AOT,
      .gather_bytes = 512,
      .narrow = true}},
    {"experts", {.n_workers = 6, .n_peers = 3, .launch = PASS_LAUNCH_AOT, .own_experts = true}},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void print_counts(const ir_graph *g, text *out)
{
    for (const op_def *const *def = op_table; *def; def++) {
        uint32_t n = 0;
        for (size_t i = 0; i < g->ops.n; i++)
            n += g->ops.at[i].def == *def;
        if (n > 1)
            text_print(out, " %u", n);
        if (n)
            text_print(out, " %s", (*def)->name);
    }
}

/* "kinds; tasks ..." or the refusal. */
static void print_plan(ir_graph *g, uint32_t n_tokens, size_t way, text *out)
{
    arena result = {0};
    tg_program p;
    pass_options o = ways[way].o;
    o.page_bytes = 1 << 20;
    o.pages_per_worker = 4;
    if (pass_compile(&cx, &result, &o, 1, &g, &n_tokens, &p) != MPK_OK) {
        text_print(out, " %s\n", cx.text);
    } else {
        const tg_stats *s = &p.graphs[0].stats;
        print_counts(p.graphs[0].ir, out);
        text_print(out, "; %u+%u tasks %u events %llu pairs %u jit %llu+%llu bytes\n", s->tasks,
                   s->normalize_tasks, s->events, (unsigned long long)s->pairs, s->jit_tasks,
                   (unsigned long long)p.area_bytes[TG_TEMPS],
                   (unsigned long long)p.area_bytes[TG_STATE]);
    }
    arena_free(&result);
}

/* The plan's line, if it is another than that of the way before. */
static void print_if_other(const char *name, size_t way, text *before, text *plan, text *out)
{
    assert_false(plan->failed);
    if (!way || strcmp(plan->at, before->at) != 0)
        text_print(out, "%s %s:%s", name, ways[way].name, plan->at);
    text_free(before);
    *before = *plan;
    *plan = (text){0};
}

/* ---- models ---- */

static mpk_status all_bf16(mpk_context *c, const void *self, const char *name, uint32_t rank,
                           const int64_t *dims, ir_dtype *dtype)
{
    (void)c, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_BF16;
    return MPK_OK;
}

static void print_model(const char *folder, uint32_t n_tokens, text *out)
{
    const model_weights weights = {.dtype = all_bf16};
    const model_shape shape = {.n_tokens = n_tokens,
                               .n_rows = n_tokens < 16 ? n_tokens : 16,
                               .n_slots = 16,
                               .n_pages = 512,
                               .page_tokens = 16,
                               .max_pages_per_slot = 32,
                               .kv_dtype = IR_BF16,
                               .activation_dtype = IR_BF16};
    load_model m;
    text before = {0}, plan = {0};
    char path[64], name[64];
    snprintf(path, sizeof path, "models/%s", folder);
    snprintf(name, sizeof name, "%s %u", folder, n_tokens);
    check_ok(&cx, load_open(&cx, path, &m));
    m.config.n_layers = 2;
    for (size_t way = 0; way < WAYS; way++) {
        arena a = {0};
        ir_graph *g;
        check_ok(&cx, model_build(&cx, &a, &m.config, &shape, &weights, &g));
        print_plan(g, n_tokens, way, &plan);
        print_if_other(name, way, &before, &plan, out);
        arena_free(&a);
    }
    text_free(&before);
    load_close(&m);
}

static void models_become_what_the_file_says(void **state)
{
    static const char *const folders[] = {"deepseek-v2-lite", "gemma-3-4b",   "glm-4-9b",
                                          "gpt-oss-20b",      "llama-3.2-1b", "olmo-2-7b",
                                          "qwen3-0.6b",       "qwen3-30b-a3b"};
    static const uint32_t tokens[] = {1, 16, 48, 130};
    text made = {0};
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++)
            print_model(folders[i], tokens[k], &made);
    check_limits("plans_models.txt", &made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_become_what_the_file_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
