/* engine_calibrate.c - how much each column of a weight counts, found by reading a text: the mean
 * of the squares of what the column is multiplied by.
 *
 * Input: a model and a text; output: importances for load/quantize.h.  The text is cut into
 * windows, which the model reads on the CPU with fp32 activations.  A watcher of the machine sees
 * the input of every product of a layer: the task that makes a product's first columns adds the
 * squares of its rows, normalised where the product normalises.  Each row is seen by one such task.
 * Sums are integers, so neither their order nor the number of threads changes a bit of them.  The
 * head is not watched, as in llama.cpp.  Called by engine_quantize.c.
 */
#include "engine/engine_calibrate.h"

#include <math.h>

#include "engine/engine_request.h"
#include "op/experts.h"
#include "op/norm.h"

/* WINDOW: tokens that are read at a time, fewer if the model was trained on less; MOST_WEIGHTS: of
 * one operator, such as query, key and value. */
enum { WINDOW = 512, MOST_WEIGHTS = 3, PART_BITS = 52 };
/* A larger input, or one that is not a number, is taken for a fault; 2^22 rows of smaller ones fit
 * a sum. */
static const double MOST_SQUARE = 0x1p40;
/* Columns that were always 0 in the text count this share of the mean importance of their matrix,
 * since another text may need them. */
static const double LEAST_SHARE = 1e-6;

/* Where an operator has what matters here: numbers of its inputs and attributes.  Its weights are
 * the inputs w0 ... w_end - 1, as far as they are there. */
typedef struct product {
    const char *name;
    uint32_t w0, w_end, ids, norm; /* inputs; ids 0: none */
    uint32_t eps;                  /* an attribute */
} product;
static const product products[] = {
    {"linear", 1, 4, 0, 7, 0},
    {"expert_linear", 2, 4, 1, 6, 1},
};

/* whole + part / 2^PART_BITS, 0 <= part < 2^PART_BITS.  Adding is exact, so the order does not
 * matter. */
typedef struct exact_sum {
    int64_t whole, part;
} exact_sum;

/* The weights that one operator multiplies by the same rows, and the sums over these rows, one for
 * each column.  Query, key and value of a layer are one subject: they share their input, and so
 * their importances. */
typedef struct subject {
    struct calibration *of;
    const product *product;
    int64_t columns, n_experts; /* 1: none */
    exact_sum *sums;            /* [n_experts, columns] */
    int64_t *counts;            /* [n_experts] rows */
    uint32_t n_weights;
    str names[MOST_WEIGHTS];
} subject;

/* All of one engine_calibrate.  Subjects are found while the engine opens, summed while it runs,
 * and read when it has closed. */
typedef struct calibration {
    mpk_context *cx;
    arena *arena;
    map by_name; /* of the first weight -> index of subjects */
    VEC(subject *) subjects;
    mpk_status status; /* of finding subjects: find_subject itself can return none */
    int64_t longest;   /* row of any subject, in entries */
    uint32_t window;   /* tokens */
    /* guards what follows, and sums and counts, while the machine runs */
    pthread_mutex_t mutex;
    float *row;        /* [longest]: the row that is being added */
    bool is_too_large; /* an input was a fault */
} calibration;

/* ---- which operators ---- */

/* The head, outside the layers, is not watched. */
static bool is_of_layer(str name)
{
    const str start = STR("model.layers.");
    return name.n > start.n && memcmp(name.at, start.at, start.n) == 0;
}

/* A subject for the operator, entered by the name of its first weight.  Names are copied, because
 * the graph is gone when the importances are read. */
static mpk_status add_subject(calibration *c, const product *p, const ir_graph *g, const ir_op *op,
                              subject **out)
{
    const ir_tensor *w = &g->tensors.at[op->in[p->w0]];
    subject *s;
    NEW(c->cx, c->arena, s, 1);
    *s = (subject){.of = c, .product = p, .columns = w->dims[w->rank - 1], .n_experts = 1};
    if (p->ids)
        s->n_experts = w->dims[0];
    NEW(c->cx, c->arena, s->sums, (size_t)(s->n_experts * s->columns));
    NEW(c->cx, c->arena, s->counts, (size_t)s->n_experts);
    for (uint32_t i = p->w0; i < p->w_end && i < op->n_in; i++)
        if (op->in[i] != IR_NONE)
            s->names[s->n_weights++] = g->tensors.at[op->in[i]].name;
    for (uint32_t i = 0; i < s->n_weights; i++) {
        char *copy;
        NEW(c->cx, c->arena, copy, s->names[i].n + 1);
        memcpy(copy, s->names[i].at, s->names[i].n);
        s->names[i].at = copy;
    }
    c->longest = s->columns > c->longest ? s->columns : c->longest;
    TRY(map_put(c->cx, c->arena, &c->by_name, s->names[0], c->subjects.n));
    PUSH(c->cx, c->arena, &c->subjects, s);
    *out = s;
    return MPK_OK;
}

/* machine_watcher.find: called for every operator of every graph while the machine starts.  Every
 * graph has each product once, so the second graph finds the subjects of the first.  NULL: the
 * operator is not watched. */
static void *find_subject(void *user, const ir_graph *g, const ir_op *op)
{
    calibration *c = user;
    subject *s = NULL;
    uint64_t index;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const product *p = &products[i];
        if (!str_is(str_from(op->def->name), p->name) || c->status != MPK_OK)
            continue;
        str name = g->tensors.at[op->in[p->w0]].name;
        if (map_get(&c->by_name, name, &index))
            return c->subjects.at[index];
        if (is_of_layer(name))
            c->status = add_subject(c, p, g, op, &s);
    }
    return c->status == MPK_OK ? s : NULL;
}

/* ---- rows ---- */

/* square is finite, at least 0 and below MOST_SQUARE.  The fraction is cut to PART_BITS bits; what
 * it carries over goes to `whole`. */
static void add_square(exact_sum *sum, double square)
{
    double whole = floor(square);
    sum->part += (int64_t)((square - whole) * (double)((int64_t)1 << PART_BITS));
    sum->whole += (int64_t)whole + (sum->part >> PART_BITS);
    sum->part &= ((int64_t)1 << PART_BITS) - 1;
}

/* A NaN fails the comparison as a number that is too large does. */
static void add_row(subject *s, int64_t expert, const float *row)
{
    exact_sum *sums = s->sums + expert * s->columns;
    s->counts[expert]++;
    for (int64_t i = 0; i < s->columns; i++) {
        double square = (double)row[i] * (double)row[i];
        if (square < MOST_SQUARE)
            add_square(&sums[i], square);
        else
            s->of->is_too_large = true;
    }
}

/* The row at `offset` of the operator's input as f32, normalised if the operator normalises before
 * it multiplies.  It lies in the calibration's one buffer: the mutex is held. */
static const float *load_row(const subject *s, const op_call *call, int64_t offset)
{
    const product *p = s->product;
    float *row = s->of->row;
    walk_load_row(&call->in[0], offset, 0, s->columns, row);
    if (p->norm < call->n_in && call->in[p->norm].data)
        norm_row(row, s->columns, &call->in[p->norm], call->attributes[p->eps].f, row);
    return row;
}

/* Add what token t is multiplied with.  With experts the row counts for each expert that the token
 * went to; the input of rank 3 has a row for each pair of token and expert. */
static void see_token(subject *s, const op_call *call, int64_t t)
{
    const op_view *x = &call->in[0], *ids = &call->in[s->product->ids];
    if (!s->product->ids) {
        add_row(s, 0, load_row(s, call, t * x->stride[0]));
        return;
    }
    for (int64_t j = 0; j < ids->dims[1]; j++) {
        int64_t expert = experts_of_pair(ids, t, j, s->n_experts);
        int64_t offset = t * x->stride[0] + (x->rank == 3 ? j * x->stride[1] : 0);
        if (expert >= 0)
            add_row(s, expert, load_row(s, call, offset));
    }
}

/* machine_watcher.see, on the thread of a worker, before the task runs.  The columns of a product
 * are divided among tasks that read the same rows: the one that makes the first columns counts
 * them. */
static void see(void *user, const op_call *call, const ir_box *box)
{
    subject *s = user;
    if (box->lo[call->out[0].rank - 1] != 0)
        return;
    pthread_mutex_lock(&s->of->mutex);
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        see_token(s, call, t);
    pthread_mutex_unlock(&s->of->mutex);
}

/* ---- reading ---- */

/* MPK_ECANCELLED: the callback asks to give up. */
static mpk_status tell(mpk_context *cx, const mpk_quantize_options *o, double done)
{
    CHECK(cx, !o->progress || o->progress(o->progress_user, "reading the text", done),
          MPK_ECANCELLED, "given up at %.0f %% of the text", 100 * done);
    return MPK_OK;
}

/* Run the model over one window.  The logits are not looked at: the watcher has seen what is wanted
 * when the feed returns. */
static mpk_status read_window(mpk_context *cx, mpk_engine *e, const int32_t *tokens, size_t n,
                              float *logits)
{
    mpk_sequence *s;
    TRY(mpk_sequence_open(cx, e, false, &s));
    mpk_status status = mpk_sequence_feed(cx, s, tokens, n, logits);
    mpk_sequence_close(s);
    return status;
}

/* The text in windows of equal length; a rest that fills none is left out.  Every window begins as
 * the tokenizer lets the text begin: where that is a token of its own, it replaces the window's
 * first. */
static mpk_status read_windows(calibration *c, mpk_engine *e, const mpk_quantize_options *o,
                               const int32_t *ids, size_t n_ids, engine_calibration *out)
{
    size_t window = c->window, n = n_ids / window;
    int32_t bos = n_ids ? ids[0] : -1, *tokens;
    bool has_bos = bos == tokenizer_bos(e->tokens.tokenizer) && bos >= 0;
    float *logits;
    CHECK(c->cx, n, MPK_EARG,
          "the text for calibration has %zu tokens, less than a window of %zu: give a longer one",
          n_ids, window);
    n = o->calibration_windows && o->calibration_windows < n ? o->calibration_windows : n;
    NEW(c->cx, c->arena, tokens, window);
    NEW(c->cx, c->arena, logits, e->build.model.config.vocab_size);
    NEW(c->cx, c->arena, c->row, (size_t)c->longest);
    for (size_t i = 0; i < n; i++) {
        memcpy(tokens, ids + i * window, window * sizeof *tokens);
        tokens[0] = has_bos ? bos : tokens[0];
        TRY(tell(c->cx, o, (double)i / (double)n));
        TRY(read_window(c->cx, e, tokens, window, logits));
    }
    out->n_tokens = n * window;
    return MPK_OK;
}

/* c->status first: if a subject could not be made, nothing that is read would be whole. */
static mpk_status read_text(calibration *c, mpk_engine *e, const mpk_quantize_options *o,
                            engine_calibration *out)
{
    int32_t *ids;
    size_t n;
    TRY(c->status);
    CHECK(c->cx, e->tokens.tokenizer, MPK_EUNSUPPORTED,
          "the model has no tokenizer, which calibration needs to read a text");
    TRY(mpk_tokenize(c->cx, &e->tokens, o->calibration, o->calibration_bytes, true, &ids, &n));
    mpk_status status = read_windows(c, e, o, ids, n, out);
    mpk_free(ids);
    return status;
}

/* ---- importances ---- */

/* The mean squares of a matrix, of one expert: to[i] = (sum_i + LEAST_SHARE * mean of all sums) /
 * rows.  All are 1 if nothing reached it, an expert that no token went to. */
static void take_means(const subject *s, int64_t expert, float *to)
{
    const exact_sum *sums = s->sums + expert * s->columns;
    double all = 0, count = (double)s->counts[expert];
    for (int64_t i = 0; i < s->columns; i++)
        all += (double)sums[i].whole + ldexp((double)sums[i].part, -PART_BITS);
    double least = LEAST_SHARE * all / (double)s->columns;
    for (int64_t i = 0; i < s->columns; i++) {
        double sum = (double)sums[i].whole + ldexp((double)sums[i].part, -PART_BITS);
        to[i] = all > 0 ? (float)((sum + least) / count) : 1;
    }
}

/* The engine is closed, so no worker writes sums any more.  Weights of one subject share its
 * values. */
static mpk_status take_importance(calibration *c, engine_calibration *out)
{
    float *values;
    CHECK(c->cx, !c->is_too_large, MPK_EFORMAT,
          "reading the text, the model computes numbers that are not finite or beyond 2^20: it "
          "cannot be calibrated");
    NEW(c->cx, c->arena, out->importance.values, c->subjects.n + 1);
    for (size_t i = 0; i < c->subjects.n; i++) {
        const subject *s = c->subjects.at[i];
        NEW(c->cx, c->arena, values, (size_t)(s->n_experts * s->columns));
        for (int64_t e = 0; e < s->n_experts; e++)
            take_means(s, e, values + e * s->columns);
        out->importance.values[i] = values;
        for (uint32_t k = 0; k < s->n_weights; k++)
            TRY(map_put(c->cx, c->arena, &out->importance.names, s->names[k], i));
    }
    return MPK_OK;
}

/* ---- all of it ---- */

/* An engine of its own, of one sequence, that the watcher sees.  Its prefix cache is off, since
 * windows that begin alike must be computed again to be counted. */
static mpk_status run(calibration *c, const load_model *m, const mpk_quantize_options *o,
                      engine_calibration *out)
{
    const machine_watcher watcher = {find_subject, see, c};
    const uint32_t chunk = m->config.chunk, all = m->config.max_positions,
                   most = chunk && chunk < all ? chunk : all;
    c->window = most && most < WINDOW ? most : WINDOW;
    const mpk_engine_options options = {.size = sizeof options,
                                        .device = "cpu",
                                        .threads = o->threads,
                                        .max_batch = 1,
                                        .context_tokens = c->window,
                                        .activations = MPK_ACTIVATIONS_F32,
                                        .no_prefix_cache = 1,
                                        .adapters = o->adapters,
                                        .n_adapters = o->n_adapters,
                                        .progress = o->progress,
                                        .progress_user = o->progress_user};
    mpk_engine *e;
    TRY(engine_open_watched(c->cx, m->path.at, &options, &watcher, &e));
    mpk_status status = read_text(c, e, o, out);
    mpk_engine_close(e);
    return status == MPK_OK ? take_importance(c, out) : status;
}

mpk_status engine_calibrate(mpk_context *cx, arena *a, const load_model *m,
                            const mpk_quantize_options *o, engine_calibration *out)
{
    calibration c = {.cx = cx, .arena = a};
    int error = pthread_mutex_init(&c.mutex, NULL);
    CHECK(cx, !error, MPK_ENOMEM, "no mutex: %s", strerror(error));
    *out = (engine_calibration){0};
    mpk_status status = run(&c, m, o, out);
    pthread_mutex_destroy(&c.mutex);
    return status;
}
