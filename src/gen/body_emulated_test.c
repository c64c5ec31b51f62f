/* body_emulated_test.c - the generic device bodies on the host: the generated text, compiled as
 * C++, against `ref`.
 *
 * Every operator's cases whose operands are plain go into one source, which the C++ compiler that
 * is there turns into a shared object.  For each case, with random operands, all entries alive and
 * only some, with 1 and with 5 threads:
 *   - any split of output 0 gives what ref gives, within what the dtype allows; integers exactly;
 *   - two splits give the same bits;
 *   - nothing else is written.
 * Some cases, drawn by the seed, also run with operands that are views, whose strides are others.
 */
#include "emulated_bed.h"

/* The shared object's two entries: run a body on n threads; where a KV page of fragments has an
 * entry. */
typedef struct device {
    void *library;
    void (*run)(unsigned body, const rt_entry *e, unsigned hi0, const unsigned *live, char *scratch,
                int n);
    int (*kv_at)(int values, int token, int dim, int page_tokens, int size, int bytes);
} device;

static arena graphs_arena;
static VEC(subject) subjects;
static gen_source source;
static device dev;
static uint64_t base_seed;
static unsigned n_plain, n_refused; /* cases with plain operands that have a body, and none */

/* ---- compiling ---- */

/* Four workers stand for any number: generic bodies do not ask. */
static gen_call call_of(const ir_graph *g, const ir_op *op)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    return (gen_call){
        .ir = g, .op = op, .n_tokens = (uint32_t)(y->rank ? y->dims[0] : 1), .n_workers = 4};
}

static mpk_status keep_subject(subject s)
{
    PUSH(&cx, &graphs_arena, &subjects, s);
    return MPK_OK;
}

/* ---- beside the cases of the records: long rows, lines and contexts, and KV pages in the order of
 * tensor cores ---- */

#define PLACES(tokens, pages)                                        \
    "input %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens \
    "] live=tokens\ninput %pages : i32[" pages "]\n"                 \
    "state %kc : bf16[80, 2, 16, 64]\nstate %vc : bf16[80, 2, 16, 64]\n"
#define DRAWN(rows, columns, expression)                                                       \
    "input %x : f32[" rows ", " columns "] live=rows\ninput %s : f32[" rows ", 4] live=rows\n" \
    "input %e : i64[" rows "] live=rows\ninput %d : i32[" rows "] live=rows\n"                 \
    "input %a : i32[" rows ", 7] live=rows\ninput %u : i32[4, 64]\ninput %h : i32[60]\n"       \
    "state %c : f32[4, " columns "]\n%y = map(%x) {expr = \"" expression "\"}\n"               \
    "%t, %o, %p = sample(%y, %s, %e, %d, %a, %u, %h, %c)\n"
/* Tokens that are drawn. */
static const char *const drawn_graphs[] = {
    "input %x : f32[4, 6001] live=rows\ninput %s : f32[4, 4] live=rows\ninput %e : i64[4] "
    "live=rows\n"
    "input %d : i32[4] live=rows\ninput %a : i32[4, 7] live=rows\ninput %u : i32[4, 64]\ninput %h "
    ": i32[60]\n"
    "state %c : f32[4, 6001]\n%t, %o, %p = sample(%x, %s, %e, %d, %a, %u, %h, %c)\n",
    "input %x : f32[4, 2000] live=rows\ninput %s : f32[4, 4] live=rows\ninput %e : i64[4] "
    "live=rows\n"
    "input %d : i32[4] live=rows\ninput %a : i32[4, 7] live=rows\ninput %u : i32[8, 64]\ninput %h "
    ": i32[60]\n"
    "state %c : f32[4, 2000]\n%t, %o, %p = sample(%x, %s, %e, %d, %a, %u, %h, %c)\n",
    /* rules of many rows: short histories, lists and tokens at their ends */
    "input %x : f32[256, 13] live=rows\ninput %s : f32[256, 4] live=rows\ninput %e : i64[256] "
    "live=rows\n"
    "input %d : i32[256] live=rows\ninput %a : i32[256, 7] live=rows\ninput %u : i32[256, 64]\n"
    "input %h : i32[60]\nstate %c : f32[256, 13]\n%t, %o, %p = sample(%x, %s, %e, %d, %a, %u, %h, "
    "%c)\n",
    /* many equal logits, all equal ones, NaN and -inf, and hardly any that can be drawn */
    DRAWN("4", "6001", "floor(x0 * 2)"),
    DRAWN("96", "6001", "floor(x0 * 1.3)"),
    DRAWN("4", "6001", "x0 * 0"),
    DRAWN("4", "6001", "log(abs(x0) - 0.5)"),
    DRAWN("4", "6001", "log(x0 - 2.9)"),
    DRAWN("4", "13", "x0 * 30"),
};

/* Contexts, in pages or as they come. */
static const char *const cached_graphs[] = {
    "input %q : bf16[3, 4, 64] live=tokens\n" PLACES(
        "3", "2, 40") "%y = attention(%q, %kc, %vc, %p, %s, %pages)\n",
    "input %q : bf16[3, 4, 64] live=tokens\n" PLACES(
        "3", "2, 40") "%y = attention(%q, %kc, _, %p, %s, %pages)\n",
    "input %k : bf16[5, 2, 64] live=tokens\n" PLACES(
        "5", "2, 40") "%ka = latent_write(%k, %p, %s, %pages, %kc)\n",
    "input %k : bf16[5, 2, 64] live=tokens\ninput %v : bf16[5, 2, 64] live=tokens\n" PLACES(
        "5", "2, 40") "%ka, %va = kv_write(%k, %v, %p, %s, %pages, %kc, %vc)\n",
    "input %x : bf16[5, 512] live=tokens\ninput %t : f32[5, 2, 32] live=tokens\n" PLACES(
        "5", "2, 40") "const %qn : bf16[64]\nconst %kn : bf16[64]\n%q, %k, %v = rope_kv(%x, %t, "
                      "%p, %s, %pages, %kc, "
                      "%vc, %qn, %kn) {heads = 4, kv_heads = 2, head_size = 64}\n",
    "input %x : bf16[4, 512] live=tokens\n" PLACES(
        "4", "3, 20") "%y, %k, %v = attention_qkv(%x, %p, %s, %pages, %kc, %vc) {size = 64, heads "
                      "= 4, kv_heads = 2, "
                      "head_size = 64}\n",
    "input %x : bf16[4, 512] live=tokens\ninput %t : f32[4, 2, 32] live=tokens\n" PLACES(
        "4", "2, 40") "const %qn : bf16[64]\nconst %kn : bf16[64]\n%y, %l, %k, %v = "
                      "attention_split(%x, %t, %p, %s, "
                      "%pages, %kc, %vc, %qn, %kn) {heads = 4, kv_heads = 2, head_size = 64, "
                      "splits = 5, unit = 64}\n",
    "input %q : bf16[1, 4, 3, 128]\ninput %k : bf16[1, 2, 300, 128]\ninput %v : bf16[1, 2, 300, "
    "64]\n"
    "input %m : bool[3, 300]\n%y = sdpa(%q, %k, %v, %m)\n",
    "input %q : f32[2, 2, 3, 80]\ninput %k : f32[2, 1, 270, 80]\ninput %v : f32[2, 1, 270, 9]\n%y "
    "= sdpa(%q, %k, %v, "
    "_) {window = 100}\n",
    /* keys with gaps: between entries, and between rows that are pieces or are not */
    "input %q : f32[1, 2, 3, 16]\ninput %j : bf16[1, 2, 40, 32]\n%k = slice(%j) {starts = [0, 0, "
    "0, 0], stops = [1, 2, 40, 32], steps = [1, 1, 1, 2]}\ninput %v : f32[1, 2, 40, 8]\n%y = "
    "sdpa(%q, %k, %v, _)\n",
    "input %q : f32[1, 2, 3, 16]\ninput %j : f32[1, 2, 40, 20]\n%k = slice(%j) {starts = [0, 0, "
    "0, 4], stops = [1, 2, 40, 20]}\ninput %v : f32[1, 2, 40, 8]\n%y = sdpa(%q, %k, %v, _)\n",
    "input %q : f32[1, 2, 3, 16]\ninput %j : bf16[1, 2, 40, 18]\n%k = slice(%j) {starts = [0, 0, "
    "0, 0], stops = [1, 2, 40, 16]}\ninput %v : f32[1, 2, 40, 8]\n%y = sdpa(%q, %k, %v, _)\n",
};

/* What goes along a line: sorts, scans, extremes, sums.  And windows whose largest entry comes more
 * than once. */
static const char *const ordered_graphs[] = {
    "input %x : f32[3, 5000] live=tokens\n%v, %i = sort(%x) {axis = 1}\n",
    "input %x : f32[2, 5000]\n%y = map(%x) {expr = \"log(x0)\"}\n%v, %i = sort(%y) {axis = 1}\n",
    "input %x : f64[5000]\n%y = map(%x) {expr = \"log(x0)\"}\n%v, %i = topk(%y) {axis = 0, k = "
    "2600}\n",
    "input %x : f64[5000]\n%y = map(%x) {expr = \"sqrt(x0 + 2)\"}\n%v, %i = extreme(%y) {axis = 0, "
    "kind = \"min\"}\n",
    "input %x : f16[5000]\n%y = map(%x) {expr = \"sqrt(x0 + 3.5)\"}\n%v, %i = scan_extreme(%y) "
    "{axis = 0}\n",
    "input %x : i64[5000, 2]\n%v, %i = sort(%x) {axis = 0, descending = 1}\n",
    "input %x : bool[5000]\n%v, %i = sort(%x) {axis = 0, descending = 1}\n",
    "input %x : f64[40000]\n%v, %i = sort(%x) {axis = 0}\n",
    "input %x : f32[2, 40000] live=rows\n%v, %i = topk(%x) {axis = 1, k = 50}\n",
    "input %x : bool[5000]\n%v, %i = topk(%x) {axis = 0, k = 3000, largest = 0}\n",
    "input %x : i64[5000, 2]\n%v, %i = topk(%x) {axis = 0, k = 1500}\n",
    "input %x : f32[2, 5000]\n%y = scan(%x) {axis = 1}\n",
    "input %x : i32[40000]\n%y = scan(%x) {axis = 0, kind = \"prod\", dtype = \"i64\"}\n",
    "input %x : f32[300, 3]\n%y = scan(%x) {axis = 0, kind = \"logsumexp\"}\n",
    "input %x : f16[2, 5000]\n%v, %i = scan_extreme(%x) {axis = 1, kind = \"min\"}\n",
    "input %x : bool[5000]\n%v, %i = scan_extreme(%x) {axis = 0}\n",
    "input %x : f32[2, 40000] live=rows\n%v, %i = extreme(%x) {axis = 1, kind = \"min\"}\n",
    "input %x : bf16[3, 6005]\n%v, %i = extreme(%x) {axis = 1}\n",
    "input %x : f32[2, 9000]\n%y = map(%x) {expr = \"log(abs(x0) - 0.01)\"}\n%v, %i = extreme(%y) "
    "{axis = 1}\n",
    "input %x : f32[9000]\n%y = map(%x) {expr = \"1 / where(x0 > 0.1, x0, 0.0)\"}\n%v, %i = "
    "extreme(%y) {axis = 0}\n",
    "input %x : f16[8000]\n%y = map(%x) {expr = \"sqrt(x0 + 3.5)\"}\n%v, %i = extreme(%y) {axis = "
    "0}\n",
    "input %x : bf16[2, 1, 8192]\n%y = map(%x) {expr = \"x0 - x0 - 1\"}\n%v, %i = extreme(%y) "
    "{axis = 2, kind = "
    "\"min\"}\n",
    "input %x : bool[300, 3]\n%v, %i = extreme(%x) {axis = 0, keep = 1, kind = \"max\"}\n",
    "input %x : i32[2, 5000] live=rows\n%y = reduce(%x) {axes = [1], kind = \"sum\"}\n",
    "input %x : bool[300, 2]\n%y = reduce(%x) {axes = [0], kind = \"all\"}\n",
    "input %x : f32[2, 3, 9, 8]\n%y = map(%x) {expr = \"floor(x0)\"}\n%v, %i = max_pool(%y) "
    "{kernel = "
    "[3, 3], stride = [2, 2]}\n",
};

/* Maps of 16 bits, which go by pieces of eight neighbours: as long rows, as heads before tokens,
 * with two dtypes and tokens that come, and rows of a number that pieces do not fill. */
static const char *const mapped_graphs[] = {
    "input %x : bf16[7, 136]\n%y = map(%x) {expr = \"x0 * sigmoid(1.702 * x0)\", dtype = "
    "\"bf16\"}\n",
    "input %x : bf16[5, 3, 2048]\n%y = map(%x) {expr = \"tanh(x0) / (abs(x0) + 0.5)\", dtype = "
    "\"f16\"}\n",
    "input %a : f16[9, 4, 24] live=tokens\ninput %b : bf16[9, 4, 24] live=tokens\n%y = map(%a, %b) "
    "{expr = \"t0 = x0 * x1; max(t0, x0) - x1\", dtype = \"bf16\"}\n",
    "input %x : bf16[6, 4, 40]\n%t = transpose(%x) {perm = [1, 0, 2]}\n%y = map(%t, %t) {expr = "
    "\"where(x0 > 0, x0, exp(x1))\", dtype = \"bf16\"}\n",
    "input %x : f16[3, 1, 52]\n%y = map(%x) {expr = \"exp(x0)\", dtype = \"f16\"}\n",
    /* a denominator of 1 and an exponential, rounded in between */
    "input %x : f16[5, 4, 72]\ninput %u : bf16[5, 4, 72]\n%y = map(%x, %u) {expr = \"bf16(x0 / "
    "(1.0 + exp(-x0))) * x1 - sigmoid(x0)\", dtype = \"bf16\"}\n",
    /* operands that are broadcast along each axis, in fp32 too */
    "input %x : bf16[4, 6, 40]\ninput %r : f32[6, 1]\ninput %c : f16[40]\ninput %s : f32[4, 1, "
    "40]\n%y = map(%x, %r, %c, %s) {expr = \"(x0 + x1) * x2 - x3\", dtype = \"f32\"}\n",
};

/* Operators of one function by pieces of eight neighbours: whole rounds of them and rests, operands
 * that are broadcast, views that begin within a piece and at one, all dtypes of floats. */
static const char *const pieced_graphs[] = {
    "input %a : bf16[3, 9, 48]\ninput %b : bf16[1, 9, 48]\n%y = add(%a, %b)\n",
    "input %a : f32[5, 7, 24]\ninput %b : f32[7, 24]\n%y = mul(%a, %b)\n",
    "input %a : f16[2, 3, 5, 16] live=tokens\ninput %b : f16[2, 3, 5, 16] live=tokens\n"
    "%y = add(%a, %b)\n",
    "input %x : f16[4, 5, 72]\n%y = silu(%x)\n",
    "input %x : f32[11, 104]\n%y = silu(%x)\n",
    "input %g : bf16[9, 88]\ninput %u : bf16[9, 88]\n%y = silu_mul(%g, %u)\n",
    "input %x : bf16[13, 64]\n%y = gelu(%x) {tanh = 1}\n",
    "input %x : f16[13, 64]\n%y = gelu(%x)\n",
    "input %x : bf16[6, 3, 56]\n%y = cast(%x) {dtype = \"f32\"}\n",
    "input %x : f32[6, 3, 56]\n%y = cast(%x) {dtype = \"f16\"}\n",
    "input %x : f16[7, 40]\n%y = cast(%x) {dtype = \"bf16\"}\n",
    "input %j : bf16[5, 48]\n%x = slice(%j) {starts = [0, 4], stops = [5, 44]}\n%y = silu(%x)\n",
    "input %j : f16[5, 6, 48]\n%x = slice(%j) {starts = [1, 2, 8], stops = [5, 6, 40]}\ninput %b : "
    "f16[4, 4, 32]\n%y = add(%x, %b)\n",
    "input %x : bf16[2, 9, 5, 24]\ninput %m : f32[2, 3, 3, 2]\nconst %w : bf16[24]\n"
    "const %b : f32[24]\n%y = group_scale(%x, %m, %w, %b) {eps = 0.25, act = \"silu\"}\n",
    "input %x : f16[2, 31, 32]\n%y = group_moments(%x) {groups = 4, parts = 2}\n",
    /* lines that threads read two at a time */
    "input %a : bf16[7, 13, 24]\ninput %b : f16[7, 1, 24]\ninput %c : f32[13]\n%y = reduce(%a, %b, "
    "%c) {axes = [2], kind = \"mean\", expr = \"x0 * x1\", inputs = 2, then = \"x0 + x1\"}\n",
    "input %a : f32[9, 5, 8]\ninput %b : f32[5, 8]\n%y = reduce(%a, %b) {axes = [2], "
    "kind = \"max\", keep = 1, expr = \"x0 - x1\", inputs = 2}\n",
    /* parts of a concat in lots of 16 and of 8 bytes, whole and cut */
    "input %a : bf16[3, 4, 32]\ninput %b : bf16[3, 5, 32]\n%y = concat(%a, %b) {axis = 1}\n",
    "input %a : f16[6, 16]\ninput %b : f16[6, 12]\ninput %c : f16[6, 24]\n"
    "%y = concat(%a, %b, %c) {axis = 1}\n",
    /* steps of so many entries that a thread has eight of them */
    "input %a : f32[5, 2, 8192, 8]\ninput %b : bf16[5, 2, 8192, 1]\ninput %h : f32[8192, 8]\n"
    "%y = recur(%a, %b, %h) {expr = \"x0 * x2 * 0.5 + x1\", start = \"given\"}\n",
    "input %a : bf16[11, 131072]\ninput %b : f16[131072]\n%y = recur(%a, %b) {expr = \"x2 * 0.5 + "
    "x0 * x1\", start = \"first\", dtype = \"bf16\"}\n",
};

/* What goes where numbers say: scattered, put, routed to experts. */
static const char *const indexed_graphs[] = {
    /* a table whose sines do not lie by rows */
    "input %x : bf16[2, 3, 5, 64]\ninput %c : bf16[5, 64]\ninput %u : bf16[64, 5]\n"
    "%s = transpose(%u) {perm = [1, 0]}\n%y = rotate(%x, %c, %s)\n",
    /* planes of fp64, which no sum in fp32 may stand for */
    "input %x : f64[1, 6, 9, 8]\nconst %w : f64[6, 1, 3, 3]\n%y = conv(%x, %w, _) {groups = 6, "
    "padding = [1, 1]}\n",
    "input %x : bf16[2, 5000]\ninput %i : i64[2, 40000]\ninput %s : bf16[2, 40000]\n%y = "
    "scatter(%x, %i, %s) {axis = "
    "1, kind = \"sum\"}\n",
    "input %x : i32[5000]\ninput %i : i64[5000]\ninput %s : i32[5000]\n%y = scatter(%x, %i, %s) "
    "{axis = 0, kind = "
    "\"mean\", include_self = 0}\n",
    "input %x : f32[3000, 2]\ninput %i : i64[5000, 2]\ninput %s : f32[5000, 2]\n%y = scatter(%x, "
    "%i, %s) {axis = 0}\n",
    "input %x : f32[9]\ninput %v : f32[5000]\ninput %i : i64[5000]\n%y = index_put(%x, %v, %i) "
    "{accumulate = 1}\n",
    "input %x : f32[5, 40]\n%y = map(%x) {expr = \"log(abs(x0) - 0.5)\"}\n%i, %w = route(%y) "
    "{experts = 30}\n",
    "input %x : bf16[70, 300] live=tokens\ninput %i : i32[70, 8] live=tokens\nconst %g : bf16[6, "
    "20, 300]\nconst %u : "
    "bf16[6, 20, 300]\n%y = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\n",
    "input %x : bf16[70, 8, 40] live=tokens\ninput %i : i32[70, 8] live=tokens\nconst %w : bf16[6, "
    "70, 40]\ninput %s : "
    "f32[70, 8] live=tokens\ninput %r : bf16[70, 70] live=tokens\n%y = expert_linear(%x, %i, %w, "
    "_, %s, %r)\n",
    "input %x : f32[3, 8] live=tokens\ninput %i : i32[3, 64] live=tokens\nconst %w : f32[90, 9, "
    "8]\ninput %s : "
    "f32[3, 64] live=tokens\n%y = expert_linear(%x, %i, %w, _, %s)\n",
    "input %x : bf16[70, 300] live=tokens\ninput %i : i32[70, 8] live=tokens\nconst %g : bf16[6, "
    "20, 300]\nconst %u : "
    "bf16[6, 20, 300]\nconst %n : bf16[300]\n%y = expert_linear(%x, %i, %g, %u, _, _, %n) {glu = "
    "\"silu\"}\n",
    "input %x : f32[70, 8, 40] live=tokens\ninput %i : i32[70, 8] live=tokens\nconst %w : bf16[6, "
    "9, 40]\ninput %s : "
    "f32[70, 8] live=tokens\nconst %n : f32[40]\n%y = expert_linear(%x, %i, %w, _, %s, _, %n)\n",
    "input %x : f32[9, 70, 3]\ninput %v : f32[5000, 3]\ninput %i : i64[5000]\ninput %k : "
    "i64[5000]\n%y = "
    "index_put(%x, %v, %i, %k)\n",
};

/* Rows of pieces of 8 and 4 bytes that are moved; what of them lies at odd places. */
static const char *const moved_graphs[] = {
    "input %j : bf16[2, 3, 3, 4, 5, 4]\n%x = transpose(%j) {perm = [0, 2, 4, 1, 3, 5]}\n%y = "
    "copy(%x)\n",
    "input %j : f16[2, 3, 5, 6]\n%x = transpose(%j) {perm = [0, 2, 1, 3]}\n%y = copy(%x)\n",
    "input %j : bool[3, 5, 20]\n%x = transpose(%j) {perm = [1, 0, 2]}\n%y = copy(%x)\n",
    "input %j : f32[4, 3, 10]\n%x = transpose(%j) {perm = [1, 0, 2]}\n%y = reshape(%x) {shape = "
    "[6, 20]}\n",
    "input %j : bf16[5, 14]\n%x = slice(%j) {starts = [0, 2], stops = [5, 14]}\ninput %k : bf16[5, "
    "6]\ninput %l : bf16[5, 10]\n%y = concat(%x, %k, %l) {axis = 1}\n",
    "input %j : bf16[5, 14]\n%x = slice(%j) {starts = [0, 1], stops = [5, 13]}\ninput %k : bf16[9, "
    "12]\n%y = concat(%x, %k) {axis = 0}\n",
};

/* The first axis is the dense one: no row of the last consists of pieces. */
static const char *const turned_graphs[] = {
    "input %j : f32[6, 16, 8]\n%x = transpose(%j) {perm = [2, 0, 1]}\n%y = group_moments(%x) "
    "{groups = 4, parts = 2}\n",
    "input %j : bf16[5, 8, 16]\n%x = transpose(%j) {perm = [2, 0, 1]}\ninput %m : f32[16, 2, 4, "
    "2]\n%y = group_scale(%x, %m, _, _) {eps = 0.25}\n",
    "input %j : f32[16, 8]\n%x = transpose(%j) {perm = [1, 0]}\n%y = silu(%x)\n",
    "input %j : bf16[192]\n%x = slice(%j) {starts = [0], stops = [192], steps = [8]}\ninput %k : "
    "bf16[24]\n%y = add(%x, %k)\n",
};

/* One case in so many also runs with views; the number of the first of these. */
enum { VIEWS_SHARE = 6, VIEWS = 1000 };

/* Keep a case if there is code for it: operands of a block dtype have none, other plain ones must.
 * The bodies are compiled without sanitizers, so a build with them takes one in four. */
static void gather_case(const op_def *def, uint32_t number, const char *graph)
{
    subject s = {.def = def, .number = number};
    check_ok(&cx, ir_parse(&cx, &graphs_arena, str_from(graph), &s.g));
    const ir_op *op = &s.g->ops.at[s.g->ops.n - 1];
    s.def = op->def;
    if (op->def->flags & OP_PROCESSES ||
        (op->def->flags & OP_VIEW && s.g->tensors.at[op->out[0]].shares != IR_NONE))
        return;
    gen_call c = call_of(s.g, op);
    bool plain = true;
    for (uint32_t k = 0; k < op->n_in; k++)
        plain = plain &&
                (!gen_input(&c, k) || ir_dtype_table[gen_input(&c, k)->dtype].block_elements == 1);
    if (gen_body_choose(&c, 0)) {
        assert_true(plain);
        if (check_takes(base_seed, n_plain++, CHECK_SHARE))
            check_ok(&cx, keep_subject(s));
    } else if (plain && number < VIEWS) {
        n_refused++;
        print_message("%s has no generic body for case %u\n", s.def->name, number);
    }
}

/* ---- operands that are views ---- */

/* Print an input of floats, "NAME : DTYPE[DIMS]LIVE", as a view of a larger one or of one with
 * other axes last; false if it is no such input, or none of these is drawn. */
static bool print_view(text *out, const char *line, uint64_t bits)
{
    enum { GAPS, MARGIN, SWAPPED, KINDS };
    char name[32], dtype[8], dims[96], live[32] = "";
    long long dim[IR_MAX_RANK];
    int rank = 0;
    if (sscanf(line, "input %%%31s : %7[a-z0-9][%95[0-9, ]]%31[^\n]", name, dtype, dims, live) <
            3 ||
        (strcmp(dtype, "f32") != 0 && strcmp(dtype, "f16") != 0 && strcmp(dtype, "bf16") != 0 &&
         strcmp(dtype, "f64") != 0))
        return false;
    for (char *at = dims; *at && rank < IR_MAX_RANK; at += strspn(at, ", "))
        dim[rank++] = strtoll(at, &at, 10);
    const int last = rank - 1, kind = (int)(bits % (KINDS + 1));
    if (kind == KINDS || (*live && rank - (kind == SWAPPED) < 2) || (kind == SWAPPED && rank < 2))
        return false;
    text_print(out, "input %%%s_of : %s[", name, dtype);
    for (int i = 0; i < rank; i++) {
        const int from = kind == SWAPPED && i >= rank - 2 ? 2 * rank - 3 - i : i;
        long long n = dim[from];
        if (i == last && kind == GAPS)
            n *= 2;
        else if (i == last && kind == MARGIN)
            n += 11;
        text_print(out, "%s%lld", i ? ", " : "", n);
    }
    static const char *const ops[] = {"slice", "slice", "transpose"}, *const first[] = {"starts",
                                                                                        "starts",
                                                                                        "perm"};
    text_print(out, "]%s\n%%%s = %s(%%%s_of) {%s = [", live, name, ops[kind], name, first[kind]);
    for (int i = 0; i < rank; i++) {
        int n = i == last && kind == MARGIN ? 3 : 0;
        if (kind == SWAPPED)
            n = i >= rank - 2 ? 2 * rank - 3 - i : i;
        text_print(out, "%s%d", i ? ", " : "", n);
    }
    for (int i = 0; i < rank && kind != SWAPPED; i++) {
        long long n = dim[i];
        if (i == last)
            n = kind == GAPS ? 2 * n : n + 3;
        text_print(out, "%s%lld", i ? ", " : "], stops = [", n);
    }
    for (int i = 0; i < rank && kind == GAPS; i++)
        text_print(out, "%s%d", i ? ", " : "], steps = [", 1 + (i == last));
    text_print(out, "]}\n");
    return true;
}

/* Does the record choose some numbers of its operands, which must then be operands themselves? */
static bool chooses_floats(const char *graph)
{
    arena a = {0};
    ir_graph *g;
    bool any = false;
    check_ok(&cx, ir_parse(&cx, &a, str_from(graph), &g));
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    op_def plain_def = *op->def;
    ir_op plain = *op;
    plain_def.fill = NULL;
    plain.def = &plain_def;
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (op->in[i] == IR_NONE || g->tensors.at[op->in[i]].dtype != IR_F32)
            continue;
        const size_t n = (size_t)ir_bytes(&g->tensors.at[op->in[i]]);
        void *chosen = arena_alloc(&a, n, 1), *drawn = arena_alloc(&a, n, 1);
        op_fill(g, op, i, base_seed, chosen);
        op_fill(g, &plain, i, base_seed, drawn);
        any = any || memcmp(chosen, drawn, n) != 0;
    }
    arena_free(&a);
    return any;
}

/* A graph with some of its inputs laid out anew, if its record takes it so. */
static void gather_views(uint32_t number, const char *graph)
{
    text out = {0};
    uint64_t draws = 0;
    bool any = false;
    for (const char *line = graph; *line;) {
        const size_t n = strcspn(line, "\n") + (strchr(line, '\n') != NULL);
        if (print_view(&out, line, rng_u64(base_seed ^ number, draws++)))
            any = true;
        else
            text_print(&out, "%.*s", (int)n, line);
        line += n;
    }
    mpk_context refused = {0};
    arena a = {0};
    ir_graph *g;
    if (any && !chooses_floats(graph) && ir_parse(&refused, &a, str_from(out.at), &g) == MPK_OK)
        gather_case(NULL, number, out.at);
    arena_free(&a);
    text_free(&out);
}

/* Graphs of the tests' own beside the cases of the records; numbered from `first` on. */
static void gather_graphs(const char *const *graphs, size_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        gather_case(NULL, first + i, graphs[i]);
}

/* Cases of the records keep their number; those from here begin at 100, those of views at 1,000. */
static void gather_subjects(void)
{
    uint32_t n = 0;
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++, n++) {
            gather_case(*def, i, (*def)->cases[i].graph);
            if (check_takes(base_seed ^ 1, n, VIEWS_SHARE))
                gather_views(VIEWS + n, (*def)->cases[i].graph);
        }
    gather_graphs(drawn_graphs, sizeof drawn_graphs / sizeof *drawn_graphs, 100);
    gather_graphs(cached_graphs, sizeof cached_graphs / sizeof *cached_graphs, 200);
    gather_graphs(ordered_graphs, sizeof ordered_graphs / sizeof *ordered_graphs, 300);
    gather_graphs(indexed_graphs, sizeof indexed_graphs / sizeof *indexed_graphs, 400);
    gather_graphs(mapped_graphs, sizeof mapped_graphs / sizeof *mapped_graphs, 500);
    gather_graphs(turned_graphs, sizeof turned_graphs / sizeof *turned_graphs, 600);
    gather_graphs(moved_graphs, sizeof moved_graphs / sizeof *moved_graphs, 700);
    gather_graphs(pieced_graphs, sizeof pieced_graphs / sizeof *pieced_graphs, 800);
}

/* All cases are graphs of one program, so that cases with equal text share an instance, as they do
 * in a real one. */
static void write_source(void)
{
    gen_graph *graphs = arena_alloc(&graphs_arena, subjects.n, sizeof *graphs);
    for (size_t i = 0; i < subjects.n; i++)
        graphs[i] = (gen_graph){.ir = subjects.at[i].g, .n_tokens = 1};
    check_ok(&cx, gen_source_make(&cx, &graphs_arena, (uint32_t)subjects.n, graphs, 4,
                                  gen_arch_find("sm_80"), GEN_GENERIC, &source));
    for (size_t i = 0; i < subjects.n; i++)
        subjects.at[i].instance = source.uses[i][subjects.at[i].g->ops.n - 1].instance;
}

/* All bodies are compiled once, as one library of C++. Without a compiler for it there is
 * nothing to test. */
static int set_up_device(void **state)
{
    (void)state;
    gather_subjects();
    write_source();
    print_message("%zu cases, %u instances, %zu bytes of source\n", subjects.n, source.n_instances,
                  source.text.n);
    if (!compile_emulated(&source, "emulated_before.cuh", "emulated_behind.cuh", &dev.library, 1)) {
        print_message("there is no C++ compiler here: nothing is tested\n");
        return 0;
    }
    *(void **)&dev.run = dlsym(dev.library, "emulated_run");
    *(void **)&dev.kv_at = dlsym(dev.library, "emulated_kv_at");
    return 0;
}

/* ---- running ---- */

/* Scratch full of garbage, guarded after. */
static void run_device(bed *b, const ir_box *box, int threads)
{
    enum { GUARD = 64 };
    const ir_tensor *y = tensor(b, b->op->out[0]);
    rt_entry e = {.body = b->s->instance, .live = y->live, .rank = y->rank};
    uint32_t n = source.instances[b->s->instance].scratch_bytes;
    unsigned char *scratch = aligned_alloc(1024, ((size_t)n + GUARD + 1023) / 1024 * 1024);
    assert_non_null(scratch);
    memset(scratch, 0xA5, n);
    memset(scratch + n, 0x5C, GUARD);
    for (uint32_t i = 0; i < y->rank; i++) {
        e.lo[i] = (uint32_t)box->lo[i];
        e.hi[i] = (uint32_t)box->hi[i];
    }
    for (uint32_t i = 0; i < b->op->n_in; i++)
        if (b->op->in[i] != IR_NONE)
            e.at[gen_operand_of_input(b->op, i)] = (rt_u64)(uintptr_t)b->values.data[b->op->in[i]];
    for (uint32_t i = 0; i < b->op->n_out; i++)
        e.at[gen_operand_of_output(b->op, i)] = (rt_u64)(uintptr_t)b->values.data[b->op->out[i]];
    dev.run(b->s->instance, &e, e.hi[0], b->values.live, (char *)scratch, threads);
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(scratch[n + i], 0x5C);
    free(scratch);
}

/* ---- the test ---- */

/* One case, once by ref and twice by the body with cuts of its own: each within the tolerance of
 * ref, and both equal to the bit. */
static void check_subject(const subject *s, uint64_t seed, bool all_alive, int threads)
{
    bed b;
    ir_box boxes[MOST_BOXES], whole;
    set_up(&b, s, seed, all_alive, 1, 6);
    b.kv_at = dev.kv_at;
    whole = alive_box(&b);
    void **start = save(&b), **first = NULL;
    /* of its terms, products of three numbers and a state that decays, a few may cancel */
    b.slack = strcmp(b.op->def->name, "delta_rule") == 0 ? 3e-4 : 0;
    run_ref(&b, &whole);
    void **expected = save(&b);
    for (int round = 0; round < 2; round++) {
        load(&b, start);
        reorder_caches(&b, true);
        size_t n = split(&b, whole, boxes);
        for (size_t i = 0; i < n; i++)
            run_device(&b, &boxes[i], threads);
        reorder_caches(&b, false);
        for (ir_tensor_id i = 0; i < b.g->tensors.n; i++)
            if (expected[i]) {
                compare(&b, i, expected[i], start[i]);
                if (first &&
                    memcmp(first[i], b.values.data[i], (size_t)ir_bytes(tensor(&b, i))) != 0)
                    fail_msg("%s case %u: two cuts give different bits", s->def->name, s->number);
            }
        if (!first)
            first = save(&b);
    }
    drop(&b, start);
    drop(&b, expected);
    drop(&b, first);
    tear_down(&b);
}

/* Large results take long on threads that share few processors: once, with one thread. */
static void test_every_case(void **state)
{
    (void)state;
    if (!dev.library)
        check_skip("there is no C++ compiler");
    for (size_t i = 0; i < subjects.n; i++) {
        const ir_graph *g = subjects.at[i].g;
        bool large = ir_elements(&g->tensors.at[g->ops.at[g->ops.n - 1].out[0]]) > 1 << 14;
        for (uint64_t round = 0; round < (large ? 1 : 2); round++)
            for (int threads = 1; threads <= (large ? 1 : 5); threads += 4) {
                if (getenv("MPK_VERBOSE"))
                    print_message("%s case %u, %d threads\n", subjects.at[i].def->name,
                                  subjects.at[i].number, threads);
                check_subject(&subjects.at[i], base_seed + round, round == 0, threads);
            }
    }
}

/* Every case whose operands are plain has a body of rank 0. */
static void test_none_is_refused(void **state)
{
    (void)state;
    assert_int_equal(n_refused, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_case),
                                       cmocka_unit_test(test_none_is_refused)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, set_up_device, NULL));
}
