/* one_kernel_test.c - a model's kernel is the same for any number of requests and any context, so
 * that one that was compiled for some serves all: what differs is told to it when it is loaded.  It
 * has no more code for many layers than for a few.
 */
#include "check.h"

#include "gen/source.h"
#include "model/model.h"
#include "pass/pass.h"

enum { WORKERS = 132, GRAPHS = 3 };

typedef struct size {
    uint32_t slots, slot_pages, n_pages, kv_heads;
    uint32_t layers, width; /* 0: two, and the model's own */
    uint32_t peers;
} size;

static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                               const int64_t *dims, ir_dtype *dtype)
{
    (void)cx, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_BF16;
    return MPK_OK;
}

static ir_graph *build(mpk_context *cx, arena *a, size of, uint32_t n_tokens)
{
    const uint32_t width = of.width ? of.width : 256;
    const model_config config = {.family = STR("qwen3"),
                                 .n_layers = of.layers ? of.layers : 2,
                                 .hidden_size = width,
                                 .n_heads = 4,
                                 .n_kv_heads = of.kv_heads,
                                 .head_size = 64,
                                 .ffn_size = 2 * width,
                                 .vocab_size = 1024,
                                 .max_positions = 4096,
                                 .norm_eps = 1e-6,
                                 .activation = STR("silu"),
                                 .rope_size = 64,
                                 .rope_theta = 10000,
                                 .bos_token = -1};
    const model_shape shape = {.n_tokens = n_tokens,
                               .n_rows = n_tokens,
                               .n_slots = of.slots,
                               .n_pages = of.n_pages,
                               .page_tokens = 64,
                               .max_pages_per_slot = of.slot_pages,
                               .kv_dtype = IR_BF16,
                               .activation_dtype = IR_BF16};
    const model_weights weights = {.dtype = weight_dtype};
    ir_graph *g = NULL;
    check_ok(cx, model_build(cx, a, &config, &shape, &weights, &g));
    return g;
}

/* The kernel of a model with steps of 1, 16 and 64 tokens, compiled as for an H100. */
static void make(mpk_context *cx, arena *a, size of, gen_source *out)
{
    static const uint32_t n_tokens[GRAPHS] = {1, 16, 64};
    const pass_options options = {.n_workers = WORKERS * (of.peers ? of.peers : 1),
                                  .n_peers = of.peers,
                                  .launch = of.peers > 1 ? PASS_LAUNCH_AOT : PASS_LAUNCH_AUTO,
                                  .page_bytes = 16384,
                                  .pages_per_worker = 1 << 16,
                                  .fusion = PASS_FUSE_FULL,
                                  .splits = 16,
                                  .split_tokens = 16,
                                  .norm_elements = 1 << 30,
                                  .relaxed = true,
                                  .whole_tiles = true,
                                  .logits = true};
    ir_graph *graphs[GRAPHS];
    tg_program program;
    program_image image;
    for (uint32_t i = 0; i < GRAPHS; i++)
        graphs[i] = build(cx, a, of, n_tokens[i]);
    check_ok(cx, pass_compile(cx, a, &options, GRAPHS, graphs, n_tokens, &program));
    check_ok(cx, image_make(cx, a, &program, &image));
    check_ok(cx, gen_source_of_image(cx, a, &image, gen_arch_find("sm_90a"), GEN_KERNEL, out));
}

static void any_batch_and_context_have_one_kernel(void **state)
{
    (void)state;
    static const size sizes[] = {{.slots = 1, .slot_pages = 20, .n_pages = 20, .kv_heads = 2},
                                 {.slots = 4, .slot_pages = 20, .n_pages = 80, .kv_heads = 2},
                                 {.slots = 1, .slot_pages = 36, .n_pages = 36, .kv_heads = 2},
                                 {.slots = 16, .slot_pages = 36, .n_pages = 100, .kv_heads = 2}};
    mpk_context cx = {0};
    arena a = {0};
    gen_source first, other;
    make(&cx, &a, sizes[0], &first);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size *of = &sizes[i];
        make(&cx, &a, *of, &other);
        assert_int_equal(other.text.n, first.text.n);
        assert_string_equal(other.text.at, first.text.at);
        assert_int_equal(other.n_caches, 1);
        assert_int_equal(other.caches[0].slots, of->slots);
        assert_int_equal(other.caches[0].slot_pages, of->slot_pages);
        assert_int_equal(other.caches[0].n_pages, of->n_pages);
    }
    make(&cx, &a, (size){.slots = 1, .slot_pages = 20, .n_pages = 20, .kv_heads = 1},
         &other); /* another model is another kernel */
    assert_string_not_equal(other.text.at, first.text.at);
    arena_free(&a);
}

/* Twice the layers are not one instance more. */
static void every_layer_runs_the_same_code(void **state)
{
    (void)state;
    /* of 64 tokens, those of a wide model on two peers are of two units in turn: the product of
     * heads is short of columns, that of the feed-forward layer is not */
    static const size sizes[] = {
        {.width = 256, .peers = 1}, {.width = 256, .peers = 2}, {.width = 2048, .peers = 2}};
    mpk_context cx = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        arena a = {0};
        gen_source few, many;
        size of = sizes[i];
        of.slots = 1, of.slot_pages = of.n_pages = 20, of.kv_heads = 2;
        of.layers = 3;
        make(&cx, &a, of, &few);
        of.layers = 6;
        make(&cx, &a, of, &many);
        assert_int_equal(many.n_instances, few.n_instances);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_batch_and_context_have_one_kernel),
                                       cmocka_unit_test(every_layer_runs_the_same_code)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
