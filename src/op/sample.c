/* sample.c - draw a token from each row of logits.
 *
 * logits [R, V], sampling f32[R, 4] = (temperature, top_k, top_p, min_p), seeds i64[R], draws
 * i32[R] -> i32[R].  Temperature 0 (or below, or NaN): the largest logit.  Otherwise the weights
 * are exp((x - max) / temperature) as integers (chance.h), and of the tokens in falling order of
 * their logits (equal ones: the lower id first) there are kept the first top_k (0: all), of those
 * the fewest whose share of their weight reaches top_p (1: all), and of those the ones with at
 * least min_p times the largest weight.  Number draws[r] of the random stream seeds[r] is a part of
 * the kept weight; the token is where the sum of kept weights, lane by lane, passes it.  So a row,
 * its filters and its random number have one token, on every processor and however the row is cut.
 *
 * asks i32[R, 7] says what else a row wants (rules.h).  Rules: the row draws from a copy of its
 * logits in choice f32[C, V], changed as rules i32[B, W] and history i32[N] say; rows of one
 * step have different rows of choice.  Log probabilities: f32[R, 21, 2], pairs of id and
 * logarithm of the share that softmax gives it in the row as the model made it: first of the
 * token that is drawn or asked for, then of the most probable ones in falling order; entries
 * that are not asked for are 0.  A row that asks for neither reads only its row of asks.
 *
 * Some rows of `rules` may be masks, which the host writes while the step runs; a row whose mask
 * has not arrived has the token RULES_LATE.
 *
 * Idea: weights need no order but where top_k or top_p cut.  There a heap of ids is built, of those
 * that are not below the n-th largest of the lanes' maxima, which are at least n and hardly more;
 * only as many are taken out as are looked at.  So cost is O(V), and a heap of all ids is built
 * only where a filter keeps many.  NaN and -inf
 * are never drawn.  With peaks [R, ceil(V / 64), 2] of `logits` the largest is found there: a
 * greedy row reads nothing else.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "op/chance.h"
#include "op/fill.h"
#include "op/peaks.h"
#include "op/rules.h"

/* Inputs, outputs and columns of `sampling`, by index. */
enum { X, SAMPLING, SEEDS, DRAWS, ASKED, RULES, HISTORY, CHOICE, PEAKS };
enum { TOKEN, CHOSEN, SHARES };
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P };

/* Check the shapes of the inputs that rows with rules use. */
static mpk_status check_rules(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    const ir_tensor *x = shape_input(g, op, X), *words = shape_input(g, op, RULES);
    TRY(shape_expect(cx, g, op, ASKED, SHAPE_I32, 2, (int64_t[]){x->dims[0], ASKS}));
    TRY(shape_expect(cx, g, op, RULES, SHAPE_I32, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, HISTORY, SHAPE_I32, 1, (int64_t[]){SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, CHOICE, 1 << IR_F32, 2, (int64_t[]){SHAPE_FREE, x->dims[1]}));
    CHECK(cx, words->dims[1] >= RULES_LISTS, MPK_ESHAPE,
          "sample: rules have %lld words, expected %d or more", (long long)words->dims[1],
          RULES_LISTS);
    return MPK_OK;
}

/* The rows of choice and the log probabilities are outputs even if no row asks for them: what a
 * row asks for is data of the step. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    CHECK(cx, x->dims[1] <= PEAKS_MOST_COLUMNS, MPK_ESHAPE,
          "sample: %lld columns, at most %d can be numbered", (long long)x->dims[1],
          PEAKS_MOST_COLUMNS);
    TRY(shape_expect(cx, g, op, SAMPLING, 1 << IR_F32, 2, (int64_t[]){x->dims[0], 4}));
    TRY(shape_expect(cx, g, op, SEEDS, SHAPE_I64, 1, x->dims));
    TRY(shape_expect(cx, g, op, DRAWS, SHAPE_I32, 1, x->dims));
    TRY(shape_expect(cx, g, op, PEAKS, 1 << IR_F32, 3,
                     (int64_t[]){x->dims[0], peaks_count(x->dims[1]), 2}));
    TRY(check_rules(cx, g, op));
    static const uint32_t by_row[] = {SAMPLING, SEEDS, DRAWS, ASKED, PEAKS};
    for (uint32_t i = 0; i < OP_COUNT(by_row); i++)
        TRY(shape_expect_live(cx, g, op, by_row[i], x->live));
    out[TOKEN] = (ir_tensor){
        .dtype = IR_I32, .live = x->live, .rank = 1, .dims = {x->dims[0]}, .shares = IR_NONE};
    shape_like(shape_input(g, op, CHOICE), &out[CHOSEN]);
    out[CHOSEN].shares = op->in[CHOICE];
    out[SHARES] = (ir_tensor){.dtype = IR_F32,
                              .live = x->live,
                              .rank = 3,
                              .dims = {x->dims[0], LOGPROBS, 2},
                              .shares = IR_NONE};
    return MPK_OK;
}

/* A row of the inputs by row; rules and history whole, as only data says which part a row uses.
 * choice is written before it is read. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == CHOICE)
        *read = (ir_box){0};
    if (input == RULES || input == HISTORY || input == CHOICE)
        return;
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
}

/* Which row of choice a task writes depends on data, so each is said to write any; `asks` keeps
 * their rows apart (OP_WRITES_APART). */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    *written = ir_box_whole(&g->tensors.at[op->out[output]]);
    if (output == CHOSEN)
        return;
    written->lo[0] = box->lo[0];
    written->hi[0] = box->hi[0];
}

/* Scratch: the heap of one row, room for every id of the vocabulary; rules_apply uses it for its
 * marks before. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)shape_input(g, op, X)->dims[1] * sizeof(int32_t);
}

/* A row of logits and a heap of its ids with the largest on top.  An id that was taken lies
 * after the heap, the first one last, so ids[] also remembers the order: the heap shrinks by one
 * entry as the list grows. */
typedef struct candidates {
    const op_view *x;
    int64_t offset; /* of the row */
    int32_t *ids;
    int64_t n, in_heap;
    float largest, scale;
} candidates;

/* The logit of an id.  f32 has a path of its own, since every comparison of the heap comes here. */
static float logit_of(const candidates *c, int32_t id)
{
    int64_t at = c->offset + id * c->x->stride[1];
    return c->x->dtype == IR_F32 ? ((const float *)c->x->data)[at] : op_load(c->x, at);
}

static chance weight_of(const candidates *c, int32_t id)
{
    return chance_of(logit_of(c, id), c->largest, c->scale);
}

/* Does id a come before b in falling order? */
static bool is_before(const candidates *c, int32_t a, int32_t b)
{
    float x = logit_of(c, a), y = logit_of(c, b);
    return x > y || (x == y && a < b);
}

/* Move the id at a place of the heap down to where it belongs. */
static void sink(candidates *c, int64_t at)
{
    int32_t id = c->ids[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= c->in_heap)
            break;
        if (child + 1 < c->in_heap && is_before(c, c->ids[child + 1], c->ids[child]))
            child++;
        if (is_before(c, id, c->ids[child]))
            break;
        c->ids[at] = c->ids[child];
        at = child;
    }
    c->ids[at] = id;
}

/* For qsort: floats in falling order. */
static int compare_falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* A logit that at least n ids reach (n <= CHANCE_LANES), and hardly more: the n-th largest of the
 * lanes' maxima.  -INFINITY if fewer lanes have an id that can be drawn. */
static float reach_of(const candidates *c, int64_t n)
{
    enum { ROUND = CHANCE_LANES * CHANCE_NEIGHBOURS };
    const int64_t columns = c->x->dims[1];
    const bool plain = c->x->dtype == IR_F32 && c->x->stride[1] == 1;
    float most[ROUND], lanes[CHANCE_LANES];
    for (int64_t i = 0; i < ROUND; i++)
        most[i] = -INFINITY;
    for (int64_t from = 0; from < columns; from += ROUND) {
        const int64_t here = columns - from < ROUND ? columns - from : ROUND;
        const float *x = plain ? (const float *)c->x->data + c->offset + from : NULL;
        for (int64_t i = 0; i < here; i++) {
            const float logit = x ? x[i] : logit_of(c, (int32_t)(from + i));
            most[i] = logit > most[i] ? logit : most[i]; /* never NaN */
        }
    }
    for (int64_t i = 0; i < CHANCE_LANES; i++) {
        lanes[i] = most[i * CHANCE_NEIGHBOURS];
        for (int64_t j = 1; j < CHANCE_NEIGHBOURS; j++)
            lanes[i] = fmaxf(lanes[i], most[i * CHANCE_NEIGHBOURS + j]);
    }
    qsort(lanes, CHANCE_LANES, sizeof *lanes, compare_falling);
    return lanes[n - 1];
}

/* All ids whose logit is `least` or more, and that can be drawn at all, as a heap.  Linear: Floyd's
 * way, from the last parent up. */
static void build_heap(candidates *c, float least)
{
    c->n = 0;
    for (int64_t i = 0; i < c->x->dims[1]; i++) {
        const float logit = logit_of(c, (int32_t)i);
        if (logit >= least && logit > -INFINITY)
            c->ids[c->n++] = (int32_t)i;
    }
    c->in_heap = c->n;
    for (int64_t i = c->n / 2; i-- > 0;)
        sink(c, i);
}

/* The number `rank` in falling order; call with 0, 1, 2 ... */
static int32_t take(candidates *c, int64_t rank)
{
    if (rank >= c->n - c->in_heap) {
        int32_t first = c->ids[0];
        c->ids[0] = c->ids[--c->in_heap];
        sink(c, 0);
        c->ids[c->in_heap] = first;
    }
    return c->ids[c->n - 1 - rank];
}

/* What the filters keep: ids up to `last` in falling order (-1: all), of at least this weight.
 * Weights are integers (chance.h), so sums of them do not depend on the order, and a GPU's
 * threads draw the same token.
 */
typedef struct kept {
    int32_t last;
    chance least;
} kept;

static chance weight_kept(const candidates *c, const kept *k, int32_t id)
{
    if (k->last >= 0 && is_before(c, k->last, id))
        return 0;
    chance weight = weight_of(c, id);
    return weight < k->least ? 0 : weight;
}

/* The weight that is kept, and in sums[CHANCE_LANES] that of each lane. */
static chance weigh(const candidates *c, const kept *k, chance *sums)
{
    chance sum = 0;
    memset(sums, 0, CHANCE_LANES * sizeof *sums);
    for (int64_t i = 0; i < c->x->dims[1]; i++) {
        chance weight = weight_kept(c, k, (int32_t)i);
        sums[i / CHANCE_NEIGHBOURS % CHANCE_LANES] += weight;
        sum += weight;
    }
    return sum;
}

/* Cuts by number and by share walk the ids in falling order; they are no more than cut off. */
static kept keep(candidates *c, const float *sampling, chance *sums)
{
    kept k = {-1, chance_least(sampling[MIN_P])};
    bool by_number = sampling[TOP_K] >= 1 && sampling[TOP_K] < (float)c->x->dims[1],
         by_share = sampling[TOP_P] < 1;
    chance sum = 0, passed = 0;
    if (!by_number && !by_share)
        return k;
    enum { MOST_BY_SHARE = 224 }; /* ids that top_p keeps in most texts */
    int64_t first = by_number ? (int64_t)sampling[TOP_K] : MOST_BY_SHARE;
    build_heap(c, first <= CHANCE_LANES ? reach_of(c, first) : -INFINITY);
    int64_t n = by_number && (int64_t)sampling[TOP_K] < c->n ? (int64_t)sampling[TOP_K] : c->n;
    for (int64_t i = 0; i < n && by_number; i++)
        sum += weight_of(c, k.last = take(c, i));
    if (!by_share)
        return k;
    if (!by_number)
        sum = weigh(c, &(kept){-1, 0}, sums);
    chance wanted = chance_share(sampling[TOP_P], sum);
    for (int64_t i = 0; i < n && passed < wanted; i++)
        passed += weight_of(c, k.last = take(c, i));
    if (passed >= wanted || by_number)
        return k;
    build_heap(c, -INFINITY); /* it keeps more than the first few */
    passed = 0;
    for (int64_t i = 0; i < c->n && passed < wanted; i++)
        passed += weight_of(c, k.last = take(c, i));
    return k;
}

/* The id of a lane at which the sum of kept weights passes the target.  A lane has
 * CHANCE_NEIGHBOURS ids of each CHANCE_LANES * CHANCE_NEIGHBOURS, and goes from the last of them
 * to the first of the next: the order in which a GPU's threads go, one lane each.
 */
static int32_t pick(const candidates *c, const kept *k, int64_t lane, chance target)
{
    chance passed = 0;
    for (int64_t i = lane * CHANCE_NEIGHBOURS;;) {
        passed += weight_kept(c, k, (int32_t)i);
        if (passed > target)
            return (int32_t)i;
        i += (i + 1) % CHANCE_NEIGHBOURS ? 1 : (CHANCE_LANES - 1) * CHANCE_NEIGHBOURS + 1;
    }
}

/* The high half of a product: a part of `sum`, below it, that is as random as the bits are. */
static chance part_of(chance sum, uint64_t bits)
{
    const uint64_t low = UINT32_MAX;
    uint64_t mid = (sum & low) * (bits >> 32) + ((sum & low) * (bits & low) >> 32);
    return (sum >> 32) * (bits >> 32) + (mid >> 32) +
           (((mid & low) + (sum >> 32) * (bits & low)) >> 32);
}

/* The token of one row whose largest logit is at `best` (below 0: all are NaN). */
static int32_t draw(candidates *c, int64_t best, const float *sampling, uint64_t bits)
{
    chance sums[CHANCE_LANES];
    if (best < 0 || best >= c->x->dims[1])
        return 0;
    c->largest = logit_of(c, (int32_t)best);
    if (!(sampling[TEMPERATURE] > 0) || !isfinite(c->largest))
        return (int32_t)best;
    c->scale = chance_scale(sampling[TEMPERATURE]);
    kept k = keep(c, sampling, sums);
    chance target = part_of(weigh(c, &k, sums), bits);
    int64_t lane = 0;
    for (; target >= sums[lane]; lane++)
        target -= sums[lane];
    return pick(c, &k, lane, target);
}

/* The mask of a row: NULL in *mask if it asks for none.  Returns false if the mask of this draw
 * has not arrived. */
static bool find_mask(const op_call *call, const int32_t asks[ASKS], uint32_t draw_number,
                      const int32_t **mask)
{
    const op_view *words = &call->in[RULES];
    int64_t row = asks[ASK_MASK] - 1;
    *mask = NULL;
    if (row < 0 || row >= words->dims[0] || words->dims[1] < rules_mask_words(call->in[X].dims[1]))
        return true;
    const int32_t *at = (const int32_t *)words->data + row * words->stride[0];
    *mask = at + MASK_BITS;
    return atomic_load_explicit((const atomic_uint *)(const void *)(at + MASK_NUMBER),
                                memory_order_acquire) == draw_number + 1;
}

/* Point c at the logits that row r draws from.  True: it has rules, and c is a changed copy in
 * its row of choice.  False: c is as before, which holds too for requests that name rows or
 * ranges that do not exist. */
static bool choose_row(const op_call *call, int64_t r, const int32_t asks[ASKS],
                       const int32_t *mask, double temperature, candidates *c)
{
    const op_view *x = &call->in[X], *words = &call->in[RULES], *choice = &call->out[CHOSEN];
    int64_t row = asks[ASK_RULES] - 1, to = asks[ASK_CHOICE];
    const int32_t *record = (const int32_t *)words->data + row * words->stride[0];
    int64_t n = asks[ASK_HISTORY], from = asks[ASK_FROM], most = call->in[HISTORY].dims[0];
    if (row < 0 || row >= words->dims[0] || to < 0 || to >= choice->dims[0] || n < 0 || from < 0 ||
        from > most - n || !rules_are_sound(record, words->dims[1]))
        return false;
    rules made = {.words = record,
                  .history = (const int32_t *)call->in[HISTORY].data + from,
                  .n_history = n,
                  .x = (float *)choice->data + to * choice->stride[0],
                  .n = x->dims[1],
                  .marks = c->ids,
                  .mask = mask};
    for (int64_t i = 0; i < made.n; i++)
        made.x[i] = op_load(x, r * x->stride[0] + i * x->stride[1]);
    rules_apply(&made, temperature);
    c->x = choice;
    c->offset = to * choice->stride[0];
    return true;
}

/* Log probabilities of a row as the model made it, n entries of them; the first is that of
 * `token`.  ids: scratch for the heap. */
static void tell_shares(const op_call *call, int64_t r, int64_t best, int32_t n, int32_t token,
                        int32_t *ids)
{
    const op_view *x = &call->in[X], *out = &call->out[SHARES];
    float *to = (float *)out->data + r * out->stride[0];
    candidates c = {.x = x, .offset = r * x->stride[0], .ids = ids, .scale = chance_scale(1)};
    chance sums[CHANCE_LANES];
    memset(to, 0, LOGPROBS * 2 * sizeof *to);
    if (n <= 0 || best < 0 || best >= x->dims[1])
        return;
    c.largest = logit_of(&c, (int32_t)best);
    double total = log((double)weigh(&c, &(kept){-1, 0}, sums) / (double)(1ull << CHANCE_BITS));
    if (n > 1)
        build_heap(&c, reach_of(&c, (n < LOGPROBS ? n : LOGPROBS) - 1));
    for (int32_t i = 0; i < n && i < LOGPROBS && i - 1 < (n > 1 ? c.n : 1); i++) {
        int32_t id = i ? take(&c, i - 1) : token;
        to[2 * i] = (float)id;
        to[2 * i + 1] = id >= 0 && id < x->dims[1]
                            ? (float)((double)logit_of(&c, id) - (double)c.largest - total)
                            : 0;
    }
}

/* One row: the mask, the rules, the draw, then the log probabilities.  `best` is of the row as
 * the model made it; a row changed by rules has another largest entry. */
static void choose(const op_call *call, int64_t r, int32_t *ids)
{
    const op_view *in = call->in, *out = &call->out[TOKEN];
    candidates c = {.x = &in[X], .offset = r * in[X].stride[0], .ids = ids};
    float sampling[4];
    int32_t asks[ASKS];
    walk_load_row(&in[SAMPLING], r * in[SAMPLING].stride[0], 0, 4, sampling);
    for (int64_t i = 0; i < ASKS; i++)
        asks[i] =
            (int32_t)walk_load_int(&in[ASKED], r * in[ASKED].stride[0] + i * in[ASKED].stride[1]);
    uint64_t seed = (uint64_t)walk_load_int(&in[SEEDS], r * in[SEEDS].stride[0]);
    uint64_t number = (uint64_t)walk_load_int(&in[DRAWS], r * in[DRAWS].stride[0]);
    int64_t best = in[PEAKS].data ? peaks_largest(&in[PEAKS], r)
                                  : largest_in_row(&in[X], c.offset, 0, in[X].dims[1]);
    const int32_t *mask;
    int32_t token = RULES_LATE;
    if (find_mask(call, asks, (uint32_t)number, &mask)) {
        bool changed = choose_row(call, r, asks, mask, (double)sampling[TEMPERATURE], &c);
        token = draw(&c, changed ? largest_in_row(c.x, c.offset, 0, in[X].dims[1]) : best, sampling,
                     rng_u64(seed, number));
    }
    ((int32_t *)out->data)[r * out->stride[0]] = token;
    tell_shares(call, r, best, asks[ASK_LOGPROBS], asks[ASK_TOKEN] < 0 ? token : asks[ASK_TOKEN],
                ids);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++)
        choose(call, r, scratch);
}

/* Test data: a record that has every rule, each on or off at random; lists if it has room. */
static void fill_rules(int64_t width, int64_t columns, uint64_t seed, int32_t *words)
{
    uint64_t bits = rng_u64(seed, 0);
    /* penalties that lower logits, or raise them */
    static const float on[2][5] = {{1.3f, 0.5f, 0.25f, 1.5f, 0.7f}, {0.4f, -5, -2, 1.5f, 0.7f}},
                       off[5] = {1, 0, 0, 0, 1};
    float values[5];
    for (size_t i = 0; i < 5; i++)
        values[i] = bits >> i & 1 ? on[bits >> 11 & 1][i] : off[i];
    memcpy(words, values, sizeof values);
    words[RULES_PROMPT] = 5;
    words[RULES_LEAST] = (int32_t)(bits >> 5 & 15);
    const bool has_lists = width >= RULES_LISTS + 14;
    words[RULES_BIASES] = has_lists && bits & 512 ? 2 : 0;
    words[RULES_ALLOWED] = bits & 1024 && width > RULES_LISTS + 40 ? 20 : 0;
    words[RULES_ENDS] = has_lists ? 2 : 0;
    words[RULES_BANNED] = has_lists ? 8 : 0;
    int32_t *at = words + RULES_LISTS, *first = at;
    for (int32_t i = 0; i < words[RULES_BIASES]; i++, at += 2) {
        float bias = rng_normal(seed, (uint64_t)i);
        at[0] = (int32_t)columns - 1 - i;
        memcpy(at + 1, &bias, sizeof bias);
    }
    for (int32_t i = 0; i < words[RULES_ALLOWED] + words[RULES_ENDS]; i++)
        *at++ = (int32_t)fill_choose(seed, 100 + (uint64_t)i, columns);
    memcpy(at, (int32_t[]){1, 3, 2, 0, 2, 2, 2, 0}, (size_t)words[RULES_BANNED] * sizeof *at);
    for (at += words[RULES_BANNED]; at < first + width - RULES_LISTS; at++)
        *at = 0;
}

/* Test data: a mask for a draw, with a random half of the bits. */
static void fill_mask(int64_t width, uint32_t number, uint64_t seed, int32_t *words)
{
    words[MASK_NUMBER] = (int32_t)number;
    for (int64_t i = MASK_BITS; i < width; i++)
        words[i] = (int32_t)rng_u64(seed, (uint64_t)i);
}

/* Test data: a token of the history, one of few; one in sixteen is just beyond the vocabulary. */
static int32_t fill_history(int64_t columns, uint64_t bits)
{
    if (bits % 16 == 0)
        return bits & 16 ? -1 : (int32_t)columns;
    return (int32_t)((int64_t)(bits / 32 % 3) % columns);
}

/* Test data: rows that ask for nothing, log probabilities, rules, or both; the history is of few
 * tokens that repeat.  Rows of rules after those of choice are masks for draws 0, 1, 2 ..; one
 * in four is late. */
static void fill_asks(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed,
                      int32_t *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    int64_t columns = shape_input(g, op, X)->dims[1], width = input == HISTORY ? 1 : t->dims[1];
    int64_t choices = shape_input(g, op, CHOICE)->dims[0],
            masks = shape_input(g, op, RULES)->dims[0] - choices;
    for (int64_t i = 0; i < t->dims[0]; i++) {
        uint64_t bits = rng_u64(seed, (uint64_t)i);
        int32_t asks[ASKS] = {
            0, (int32_t)(bits >> 20 & 15), 5 + (int32_t)(bits >> 1 & 15), 0, bits & 1024 ? 3 : -1,
            0, (int32_t)(choices - 1 - i)};
        if (!(bits >> 24 & 3))
            asks[ASK_HISTORY] = (int32_t)(bits >> 1 & 1); /* shorter than a banned sequence */
        if (bits & 1 && i < choices)
            asks[ASK_RULES] = (int32_t)i + 1;
        if (bits & 32)
            asks[ASK_LOGPROBS] = (int32_t)(bits >> 6) & 15;
        if (i < masks)
            asks[ASK_MASK] = (int32_t)(choices + i) + 1;
        if (input == RULES && i >= choices)
            fill_mask(width, (uint32_t)(i - choices) + 1 + (bits % 4 == 0), seed + (uint64_t)i,
                      data + i * width);
        else if (input == RULES)
            fill_rules(width, columns, seed + (uint64_t)i, data + i * width);
        for (int64_t k = 0; k < width && input == ASKED; k++)
            data[i * width + k] = asks[k];
        if (input == HISTORY)
            data[i] = fill_history(columns, rng_u64(seed + 1, (uint64_t)i));
    }
}

/* Test data: every mixture of filters on and off, and greedy rows among them. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    if (input == ASKED || input == RULES || input == HISTORY) {
        fill_asks(g, op, input, seed, data);
        return;
    }
    for (int64_t i = 0; input != X && input != CHOICE && i < ir_elements(t); i++) {
        uint64_t bits = rng_u64(seed, (uint64_t)i);
        if (input == SAMPLING) {
            static const float top_k[] = {0, 20, 200, 256, 700};
            float values[4] = {(float)(bits % 4) * 0.5f, top_k[bits % 5],
                               1 - (float)(bits % 5) * 0.1f, (float)(bits % 2) * 0.05f};
            ((float *)data)[i] = values[i % 4];
        } else {
            fill_store(t, i, input == DRAWS ? i : (int64_t)bits, data);
        }
    }
}

static const op_operand in[] = {
    {"logits", 0}, {"sampling", 0}, {"seeds", 0},  {"draws", 0},           {"asks", 0},
    {"rules", 0},  {"history", 0},  {"choice", 0}, {"peaks", OP_OPTIONAL},
};
static const op_operand out[] = {{"token", 0}, {"choice", 0}, {"logprobs", 0}};

#define ASKS_OF(rows)                                                \
    "input %s : f32[" rows ", 4] live=rows\ninput %seed : i64[" rows \
    "] live=rows\ninput %draw : i32[" rows "] live=rows\ninput %a : i32[" rows ", 7] live=rows\n"
#define ROWS(rows, logits) "input %x : " logits " live=rows\n" ASKS_OF(rows)
/* with the peaks of a product, which is exact since it has one term */
#define PEAKED(rows, columns, choices)                                                           \
    {                                                                                            \
        "input %q : bf16[" rows ", 1] live=rows\nconst %w : bf16[" columns                       \
        ", 1]\n%x, %p = logits(%q, %w)\n" ASKS_OF(                                               \
            rows) "input %r : i32[" choices ", 64]\ninput %h : i32[40]\nstate %c : f32[" choices \
                  ", " columns                                                                   \
                  "]\n%t, %choice, %l = sample(%x, %s, %seed, %draw, %a, %r, %h, %c, %p)\n"      \
    }
#define CASE(rows, columns, dtype, words)                                                  \
    {                                                                                      \
        ROWS(rows, dtype "[" rows ", " columns "]")                                        \
        "input %r : i32[" rows ", " words "]\ninput %h : i32[40]\nstate %c : f32[" rows    \
        ", " columns "]\n%t, %choice, %p = sample(%x, %s, %seed, %draw, %a, %r, %h, %c)\n" \
    }
static const op_case cases[] = {
    CASE("1", "1003", "f32", "64"),
    CASE("7", "1003", "f32", "64"),
    CASE("16", "49", "bf16", "30"),
    PEAKED("5", "300", "3"),
    PEAKED("7", "5", "3"),
    PEAKED("9", "20003", "4"),
    CASE("5", "20003", "f32", "64"),
    {ROWS("6",
          "f32[6, 1003]") "input %r : i32[12, 64]\ninput %h : i32[40]\nstate %c : f32[6, 1003]\n"
                          "%t, %choice, %l = sample(%x, %s, %seed, %draw, %a, %r, %h, %c)\n"}};

const op_def op_sample = {
    .name = "sample",
    .summary = "draw a token: temperature, top_k, top_p, min_p, a random number by seed and count; "
               "rules, shares",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_DATA_DEPENDENT | OP_WRITES_APART,
    .infer = infer,
    .axes = shape_axes_first,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
