/* attention_split.c - attention of a few tokens, cut over the context so that one long request
 * uses every worker (paper §5.2 balances such work at run time; here it is balanced by a rule
 * that all tasks follow).
 *
 * qkv [T, (H + 2 G) K], table f32[T, 2, Kr/2], positions, slots, pages, k_cache, v_cache, q_norm
 * [K], k_norm [K] -> part [T, S, H K], lse f32[T, S, H] and the caches in place.  Norm and rope
 * of heads and the cache update are inside; attention_fold puts the parts together.
 *
 * Division of work, from the data of the step alone.  Tokens of a slot are neighbours, and their
 * positions rise by one.  The cached context c_t of token t is the position of the first token of
 * its slot in this step, at least 0 and at most N P; it is cut into u_t = max(1, ceil(c_t / unit))
 * units of `unit` positions.  The last unit of a token also holds the tokens of the step that it
 * sees, from the first of its slot to t itself: these are taken from qkv, normalised and
 * rotated, and not from the cache; a page is not needed for them.
 *
 * With own >= 1 the context c_t is all that comes before token t, its own position, and only the
 * token itself is added to the last unit.  Of these positions those of the step's own tokens are
 * taken from qkv, rounded to the dtype of the cache, if the cache has a page for them: what the
 * cache would hold if each token had a step to itself.
 *
 * With own = 0, of all units of the live tokens, in the order of tokens, U in all, split s does
 * floor(s U / S) .. floor((s + 1) U / S) - 1: every split has as much as any other, but where a
 * token's context is cut depends on what else is in the step, and with it the last bits of its
 * result.  With own >= 1 a token is cut by its own context alone, into parts of `own` units, or
 * into S parts if that makes more (split_own.h): a token's parts, and what attention_fold makes
 * of them, have the same bits in any company, that of its own slot included.
 *
 *   unit 4, slot 7 with the cached positions 0 to 9 and two tokens in this step, at 10 and 11:
 *     token 10   cached 10, units [0-3] [4-7] [8-9 and 10 itself]            units = 3
 *     token 11   cached 10, units [0-3] [4-7] [8-9, 10 and 11]               units = 3
 *   Of these U = 6 units with S = 4 splits and own = 0 split 0 does unit 0 of token 10, split 1 its
 *   units 1 and 2, split 2 unit 0 of token 11, split 3 the rest.
 *
 * With a cap c > 0 a score s becomes c tanh(s / c).  With norm_last the norms of heads follow the
 * rotation.
 *
 * part is a split's own mean of the values that it saw, lse the logarithm of the sum of
 * exp(scaled score).  A split that has nothing of a token gives lse = -inf; the contents of rows
 * of part whose lse is -inf are undefined and must not be read (here they are zeros).  The task
 * that does the last unit of a token puts its key and value into the cache: the tasks of a KV
 * head write different rows in boxes that overlap.
 *
 * Cost: that of attention; units balance the splits, so the tasks take equally long though their
 * work depends on data.
 */
#include "op/attend.h"
#include "op/split_own.h"
#include "op/rotated.h"

enum { PART, LSE, K_OUT, V_OUT };
enum { EPS = ROTATED_ATTRIBUTES, SCALE, WINDOW, SPLITS, UNIT, OWN, CAP, NORM_LAST };

/* The upper bounds keep every product of these numbers inside 32 bits, which GPU bodies compute
 * with. */
static mpk_status check_attributes(mpk_context *cx, const ir_op *op)
{
    const ir_attribute *a = op->attributes;
    CHECK(cx, a[WINDOW].i >= 0, MPK_EARG,
          "attention_split: window is %lld, expected 0 (none) or more", (long long)a[WINDOW].i);
    CHECK(cx, a[SPLITS].i >= 1 && a[SPLITS].i <= 1 << 16, MPK_EARG,
          "attention_split: splits is %lld, expected 1 to 65536", (long long)a[SPLITS].i);
    CHECK(cx, a[UNIT].i >= 1 && a[UNIT].i <= 1 << 20, MPK_EARG,
          "attention_split: unit is %lld, expected 1 to 1048576", (long long)a[UNIT].i);
    CHECK(cx, a[OWN].i >= 0 && a[OWN].i <= 1 << 12, MPK_EARG,
          "attention_split: own is %lld, expected 0 to 4096", (long long)a[OWN].i);
    CHECK(cx, a[CAP].f >= 0 && a[CAP].f < 1e30, MPK_EARG,
          "attention_split: cap is %g, expected 0 (none) or more", a[CAP].f);
    return MPK_OK;
}

/* The caches must be state itself: positions of earlier steps are read without being named in
 * `reads`. */
static mpk_status check_caches(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    for (uint32_t i = K_CACHE; i <= V_CACHE; i++)
        CHECK(cx, shape_input(g, op, i)->kind == IR_STATE, MPK_EUNSUPPORTED,
              "attention_split: %%%.*s is written in this step, the cache must be state",
              STR_ARG(shape_input(g, op, i)->name));
    return MPK_OK;
}

/* Parts in the dtype of qkv; lse in f32 whatever that is, since the weights of the parts follow
 * from it. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    heads_split n = rotated_split(op);
    TRY(rotated_expect(cx, g, op));
    TRY(check_attributes(cx, op));
    TRY(check_caches(cx, g, op));
    const ir_tensor *qkv = shape_input(g, op, QKV);
    for (uint32_t i = PART; i <= LSE; i++) {
        out[i].dtype = i == PART ? qkv->dtype : IR_F32;
        out[i].live = qkv->live;
        out[i].rank = 3;
        out[i].dims[0] = qkv->dims[0];
        out[i].dims[1] = op->attributes[SPLITS].i;
        out[i].dims[2] = i == PART ? n.q * n.size : n.q;
    }
    rotated_caches(g, op, &out[K_OUT]);
    return MPK_OK;
}

/* Columns of a part that belong to one KV head. */
static int64_t group_columns(const ir_op *op)
{
    return op->attributes[HEADS].i / op->attributes[KV_HEADS].i * op->attributes[HEAD_SIZE].i;
}

/* Any range of splits, whole KV heads; tokens are not cut, because a split is a range of units
 * of all tokens. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g;
    axes[1].grain = 1;
    axes[2].grain = group_columns(op);
}

/* Of the caches only positions of earlier steps are read, which no task of this step writes:
 * nothing is named, see OP_READS_EARLIER. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == QKV)
        *read = heads_box(shape_input(g, op, QKV), rotated_split(op),
                          box->lo[2] / group_columns(op), box->hi[2] / group_columns(op));
    else if (input == K_CACHE || input == V_CACHE)
        *read = (ir_box){0};
}

/* As in attention_cache.c; which pages of its KV heads a task writes follows from data, so all
 * are named. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    *written = *box;
    if (output == LSE) {
        written->lo[2] = box->lo[2] / op->attributes[HEAD_SIZE].i;
        written->hi[2] = box->hi[2] / op->attributes[HEAD_SIZE].i;
    } else if (output != PART) {
        *written = pages_box(&g->tensors.at[op->out[output]], box->lo[2] / group_columns(op),
                             box->hi[2] / group_columns(op));
    }
}

/* Scratch: query, row, answer, and a row of the table. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)(3 * op->attributes[HEAD_SIZE].i + 2 * shape_input(g, op, TABLE)->dims[2]) *
           sizeof(float);
}

/* What the functions below share. */
typedef struct work {
    const op_call *call;
    heads_split n;
    attend_view view;
    int64_t alive, half; /* live tokens of the step; pairs that are rotated */
    /* query, row, answer: [K] each; cosine, sine: [half] */
    float *query, *row, *answer, *cosine, *sine;
} work;

/* What the division of work needs to know of a token; the opening comment has an example. */
typedef struct token {
    int64_t slot, position, first; /* first: token of its slot in this step */
    int64_t cached, units;         /* c_t, u_t */
} token;

/* Entry t of one of the integer inputs of a step. */
static int64_t integer_of(const op_view *v, int64_t t)
{
    return walk_load_int(v, t * v->stride[0]);
}

/* The facts about token t.  Tokens of a slot are neighbours in a step, so walking back finds the
 * first of them. */
static token token_at(const work *w, int64_t t)
{
    const op_view *in = w->call->in;
    int64_t room = in[PAGES].dims[1] * in[K_CACHE].dims[2], unit = w->call->attributes[UNIT].i;
    token k = {
        .slot = integer_of(&in[SLOTS], t), .position = integer_of(&in[POSITIONS], t), .first = t};
    while (k.first > 0 && integer_of(&in[SLOTS], k.first - 1) == k.slot)
        k.first--;
    k.cached = w->call->attributes[OWN].i ? k.position : integer_of(&in[POSITIONS], k.first);
    k.cached = op_clamp(k.cached, 0, room);
    k.units = k.cached > unit ? (k.cached + unit - 1) / unit : 1;
    return k;
}

/* A head of token t: normalised and rotated if `norm` is not NULL. */
static void load_head(const work *w, int64_t t, int64_t head, const op_view *norm, float *row)
{
    const op_view *table = &w->call->in[TABLE];
    const ir_attribute *a = w->call->attributes;
    heads_load(&w->call->in[QKV], w->n, t, head, row);
    if (!norm)
        return;
    walk_load_row(table, t * table->stride[0], 0, w->half, w->cosine);
    walk_load_row(table, t * table->stride[0] + table->stride[1], 0, w->half, w->sine);
    heads_rotate(w->call->in[QKV].dtype, row, w->n.size,
                 (heads_norm){norm, a[EPS].f, a[NORM_LAST].i != 0}, w->cosine, w->sine, w->half);
}

/* Write the key and value of token t to the cache, for KV heads lo .. hi - 1. */
static void fill_cache(const work *w, int64_t t, const token *k, int64_t lo, int64_t hi)
{
    const op_view *in = w->call->in, *out = w->call->out;
    for (int64_t head = lo; head < hi; head++) {
        load_head(w, t, w->n.q + head, &in[K_NORM], w->row);
        pages_store(&in[PAGES], &out[K_OUT], k->slot, k->position, head, w->row);
        load_head(w, t, w->n.q + w->n.kv + head, NULL, w->row);
        pages_store(&in[PAGES], &out[V_OUT], k->slot, k->position, head, w->row);
    }
}

/* A head of token t as load_head has it, rounded to `dtype`. */
static void load_rounded(const work *w, int64_t t, int64_t head, const op_view *norm,
                         ir_dtype dtype)
{
    load_head(w, t, head, norm, w->row);
    for (int64_t i = 0; i < w->n.size; i++)
        w->row[i] = walk_round(dtype, w->row[i]);
}

/* Add token i of the step.  k_dtype, v_dtype: what its key and value are rounded to. */
static void attend_token(const work *w, int64_t i, int64_t kv_head, ir_dtype k_dtype,
                         ir_dtype v_dtype, attend_sum *a)
{
    load_rounded(w, i, w->n.q + kv_head, &w->call->in[K_NORM], k_dtype);
    float score = attend_capped(w->view.scale * dot_rows(w->query, w->row, a->size), w->view.cap);
    float weight = attend_weigh(a, score);
    load_rounded(w, i, w->n.q + w->n.kv + kv_head, NULL, v_dtype);
    attend_add(a, weight, w->row);
}

/* Add the tokens of the step itself that token t sees in its last unit: from the first of its slot
 * on, with own >= 1 itself alone. */
static void attend_step(const work *w, int64_t t, const token *k, int64_t kv_head, attend_sum *a)
{
    const int64_t from = attend_first(w->view.window, k->position);
    for (int64_t i = w->call->attributes[OWN].i ? t : k->first; i <= t; i++)
        if (i == t || integer_of(&w->call->in[POSITIONS], i) >= from)
            attend_token(w, i, kv_head, IR_F32, IR_F32, a);
}

/* With own >= 1: add positions p .. last, which earlier tokens of the step have, as far as the
 * cache has pages for them. */
static void attend_earlier(const work *w, int64_t t, const token *k, int64_t p, int64_t last,
                           int64_t kv_head, attend_sum *a)
{
    const attend_view *v = &w->view;
    for (; p <= last; p++)
        if (pages_find(v->pages, v->k_cache, k->slot, p) >= 0)
            attend_token(w, t - (k->position - p), kv_head, v->k_cache->dtype, v->v_cache->dtype,
                         a);
}

/* Add positions first .. last before token t. */
static void attend_before(const work *w, int64_t t, const token *k, int64_t first, int64_t last,
                          int64_t kv_head, attend_sum *a)
{
    const int64_t step = w->call->attributes[OWN].i ? k->position - (t - k->first) : last + 1;
    attend_cached(&w->view, k->slot, first, last < step ? last : step - 1, kv_head, w->query,
                  w->row, a);
    attend_earlier(w, t, k, first > step ? first : step, last, kv_head, a);
}

/* Attend to units lo .. hi - 1 of token t for one query head, and store part and lse; none:
 * zeros and -inf. */
static void attend_units(const work *w, int64_t t, const token *k, int64_t lo, int64_t hi,
                         int64_t split, int64_t head)
{
    const op_view *part = &w->call->out[PART], *lse = &w->call->out[LSE];
    int64_t kv_head = head / (w->n.q / w->n.kv), unit = w->call->attributes[UNIT].i;
    attend_sum a = attend_begin(w->n.size, w->answer);
    if (lo < hi) {
        int64_t first = attend_first(w->view.window, k->position),
                end = hi * unit < k->cached ? hi * unit : k->cached;
        load_head(w, t, head, &w->call->in[Q_NORM], w->query);
        attend_before(w, t, k, first > lo * unit ? first : lo * unit, end - 1, kv_head, &a);
        if (hi == k->units)
            attend_step(w, t, k, kv_head, &a);
    }
    attend_end(&a);
    walk_store_row(part, t * part->stride[0] + split * part->stride[1], head * w->n.size, w->n.size,
                   w->answer);
    op_store(lse, t * lse->stride[0] + split * lse->stride[1] + head * lse->stride[2],
             attend_log(&a));
}

/* The units of token t that a split does: lo .. hi - 1. */
typedef struct span {
    int64_t lo, hi;
} span;

/* Find them.  before: units (with own >= 1: parts) of the tokens before this one; all: units of
 * all live tokens.  Every task computes both sums alike, so no task needs another's answer. */
static span find_units(const ir_attribute *a, int64_t split, const token *k, int64_t before,
                       int64_t all)
{
    int64_t splits = a[SPLITS].i;
    int lo, hi;
    if (!a[OWN].i)
        return (span){op_clamp(split * all / splits - before, 0, k->units),
                      op_clamp((split + 1) * all / splits - before, 0, k->units)};
    split_own_units((int)split, (int)splits, (int)a[OWN].i, (int)(before % splits), (int)k->units,
                    &lo, &hi);
    return (span){lo, hi};
}

/* What a token counts for in `before`. */
static int64_t count_of(const ir_attribute *a, const token *k)
{
    return a[OWN].i ? split_own_parts((int)k->units, (int)a[SPLITS].i, (int)a[OWN].i) : k->units;
}

/* Token by token: which of its units a split does follows from those of the tokens before it. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const ir_attribute *a = call->attributes;
    const op_view *in = call->in;
    heads_split n = rotated_split(call->op);
    work w = {
        .call = call, .n = n, .alive = op_live_entries(call, &in[QKV]), .half = in[TABLE].dims[2]};
    w.view =
        (attend_view){&in[K_CACHE], &in[V_CACHE],   &in[PAGES], attend_scale(a[SCALE].f, n.size),
                      a[WINDOW].i,  (float)a[CAP].f};
    w.query = scratch;
    w.row = w.query + n.size;
    w.answer = w.row + n.size;
    w.cosine = w.answer + n.size;
    w.sine = w.cosine + w.half;
    int64_t all = 0, before = 0, group = n.q / n.kv;
    for (int64_t t = 0; t < w.alive; t++)
        /* a split's share depends on the units of all live tokens, also of those outside the box */
        all += token_at(&w, t).units;
    for (int64_t t = 0; t < box->hi[0]; t++) {
        token k = token_at(&w, t);
        for (int64_t s = box->lo[1]; t >= box->lo[0] && s < box->hi[1]; s++) {
            span units = find_units(a, s, &k, before, all);
            for (int64_t head = box->lo[2] / n.size; head < box->hi[2] / n.size; head++)
                attend_units(&w, t, &k, units.lo, units.hi, s, head);
            /* the task with the token's last unit, which holds the token itself, also writes its
             * key and value; every token has exactly one such task for each KV head */
            if (t < w.alive && units.lo < units.hi && units.hi == k.units)
                fill_cache(&w, t, &k, box->lo[2] / n.size / group, box->hi[2] / n.size / group);
        }
        before += count_of(a, &k);
    }
}

/* Fill what the operator relies on: tokens of a slot are neighbours at positions that rise by one,
 * pages are distinct.  One in sixteen pages and slots does not exist: bodies must survive a slot
 * beyond the table of pages, a page of -1 and one beyond the cache. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input), *pages = shape_input(g, op, PAGES),
                    *k = shape_input(g, op, K_CACHE), *positions = shape_input(g, op, POSITIONS);
    if (t->dtype != IR_I32)
        return;
    int64_t n = ir_elements(t), slots = pages->dims[0],
            run = (positions->dims[0] + slots - 1) / slots, room = pages->dims[1] * k->dims[2],
            starts = room - run > 0 ? room - run + 1 : 1;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = rng_u64(seed, (uint64_t)(input == PAGES ? i : i / run));
        int64_t value;
        if (input == POSITIONS)
            value = (int64_t)((bits >> 8) % (uint64_t)starts) + i % run;
        else if (input == SLOTS)
            value = bits % 16 ? i / run : slots + i / run;
        else if (bits % 16 && i < k->dims[0])
            value = i;
        else
            value = bits / 16 % 2 ? -1 : k->dims[0];
        fill_store(t, i, value, data);
    }
}

static const op_operand out[] = {{"part", 0}, {"lse", 0}, {"k_cache", 0}, {"v_cache", 0}};
static const op_attribute attributes[] = {
    ROTATED_ATTRIBUTE_ROWS, SHAPE_REAL("eps", 1e-6),     SHAPE_REAL("scale", 0),
    SHAPE_INT("window", 0), SHAPE_NEEDED("splits", INT), SHAPE_INT("unit", 128),
    SHAPE_INT("own", 0),    SHAPE_REAL("cap", 0),        SHAPE_INT("norm_last", 0)};

/* Grouped heads; norms and a window; more splits than units; parts of `own` units, also of several
 * tokens a slot; a cap; norms after the rotation. */
static const op_case cases[] = {
    {ROTATED_INPUTS("1", "f32[1, 960]", "32", "2, 4",
                    "f32[9, 3, 16, 64]") "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, "
                                         "%kc, %vc) {heads = 9, "
                                         "kv_heads = 3, head_size = 64, splits = 4, unit = 16}\n"},
    {ROTATED_INPUTS("7", "f32[7, 336]", "24", "3, 3",
                    "bf16[9, 1, 8, 48]") "const %qn : f32[48]\nconst %kn : f32[48]\n"
                                         "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, "
                                         "%kc, %vc, %qn, %kn) {heads "
                                         "= 5, kv_heads = 1, head_size = 48, eps = 1e-05, window = "
                                         "9, splits = 3, unit = 8}\n"},
    {ROTATED_INPUTS(
        "7", "bf16[7, 640]", "32", "4, 3",
        "f16[12, 2, 4, 80]") "const %kn : bf16[80]\n"
                             "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, %kc, %vc, "
                             "_, %kn) {heads = "
                             "4, kv_heads = 2, head_size = 80, scale = 0.2, splits = 9, unit = "
                             "4}\n"},
    {ROTATED_INPUTS("6", "f32[6, 96]", "8", "6, 5",
                    "f32[31, 1, 4, 16]") "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, "
                                         "%kc, %vc) {heads = 4, kv_heads "
                                         "= 1, head_size = 16, splits = 3, unit = 4, own = 2}\n"},
    {ROTATED_INPUTS(
        "7", "f32[7, 96]", "8", "2, 5",
        "bf16[10, 1, 4, 16]") "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, "
                              "%kc, %vc) {heads = 4, kv_heads = 1, head_size = 16, "
                              "window = 9, splits = 3, unit = 4, own = 1}\n"},
    {ROTATED_INPUTS("5", "f32[5, 160]", "16", "2, 5",
                    "f32[10, 1, 4, 32]") "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, "
                                         "%kc, %vc) {heads = 3, kv_heads = 1, head_size = 32, "
                                         "splits = 3, unit = 4, cap = 0.5}\n"},
    {ROTATED_INPUTS(
        "5", "f32[5, 160]", "12", "2, 5",
        "f32[10, 1, 4, 32]") "const %qn : f32[32]\nconst %kn : f32[32]\n"
                             "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, "
                             "%kc, %vc, %qn, %kn) {heads = 3, kv_heads = 1, head_size = "
                             "32, splits = 3, unit = 4, norm_last = 1}\n"},
};

const op_def op_attention_split = {
    .name = "attention_split",
    .summary = "norm, rope, cache update and attention of a few tokens, cut over the context; see "
               "attention_fold",
    OP_INPUTS(rotated_in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_READS_EARLIER | OP_WRITES_APART | OP_DATA_DEPENDENT | OP_EVEN,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
