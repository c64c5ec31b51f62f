/* fuse_latent_test.c - what stands before a latent attention becomes one operator, with the bits of
 * the single ones. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_latents_are_joined)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
