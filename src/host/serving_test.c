/* serving_test.c - which programs take requests: the places of their step tensors, rows of rules,
 * draft models, and names alone. */
#include "check.h"
#include "host/books.h"
#include "pass/pass.h"

/* Two graphs of a program that samples, for three slots; the second has twice the tokens, or is a
 * draft model's of as many.  n_rules: rows of rules. */
static void make_program(mpk_context *cx, arena *a, int n_rules, bool drafts, tg_program *compiled,
                         program_image *image)
{
    static const char graph[] =
        "input %%tokens : i32[%d] live=tokens\ninput %%positions : i32[%d] live=tokens\n"
        "input %%slots : i32[%d] live=tokens\ninput %%pages : i32[3, 4]\ninput %%rows : i32[%d] "
        "live=rows\n"
        "input %%sampling : f32[%d, 4] live=rows\ninput %%seeds : i64[%d] live=rows\n"
        "input %%draws : i32[%d] live=rows\ninput %%asks : i32[%d, %d] live=rows\ninput %%rules : "
        "i32[%d, 32]\n"
        "input %%history : i32[60]\nconst %%e : f32[9, 16]\nstate %%choice : f32[3, 9]\n"
        "state %%%sk_cache.0 : f32[12, 1, 5, 16]\nstate %%%sv_cache.0 : f32[12, 1, 5, 16]\n"
        "%%x = embedding(%%tokens, %%e)\n%%h = reshape(%%x) {shape = [%d, 1, 16]}\n"
        "%%k, %%v = kv_write(%%h, %%h, %%positions, %%slots, %%pages, %%%sk_cache.0, "
        "%%%sv_cache.0)\n"
        "%%g = gather(%%x, %%rows)\n%%logits = linear(%%g, %%e)\n"
        "%%next, %%chosen, %%logprobs = sample(%%logits, %%sampling, %%seeds, %%draws, %%asks, "
        "%%rules, %%history, "
        "%%choice)\n"
        "output %%next\noutput %%logprobs\noutput %%logits\n";
    pass_options o = {.n_workers = 2,
                      .page_bytes = 16384,
                      .pages_per_worker = 64,
                      .n_draft_graphs = drafts,
                      .verify = true};
    ir_graph *g[2];
    uint32_t n_tokens[2] = {drafts ? 4 : 2, 4};
    for (int i = 0; i < 2; i++) {
        const int n = (int)n_tokens[i];
        const char *of = drafts && i ? "draft." : "";
        char *source = arena_alloc(a, 2, sizeof graph);
        snprintf(source, 2 * sizeof graph, graph, n, n, n, n, n, n, n, n, RT_ASKS, n_rules, of, of,
                 n, of, of);
        check_ok(cx, ir_parse(cx, a, str_from(source), &g[i]));
    }
    check_ok(cx, pass_compile(cx, a, &o, 2, g, n_tokens, compiled));
    check_ok(cx, image_make(cx, a, compiled, image));
}

/* A program serves if its graphs keep every step tensor at one place; a graph that has one
 * elsewhere cannot take the step that was written for another. */
static void test_places_of_graphs(void **state)
{
    (void)state;
    static const char *const names[] = {"tokens",   "positions", "slots",   "pages",   "rows",
                                        "sampling", "seeds",     "draws",   "logits",  "next",
                                        "asks",     "rules",     "history", "logprobs"};
    mpk_context cx = {0};
    arena a = {0};
    tg_program compiled;
    program_image image;
    rt_serving s;
    make_program(&cx, &a, 4, false, &compiled, &image);
    host_find_serving(&image, &s);
    assert_int_equal(s.ready, 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (uint32_t graph = 0; graph < 2; graph++) {
            const ir_tensor_id id = ir_find(image.ir[graph], names[i]);
            assert_int_not_equal(id, IR_NONE);
            tg_place *place = (tg_place *)(uintptr_t)&image.places[graph][id];
            place->offset += 4;
            host_find_serving(&image, &s);
            place->offset -= 4;
            if (s.ready)
                fail_msg("graph %u may have %s at a place of its own", graph, names[i]);
        }
    host_find_serving(&image, &s);
    assert_int_equal(s.ready, 1);
    arena_free(&a);
}

/* Every slot needs a row of rules; the rows beyond those are for masks. */
static void test_rows_of_rules(void **state)
{
    (void)state;
    for (int rows = 2; rows <= 5; rows++) {
        mpk_context cx = {0};
        arena a = {0};
        tg_program compiled;
        program_image image;
        rt_serving s;
        make_program(&cx, &a, rows, false, &compiled, &image);
        host_find_serving(&image, &s);
        assert_int_equal(s.ready, 1);
        assert_int_equal(s.n_slots, 3);
        assert_int_equal(s.asks != RT_NOWHERE, rows >= 3);
        assert_int_equal(s.n_masks, rows > 3 ? rows - 3 : 0);
        arena_free(&a);
    }
}

/* A draft model drafts if it sees the same slots, pages and rules, and takes every draft step. */
static void test_draft_model(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t axis;
    } sizes[] = {
        {"pages", 0}, {"pages", 1}, {"draft.k_cache.0", 0}, {"draft.k_cache.0", 2}, {"rules", 1}};
    mpk_context cx = {0};
    arena a = {0};
    tg_program compiled;
    program_image image;
    rt_serving s;
    rt_ahead ahead;
    make_program(&cx, &a, 4, true, &compiled, &image);
    host_find_serving(&image, &s);
    assert_true(host_find_draft_model(&image, &s, &ahead));
    assert_true(ahead.first_graph == 1 && ahead.n_vocab == 9);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const ir_graph *g = image.ir[1];
        ir_tensor *t = (ir_tensor *)(uintptr_t)&g->tensors.at[ir_find(g, sizes[i].name)];
        t->dims[sizes[i].axis]++;
        const bool fits = host_find_draft_model(&image, &s, &ahead);
        rt_serving unasked = s;
        unasked.asks = RT_NOWHERE; /* then no operator reads rules */
        const bool fits_unasked = host_find_draft_model(&image, &unasked, &ahead);
        t->dims[sizes[i].axis]--;
        if (fits || fits_unasked != (strcmp(sizes[i].name, "rules") == 0))
            fail_msg("a draft model may have another axis %u of %s", sizes[i].axis, sizes[i].name);
    }
    rt_serving larger = s;
    larger.max_tokens = 5;
    assert_false(host_find_draft_model(&image, &larger, &ahead));
    larger = s;
    larger.max_rows = larger.n_slots = 5;
    assert_false(host_find_draft_model(&image, &larger, &ahead));
    larger = s;
    larger.ready = 0;
    assert_false(host_find_draft_model(&image, &larger, &ahead));
    arena_free(&a);
}

/* A graph that is no language model may call an input by one of the names: it has no slots, and
 * takes no requests. */
static void test_names_alone(void **state)
{
    (void)state;
    static const char source[] = "input %history : i32[60]\ninput %x : f32[4, 8]\n"
                                 "%y = silu(%x)\n%z = copy(%history)\noutput %y\noutput %z\n";
    const pass_options o = {.n_workers = 2, .page_bytes = 16384, .pages_per_worker = 64};
    const uint32_t n_tokens = 4;
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    tg_program compiled;
    program_image image;
    rt_serving s;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    check_ok(&cx, pass_compile(&cx, &a, &o, 1, &g, &n_tokens, &compiled));
    check_ok(&cx, image_make(&cx, &a, &compiled, &image));
    host_find_serving(&image, &s);
    assert_int_equal(s.ready, 0);
    arena_free(&a);
}

/* Tables for more pages than a power of two in 32 bits can count end at that power. */
static void test_most_pages(void **state)
{
    (void)state;
    rt_serving s = {.n_pages = 3u << 29};
    host_plan_pages(&s, false, false);
    assert_int_equal(s.bucket_mask, INT32_MAX);
}

/* Who asks for drafts of no token gets no drafts, and no text is kept for them. */
static void test_no_drafts(void **state)
{
    (void)state;
    rt_serving s = {.ready = 1,
                    .n_pages = 8,
                    .pages_per_slot = 4,
                    .page_tokens = 16,
                    .history_tokens = 64,
                    .max_tokens = 16,
                    .max_rows = 8};
    const rt_serving before = s;
    host_plan_drafts(&s, 0, 2, true);
    assert_memory_equal(&s, &before, sizeof s);
    host_plan_drafts(&s, 4, 2, true);
    assert_true(s.draft_tokens == 4 && s.drafts_freely && s.keeps_text);
    assert_int_equal(s.gram_mask, 63);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_of_graphs), cmocka_unit_test(test_rows_of_rules),
        cmocka_unit_test(test_draft_model),      cmocka_unit_test(test_names_alone),
        cmocka_unit_test(test_most_pages),       cmocka_unit_test(test_no_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
