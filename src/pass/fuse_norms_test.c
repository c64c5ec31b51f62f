/* fuse_norms_test.c - what becomes of norms that no product takes: post norms, norms with a gate,
 * and norms over all heads of q and of k; and which layer_norms products take. */
#include "fuse_bed.h"

static const pass_options gpu_options = {
    .n_workers = 132, .splits = 16, .split_tokens = 16, .norm_elements = 1 << 24, .relaxed = true};

/* A norm %l, what stands after it, and what reads it; then how many norms are left, and how many
 * operators that may become part of one. */
typedef struct row {
    const char *norm, *between, *more;
    bool relaxed;
    size_t norms, others;
} row;

/* operands: those that the row names; other: the operator that may become part of a norm. */
static void check_row(const char *operands, const char *other, const row *r)
{
    arena a = {0};
    char program[1024];
    ir_graph *g;
    pass_options o = gpu_options;
    o.relaxed = r->relaxed;
    snprintf(program, sizeof program, "%s%%l = %s\n%s%s", operands, r->norm, r->between, r->more);
    check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
    const ir_graph *fused = fuse_as(&a, g, &o);
    if (count_of(fused, "rms_norm") != r->norms || count_of(fused, other) != r->others)
        fail_msg("relaxed %d\n%s", r->relaxed, program);
    arena_free(&a);
}

/* A sum of a norm and another tensor becomes a norm with that tensor as its residual.  This needs a
 * norm that no other operator reads, equal shapes, and either f32 or a target that allows skipping
 * the rounding in between.  A norm with a residual is folded into no product. */
static void what_follows_a_norm(void **state)
{
    (void)state;
    static const char write[] =
        "%o = slice_scatter(%x, %z) {starts = [0, 0], stops = [20, 4], in_place = 1}\n";
    static const row rows[] = {
        {"rms_norm(%x, %w)", "", "%y = add(%l, %r)\noutput %y\n", true, 1, 0},
        {"rms_norm(%x, %w)", "", "%y = add(%r, %l)\noutput %y\n", true, 1, 0},
        {"rms_norm(%x, %w)", "", "%y = add(%r, %l)\noutput %y\n", false, 1, 0},
        {"rms_norm(%x, %w)", write, "%y = add(%l, %r)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, %w)", "", "%y = add(%l, %r)\noutput %y\noutput %l\n", true, 1, 1},
        {"rms_norm(%x, %w)", "", "%y = add(%l, %l)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, %w)", "", "%y = add(%l, %v)\noutput %y\n", true, 1, 1},
        {"rms_norm(%h, %w)", "", "%y = add(%l, %k)\noutput %y\n", true, 1, 0},
        {"rms_norm(%h, %w)", "", "%y = add(%l, %k)\noutput %y\n", false, 1, 1},
        {"rms_norm(%x, %w, %r)", "", "%y = add(%l, %r)\noutput %y\n", true, 1, 1},
        {"rms_norm(%h, %w)", "", "%y = linear(%l, %a)\noutput %y\n", true, 0, 0},
        {"rms_norm(%h, %w, %k)", "", "%y = linear(%l, %a)\noutput %y\n", true, 1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row("state %x : f32[20, 32]\ninput %z : f32[20, 4]\ninput %r : f32[20, 32]\n"
                  "const %w : f32[32]\nconst %a : f32[8, 32]\ninput %v : f32[1, 32]\n"
                  "input %h : bf16[20, 32]\ninput %k : bf16[20, 32]\n",
                  "add", &rows[i]);
}

/* A product of a norm and an activated gate becomes a norm with that gate, on the conditions of
 * sums.  Where a reshape of the norm stands between both, the gate gets one. */
static void gates_of_norms(void **state)
{
    (void)state;
    static const char write[] =
        "%o = slice_scatter(%x, %s) {starts = [0, 0], stops = [20, 4], in_place = 1}\n";
    static const row rows[] = {
        {"rms_norm(%x, %w)", "", "%y = silu_mul(%r, %l)\noutput %y\n", false, 1, 0},
        {"rms_norm(%x, %w)", "", "%y = silu_mul(%l, %r)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, %w)", write, "%y = silu_mul(%r, %l)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, %w)", "", "%y = silu_mul(%r, %l)\noutput %y\noutput %l\n", true, 1, 1},
        {"rms_norm(%x, %w)", "", "%y = silu_mul(%v, %l)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, %w, %r)", "", "%y = silu_mul(%r, %l)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, _, _, %r)", "", "%y = silu_mul(%r, %l)\noutput %y\n", true, 1, 1},
        {"rms_norm(%x, _, _, %r)", "", "%y = add(%r, %l)\noutput %y\n", true, 1, 0},
        {"rms_norm(%x, _, _, %r)", "", "%y = linear(%l, %a)\noutput %y\n", true, 1, 0},
        {"rms_norm(%h, %w)", "%f = reshape(%l) {shape = [20, 64]}\n",
         "%y = silu_mul(%z, %f)\noutput %y\n", true, 1, 0},
        {"rms_norm(%h, %w)", "%f = reshape(%l) {shape = [20, 64]}\n",
         "%y = silu_mul(%z, %f)\noutput %y\n", false, 1, 1},
        {"rms_norm(%h, %w)", "%f = reshape(%l) {shape = [20, 64]}\n",
         "%y = silu_mul(%z, %f)\noutput %y\noutput %f\n", true, 1, 1},
        {"rms_norm(%h, %w)", "%f = reshape(%l) {shape = [20, 64]}\n",
         "%y = silu_mul(%z, %f)\noutput %y\noutput %l\n", true, 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row("state %x : f32[20, 32]\ninput %s : f32[20, 4]\ninput %r : f32[20, 32]\n"
                  "const %w : f32[32]\nconst %a : f32[8, 32]\ninput %v : f32[1, 32]\n"
                  "input %h : bf16[20, 2, 32]\ninput %z : bf16[20, 64]\n",
                  "silu_mul", &rows[i]);
}

/* The same numbers, and where z is a part of a wider product no copy of it. */
static void gated_heads_give_the_same_numbers(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : f32[5, 32] live=tokens\nconst %wv : f32[48, 32]\nconst %wz : f32[48, 32]\n"
        "const %n : f32[12]\nconst %wo : f32[32, 48]\n"
        "%v = linear(%x, %wv)\n%z = linear(%x, %wz)\n%h = reshape(%v) {shape = [5, 4, 12]}\n"
        "%l = rms_norm(%h, %n)\n%f = reshape(%l) {shape = [5, 48]}\n%m = silu_mul(%z, %f)\n"
        "%y = linear(%m, %wo)\noutput %y\n";
    arena a = {0};
    ir_graph *g;
    float y[2][5 * 32];
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    ir_graph *fused = fuse_as(&a, g, &(pass_options){.n_workers = 2});
    assert_int_equal(count_of(fused, "linear"), 2);
    assert_int_equal(count_of(fused, "rms_norm"), 1);
    assert_int_equal(count_of(fused, "silu_mul"), 0);
    for (size_t o = 0; o < fused->ops.n; o++) /* views alone: no work */
        if (strcmp(fused->ops.at[o].def->name, "reshape") == 0)
            assert_true(fused->tensors.at[fused->ops.at[o].out[0]].shares != IR_NONE);
    const uint64_t seed = check_seed();
    evaluate_decoding(&a, g, seed, y[0], 5 * 32);
    evaluate_decoding(&a, fused, seed, y[1], 5 * 32);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    arena_free(&a);
}

/* A layer_norm goes into the products of a call that read it, on a GPU, if there is a body for all
 * of them: of bf16, of 17 to 4,096 rows, with weights by rows; and if nothing else reads it. */
static void layer_norms_before_products(void **state)
{
    (void)state;
    static const struct {
        const char *rows, *dtype, *norm, *more;
        size_t norms, centred;
    } rows[] = {
        {"17", "bf16", "layer_norm(%x, %n, %m)", "", 0, 1},
        {"4096", "bf16", "layer_norm(%x, %n, %m)", "", 0, 1},
        {"4097", "bf16", "layer_norm(%x, %n, %m)", "", 1, 0},
        {"17", "bf16", "layer_norm(%x, %n)", "", 0, 1},
        {"17", "bf16", "layer_norm(%x, %n, %m)",
         "%l = linear(%h, %u, _, _, %b)\n%z = add(%l, %k)\noutput %z\n", 0, 2},
        {"17", "bf16", "layer_norm(%x, %n, %m)", "output %h\n", 1, 0},
        {"17", "bf16", "layer_norm(%x, %n, %m)", "%z = gelu(%h)\noutput %z\n", 1, 0},
        {"17", "bf16", "layer_norm(%x, %n, %v)", "", 1, 0},
        {"17", "bf16", "layer_norm(%x, %v, %m)", "", 1, 0},
        {"17", "bf16", "layer_norm(%x, _, %m)", "", 1, 0},
        {"16", "bf16", "layer_norm(%x, %n, %m)", "", 1, 0},
        {"17", "f32", "layer_norm(%x, %n, %m)", "", 1, 0},
        {"17", "f16", "layer_norm(%x, %n, %m)", "", 1, 0},
        {"17", "bf16", "layer_norm(%x, %n, %m)", "%z = linear(%h, %t)\noutput %z\n", 1, 0},
        {"17] live=tokens", "bf16", "layer_norm(%x, %n, %m)", "", 1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[1024], x[64];
        ir_graph *g;
        const int n_digits = (int)strcspn(rows[i].rows, "]");
        const char *live = strchr(rows[i].rows, ']');
        snprintf(x, sizeof x, "[%.*s, 32]%s", n_digits, rows[i].rows, live ? live + 1 : "");
        const char *d = rows[i].dtype;
        snprintf(program, sizeof program,
                 "input %%x : %s%s\nconst %%n : %s[32]\nconst %%m : %s[32]\ninput %%v : %s[32]\n"
                 "input %%k : %s[%.*s, 24]\nconst %%w : %s[8, 32]\nconst %%u : %s[24, 32]\nconst "
                 "%%b : %s[24]\n"
                 "const %%s : %s[32, 8]\n%%t = transpose(%%s) {perm = [1, 0]}\n"
                 "%%h = %s {eps = 1e-05}\n%%y = linear(%%h, %%w)\noutput %%y\n%s",
                 d, x, d, d, d, d, n_digits, rows[i].rows, d, d, d, d, rows[i].norm, rows[i].more);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *fused = fuse_as(&a, g, &gpu_options);
        size_t centred = 0;
        for (size_t o = 0; o < fused->ops.n; o++)
            centred += strcmp(fused->ops.at[o].def->name, "linear") == 0 &&
                       fused->ops.at[o].attributes[5].i;
        if (count_of(fused, "layer_norm") != rows[i].norms || centred != rows[i].centred)
            fail_msg("%zu norms, %zu centred\n%s", count_of(fused, "layer_norm"), centred, program);
        pass_options cpu = gpu_options;
        cpu.relaxed = false;
        assert_int_equal(count_of(fuse_as(&a, g, &cpu), "layer_norm"), 1);
        arena_free(&a);
    }
}

/* ---- norms of all heads ---- */

enum { TOKENS = 5, HEADS = 4, COLUMNS = HEADS * 8 };

/* One attention of four heads and two KV heads of 8 entries.  norms: what stands between the
 * products and the heads, and makes %qn and %kn; ropes: makes %qr and %kr of the heads %qh and %kh;
 * more: what follows. */
static ir_graph *attention_of(arena *a, const char *norms, const char *ropes, const char *more)
{
    static const char before[] =
        "input %x : f32[5, 40] live=tokens\nconst %wq : f32[32, 40]\nconst %wk : f32[16, 40]\n"
        "const %wv : f32[16, 40]\nconst %nq : f32[32]\nconst %nk : f32[16]\n"
        "const %mq : f32[8]\nconst %mk : f32[8]\n"
        "input %positions : i32[5] live=tokens\n%table = rope_table(%positions) {size = 8}\n"
        "input %slots : i32[5] live=tokens\ninput %pages : i32[1, 2]\n"
        "state %kc : f32[2, 2, 4, 8]\nstate %vc : f32[2, 2, 4, 8]\n%q = linear(%x, %wq)\n"
        "%k = linear(%x, %wk)\n%v = linear(%x, %wv)\n";
    static const char after[] =
        "%qh = reshape(%qn) {shape = [5, 4, 8]}\n%kh = reshape(%kn) {shape = [5, 2, 8]}\n"
        "%vh = reshape(%v) {shape = [5, 2, 8]}\n";
    static const char end[] =
        "%ko, %vo = kv_write(%kr, %vh, %positions, %slots, %pages, %kc, "
        "%vc)\n%y = attention(%qr, %ko, %vo, %positions, %slots, %pages)\noutput %y\n";
    char program[2048];
    ir_graph *g;
    snprintf(program, sizeof program, "%s%s%s%s%s%s", before, norms, after, ropes, end, more);
    check_ok(&cx, ir_parse(&cx, a, str_from(program), &g));
    return g;
}

/* Rotations of the heads of q or k, without a norm, and with one before or after. */
#define NONE(x) "%" x "r = rope(%" x "h, %table)\n"
#define FIRST(x, more) "%" x "m = rms_norm(%" x "h, %m" x more "\n%" x "r = rope(%" x "m, %table)\n"
#define LAST(x, more) "%" x "t = rope(%" x "h, %table)\n%" x "r = rms_norm(%" x "t, %m" x more "\n"
#define ROPES NONE("q") NONE("k")

/* Norms over all heads of q and of k become one operator between the product and the attention,
 * which gives the same bits; where one of them is another kind of norm, or of other columns, or
 * read elsewhere, or each head of one has a norm beside, or peers share the heads, they stay. */
static void norms_of_all_heads(void **state)
{
    (void)state;
    static const char both[] =
        "%qn = rms_norm(%q, %nq) {eps = 1e-05}\n%kn = rms_norm(%k, %nk) {eps = 1e-05}\n";
    static const struct {
        const char *norms, *ropes, *more;
        uint32_t peers;
        size_t joined;
    } rows[] = {
        {both, ROPES, "", 1, 1},
        {both, ROPES, "", 2, 0},
        {both, ROPES, "output %qn\n", 1, 0},
        {"%qn = rms_norm(%q, %nq) {eps = 1e-05}\n%kn = rms_norm(%k, %nk) {eps = 0.001}\n", ROPES,
         "", 1, 0},
        {"%qn = rms_norm(%q, %nq)\n%kn = reshape(%k) {shape = [5, 16]}\n", ROPES, "", 1, 0},
        {"%qn = rms_norm(%q, %nq)\n%kn = rms_norm(%k, _)\n", ROPES, "", 1, 0},
        {"%qn = rms_norm(%q, %nq)\n%kn = rms_norm(%v, %nk)\n", ROPES, "%z = silu(%k)\noutput %z\n",
         1, 0},
        {"%qn = rms_norm(%q, %nq, %q)\n%kn = rms_norm(%k, %nk)\n", ROPES, "", 1, 0},
        {both, FIRST("q", ") {eps = 1e-05}") NONE("k"), "", 1, 0},
        {both, NONE("q") FIRST("k", ") {eps = 1e-05}"), "", 1, 0},
    };
    const uint64_t seed = check_seed();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        float plain[TOKENS * COLUMNS], fused[TOKENS * COLUMNS];
        const pass_options cpu = {.n_workers = 2, .n_peers = rows[i].peers};
        const ir_graph *g = attention_of(&a, rows[i].norms, rows[i].ropes, rows[i].more),
                       *f = fuse_as(&a, g, &cpu);
        if (count_of(f, "rms_norm_parts") != rows[i].joined ||
            count_of(f, "rope_kv") != rows[i].joined)
            fail_msg("%u peers, %zu joined\n%s%s", rows[i].peers, count_of(f, "rms_norm_parts"),
                     rows[i].norms, rows[i].more);
        evaluate_decoding(&a, g, seed + i, plain, TOKENS * COLUMNS);
        evaluate_decoding(&a, f, seed + i, fused, TOKENS * COLUMNS);
        assert_memory_equal(plain, fused, sizeof plain);
        const ir_graph *split = fuse_as(&a, g, &gpu_options);
        if (rows[i].peers == 1)
            assert_int_equal(count_of(split, "attention_split"), rows[i].joined);
        arena_free(&a);
    }
}

/* Norms of heads may stand before the rotations or after them, those of q and of k alike: in the
 * operator that takes all of it they give the same bits.  A norm that is read elsewhere, or on both
 * sides, stays. */
static void norms_before_and_after_rotation(void **state)
{
    (void)state;
    static const struct {
        const char *ropes, *more;
        size_t joined, last;
    } rows[] = {
        {FIRST("q", ")") FIRST("k", ")"), "", 1, 0},
        {LAST("q", ")") LAST("k", ")"), "", 1, 1},
        {LAST("q", ") {eps = 0.5}") LAST("k", ") {eps = 0.5}"), "", 1, 1},
        {LAST("q", ") {eps = 0.5}") LAST("k", ")"), "", 0, 0},
        {LAST("q", ")") FIRST("k", ")"), "", 0, 0},
        {FIRST("q", ")") LAST("k", ")"), "", 0, 0},
        {NONE("q") LAST("k", ")"), "", 1, 1},
        {LAST("q", ")") NONE("k"), "", 1, 1},
        {LAST("q", ", %qt)") LAST("k", ")"), "", 0, 0},
        {LAST("q", ")") LAST("k", ")"), "output %kr\n", 0, 0},
        {LAST("q", ")") LAST("k", ")"), "output %qt\n", 0, 0},
        {"%qt = rope(%qh, %table)\n%qr = rms_norm(%qt, _)\n" NONE("k"), "", 0, 0},
        {"%qm = rms_norm(%qh, %mq)\n%qt = rope(%qm, %table)\n%qr = rms_norm(%qt, %mq)\n" NONE("k"),
         "", 0, 0},
    };
    const uint64_t seed = check_seed();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        float plain[TOKENS * COLUMNS], fused[TOKENS * COLUMNS];
        const pass_options cpu = {.n_workers = 2},
                           paper = {.n_workers = 2, .fusion = PASS_FUSE_PAPER};
        const ir_graph *g = attention_of(
            &a, "%qn = reshape(%q) {shape = [5, 32]}\n%kn = reshape(%k) {shape = [5, 16]}\n",
            rows[i].ropes, rows[i].more);
        const ir_graph *f = fuse_as(&a, g, &cpu), *split = fuse_as(&a, g, &gpu_options);
        if (count_of(f, "rope_kv") != rows[i].joined ||
            count_of(split, "attention_split") != rows[i].joined ||
            count_of(fuse_as(&a, g, &paper), "attention_qkv") != rows[i].joined - rows[i].last)
            fail_msg("row %zu", i);
        for (size_t o = 0; o < f->ops.n; o++)
            if (strcmp(f->ops.at[o].def->name, "rope_kv") == 0)
                assert_int_equal(f->ops.at[o].attributes[4].i, rows[i].last);
        evaluate_decoding(&a, g, seed + i, plain, TOKENS * COLUMNS);
        evaluate_decoding(&a, f, seed + i, fused, TOKENS * COLUMNS);
        assert_memory_equal(plain, fused, sizeof plain);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_follows_a_norm),
                                       cmocka_unit_test(gates_of_norms),
                                       cmocka_unit_test(gated_heads_give_the_same_numbers),
                                       cmocka_unit_test(layer_norms_before_products),
                                       cmocka_unit_test(norms_of_all_heads),
                                       cmocka_unit_test(norms_before_and_after_rotation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
