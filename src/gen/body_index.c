/* body_index.c - generic bodies of operators that choose where elements come from or go to, and of
 * those along lines (device/task/index.cuh, scatter.cuh, lines.cuh, sort.cuh, group_norm.cuh,
 * sdpa.cuh).
 *
 * Each printer writes the head with the operands, then a call with the attributes as constants;
 * GEN_PRINTER makes those that need no more.  The bytes of scratch are counted as the device code
 * uses them: a change there is a change here, and tests/gpu_bodies_test.c finds what is
 * forgotten.  An instance of index with two index tensors of rank 1, after its head:
 *
 *   static constexpr index_views indices = {in_x, {in_index0, in_index1}, 2, 1};
 *   index_run(t, indices, out_y); */
#include <math.h>

#include "gen/body_print.h"

/* "    constexpr mpk_numbers NAME = {{...}};", of an attribute; if that is empty, of `otherwise`.
 */
static void print_list(const gen_call *c, const char *name, uint32_t attribute, uint32_t rank,
                       int64_t otherwise, text *out)
{
    text_print(out, "    constexpr mpk_numbers %s = {{", name);
    gen_print_list(c, attribute, rank, otherwise, out);
    text_print(out, "}};\n");
}

/* The number of a word in a list that ends with NULL; 0 if it is none of them (infer has refused
 * it). */
static int word_number(str word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (str_is(word, words[i]))
            return i;
    return 0;
}

/* Attributes by kind and number (gen_print_simple); those that are left out the operands' views
 * say. */
GEN_PRINTER(full, "full_run", "d1")
GEN_PRINTER(iota, "iota_run", "d1d2")
GEN_PRINTER(triangle, "triangle_run", "i0b1")
GEN_PRINTER(take_along, "take_along_run", "i0")
GEN_PRINTER(search_sorted, "search_sorted_run", "b0")
GEN_PRINTER(group_norm, "group_norm_run", "i0d1i2")

/* Axes become a set of bits. */
static mpk_status print_flip(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    unsigned set = 0;
    for (uint32_t i = 0; i < c->op->attributes[0].ints.n; i++)
        set |= 1u << c->op->attributes[0].ints.at[i];
    gen_print_head(c, n, out);
    gen_print_call(c, "flip_run", out);
    text_print(out, ", %u);\n}\n", set);
    return MPK_OK;
}

/* The numbers of the modes are those of index.cuh. */
static mpk_status print_pad(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    static const char *const modes[] = {"constant", "reflect", "replicate", "circular", NULL};
    (void)cx;
    gen_print_head(c, n, out);
    print_list(c, "before", 0, gen_input(c, 0)->rank, 0, out);
    gen_print_call(c, "pad_run", out);
    text_print(out, ", before, %d, ", word_number(c->op->attributes[2].s, modes));
    gen_print_double(c->op->attributes[3].f, out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* Attribute 0, the shape, is the result's own; strides and the first entry are what is left. */
static mpk_status print_strided(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    print_list(c, "strides", 1, gen_output(c, 0)->rank, 0, out);
    gen_print_call(c, "strided_run", out);
    text_print(out, ", strides, %lld);\n}\n", (long long)c->op->attributes[2].i);
    return MPK_OK;
}

/* Attribute 1, where slices end, follows from the shape of what is put. */
static mpk_status print_slice_scatter(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    print_list(c, "starts", 0, gen_output(c, 0)->rank, 0, out);
    print_list(c, "steps", 2, gen_output(c, 0)->rank, 1, out);
    gen_print_call(c, "slice_scatter_run", out);
    text_print(out, ", starts, steps, %s);\n}\n", str_bool(c->op->attributes[3].i));
    return MPK_OK;
}

/* x and the index tensors, which are the inputs from `first` on, for which they are broadcast to
 * one shape.  named: that shape, which the values of index_put have too.  Returns its rank. */
static uint32_t print_indices(const gen_call *c, uint32_t first, int64_t *named, text *out)
{
    uint32_t k = c->op->n_in - first, rank = 0;
    for (uint32_t i = first; i < c->op->n_in; i++)
        rank = gen_input(c, i)->rank > rank ? gen_input(c, i)->rank : rank;
    for (uint32_t i = 0; i < IR_MAX_RANK; i++)
        named[i] = 1;
    for (uint32_t i = first; i < c->op->n_in; i++) {
        const ir_tensor *t = gen_input(c, i);
        for (uint32_t a = 0; a < t->rank; a++)
            if (t->dims[a] > 1)
                named[a + rank - t->rank] = t->dims[a];
    }
    text_print(out, "    static constexpr index_views indices = {in_x, {");
    for (uint32_t i = 0; i < k; i++)
        text_print(out, "%sin_index%u", i ? ", " : "", i);
    text_print(out, "}, %u, %u};\n", k, rank);
    return rank;
}

/* The index tensors are the inputs after x. */
static mpk_status print_index(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    int64_t named[IR_MAX_RANK];
    gen_print_head(c, n, out);
    print_indices(c, 1, named, out);
    text_print(out, "    index_run(t, indices, out_y);\n}\n");
    return MPK_OK;
}

/* Attributes: whether values are added, and whether the result takes the place of x. */
static mpk_status print_index_put(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    int64_t named[IR_MAX_RANK];
    gen_print_head(c, n, out);
    uint32_t rank = print_indices(c, 2, named, out);
    text_print(out, "    constexpr mpk_numbers named = {{");
    for (uint32_t i = 0; i < rank; i++)
        text_print(out, "%s%lld", i ? ", " : "", (long long)named[i]);
    text_print(out, "}};\n    index_put_run(t, indices, in_values, out_y, named, %s, %s);\n}\n",
               str_bool(c->op->attributes[0].i), str_bool(c->op->attributes[1].i));
    return MPK_OK;
}

/* The numbers of the kinds are those of scatter.cuh. */
static mpk_status print_scatter(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    static const char *const kinds[] = {"set", "sum", "prod", "mean", "max", "min", NULL};
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    gen_print_call(c, "scatter_run", out);
    text_print(out, ", %lld, %d, %s, %s);\n}\n", (long long)a[0].i, word_number(a[1].s, kinds),
               str_bool(a[2].i), str_bool(a[3].i));
    return MPK_OK;
}

/* Axis, whether it stays as an axis of one entry, and which end of the order is looked for. */
static mpk_status print_extreme(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    gen_print_call(c, "extreme_run", out);
    text_print(out, ", %lld, %s, %s);\n}\n", (long long)a[0].i, str_bool(a[1].i),
               str_bool(str_is(a[2].s, "max")));
    return MPK_OK;
}

/* lines_agree: a merit and a place for each thread. */
static uint32_t scratch_of_extreme(const gen_call *c)
{
    (void)c;
    return 2 * GEN_REDUCE_BYTES;
}

/* The numbers of the kinds are those of lines.cuh. */
static mpk_status print_scan(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    static const char *const kinds[] = {"sum", "prod", "logsumexp", NULL};
    (void)cx;
    gen_print_head(c, n, out);
    gen_print_call(c, "scan_run", out);
    text_print(out, ", %lld, %d);\n}\n", (long long)c->op->attributes[0].i,
               word_number(c->op->attributes[1].s, kinds));
    return MPK_OK;
}

/* Apart from scan, because it has a second result: where the extreme was. */
static mpk_status print_scan_extreme(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    gen_print_call(c, "scan_extreme_run", out);
    text_print(out, ", %lld, %s);\n}\n", (long long)c->op->attributes[0].i,
               str_bool(str_is(c->op->attributes[1].s, "max")));
    return MPK_OK;
}

/* The first k places of each line in order; sort takes all of them, topk its k. */
static void print_order(const gen_call *c, uint32_t n, bool falling, int64_t k, text *out)
{
    gen_print_head(c, n, out);
    gen_print_call(c, "sort_run", out);
    text_print(out, ", %lld, %s, %lld);\n}\n", (long long)c->op->attributes[0].i, str_bool(falling),
               (long long)k);
}

/* Attributes: axis and whether it falls. */
static mpk_status print_sort(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_order(c, n, c->op->attributes[1].i != 0, gen_input(c, 0)->dims[c->op->attributes[0].i],
                out);
    return MPK_OK;
}

/* Attributes: axis, k and whether the largest are wanted. */
static mpk_status print_topk(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_order(c, n, c->op->attributes[2].i != 0, c->op->attributes[1].i, out);
    return MPK_OK;
}

/* As in sort.cuh: a list of 1024 entries of 12 bytes, and a word. */
static uint32_t scratch_of_sort(const gen_call *c)
{
    (void)c;
    return 1024 * 12 + 8;
}

/* As in scatter.cuh: a list of 512 entries of 12 bytes and its length; of scatter also a value for
 * each entry, and sums and counts of 1024. */
static uint32_t scratch_of_index_put(const gen_call *c)
{
    (void)c;
    return 512 * 12 + 8;
}

/* Beside the sorted entries a count and a sum for each. */
static uint32_t scratch_of_scatter(const gen_call *c)
{
    return scratch_of_index_put(c) + 512 * 8 + 1024 * 12;
}

/* Weights of a chunk, the query and the sums of values, in double; as in sdpa.cuh. */
static uint32_t scratch_of_sdpa(const gen_call *c)
{
    return (uint32_t)(GEN_REDUCE_BYTES +
                      (256 + gen_input(c, 0)->dims[3] + gen_input(c, 2)->dims[3]) * 8);
}

/* Query and sums of values must fit the scratch: 2,048 entries of both are 16 KB in double. */
static bool accepts_sdpa(const gen_call *c)
{
    return gen_accepts_plain(c) && gen_input(c, 0)->dims[3] + gen_input(c, 2)->dims[3] <= 2048;
}

/* Scale, causal, window and the order of the result's axes, in the order of sdpa_how. */
static mpk_status print_sdpa(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    text_print(out, "    constexpr sdpa_how how = {");
    gen_print_double(a[0].f != 0 ? a[0].f : 1 / sqrt((double)gen_input(c, 0)->dims[3]), out);
    text_print(out, ", %d, %lld, %d};\n", a[1].i != 0, (long long)a[2].i, a[3].i != 0);
    gen_print_call(c, "sdpa_run", out);
    text_print(out, ", how);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_full = GEN_BODY("full", "index", print_full, NULL);
const gen_body gen_body_iota = GEN_BODY("iota", "index", print_iota, NULL);
const gen_body gen_body_flip = GEN_BODY("flip", "index", print_flip, NULL);
const gen_body gen_body_pad = GEN_BODY("pad", "index", print_pad, NULL);
const gen_body gen_body_triangle = GEN_BODY("triangle", "index", print_triangle, NULL);
const gen_body gen_body_strided = GEN_BODY("strided", "index", print_strided, NULL);
const gen_body gen_body_slice_scatter =
    GEN_BODY("slice_scatter", "index", print_slice_scatter, NULL);
const gen_body gen_body_take_along = GEN_BODY("take_along", "index", print_take_along, NULL);
const gen_body gen_body_index = GEN_BODY("index", "index", print_index, NULL);
const gen_body gen_body_index_put =
    GEN_BODY("index_put", "scatter", print_index_put, scratch_of_index_put);
const gen_body gen_body_scatter = GEN_BODY("scatter", "scatter", print_scatter, scratch_of_scatter);
const gen_body gen_body_extreme = GEN_BODY("extreme", "lines", print_extreme, scratch_of_extreme);
const gen_body gen_body_scan = GEN_BODY("scan", "lines", print_scan, gen_scratch_reduce);
const gen_body gen_body_scan_extreme =
    GEN_BODY("scan_extreme", "lines", print_scan_extreme, gen_scratch_reduce);
const gen_body gen_body_sort = GEN_BODY("sort", "sort", print_sort, scratch_of_sort);
const gen_body gen_body_topk = GEN_BODY("topk", "sort", print_topk, scratch_of_sort);
const gen_body gen_body_search_sorted =
    GEN_BODY("search_sorted", "lines", print_search_sorted, NULL);
const gen_body gen_body_group_norm =
    GEN_BODY("group_norm", "group_norm", print_group_norm, gen_scratch_reduce);
const gen_body gen_body_sdpa = {.op = "sdpa",
                                .name = "sdpa",
                                .accepts = accepts_sdpa,
                                .print = print_sdpa,
                                .scratch_bytes = scratch_of_sdpa};
