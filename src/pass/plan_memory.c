/* plan_memory.c - where tensors lie: shared areas by name, temporaries reused inside a graph.
 *
 * Input: a program whose graphs are linear.  Output: places, weights, area_bytes.
 *
 * Weights, state, step inputs and outputs are matched by name across graphs; an entry is as
 * large as its largest tensor.  A temporary takes the lowest offset at which everything it would
 * overwrite is provably dead: events order every task that touches the old tensor before every
 * task that writes the new one.  So reuse adds neither hazards nor events, whatever the timing.
 *
 *   %a -> %b -> %c -> %d, a barrier between neighbours, 64 bytes each
 *     %a at 0, %b at 64 (a is read while b is written), %c at 0 (a is dead), %d at 64
 *
 * Of several peers each has a range of its own in the areas of state and temporaries, in their
 * order: that range is all that a device of its own needs to have.  Relies on tg_places.c for
 * what is dead; tg_memory.c proves the result.  Called by compile.c after all graphs are linear.
 * Cost: temporaries x temporaries still in place, times their tasks where no barrier lies
 * between.
 */
#include "ir/op.h"
#include "pass/pass.h"

enum { ALIGNMENT = 64 }; /* bytes */

/* A name that several graphs share: a weight, a tensor of state, a step input or an output. */
typedef struct entry {
    str name;
    tg_area area;
    /* the largest of all graphs; from the start of the area (of a weight: its index) */
    uint64_t bytes, offset;
    const ir_tensor *first; /* the tensor that made the entry */
} entry;

/* The plan under construction; `p` receives it. */
typedef struct planner {
    pass_state *s;
    tg_program *p;
    map names; /* name -> index into entries */
    VEC(entry) entries;
    uint64_t temps_bytes[IR_MAX_PEERS]; /* of each peer: those of the graph that needs most */
} planner;

/* Round up to ALIGNMENT.  64 bytes are a cache line of a CPU, and more than any vector load or
 * bulk copy asks for. */
static uint64_t align(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- shared areas ---- */

/* Fill names[tensors]: the name under which graphs share the storage of a root, which is its
 * own, or that of the graph output stored in it; empty for a temporary. */
static void fill_shared_names(const ir_graph *ir, str *names)
{
    for (ir_tensor_id t = 0; t < ir->tensors.n; t++)
        if (ir->tensors.at[t].kind != IR_TEMP)
            names[t] = ir->tensors.at[t].name;
    for (size_t i = 0; i < ir->outputs.n; i++) {
        ir_tensor_id root = tg_root(ir, ir->outputs.at[i]);
        if (!names[root].n)
            names[root] = ir->tensors.at[ir->outputs.at[i]].name;
    }
}

/* Outputs are temporaries by kind, but the host reads them between steps, so they lie with the
 * inputs. */
static tg_area area_of(const ir_tensor *root)
{
    if (root->kind == IR_CONST)
        return TG_WEIGHTS;
    return root->kind == IR_STATE ? TG_STATE : TG_STEP;
}

static bool same_shape(const ir_tensor *a, const ir_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

/* Note a shared name, met again in each graph.  Weights and state must have one shape in all
 * graphs; step inputs and outputs differ with the number of tokens, and the entry takes the
 * largest. */
static mpk_status add_entry(planner *p, str name, const ir_tensor *root)
{
    mpk_context *cx = p->s->cx;
    uint64_t index, bytes = (uint64_t)ir_bytes(root);
    tg_area area = area_of(root);
    if (!map_get(&p->names, name, &index)) {
        TRY(map_put(cx, p->s->scratch, &p->names, name, p->entries.n));
        PUSH(cx, p->s->scratch, &p->entries,
             (entry){.name = name, .area = area, .bytes = bytes, .first = root});
        return MPK_OK;
    }
    entry *e = &p->entries.at[index];
    CHECK(cx, e->area == area, MPK_EARG,
          "%%%.*s is of another kind in another graph of the program", STR_ARG(name));
    CHECK(cx, area == TG_STEP || same_shape(e->first, root), MPK_ESHAPE,
          "%%%.*s has another shape or dtype in another graph of the program", STR_ARG(name));
    e->bytes = bytes > e->bytes ? bytes : e->bytes;
    return MPK_OK;
}

/* Append a weight to the program's list.  A weight has no offset in an area, since it stays
 * where the file was mapped; its place holds its index.  Names are copied, since the graphs do
 * not outlive the compiler. */
static mpk_status add_weight(planner *p, entry *e, uint32_t capacity)
{
    CHECK(p->s->cx, p->p->n_weights < capacity, MPK_EARG, "too many weights");
    tg_weight *w = &p->p->weights[p->p->n_weights];
    e->offset = p->p->n_weights++;
    *w = (tg_weight){.dtype = e->first->dtype, .rank = e->first->rank};
    memcpy(w->dims, e->first->dims, sizeof w->dims);
    char *copy = arena_copy(p->s->result, e->name.at, e->name.n);
    CHECK(p->s->cx, copy, MPK_ENOMEM, "out of memory for the name of a weight");
    w->name = (str){copy, e->name.n};
    p->p->area_bytes[TG_WEIGHTS] += e->bytes;
    return MPK_OK;
}

/* Assign offsets to the entries of one peer, in the order in which they were found, at the ends
 * of their areas. */
static void place_peer(planner *p, uint32_t peer)
{
    for (size_t i = 0; i < p->entries.n; i++) {
        entry *e = &p->entries.at[i];
        if (e->area == TG_WEIGHTS || e->first->peer != peer)
            continue;
        e->offset = p->p->area_bytes[e->area];
        p->p->area_bytes[e->area] += align(e->bytes);
    }
}

/* Weights first, in the order in which they were met; then what every peer sees, then each
 * peer's own range, so that a peer's part of an area is contiguous. */
static mpk_status place_entries(planner *p)
{
    uint32_t n_weights = 0;
    for (size_t i = 0; i < p->entries.n; i++)
        n_weights += p->entries.at[i].area == TG_WEIGHTS;
    NEW(p->s->cx, p->s->result, p->p->weights, n_weights);
    for (size_t i = 0; i < p->entries.n; i++)
        if (p->entries.at[i].area == TG_WEIGHTS)
            TRY(add_weight(p, &p->entries.at[i], n_weights));
    place_peer(p, IR_EVERYWHERE);
    for (uint32_t peer = 0; peer < IR_MAX_PEERS; peer++)
        place_peer(p, peer);
    return MPK_OK;
}

/* ---- temporaries of one graph ---- */

/* A range of a peer's temporaries and the tensor that was put there last. */
typedef struct temporary {
    ir_tensor_id root;
    uint64_t offset, bytes;
} temporary;

/* The state of placing one graph's temporaries; each peer has a range that begins at 0 (see
 * join_ranges). */
typedef struct temps {
    pass_state *s;
    const ir_graph *ir;
    tg_alive alive;
    struct {
        /* tensors not yet covered wholly by later ones.  One that is covered in part stays: what is
         * left of it must still be respected */
        VEC(temporary) placed;
        uint64_t bytes;
    } peers[IR_MAX_PEERS];
} temps;

/* Place a temporary at the lowest offset of its peer's range that fits: at 0 or right after one
 * placed before.  Only these offsets need to be tried, because a lowest free offset always
 * follows on something.  Then forget the placed ones that the new tensor covers wholly: what may
 * overwrite the new one later may overwrite those as well. */
static mpk_status place_temporary(temps *t, ir_tensor_id root, tg_place *place)
{
    const ir_tensor *tensor = &t->ir->tensors.at[root];
    uint64_t bytes = align((uint64_t)ir_bytes(tensor)), best = UINT64_MAX,
             *all = &t->peers[tensor->peer].bytes;
    size_t n = t->peers[tensor->peer].placed.n, kept = 0;
    temporary *placed = t->peers[tensor->peer].placed.at;
    bool *fixed; /* must not be overwritten */
    NEW(t->s->cx, t->s->scratch, fixed, n);
    for (size_t i = 0; i < n; i++)
        fixed[i] = !tg_may_overwrite(&t->alive, tensor->producer, placed[i].root);
    for (size_t i = 0; i <= n; i++) {
        uint64_t offset = i ? placed[i - 1].offset + placed[i - 1].bytes : 0;
        bool fits = offset < best;
        for (size_t k = 0; k < n && fits; k++)
            fits = !fixed[k] || offset >= placed[k].offset + placed[k].bytes ||
                   placed[k].offset >= offset + bytes;
        best = fits ? offset : best;
    }
    for (size_t i = 0; i < n; i++)
        if (placed[i].offset < best || placed[i].offset + placed[i].bytes > best + bytes)
            placed[kept++] = placed[i];
    t->peers[tensor->peer].placed.n = kept;
    PUSH(t->s->cx, t->s->scratch, &t->peers[tensor->peer].placed, (temporary){root, best, bytes});
    *all = best + bytes > *all ? best + bytes : *all;
    *place = (tg_place){TG_TEMPS, best};
    return MPK_OK;
}

/* ---- places ---- */

/* Place all tensors of one graph.  Tensors rise in program order, so the root of a view is
 * placed before the view, and a temporary before those that may take its bytes.  Temporaries get
 * offsets within their peer's range; join_ranges places the ranges. */
static mpk_status place_graph(planner *p, tg_compiled *c)
{
    const ir_graph *ir = c->ir;
    temps t = {.s = p->s, .ir = ir};
    tg_place *places;
    str *names;
    NEW(p->s->cx, p->s->result, places, ir->tensors.n);
    NEW(p->s->cx, p->s->scratch, names, ir->tensors.n);
    fill_shared_names(ir, names);
    TRY(tg_fill_alive(p->s->cx, p->s->scratch, c->tg, &t.alive));
    for (ir_tensor_id i = 0; i < ir->tensors.n; i++) {
        uint64_t index;
        if (ir->tensors.at[i].shares != IR_NONE)
            places[i] = places[ir->tensors.at[i].shares];
        else if (!names[i].n)
            TRY(place_temporary(&t, i, &places[i]));
        else if (map_get(&p->names, names[i], &index))
            places[i] = (tg_place){p->entries.at[index].area, p->entries.at[index].offset};
    }
    for (uint32_t k = 0; k < IR_MAX_PEERS; k++)
        p->temps_bytes[k] =
            t.peers[k].bytes > p->temps_bytes[k] ? t.peers[k].bytes : p->temps_bytes[k];
    c->places = places;
    return MPK_OK;
}

/* Put the ranges of the peers one after the other, the same in all graphs, and make the offsets
 * of temporaries those of the whole area. */
static void join_ranges(planner *p)
{
    uint64_t first[IR_MAX_PEERS], n = 0;
    for (uint32_t k = 0; k < IR_MAX_PEERS; k++) {
        first[k] = n;
        n += p->temps_bytes[k];
    }
    p->p->area_bytes[TG_TEMPS] = n;
    for (uint32_t i = 0; i < p->p->n_graphs; i++) {
        tg_compiled *c = &p->p->graphs[i];
        tg_place *places = (tg_place *)c->places;
        for (ir_tensor_id t = 0; t < c->ir->tensors.n; t++)
            if (places[t].area == TG_TEMPS)
                places[t].offset += first[c->ir->tensors.at[tg_root(c->ir, t)].peer];
    }
}

/* The first of two walks over all graphs: entries must have their final sizes before any of them
 * gets an offset. */
static mpk_status gather_graph(planner *p, const ir_graph *ir)
{
    str *names;
    NEW(p->s->cx, p->s->scratch, names, ir->tensors.n);
    fill_shared_names(ir, names);
    for (ir_tensor_id t = 0; t < ir->tensors.n; t++)
        if (names[t].n)
            TRY(add_entry(p, names[t], &ir->tensors.at[t]));
    return MPK_OK;
}

/* Two walks: gather the shared names of all graphs, then place each graph's tensors. */
mpk_status pass_plan_memory(pass_state *s, tg_program *program)
{
    planner p = {.s = s, .p = program};
    program->n_weights = 0;
    memset(program->area_bytes, 0, sizeof program->area_bytes);
    for (uint32_t i = 0; i < program->n_graphs; i++)
        TRY(gather_graph(&p, program->graphs[i].ir));
    TRY(place_entries(&p));
    for (uint32_t i = 0; i < program->n_graphs; i++)
        NOTE(s->cx, place_graph(&p, &program->graphs[i]), "planning the memory of %u tokens",
             program->graphs[i].n_tokens);
    join_ranges(&p);
    return MPK_OK;
}
