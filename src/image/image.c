/* image.c - lay out a compiled program as one block, and take such a block apart without trusting
 * it.
 *
 *   rt_header        magic, version, n_bytes, checksum; where each section begins and how many
 *                    entries it has
 *   RT_GRAPHS        rt_graph: which entries of the other sections are a graph's
 *   RT_TASKS, RT_EVENTS, RT_OPS, RT_RANGES, RT_LISTS      what runs, and who runs it
 *   RT_PLACES        where each tensor lies, for the host
 *   RT_NAMES         weights: name, dtype, dims
 *   RT_TEXT          the tensor programs as text, and the names of weights
 *
 * A section begins at a multiple of 64 bytes and holds the entries of all graphs, one graph after
 * the other.  Two graphs for two workers, with lists of 3, 1, 2 and 0 tasks:
 *
 *   RT_RANGES   [0, 3) [3, 4)   [4, 6) [6, 6)        graph 1 has first_range = 2
 *   RT_LISTS    0 2 3  1        0 1                  tasks of a graph, counted from its first
 *
 * Writing: count the entries of every section, allocate once, fill.  Reading: every number is
 * checked against the table that it points into; then the task graphs are built again from the
 * tables and proved by the compiler's own verifiers (tg_verify, tg_verify_memory).  Cost: linear,
 * plus the proofs. Relies on the text form of tensor programs (ir_print, ir_parse), by which
 * operators, shapes and attributes travel; on arenas, which own the block and all that is read.
 * Called by the engine: after a compilation, for its cache, and for files of `mpk compile`. */
#include "image/image.h"

#include "base/thread.h"
#include "ir/op.h"

static const uint64_t entry_bytes[RT_SECTIONS] = {
    [RT_GRAPHS] = sizeof(rt_graph), [RT_TASKS] = sizeof(rt_task),   [RT_EVENTS] = sizeof(rt_event),
    [RT_OPS] = sizeof(rt_op),       [RT_RANGES] = sizeof(rt_range), [RT_LISTS] = sizeof(rt_u32),
    [RT_PLACES] = sizeof(rt_place), [RT_NAMES] = sizeof(rt_weight), [RT_TEXT] = 1,
};

/* What the checksum covers starts here. */
enum { CHECKED_FROM = offsetof(rt_header, checksum) + sizeof(rt_u64) };

/* Over everything after the field itself; magic, version and n_bytes are compared one by one.  It
 * finds damage, not malice: an attacker who changes bytes can change it, too. */
static rt_u64 checksum(const rt_header *h)
{
    return hash_bytes((const char *)h + CHECKED_FROM, h->n_bytes - CHECKED_FROM, 0);
}

/* ---- writing ---- */

/* The tables of a block under construction, and how much of each is filled.  count_entries has
 * counted before what `next` gives out, so no table can run over. */
typedef struct writer {
    rt_header *header;
    void *at[RT_SECTIONS];
    uint64_t n[RT_SECTIONS];
} writer;

/* The next entry of a section: zeros, since the block comes from the arena. */
static void *next(writer *w, unsigned section)
{
    return (char *)w->at[section] + entry_bytes[section] * w->n[section]++;
}

/* Append the bytes to the text section, without a terminator; returns their offset there. */
static uint64_t add_text(writer *w, str s)
{
    uint64_t at = w->n[RT_TEXT];
    if (s.n)
        memcpy((char *)w->at[RT_TEXT] + at, s.at, s.n);
    w->n[RT_TEXT] += s.n;
    return at;
}

/* The most live sequences that a step of this program can hold: the longest axis of rows.  0 for a
 * program without such an axis. */
static uint32_t count_rows(const ir_graph *ir)
{
    int64_t rows = 0;
    for (size_t i = 0; i < ir->tensors.n; i++)
        /* several tensors may be as long as the rows of logits: sampling parameters, seeds,
         * results */
        if (ir->tensors.at[i].live == IR_ROWS && ir->tensors.at[i].dims[0] > rows)
            rows = ir->tensors.at[i].dims[0];
    return (uint32_t)rows;
}

/* RT_NONE: steps of this graph may feed any number of tokens without a row. */
static uint32_t find_most_fresh(const ir_graph *ir)
{
    for (size_t i = 0; i < ir->ops.n; i++) {
        const ir_op *op = &ir->ops.at[i];
        /* its tasks read the step's own tokens again for each token, which is quadratic in them */
        if (strcmp(op->def->name, "attention_split") == 0 &&
            ir->tensors.at[op->in[0]].dims[0] > IMAGE_MOST_FRESH)
            return IMAGE_MOST_FRESH;
    }
    return RT_NONE;
}

/* The index in op_table; the number of its entries if an operator is of no table.  Images are read
 * by the version that wrote them, so the order of the table may change between versions. */
static uint32_t table_index(const op_def *def)
{
    uint32_t i = 0;
    while (op_table[i] && op_table[i] != def)
        i++;
    return i;
}

/* The body of an operator is its place in the table of records; a target that has bodies of its own
 * maps it. */
static void add_ops(writer *w, const tg_compiled *c)
{
    for (size_t i = 0; i < c->ir->ops.n; i++) {
        const ir_op *op = &c->ir->ops.at[i];
        const ir_tensor *t = &c->ir->tensors.at[op->out[0]];
        *(rt_op *)next(w, RT_OPS) =
            (rt_op){table_index(op->def), t->rank, (rt_u32)t->live, c->pages ? c->pages[i] : 0};
    }
}

/* In the order of the tensors, so that the place of tensor i is entry first_place + i. */
static void add_places(writer *w, const tg_compiled *c)
{
    for (size_t i = 0; i < c->ir->tensors.n; i++)
        *(rt_place *)next(w, RT_PLACES) =
            (rt_place){(rt_u32)c->places[i].area, 0, c->places[i].offset};
}

/* Boxes beyond the rank are zero, so equal programs give equal bytes. */
static void add_tasks(writer *w, const tg_compiled *c)
{
    for (uint32_t t = 0; t < c->tg->n_tasks; t++) {
        const tg_task *from = &c->tg->tasks[t];
        rt_task *to = next(w, RT_TASKS);
        uint32_t rank =
            /* an empty task of normalisation has no operator and no box */
            from->op == IR_NONE ? 0 : c->ir->tensors.at[c->ir->ops.at[from->op].out[0]].rank;
        to->op = from->op;
        to->depends = from->depends;
        to->triggers = from->triggers;
        /* the runtime tells the two kinds apart by this field alone */
        to->worker = from->launch == TG_JIT ? RT_NONE : from->worker;
        for (uint32_t i = 0; i < rank; i++) {
            to->lo[i] = (rt_u32)from->box.lo[i];
            to->hi[i] = (rt_u32)from->box.hi[i];
        }
    }
}

/* `first` of an event without out-tasks is 0, not whatever the compiler left there, for the same
 * reason. */
static void add_events(writer *w, const tg_compiled *c, rt_graph *g)
{
    for (uint32_t e = 0; e < c->tg->n_events; e++) {
        const tg_event *from = &c->tg->events[e];
        rt_event *to = next(w, RT_EVENTS);
        to->needed = from->n_in;
        to->first = from->n_out ? from->first_out : 0;
        /* linearize made an event's out-tasks neighbours: a range, not a list */
        to->last = to->first + from->n_out;
        for (uint32_t t = to->first; t < to->last; t++)
            to->jit += c->tg->tasks[t].launch == TG_JIT;
        g->n_jit += to->jit;
    }
}

/* The AOT tasks of each worker, by counting: tasks come in rising order, so the lists rise. at[i]
 * is first the number of worker i's tasks, then the place of its next one. */
static mpk_status add_lists(mpk_context *cx, arena *a, writer *w, const tg_compiled *c,
                            uint32_t n_workers)
{
    uint32_t *at;
    NEW(cx, a, at, n_workers + 1);
    for (uint32_t t = 0; t < c->tg->n_tasks; t++)
        if (c->tg->tasks[t].launch == TG_AOT)
            at[c->tg->tasks[t].worker]++;
    /* this graph's lists begin where those of the graph before end */
    uint32_t first = (uint32_t)w->n[RT_LISTS];
    for (uint32_t i = 0; i < n_workers; i++) {
        *(rt_range *)next(w, RT_RANGES) = (rt_range){first, first + at[i]};
        first += at[i];
        /* from here on the place of worker i's next task */
        at[i] = first - at[i];
    }
    w->n[RT_LISTS] = first;
    for (uint32_t t = 0; t < c->tg->n_tasks; t++)
        if (c->tg->tasks[t].launch == TG_AOT)
            ((rt_u32 *)w->at[RT_LISTS])[at[c->tg->tasks[t].worker]++] = t;
    return MPK_OK;
}

/* first_* are taken before the tables grow by this graph's entries. */
static mpk_status add_graph(mpk_context *cx, arena *a, writer *w, const tg_compiled *c,
                            uint32_t n_workers, str source)
{
    rt_graph *g = next(w, RT_GRAPHS);
    *g = (rt_graph){.n_tokens = c->n_tokens,
                    .n_rows = count_rows(c->ir),
                    .most_fresh = find_most_fresh(c->ir),
                    .first_task = (rt_u32)w->n[RT_TASKS],
                    .n_tasks = c->tg->n_tasks,
                    .first_event = (rt_u32)w->n[RT_EVENTS],
                    .n_events = c->tg->n_events,
                    .first_op = (rt_u32)w->n[RT_OPS],
                    .n_ops = (rt_u32)c->ir->ops.n,
                    .first_range = (rt_u32)w->n[RT_RANGES],
                    .first_place = (rt_u32)w->n[RT_PLACES],
                    .n_places = (rt_u32)c->ir->tensors.n,
                    .drafts = c->drafts,
                    .text_bytes = source.n};
    g->text = add_text(w, source);
    add_ops(w, c);
    add_places(w, c);
    add_tasks(w, c);
    add_events(w, c, g);
    return add_lists(cx, a, w, c, n_workers);
}

/* A target keeps a machine for each of n peers, and finds it by the peer of a tensor or an
 * operator: also of one that nothing reads. */
static mpk_status check_peer_numbers(mpk_context *cx, const ir_graph *ir, uint32_t n)
{
    CHECK(cx, ir_count_peers(ir) <= n, MPK_EVERIFY,
          "the program's operators run on %u peers, it was compiled for %u", ir_count_peers(ir), n);
    for (size_t i = 0; i < ir->tensors.n; i++) {
        const ir_tensor *t = &ir->tensors.at[i];
        CHECK(cx, t->peer == IR_EVERYWHERE || t->peer < n, MPK_EVERIFY,
              "tensor %.*s lies on peer %u, the program was compiled for %u", STR_ARG(t->name),
              t->peer, n);
    }
    return MPK_OK;
}

/* Refuse what a descriptor cannot number, and graphs that are not ready to run. */
static mpk_status check_graph(mpk_context *cx, const tg_program *p, const tg_compiled *c)
{
    TRY(check_peer_numbers(cx, c->ir, p->n_peers ? p->n_peers : 1));
    CHECK(cx, c->tg->level == TG_LINEAR, MPK_EVERIFY,
          "a task graph for %u tokens is not linear: it cannot be laid out", c->n_tokens);
    for (size_t i = 0; i < c->ir->tensors.n; i++)
        for (uint32_t d = 0; d < c->ir->tensors.at[i].rank; d++)
            CHECK(cx, c->ir->tensors.at[i].dims[d] <= INT32_MAX, MPK_ELIMIT,
                  "tensor %.*s has %lld elements along axis %u, at most 2147483647 can be numbered",
                  STR_ARG(c->ir->tensors.at[i].name), (long long)c->ir->tensors.at[i].dims[d], d);
    for (uint32_t t = 0; t < c->tg->n_tasks; t++)
        CHECK(cx, c->tg->tasks[t].launch == TG_JIT || c->tg->tasks[t].worker < p->n_workers,
              MPK_EVERIFY, "task %u has no worker: the graph was not assigned", t);
    return MPK_OK;
}

/* Entries of each section. */
static void count_entries(const tg_program *p, const text *sources, uint64_t n[RT_SECTIONS])
{
    n[RT_GRAPHS] = p->n_graphs;
    /* a list for each worker in each graph, also where it has no task */
    n[RT_RANGES] = (uint64_t)p->n_graphs * p->n_workers;
    n[RT_NAMES] = p->n_weights;
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        const tg_compiled *c = &p->graphs[i];
        n[RT_TASKS] += c->tg->n_tasks;
        n[RT_EVENTS] += c->tg->n_events;
        n[RT_OPS] += c->ir->ops.n;
        n[RT_PLACES] += c->ir->tensors.n;
        n[RT_TEXT] += sources[i].n;
        for (uint32_t t = 0; t < c->tg->n_tasks; t++)
            /* JIT tasks stand in no list: a scheduler deals them */
            n[RT_LISTS] += c->tg->tasks[t].launch == TG_AOT;
    }
    for (uint32_t i = 0; i < p->n_weights; i++)
        n[RT_TEXT] += p->weights[i].name.n;
}

/* To 64 bytes, a cache line: every section starts on one. */
static uint64_t round_up(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* Allocate the block and point the writer into it. */
static mpk_status begin(mpk_context *cx, arena *a, const tg_program *p,
                        const uint64_t n[RT_SECTIONS], writer *w)
{
    uint64_t bytes = round_up(sizeof(rt_header));
    rt_header h = {.magic = RT_MAGIC,
                   .version = RT_VERSION,
                   .n_workers = p->n_workers,
                   .page_bytes = p->page_bytes,
                   .pages_per_worker = p->pages_per_worker,
                   .n_peers = p->n_peers ? p->n_peers : 1};
    for (unsigned s = 0; s < RT_SECTIONS; s++) {
        /* entries are numbered by 32 bits; bytes of text have 64-bit offsets */
        CHECK(cx, s == RT_TEXT || n[s] < INT32_MAX, MPK_ELIMIT,
              "the program has too many entries in table %u of its image", s);
        h.sections[s] = (rt_section){bytes, n[s]};
        bytes += round_up(n[s] * entry_bytes[s]);
    }
    h.n_bytes = bytes;
    memcpy(h.area_bytes, p->area_bytes, sizeof h.area_bytes);
    char *block;
    NEW(cx, a, block, bytes);
    w->header = (rt_header *)block;
    *w->header = h;
    for (unsigned s = 0; s < RT_SECTIONS; s++)
        w->at[s] = block + h.sections[s].offset;
    return MPK_OK;
}

/* Dims beyond the rank stay zero, as the block is. */
static void add_weight(writer *w, const tg_weight *from)
{
    rt_weight *to = next(w, RT_NAMES);
    to->dtype = (rt_u32)from->dtype;
    to->rank = from->rank;
    to->name_bytes = from->name.n;
    to->name = add_text(w, from->name);
    for (uint32_t d = 0; d < from->rank; d++)
        to->dims[d] = (rt_u64)from->dims[d];
}

/* The checksum comes last, over everything after itself. */
static mpk_status write_block(mpk_context *cx, arena *a, const tg_program *p, const text *sources,
                              writer *w)
{
    uint64_t n[RT_SECTIONS] = {0};
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        CHECK(cx, !sources[i].failed, MPK_ENOMEM, "out of memory for the text of a tensor program");
        TRY(check_graph(cx, p, &p->graphs[i]));
    }
    count_entries(p, sources, n);
    TRY(begin(cx, a, p, n, w));
    for (uint32_t i = 0; i < p->n_graphs; i++)
        TRY(add_graph(cx, a, w, &p->graphs[i], p->n_workers, (str){sources[i].at, sources[i].n}));
    for (uint32_t i = 0; i < p->n_weights; i++)
        add_weight(w, &p->weights[i]);
    w->header->checksum = checksum(w->header);
    return MPK_OK;
}

/* The image keeps the programs and places that were compiled; image_open makes its own from the
 * bytes. */
mpk_status image_make(mpk_context *cx, arena *a, const tg_program *p, program_image *out)
{
    CHECK(cx,
          p->n_graphs && p->n_graphs <= RT_MAX_GRAPHS && p->n_workers &&
              p->n_workers <= RT_MAX_WORKERS,
          MPK_ELIMIT, "a program of %u graphs for %u workers; at most %d graphs and %d workers",
          p->n_graphs, p->n_workers, RT_MAX_GRAPHS, RT_MAX_WORKERS);
    program_image image = {
        .n_graphs = p->n_graphs, .n_weights = p->n_weights, .weights = p->weights};
    writer w = {0};
    text *sources;
    NEW(cx, a, sources, p->n_graphs);
    NEW(cx, a, image.ir, p->n_graphs);
    NEW(cx, a, image.places, p->n_graphs);
    for (uint32_t i = 0; i < p->n_graphs; i++)
        CHECK(cx,
              p->graphs[i].n_tokens <= RT_MAX_TOKENS && count_rows(p->graphs[i].ir) <= RT_MAX_ROWS,
              MPK_ELIMIT,
              "a graph for steps of %u tokens with %u rows; at most %d and %d are possible",
              p->graphs[i].n_tokens, count_rows(p->graphs[i].ir), RT_MAX_TOKENS, RT_MAX_ROWS);
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        ir_print(p->graphs[i].ir, &sources[i]);
        image.ir[i] = p->graphs[i].ir;
        image.places[i] = p->graphs[i].places;
    }
    mpk_status status = write_block(cx, a, p, sources, &w);
    for (uint32_t i = 0; i < p->n_graphs; i++)
        text_free(&sources[i]);
    TRY(status);
    image.block = w.header;
    *out = image;
    return MPK_OK;
}

/* ---- reading ---- */

/* Every number that later code multiplies or adds is bounded here, so that no product overflows.
 * The checksum finds damage, not malice: a program that writes images can make it match, so nothing
 * else is believed for its sake. */
static mpk_status check_header(mpk_context *cx, const rt_header *h, size_t n)
{
    CHECK(cx, h->magic == RT_MAGIC, MPK_EFORMAT, "this is not the image of a compiled program");
    CHECK(cx, h->version == RT_VERSION, MPK_EUNSUPPORTED,
          "the image has version %u, this build reads version %d: compile it again", h->version,
          RT_VERSION);
    CHECK(cx, h->n_bytes == n, MPK_EFORMAT,
          "the image says that it has %llu bytes, but %zu are there",
          (unsigned long long)h->n_bytes, n);
    CHECK(cx, h->checksum == checksum(h), MPK_EFORMAT,
          "the image is damaged: its checksum does not match");
    CHECK(cx, h->n_workers && h->n_workers <= RT_MAX_WORKERS, MPK_EFORMAT,
          "the image is for %u workers, expected 1 to %d", h->n_workers, RT_MAX_WORKERS);
    CHECK(cx, h->n_peers && h->n_peers <= IR_MAX_PEERS && h->n_workers % h->n_peers == 0,
          MPK_EFORMAT, "the image is for %u peers, which cannot share %u workers", h->n_peers,
          h->n_workers);
    CHECK(
        cx, h->page_bytes % 64 == 0 && h->page_bytes <= 1u << 24 && h->pages_per_worker <= 1u << 16,
        MPK_EFORMAT, "the image asks for %u pages of %u bytes", h->pages_per_worker, h->page_bytes);
    for (unsigned s = 0; s < RT_SECTIONS; s++) {
        const rt_section *x = &h->sections[s];
        CHECK(cx,
              x->offset % 64 == 0 && x->offset <= n &&
                  x->count <= (n - x->offset) / entry_bytes[s] && x->count < INT32_MAX,
              MPK_EFORMAT, "table %u of the image lies outside of it", s);
    }
    for (unsigned i = 0; i < RT_AREAS; i++)
        CHECK(cx, h->area_bytes[i] <= UINT64_C(1) << 46, MPK_EFORMAT,
              "the image asks for %llu bytes of memory", (unsigned long long)h->area_bytes[i]);
    uint64_t graphs = image_count(h, RT_GRAPHS);
    CHECK(cx, graphs && graphs <= RT_MAX_GRAPHS, MPK_EFORMAT, "the image has %llu graphs",
          (unsigned long long)graphs);
    return MPK_OK;
}

/* Do n entries from `first` lie in the section?  Written so that no sum can overflow. */
static bool inside(const rt_header *h, unsigned section, uint64_t first, uint64_t n)
{
    uint64_t count = image_count(h, section);
    return first <= count && n <= count - first;
}

/* A graph needs its start and end events, and at least one task, by which a step ends. */
static mpk_status check_ranges(mpk_context *cx, const rt_header *h, const rt_graph *g,
                               uint32_t index)
{
    CHECK(cx,
          inside(h, RT_TASKS, g->first_task, g->n_tasks) &&
              inside(h, RT_EVENTS, g->first_event, g->n_events) &&
              inside(h, RT_OPS, g->first_op, g->n_ops) &&
              inside(h, RT_RANGES, g->first_range, h->n_workers) &&
              inside(h, RT_PLACES, g->first_place, g->n_places) &&
              inside(h, RT_TEXT, g->text, g->text_bytes) && g->n_events >= 2 && g->n_tasks,
          MPK_EFORMAT, "graph %u of the image points outside of its tables", index);
    return MPK_OK;
}

/* Each weight must be a possible tensor, also one that no graph binds: a target multiplies its
 * dimensions to find how many bytes to read. */
static mpk_status read_weights(mpk_context *cx, arena *a, const rt_header *h, program_image *image)
{
    const rt_weight *from = image_table(h, RT_NAMES);
    const char *names = image_table(h, RT_TEXT);
    tg_weight *to;
    image->n_weights = (uint32_t)image_count(h, RT_NAMES);
    NEW(cx, a, to, image->n_weights);
    for (uint32_t i = 0; i < image->n_weights; i++) {
        CHECK(cx,
              inside(h, RT_TEXT, from[i].name, from[i].name_bytes) && from[i].dtype < IR_DTYPES &&
                  from[i].rank <= IR_MAX_RANK,
              MPK_EFORMAT, "weight %u of the image is damaged", i);
        to[i].name = (str){names + from[i].name, from[i].name_bytes};
        to[i].dtype = (ir_dtype)from[i].dtype;
        to[i].rank = from[i].rank;
        for (uint32_t d = 0; d < from[i].rank; d++)
            to[i].dims[d] = (int64_t)from[i].dims[d];
        /* the checks of a tensor program's tensors, for a weight that may be in none */
        ir_tensor t = {.name = to[i].name, .dtype = to[i].dtype, .rank = to[i].rank};
        memcpy(t.dims, to[i].dims, sizeof t.dims);
        if (ir_check_tensor(cx, &t) != MPK_OK)
            return status_note(cx, MPK_EFORMAT, "reading weight %u of the image", i);
    }
    image->weights = to;
    return MPK_OK;
}

/* Name, dtype and dimensions agree: the loaded bytes fit the tensor. */
static bool same_shape(const tg_weight *w, const ir_tensor *t)
{
    return str_equal(w->name, t->name) && w->dtype == t->dtype && w->rank == t->rank &&
           memcmp(w->dims, t->dims, t->rank * sizeof *t->dims) == 0;
}

/* Checked against the program that the graph's own text describes: a place may not split a storage,
 * nor bind a weight of another shape. */
static mpk_status read_places(mpk_context *cx, arena *a, const rt_header *h, const rt_graph *g,
                              program_image *image, uint32_t index)
{
    const rt_place *from = (const rt_place *)image_table(h, RT_PLACES) + g->first_place;
    const ir_graph *ir = image->ir[index];
    tg_place *to;
    CHECK(cx, g->n_places == ir->tensors.n && g->n_ops == ir->ops.n, MPK_EFORMAT,
          "graph %u of the image has tables for %u tensors and %u operators, its text says %zu and "
          "%zu",
          index, g->n_places, g->n_ops, ir->tensors.n, ir->ops.n);
    NEW(cx, a, to, g->n_places);
    for (uint32_t i = 0; i < g->n_places; i++) {
        const ir_tensor *t = &ir->tensors.at[i];
        ir_tensor_id root = i;
        ir_box box = ir_box_whole(t), root_box;
        CHECK(cx, from[i].area < RT_AREAS, MPK_EFORMAT, "tensor %.*s lies in no area",
              STR_ARG(t->name));
        to[i] = (tg_place){(tg_area)from[i].area, from[i].offset};
        /* views and results in place lie where the owner of their storage lies */
        ir_root(ir, i, &box, &root, &root_box);
        const ir_tensor *r = &ir->tensors.at[root];
        CHECK(cx, from[i].area == from[root].area && from[i].offset == from[root].offset,
              MPK_EFORMAT, "tensor %.*s does not lie where %.*s lies, whose storage it shares",
              STR_ARG(t->name), STR_ARG(r->name));
        /* in the area of weights `offset` is the number of a weight, elsewhere bytes */
        CHECK(cx, (r->kind == IR_CONST) == (from[i].area == RT_WEIGHTS), MPK_EFORMAT,
              "tensor %.*s lies in the wrong area", STR_ARG(t->name));
        if (r->kind == IR_CONST)
            CHECK(cx,
                  from[i].offset < image->n_weights &&
                      same_shape(&image->weights[from[i].offset], r),
                  MPK_EFORMAT, "tensor %.*s is bound to another weight", STR_ARG(r->name));
    }
    image->places[index] = to;
    return MPK_OK;
}

/* Does a box keep the rules by which the operator may be cut? */
static bool fits_axes(const ir_graph *ir, const ir_op *op, const rt_task *task)
{
    const ir_tensor *t = &ir->tensors.at[op->out[0]];
    op_axis axes[IR_MAX_RANK] = {0};
    if (op->def->axes)
        op->def->axes(ir, op, axes);
    for (uint32_t i = 0; i < t->rank; i++) {
        /* an axis without a grain may not be cut: its only box is the whole */
        int64_t lo = task->lo[i], hi = task->hi[i],
                grain = axes[i].grain ? axes[i].grain : t->dims[i];
        /* cuts are multiples of the grain; the last box may end with the axis instead */
        if (lo >= hi || hi > t->dims[i] || lo % grain || (hi % grain && hi != t->dims[i]))
            return false;
    }
    return true;
}

/* Whether boxes overlap or leave gaps is tg_verify's business; here they only have to be inside
 * their tensors. */
static mpk_status read_task(mpk_context *cx, const rt_header *h, const rt_graph *g,
                            const ir_graph *ir, uint32_t t, tg_task *to)
{
    const rt_task *from = (const rt_task *)image_table(h, RT_TASKS) + g->first_task + t;
    CHECK(cx,
          from->depends < g->n_events && from->triggers < g->n_events &&
              (from->worker == RT_NONE || from->worker < h->n_workers),
          MPK_EFORMAT, "task %u of the image names events %u and %u of %u, worker %u of %u", t,
          from->depends, from->triggers, g->n_events, from->worker, h->n_workers);
    CHECK(cx,
          from->op == RT_NONE ||
              (from->op < ir->ops.n && tg_op_has_tasks(ir, &ir->ops.at[from->op]) &&
               fits_axes(ir, &ir->ops.at[from->op], from)),
          MPK_EFORMAT, "task %u of the image has a box that its operator does not allow", t);
    to->op = from->op;
    to->depends = from->depends;
    to->triggers = from->triggers;
    to->launch = from->worker == RT_NONE ? TG_JIT : TG_AOT;
    to->worker = from->worker;
    for (uint32_t i = 0; i < RT_MAX_RANK; i++) {
        to->box.lo[i] = from->lo[i];
        to->box.hi[i] = from->hi[i];
    }
    return MPK_OK;
}

/* The table repeats what the text says, for workers that do not read texts.  `body` is not
 * compared: each target chooses its own bodies. */
static mpk_status check_ops(mpk_context *cx, const rt_header *h, const rt_graph *g,
                            const ir_graph *ir)
{
    const rt_op *ops = (const rt_op *)image_table(h, RT_OPS) + g->first_op;
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const ir_tensor *t = &ir->tensors.at[ir->ops.at[i].out[0]];
        CHECK(cx, ops[i].rank == t->rank && ops[i].live == (rt_u32)t->live, MPK_EFORMAT,
              "operator %.*s has another rank in the image's table than in its text",
              STR_ARG(ir->ops.at[i].name));
    }
    return MPK_OK;
}

/* The event table must say what follows from the tasks. */
static mpk_status check_events(mpk_context *cx, const rt_header *h, const rt_graph *g,
                               const tg_graph *tg)
{
    const rt_event *events = (const rt_event *)image_table(h, RT_EVENTS) + g->first_event;
    uint32_t n_jit = 0;
    for (uint32_t e = 0; e < g->n_events; e++) {
        const rt_event *x = &events[e];
        uint32_t jit = 0;
        CHECK(cx,
              x->needed == tg->events[e].n_in && x->first <= x->last && x->last <= g->n_tasks &&
                  x->last - x->first == tg->events[e].n_out,
              MPK_EFORMAT, "event %u of the image does not count its tasks", e);
        for (uint32_t t = x->first; t < x->last; t++) {
            /* a task is launched by the event that it depends on, and by no other */
            CHECK(cx, tg->tasks[t].depends == e, MPK_EFORMAT,
                  "event %u of the image launches task %u of event %u", e, t, tg->tasks[t].depends);
            jit += tg->tasks[t].launch == TG_JIT;
        }
        CHECK(cx, x->jit == jit, MPK_EFORMAT, "event %u of the image does not count its JIT tasks",
              e);
        n_jit += jit;
    }
    CHECK(cx, g->n_jit == n_jit, MPK_EFORMAT, "the image does not count its JIT tasks");
    return MPK_OK;
}

/* An operator's tasks are on the workers of its peer. */
static mpk_status check_peers(mpk_context *cx, const rt_header *h, const tg_graph *tg)
{
    /* peer p has workers p * each .. (p + 1) * each - 1 */
    uint32_t each = h->n_workers / h->n_peers;
    for (uint32_t t = 0; h->n_peers > 1 && t < tg->n_tasks; t++) {
        const tg_task *task = &tg->tasks[t];
        CHECK(cx,
              task->launch == TG_AOT &&
                  (task->op == IR_NONE || task->worker / each == tg->ir->ops.at[task->op].peer),
              MPK_EFORMAT, "task %u of the image is not on a worker of its peer", t);
    }
    return MPK_OK;
}

/* Each AOT task stands once in the list of its worker, in rising order. */
static mpk_status check_lists(mpk_context *cx, const rt_header *h, const rt_graph *g,
                              const tg_graph *tg)
{
    const rt_range *ranges = (const rt_range *)image_table(h, RT_RANGES) + g->first_range;
    const rt_u32 *lists = image_table(h, RT_LISTS);
    uint64_t listed = 0, aot = 0;
    for (uint32_t w = 0; w < h->n_workers; w++) {
        CHECK(cx, ranges[w].first <= ranges[w].last && ranges[w].last <= image_count(h, RT_LISTS),
              MPK_EFORMAT, "the list of worker %u lies outside of the image", w);
        for (uint32_t i = ranges[w].first; i < ranges[w].last; i++, listed++)
            CHECK(cx,
                  /* rising numbers are what the argument against deadlock rests on
                   * (docs/runtime.md) */
                  lists[i] < g->n_tasks && tg->tasks[lists[i]].worker == w &&
                      (i == ranges[w].first || lists[i - 1] < lists[i]),
                  MPK_EFORMAT,
                  "the list of worker %u holds a task that is not its own or out of order", w);
    }
    for (uint32_t t = 0; t < g->n_tasks; t++)
        aot += tg->tasks[t].launch == TG_AOT;
    /* each list is rising and holds tasks of its own worker, so none stands twice: equal counts
     * mean that none is missing */
    CHECK(cx, listed == aot, MPK_EFORMAT, "%llu of %llu AOT tasks are in the lists of the workers",
          (unsigned long long)listed, (unsigned long long)aot);
    return MPK_OK;
}

/* Build the task graph again from the tables, level TG_LINEAR: as the compiler left it, but for the
 * list of out-tasks, of which a linear graph has no need.  Counts and ranges are compared with what
 * follows from the tasks, so that nothing in the tables is left that only the file says. */
static mpk_status read_tasks(mpk_context *cx, arena *a, const rt_header *h, const rt_graph *g,
                             const ir_graph *ir, tg_graph **out)
{
    tg_graph *tg;
    TRY(check_ops(cx, h, g, ir));
    TRY(tg_create(cx, a, ir, h->n_workers, &tg));
    NEW(cx, a, tg->tasks, g->n_tasks);
    NEW(cx, a, tg->events, g->n_events);
    tg->n_tasks = g->n_tasks;
    tg->n_events = g->n_events;
    for (uint32_t t = 0; t < g->n_tasks; t++)
        TRY(read_task(cx, h, g, ir, t, &tg->tasks[t]));
    /* in-tasks and counts from the tasks themselves; the file's are compared with these */
    TRY(tg_fill_events(cx, tg));
    TRY(check_events(cx, h, g, tg));
    TRY(check_lists(cx, h, g, tg));
    TRY(check_peers(cx, h, tg));
    const rt_event *events = (const rt_event *)image_table(h, RT_EVENTS) + g->first_event;
    for (uint32_t e = 0; e < g->n_events; e++)
        tg->events[e].first_out = events[e].first;
    tg->out_tasks = NULL;
    tg->level = TG_LINEAR;
    *out = tg;
    return MPK_OK;
}

/* What a graph says of itself must follow from its text. */
static mpk_status check_facts(mpk_context *cx, const rt_graph *g, const ir_graph *ir,
                              uint32_t index)
{
    CHECK(cx, g->n_tokens <= RT_MAX_TOKENS && g->n_rows <= RT_MAX_ROWS, MPK_EFORMAT,
          "graph %u of the image is for steps of %u tokens with %u rows; at most %d and %d are "
          "possible",
          index, g->n_tokens, g->n_rows, RT_MAX_TOKENS, RT_MAX_ROWS);
    /* graphs of the model first, then those of its draft model */
    CHECK(cx, g->drafts <= (index != 0) && g->drafts >= (index ? g[-1].drafts : 0), MPK_EFORMAT,
          "graph %u of the image stands among those of another model", index);
    CHECK(cx, g->n_rows == count_rows(ir), MPK_EFORMAT,
          "graph %u of the image says %u rows, its text %u", index, g->n_rows, count_rows(ir));
    CHECK(cx, g->most_fresh == find_most_fresh(ir), MPK_EFORMAT,
          "graph %u of the image is for steps with %u tokens without a row, its text with %u",
          index, g->most_fresh, find_most_fresh(ir));
    return MPK_OK;
}

/* The text is read first, since all tables are checked against the operators and tensors that it
 * names. */
static mpk_status read_graph(mpk_context *cx, arena *a, const rt_header *h, program_image *image,
                             uint32_t index)
{
    const rt_graph *g = (const rt_graph *)image_table(h, RT_GRAPHS) + index;
    const char *texts = image_table(h, RT_TEXT);
    ir_graph *ir = NULL;
    TRY(check_ranges(cx, h, g, index));
    TRY(ir_parse(cx, a, (str){texts + g->text, g->text_bytes}, &ir));
    image->ir[index] = ir;
    TRY(check_peer_numbers(cx, ir, h->n_peers));
    TRY(read_places(cx, a, h, g, image, index));
    return check_facts(cx, g, ir, index);
}

/* After this the graph has passed the same proofs as one that was just compiled: whatever wrote the
 * bytes, running it is free of races and deadlocks. */
static mpk_status prove_graph(mpk_context *cx, arena *a, const program_image *image, uint32_t index)
{
    const rt_header *h = image->block;
    const rt_graph *g = (const rt_graph *)image_table(h, RT_GRAPHS) + index;
    tg_graph *tg = NULL;
    TRY(read_tasks(cx, a, h, g, image->ir[index], &tg));
    TRY(tg_verify(cx, a, tg));
    /* last, since it relies on all tables being sound: no two live tensors share bytes */
    tg_compiled c = {
        .n_tokens = g->n_tokens, .ir = image->ir[index], .tg = tg, .places = image->places[index]};
    uint64_t area_bytes[TG_AREAS];
    for (unsigned i = 0; i < TG_AREAS; i++)
        area_bytes[i] = h->area_bytes[i];
    return tg_verify_memory(cx, a, &c, area_bytes);
}

/* The graphs are read side by side by threads, each into an arena of its own, since arenas are not
 * shared between threads; read_image adopts them all, whether reading succeeded or not. */
typedef struct reading {
    program_image *image;
    arena *arenas; /* [n_graphs] */
    bool is_proved;
} reading;

/* parallel: graph i of the image; its errors say which graph it was. */
static mpk_status read_one(mpk_context *cx, void *user, uint32_t i)
{
    const reading *r = user;
    mpk_status status = read_graph(cx, &r->arenas[i], r->image->block, r->image, i);
    if (status == MPK_OK && !r->is_proved)
        status = prove_graph(cx, &r->arenas[i], r->image, i);
    NOTE(cx, status, "checking graph %u of the image", i);
    return MPK_OK;
}

/* The bytes are copied, since the tables must be aligned and must not change while they are
 * checked. Graphs are read side by side, each into an arena of its own, as arenas belong to one
 * thread; they are adopted after a failure too, so that nothing is left over. */
static mpk_status read_image(mpk_context *cx, arena *a, const void *bytes, size_t n, bool is_proved,
                             program_image *out)
{
    CHECK(cx, n >= sizeof(rt_header), MPK_EFORMAT, "the image has %zu bytes, not even a header", n);
    char *block;
    program_image image = {0};
    NEW(cx, a, block, n);
    memcpy(block, bytes, n);
    image.block = (const rt_header *)block;
    TRY(check_header(cx, image.block, n));
    image.n_graphs = (uint32_t)image_count(image.block, RT_GRAPHS);
    NEW(cx, a, image.ir, image.n_graphs);
    NEW(cx, a, image.places, image.n_graphs);
    TRY(read_weights(cx, a, image.block, &image));
    reading r = {&image, NULL, is_proved};
    NEW(cx, a, r.arenas, image.n_graphs);
    mpk_status status = thread_each(cx, image.n_graphs, read_one, &r);
    for (uint32_t i = 0; i < image.n_graphs; i++)
        arena_adopt(a, &r.arenas[i]);
    TRY(status);
    *out = image;
    return MPK_OK;
}

mpk_status image_open(mpk_context *cx, arena *a, const void *bytes, size_t n, program_image *out)
{
    return read_image(cx, a, bytes, n, false, out);
}

mpk_status image_open_proved(mpk_context *cx, arena *a, const void *bytes, size_t n,
                             program_image *out)
{
    return read_image(cx, a, bytes, n, true, out);
}
