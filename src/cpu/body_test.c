/* body_test.c - every fast body against the reference code, over the operator's own cases and
 * random shapes, for every instruction set that this machine has; and that bits depend neither on
 * the cut nor on the instruction set. */
#include <math.h>

#include "base/num.h"
#include "body_bed.h"
#include "cpu/body.h"
#include "cpu/cpu.h"
#include "cpu/tile_fast.h"
#include "op/pages.h"

enum { RANDOM_GRAPHS = 1700 };
/* A processor with one of these has a fast body for every operator that this file knows. */
enum { CPU_VECTORS = CPU_AVX2 | CPU_NEON };

/* A task is clipped to the entries that are alive, and its scratch is planned for all of them:
 * fewer never need more.  Entries past the box's end do not count. */
static void check_scratch(const instance *t, const cpu_body *body, uint64_t *state)
{
    const ir_tensor *out = &t->g->tensors.at[t->op->out[0]];
    ir_box box = ir_box_whole(out);
    if (out->live == IR_ALL)
        return;
    for (int i = 0; i < 4; i++) {
        ir_box few = box;
        few.hi[0] = 1 + choose(state, box.hi[0]);
        if (scratch_of(t, body, &few) > scratch_of(t, body, &box))
            fail_msg("%s needs more scratch for %lld entries than for %lld",
                     body ? body->name : t->op->def->name, (long long)few.hi[0],
                     (long long)box.hi[0]);
        box = few;
    }
}

/* Does the operator round its normalised x to 8 bits?  The last bit of a norm may then be a whole
 * integer's. */
static bool narrows_norm(const ir_op *op)
{
    bool narrow = false, norm = false;
    for (uint32_t i = 0; i < op->def->n_attributes; i++)
        narrow = narrow || (str_is(str_from(op->def->attributes[i].name), "activations") &&
                            str_is(op->attributes[i].s, "i8"));
    for (uint32_t i = 0; i < op->n_in; i++)
        norm = norm ||
               (str_is(str_from(op_operand_of(op->def, i)->name), "norm") && op->in[i] != IR_NONE);
    return narrow && norm;
}

static double tolerance(const ir_op *op, const op_view *v)
{
    double of_f32 = narrows_norm(op) ? 4e-3 : 3e-5;
    const double of[IR_DTYPES] = {[IR_F32] = of_f32,
                                  [IR_F16] = 2e-3 + of_f32,
                                  [IR_BF16] = 1.6e-2,
                                  [IR_Q8_0] = 2e-2 /* another whole number */};
    return of[v->dtype];
}

static float load(const op_view *v, int64_t i)
{
    float block[PAGES_BLOCK];
    if (v->dtype != IR_Q8_0)
        return op_load(v, i);
    op_load_row(v, i / PAGES_BLOCK * PAGES_BLOCK, 0, PAGES_BLOCK, block);
    return block[i % PAGES_BLOCK];
}

/* All outputs the same within the rounding of their dtype, relative to the largest value. */
static void compare(const instance *t, const instance *with, const char *what, const char *source)
{
    for (uint32_t o = 0; o < t->op->n_out; o++) {
        const ir_tensor *out = &t->g->tensors.at[t->op->out[o]];
        const op_view *a = &t->call.out[o], *b = &with->call.out[o];
        int64_t n = ir_elements(out);
        if (out->dtype == IR_I32 || out->dtype == IR_I64 || out->dtype == IR_BOOL) {
            assert_memory_equal(a->data, b->data, (size_t)ir_row_bytes(out->dtype, n));
            continue;
        }
        /* sums may all be nearer 0 than their terms, above all a few, and behind closed gates */
        double range = n >= 8 ? 1e-3 : 0.1, worst = 0;
        if (strstr(t->op->def->name, "linear")) /* with a limit sums are clipped */
            range = strstr(source, "limit = ") ? 8 : 1;
        for (int64_t i = 0; i < n; i++) {
            double x = load(a, i), y = load(b, i);
            if (isnan(x) != isnan(y))
                fail_msg("%s: output %u element %lld is %g, expected %g\n%s", what, o, (long long)i,
                         x, y, source);
            range = fabs(y) > range ? fabs(y) : range;
            worst = fabs(x - y) > worst ? fabs(x - y) : worst;
        }
        if (worst > tolerance(t->op, b) * range)
            fail_msg("%s: output %u differs by %g of range %g\n%s", what, o, worst, range, source);
    }
}

static void same_bits(const instance *t, const instance *with, const char *what, const char *source)
{
    for (uint32_t o = 0; o < t->op->n_out; o++) {
        const ir_tensor *out = &t->g->tensors.at[t->op->out[o]];
        if (memcmp(t->call.out[o].data, with->call.out[o].data, (size_t)ir_bytes(out)) != 0)
            fail_msg("%s: output %u has other bits\n%s", what, o, source);
    }
}

/* Products by tiles alone may differ from other instruction sets (tile_fast.h). */
static bool has_own_bits(const cpu_body *b, const instance *t)
{
    bool by_tiles = b->needs & CPU_AMX && !strstr(b->op, "linear");
    for (uint32_t i = 0; b->needs & CPU_AMX && i < t->call.n_in; i++) {
        const op_view *w = &t->call.in[i];
        by_tiles = by_tiles || (w->data && w->rank >= 2 && w->dtype == IR_BF16 &&
                                w->dims[w->rank - 1] % TILE_STEP == 0);
    }
    return by_tiles;
}

/* How many bodies took the operator of this graph.  number: of data and cuts of the same graph.  A
 * graph that begins with a view, which has no code, is of a layout that no body here takes; the
 * reference code runs it in op_test. */
static int check_changed(const char *source, change_operands *change, uint64_t number)
{
    uint32_t have = cpu_features();
    uint64_t fill = rng_u64(seed, str_from(source).n + (number << 32)), state = fill;
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    if (!g->ops.at[0].def->ref) {
        arena_free(&a);
        return 0;
    }
    const ir_tensor *out = &g->tensors.at[g->ops.at[0].out[0]];
    uint32_t live = choose(&state, 3)
                        ? UINT32_MAX
                        : (uint32_t)(1 + choose(&state, out->rank ? out->dims[0] : 1));
    instance ref, first = {0};
    make(&a, g, fill, live, change, &ref);
    check_scratch(&ref, NULL, &state);
    run(&ref, NULL, NULL);
    int taken = 0;
    for (const cpu_body *const *b = cpu_body_table; *b; b++) {
        instance whole, cut;
        if (!str_is(str_from((*b)->op), ref.op->def->name) || ((*b)->needs & have) != (*b)->needs ||
            !(*b)->accepts(&ref.call))
            continue;
        make(&a, g, fill, live, change, &whole);
        check_scratch(&whole, *b, &state);
        run(&whole, *b, NULL);
        compare(&whole, &ref, (*b)->name, source);
        for (int i = 0; i < 2; i++) {
            make(&a, g, fill, live, change, &cut);
            run(&cut, *b, &state);
            same_bits(&cut, &whole, (*b)->name, source);
        }
        if (first.g && !has_own_bits(*b, &whole))
            same_bits(&whole, &first, "another instruction set", source);
        first = has_own_bits(*b, &whole) ? first : whole;
        taken++;
    }
    arena_free(&a);
    return taken;
}

static int check_graph(const char *source)
{
    return check_changed(source, NULL, 0);
}

static const char *const floats[] = {"f32", "f16", "bf16"};

/* Dtype of a weight and a width that it allows. */
static const char *pick_weight(uint64_t *state, bool any_width, bool super)
{
    static const char *const all[] = {
        "f32",    "f16",   "bf16",    "q8_0",  "q4_0",   "q4_1",  "q5_0",  "q5_1",  "iq4_nl",
        "mxfp4",  "q4_k",  "q6_k",    "q2_k",  "q5_k",   "q3_k",  "iq1_s", "iq1_m", "iq2_xxs",
        "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "tq1_0", "tq2_0"};
    return pick(state, all, any_width ? 3 : super ? 25 : 10);
}

/* The attributes; narrow: some weight has blocks, and x may too. */
static void add_attributes(text *t, uint64_t *state, const char *glu, bool narrow)
{
    text_print(t, " {eps = 1e-05");
    if (glu)
        text_print(t, ", glu = \"%s\"", glu);
    if (glu && strcmp(glu, "swiglu_oai") == 0)
        text_print(t, ", limit = %d.5", (int)choose(state, 30));
    text_print(t, narrow && choose(state, 3) ? ", activations = \"i8\"}\n" : "}\n");
}

static void add_linear(text *t, uint64_t *state)
{
    static const int widths[] = {1,   16,  17,   100, 65,  32,   64,  320,
                                 576, 800, 1536, 256, 768, 1024, 1792};
    static const char *const glus[] = {"silu", "gelu", "gelu_tanh"};
    int at = (int)choose(state, 15), k = widths[at],
        tokens = 1 + (int)choose(state, choose(state, 3) ? 6 : 40);
    bool glu = choose(state, 3) == 0, narrow = false;
    int weights = glu ? 2 : 1 + (int)choose(state, 3), total = 0, f = 0;
    const char *dtype = choose(state, 4) ? "f32" : "bf16";
    text_print(t, "input %%x : %s[%d, %d] live=tokens\nconst %%n : %s[%d]\n", dtype, tokens, k,
               pick(state, floats, 3), k);
    for (int i = 0; i < weights; i++) {
        f = glu && i ? f : 1 + (int)choose(state, 70);
        total += glu && i ? 0 : f;
        const char *weight = pick_weight(state, at < 5, at >= 11);
        narrow = narrow || *weight == 'q';
        text_print(t, "const %%w%d : %s[%d, %d]\n", i, weight, f, k);
        text_print(t, "const %%b%d : %s[%d]\n", i, pick(state, floats, 3), f);
    }
    text_print(t, "input %%r : %s[%d, %d] live=tokens\n%%y = linear(%%x", pick(state, floats, 3),
               tokens, total);
    for (int i = 0; i < 3; i++)
        text_print(t, i < weights ? ", %%w%d" : ", _", i);
    for (int i = 0; i < 3; i++)
        text_print(t, i < weights && choose(state, 2) ? ", %%b%d" : ", _", i);
    text_print(t, "%s%s)", choose(state, 2) ? ", %n" : ", _", choose(state, 2) ? ", %r" : "");
    add_attributes(t, state, glu ? pick(state, glus, 3) : NULL, narrow);
}

/* Few experts for many tokens, and many for few. */
static void add_expert_linear(text *t, uint64_t *state)
{
    static const int widths[] = {1, 17, 100, 32, 64, 320, 576, 1536, 256, 768, 1792};
    static const char *const glus[] = {"silu", "gelu", "gelu_tanh", "swiglu_oai"};
    int at = (int)choose(state, 11), k = widths[at],
        tokens = 1 + (int)choose(state, choose(state, 3) ? 6 : 60);
    int of_token = 1 + (int)choose(state, 8), n = 1 + (int)choose(state, 20),
        f = 1 + (int)choose(state, 120);
    bool glu = choose(state, 2), apart = choose(state, 2), sums = choose(state, 2), narrow = false;
    const char *dtype = choose(state, 4) ? "f32" : "bf16";
    text_print(t, "input %%x : %s[%d, ", dtype, tokens);
    if (apart)
        text_print(t, "%d, ", of_token);
    text_print(t, "%d] live=tokens\n", k);
    for (int i = 0; i < 1 + glu; i++) {
        const char *weight = pick_weight(state, at < 3, at >= 8);
        narrow = narrow || *weight == 'q';
        text_print(t, "const %%w%d : %s[%d, %d, %d]\n", i, weight, n, f, k);
        text_print(t, "const %%b%d : %s[%d, %d]\n", i, pick(state, floats, 3), n, f);
    }
    text_print(t, "input %%i : i32[%d, %d] live=tokens\ninput %%s : f32[%d, %d] live=tokens\n",
               tokens, of_token, tokens, of_token);
    text_print(t, "const %%n : %s[%d]\ninput %%r : %s[%d, %d] live=tokens\n",
               pick(state, floats, 3), k, pick(state, floats, 3), tokens, f);
    text_print(t, "%%y = expert_linear(%%x, %%i, %%w0, %s, %s, %s, %s, %s, %s)", glu ? "%w1" : "_",
               sums ? "%s" : "_", sums && choose(state, 2) ? "%r" : "_",
               choose(state, 2) ? "%n" : "_", choose(state, 2) ? "%b0" : "_",
               glu && choose(state, 2) ? "%b1" : "_");
    add_attributes(t, state, glu ? pick(state, glus, 4) : NULL, narrow);
}

static void add_attention(text *t, uint64_t *state)
{
    static const char *const more[] = {"",
                                       " {window = 1}",
                                       " {window = 7}",
                                       " {scale = 0.3, window = 40}",
                                       "",
                                       " {cap = 0.75}",
                                       " {scale = 0.3, window = 40, cap = 2.5}"};
    const int heads = add_attended(t, state, choose(state, 4) ? "f32" : "bf16", 90);
    text_print(t, "const %%sinks : %s[%d]\n", pick(state, floats, 3), heads);
    text_print(t, "%%y = attention(%%q, %%k, %%v, %%p, %%s, %%t, %s)%s\n",
               choose(state, 3) ? "_" : "%sinks", pick(state, more, 7));
}

static void add_attention_parts(text *t, uint64_t *state)
{
    add_attended(t, state, choose(state, 4) ? "f32" : "bf16", 700);
    text_print(t, "%%y, %%l = attention_parts(%%q, %%k, %%v, %%p, %%s, %%t)%s\n",
               choose(state, 2)   ? ""
               : choose(state, 2) ? " {window = 600}"
                                  : " {cap = 0.75}");
}

static void add_attention_fold(text *t, uint64_t *state)
{
    int tokens = 1 + (int)choose(state, 5), places = 1 + (int)choose(state, 20),
        heads = 1 + (int)choose(state, 5), size = 1 + (int)choose(state, 70);
    text_print(t, "input %%p : f32[%d, %d, %d] live=tokens\n", tokens, places, heads * size);
    text_print(t, "input %%l : f32[%d, %d, %d] live=tokens\nconst %%s : %s[%d]\n", tokens, places,
               heads, pick(state, floats, 3), heads);
    text_print(t, "%%y = attention_fold(%%p, %%l, %s)\n", choose(state, 2) ? "%s" : "_");
}

static void add_rms_norm(text *t, uint64_t *state)
{
    int n = 1 + (int)choose(state, 700);
    text_print(t, "input %%x : %s[%d, 3, %d] live=tokens\nconst %%w : %s[%d]\n",
               pick(state, floats, 3), 1 + (int)choose(state, 9), n, pick(state, floats, 3), n);
    text_print(t, "%%y = rms_norm(%%x%s) {eps = 1e-05}\n", choose(state, 2) ? ", %w" : "");
}

static void add_rope_kv(text *t, uint64_t *state)
{
    int groups = 1 + (int)choose(state, 3), heads = groups * (1 + (int)choose(state, 3)),
        size = choose(state, 2) ? 2 + (int)choose(state, 70) : 32 + 32 * (int)choose(state, 3);
    int tokens = 1 + (int)choose(state, 20), half = 1 + (int)choose(state, size / 2);
    text_print(t, "input %%x : f32[%d, %d] live=tokens\ninput %%t : f32[%d, 2, %d] live=tokens\n",
               tokens, (heads + 2 * groups) * size, tokens, half);
    text_print(t,
               "input %%p : i32[%d] live=tokens\ninput %%s : i32[%d] live=tokens\ninput %%pages : "
               "i32[2, 9]\n",
               tokens, tokens);
    for (int i = 0; i < 2; i++)
        text_print(t, "state %%%c : %s[18, %d, 5, %d]\nconst %%n%d : f32[%d]\n", "kv"[i],
                   pick_cache(state, size), groups, size, i, size);
    text_print(t,
               "%%y, %%kc, %%vc = rope_kv(%%x, %%t, %%p, %%s, %%pages, %%k, %%v%s) {heads = %d, "
               "kv_heads = %d, "
               "head_size = %d, eps = 1e-05, norm_last = %d}\n",
               choose(state, 2) ? ", %n0, %n1" : "", heads, groups, size, (int)choose(state, 2));
}

static void add_argmax(text *t, uint64_t *state)
{
    text_print(t, "input %%x : f32[%d, %d] live=rows\n", 1 + (int)choose(state, 5),
               20 + (int)choose(state, 300));
    text_print(t, choose(state, 2) ? "%%y = argmax(%%x)\n"
                                   : "%%y, %%i = argmax_partial(%%x) {parts = 7}\n");
}

/* Some axes, most of them short; rank at most `rank`. */
static void add_shape(text *t, uint64_t *state, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        text_print(t, "%s%d", i ? ", " : "", 1 + (int)choose(state, choose(state, 3) ? 5 : 40));
}

/* Inputs of shapes that broadcast, each under its name and with a dtype of its own. */
static void add_broadcast(text *t, uint64_t *state, int inputs, const char *dtype)
{
    int64_t dims[4], rank = 1 + choose(state, 4), most = rank < 3 ? 700 : 30;
    for (int64_t i = 0; i < rank; i++)
        dims[i] = 1 + choose(state, choose(state, 2) ? 4 : most);
    for (int k = 0; k < inputs; k++) {
        text_print(t, "input %%x%d : %s[", k, dtype ? dtype : pick(state, floats, 3));
        for (int64_t i = k ? choose(state, rank) : 0, first = i; i < rank; i++)
            text_print(t, "%s%d", i > first ? ", " : "", k && !choose(state, 4) ? 1 : (int)dims[i]);
        text_print(t, "]\n");
    }
}

static void add_map(text *t, uint64_t *state)
{
    static const char *const expressions[] = {
        "x0 * sigmoid(x1) + exp(min(x2, 4)) - tanh(x0 * 3)",
        "t0 = x0 - x1; where(lnot(t0 < x2), t0 / (1 + abs(x2)), sqrt(abs(t0)) * erf(x1))",
        "max(x0, 0)",
        "bf16(x0 + x1) * f16(x2) + square(-x0)",
        "where(land(x0 <= x1, x1 != x2), x0, floor(x1 * 4)) + rsqrt(square(x2) + 1)",
        "sin(x0) + pow(abs(x1), x2) + reciprocal(2 + square(x2))",
        "where(lor(isnan(x0), x1 >= 0.5), x2 == x2, lxor(x1 > 0, isfinite(x0))) + 0.5",
        "min(max(x0, -1), 1) + (x1 < x2)",
        "erfc(x0 * 4) * x1 - erfc(x2)",
    };
    add_broadcast(t, state, 3, NULL);
    text_print(t, "%%y = map(%%x0, %%x1, %%x2) {expr = \"%s\"}\n", pick(state, expressions, 9));
}

static void add_element(text *t, uint64_t *state)
{
    static const char *const unary[] = {"gelu(%x0) {tanh = 1}", "gelu(%x0)", "silu(%x0)"};
    static const char *const binary[] = {"add(%x0, %x1)", "mul(%x0, %x1)"};
    bool two = choose(state, 2);
    add_broadcast(t, state, 1 + two, pick(state, floats, 3));
    text_print(t, "%%y = %s\n", pick(state, two ? binary : unary, two ? 2 : 3));
}

static void add_norm(text *t, uint64_t *state)
{
    int groups = 1 + (int)choose(state, 4), channels = groups * (1 + (int)choose(state, 6)),
        kind = (int)choose(state, 4);
    int n = kind == 1 ? channels : 1 + (int)choose(state, 700);
    text_print(t, "input %%x : %s[%d, ", pick(state, floats, 3), 1 + (int)choose(state, 5));
    if (kind == 1) {
        text_print(t, "%d, ", channels);
        add_shape(t, state, 2);
    } else {
        text_print(t, "3, %d", n);
    }
    text_print(t, "] live=tokens\nconst %%w : %s[%d]\nconst %%b : %s[%d]\n", pick(state, floats, 3),
               n, pick(state, floats, 3), n);
    const char *weight = choose(state, 2) ? "%w" : "_", *bias = choose(state, 2) ? "%b" : "_";
    if (kind == 0)
        text_print(t, "%%y = layer_norm(%%x, %s, %s) {eps = 1e-05}\n", weight, bias);
    else if (kind == 1)
        text_print(t, "%%y = group_norm(%%x, %s, %s) {groups = %d}\n", weight, bias, groups);
    else
        text_print(t, "%%y = %s(%%x)\n", kind == 2 ? "softmax" : "log_softmax");
}

static void add_reduce(text *t, uint64_t *state)
{
    static const char *const kinds[] = {"sum", "mean", "max", "min"};
    static const char *const axes[] = {"0",    "3",    "1, 2",       "2, 3",
                                       "0, 2", "1, 3", "0, 1, 2, 3", "3, 1, 2"};
    text_print(t, "input %%x : %s[", pick(state, floats, 3));
    add_shape(t, state, 4);
    text_print(t, "]\n%%y = reduce(%%x) {axes = [%s], kind = \"%s\", keep = %d}\n",
               pick(state, axes, 8), pick(state, kinds, 4), (int)choose(state, 2));
}

/* A dtype for an operand beside another: the same one more often than not. */
static const char *pick_beside(uint64_t *state, const char *dtype)
{
    return choose(state, 4) ? dtype : pick(state, floats, 3);
}

static void add_batch_matmul(text *t, uint64_t *state)
{
    int m = 1 + (int)choose(state, choose(state, 8) ? 60 : 300), q = 1 + (int)choose(state, 230);
    int n = 1 + (int)choose(state, choose(state, 4) ? 100 : 2300),
        batch = 1 + (int)choose(state, 3);
    bool transposed = choose(state, 2);
    const char *dtype = pick(state, floats, 3);
    text_print(t, "input %%a : %s[%d, %d, %d]\n", dtype, batch, m, n);
    text_print(t, "input %%b : %s[%d, %d, %d]\n", pick_beside(state, dtype),
               choose(state, 2) ? 1 : batch, transposed ? q : n, transposed ? n : q);
    text_print(t, "%%y = batch_matmul(%%a, %%b) {transpose_b = %d}\n", transposed);
}

static void add_conv(text *t, uint64_t *state)
{
    static const int more[] = {1, 2, 3, 40, 300};
    int space = 1 + (int)choose(state, 3),
        groups = choose(state, 2) ? 1 : 1 + (int)choose(state, 5);
    int channels =
        choose(state, 3) ? 1 + (int)choose(state, 5) : more[choose(state, space == 3 ? 3 : 5)];
    int filters = 1 + (int)choose(state, choose(state, 2) ? 3 : 20);
    text stride = {0}, padding = {0}, dilation = {0}, x = {0}, w = {0};
    bool square = space == 2 && choose(state, 2); /* those of planes have bodies of their own */
    int side = 3 + 2 * (int)choose(state, 3), step = 1 + (int)choose(state, 2);
    channels = square ? 1 : channels;
    for (int i = 0; i < space; i++) {
        const char *comma = i ? ", " : "";
        int k = choose(state, 3) ? 1 + (int)choose(state, 5) : 1,
            wide = square ? 1 : 1 + (int)choose(state, 3);
        k = square ? side : k;
        text_print(&w, ", %d", k);
        text_print(&x, ", %d",
                   (k - 1) * wide + 1 +
                       (int)choose(state, space == 1   ? 200
                                          : space == 2 ? 30
                                                       : 9));
        int apart = choose(state, 2) ? 1 : 1 + (int)choose(state, 3);
        text_print(&stride, "%s%d", comma, square ? step : apart);
        text_print(&padding, "%s%d", comma, choose(state, 2) ? 0 : (int)choose(state, 4));
        text_print(&dilation, "%s%d", comma, wide);
    }
    const char *dtype = pick(state, floats, 3);
    text_print(t, "input %%x : %s[%d, %d%s]\nconst %%w : %s[%d, %d%s]\nconst %%b : %s[%d]\n", dtype,
               1 + (int)choose(state, 2), groups * channels, x.at, pick_beside(state, dtype),
               groups * filters, channels, w.at, pick(state, floats, 3), groups * filters);
    text_print(
        t,
        "%%y = conv(%%x, %%w, %s) {stride = [%s], padding = [%s], dilation = [%s], groups = %d}\n",
        choose(state, 2) ? "%b" : "_", stride.at, padding.at, dilation.at, groups);
    text *const parts[] = {&stride, &padding, &dilation, &x, &w};
    for (int i = 0; i < 5; i++)
        text_free(parts[i]);
}

static void add_sdpa(text *t, uint64_t *state)
{
    static const int sizes[] = {16, 64, 80, 5, 48, 1, 128};
    static const char *const more[] = {"", " {causal = 1}",
                                       " {scale = 0.3, causal = 1, window = 7}",
                                       " {causal = 1, window = 40}"};
    int groups = 1 + (int)choose(state, 2), heads = groups * (1 + (int)choose(state, 3)),
        batch = 1 + (int)choose(state, 2);
    int size = sizes[choose(state, 7)],
        values = choose(state, 2) ? size : 1 + (int)choose(state, 70);
    int rows = 1 + (int)choose(state, choose(state, 2) ? 5 : 90),
        keys = choose(state, 2) ? rows : 1 + (int)choose(state, 200);
    const char *dtype = pick(state, floats, 3);
    text_print(t, "input %%q : %s[%d, %d, %d, %d]\n", dtype, batch, heads, rows, size);
    text_print(t, "input %%k : %s[%d, %d, %d, %d]\n", pick_beside(state, dtype), batch, groups,
               keys, size);
    text_print(t, "input %%v : %s[%d, %d, %d, %d]\n", pick_beside(state, dtype), batch, groups,
               keys, values);
    text_print(t, "input %%m : %s[%d, %d]\n", choose(state, 2) ? "bool" : pick(state, floats, 3),
               choose(state, 2) ? 1 : rows, choose(state, 4) ? keys : 1);
    text_print(t, "%%y = sdpa(%%q, %%k, %%v, %s)%s\n", choose(state, 2) ? "_" : "%m",
               pick(state, more, 4));
}

static void add_pool(text *t, uint64_t *state)
{
    int space = 1 + (int)choose(state, 3), largest = (int)choose(state, 2);
    text kernel = {0}, stride = {0}, padding = {0}, dilation = {0}, x = {0};
    for (int i = 0; i < space; i++) {
        const char *comma = i ? ", " : "";
        int k = 1 + (int)choose(state, 5), wide = largest ? 1 + (int)choose(state, 3) : 1;
        text_print(&kernel, "%s%d", comma, k);
        text_print(&x, ", %d",
                   (k - 1) * wide + 1 +
                       (int)choose(state, space == 1   ? 700
                                          : space == 2 ? 40
                                                       : 9));
        text_print(&stride, "%s%d", comma, 1 + (int)choose(state, 4));
        text_print(&padding, "%s%d", comma, (int)choose(state, k / 2 + 1));
        text_print(&dilation, "%s%d", comma, wide);
    }
    text_print(t, "input %%x : %s[%d, %d%s] live=tokens\n", pick(state, floats, 3),
               1 + (int)choose(state, 3), 1 + (int)choose(state, 3), x.at);
    text_print(
        t,
        "%%y%s = %s(%%x) {kernel = [%s], stride = [%s], padding = [%s], dilation = [%s], ceil = %d",
        largest ? ", %i" : "", largest ? "max_pool" : "avg_pool", kernel.at, stride.at, padding.at,
        dilation.at, (int)choose(state, 2));
    if (!largest)
        text_print(t, ", count_include_pad = %d, divisor = %d", (int)choose(state, 2),
                   (int)choose(state, 3));
    text_print(t, "}\n");
    text *const parts[] = {&kernel, &stride, &padding, &dilation, &x};
    for (int i = 0; i < 5; i++)
        text_free(parts[i]);
}

static void add_upsample(text *t, uint64_t *state)
{
    static const char *const modes[] = {"nearest", "nearest_exact", "linear", "cubic"};
    const char *mode = pick(state, modes, 4);
    int space = 1 + (int)choose(state, str_is(str_from(mode), "cubic") ? 2 : 3);
    text x = {0}, size = {0};
    for (int i = 0; i < space; i++) {
        text_print(&x, ", %d", 1 + (int)choose(state, space == 1 ? 300 : 20));
        text_print(&size, "%s%d", i ? ", " : "", 1 + (int)choose(state, space == 1 ? 700 : 40));
    }
    text_print(t, "input %%x : %s[2, %d%s]\n", pick(state, floats, 3), 1 + (int)choose(state, 3),
               x.at);
    text_print(t, "%%y = upsample(%%x) {size = [%s], mode = \"%s\", align_corners = %d%s}\n",
               size.at, mode, (int)choose(state, 2), choose(state, 4) ? "" : ", scale_0 = 1.7");
    text_free(&x);
    text_free(&size);
}

static bool has_body(const char *op)
{
    for (const cpu_body *const *b = cpu_body_table; *b; b++)
        if (str_is(str_from((*b)->op), op))
            return true;
    return false;
}

static void test_cases(void **state)
{
    (void)state;
    int taken = 0;
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; has_body((*def)->name) && i < (*def)->n_cases; i++)
            taken += check_graph((*def)->cases[i].graph);
    assert_true(taken > 0 || !(cpu_features() & CPU_VECTORS));
}

static void test_random(void **unused)
{
    (void)unused;
    void (*const add[])(text *, uint64_t *) = {
        add_linear, add_expert_linear, add_attention,       add_rms_norm,      add_rope_kv,
        add_linear, add_argmax,        add_expert_linear,   add_map,           add_element,
        add_norm,   add_reduce,        add_batch_matmul,    add_conv,          add_sdpa,
        add_pool,   add_upsample,      add_attention_parts, add_attention_fold};
    const int kinds = sizeof add / sizeof *add;
    uint64_t state = 0;
    for (int i = 0; i < (int)check_rounds(RANDOM_GRAPHS); i++) {
        text t = {0};
        add[i % kinds](&t, &state);
        assert_false(t.failed);
        if (!check_graph(t.at) && cpu_features() & CPU_VECTORS)
            fail_msg("no fast body takes\n%s", t.at);
        text_free(&t);
    }
}

/* Of every three rows one is all NaN, one is NaN but for an element, and one is NaN in its first
 * half. */
static void put_nan(const op_call *call)
{
    const op_view *x = &call->in[0];
    for (int64_t r = 0; r < x->dims[0]; r++)
        for (int64_t i = 0; i < (r % 3 == 2 ? x->dims[1] / 2 : x->dims[1]); i++)
            if (r % 3 != 1 || i != x->dims[1] - 2)
                ((float *)x->data)[r * x->stride[0] + i] = NAN;
}

/* No page of the first slot is there, and of the others not the first one. */
static void take_pages_away(const op_call *call)
{
    const op_view *pages = &call->in[5];
    for (int64_t slot = 0; slot < pages->dims[0]; slot++)
        for (int64_t i = 0; i < (slot ? 1 : pages->dims[1]); i++)
            ((int32_t *)pages->data)[slot * pages->stride[0] + i * pages->stride[1]] = -1;
}

/* Tokens 2 i and 2 i + 1 go to one place. */
static void share_places(const op_call *call)
{
    for (uint32_t input = 2; input < 4; input++)
        for (int64_t t = 1; t < call->in[input].dims[0]; t += 2)
            ((int32_t *)call->in[input].data)[t] = ((int32_t *)call->in[input].data)[t - 1];
}

/* Operands of which the random graphs have none, or few. */
static void test_rare_operands(void **state)
{
    (void)state;
    static const struct {
        change_operands *change;
        const char *graph;
    } cases[] = {
        {put_nan, "input %x : f32[7, 37] live=rows\n%y = argmax(%x)\n"},
        {put_nan, "input %x : f32[7, 300] live=rows\n%y, %i = argmax_partial(%x) {parts = 8}\n"},
        {take_pages_away, "input %q : f32[9, 4, 64] live=tokens\nstate %k : bf16[12, 2, 16, 64]\n"
                          "state %v : bf16[12, 2, 16, 64]\ninput %p : i32[9] live=tokens\n"
                          "input %s : i32[9] live=tokens\ninput %t : i32[3, 4]\n"
                          "%y = attention(%q, %k, %v, %p, %s, %t)\n"},
        {share_places,
         "input %x : f32[12, 96] live=tokens\ninput %t : f32[12, 2, 8] live=tokens\n"
         "input %p : i32[12] live=tokens\ninput %s : i32[12] live=tokens\ninput %pages : i32[2, "
         "9]\n"
         "state %k : f32[18, 1, 5, 16]\nstate %v : f32[18, 1, 5, 16]\n"
         "%y, %kc, %vc = rope_kv(%x, %t, %p, %s, %pages, %k, %v) {heads = 4, kv_heads = 1, "
         "head_size = 16}\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t k = 0; k < 16; k++)
            if (!check_changed(cases[i].graph, cases[i].change, k) && cpu_features() & CPU_VECTORS)
                fail_msg("no fast body takes\n%s", cases[i].graph);
}

/* From -16 to 16, then what is no number, none that is finite, or hardly one. */
static void put_gates(const op_call *call)
{
    static const float rare[] = {NAN,     INFINITY, -INFINITY, 0,      -0.0f,   1e-45f,
                                 -3e-40f, -1e-30f,  1e30f,     -1e30f, 3.4e38f, -3.4e38f};
    const int64_t n = call->in[0].dims[0], rares = sizeof rare / sizeof *rare;
    float *x = (float *)call->in[0].data;
    for (int64_t i = 0; i < n; i++)
        x[i] = i < rares ? rare[i] : (float)(32.0 * (double)i / (double)n - 16);
}

/* gelu keeps its digits relative to itself, far below 0 too: the factor after a gate may be large.
 * To round x costs x^2 / 2 units of the last place. */
static void test_gelu_keeps_digits(void **unused)
{
    (void)unused;
    for (int tanh = 0; tanh < 2; tanh++) {
        arena a = {0};
        ir_graph *g;
        check_ok(&cx, ir_parse(&cx, &a,
                               tanh ? STR("input %x : f32[5000]\n%y = gelu(%x) {tanh = 1}\n")
                                    : STR("input %x : f32[5000]\n%y = gelu(%x)\n"),
                               &g));
        for (const cpu_body *const *b = cpu_body_table; *b; b++) {
            instance t;
            if (!str_is(str_from((*b)->op), "gelu") || (*b)->needs & ~cpu_features())
                continue;
            make(&a, g, 1, UINT32_MAX, put_gates, &t);
            run(&t, *b, NULL);
            for (int64_t i = 0; i < t.call.in[0].dims[0]; i++) {
                double x = load(&t.call.in[0], i), y = load(&t.call.out[0], i);
                double u = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
                double exact = tanh ? x / (1 + exp(-2 * u)) : 0.5 * x * erfc(-x / sqrt(2));
                if (isnan(exact) || isinf(exact))
                    assert_true(isnan(exact) ? isnan(y) : y == exact);
                else if (!(fabs(y - exact) <= 4e-7 * (1 + x * x) * fabs(exact) + 5e-37))
                    fail_msg("%s: of %g, tanh = %d: %g, not %g", (*b)->name, x, tanh, y, exact);
            }
        }
        arena_free(&a);
    }
}

/* The best that the processor has is chosen, and nothing that it has not.  Beyond x86-64 and arm64
 * there is nothing to choose. */
static void test_choose(void **state)
{
    (void)state;
    if (!cpu_body_table[0])
        skip();
    static const struct {
        uint32_t features;
        const char *name;
    } choices[] = {
#if defined(__aarch64__)
        {CPU_NEON, "linear neon"},
        {CPU_NEON | CPU_NEON_DOT, "linear dotprod"},
        {CPU_NEON | CPU_NEON_DOT | CPU_NEON_I8MM, "linear i8mm"},
#else
        {CPU_AVX2, "linear avx2"},
        {CPU_AVX2 | CPU_AVX_VNNI, "linear avxvnni"},
        {CPU_AVX2 | CPU_AVX512 | CPU_AVX_VNNI, "linear avx512"},
        {CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI, "linear avx512vnni"},
        {CPU_AVX2 | CPU_AVX512 | CPU_AMX, "linear avx512"},
        {CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI | CPU_AMX, "linear amx"},
#endif
    };
    arena a = {0};
    ir_graph *g;
    instance t;
    check_ok(&cx,
             ir_parse(&cx, &a,
                      STR("input %x : f32[1, 64]\nconst %w : q4_1[8, 64]\n%y = linear(%x, %w)\n"),
                      &g));
    make(&a, g, 1, UINT32_MAX, NULL, &t);
    assert_null(cpu_body_choose(&t.call, 0));
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        assert_string_equal(cpu_body_choose(&t.call, choices[i].features)->name, choices[i].name);
    arena_free(&a);
}

/* Attention takes floats, caches of Q8_0 too, in rows without gaps; anything else in one operand is
 * refused. */
static void check_attention(const cpu_body *b)
{
    enum { Q, K, V, Y, VIEWS };
    static const int last[VIEWS] = {2, 3, 3, 1};
    op_call call = {.out[0].rank = 2};
    op_view *views[VIEWS] = {&call.in[0], &call.in[1], &call.in[2], &call.out[0]};
    for (int i = 0; i < VIEWS; i++) {
        views[i]->dtype = IR_BF16;
        views[i]->rank = (uint32_t)last[i] + 1;
        views[i]->stride[last[i]] = 1;
    }
    assert_true(b->accepts(&call));
    for (int i = 0; i < VIEWS; i++) {
        views[i]->stride[last[i]] = 2;
        assert_false(b->accepts(&call));
        views[i]->stride[last[i]] = 1;
        views[i]->dtype = IR_F64;
        assert_false(b->accepts(&call));
        views[i]->dtype = IR_Q8_0;
        assert_true(b->accepts(&call) == (i == K || i == V));
        views[i]->dtype = IR_F32;
        assert_true(b->accepts(&call));
    }
}

static void test_attention_accepts(void **state)
{
    (void)state;
    for (const cpu_body *const *b = cpu_body_table; *b; b++)
        if (strcmp((*b)->op, "attention") == 0)
            check_attention(*b);
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choose),
                                       cmocka_unit_test(test_cases),
                                       cmocka_unit_test(test_attention_accepts),
                                       cmocka_unit_test(test_rare_operands),
                                       cmocka_unit_test(test_gelu_keeps_digits),
                                       cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
