/* fuse_latent_test.c - what stands before a latent attention becomes one operator, and products of
 * heads another, with the bits of the single ones. */
#include "fuse_bed.h"

enum { TOKENS = 5, HEADS = 3, LATENT = 16, ROTATED = 8, ROW = LATENT + ROTATED };

/* An attention of three heads over latents; each part may be another. */
typedef struct parts {
    const char *norm, *heads, *q, *k, *query, *row, *attention, *more;
} parts;

#define NORM "%lm = rms_norm(%l, %n) {eps = 0.25}\n"
#define GROUP "%lh = reshape(%lm) {shape = [5, 1, 16]}\n"
#define Q_ROPE "%qr = rope(%q, %t)\n"
#define K_ROPE "%kr = rope(%k, %t)\n"
#define QUERY "%qa = concat(%x, %qr) {axis = 2}\n"
#define CACHED \
    "%ka = concat(%lh, %kr) {axis = 2}\n%kw = latent_write(%ka, %p, %slots, %pages, %kc)\n"
#define ATTENTION "%y = attention(%qa, %kw, _, %p, %slots, %pages)\noutput %y\n"

static ir_graph *build(arena *a, const parts *p)
{
    char program[2048];
    ir_graph *g;
    snprintf(program, sizeof program,
             "input %%x : f32[5, 3, 16] live=tokens\ninput %%q : f32[5, 3, 8] live=tokens\n"
             "input %%l : f32[5, 16] live=tokens\ninput %%k : f32[5, 1, 8] live=tokens\n"
             "input %%m : f32[5, 1, 16] live=tokens\nconst %%n : f32[16]\n"
             "input %%p : i32[5] live=tokens\ninput %%slots : i32[5] live=tokens\n"
             "input %%pages : i32[1, 2]\nstate %%kc : f32[2, 1, 4, 24]\n"
             "%%t = rope_table(%%p) {size = 8}\n%%u = rope_table(%%p) {size = 8, theta = 100.0}\n"
             "%s%s%s%s%s%s%s%s",
             p->norm, p->heads, p->q, p->k, p->query, p->row, p->attention, p->more);
    check_ok(&cx, ir_parse(&cx, a, str_from(program), &g));
    return g;
}

static void parts_of_latents_are_joined(void **state)
{
    (void)state;
    static const struct {
        parts p;
        bool relaxed, joined;
    } rows[] = {
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, ""}, true, true},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, ""}, false, false},
        /* read elsewhere */
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %lm\n"}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %lh\n"}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %qr\n"}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %kr\n"}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %qa\n"}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %ka\n"}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION,
          "%z = attention(%qa, %kw, _, %p, %slots, %pages)\noutput %z\n"},
         true,
         false},
        /* two tables; no norm, or none with a weight, or one of heads, or with a residual */
        {{NORM, GROUP, Q_ROPE, "%kr = rope(%k, %u)\n", QUERY, CACHED, ATTENTION, ""}, true, false},
        {{"", "%lh = reshape(%l) {shape = [5, 1, 16]}\n", Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION,
          ""},
         true,
         false},
        {{"%lm = rms_norm(%l, _)\n", GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, ""},
         true,
         false},
        {{"%lm = rms_norm(%l, %n, %l)\n", GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, ""},
         true,
         false},
        {{"%lm = rms_norm(%m, %n)\n", GROUP, Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, ""},
         true,
         false},
        {{NORM, "%lh = copy(%m)\n", Q_ROPE, K_ROPE, QUERY, CACHED, ATTENTION, "output %lm\n"},
         true,
         false},
        /* not joined, or of three parts */
        {{NORM, GROUP, "%qr = copy(%q)\n", K_ROPE, QUERY, CACHED, ATTENTION, ""}, true, false},
        {{NORM, GROUP, Q_ROPE, K_ROPE,
          "%qo = slice(%x) {starts = [0, 0, 0], stops = [5, 3, 8]}\n%qe = slice(%x) {starts = [0, "
          "0, "
          "8], stops = [5, 3, 16]}\n%qa = concat(%qo, %qr, %qe) {axis = 2}\n",
          CACHED, ATTENTION, ""},
         true,
         false},
    };
    const uint64_t seed = check_seed();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        float plain[TOKENS * HEADS * ROW], fused[TOKENS * HEADS * ROW];
        const pass_options options = {.n_workers = 2, .relaxed = rows[i].relaxed};
        const ir_graph *g = build(&a, &rows[i].p), *f = fuse_as(&a, g, &options);
        if (count_of(f, "latent_rope") != rows[i].joined ||
            count_of(f, "latent_write") == rows[i].joined ||
            (rows[i].joined &&
             count_of(f, "rope") + count_of(f, "concat") + count_of(f, "rms_norm")))
            fail_msg("row %zu", i);
        evaluate_decoding(&a, g, seed + i, plain, TOKENS * HEADS * ROW);
        evaluate_decoding(&a, f, seed + i, fused, TOKENS * HEADS * ROW);
        assert_memory_equal(plain, fused, sizeof plain);
        arena_free(&a);
    }
}

/* Products of experts that each token goes to in order are those of heads; others stay. */
static void products_of_all_experts_are_of_heads(void **state)
{
    (void)state;
    static const struct {
        const char *heads, *ids, *product;
        bool relaxed, found;
    } rows[] = {
        {"{n = 3", "x0 * 0 + x1", "%x, %i, %w)", true, true},
        {"{n = 3", "x0 * 0 + x1", "%x, %i, %w)", false, false},
        /* other ids, another number of weights, rows that are a token's */
        {"{n = 3, start = 1", "x0 * 0 + x1", "%x, %i, %w)", true, false},
        {"{n = 3, step = 2", "x0 * 0 + x1", "%x, %i, %w)", true, false},
        {"{n = 3", "x0 + x1", "%x, %i, %w)", true, false},
        {"{n = 3", "x0 * 0 + x1", "%x, %i, %v)", true, false},
        {"{n = 3", "x0 * 0 + x1", "%r, %i, %w)", true, false},
        /* gated, summed, with a bias */
        {"{n = 3", "x0 * 0 + x1", "%x, %i, %w, %w) {glu = \"silu\"}", true, false},
        {"{n = 3", "x0 * 0 + x1", "%x, %i, %w, _, %s)", true, false},
        {"{n = 3", "x0 * 0 + x1", "%x, %i, %w, _, _, _, _, %b)", true, false},
    };
    const uint64_t seed = check_seed();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *g;
        char program[1024];
        enum { MOST = TOKENS * HEADS * 16 };
        float plain[MOST] = {0}, fused[MOST] = {0};
        const pass_options options = {.n_workers = 2, .relaxed = rows[i].relaxed};
        snprintf(program, sizeof program,
                 "input %%x : f32[5, 3, 8] live=tokens\ninput %%r : f32[5, 8] live=tokens\n"
                 "input %%s : f32[5, 3] live=tokens\ninput %%p : i32[5] live=tokens\n"
                 "const %%w : f32[3, 16, 8]\nconst %%v : f32[4, 16, 8]\nconst %%b : f32[3, 16]\n"
                 "%%c = reshape(%%p) {shape = [5, 1]}\n%%h = iota() %s, dtype = \"i32\"}\n"
                 "%%i = map(%%c, %%h) {expr = \"%s\", dtype = \"i32\"}\n"
                 "%%y = expert_linear(%s\noutput %%y\n",
                 rows[i].heads, rows[i].ids, rows[i].product);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *f = fuse_as(&a, g, &options);
        if (count_of(f, "head_linear") != rows[i].found ||
            count_of(f, "expert_linear") == rows[i].found)
            fail_msg("row %zu", i);
        const size_t n = (size_t)ir_elements(&g->tensors.at[g->outputs.at[0]]);
        evaluate_decoding(&a, g, seed + i, plain, n);
        evaluate_decoding(&a, f, seed + i, fused, n);
        assert_memory_equal(plain, fused, sizeof plain);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_latents_are_joined),
                                       cmocka_unit_test(products_of_all_experts_are_of_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
