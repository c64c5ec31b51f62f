/* one_kernel_test.c - a model's kernel is the same for any number of requests and any context, so
 * that one that was compiled for some serves all: what differs is told to it when it is loaded.
 */
#include "check.h"

#include "gen/source.h"
#include "model/model.h"
#include "pass/pass.h"

enum { WORKERS = 132, GRAPHS = 3 };

typedef struct size {
    uint32_t slots, slot_pages, n_pages, kv_heads;
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
    const model_config config = {.family = STR("qwen3"),
                                 .n_layers = 2,
                                 .hidden_size = 256,
                                 .n_heads = 4,
                                 .n_kv_heads = of.kv_heads,
                                 .head_size = 64,
                                 .ffn_size = 512,
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
    const pass_options options = {.n_workers = WORKERS,
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
    static const size sizes[] = {{1, 20, 20, 2}, {4, 20, 80, 2}, {1, 36, 36, 2}, {16, 36, 100, 2}};
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
    make(&cx, &a, (size){1, 20, 20, 1}, &other); /* another model is another kernel */
    assert_string_not_equal(other.text.at, first.text.at);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_batch_and_context_have_one_kernel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
