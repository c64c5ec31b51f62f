/* ir_test.c - the tensor program: builder, text form, verifier.  It stands here because operators
 * are needed to build one.
 *
 * Every case of every operator and random graphs are printed, parsed and printed again; every rule
 * of the verifier is broken once.
 */
#include "check.h"

#include "base/rng.h"
#include "ir/op.h"

static uint64_t base_seed;

typedef struct bed {
    mpk_context cx;
    arena arena;
    ir_graph *g;
} bed;

static void tear_down(bed *b)
{
    arena_free(&b->arena);
}

/* Parse a program that must be right. The bed's arena owns it until tear_down. */
static void parse(bed *b, const char *source)
{
    *b = (bed){0};
    check_ok(&b->cx, ir_parse(&b->cx, &b->arena, str_from(source), &b->g));
}

/* Print, parse, print: the same bytes, and the same as `expected` unless that is NULL. */
static void check_round_trip(bed *b, const char *expected)
{
    text first = {0}, second = {0};
    ir_graph *again;
    ir_print(b->g, &first);
    assert_false(first.failed);
    check_ok(&b->cx, ir_parse(&b->cx, &b->arena, (str){first.at, first.n}, &again));
    ir_print(again, &second);
    if (first.n)
        assert_string_equal(first.at, second.at);
    if (expected)
        assert_string_equal(first.at, expected);
    text_free(&first);
    text_free(&second);
}

/* The text of every operator's cases, printed and parsed again, is the same program. */
static void test_cases_round_trip(void **state)
{
    (void)state;
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++) {
            bed b;
            parse(&b, (*def)->cases[i].graph);
            check_round_trip(&b, NULL);
            tear_down(&b);
        }
}

/* Every construct of the text form in one program: quoted names, escapes, live counts, optional
 * operands, attributes that have their default. */
static void test_text(void **state)
{
    static const char *const graph =
        "graph \"two \\\"words\\\" \\x0a\"\n"
        "input %tokens : i32[4] live=tokens\n"
        "const %model.embed : q4_1[64, 576]\n"
        "%h = embedding(%tokens, %model.embed) : f32[4, 576] live=tokens\n"
        "const %\"odd name\\\\\" : f32[576]\n"
        "%n = rms_norm(%h, %\"odd name\\\\\") {eps = 1e-05} : f32[4, 576] live=tokens\n"
        "%n2 = rms_norm(%h) {eps = 0.1} : f32[4, 576] live=tokens\n"
        "%v, %i = argmax_partial(%n) {parts = 2} : f32[4, 2] live=tokens, i32[4, 2] live=tokens\n"
        "%s = slice(%n2) {starts = [0, 8], stops = [4, 16]} : f32[4, 8] live=tokens\n"
        "%y = linear(%s, %s8, _, _, %s.b) : f32[4, 5] live=tokens\n"
        "output %y\n"
        "output %i\n";
    bed b;
    (void)state;
    *(&b) = (bed){0};
    check_fails(&b.cx, MPK_EFORMAT, "line 10, column 20: there is no tensor",
                ir_parse(&b.cx, &b.arena, str_from(graph), &b.g));
    tear_down(&b);
    static const char *const whole =
        "graph \"g\"\n"
        "input %x : f32[4, 8] live=tokens\n"
        "const %w : f32[5, 8]\n"
        "const %\"odd name\\\\\" : f32[5]\n"
        "%y = linear(%x, %w, _, _, %\"odd name\\\\\") : f32[4, 5] live=tokens\n"
        "%n = rms_norm(%y) {eps = 1e-05} : f32[4, 5] live=tokens\n"
        "%v, %i = argmax_partial(%n) {parts = 2} : f32[4, 2] live=tokens, i32[4, 2] live=tokens\n"
        "%m = map(%v) {expr = \"x0 + 0.5\"} : f32[4, 2] live=tokens\n"
        "%s = slice(%m) {starts = [0, 1], stops = [4, 2]} : f32[4, 1] live=tokens\n"
        "input %late : i64[]\n"
        "output %s\n"
        "output %i\n";
    parse(&b, whole);
    check_round_trip(&b, whole);
    tear_down(&b);
    parse(&b, " # nothing but a comment");
    check_round_trip(&b, NULL);
    tear_down(&b);
}

/* As many experts as there are numbers in 32 bits. */
static void test_most_experts(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a,
                           STR("input %x : f32[1, 2147483647]\n%i, %w = route(%x) "
                               "{experts = 2}\n"),
                           &g));
    arena_free(&a);
}

/* Windows and groups are bounded before anything is multiplied by them. */
static void test_windows_are_bounded(void **state)
{
    static const char *const rows[][2] = {
        {"input %x : f32[1, 1, 9]\n%y = avg_pool(%x) {kernel = [3], padding = "
         "[4611686018427387904]}",
         "of axis 0 is not possible"},
        {"input %x : f32[1, 1, 9]\n%y = avg_pool(%x) {kernel = [3], padding = [-1]}",
         "padding -1 or dilation 1 of axis 0 is not possible"},
        {"input %x : f32[1, 1, 9]\n%y = avg_pool(%x) {kernel = [10]}",
         "no window fits into axis 0, which has 9 entries"},
        {"input %x : f32[1, 4, 9]\nconst %w : f32[3, 2, 2]\n%y = conv(%x, %w) {groups = 2}",
         "w has 3 filters, which are not 2 groups"},
        {"input %x : f32[1, 4, 9]\nconst %w : f32[3, 4, 2]\n%y = conv(%x, %w, _) {padding = "
         "[2147483647]}",
         "of axis 0 is not possible"},
        {"input %x : f32[4, 9] live=tokens\n%y = transpose(%x) {perm = [1, 0]}",
         "is partly alive and must stay first"},
        {"input %x : f32[4, 9] live=tokens\n%y = reduce(%x) {kind = \"sum\", axes = [1], expr = "
         "\"x0 * x0\"}",
         "reduce: operand 0 is partly alive"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bed b = {0};
        check_fails(&b.cx, MPK_ESHAPE, rows[i][1],
                    ir_parse(&b.cx, &b.arena, str_from(rows[i][0]), &b.g));
        arena_free(&b.arena);
    }
}

/* attention_cache of one token, up to its tables and from there on. */
#define CACHED                                                                                   \
    "input %x : f32[1, 256]\nstate %kc : f32[1, 1, 9, 64]\nstate %vc : f32[1, 1, 9, 64]\ninput " \
    "%i : i64[1]\n"                                                                              \
    "input %c : f32[1, 1, 64]\n"
#define HEADS ") {heads = 2, kv_heads = 1, head_size = 64, splits = 1}"
#define ATTENTION                                                                            \
    "input %q : f32[1, 2, 4]\nstate %c : f32[1, 1, 4, 4]\ninput %i : i32[1]\ninput %p : i32" \
    "[1, 1]\n%y = attention(%q, %c, _, %i, %i, %p) "

typedef struct wrong_source {
    const char *source, *message;
    mpk_status status;
} wrong_source;

/* Each source is refused with its status and words, and leaves no graph. */
static void check_wrong(const wrong_source *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bed b = {0};
        check_fails(&b.cx, rows[i].status, rows[i].message,
                    ir_parse(&b.cx, &b.arena, str_from(rows[i].source), &b.g));
        assert_null(b.g);
        tear_down(&b);
    }
}

/* Shapes and attributes that an operator refuses. */
static void test_operands_refused(void **state)
{
    (void)state;
    static const wrong_source rows[] = {
        {"input %x : f32[2, 2]\n%y = transpose(%x) {perm = [0, 0]}", "each axis of %x once",
         MPK_ESHAPE},
        {"input %x : f32[2, 2]\n%y = transpose(%x) {perm = [0, 2]}", "each axis of %x once",
         MPK_ESHAPE},
        {"input %x : f32[2, 2]\n%y = transpose(%x) {perm = [-1, 0]}", "each axis of %x once",
         MPK_ESHAPE},
        {"input %x : f32[]\n%y = rms_norm(%x)", "rms_norm: input x (%x) is a scalar", MPK_ESHAPE},
        {"input %x : f32[1, 5, 9]\nconst %w : f32[4, 3, 2]\n%y = conv(%x, %w, _) {groups = 2}",
         "x has 5 channels, w is for 6 in 2 groups", MPK_ESHAPE},
        {"input %x : f32[1, 2147483648]\n%i, %w = route(%x) {experts = 2}",
         "2147483648 experts cannot be numbered", MPK_ESHAPE},
        {"input %x : f32[4]\n%y = reduce(%x) {axes = [0], dtype = \"q4_0\"}",
         "\"q4_0\" is not a plain dtype", MPK_EUNSUPPORTED},
        {"input %x : f32[1, 8]\ninput %i : i32[1, 2]\nconst %g : f32[3, 4, 8]\n"
         "%y = expert_linear(%x, %i, %g) {glu = \"silu\"}",
         "glu and the input w1 need each other", MPK_ESHAPE},
        {"input %x : f32[1, 8]\ninput %i : i32[1, 2]\nconst %g : f32[3, 4, 8]\n"
         "%y = expert_linear(%x, %i, %g, %g)",
         "glu and the input w1 need each other", MPK_ESHAPE},
        {"input %x : f32[2, 8]\ninput %c : f32[2, 8]\ninput %s : f32[2, 6]\n"
         "%y = rotate(%x, %c, %s)",
         "the table %s has rows of 6, an even number and at most 8", MPK_ESHAPE},
        {"input %q : f32[1, 2, 3, 8]\ninput %k : f32[1, 2, 9, 8]\n"
         "%y, %l = sdpa_split(%q, %k, %k) {splits = 65537}",
         "splits is 65537, expected 1 to 65536", MPK_EARG},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"x0 <\"}",
         "expected a number, an input or a function", MPK_EFORMAT},
        {"input %x : f32[4]\n%y = transfer(%x) {to = -1}", "to is -1, expected a peer", MPK_EARG},
        {"input %x : f32[4]\n%y = transfer(%x) {to = 64}", "to is 64, expected a peer", MPK_EARG},
        {"input %x : f32[1, 1, 4]\n%y = upsample(%x) {size = [2147483647]}",
         "scale of axis 0 is not possible", MPK_ESHAPE},
        {"input %x : f32[1, 1, 2147483647]\n%y = upsample(%x) {size = [4]}",
         "scale of axis 0 is not possible", MPK_ESHAPE},
        {"input %x : f32[1, 1, 2, 2]\n%y = upsample(%x) {size = [4, 4], scale_1 = -0.5}",
         "scale of axis 1 is not possible", MPK_ESHAPE},
        {"input %x : f32[1, 4] live=tokens\ninput %y : f32[3, 4]\n%z = add(%x, %y)",
         "counts tokens along axis 0 and cannot be broadcast", MPK_ESHAPE},
        {"input %x : f32[1, 4, 9]\nconst %w : f32[3, 4, 1]\n%y = conv(%x, %w, _) {dilation = "
         "[2147483647]}",
         "dilation 2147483647 or output_padding 0 of axis 0 is not possible", MPK_ESHAPE},
        {"input %p : i32[6]\n%t = rope_table(%p) {size = 8, scaling = \"linear\", factor = 0.0}",
         "factor is 0, expected more than 0", MPK_EARG},
        {"input %x : f32[2, 4]\nconst %w : f32[8, 4]\n%l, %p = logits(%x, %w) {factor = 0.0}",
         "logits: factor is 0, expected more than 0", MPK_EARG},
        {"input %x : f32[2, 4]\nconst %w : f32[8, 4]\n%l, %p = logits(%x, %w) {factor = 1e30}",
         "logits: factor is 1e+30", MPK_EARG},
        {"input %x : f32[2, 4]\nconst %w : f32[8, 4]\n%l, %p = logits(%x, %w) {cap = -1.0}",
         "logits: cap is -1, expected 0 or more", MPK_EARG},
        {"input %x : f32[2, 4]\nconst %w : f32[8, 4]\n%l, %p = logits(%x, %w) {cap = 1e30}",
         "logits: cap is 1e+30", MPK_EARG},
        {ATTENTION "{cap = -1.0}", "attention: cap is -1, expected 0 (none) or more", MPK_EARG},
        {ATTENTION "{cap = 1e30}", "attention: cap is 1e+30", MPK_EARG},
        {"input %x : f32[4, 2]\n%y = recur(%x) {expr = \"x0\", start = \"given\"}",
         "recur: no operand has steps", MPK_EARG},
        {"input %x : f32[1, 1, 1, 1]\n%y = unfold(%x) {kernel = [1, 1], size = [1, 1], entries = "
         "16777216}",
         "unfold: a row has 16777216 entries", MPK_ESHAPE},
        {"input %x : f32[2, 4]\nconst %w : f32[8, 4]\n%y = linear(%x, %w) {factor = 1e30}",
         "linear: factor is 1e+30", MPK_EARG},
        {"input %x : f32[4, 2]\n%y = pad(%x) {before = [1], after = [0, 0]}",
         "pad: 1 numbers before and 2 after", MPK_ESHAPE},
        {"input %x : f32[4]\n%v, %i = topk(%x) {axis = 0, k = 5}", "topk: 5 of 4 entries",
         MPK_ESHAPE},
        {"input %x : f32[4]\n%v, %i = topk(%x) {axis = 0, k = 0}", "topk: 0 of 4", MPK_ESHAPE},
        {"input %x : f32[4, 2]\n%y = log_softmax(%x) {axis = 2}", "axis is 2, x has rank 2",
         MPK_ESHAPE},
        {"input %t : i32[2]\nconst %w : f32[8, 4]\n%x = embedding(%t, %w) {factor = 0.0}",
         "embedding: factor is 0, expected more than 0", MPK_EARG},
        {"input %t : i32[2]\nconst %w : f32[8, 4]\n%x = embedding(%t, %w) {factor = 1e30}",
         "embedding: factor is 1e+30", MPK_EARG},
        {"input %x : f32[2, 1, 4]\ninput %q : f32[2, 1, 4]\ninput %l : f32[2, 4]\ninput %k : "
         "f32[2, "
         "1, 4]\ninput %t : f32[2, 2, 3]\nconst %n : f32[4]\ninput %p : i32[2]\ninput %s : "
         "i32[2]\ninput %g : i32[1, 1]\nstate %c : f32[1, 1, 4, 8]\n%y, %kc = latent_rope(%x, %q, "
         "%l, %k, %t, %n, %p, %s, %g, %c)",
         "latent_rope: the table rotates 6 entries, q has 4", MPK_ESHAPE},
        {"input %p : i32[6]\n%t = rope_table(%p) {size = 8, original_positions = 0}",
         "original_positions is 0, expected more than 0", MPK_EARG},
        {"input %x : f32[1, 4, 9]\nconst %w : f32[3, 4, 1]\n%y = conv(%x, %w, _) {output_padding = "
         "[2147483647]}",
         "output_padding 2147483647 of axis 0 is not possible", MPK_ESHAPE},
    };
    check_wrong(rows, sizeof rows / sizeof *rows);
}

/* Errors name the line, the column and what was expected there. */
static void test_parse_errors(void **state)
{
    static const wrong_source rows[] = {
        {"what", "line 1, column 1: expected graph, peer, input", MPK_EFORMAT},
        {"input x : f32[1]", "line 1, column 7: expected '%'", MPK_EFORMAT},
        {"input % : f32[1]", "expected a tensor's name", MPK_EFORMAT},
        {"input %x f32[1]", "expected ':'", MPK_EFORMAT},
        {"input %x : f33[1]", "expected a dtype", MPK_EFORMAT},
        {"input %x : f32[1", "expected ']'", MPK_EFORMAT},
        {"input %x : f32[1,]", "expected a number", MPK_EFORMAT},
        {"input %x : f32[99999999999999999999]", "whole number of 64 bits", MPK_EFORMAT},
        {"input %x : f32[1,1,1,1,1,1,1]", "too many dimensions", MPK_EFORMAT},
        {"input %x : f32[0]", "at least 1 is needed", MPK_ESHAPE},
        {"input %x : f32[4611686018427387904, 4]", "too large", MPK_ESHAPE},
        {"const %x : q4_0[33]", "a multiple of 32 is needed", MPK_ESHAPE},
        {"const %x : f32[3] live=rows", "only inputs can be partly alive", MPK_EARG},
        {"input %x : f32[] live=tokens", "a scalar has no axis", MPK_ESHAPE},
        {"input %x : f32[1] live=what", "expected live=tokens", MPK_EFORMAT},
        {"input %x : f32[1]\ninput %x : f32[1]", "the name is taken", MPK_EARG},
        {"input %x : f32[1]\n%y = what(%x)", "line 2, column 10: there is no operator",
         MPK_EFORMAT},
        {"input %x : f32[1]\n%y, %z = silu(%x)", "another number of results", MPK_EFORMAT},
        {"input %x : f32[1]\n%y = silu(%z)", "there is no tensor of this name", MPK_EFORMAT},
        {"input %x : f32[1]\n%y = silu()", "input x is missing", MPK_EARG},
        {"input %x : f32[1]\n%y = silu(%x, %x)", "takes at most 1 inputs", MPK_EARG},
        {"input %x : f32[1]\n%y = silu(%x) {a = 1}", "no attribute of this name", MPK_EFORMAT},
        {"input %x : f32[1]\n%y = gelu(%x) {tanh = 1, tanh = 1}", "given twice", MPK_EFORMAT},
        {"input %x : f32[1]\n%y = gelu(%x) {tanh = \"a\"}", "expected a number", MPK_EFORMAT},
        {"input %x : f32[1]\n%y = gelu(%x) {tanh = 1.5}", "whole number", MPK_EFORMAT},
        {"input %x : f32[1, 2]\n%y = transpose(%x)", "transpose needs the attribute perm",
         MPK_EFORMAT},
        {"input %x : f32[1]\n%y = cast(%x) {dtype = \"f32}", "no closing quote", MPK_EFORMAT},
        {"input %x : f32[1]\n%y = cast(%x) {dtype = \"\\q\"}", "bad character or escape",
         MPK_EFORMAT},
        {"input %x : f32[1]\n%y = silu(%x) : f32[2]", "the stated type is not", MPK_EFORMAT},
        {"input %x : i32[1]\n%y = silu(%x)", "has dtype i32, expected one of f32, f16, bf16",
         MPK_ESHAPE},
        {"input %\"\\x00\" : i32[1]", "the byte 0", MPK_EFORMAT},
        {"output %x", "there is no tensor", MPK_EFORMAT},
        {"input %x : f32[1]\noutput %x\noutput %x", "listed twice", MPK_EVERIFY},
        {"input %x : f32[2, 3]\nconst %w : f32[5, 4]\n%y = linear(%x, %w)",
         "linear: input w0 (%w) has shape [5, 4], expected [?, 3]", MPK_ESHAPE},
        {"input %x : f32[2, 3]\nconst %w : f32[5, 4]\n%y = linear(%x, %w)", "parsing up to line 3",
         MPK_ESHAPE},
        {"input %x : f32[4] live=tokens\ninput %y : f32[4] live=rows\n%z = add(%x, %y)",
         "counts rows, that of an earlier", MPK_ESHAPE},
        {"input %x : f32[4] live=tokens\ninput %y : f32[3, 4]\n%z = add(%x, %y)",
         "cannot be broadcast", MPK_ESHAPE},
        {"input %x : f32[4, 2] live=tokens\n%z = slice(%x) {starts = [1, 0], stops = [4, 2]}",
         "only be taken whole", MPK_ESHAPE},
        {"input %x : f32[4, 2] live=tokens\n%z = reshape(%x) {shape = [8]}", "must stay as it is",
         MPK_ESHAPE},
        {"input %x : f32[4, 2]\n%z = reshape(%x) {shape = [3, -1]}", "a multiple of 3", MPK_ESHAPE},
        {"const %x : q4_0[4, 64]\n%z = slice(%x) {starts = [0, 5], stops = [4, 37]}",
         "split the blocks", MPK_EUNSUPPORTED},
        {"const %x : q4_0[32, 64]\n%z = transpose(%x) {perm = [1, 0]}", "split the blocks",
         MPK_EUNSUPPORTED},
        {"input %p : f32[2, 3, 8, 1]\ninput %l : f32[2, 3, 2]\n%y = attention_fold(%p, %l)",
         "expected [", MPK_ESHAPE},
        {"input %p : f32[2, 3, 8]\ninput %l : f32[2, 3]\n%y = attention_fold(%p, %l)",
         "must be [T, S, H K]", MPK_ESHAPE},
        {"input %p : f32[2, 3, 8]\ninput %l : bf16[2, 3, 2]\n%y = attention_fold(%p, %l)",
         "must be [T, S, H K]", MPK_ESHAPE},
        {"input %p : f32[2, 3, 8] live=tokens\ninput %l : f32[2, 3, 2]\n%y = attention_fold(%p, "
         "%l)",
         "must be [T, S, H K]", MPK_ESHAPE},
        {"input %p : f32[2, 3, 8]\ninput %l : f32[1, 3, 2]\n%y = attention_fold(%p, %l)",
         "must be [T, S, H K]", MPK_ESHAPE},
        {"input %p : f32[2, 3, 8]\ninput %l : f32[2, 1, 2]\n%y = attention_fold(%p, %l)",
         "must be [T, S, H K]", MPK_ESHAPE},
        {"input %p : f32[2, 3, 8]\ninput %l : f32[2, 3, 3]\n%y = attention_fold(%p, %l)",
         "must be [T, S, H K]", MPK_ESHAPE},
        {"input %x : f32[1, 1, 2147483647]\n%y, %i = max_pool(%x) {output = [3]}",
         "output 3 of axis 0 is not possible", MPK_ESHAPE},
        {"input %x : f32[1, 1, 9]\n%y, %i = max_pool(%x) {output = [0]}",
         "output 0 of axis 0 is not possible", MPK_ESHAPE},
        {"input %p : i32[4] live=tokens\n%y = rope_table(%p) {size = 8, scaling = \"llama3\", "
         "low_freq_factor = 4.0, high_freq_factor = 3.0}",
         "is below low_freq_factor", MPK_EARG},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"x0 + \"}",
         "expected a number, an input or a function", MPK_EFORMAT},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"x1\"}", "there is no such input", MPK_EFORMAT},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"sin(x0\"}", "expected )", MPK_EFORMAT},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"min(x0)\"}", "another argument", MPK_EFORMAT},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"foo(x0)\"}", "no such function at character 1",
         MPK_EFORMAT},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"x0 x0\"}", "expected the end at character 4",
         MPK_EFORMAT},
        {"input %p : i32[2]\n%t = rope_table(%p) {size = 8, scaling = \"ntk\"}",
         "there are default, linear", MPK_EUNSUPPORTED},
        {"input %p : i32[2]\n%t = rope_table(%p) {size = 7}", "expected an even number", MPK_EARG},
        {"input %x : f32[4, 2]\n%z = concat(%x, %x) {axis = 2}", "axis is 2, x0 has rank 2",
         MPK_ESHAPE},
        {"input %x : f32[4, 2]\n%z = concat(%x, %x) {axis = -1}", "axis is -1, x0 has rank 2",
         MPK_ESHAPE},
        {"input %x : f32[4, 2] live=tokens\n%z = concat(%x, %x) {axis = 0}",
         "axis 0 of %x is partly alive", MPK_ESHAPE},
    };
    (void)state;
    check_wrong(rows, sizeof rows / sizeof *rows);
}

/* Operands of attention_cache that contradict each other, one at a time, in a program that is
 * otherwise right. */
static void test_caches_refused(void **state)
{
    static const wrong_source rows[] = {
        {CACHED "%y, %l, %k, %v = attention_cache(%x, %kc, %vc, %i, _, %c" HEADS,
         "given both or neither", MPK_ESHAPE},
        {CACHED "%y, %l, %k, %v = attention_cache(%x, %kc, %vc, %i, _, _, %c" HEADS,
         "given both or neither", MPK_ESHAPE},
        {CACHED "input %d : f32[2, 1, 64]\n%y, %l, %k, %v = attention_cache(%x, %kc, %vc, %i, _, "
                "%d, %d" HEADS,
         "cos has 2 entries, the cache 1", MPK_ESHAPE},
        {CACHED "input %d : f32[1, 1, 66]\n%y, %l, %k, %v = attention_cache(%x, %kc, %vc, %i, _, "
                "%d, %d" HEADS,
         "cos has rows of 66", MPK_ESHAPE},
        {CACHED "input %d : f32[1, 1, 63]\n%y, %l, %k, %v = attention_cache(%x, %kc, %vc, %i, _, "
                "%d, %d" HEADS,
         "cos has rows of 63", MPK_ESHAPE},
    };
    (void)state;
    check_wrong(rows, sizeof rows / sizeof *rows);
}

/* Deep and long expressions end in an error, not in a stack that overflows. */
static void test_hostile_expressions(void **state)
{
    (void)state;
    static const char *const repeated[] = {"(", "-", "x0+"};
    for (int kind = 0; kind < 3; kind++) {
        text source = {0};
        bed b = {0};
        text_print(&source, "input %%x : f32[4]\n%%z = map(%%x) {expr = \"");
        for (int i = 0; i < 100000; i++)
            text_print(&source, "%s", repeated[kind]);
        text_print(&source, "\"}");
        check_fails(&b.cx, MPK_EFORMAT, "",
                    ir_parse(&b.cx, &b.arena, (str){source.at, source.n}, &b.g));
        text_free(&source);
        tear_down(&b);
    }
}

/* A program built by calls is the one that its text parses to, and wrong calls are refused
 * without changing it. */
static void test_builder(void **state)
{
    bed b = {0};
    ir_tensor_id x, w, y[IR_MAX_OUTPUTS];
    (void)state;
    check_ok(&b.cx, ir_create(&b.cx, &b.arena, "built", &b.g));
    check_ok(&b.cx, ir_add_tensor(&b.cx, b.g, IR_INPUT, IR_TOKENS, "x", IR_F32, 2,
                                  (int64_t[]){4, 32}, &x));
    check_ok(&b.cx,
             ir_add_tensor(&b.cx, b.g, IR_CONST, IR_ALL, "w", IR_Q8_0, 2, (int64_t[]){6, 32}, &w));
    check_fails(&b.cx, MPK_EARG, "the name is taken",
                ir_add_tensor(&b.cx, b.g, IR_CONST, IR_ALL, "w", IR_F32, 0, NULL, &w));
    check_fails(&b.cx, MPK_EARG, "only an operator makes",
                ir_add_tensor(&b.cx, b.g, IR_TEMP, IR_ALL, "t", IR_F32, 0, NULL, &w));
    check_fails(&b.cx, MPK_ESHAPE, "rank 7",
                ir_add_tensor(&b.cx, b.g, IR_CONST, IR_ALL, "r", IR_F32, 7, (int64_t[7]){0}, &w));
    ir_set sets[] = {{.name = "eps", .f = 0.5}, {0}}, wrong[] = {{.name = "what"}, {0}},
           parts[] = {{.name = "parts", .i = 3}, {0}};
    check_ok(&b.cx, ir_add_op(&b.cx, b.g, "linear", "y", 2, (ir_tensor_id[]){x, w}, sets, y));
    check_fails(&b.cx, MPK_EARG, "no operator what",
                ir_add_op(&b.cx, b.g, "what", "z", 0, NULL, NULL, y));
    check_fails(&b.cx, MPK_EARG, "no attribute what",
                ir_add_op(&b.cx, b.g, "linear", "z", 2, (ir_tensor_id[]){x, w}, wrong, y));
    check_fails(&b.cx, MPK_EARG, "needs the attribute parts",
                ir_add_op(&b.cx, b.g, "argmax_partial", "z", 1, (ir_tensor_id[]){x}, NULL, y));
    check_fails(&b.cx, MPK_EARG, "tensor number 99",
                ir_add_op(&b.cx, b.g, "silu", "z", 1, (ir_tensor_id[]){99}, NULL, y));
    check_fails(&b.cx, MPK_EARG, "adding %y = silu",
                ir_add_op(&b.cx, b.g, "silu", "y", 1, (ir_tensor_id[]){x}, NULL, y));
    check_ok(&b.cx, ir_add_op(&b.cx, b.g, "argmax_partial", NULL, 1,
                              (ir_tensor_id[]){ir_find(b.g, "y")}, parts, y));
    assert_int_equal(y[1], ir_find(b.g, "argmax_partial_1.1"));
    assert_int_equal(ir_find(b.g, "nothing"), IR_NONE);
    check_ok(&b.cx, ir_add_output(&b.cx, b.g, y[0]));
    check_fails(&b.cx, MPK_EARG, "tensor number 77", ir_add_output(&b.cx, b.g, 77));
    check_ok(&b.cx, ir_verify(&b.cx, b.g));
    check_round_trip(&b, "graph \"built\"\n"
                         "input %x : f32[4, 32] live=tokens\n"
                         "const %w : q8_0[6, 32]\n"
                         "%y = linear(%x, %w) {eps = 0.5} : f32[4, 6] live=tokens\n"
                         "%argmax_partial_1, %argmax_partial_1.1 = argmax_partial(%y) {parts = 3} "
                         ": f32[4, 3] live=tokens, "
                         "i32[4, 3] live=tokens\n"
                         "output %argmax_partial_1\n");
    tear_down(&b);
}

static const char *const cache_graph =
    "input %k : f32[4, 2, 8] live=tokens\ninput %p : i32[4] live=tokens\n"
    "input %s : i32[4] live=tokens\ninput %pages : i32[2, 2]\n"
    "state %kc : f32[4, 2, 4, 8]\nstate %vc : f32[4, 2, 4, 8]\n"
    "%ka, %va = kv_write(%k, %k, %p, %s, %pages, %kc, %vc)\n"
    "%q = attention(%k, %ka, %va, %p, %s, %pages)\n"
    "%kb, %vb = kv_write(%k, %k, %p, %s, %pages, %ka, %va)\n"
    "%r = silu(%q)\n"
    "output %r\noutput %kb\n";

enum { OP_WRITE, OP_ATTEND, OP_WRITE_AGAIN, OP_SILU };

static ir_tensor *tensor_of(ir_graph *g, const char *name)
{
    return &g->tensors.at[ir_find(g, name)];
}

/* Each breaks one rule of a sound graph. */
static void break_kind(ir_graph *g)
{
    tensor_of(g, "k")->kind = IR_KINDS;
}
static void break_dtype(ir_graph *g)
{
    tensor_of(g, "k")->dtype = IR_DTYPES;
}
static void break_rank(ir_graph *g)
{
    tensor_of(g, "k")->rank = 9;
}
static void break_dims(ir_graph *g)
{
    tensor_of(g, "k")->dims[1] = 0;
}
static void break_block(ir_graph *g)
{
    tensor_of(g, "kc")->dtype = IR_Q4_0;
}
static void break_size(ir_graph *g)
{
    tensor_of(g, "kc")->dims[0] = INT64_MAX / 8;
}
static void break_name(ir_graph *g)
{
    tensor_of(g, "k")->name = STR("p");
}
static void break_no_name(ir_graph *g)
{
    tensor_of(g, "k")->name.n = 0;
}
static void break_given_producer(ir_graph *g)
{
    tensor_of(g, "k")->producer = 0;
}
static void break_given_shares(ir_graph *g)
{
    tensor_of(g, "k")->shares = 1;
}
static void break_live(ir_graph *g)
{
    tensor_of(g, "kc")->live = IR_ROWS;
}
static void break_producer(ir_graph *g)
{
    tensor_of(g, "r")->producer = IR_NONE;
}
static void break_other_producer(ir_graph *g)
{
    tensor_of(g, "r")->producer = OP_ATTEND;
}
static void break_record(ir_graph *g)
{
    g->ops.at[OP_SILU].def = NULL;
}
static void break_input_count(ir_graph *g)
{
    g->ops.at[OP_SILU].n_in = 2;
}
static void break_output_count(ir_graph *g)
{
    g->ops.at[OP_SILU].n_out = 2;
}
static void break_missing(ir_graph *g)
{
    g->ops.at[OP_SILU].in[0] = IR_NONE;
}
static void break_input_number(ir_graph *g)
{
    g->ops.at[OP_SILU].in[0] = 1000;
}
static void break_order(ir_graph *g)
{
    g->ops.at[OP_ATTEND].in[0] = ir_find(g, "r");
}
/* So that the result of an operator is no longer one. */
static void give(ir_graph *g, const char *name)
{
    tensor_of(g, name)->kind = IR_INPUT;
    tensor_of(g, name)->producer = tensor_of(g, name)->shares = IR_NONE;
}

static void break_output_number(ir_graph *g)
{
    give(g, "r");
    g->ops.at[OP_SILU].out[0] = 1000;
}

static void break_writer(ir_graph *g)
{
    give(g, "r");
    g->ops.at[OP_SILU].out[0] = ir_find(g, "k");
}

static void break_twice(ir_graph *g)
{
    give(g, "va");
    g->ops.at[OP_WRITE].out[1] = g->ops.at[OP_WRITE].out[0];
}

static void break_op_name(ir_graph *g)
{
    g->ops.at[OP_SILU].name = STR("k");
}
static void break_infer(ir_graph *g)
{
    tensor_of(g, "k")->dtype = IR_I32;
}
static void break_shape(ir_graph *g)
{
    tensor_of(g, "r")->dims[1] = 17;
}
static void break_stride(ir_graph *g)
{
    tensor_of(g, "r")->stride[0] = 1;
}
static void break_shares(ir_graph *g)
{
    tensor_of(g, "ka")->shares = IR_NONE;
}
static void break_weight(ir_graph *g)
{
    tensor_of(g, "kc")->kind = IR_CONST;
}
/* Two results may not both take the storage of one input: the second write would race with the
 * first. */
static void break_two_in_place(ir_graph *g)
{
    g->ops.at[OP_WRITE].in[6] = g->ops.at[OP_WRITE].in[5];
    tensor_of(g, "va")->shares = g->ops.at[OP_WRITE].in[5];
}
/* Reading the cache by its old name after a write: the operator may run before or after the
 * write, so the program has no one meaning. */
static void break_stale(ir_graph *g)
{
    g->ops.at[OP_ATTEND].in[1] = ir_find(g, "kc");
}
static void break_outputs(ir_graph *g)
{
    g->outputs.at[0] = 1000;
}
static void break_output_twice(ir_graph *g)
{
    g->outputs.at[0] = g->outputs.at[1];
}
/* An output that was overwritten in place afterwards would show the later value. */
static void break_output_stale(ir_graph *g)
{
    g->outputs.at[0] = ir_find(g, "ka");
}

/* Each damage breaks one promise of a verified graph, and the verifier names that promise. */
static void test_verifier(void **state)
{
    static const struct {
        void (*damage)(ir_graph *g);
        const char *message;
    } rows[] = {
        {break_kind, "there is no kind number"},
        {break_dtype, "there is no dtype number"},
        {break_rank, "has rank 9"},
        {break_dims, "dimension 1 is 0"},
        {break_block, "a multiple of 32 is needed"},
        {break_size, "is too large"},
        {break_name, "the name belongs to another"},
        {break_no_name, "has no name"},
        {break_given_producer, "is given and has a producer"},
        {break_given_shares, "is given and shares storage"},
        {break_live, "is partly alive and no input"},
        {break_producer, "has no producer"},
        {break_other_producer, "is not a result of its producer"},
        {break_record, "has no record"},
        {break_input_count, "has 2 inputs"},
        {break_output_count, "has 2 results"},
        {break_missing, "input x is missing"},
        {break_input_number, "tensor number 1000"},
        {break_order, "attention number 1 reads %r before it is made"},
        {break_output_number, "result 0 is tensor number 1000"},
        {break_writer, "writes %k, which is not its own"},
        {break_twice, "writes %ka twice"},
        {break_op_name, "does not have the name of its first result"},
        {break_infer, "verifying %ka = kv_write"},
        {break_shape, "does not have the dtype, shape or storage"},
        {break_stride, "does not have the dtype, shape or storage"},
        {break_shares, "does not have the dtype, shape or storage"},
        {break_weight, "in place, which is an input or a weight"},
        {break_two_in_place, "has two results in the storage of %kc"},
        {break_stale, "reads %kc, which has been overwritten in place"},
        {break_outputs, "output 0 is tensor number 1000"},
        {break_output_twice, "is listed twice"},
        {break_output_stale, "output %ka has been overwritten"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bed b;
        parse(&b, cache_graph);
        rows[i].damage(b.g);
        check_fails(&b.cx, MPK_EVERIFY, rows[i].message, ir_verify(&b.cx, b.g));
        tear_down(&b);
    }
}

/* Rules that only a larger damage shows. */
static void test_verifier_more(void **state)
{
    bed b = {0};
    (void)state;
    check_fails(&b.cx, MPK_EVERIFY, "which repeats elements",
                ir_parse(&b.cx, &b.arena,
                         STR("input %k : f32[4, 2, 8]\ninput %p : i32[4]\ninput %s : i32[4]\ninput "
                             "%pages : i32[2, 2]\n"
                             "state %c : f32[1, 2, 4, 8]\nstate %vc : f32[3, 2, 4, 8]\n%kc = "
                             "expand(%c) {shape = [3, 2, 4, 8]}\n"
                             "%ka, %va = kv_write(%k, %k, %p, %s, %pages, %kc, %vc)\n"),
                         &b.g));
    check_fails(&b.cx, MPK_EVERIFY, "and writes its storage in place",
                ir_parse(&b.cx, &b.arena,
                         STR("input %p : i32[4]\ninput %s : i32[4]\ninput %pages : i32[2, "
                             "2]\nstate %kc : f32[4, 2, 1, 8]\n"
                             "state %vc : f32[4, 2, 1, 8]\n%k = reshape(%kc) {shape = [4, 2, 8]}\n"
                             "%ka, %va = kv_write(%k, %k, %p, %s, %pages, %kc, %vc)\n"),
                         &b.g));
    tear_down(&b);
}

/* A random chain of element-wise operators and views, parsed from nothing but its own print. */
static void test_random_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = base_seed; seed < base_seed + 200; seed++) {
        bed b = {0};
        ir_tensor_id id;
        check_ok(&b.cx, ir_create(&b.cx, &b.arena, seed % 2 ? "r" : NULL, &b.g));
        for (uint64_t i = 0; i < 3 + seed % 30; i++) {
            uint64_t kind = rng_u64(seed, 4 * i) % 7, n = b.g->tensors.n;
            ir_tensor_id in[2] = {0};
            for (uint64_t k = 0; k < 2 && n; k++)
                in[k] = (ir_tensor_id)(rng_u64(seed, 4 * i + 1 + k) % n);
            int64_t perm[2] = {1, 0}, starts[2] = {0, (int64_t)(rng_u64(seed, 4 * i + 3) % 3)},
                    stops[2] = {6, 6}, flat[2] = {6, 6};
            ir_set set[3] = {{0}, {0}, {0}};
            char name[16];
            snprintf(name, sizeof name, "n%d%s", (int)i, i % 3 ? "" : " x");
            if (n == 0 || kind == 0) {
                ir_kind of = (ir_kind)(rng_u64(seed, 4 * i + 3) % 3);
                check_ok(&b.cx, ir_add_tensor(&b.cx, b.g, of, IR_ALL, name, IR_F32, 2,
                                              (int64_t[]){6, 6}, &id));
            } else if (kind == 1) {
                set[0] = (ir_set){.name = "perm", .ints = perm, .n_ints = 2};
                check_ok(&b.cx, ir_add_op(&b.cx, b.g, "transpose", name, 1, in, set, &id));
            } else if (kind == 2) {
                starts[1] = 0;
                set[0] = (ir_set){.name = "starts", .ints = starts, .n_ints = 2};
                set[1] = (ir_set){.name = "stops", .ints = stops, .n_ints = 2};
                check_ok(&b.cx, ir_add_op(&b.cx, b.g, "slice", name, 1, in, set, &id));
            } else if (kind == 3) {
                set[0] = (ir_set){.name = "shape", .ints = flat, .n_ints = 2};
                check_ok(&b.cx, ir_add_op(&b.cx, b.g, "reshape", name, 1, in, set, &id));
            } else if (kind == 4) {
                set[0] = (ir_set){.name = "eps", .f = (double)rng_float(seed, 4 * i + 3)};
                check_ok(&b.cx, ir_add_op(&b.cx, b.g, "rms_norm", name, 1, in, set, &id));
            } else {
                check_ok(&b.cx,
                         ir_add_op(&b.cx, b.g, kind == 5 ? "add" : "mul", name, 2, in, NULL, &id));
            }
        }
        check_ok(&b.cx, ir_add_output(&b.cx, b.g, (ir_tensor_id)(b.g->tensors.n - 1)));
        check_ok(&b.cx, ir_verify(&b.cx, b.g));
        check_round_trip(&b, NULL);
        tear_down(&b);
    }
}

/* Boxes are half open: neighbours that share a face do not overlap, and an empty box overlaps
 * nothing and lies in everything. */
static void test_boxes(void **state)
{
    ir_box a = {{0, 2}, {4, 5}}, b = {{3, 4}, {9, 9}}, c = {{4, 0}, {5, 9}},
           none = {{1, 3}, {2, 3}}, around;
    (void)state;
    assert_true(ir_box_overlaps(&a, &b, 2));
    assert_false(ir_box_overlaps(&a, &c, 2));
    assert_false(ir_box_overlaps(&a, &none, 2));
    assert_true(ir_box_is_empty(&none, 2));
    assert_true(ir_box_contains(&a, &none, 2));
    assert_false(ir_box_contains(&a, &b, 2));
    assert_int_equal(ir_box_elements(&a, 2), 12);
    assert_int_equal(ir_box_elements(&none, 2), 0);
    around = ir_box_around(&a, &b, 2);
    assert_true(around.lo[0] == 0 && around.lo[1] == 2 && around.hi[0] == 9 && around.hi[1] == 9);
    around = ir_box_around(&none, &a, 2);
    assert_true(ir_box_contains(&a, &around, 2));
    assert_int_equal(ir_row_bytes(IR_Q4_K, 512), 288);
    ir_dtype dtype;
    assert_true(ir_dtype_from_name(STR("q6_k"), &dtype) && dtype == IR_Q6_K);
    assert_false(ir_dtype_from_name(STR("q9"), &dtype));
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_round_trip),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_parse_errors),
        cmocka_unit_test(test_windows_are_bounded),
        cmocka_unit_test(test_most_experts),
        cmocka_unit_test(test_operands_refused),
        cmocka_unit_test(test_caches_refused),
        cmocka_unit_test(test_hostile_expressions),
        cmocka_unit_test(test_builder),
        cmocka_unit_test(test_verifier),
        cmocka_unit_test(test_verifier_more),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
