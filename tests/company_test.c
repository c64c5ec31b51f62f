/* company_test.c - small language models cut as for a GPU, on the CPU: a request gets the same bits
 * alone and in company, with drafts and without, if each context is cut by itself and steps are
 * filled apart, and not if either is missing.
 *
 * On the CPU only attention adds up in another order for few tokens (in parts) than for many, which
 * is enough: a token of another kind of step, or of a context that is cut elsewhere, has other
 * bits.  The same on a GPU, where products do so too: tests/check_cuda.c.
 */
#include "check.h"
#include "company.h"
#include "cpu/cpu.h"
#include "load/load.h"
#include "model/model.h"
#include "pass/pass.h"

enum {
    N_GRAPHS = 4,
    DRAFT_GRAPHS = 2, /* of the model as its own draft model */
    FEW_TOKENS = 16,
    PAGE_TOKENS = 16,
    PAGES_PER_SLOT = 36,
    SLOTS = 8,
    WORKERS = 2
};

typedef struct bed {
    mpk_context cx;
    arena arena;
    tg_program program;
    program_image image;
    void **weights; /* [image.n_weights] */
} bed;

static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                               const int64_t *dims, ir_dtype *dtype)
{
    (void)cx, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_F32;
    return MPK_OK;
}

static ir_graph *build(bed *b, const char *family, uint32_t n_tokens, bool drafts)
{
    model_config config = {.family = str_from(family),
                           .n_layers = 2,
                           .hidden_size = 48,
                           .n_heads = 4,
                           .n_kv_heads = 2,
                           .head_size = 16,
                           .ffn_size = 64,
                           .vocab_size = COMPANY_VOCABULARY,
                           .max_positions = 1024,
                           .norm_eps = 1e-5,
                           .tied_embeddings = true,
                           .activation = STR("silu"),
                           .weight_dtype = IR_F32,
                           .n_experts = 5,
                           .experts_per_token = 2,
                           .expert_ffn_size = 24,
                           .expert_every = 1,
                           .rope_size = 16,
                           .rope_theta = 10000,
                           .bos_token = -1};
    model_weights weights = {weight_dtype, NULL};
    model_shape shape = {.n_tokens = n_tokens,
                         .n_rows = n_tokens < SLOTS ? n_tokens : SLOTS,
                         .n_slots = SLOTS,
                         .n_pages = SLOTS * PAGES_PER_SLOT,
                         .page_tokens = PAGE_TOKENS,
                         .max_pages_per_slot = PAGES_PER_SLOT,
                         .kv_dtype = IR_F32,
                         .activation_dtype = IR_F32,
                         .drafts = drafts};
    ir_graph *g = NULL;
    check_ok(&b->cx, model_build(&b->cx, &b->arena, &config, &shape, &weights, &g));
    return g;
}

/* ahead: with the model itself as its draft model. */
static void make(bed *b, const char *family, uint32_t own_units, bool ahead)
{
    static const uint32_t n_tokens[N_GRAPHS + DRAFT_GRAPHS] = {1, 4, FEW_TOKENS, 64, 1, 64};
    const uint32_t n_graphs = N_GRAPHS + (ahead ? DRAFT_GRAPHS : 0);
    ir_graph *graphs[N_GRAPHS + DRAFT_GRAPHS];
    pass_options options = {.n_workers = WORKERS,
                            .page_bytes = 16384,
                            .pages_per_worker = 64,
                            .splits = 3,
                            .split_tokens = FEW_TOKENS,
                            .own_units = own_units,
                            .norm_elements = 1 << 24,
                            .logits = true,
                            .n_draft_graphs = n_graphs - N_GRAPHS};
    *b = (bed){0};
    for (uint32_t i = 0; i < n_graphs; i++)
        graphs[i] = build(b, family, n_tokens[i], i >= N_GRAPHS);
    check_ok(&b->cx,
             pass_compile(&b->cx, &b->arena, &options, n_graphs, graphs, n_tokens, &b->program));
    check_ok(&b->cx, image_make(&b->cx, &b->arena, &b->program, &b->image));
    b->weights = arena_alloc(&b->arena, b->image.n_weights, sizeof *b->weights);
    for (uint32_t i = 0; i < b->image.n_weights; i++) {
        const tg_weight *w = &b->image.weights[i];
        const size_t n_prefix = sizeof MODEL_DRAFT - 1;
        str name = w->name; /* the draft model's weights are those of the model */
        int64_t n = 1;
        if (name.n > n_prefix && memcmp(name.at, MODEL_DRAFT, n_prefix) == 0)
            name = (str){name.at + n_prefix, name.n - n_prefix};
        for (uint32_t d = 0; d < w->rank; d++)
            n *= w->dims[d];
        b->weights[i] = arena_alloc(&b->arena, (size_t)n, sizeof(float));
        load_random_fill(1, name, IR_F32, 0, n, b->weights[i]);
    }
}

/* Drafts that stood, and that did not. */
static uint64_t stood, fell;

/* How many requests get other bits in company than alone without drafts. */
static uint32_t count_of(const char *family, uint32_t own_units, uint32_t few_tokens,
                         uint32_t drafts, bool ahead, uint64_t seed)
{
    bed b;
    machine *m;
    machine_facts facts;
    company_touched touched = {0};
    make(&b, family, own_units, ahead);
    check_ok(&b.cx, cpu_start(&b.cx, &b.image, b.weights,
                              &(cpu_options){.few_tokens = few_tokens,
                                             .draft_tokens = drafts ? FEW_TOKENS : 0,
                                             .gram_tokens = !ahead,
                                             .drafts_freely = true},
                              &m));
    check_ok(&b.cx, company_count(&b.cx, m, seed, drafts, &touched));
    machine_describe(m, &facts);
    assert_true(drafts || !facts.drafted);
    stood += facts.accepted;
    fell += facts.drafted - facts.accepted;
    assert_true(facts.found > 0); /* alone they find pages that were computed in company */
    machine_stop(m);
    arena_free(&b.arena);
    if (touched.n)
        print_message("%u requests got other bits%s\n", touched.n, touched.first);
    return touched.n;
}
static uint32_t count(const char *family, uint32_t own_units, uint32_t few_tokens, uint32_t drafts,
                      uint64_t seed)
{
    return count_of(family, own_units, few_tokens, drafts, false, seed);
}

/* Does this round take family `which`?  Sanitizers get one of the three: what they look for is in
 * code that all families share. */
static bool takes_family(uint64_t seed, uint64_t round, uint64_t which)
{
    return CHECK_SHARE == 1 || check_thorough() || (seed + round) % 3 == which;
}

static void company_changes_no_bit(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint64_t round = 0; round < check_rounds(3); round++) {
        if (takes_family(seed, round, 0))
            assert_int_equal(count("llama", 1, FEW_TOKENS, 0, seed + round), 0);
        if (takes_family(seed, round, 1))
            assert_int_equal(count("qwen3", 2, FEW_TOKENS, 0, seed + round), 0);
        if (takes_family(seed, round, 2))
            assert_int_equal(count("qwen3_moe", 1, FEW_TOKENS, 0, seed + round), 0);
    }
}

/* Have there been drafts of both kinds?  Those of the few requests that sanitizers get seldom fall:
 * none of 1,073 for one seed. */
static bool has_both(void)
{
    return stood && (fell || CHECK_SHARE > 1);
}

static void drafts_change_no_bit(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint64_t round = 0; round < check_rounds(3) || (round < 40 && !has_both()); round++) {
        if (takes_family(seed, round, 1))
            assert_int_equal(count("llama", 1, FEW_TOKENS, 7, seed + round), 0);
        if (takes_family(seed, round, 2))
            assert_int_equal(count("qwen3", 2, FEW_TOKENS, 5, seed + round), 0);
        if (takes_family(seed, round, 0))
            assert_int_equal(count("qwen3_moe", 1, FEW_TOKENS, 12, seed + round), 0);
    }
    print_message("%llu drafts stood, %llu did not\n", (unsigned long long)stood,
                  (unsigned long long)fell);
    assert_true(has_both());
}

/* The same with the drafts of a draft model. */
static void guesses_change_no_bit(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    stood = 0;
    for (uint64_t round = 0; round < check_rounds(3); round++) {
        assert_int_equal(count_of("qwen3", 1, FEW_TOKENS, 7, true, seed + round), 0);
        assert_int_equal(count_of("llama", 2, FEW_TOKENS, 5, true, seed + round), 0);
    }
    print_message("%llu drafts stood\n", (unsigned long long)stood);
    assert_true(stood);
}

/* Of a round's few requests, company or drafts may touch none by chance: rounds go on until one
 * was. */
static bool touches_any(uint32_t own_units, uint32_t few_tokens, uint32_t drafts, uint64_t seed)
{
    for (uint64_t round = 0; round < 30; round++)
        if (count("llama", own_units, few_tokens, drafts, seed + round) > 0)
            return true;
    return false;
}

/* So that the test above can fail. */
static void without_the_rules_it_does(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    assert_true(touches_any(0, FEW_TOKENS, 0, seed));
    assert_true(touches_any(1, 0, 0, seed));
    assert_true(touches_any(0, FEW_TOKENS, 7, seed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(drafts_change_no_bit),
        cmocka_unit_test(guesses_change_no_bit),
        cmocka_unit_test(without_the_rules_it_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
