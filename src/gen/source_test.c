/* source_test.c - what a source says of its programs: JIT tasks take pages of their own from the
 * ring only if one of their bodies loads; no block program is searched that is not taken; products
 * of few tokens run one block program, whatever the size of the graph; operators of one body whose
 * text is the same share an instance; a kernel has each table of shapes once, and of the code for
 * many tokens what its tasks need. */
#include "check.h"

#include "gen/source.h"
#include "shape/linear_tile_shape.h"

enum { GRAPHS = 2 };

static const char *const graphs[GRAPHS] = {
    /* it loads w */
    "input %x : bf16[4, 1024] live=tokens\nconst %w : bf16[1024, 1024]\n%y = linear(%x, %w)\n",
    /* it loads nothing */
    "input %x : f32[4, 300] live=tokens\n%y = softmax(%x)\n",
};

/* Do the constants of a program for sm_90a in which these graphs have JIT tasks say so, and whether
 * these load? */
static void check_constants(mpk_context *cx, bool first, bool second, bool loads)
{
    const bool jit[GRAPHS] = {first, second};
    const gen_arch *arch = gen_arch_find("sm_90a");
    arena a = {0};
    gen_graph made[GRAPHS];
    gen_source source;
    char words[64];
    for (int i = 0; i < GRAPHS; i++) {
        ir_graph *g;
        check_ok(cx, ir_parse(cx, &a, str_from(graphs[i]), &g));
        assert_int_equal(g->ops.n, 1);
        made[i] = (gen_graph){.ir = g, .n_tokens = 4, .jit = jit[i] ? &jit[i] : NULL};
    }
    check_ok(cx, gen_source_make(cx, &a, GRAPHS, made, arch->n_sms, arch, GEN_KERNEL, &source));
    snprintf(words, sizeof words, "#define MPK_JIT_PAGES %u ",
             loads ? source.rooms[0].n_pages / 2 : 0);
    assert_non_null(strstr(source.text.at, words));
    snprintf(words, sizeof words, "#define MPK_HYBRID %d ", first || second);
    assert_non_null(strstr(source.text.at, words));
    arena_free(&a);
}

/* Half of the ring belongs to JIT tasks exactly if the program has some whose bodies load; a
 * program without them gives up nothing. */
static void test_pages_of_jit_tasks(void **state)
{
    (void)state;
    mpk_context cx = {0};
    check_constants(&cx, false, false, false);
    check_constants(&cx, false, true, false);
    check_constants(&cx, true, false, true);
    check_constants(&cx, true, true, true);
}

/* Experts of many tokens take more pages of a ring than others before they let one go: the ring of
 * JIT tasks has them too. */
static void test_rings_hold_what_bodies_take(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    const bool jit = true;
    const gen_arch *arch = gen_arch_find("sm_90a");
    gen_graph made = {.n_tokens = 200, .jit = &jit};
    gen_source source;
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a,
                           STR("input %x : bf16[200, 256] live=tokens\n"
                               "input %i : i32[200, 2] live=tokens\n"
                               "const %g : bf16[4, 64, 256]\nconst %u : bf16[4, 64, 256]\n"
                               "%y = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\n"),
                           &g));
    made.ir = g;
    check_ok(&cx, gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
    assert_string_equal(source.uses[0][0].body->name, "expert_tile");
    assert_true(source.rooms[0].n_pages / 2 >= source.uses[0][0].body->pages);
    arena_free(&a);
}

/* Which body does the first operator of a graph get, if scratch may have so many bytes, and how
 * many block programs were searched for it?  The graph lies in `a`. */
static const gen_body *choose(mpk_context *cx, arena *a, const char *form, uint32_t scratch_most,
                              size_t *n_searched)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    gen_caches caches = {0};
    gen_choices choices = {0};
    ir_graph *g;
    check_ok(cx, ir_parse(cx, a, str_from(form), &g));
    gen_call c = {.ir = g,
                  .op = &g->ops.at[0],
                  .n_tokens = 4,
                  .n_workers = arch->n_sms,
                  .needs = arch->features,
                  .scratch_most = scratch_most,
                  .halves = IR_BF16,
                  .arena = a,
                  .caches = &caches,
                  .choices = &choices};
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    *n_searched = choices.made.n;
    return body;
}

/* The most experts and splits of a context, the fewest rows, and the largest heads and caches, that
 * a body takes. */
static void test_limits_of_bodies(void **state)
{
    (void)state;
#define EXPERTS_OF(n)                                                                       \
    "input %x : bf16[129, 64] live=tokens\ninput %i : i32[129, 2] live=tokens\n"            \
    "const %g : bf16[" n ", 8, 64]\nconst %u : bf16[" n ", 8, 64]\n%y = expert_linear(%x, " \
    "%i, %g, %u) {glu = \"silu\"}\n"
#define SPLITS(n) \
    "input %p : bf16[2, " n ", 128]\ninput %l : f32[2, " n ", 2]\n%y = attention_fold(%p, %l)\n"
#define CENTRED(tokens)                                                                        \
    "input %x : bf16[" tokens ", 64]\nconst %w : bf16[64, 64]\nconst %b : bf16[64]\nconst %n " \
    ": bf16[64]\nconst %m : f32[64]\n%y = linear(%x, %w, _, _, %b, _, _, %n, _, %m) {centred " \
    "= 1}\n"
#define CACHED(dtype, entries, tokens, rows, size, columns)                                       \
    "input %x : " dtype "[" rows ", " columns "]\nstate %k : " dtype "[" entries ", 1, 70, " size \
    "]\nstate %v : " dtype "[" entries ", 1, 70, " size "]\ninput %i : i32[" tokens               \
    "]\n%p, %l, %j, %w = attention_cache(%x, %k, %v, %i) {heads = 1, kv_heads = 1, head_size "    \
    "= " size ", splits = 2}\n"
    static const char *const cached = "attention_cache_rows";
    const struct {
        const char *body, *graph;
        bool taken;
    } rows[] = {{"expert_tile", EXPERTS_OF("256"), true},
                {"expert_tile", EXPERTS_OF("257"), false},
                {"fold_rows", SPLITS("256"), true},
                {"fold_rows", SPLITS("257"), false},
                {"linear_tile", CENTRED("17"), true},
                {"linear_tile", CENTRED("16"), false},
                /* a warp's lanes, pieces of eight entries, scratch, offsets of 32 bits */
                {cached, CACHED("bf16", "1", "1", "1", "256", "768"), true},
                {cached, CACHED("bf16", "1", "1", "1", "512", "1536"), false},
                {cached, CACHED("f32", "1", "1", "1", "16", "48"), true},
                {cached, CACHED("f32", "1", "1", "1", "12", "36"), false},
                {cached, CACHED("bf16", "1", "50", "50", "208", "624"), true},
                {cached, CACHED("bf16", "1", "51", "51", "208", "624"), false},
                {cached, CACHED("bf16", "8192", "32", "262144", "256", "768"), true},
                {cached, CACHED("bf16", "16384", "32", "524288", "256", "768"), false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        arena a = {0};
        size_t n_searched;
        const gen_body *body = choose(&cx, &a, rows[i].graph, 0, &n_searched);
        if (!body || (strcmp(body->name, rows[i].body) == 0) != rows[i].taken)
            fail_msg("row %zu: the body is %s", i, body ? body->name : "none");
        arena_free(&a);
    }
}

/* Parts that a body for many tokens has made are folded in its unit, if there is a body for so many
 * tokens and such heads. */
static void test_folds_behind_many(void **state)
{
#define FOLDED(tokens, columns)                                                           \
    "input %x : bf16[" tokens ", 256] live=tokens\ninput %i : i32[" tokens                \
    ", 2] live=tokens\nconst %g : bf16[4, " columns ", 256]\nconst %u : bf16[4, " columns \
    ", 256]\ninput %l : f32[" tokens ", 2, 2] live=tokens\n"                              \
    "%p = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\n%y = attention_fold(%p, %l)\n"
    static const struct {
        const char *graph;
        uint32_t tokens;
        bool is_many;
    } rows[] = {{FOLDED("200", "128"), 200, true},
                {FOLDED("257", "128"), 257, false},
                {FOLDED("200", "120"), 200, false}};
    const gen_arch *arch = gen_arch_find("sm_90a");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        arena a = {0};
        gen_graph made = {.n_tokens = rows[i].tokens};
        gen_source source;
        ir_graph *g;
        check_ok(&cx, ir_parse(&cx, &a, str_from(rows[i].graph), &g));
        made.ir = g;
        check_ok(&cx, gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
        assert_string_equal(source.uses[0][0].body->name, "expert_tile");
        assert_int_equal(source.uses[0][1].body->many != 0, rows[i].is_many);
        arena_free(&a);
    }
}

/* A body of a lower rank is asked for its scratch only if none above finds room: a block program
 * has to be searched and proved for that. */
static void test_scratch_is_asked_in_order(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    size_t n_searched;
    const gen_body *streamed = choose(&cx, &a, graphs[0], 64 << 10, &n_searched);
    assert_string_equal(streamed->name, "linear_stream");
    assert_int_equal(n_searched, 0);
    const gen_body *other = choose(&cx, &a, graphs[0], 1, &n_searched);
    assert_true(other && other->rank < streamed->rank);
    assert_true(n_searched > 0);
    arena_free(&a);
}

/* A kernel has 64 KB of constant memory for all of its units, so one of them defines the tables of
 * shapes. */
static void test_shapes_stand_once(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    gen_source source;
    const gen_arch *arch = gen_arch_find("sm_90a");
    check_ok(&cx, ir_parse(&cx, &a, str_from(graphs[0]), &g));
    gen_graph made = {.ir = g, .n_tokens = 4};
    check_ok(&cx, gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
    assert_non_null(strstr(source.text.at, "#if MPK_UNIT > 1\n"
                                           "extern __constant__ stream_shape stream_shape_of[1];\n"
                                           "#else\n"
                                           "__constant__ stream_shape stream_shape_of[1] = {\n"));
    assert_null(strstr(source.text.at, "static __constant__ stream_shape"));
    arena_free(&a);
}

/* The block program that the product of a graph of n tokens runs, as its instance's note tells it;
 * empty: none. */
static void find_program(mpk_context *cx, const char *form, uint32_t n, text *out)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    arena a = {0};
    ir_graph *g;
    gen_source source;
    text words = {0};
    text_print(&words, form, n, n);
    check_ok(cx, ir_parse(cx, &a, str_from(words.at), &g));
    gen_graph made = {.ir = g, .n_tokens = n};
    check_ok(cx, gen_source_make(cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
    const char *note = strstr(source.text.at, " * block product"),
               *end = note ? strstr(note, "*/") : NULL;
    if (end)
        text_print(out, "%.*s", (int)(end - note), note);
    text_free(&words);
    arena_free(&a);
}

/* Company decides which graph of up to 16 tokens runs a step, and must not change the order of
 * sums.  Rows of a number of columns that is no multiple of 8 are not streamed. */
static void test_order_of_few_tokens(void **state)
{
    static const char *const forms[] = {
        "input %%x : f32[%u, 384] live=tokens\nconst %%w : f32[192, 384]\n%%y = linear(%%x, %%w)\n",
        "input %%x : f16[%u, 2050] live=tokens\nconst %%w : f16[70, 2050]\n%%y = linear(%%x, "
        "%%w)\n",
        "input %%x : f16[%u, 770] live=tokens\nconst %%w : f16[3000, 770]\ninput %%r : f16[%u, "
        "3000] live=tokens\n"
        "%%y = linear(%%x, %%w, _, _, _, _, _, _, %%r)\n",
    };
    (void)state;
    mpk_context cx = {0};
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        text first = {0};
        find_program(&cx, forms[f], 16, &first);
        for (uint32_t n = 1; n <= 16; n++) {
            text other = {0};
            find_program(&cx, forms[f], n, &other);
            assert_int_equal(other.n, first.n);
            assert_true(!first.n || strcmp(other.at, first.at) == 0);
            text_free(&other);
        }
        /* in fp32 teams of threads take rows of the weight */
        assert_int_equal(first.n != 0, f != 0);
        text_free(&first);
    }
}

/* Equal products whose tasks have different boxes are asked of super one by one, and yet print the
 * same text: they share an instance.  What was chosen for each must stay, while other operators are
 * printed in between: at the end all are asked for again. */
static void test_boxes_that_print_alike(void **state)
{
    enum { BOXES = 16, OPS = 4 * BOXES };
    (void)state;
    mpk_context cx = {0};
    const gen_arch *arch = gen_arch_find("sm_90a");
    arena a = {0};
    ir_graph *g;
    gen_source source;
    ir_box boxes[OPS] = {{{0}, {0}}};
    text words = {0};
    text_print(&words, "input %%a : f16[64, 512]\ninput %%b : f16[512, 64]\n");
    for (int i = 0; i < BOXES; i++)
        text_print(&words, "input %%x%d : f32[4, %d]\n", i, 300 + i);
    for (int i = 0; i < 2 * BOXES; i++)
        text_print(&words, "%%y%d = batch_matmul(%%a, %%b)\n%%z%d = softmax(%%x%d)\n", i, i,
                   i % BOXES);
    check_ok(&cx, ir_parse(&cx, &a, str_from(words.at), &g));
    assert_int_equal(g->ops.n, OPS);
    for (int i = 0; i < OPS; i++) {
        boxes[i] = ir_box_whole(&g->tensors.at[g->ops.at[i].out[0]]);
        if (i % 2 == 0)
            boxes[i].hi[1] -= i / 2 % BOXES; /* 64 to 49 columns: as many tiles of 16 */
    }
    gen_graph made = {.ir = g, .n_tokens = 4, .boxes = boxes};
    check_ok(&cx, gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
    assert_int_equal(source.n_instances, 1 + BOXES);
    for (int i = 0; i < OPS; i += 2)
        assert_int_equal(source.uses[0][i].instance, source.uses[0][0].instance);
    text_free(&words);
    arena_free(&a);
}

/* Sums of 64 tokens are of the unit of the product before them, and print alike in both units:
 * where the two take turns, each is one instance for all layers. */
static void test_sums_that_print_alike(void **state)
{
    enum { LAYERS = 5, EACH = 4, OPS = EACH * LAYERS };
    (void)state;
    mpk_context cx = {0};
    const gen_arch *arch = gen_arch_find("sm_90a");
    arena a = {0};
    ir_graph *g;
    gen_source source;
    text words = {0};
    text_print(&words, "input %%z : bf16[64, 1024] live=tokens\n"
                       "input %%s0 : bf16[64, 2048] live=tokens\n"
                       "const %%o : bf16[2048, 1024]\nconst %%d : bf16[2048, 2048]\n");
    for (int i = 0; i < LAYERS; i++)
        text_print(&words,
                   "%%a%d = linear(%%z, %%o)\n%%r%d = add_parts(%%a%d, %%s%d)\n"
                   "%%b%d = linear(%%r%d, %%d)\n%%s%d = add_parts(%%b%d, %%r%d)\n",
                   i, i, i, i, i, i, i + 1, i, i);
    check_ok(&cx, ir_parse(&cx, &a, str_from(words.at), &g));
    assert_int_equal(g->ops.n, OPS);
    gen_graph made = {.ir = g, .n_tokens = 64};
    check_ok(&cx, gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
    assert_int_equal(gen_unit_of(source.uses[0][1].body), GEN_UNIT_SOME);
    assert_int_equal(gen_unit_of(source.uses[0][3].body), GEN_UNIT_HEADS);
    assert_int_equal(source.n_instances, EACH);
    for (int i = 0; i < OPS; i++)
        assert_int_equal(source.uses[0][i].instance, i % EACH);
    for (int i = 0; i < EACH; i++)
        assert_int_equal(source.instances[i].uses, LAYERS);
    text_free(&words);
    arena_free(&a);
}

/* Norms of heads are one instance for steps of one token and of several, though a view of one token
 * has no distance between tokens; with a gate that is a part of wider rows two, of which the one
 * for a token has rows of whole pieces, too. */
static void test_heads_of_one_token(void **state)
{
    (void)state;
    static const struct {
        const char *gate, *more;
        uint32_t instances;
    } rows[] = {{"", "", 1}, {"%g = reshape(%z) {shape = [%T, 2, 128]}\n", ", _, %g", 2}};
    mpk_context cx = {0};
    const gen_arch *arch = gen_arch_find("sm_90a");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        gen_graph made[2];
        gen_source source;
        for (int k = 0; k < 2; k++) {
            char words[512], *at = words;
            ir_graph *g;
            snprintf(words, sizeof words,
                     "input %%q : bf16[%%T, 256] live=tokens\nconst %%w : bf16[128]\n"
                     "input %%p : bf16[%%T, 264] live=tokens\n"
                     "%%z = slice(%%p) {starts = [0, 8], stops = [%%T, 264]}\n"
                     "%%x = reshape(%%q) {shape = [%%T, 2, 128]}\n%s%%y = rms_norm(%%x, %%w%s)\n",
                     rows[i].gate, rows[i].more);
            while ((at = strstr(at, "%T"))) /* their number */
                memcpy(at, k ? " 5" : " 1", 2);
            check_ok(&cx, ir_parse(&cx, &a, str_from(words), &g));
            assert_int_equal(g->tensors.at[ir_find(g, "x")].stride[0], k ? 256 : 1);
            made[k] = (gen_graph){.ir = g, .n_tokens = k ? 5 : 1};
        }
        check_ok(&cx, gen_source_make(&cx, &a, 2, made, arch->n_sms, arch, GEN_KERNEL, &source));
        assert_int_equal(source.n_instances, rows[i].instances);
        if (rows[i].instances == 2)
            assert_non_null(strstr(source.text.at, "in_gate = {3, MPK_BF16, RT_TOKENS, 3, "
                                                   "{1048576, 2, 128}, {256, 128, 1}}"));
        arena_free(&a);
    }
}

/* Rows of at most 512 columns stand two groups side by side, padded to 128 columns, if there are
 * many: in the copy that few and many tokens share.  Others are padded to 256. */
static void test_rows_side_by_side(void **state)
{
    static const struct {
        int tokens, rows, columns, padded;
    } cases[] = {{1, 2048, 384, 384},   {64, 2048, 384, 384}, {150, 2048, 384, 384},
                 {1, 1024, 384, 512},   {1, 2056, 384, 512},  {1, 2048, 640, 768},
                 {150, 1024, 384, 512}, {1, 4096, 40, 128}};
    (void)state;
    mpk_context cx = {0};
    const gen_arch *arch = gen_arch_find("sm_90a");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int tokens = cases[i].tokens, rows = cases[i].rows, columns = cases[i].columns;
        arena a = {0};
        ir_graph *g;
        gen_source source;
        text words = {0};
        text_print(&words,
                   "input %%x : bf16[%d, 2, %d] live=tokens\ninput %%i : i32[%d, 2] live=tokens\n"
                   "const %%w : bf16[4, %d, %d]\n",
                   tokens, columns, tokens, rows, columns);
        /* of many tokens the last product leaves rows of pairs */
        if (tokens <= 128)
            text_print(&words, "input %%s : f32[%d, 2] live=tokens\n", tokens);
        text_print(&words, "%%y = expert_linear(%%x, %%i, %%w%s)\n",
                   tokens <= 128 ? ", _, %s" : "");
        check_ok(&cx, ir_parse(&cx, &a, str_from(words.at), &g));
        gen_graph made = {.ir = g, .n_tokens = (uint32_t)tokens};
        check_ok(&cx, gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_KERNEL, &source));
        const gen_use *use = &source.uses[0][0];
        assert_string_equal(use->body->name, tokens <= 128 ? "expert_stream" : "expert_tile");
        assert_int_equal(use->pack.padded_columns, cases[i].padded);
        assert_int_equal(use->pack.n_bytes, 2ull * 4 * (uint64_t)rows * (uint64_t)cases[i].padded);
        text_free(&words);
        arena_free(&a);
    }
}

/* Parse a graph into the arena.  Does the source that is made of it, with these boxes of its
 * operators (NULL: whole ones), say `sought`? */
static bool source_says(arena *a, const char *graph, const ir_box *boxes, gen_whole whole,
                        const char *sought, ir_graph **g)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    mpk_context cx = {0};
    gen_source source;
    check_ok(&cx, ir_parse(&cx, a, str_from(graph), g));
    gen_graph made = {.ir = *g, .n_tokens = 1, .boxes = boxes};
    check_ok(&cx, gen_source_make(&cx, a, 1, &made, arch->n_sms, arch, whole, &source));
    return strstr(source.text.at, sought) != NULL;
}

/* The GPU's own exponential is near enough for a sigmoid of 16 bits.  It is not where a result is
 * longer, nor where its error grows: in a difference, or as the argument of another function. */
static void test_exponentials_that_are_near(void **state)
{
    static const struct {
        const char *dtype, *expr;
        bool is_near;
    } rows[] = {{"bf16", "x0 / (1 + exp(-x0))", true},
                {"f32", "x0 / (1 + exp(-x0))", false},
                {"bf16", "exp(x0) * x0", true},
                {"bf16", "exp(x0) - 1", false},
                {"bf16", "cos(exp(x0))", false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *g;
        text words = {0};
        text_print(&words, "input %%x : %s[4, 64]\n%%y = map(%%x) {expr = \"%s\"}\n", rows[i].dtype,
                   rows[i].expr);
        if (source_says(&a, words.at, NULL, GEN_GENERIC, "= map_near_exp(", &g) != rows[i].is_near)
            fail_msg("%s of %s", rows[i].expr, rows[i].dtype);
        text_free(&words);
        arena_free(&a);
    }
}

/* A convolution of one channel to a group goes by planes where a window has up to 64 entries, which
 * fp32 may sum, and offsets fit an int. */
static void test_windows_of_planes(void **state)
{
    static const struct {
        const char *x, *w, *bias, *more;
        bool by_planes;
    } rows[] = {{"f32[1, 6, 9, 70]", "f32[6, 1, 8, 8]", "f32[6]", "6", true},
                {"f32[1, 6, 9, 70]", "f32[6, 1, 5, 13]", "f32[6]", "6", false},
                {"f32[1, 6, 9, 70]", "f32[6, 1, 1, 64]", "f32[6]", "6", true},
                {"f32[1, 6, 9, 70]", "f32[6, 1, 1, 65]", "f32[6]", "6", false},
                {"bf16[1, 6, 9, 70]", "f32[6, 1, 3, 3]", "f16[6]", "6", true},
                {"f32[1, 6, 9, 70]", "f32[6, 2, 3, 3]", "f32[6]", "3", false},
                {"f32[1, 6, 9, 70]", "f32[6, 1, 3, 3]", "f32[6]", "6, transposed = 1", false},
                {"f64[1, 6, 9, 70]", "f64[6, 1, 3, 3]", "f64[6]", "6", false},
                {"i32[1, 6, 9, 70]", "i32[6, 1, 3, 3]", "i32[6]", "6", false},
                {"f32[1, 6, 40000, 50000]", "f32[6, 1, 3, 3]", "f32[6]", "6", true},
                {"f32[1, 6, 40000, 60000]", "f32[6, 1, 3, 3]", "f32[6]", "6", false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *g;
        text words = {0};
        text_print(&words,
                   "input %%x : %s\nconst %%w : %s\nconst %%b : %s\n"
                   "%%y = conv(%%x, %%w, %%b) {groups = %s}\n",
                   rows[i].x, rows[i].w, rows[i].bias, rows[i].more);
        if (source_says(&a, words.at, NULL, GEN_GENERIC, "    conv_planes_run(t", &g) !=
            rows[i].by_planes)
            fail_msg("%s", words.at);
        text_free(&words);
        arena_free(&a);
    }
}

/* A depthwise convolution is staged by pieces of eight channels; a task of fewer has none. */
static void test_tasks_of_few_channels(void **state)
{
    static const char graph[] = "input %t : bf16[1, 6, 9, 16]\n"
                                "%x = transpose(%t) {perm = [0, 3, 1, 2]}\n"
                                "const %u : bf16[3, 3, 1, 16]\n"
                                "%w = transpose(%u) {perm = [3, 2, 0, 1]}\n"
                                "%y = conv(%x, %w, _) {groups = 16, padding = [1, 1], last = 1}\n";
    static const uint32_t channels[] = {4, 8, 16};
    (void)state;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        const ir_box boxes[3] = {[2] = {.hi = {1, 6, 9, channels[i]}}}; /* of the operators */
        arena a = {0};
        ir_graph *g;
        assert_true(source_says(&a, graph, boxes, GEN_CALL, "    conv_rows_staged<", &g) ==
                    (channels[i] >= 8));
        assert_int_equal(g->ops.n, 3);
        arena_free(&a);
    }
}

/* Attention of a batch of one is made by warpgroups, whatever the stride of the batch says; heads
 * that begin beside a piece of 16 bytes are not. */
static void test_heads_of_one_batch(void **state)
{
    static const struct {
        const char *k;
        bool by_groups;
    } rows[] = {
        {"input %k : bf16[1, 4, 512, 64]\n", true},
        {"input %j : bf16[4, 512, 64, 1]\n%k = transpose(%j) {perm = [3, 0, 1, 2]}\n", true},
        {"input %j : bf16[512, 1, 260]\n%i = slice(%j) {starts = [0, 0, 4], stops = [512, 1, "
         "260]}\n"
         "%h = reshape(%i) {shape = [512, 1, 4, 64]}\n"
         "%k = transpose(%h) {perm = [1, 2, 0, 3]}\n",
         false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *g;
        text words = {0};
        text_print(&words,
                   "input %%q : bf16[1, 4, 512, 64]\n%sinput %%v : bf16[1, 4, 512, 64]\n"
                   "%%y = sdpa(%%q, %%k, %%v, _)\n",
                   rows[i].k);
        assert_true(source_says(&a, words.at, NULL, GEN_CALL, "block attention by wgmma", &g) ==
                    rows[i].by_groups);
        const ir_tensor *k = &g->tensors.at[g->ops.at[g->ops.n - 1].in[1]];
        assert_true(i != 1 || k->stride[0] % 8); /* of the only one */
        text_free(&words);
        arena_free(&a);
    }
}

/* The source of a product of 128 tokens whose only task has so many tokens and columns. */
static void make_product(mpk_context *cx, arena *a, uint32_t tokens, uint32_t columns,
                         gen_source *source)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    const rt_task task = {.hi = {tokens, columns}};
    ir_graph *g;
    check_ok(cx, ir_parse(cx, a,
                          STR("input %x : bf16[128, 1024] live=tokens\n"
                              "const %w : bf16[1024, 1024]\n%y = linear(%x, %w)\n"),
                          &g));
    gen_graph made = {.ir = g, .n_tokens = 128, .n_tasks = 1, .tasks = &task};
    check_ok(cx, gen_source_make(cx, a, 1, &made, arch->n_sms, arch, GEN_KERNEL, source));
}

/* Loops that no task runs, and units without bodies, would only take the compiler's time. */
static void test_code_that_tasks_need(void **state)
{
    static const struct {
        uint32_t tokens, columns;
        unsigned loops; /* bits TILE_* */
    } rows[] = {{64, 64, 1 << TILE_THIN | 1 << TILE_THIN_BOX},
                {64, 128, 1 << TILE_NARROW_128},
                {64, 192, 1 << TILE_NARROW_192},
                {64, 256, 1 << TILE_NARROW_128},
                {128, 128, 1 << TILE_WIDE_128},
                {128, 384, 1 << TILE_WIDE_192}};
    (void)state;
    mpk_context cx = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        gen_source source;
        char words[64];
        unsigned long long forms = 0;
        make_product(&cx, &a, rows[i].tokens, rows[i].columns, &source);
        for (unsigned loop = 0; loop < TILE_LOOPS; loop++)
            if (rows[i].loops >> loop & 1)
                forms |= 1ull << (loop * TILE_ENDS + TILE_END_PLAIN);
        snprintf(words, sizeof words, "#define MPK_FORMS 0x%llxull\n", forms);
        assert_non_null(strstr(source.text.at, words));
        assert_int_equal(source.units[0], 1u << GEN_UNIT_KERNEL | 1u << GEN_UNIT_ROLES |
                                              1u << GEN_UNIT_STEP | 1u << GEN_UNIT_PLAIN |
                                              1u << GEN_UNIT_PRODUCTS);
        assert_int_equal(source.x_maps[0], rows[i].loops >> TILE_THIN_BOX & 1);
        assert_false(source.maps[0]);
        arena_free(&a);
    }
}

/* true is no unit: its tasks would never run. */
static void test_units_of_many(void **state)
{
    (void)state;
    for (const gen_body *const *b = gen_body_table; *b; b++)
        if ((*b)->many && ((*b)->many < GEN_MANY_EXPERTS || (*b)->many > GEN_MANY_PRODUCTS))
            fail_msg("%s is in no unit for many tokens", (*b)->name);
}

/* How many tasks of 33 to 64 tokens share a tile: enough for 128 rows, if four steps of 64 columns
 * are left for each. */
static void test_parts_of_short_tasks(void **state)
{
    static const struct {
        int tokens, groups, columns, parts;
    } rows[] = {{64, 4, 4096, 4},  {64, 6, 4096, 4}, {33, 2, 2048, 8},  {64, 5, 1024, 4},
                {64, 1, 4096, 16}, {64, 1, 4032, 1}, {64, 16, 4096, 1}, {32, 4, 4096, 1},
                {65, 4, 4096, 1},  {64, 0, 4096, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(tile_parts_of_short(rows[i].tokens, rows[i].groups, rows[i].columns),
                         rows[i].parts);
}

/* Steps of 33 to 64 tokens whose products come by boxes belong to the kernel for prompts, where
 * their tasks have a unit and forms of their own. */
static void test_short_tasks_by_boxes(void **state)
{
    (void)state;
    enum { SIZES = 3 };
    static const rt_task tasks[SIZES] = {{.hi = {4, 2048}}, {.hi = {64, 128}}, {.hi = {128, 384}}};
    static const uint32_t n_tokens[SIZES] = {4, 64, 128};
    mpk_context cx = {0};
    arena a = {0};
    const gen_arch *arch = gen_arch_find("sm_90a");
    gen_graph made[SIZES];
    gen_source source;
    ir_graph *biased;
    char words[200];
    for (int i = 0; i < SIZES; i++) {
        ir_graph *g;
        snprintf(words, sizeof words,
                 "input %%x : bf16[%u, 2048] live=tokens\nconst %%w : bf16[2048, 2048]\n"
                 "%%y = linear(%%x, %%w)\n",
                 n_tokens[i]);
        check_ok(&cx, ir_parse(&cx, &a, str_from(words), &g));
        made[i] = (gen_graph){.ir = g, .n_tokens = n_tokens[i], .n_tasks = 1, .tasks = &tasks[i]};
    }
    check_ok(&cx, gen_source_make(&cx, &a, SIZES, made, arch->n_sms, arch, GEN_KERNEL, &source));
    assert_int_equal(source.regime_of[0], GEN_STREAMS);
    assert_int_equal(source.regime_of[1], GEN_PROMPTS);
    assert_int_equal(source.regime_of[2], GEN_PROMPTS);
    assert_true(source.joint[GEN_PROMPTS] && !source.joint[GEN_STREAMS]);
    assert_true(source.units[GEN_PROMPTS] >> GEN_UNIT_SHORT & 1);
    assert_false(source.units[GEN_STREAMS] >> GEN_UNIT_SHORT & 1);
    /* 128 rows: each warpgroup has half of them */
    const uint64_t box = UINT64_C(1) << TILE_BOX_128 * TILE_ENDS,
                   parts = UINT64_C(1) << TILE_FORM_PARTS | UINT64_C(1) << TILE_FORM_LARGE_PARTS |
                           UINT64_C(1) << TILE_FORM_SQUARES;
    snprintf(words, sizeof words, "#if MPK_UNIT == MPK_UNIT_SHORT\n#define MPK_FORMS 0x%llxull\n",
             (unsigned long long)(box | parts | UINT64_C(1) << TILE_FORM_JOINT));
    assert_non_null(strstr(source.text.at, words));
    /* a product with a bias does not come by boxes in such a kernel */
    check_ok(&cx, ir_parse(&cx, &a,
                           STR("input %x : bf16[64, 2048] live=tokens\n"
                               "const %w : bf16[2048, 2048]\nconst %b : bf16[2048]\n"
                               "%y = linear(%x, %w, _, _, %b)\n"),
                           &biased));
    made[1].ir = biased;
    check_ok(&cx, gen_source_make(&cx, &a, SIZES, made, arch->n_sms, arch, GEN_KERNEL, &source));
    assert_int_equal(source.regime_of[1], GEN_STREAMS);
    assert_false(source.joint[GEN_PROMPTS]);
    arena_free(&a);
}

/* The kernel for prompts and that for streams have a room each: what prompts need as scratch takes
 * no pages from the ring of the other, which is as without them. */
static void test_rooms_of_two_kernels(void **state)
{
    (void)state;
    static const uint32_t n_tokens[GRAPHS] = {4, 200};
    mpk_context cx = {0};
    arena a = {0};
    const gen_arch *arch = gen_arch_find("sm_90a");
    gen_graph made[GRAPHS];
    gen_source alone, both;
    for (int i = 0; i < GRAPHS; i++) {
        ir_graph *g;
        char words[200];
        snprintf(words, sizeof words,
                 "input %%x : bf16[%u, 1024] live=tokens\nconst %%w : bf16[1024, 1024]\n"
                 "%%y = linear(%%x, %%w)\n",
                 n_tokens[i]);
        check_ok(&cx, ir_parse(&cx, &a, str_from(words), &g));
        made[i] = (gen_graph){.ir = g, .n_tokens = n_tokens[i]};
    }
    check_ok(&cx, gen_source_make(&cx, &a, 1, made, arch->n_sms, arch, GEN_KERNEL, &alone));
    check_ok(&cx, gen_source_make(&cx, &a, 2, made, arch->n_sms, arch, GEN_KERNEL, &both));
    assert_true(alone.n_regimes == 1 && both.n_regimes == GEN_REGIMES);
    const gen_room *few = &both.rooms[GEN_STREAMS], *many = &both.rooms[GEN_PROMPTS];
    assert_int_equal(few->scratch_bytes, alone.rooms[0].scratch_bytes);
    assert_int_equal(few->n_pages, alone.rooms[0].n_pages);
    assert_true(many->scratch_bytes > few->scratch_bytes && many->n_pages < few->n_pages);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages_of_jit_tasks),
                                       cmocka_unit_test(test_rings_hold_what_bodies_take),
                                       cmocka_unit_test(test_limits_of_bodies),
                                       cmocka_unit_test(test_folds_behind_many),
                                       cmocka_unit_test(test_scratch_is_asked_in_order),
                                       cmocka_unit_test(test_parts_of_short_tasks),
                                       cmocka_unit_test(test_short_tasks_by_boxes),
                                       cmocka_unit_test(test_rooms_of_two_kernels),
                                       cmocka_unit_test(test_shapes_stand_once),
                                       cmocka_unit_test(test_order_of_few_tokens),
                                       cmocka_unit_test(test_boxes_that_print_alike),
                                       cmocka_unit_test(test_sums_that_print_alike),
                                       cmocka_unit_test(test_heads_of_one_token),
                                       cmocka_unit_test(test_rows_side_by_side),
                                       cmocka_unit_test(test_exponentials_that_are_near),
                                       cmocka_unit_test(test_windows_of_planes),
                                       cmocka_unit_test(test_heads_of_one_batch),
                                       cmocka_unit_test(test_tasks_of_few_channels),
                                       cmocka_unit_test(test_code_that_tasks_need),
                                       cmocka_unit_test(test_units_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
