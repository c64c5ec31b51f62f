/* flatten.c - convolutions of images become products of rows (conv_flat), for GPUs that copy
 * windows of images by tensor maps (device/task/box_image.cuh).
 *
 * Input and output: a tensor program.  A convolution with its channels last, one group and many
 * products is replaced, if its images are a temporary, which has one address in all runs, and its
 * filters a constant that lies as [filters, kernel, channels]:
 *
 *   %y = conv(%x, %w, _, %s, %b, %r)
 *            {last = 1, expr = "t0 = bf16(x0 * x1 + x2); max(t0 + x3, 0)"}
 *   -> %f = conv_flat(%n, %m, %s, %b, _, %r) {relu = 1}       a row for each place
 *      %y = reshape(%f)
 *
 * What follows the convolution (expr) stays with it if it is a scale and terms of filters, a term
 * as large as the result, and a last comparison with 0, in any order of terms; roundings between
 * them are left out.  A scale of that term goes to the convolution which makes it, if one does.
 * Anything else becomes a map after it, which has the bits of expr.
 *
 * Called by compile.c after fuse_map, whose expressions it reads, if the target asks for it
 * (pass_options.flatten).  Cost: linear in the program.
 */
#include "op/images.h"
#include "op/map_program.h"
#include "pass/rewrite.h"

/* Operands and attributes of conv. */
enum { X, W, BIAS, MORE, MOST_MORE = 9 };
/* FEWEST_PRODUCTS: with fewer a block program takes as long, since a task of this kind begins and
 * ends in some microseconds; FEWEST_OF_ONE: of kernels of one entry, whose short sums end sooner.
 * CHANNELS: of a box. */
enum { FEWEST_PRODUCTS = 1 << 28, FEWEST_OF_ONE = 1 << 30, CHANNELS = 64 };

/* What follows a convolution, as conv_flat has it; tensors as conv's operands are. */
typedef struct ends {
    ir_tensor_id scale, terms[2], residual; /* IR_NONE: absent */
    ir_tensor_id of_residual;               /* its scale, which conv_flat has not */
    uint32_t n_terms, n_products;           /* how often x0 was met */
    bool relu;
} ends;
static const ends no_ends = {IR_NONE, {IR_NONE, IR_NONE}, IR_NONE, IR_NONE, 0, 0, false};

typedef struct flattener {
    rewrite w;
    bool has_bf16; /* then products of f16 are not streamed */
    bool
        *is_output; /* [tensors of the source] roots of outputs: their caller says where they are */
} flattener;

static int64_t number(const ir_op *op, const char *list, uint32_t i)
{
    const ir_attribute *a = rewrite_attribute(op, list);
    return i < a->ints.n ? a->ints.at[i] : strcmp(list, "padding") != 0;
}

/* ---- which ---- */

/* Do the axes lie one after the other without gaps, the last of `order` innermost, from an aligned
 * address on? */
static bool lies_as(const ir_tensor *t, const uint32_t *order)
{
    int64_t step = 1;
    bool lies = t->offset % 8 == 0;
    for (uint32_t i = t->rank; lies && i-- > 0; step *= t->dims[order[i]])
        lies = t->dims[order[i]] == 1 || t->stride[order[i]] == step;
    return lies;
}

/* A constant whose rows are filters, if the operand is a view of all of it; else IR_NONE. */
static ir_tensor_id find_filters(const rewrite *w, ir_tensor_id view)
{
    static const uint32_t order[] = {0, 2, 3, 1};
    const ir_tensor *t = &w->g->tensors.at[view];
    const ir_tensor_id root = rewrite_before_views(w, view);
    const ir_tensor *r = &w->g->tensors.at[root];
    const bool fits = r->kind == IR_CONST && r->rank >= 2 && r->rank <= 4 && !t->offset &&
                      r->dims[0] == t->dims[0] && ir_elements(r) == ir_elements(t) &&
                      lies_as(t, order);
    return fits ? root : IR_NONE;
}

static bool fits_map(const ir_op *conv, const ir_tensor *w)
{
    bool fits = true;
    for (uint32_t i = 0; i < 2; i++)
        fits = fits && images_fit_map(w->dims[2 + i], number(conv, "stride", i),
                                      number(conv, "padding", i), number(conv, "dilation", i));
    return fits;
}

/* Is x a temporary of the program, at one address in all runs? */
static bool stays(const flattener *f, ir_tensor_id x)
{
    const ir_tensor_id root = tg_root(f->w.g, x);
    return f->w.g->tensors.at[root].kind == IR_TEMP &&
           (root >= f->w.n_source || !f->is_output[root]);
}

static bool is_taken(const flattener *f, const ir_op *conv)
{
    static const uint32_t order[] = {0, 2, 3, 1};
    const rewrite *w = &f->w;
    const ir_tensor *x = &w->g->tensors.at[rewrite_input(w, conv, X)],
                    *filters = &w->g->tensors.at[rewrite_input(w, conv, W)],
                    *y = &w->g->tensors.at[conv->out[0]];
    const int64_t least =
        filters->dims[2] * filters->dims[3] == 1 ? FEWEST_OF_ONE : FEWEST_PRODUCTS;
    const bool is_half = x->dtype == IR_BF16 || (x->dtype == IR_F16 && !f->has_bf16);
    return x->rank == 4 && rewrite_attribute(conv, "last")->i &&
           rewrite_attribute(conv, "groups")->i == 1 && !rewrite_attribute(conv, "transposed")->i &&
           is_half && filters->dtype == x->dtype && y->dtype == x->dtype && y->live == IR_ALL &&
           x->dims[1] % CHANNELS == 0 && filters->dims[0] % 8 == 0 && fits_map(conv, filters) &&
           lies_as(x, order) && ir_elements(y) < INT32_MAX && ir_elements(x) < INT32_MAX &&
           ir_elements(y) / filters->dims[0] * ir_elements(filters) >= least &&
           stays(f, rewrite_input(w, conv, X)) &&
           find_filters(w, rewrite_input(w, conv, W)) != IR_NONE;
}

/* ---- what follows ---- */

/* Has the tensor an entry for each filter, all side by side? */
static bool is_vector(const ir_tensor *t, const ir_tensor *y)
{
    const int64_t filters = y->dims[y->rank - 1];
    return t->rank && t->dims[t->rank - 1] == filters && ir_elements(t) == filters &&
           t->stride[t->rank - 1] == 1 && t->offset % 8 == 0 &&
           (t->dtype == y->dtype || t->dtype == IR_F32);
}

/* Is it as large as the result, and lies as that does? */
static bool is_whole(const ir_tensor *t, const ir_tensor *y)
{
    static const uint32_t order[] = {0, 1, 2, 3};
    bool same = t->rank == y->rank && t->dtype == y->dtype;
    for (uint32_t i = 0; same && i < y->rank; i++)
        same = t->dims[i] == y->dims[i];
    return same && lies_as(t, order);
}

/* What is being read of an expression. */
typedef struct reading {
    const rewrite *w;
    const ir_op *conv;
    const map_program *program;
    ends *to;
} reading;

/* The step before roundings and conversions between floats. */
static const map_step *before_rounding(const reading *r, uint32_t at)
{
    const map_step *s = &r->program->steps[at];
    while (s->type == MAP_F &&
           (s->kind == MAP_ROUND ||
            (s->kind == MAP_CONVERT && r->program->steps[s->arg[0]].type == MAP_F)))
        s = &r->program->steps[s->arg[0]];
    return s;
}

static ir_tensor_id operand_of(const reading *r, const map_step *s)
{
    return s->kind == MAP_INPUT && s->number ? rewrite_input(r->w, r->conv, MORE + s->number - 1)
                                             : IR_NONE;
}

/* A product: x0 or an operand as large as the result, times a scale of filters. */
static bool read_product(const reading *r, const map_step *a, const map_step *b)
{
    const ir_tensor *y = &r->w->g->tensors.at[r->conv->out[0]];
    const ir_tensor_id whole = operand_of(r, a), scale = operand_of(r, b);
    if (scale == IR_NONE || !is_vector(&r->w->g->tensors.at[scale], y))
        return false;
    if (a->kind == MAP_INPUT && !a->number && r->to->scale == IR_NONE) {
        r->to->scale = scale;
        r->to->n_products++;
        return true;
    }
    if (whole == IR_NONE || r->to->residual != IR_NONE || !is_whole(&r->w->g->tensors.at[whole], y))
        return false;
    r->to->residual = whole;
    r->to->of_residual = scale;
    return true;
}

/* A term: x0, an operand, or a product. */
static bool read_term(const reading *r, const map_step *s)
{
    const ir_tensor *y = &r->w->g->tensors.at[r->conv->out[0]];
    const ir_tensor_id t = operand_of(r, s);
    if (s->kind == MAP_INPUT && !s->number) {
        r->to->n_products++;
        return true;
    }
    if (t != IR_NONE && is_vector(&r->w->g->tensors.at[t], y) && r->to->n_terms < 2) {
        r->to->terms[r->to->n_terms++] = t;
        return true;
    }
    if (t != IR_NONE && is_whole(&r->w->g->tensors.at[t], y) && r->to->residual == IR_NONE) {
        r->to->residual = t;
        return true;
    }
    if (s->kind != MAP_CALL || s->number != MAP_MULTIPLY)
        return false;
    const map_step *a = before_rounding(r, s->arg[0]), *b = before_rounding(r, s->arg[1]);
    return read_product(r, a, b) || read_product(r, b, a);
}

/* A sum of terms. Recursion is as deep as the sums of an expression, which has few operands. */
static bool read_sum(const reading *r, uint32_t at)
{
    const map_step *s = before_rounding(r, at);
    if (s->kind == MAP_CALL && s->number == MAP_ADD && s->type == MAP_F)
        return read_sum(r, s->arg[0]) && read_sum(r, s->arg[1]);
    return read_term(r, s);
}

/* max(sum, 0), or a sum. */
static bool read_result(const reading *r)
{
    const map_step *s = before_rounding(r, r->program->result), *zero;
    uint32_t at = r->program->result;
    if (s->kind == MAP_CALL && strcmp(map_functions[s->number].name, "max") == 0) {
        zero = &r->program->steps[s->arg[1]];
        at = s->arg[0];
        if (zero->kind != MAP_NUMBER || zero->type != MAP_F || zero->real != 0)
            return false;
        r->to->relu = true;
    }
    return read_sum(r, at) && r->to->n_products == 1;
}

/* Fill in what follows the convolution.  false: conv_flat has no such end.  A bias is added before
 * the convolution's scale, and conv_flat's after it. */
static bool find_ends(const rewrite *w, const ir_op *conv, ends *to)
{
    const str expr = rewrite_attribute(conv, "expr")->s;
    const ir_tensor_id bias = rewrite_input(w, conv, BIAS);
    const ir_tensor *y = &w->g->tensors.at[conv->out[0]];
    ir_dtype dtypes[1 + MOST_MORE] = {y->dtype};
    map_program program;
    uint32_t n = 1;
    *to = no_ends;
    if (bias != IR_NONE)
        to->terms[to->n_terms++] = bias;
    if (bias != IR_NONE && !is_vector(&w->g->tensors.at[bias], y))
        return false;
    if (!expr.n)
        return true;
    for (; n <= MOST_MORE && rewrite_input(w, conv, MORE + n - 1) != IR_NONE; n++)
        dtypes[n] = w->g->tensors.at[rewrite_input(w, conv, MORE + n - 1)].dtype;
    const reading r = {w, conv, &program, to};
    return map_compile(NULL, expr, n, dtypes, &program) == MPK_OK && read_result(&r) &&
           (to->scale == IR_NONE || bias == IR_NONE);
}

/* ---- replacements ---- */

/* The same entries as [filters]; an operand that is absent stays so. */
static mpk_status add_vector(rewrite *w, uint32_t key, ir_tensor_id t, int64_t filters,
                             ir_tensor_id *out)
{
    *out = t;
    if (t == IR_NONE || w->g->tensors.at[t].rank == 1)
        return MPK_OK;
    return rewrite_reshape(w, key, t, 1, &filters, out);
}

/* The product, and its rows as [N, H, W, F]. */
static mpk_status add_flat(flattener *f, ir_op_id op, const ends *e, ir_tensor_id *out)
{
    rewrite *w = &f->w;
    const uint32_t key = w->keys.at[op];
    const ir_op conv = w->g->ops.at[op];
    const ir_tensor y = w->g->tensors.at[conv.out[0]],
                    filters = w->g->tensors.at[rewrite_input(w, &conv, W)];
    const int64_t rows[2] = {y.dims[0] * y.dims[1] * y.dims[2], y.dims[3]}, perm[4] = {0, 2, 3, 1};
    int64_t lists[3][2];
    static const char *const names[] = {"stride", "padding", "dilation"};
    for (uint32_t i = 0; i < 6; i++)
        lists[i / 2][i % 2] = number(&conv, names[i / 2], i % 2);
    ir_tensor_id in[6] = {rewrite_input(w, &conv, X),
                          find_filters(w, rewrite_input(w, &conv, W)),
                          IR_NONE,
                          IR_NONE,
                          IR_NONE,
                          e->residual},
                 flat;
    const ir_set sets[] = {{.name = "kernel", .ints = &filters.dims[2], .n_ints = 2},
                           {.name = "stride", .ints = lists[0], .n_ints = 2},
                           {.name = "padding", .ints = lists[1], .n_ints = 2},
                           {.name = "dilation", .ints = lists[2], .n_ints = 2},
                           {.name = "relu", .i = e->relu},
                           {0}};
    TRY(rewrite_add(w, key, "transpose", 1, in,
                    (ir_set[]){{.name = "perm", .ints = perm, .n_ints = 4}, {0}}, &in[0]));
    TRY(add_vector(w, key, e->scale, rows[1], &in[2]));
    TRY(add_vector(w, key, e->terms[0], rows[1], &in[3]));
    TRY(add_vector(w, key, e->terms[1], rows[1], &in[4]));
    if (e->residual != IR_NONE)
        TRY(rewrite_reshape(w, key, e->residual, 2, rows, &in[5]));
    TRY(rewrite_add(w, key, "conv_flat", 6, in, sets, &flat));
    return rewrite_reshape(w, key, flat, 4, y.dims, out);
}

/* A map in the place of an expression that conv_flat has not: x0 is the product. */
static mpk_status add_map(flattener *f, ir_op_id op, ir_tensor_id product, ir_tensor_id *out)
{
    rewrite *w = &f->w;
    const ir_op conv = w->g->ops.at[op];
    const str expr = rewrite_attribute(&conv, "expr")->s;
    ir_tensor_id in[1 + MOST_MORE] = {product};
    uint32_t n = 1;
    char *words = arena_copy(w->s->scratch, expr.at, expr.n);
    CHECK(w->s->cx, words, MPK_ENOMEM, "out of memory for what follows a convolution");
    for (; n <= MOST_MORE && rewrite_input(w, &conv, MORE + n - 1) != IR_NONE; n++)
        in[n] = rewrite_input(w, &conv, MORE + n - 1);
    const ir_set sets[] = {
        {.name = "expr", .s = words},
        {.name = "dtype", .s = ir_dtype_table[w->g->tensors.at[conv.out[0]].dtype].name},
        {0}};
    return rewrite_add(w, w->keys.at[op], "map", n, in, sets, out);
}

/* The residual's scale goes to the convolution that makes the residual, if that has nothing behind
 * it and no other reader: it is made anew in front of operator `op`, where the scale is there.
 * *done: false if the residual is no such one. */
static mpk_status scale_residual(flattener *f, ir_op_id op, ends *e, bool *done)
{
    enum { FLAT_SCALE = 2, FLAT_RESIDUAL = 5, FLAT_INPUTS };
    rewrite *w = &f->w;
    const uint32_t key = w->keys.at[op];
    const ir_op *reshape = rewrite_producer(w, e->residual, "reshape");
    const ir_op *flat =
        reshape ? rewrite_producer(w, rewrite_input(w, reshape, 0), "conv_flat") : NULL;
    ir_tensor_id in[FLAT_INPUTS], made;
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    *done = e->of_residual == IR_NONE;
    if (*done || !flat || w->uses.at[e->residual] != 1 || rewrite_attribute(flat, "relu")->i)
        return MPK_OK;
    for (uint32_t i = 0; i < FLAT_INPUTS; i++)
        in[i] = rewrite_input(w, flat, i);
    for (uint32_t i = FLAT_SCALE; i <= FLAT_RESIDUAL; i++)
        if (in[i] != IR_NONE)
            return MPK_OK;
    if (!rewrite_are_current(w, in, FLAT_SCALE, key))
        return MPK_OK;
    TRY(rewrite_copy_attributes(w, flat, sets));
    const ir_tensor y = w->g->tensors.at[e->residual];
    TRY(add_vector(w, key, e->of_residual, y.dims[3], &in[FLAT_SCALE]));
    TRY(rewrite_add(w, key, "conv_flat", FLAT_INPUTS, in, sets, &made));
    TRY(rewrite_reshape(w, key, made, y.rank, y.dims, &e->residual));
    *done = true;
    return MPK_OK;
}

/* A bias that is no vector keeps the convolution as it is. */
static mpk_status replace(flattener *f, ir_op_id op)
{
    rewrite *w = &f->w;
    const ir_tensor_id old = w->g->ops.at[op].out[0];
    const ir_tensor_id bias = rewrite_input(w, &w->g->ops.at[op], BIAS);
    ends e;
    ir_tensor_id made;
    bool whole = find_ends(w, &w->g->ops.at[op], &e);
    if (whole)
        TRY(scale_residual(f, op, &e, &whole));
    if (!whole) {
        e = no_ends;
        e.terms[0] = bias;
        if (bias != IR_NONE && !is_vector(&w->g->tensors.at[bias], &w->g->tensors.at[old]))
            return MPK_OK;
    }
    TRY(add_flat(f, op, &e, &made));
    if (!whole)
        TRY(add_map(f, op, made, &made));
    rewrite_replace(w, old, made);
    return MPK_OK;
}

static mpk_status find_facts(flattener *f, const ir_graph *g)
{
    NEW(f->w.s->cx, f->w.s->scratch, f->is_output, g->tensors.n);
    for (size_t i = 0; i < g->tensors.n; i++)
        f->has_bf16 = f->has_bf16 || g->tensors.at[i].dtype == IR_BF16;
    for (size_t i = 0; i < g->outputs.n; i++)
        f->is_output[tg_root(g, g->outputs.at[i])] = true;
    return MPK_OK;
}

mpk_status pass_flatten(pass_state *s, ir_graph **g)
{
    flattener f = {0};
    TRY(rewrite_begin(s, *g, &f.w));
    TRY(find_facts(&f, *g));
    for (ir_op_id o = 0; o < (*g)->ops.n; o++)
        if (strcmp((*g)->ops.at[o].def->name, "conv") == 0 && is_taken(&f, &f.w.g->ops.at[o]))
            TRY(replace(&f, o));
    return rewrite_end(&f.w, g);
}
