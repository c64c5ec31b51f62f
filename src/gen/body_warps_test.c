/* ctest: slow */
/* body_warps_test.c - the fast device bodies on the host: pages, loaders, warps and products
 * emulated, against `ref`.
 *
 * The operators' cases that a body of rank above 0 takes, and shapes of a model (Qwen3-0.6B), go
 * into one source for each architecture, which the C++ compiler that is there turns into a shared
 * object.  For each case, with random operands, everything alive and only some, weights packed as
 * on the GPU:
 *   - any split of output 0, as a list of tasks on one worker, gives what ref gives, within what
 *     the dtype allows;
 *   - another order in which warps run and copies arrive gives the same bits;
 *   - nothing else is written, every page that is loaded is released, every wait ends;
 *   - of the code for many tokens a task needs no more than its record says (gen_body.forms): the
 *     rest is not there;
 *   - tokens go to experts evenly, or most of them to few, or so many to each as fill chunks;
 *   - what must not be read is NaN: dead rows, empty parts, free pages, keys after a context,
 *     memory around the operands, and before the task's event its first operand, and weights that
 *     the step makes;
 *   - nothing is read beyond the end of a residual;
 *   - where a body polls operands that carry their readiness, the same when these come piece by
 *     piece while it runs;
 *   - a token has the same bits in graphs of any number of tokens up to 16, whatever shares the
 *     step with it: products, attention of which each token's own context decides how it is cut,
 *     and the sum of its parts.
 */
#include "warps_devices.h"

#include "gen/sharing.h"

/* ---- operands ---- */

/* What is carried is never RT_EMPTY: numbers that name nothing are others than -1 there. */
static void avoid_empty(bed *b)
{
    for (uint32_t i = 0; i < b->op->n_in; i++) {
        const ir_tensor *t = b->op->in[i] == IR_NONE ? NULL : tensor(b, b->op->in[i]);
        if (!t || !(b->s->use->body->carries >> i & 1) || t->dtype != IR_I32)
            continue;
        int32_t *at = b->values.data[b->op->in[i]];
        for (int64_t k = 0; k < ir_elements(t); k++)
            at[k] = at[k] == -1 ? -2 : at[k];
    }
}

/* Entries of axis 0 that are alive. */
static int64_t count_alive(const bed *b, const ir_tensor *t)
{
    int64_t live = t->live == IR_ALL ? t->dims[0] : (int64_t)b->values.live[t->live];
    return live < t->dims[0] ? live : t->dims[0];
}

/* NaN, or integers that nothing has, into the rows of inputs that are not alive. */
static void poison_dead(bed *b)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++) {
        const ir_tensor *t = tensor(b, i);
        if (t->kind != IR_INPUT || t->live == IR_ALL)
            continue;
        size_t row = (size_t)ir_bytes(t) / (size_t)t->dims[0],
               first = (size_t)count_alive(b, t) * row;
        memset((char *)b->values.data[i] + first, 0xff, (size_t)ir_bytes(t) - first);
    }
}

typedef struct operand {
    const ir_tensor *tensor; /* NULL: absent */
    void *data;
} operand;

static operand named(const bed *b, const char *name)
{
    for (uint32_t i = 0; i < b->op->n_in; i++)
        if (b->op->in[i] != IR_NONE && strcmp(op_operand_of(b->op->def, i)->name, name) == 0)
            return (operand){tensor(b, b->op->in[i]), b->values.data[b->op->in[i]]};
    return (operand){NULL, NULL};
}

/* Of the parts that are to be folded each token has a range of splits, sometimes all; the others
 * say that they hold nothing, and are NaN. */
static void empty_parts(bed *b)
{
    operand x = named(b, "part"), lse = named(b, "lse");
    if (!lse.tensor || !x.tensor)
        return;
    int64_t tokens = lse.tensor->dims[0], splits = lse.tensor->dims[1], heads = lse.tensor->dims[2];
    size_t part = (size_t)ir_bytes(x.tensor) / (size_t)(tokens * splits);
    for (int64_t t = 0; t < tokens; t++) {
        int64_t lo = (int64_t)next_random(b, (uint64_t)splits),
                n = 1 + (int64_t)next_random(b, (uint64_t)splits);
        for (int64_t i = 0; i < splits; i++) {
            if (n == splits || (i >= lo && i < lo + n))
                continue;
            memset((char *)x.data + (size_t)(t * splits + i) * part, 0xff, part);
            for (int64_t head = 0; head < heads; head++)
                ((float *)lse.data)[(t * splits + i) * heads + head] = -INFINITY;
        }
    }
}

/* Where each token of attention_split has a slot of its own, the contexts of half of them are short
 * and end next to where pages do, or their halves: such pieces meet long ones. */
static void mix_contexts(bed *b)
{
    static const int32_t ends[] = {0, 1, 31, 32, 33, 63, 64, 65};
    operand positions = named(b, "positions"), pages = named(b, "pages");
    if (strcmp(b->op->def->name, "attention_split") != 0 ||
        positions.tensor->dims[0] > pages.tensor->dims[0])
        return;
    for (int64_t t = 0; t < positions.tensor->dims[0]; t++)
        if (next_random(b, 2))
            ((int32_t *)positions.data)[t] = ends[next_random(b, 8)];
}

/* Positions of each page that a token alive sees. */
static void count_seen(const bed *b, const ir_tensor *cache, int64_t *seen)
{
    operand positions = named(b, "positions"), slots = named(b, "slots"), pages = named(b, "pages");
    int64_t n_slots = pages.tensor->dims[0], n_pages = pages.tensor->dims[1],
            alive = count_alive(b, positions.tensor);
    for (int64_t i = 0; i < alive; i++) {
        int32_t slot = ((const int32_t *)slots.data)[i],
                position = ((const int32_t *)positions.data)[i];
        for (int64_t k = 0; slot >= 0 && slot < n_slots && k < n_pages; k++) {
            int32_t page = ((const int32_t *)pages.data)[slot * n_pages + k];
            int64_t n = (int64_t)position + 1 - k * cache->dims[2];
            n = n < cache->dims[2] ? n : cache->dims[2];
            if (page >= 0 && page < cache->dims[0] && n > seen[page])
                seen[page] = n;
        }
    }
}

/* NaN into keys that no token sees, and into values of pages where no token sees any.  Of a page
 * that is seen in part all values are multiplied, some of them with 0; where keys are the values,
 * they are not. */
static void poison_caches(bed *b)
{
    operand k = named(b, "k_cache"), v = named(b, "v_cache");
    if (!k.tensor || k.tensor->dtype != IR_BF16 || !named(b, "pages").tensor)
        return;
    const int64_t *dims = k.tensor->dims;
    size_t row = (size_t)dims[3] * sizeof(uint16_t);
    int64_t *seen = calloc((size_t)dims[0], sizeof *seen);
    assert_non_null(seen);
    count_seen(b, k.tensor, seen);
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2]; i++) {
        int64_t page = i / dims[2] / dims[1];
        if (i % dims[2] >= seen[page])
            memset((char *)k.data + (size_t)i * row, 0xff, row);
        if (!seen[page] && v.tensor)
            memset((char *)v.data + (size_t)i * row, 0xff, row);
    }
    free(seen);
}

/* Is position p of an entry of a cache in one piece read?  If a row of the mask shows it, and no
 * token takes it. */
static bool is_read(operand index, operand mask, int64_t entry, int64_t p, int64_t length)
{
    int64_t entries = mask.tensor->rank == 4 ? mask.tensor->dims[0] : 1;
    int64_t own = ir_elements(mask.tensor) / length / entries;
    bool seen = false;
    for (int64_t i = 0; i < ir_elements(index.tensor); i++) {
        op_view v = {.data = index.data, .dtype = index.tensor->dtype};
        int64_t taken =
            v.dtype == IR_I64 ? ((const int64_t *)v.data)[i] : ((const int32_t *)v.data)[i];
        if (taken == p || taken + length == p)
            return false;
    }
    for (int64_t r = 0; r < own; r++) {
        int64_t row = entries == 1 ? r : entry * own + r;
        seen = seen || ((const float *)mask.data)[row * length + p] != -INFINITY;
    }
    return seen;
}

/* NaN into the positions of caches in one piece that are not read. */
static void poison_pieces(bed *b)
{
    operand k = named(b, "k_cache"), v = named(b, "v_cache"), index = named(b, "index"),
            mask = named(b, "mask");
    if (!index.tensor || !k.tensor || !mask.tensor || mask.tensor->dtype != IR_F32)
        return;
    const int64_t *dims = k.tensor->dims;
    size_t row = (size_t)dims[3] * ir_dtype_table[k.tensor->dtype].block_bytes;
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2]; i++)
        if (!is_read(index, mask, i / dims[2] / dims[1], i % dims[2], dims[2])) {
            memset((char *)k.data + (size_t)i * row, 0xff, row);
            memset((char *)v.data + (size_t)i * row, 0xff, row);
        }
}

/* Experts have so many pairs, in turn, from a random expert on; the last one has what is left.
 * Where body_expert_tile and body_expert_unpack cut pairs in chunks the numbers meet. */
static void deal_pairs(bed *b, operand ids, int64_t experts)
{
    static const int64_t sizes[] = {1, 64, 0, 65, 7, 129};
    const int64_t pairs = ir_elements(ids.tensor), first = (int64_t)next_random(b, 6),
                  begin = (int64_t)next_random(b, (uint64_t)experts);
    int64_t expert = 0, left = sizes[first];
    for (int64_t i = 0; i < pairs; i++) {
        int32_t *id = (int32_t *)ids.data + i;
        while (left == 0 && expert + 1 < experts)
            left = sizes[(first + ++expert) % 6];
        left--;
        if (*id >= 0 && *id < experts)
            *id = (int32_t)((begin + expert) % experts);
    }
}

/* Routing is even in one of three rounds; in another most pairs go to few experts, in one of four
 * of these all to one or two; in the third experts have certain numbers of pairs. */
static void skew_experts(bed *b)
{
    operand ids = named(b, "ids"), w = named(b, "w0");
    const uint64_t how = ids.tensor && w.tensor ? next_random(b, 3) : 0;
    if (how == 0)
        return;
    const int64_t experts = w.tensor->dims[0];
    if (how == 1) {
        deal_pairs(b, ids, experts);
        return;
    }
    const bool few = next_random(b, 4) == 0;
    const int32_t first = (int32_t)next_random(b, (uint64_t)experts);
    for (int64_t i = 0; i < ir_elements(ids.tensor); i++) {
        int32_t *id = (int32_t *)ids.data + i;
        if (*id < 0 || *id >= experts)
            continue;
        *id = few ? (first + *id % 2) % (int32_t)experts
                  : (int32_t)(*id * (int64_t)*id / experts * *id / experts);
    }
}

/* ---- running ---- */

/* The inputs that this body may poll, and if it waits for their event the first input too, and the
 * second if it is the matrix of a product.  How many. */
static unsigned find_late(const bed *b, bool carried, late_bytes *late)
{
    const gen_use *use = b->s->use;
    uint32_t which = use->body->carries | !carried;
    if (use->body->of_rows)
        which |= 1u << gen_operand_of_w(&use->pack);
    unsigned n = 0;
    for (uint32_t i = 0; i < b->op->n_in; i++)
        if (which >> i & 1 && b->op->in[i] != IR_NONE)
            late[n++] = (late_bytes){b->values.data[b->op->in[i]],
                                     (size_t)ir_bytes(tensor(b, b->op->in[i]))};
    return n;
}

static bool has_halves(const ir_tensor *t)
{
    return t->dtype == IR_BF16 || t->dtype == IR_F16;
}

/* May its operands be carried?  Rows and boxes must be of whole words (src/cuda/carriers.c). */
static bool can_carry(const bed *b, const ir_box *boxes, size_t n)
{
    const uint32_t which = b->s->use->body->carries, last = tensor(b, b->op->out[0])->rank - 1;
    for (size_t i = 0; i < n && has_halves(tensor(b, b->op->out[0])); i++)
        if (boxes[i].lo[last] % 2 || boxes[i].hi[last] % 2)
            return false;
    for (uint32_t i = 0; i < b->op->n_in; i++) {
        if (!(which >> i & 1) || b->op->in[i] == IR_NONE)
            continue;
        const ir_tensor *t = tensor(b, b->op->in[i]);
        if (has_halves(t) && t->dims[t->rank - 1] % 2)
            return false;
    }
    return which != 0;
}

/* Run the tasks one after the other as one worker's list. carried: operands come word by word,
 * late and in random order, and no event says when. */
static void run_device(const device *d, const bed *b, const ir_box *boxes, size_t n, void *packed,
                       uint64_t seed, bool carried)
{
    static const char *const what[] = {"", "waits for ever", "leaves pages that were loaded",
                                       "writes after its scratch",
                                       "releases a page too often or too seldom"};
    rt_entry entries[MOST_BOXES];
    rt_map maps[RT_MAPS];
    uint64_t forms[MOST_BOXES] = {0};
    const gen_body *body = b->s->use->body; /* of a subject's two rounds one is mapped */
    const bool mapped = body->maps && (b->seed % 2 || body->by_maps);
    const bool boxed = mapped && d->arch->features & GEN_WGMMA;
    for (size_t i = 0; i < n; i++) {
        make_entry(b, &boxes[i], packed, &entries[i]);
        forms[i] = forms_of(b, d->arch, d->halves, &boxes[i], boxed);
        if (mapped)
            make_maps(b, packed, maps, &entries[i]);
        if (b->squares) {
            entries[i].at[RT_SQUARES_OF_X] = (rt_u64)(uintptr_t)b->squares;
            entries[i].at[RT_SQUARES_N] = b->n_squares;
        }
    }
    d->allow(forms, boxed, is_centred(b->op));
    entries[n - 1].is_last = 1;
    for (size_t i = 0; i < n && carried; i++) {
        entries[i].quiet = 1;
        entries[i].carried = b->s->use->body->carries;
    }
    late_bytes late[MOST_LATE];
    unsigned n_late = find_late(b, carried, late);
    int result = d->run(entries, (unsigned)n, b->values.live,
                        d->source.instances[b->s->instance].scratch_bytes, late, n_late, seed);
    if (result)
        fail_msg("%s: %s case %u by %s %s", d->arch->name, b->s->def->name, b->s->number,
                 b->s->use->body->name, what[result]);
}

/* Parts of a split that has nothing of a token hold nothing in particular: as before. */
static void forget_empty_parts(const bed *b, void **expected, void *const *start)
{
    ir_tensor_id part = b->op->out[0], lse = b->op->out[1];
    if (strcmp(b->op->def->name, "attention_split") != 0 &&
        strcmp(b->op->def->name, "attention_parts") != 0)
        return;
    int64_t heads = tensor(b, lse)->dims[2], n = ir_elements(tensor(b, lse));
    size_t bytes = (size_t)ir_bytes(tensor(b, part)) / (size_t)n;
    for (int64_t i = 0; heads && i < n; i++)
        if (((const float *)expected[lse])[i] == -INFINITY) {
            memcpy((char *)expected[part] + (size_t)i * bytes,
                   (const char *)start[part] + (size_t)i * bytes, bytes);
            memcpy((char *)b->values.data[part] + (size_t)i * bytes,
                   (const char *)start[part] + (size_t)i * bytes, bytes);
        }
}

/* The largest logit of 64 columns and its column, exactly as the device's own logits have it: two
 * that are nearly the same may have changed places. */
static void expect_peaks(const bed *b, void **expected)
{
    ir_tensor_id logits = b->op->out[0], peaks = b->op->out[1];
    if (strcmp(b->op->def->name, "logits") != 0)
        return;
    int64_t columns = tensor(b, logits)->dims[1], blocks = tensor(b, peaks)->dims[1],
            rows = alive_box(b).hi[0];
    for (int64_t i = 0; i < rows * blocks; i++) {
        const float *row = (const float *)b->values.data[logits] + i / blocks * columns;
        float *pair = (float *)expected[peaks] + i * 2;
        int64_t first = i % blocks * 64, end = first + 64 < columns ? first + 64 : columns,
                best = first;
        if (isnan(pair[1])) /* not of the box */
            continue;
        for (int64_t k = first; k < end; k++)
            best = row[k] > row[best] ? k : best;
        pair[0] = row[best];
        pair[1] = (float)best;
    }
    if (memcmp(expected[peaks], b->values.data[peaks], (size_t)ir_bytes(tensor(b, peaks))) != 0)
        fail_msg("logits case %u: peaks are not those of the logits", b->s->number);
}

/* ---- the test ---- */

/* Room for roundings to bf16 that ref does not do, or does to slightly different sums: the shares
 * of a tiled attention, which tensor cores multiply by values; queries and keys, whose scores then
 * differ; weights of experts, which stay f32; weights in blocks. */
static double slack_of(const bed *b, const ir_tensor *t)
{
    enum { CHUNKS = 2 }; /* of delta_rule */
    const char *name = b->op->def->name;
    if (strcmp(name, "unpack") == 0)
        return -slack(t->dtype); /* none: the same numbers */
    if (b->s->use->pack.form) {
        /* ref has the weights in f32; those of many tokens are made of a scale and an addend that
         * are rounded, too.  Of two sums that are multiplied the one's error counts as many times
         * as the other is large, however small the result is. */
        const double each = b->s->use->body->by_maps ? 0x1p-6 : 0x1p-7;
        const uint32_t glu = strcmp(name, "expert_linear") == 0 ? 0 : 1; /* its attribute */
        return b->s->use->pack.n_weights > 1 && b->op->attributes[glu].s.n ? 4 * each : each;
    }
    if (strcmp(name, "route") == 0)
        return tensor(b, b->op->in[0])->dtype == IR_BF16 && b->op->attributes[2].i ? slack(IR_BF16)
                                                                                   : 0; /* round */
    if (strcmp(name, "attention") == 0)
        return 0x1p-8;
    if (strcmp(name, "delta_rule") == 0 && b->op->attributes[CHUNKS].i)
        /* y alone is made of bf16, not the state.  Each term of a chunk's sum is off by 2^-8 of
         * itself, since both factors are rounded.  Where terms cancel, their errors do not: with
         * y's own rounding that is 2^-8 of the largest y. */
        return t->dtype == IR_BF16 ? 3 * 0x1p-8 : 0x1p-13;
    if (strcmp(name, "sdpa") == 0)
        return slack(tensor(b, b->op->in[0])->dtype) / 2; /* shares have the dtype of values */
    if (strcmp(name, "attention_split") == 0 || strcmp(name, "attention_parts") == 0)
        return 0x1p-7; /* a share may be of few positions: their errors do not average out */
    return strcmp(name, "attention_cache") == 0 ? 0x1p-9 : 0;
}

/* Absolute error of gelu: the device takes 1 + erf, which is 0 or its last bit below -5, where ref
 * keeps the tail: up to 6 x 2^-24, times what a gate multiplies. A box may hold nothing else. */
static double tail_of(const bed *b)
{
    const op_def *def = b->op->def;
    for (uint32_t i = 0; i < def->n_attributes; i++) {
        const char *name = def->attributes[i].name;
        bool gate = strcmp(name, "glu") == 0;
        if ((gate || strcmp(name, "act") == 0) && str_is(b->op->attributes[i].s, "gelu"))
            return gate ? 0x1p-14 : 0x1p-21;
    }
    return 0;
}

/* Run the boxes as tasks of one worker and compare everything with what is expected. */
static void run_and_compare(const device *d, bed *b, const ir_box *boxes, size_t n, void *packed,
                            uint64_t seed, bool carried, void **start, void **expected)
{
    load(b, start);
    reorder_caches(b, true);
    run_device(d, b, boxes, n, packed, seed, carried);
    reorder_caches(b, false);
    forget_empty_parts(b, expected, start);
    expect_peaks(b, expected);
    b->tail = tail_of(b);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (expected[i]) {
            b->slack = slack_of(b, tensor(b, i));
            compare(b, i, expected[i], start[i]);
        }
}

/* What ref makes of the part of a box that is alive. */
static void **expect(bed *b, ir_box box, void **start)
{
    int64_t end = alive_box(b).hi[0];
    load(b, start);
    box.hi[0] = box.hi[0] < end ? box.hi[0] : end;
    if (!ir_box_is_empty(&box, tensor(b, b->op->out[0])->rank)) /* ref of none would write a row */
        run_ref(b, &box);
    return save(b);
}

/* One box alone: nothing is written outside. */
static void check_one_box(const device *d, bed *b, const ir_box *box, void *packed, void **start)
{
    void **expected = expect(b, *box, start);
    run_and_compare(d, b, box, 1, packed, b->seed, false, start, expected);
    drop(b, expected);
}

/* One case of one device: operands that may not be read are poisoned, tasks are a random cut,
 * and every round has other delays. all_alive: no row is dead. */
static void check_subject(const device *d, const subject *s, uint64_t seed, bool all_alive)
{
    bed b;
    const ir_tensor *y = &s->g->tensors.at[s->g->ops.at[s->g->ops.n - 1].out[0]];
    ir_box boxes[MOST_BOXES], whole = ir_box_whole(y);
    set_up(&b, s, seed, all_alive, 0, (uint32_t)y->dims[0]);
    b.kv_at = d->kv_at;
    round_scale(&b);
    skew_experts(&b);
    avoid_empty(&b);
    empty_parts(&b);
    mix_contexts(&b);
    poison_dead(&b);
    poison_caches(&b);
    poison_pieces(&b);
    end_memory(&b);
    lengthen_x(&b);
    if (s->use->body->norm && gen_takes_squares(b.g, (ir_op_id)(b.g->ops.n - 1), s->use) &&
        next_random(&b, 2))
        give_squares(&b, alive_box(&b).hi[0], 1);
    void **start = save(&b), **first = NULL, *packed = pack_weights(&b, &s->use->pack);
    void **expected = expect(&b, whole, start);
    size_t n = split(&b, whole, boxes);
    const uint64_t rounds = can_carry(&b, boxes, n) ? 3 : 2; /* the last one carried */
    for (uint64_t round = 0; round < rounds; round++) {
        run_and_compare(d, &b, boxes, n, packed, rng_u64(seed, round), round == 2, start, expected);
        for (ir_tensor_id i = 0; first && i < b.g->tensors.n; i++)
            if (first[i] &&
                memcmp(first[i], b.values.data[i], (size_t)ir_bytes(tensor(&b, i))) != 0)
                fail_msg("%s case %u: another order of warps gives different bits", s->def->name,
                         s->number);
        if (!first)
            first = save(&b);
    }
    /* of experts, rows of pairs are shared out, sums of pairs are not */
    const size_t alone = (size_t)next_random(&b, n); /* of small cases each is */
    for (size_t i = 0; i < n && n > 1 && !(s->use->body->shares && y->rank == 3); i++)
        if (i == alone || s->number >= EDGES)
            check_one_box(d, &b, &boxes[i], packed, start);
    if (packed)
        free_fenced(packed, s->use->pack.n_bytes);
    drop(&b, start);
    drop(&b, expected);
    drop(&b, first);
    drop_residual(&b);
    drop_squares(&b);
    shorten_x(&b);
    tear_down(&b);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All cases of a device, each with all rows alive and with some. */
static void check_device(const device *d)
{
    if (!d->code)
        check_skip("there is no C++ compiler");
    for (size_t i = 0; i < d->subjects.n && d->subjects.at[i].number < COMPANY; i++) {
        const subject *s = &d->subjects.at[i];
        double begin = seconds();
        for (uint64_t round = 0; round < 2; round++)
            check_subject(d, s, base_seed + round, round == 0);
        if (getenv("MPK_VERBOSE"))
            print_message("%s: %s case %u by %s, %.2f s\n", d->arch->name, s->def->name, s->number,
                          s->use->body->name, seconds() - begin);
    }
}

/* ---- a token in company ---- */

static size_t row_bytes(const ir_tensor *t)
{
    return (size_t)ir_bytes(t) / (size_t)t->dims[0];
}

/* Everything alive, and the weights packed. */
static void *set_up_whole(const device *d, bed *b, const subject *s, uint64_t seed)
{
    set_up(b, s, seed, true, 0, 0);
    b->kv_at = d->kv_at;
    round_scale(b);
    avoid_empty(b);
    empty_parts(b);
    return pack_weights(b, &s->use->pack);
}

/* What belongs to token from[i] of `all` becomes that of token i of `few`; weights and state are
 * the same. */
static void take_tokens(const bed *all, bed *few, const uint32_t *from)
{
    for (ir_tensor_id i = 0; i < all->g->tensors.n; i++) {
        const ir_tensor *a = tensor(all, i), *f = tensor(few, i);
        if (!is_root(all, i) || a->kind == IR_TEMP)
            continue;
        if (a->live == IR_ALL)
            memcpy(few->values.data[i], all->values.data[i], (size_t)ir_bytes(a));
        for (int64_t t = 0; a->live != IR_ALL && t < f->dims[0]; t++)
            memcpy((char *)few->values.data[i] + (size_t)t * row_bytes(f),
                   (char *)all->values.data[i] + from[t] * row_bytes(a), row_bytes(a));
    }
}

/* Does a split hold any position of the token's context? An empty one has no weight. */
static bool holds(const float *lse, int64_t split, int64_t heads)
{
    return lse[split * heads] != -INFINITY;
}

/* Move the parts of a head of a token to other splits, in the same order: split s has its part at
 * parts + s * apart and its lse at lse[s * heads]. */
static void move_head(bed *b, char *parts, size_t apart, size_t bytes, float *lse, int64_t splits,
                      int64_t heads)
{
    /* nothing at or above `free` moves any more */
    for (int64_t s = splits - 2, free = splits - 1; s >= 0; s--) {
        if (holds(lse, free, heads) || (holds(lse, s, heads) && next_random(b, 4) == 0))
            free = s;
        if (free == s || !holds(lse, s, heads))
            continue;
        memcpy(parts + (size_t)free * apart, parts + (size_t)s * apart, bytes);
        memset(parts + (size_t)s * apart, 0xff, bytes);
        lse[free-- * heads] = lse[s * heads];
        lse[s * heads] = -INFINITY;
    }
}

/* Which splits hold a token's parts depends on its company. Move them to other splits, in the
 * same order: the folded result must not change. */
static void move_parts(bed *b)
{
    operand x = named(b, "part"), l = named(b, "lse");
    if (!x.tensor || !l.tensor)
        return;
    const int64_t splits = l.tensor->dims[1], heads = l.tensor->dims[2];
    const size_t part = row_bytes(x.tensor) / (size_t)splits, bytes = part / (size_t)heads;
    for (int64_t t = 0; t < l.tensor->dims[0]; t++)
        for (int64_t head = 0; head < heads; head++)
            move_head(b, (char *)x.data + (size_t)t * row_bytes(x.tensor) + (size_t)head * bytes,
                      part, bytes, (float *)l.data + t * splits * heads + head, splits, heads);
}

/* Parts of token t that hold anything and what they say of themselves, in the order of splits; the
 * rest becomes 0. */
static void gather_parts(const bed *b, int64_t t, char *to, float *lse_to)
{
    const ir_tensor *x = tensor(b, b->op->out[0]), *l = tensor(b, b->op->out[1]);
    const int64_t splits = l->dims[1], heads = l->dims[2];
    const size_t part = row_bytes(x) / (size_t)splits;
    const char *from = (const char *)b->values.data[b->op->out[0]] + (size_t)t * row_bytes(x);
    const float *lse = (const float *)b->values.data[b->op->out[1]] + t * splits * heads;
    memset(to, 0, row_bytes(x));
    memset(lse_to, 0, row_bytes(l));
    for (int64_t s = 0, n = 0; s < splits; s++)
        if (holds(lse, s, heads)) {
            memcpy(to + (size_t)n * part, from + (size_t)s * part, part);
            memcpy(lse_to + n++ * heads, lse + s * heads, (size_t)heads * sizeof *lse);
        }
}

/* Equal parts in the same order, whichever splits hold them. */
static bool same_parts(const bed *all, int64_t t, const bed *few, int64_t u)
{
    const size_t n = row_bytes(tensor(all, all->op->out[0])),
                 n_lse = row_bytes(tensor(all, all->op->out[1]));
    char *a = malloc(2 * n);
    float *l = malloc(2 * n_lse);
    assert_true(a && l);
    gather_parts(all, t, a, l);
    gather_parts(few, u, a + n, (float *)((char *)l + n_lse));
    bool same = memcmp(a, a + n, n) == 0 && memcmp(l, (char *)l + n_lse, n_lse) == 0;
    free(a);
    free(l);
    return same;
}

static bool same_rows(const bed *all, int64_t t, const bed *few, int64_t u)
{
    bool same = true;
    for (uint32_t o = 0; o < all->op->n_out; o++) {
        const ir_tensor *y = tensor(all, all->op->out[o]);
        const char *a = all->values.data[all->op->out[o]], *f = few->values.data[all->op->out[o]];
        same = same && memcmp(a + (size_t)t * row_bytes(y), f + (size_t)u * row_bytes(y),
                              row_bytes(y)) == 0;
    }
    return same;
}

/* Tokens of a slot begin up to three positions before a page, so that the step has some of either
 * page. */
static void cross_pages(bed *b)
{
    operand p = named(b, "positions"), s = named(b, "slots");
    for (int64_t t = 0; p.tensor && t < p.tensor->dims[0]; t++) {
        int32_t *position = (int32_t *)p.data + t;
        const int32_t *slot = (const int32_t *)s.data + t;
        if (t > 0 && slot[0] == slot[-1])
            position[0] = position[-1] + 1;
        else
            position[0] = 64 + 64 * (int32_t)next_random(b, 7) - (int32_t)next_random(b, 4);
    }
}

/* The caches of `few` as the step of `all` has left them: tokens that came before are there. */
static void take_caches(const bed *all, bed *few)
{
    for (ir_tensor_id i = 0; i < all->g->tensors.n; i++)
        if (is_root(all, i) && tensor(all, i)->kind == IR_STATE)
            memcpy(few->values.data[i], all->values.data[i], (size_t)ir_bytes(tensor(all, i)));
}

/* Some tokens of the graph of many, in any order, by themselves.  Of a slot with four tokens no two
 * are neighbours then, unless they were before. */
static void check_company(const device *d, const subject *many, const subject *some, uint64_t seed)
{
    bed all, few;
    ir_box boxes[MOST_BOXES];
    uint32_t from[16];
    void *packed = set_up_whole(d, &all, many, seed), *packed_few;
    const bool split_attention = strcmp(many->def->name, "attention_split") == 0 ||
                                 strcmp(many->def->name, "attention_parts") == 0;
    set_up(&few, some, seed, true, 0, 0);
    few.kv_at = d->kv_at;
    int64_t n_all = tensor(&all, all.op->out[0])->dims[0],
            n = tensor(&few, few.op->out[0])->dims[0];
    static const uint32_t steps[] = {1, 5, 7, 9, 11};
    uint32_t shift = (uint32_t)next_random(&few, (uint64_t)n_all),
             step = steps[next_random(&few, 5)];
    cross_pages(&all);
    for (int64_t t = 0; t < n; t++) /* 16 tokens: odd steps meet each once */
        from[t] = (shift + (uint32_t)t * step) % (uint32_t)n_all;
    take_tokens(&all, &few, from);
    move_parts(&few);
    packed_few = pack_weights(&few, &some->use->pack);
    reorder_caches(&all, true);
    reorder_caches(&few, true);
    size_t n_boxes = split(&all, ir_box_whole(tensor(&all, all.op->out[0])), boxes);
    run_device(d, &all, boxes, n_boxes, packed, seed, false);
    take_caches(&all, &few);
    n_boxes = split(&few, ir_box_whole(tensor(&few, few.op->out[0])), boxes);
    run_device(d, &few, boxes, n_boxes, packed_few, seed + 1, false);
    for (int64_t t = 0; t < n; t++)
        if (!(split_attention ? same_parts : same_rows)(&all, from[t], &few, t))
            fail_msg("%s: %s case %u: token %u of %lld has other bits among %lld", d->arch->name,
                     some->def->name, some->number, from[t], (long long)n_all, (long long)n);
    if (packed) {
        free_fenced(packed, many->use->pack.n_bytes);
        free_fenced(packed_few, some->use->pack.n_bytes);
    }
    tear_down(&all);
    tear_down(&few);
}

/* Tokens of a full step, alone in steps of fewer tokens: the same bits, for each body that
 * promises it. */
static void test_company(void **state)
{
    size_t first = 0;
    (void)state;
    if (!hopper.code)
        check_skip("there is no C++ compiler");
    while (hopper.subjects.at[first].number < COMPANY)
        first++;
    for (size_t i = first; i < hopper.subjects.n; i++) {
        const subject *many =
            &hopper.subjects
                 .at[first + (i - first) / COMPANY_SIZES * COMPANY_SIZES + COMPANY_SIZES - 1];
        check_company(&hopper, many, &hopper.subjects.at[i], base_seed + i);
    }
}

static void test_with_warpgroups(void **state)
{
    (void)state;
    check_device(&hopper);
}

static void test_without_warpgroups(void **state)
{
    (void)state;
    check_device(&blackwell);
}

static void test_lanes_copy(void **state)
{
    (void)state;
    check_device(&ampere);
}

static void test_few_pages(void **state)
{
    (void)state;
    check_device(&geforce);
}

static void test_f16(void **state)
{
    (void)state;
    check_device(&hopper_f16);
    check_device(&blackwell_f16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_company),
                                       cmocka_unit_test(test_with_warpgroups),
                                       cmocka_unit_test(test_without_warpgroups),
                                       cmocka_unit_test(test_lanes_copy),
                                       cmocka_unit_test(test_few_pages),
                                       cmocka_unit_test(test_f16)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, set_up_devices, NULL));
}
