/* source.c - the CUDA source of a program (see source.h).
 *
 * Idea: first every operator chooses its body and prints its instance; operators whose instances
 * print alike share one, and its number.  Then the text is put together: constants, the files of
 * device/ that are needed (an #include is replaced by the file, once), the instances, and the
 * switches from an instance's number to its function.  Relies on the records of gen/body_*.c;
 * called by src/cuda (kernel_code.c) and by the tests of bodies.  Cost: one print and one hash
 * look-up for each operator.
 *
 * What is printed for an operator, and its case in the switch:
 *
 *   with a function of its own   static ... void body_7(const mpk_task &t) { ... }
 *                                case 7: body_7(...);
 *   with a shared routine        __constant__ stream_shape stream_shape_of[2] = {...};
 *                                case 8: case 9: linear_stream<4, 0>(t, ...);
 *
 * No part of the text may depend on addresses, on the time or on the order of a hash: the text is
 * the key of the kernel cache. */
#include "gen/source.h"

#include <stdio.h>

#include "gen/sharing.h"
#include "gen/source_files.h"
#include "rt/rt_lane.h"
#include "shape/linear_tile_shape.h"

/* Everything that is known while a source is made; it lies on the stack of gen_source_make, and
 * what outlives it is in the caller's arena. */
typedef struct emitter {
    mpk_context *cx;
    arena *arena;
    const gen_arch *arch;
    gen_whole whole;                       /* what is made: a kernel, a call, bodies alone */
    uint32_t n_workers, n_graphs, n_peers; /* of each GPU; of the program; GPUs */
    uint32_t least_pages;                  /* of a ring */
    ir_dtype halves;                       /* what streamed products multiply */
    bool jit; /* some graph has JIT tasks, whose loads may have a ring of their own */
    const gen_graph *graphs;
    map numbers; /* text of an instance as number 0 -> its number */
    VEC(gen_instance) instances;
    gen_caches caches;                      /* named by the instances, mpk_caches */
    gen_choices choices;                    /* block programs, found once for equal calls */
    gen_use **uses;                         /* [n_graphs][ops] */
    uint32_t n_regimes, *regime_of, regime; /* [n_graphs]; whose switches are printed */
    gen_room rooms[GEN_REGIMES];            /* shared memory, by regime */
    uint32_t units[GEN_REGIMES];            /* as in gen_source */
    /* MPK_FORMS; of tasks of at most 64 tokens, where these have a unit of their own, else 0 */
    uint64_t forms[GEN_REGIMES], short_forms[GEN_REGIMES];
    bool images, of_rows, maps[GEN_REGIMES], centred, terms; /* MPK_IMAGES ... */
    map printed; /* names of texts that stand in the source */
    text out;    /* the source so far */
} emitter;

/* Does the operator only give another view of memory that exists, so that it has no task? */
static bool is_no_work(const ir_graph *g, const ir_op *op)
{
    return op->def->flags & OP_VIEW && g->tensors.at[op->out[0]].shares != IR_NONE;
}

/* ---- instances ---- */

/* Print instance n into the arena: *out is its text.  Block programs that it chose meanwhile are
 * noted in e->choices (gen_print_note). */
static mpk_status print_instance(emitter *e, const gen_call *c, const gen_body *body, uint32_t n,
                                 str *out)
{
    text t = {0}; /* freed below, whatever happens */
    e->choices.noted.n = 0;
    mpk_status status = body->print(e->cx, c, n, &t);
    out->at = status == MPK_OK ? text_copy(&t, e->arena) : NULL;
    out->n = t.n;
    text_free(&t);
    if (status != MPK_OK)
        return status_note(e->cx, status, "writing the code of %s (%%%.*s)", c->op->def->name,
                           STR_ARG(c->op->name));
    CHECK(e->cx, out->at, MPK_ENOMEM, "out of memory for the code of %s", c->op->def->name);
    return MPK_OK;
}

/* The instance of this body and routine among those that print alike, of which `last` is the latest
 * and each names the one before; RT_NONE: there is none. */
static uint32_t find_instance(const emitter *e, const gen_body *body, const gen_routine *routine,
                              uint32_t last)
{
    const gen_instance *all = e->instances.at;
    while (last != RT_NONE && (all[last].body != body || all[last].routine != routine))
        last = all[last].before;
    return last;
}

/* The number of the operator's code: that of an equal instance, or the next.  To be compared, an
 * instance is printed as number 0, for its own number is part of the text. */
static mpk_status number_instance(emitter *e, const gen_call *c, const gen_body *body,
                                  uint32_t graph, uint32_t op, uint32_t *number)
{
    str key;
    uint64_t last = RT_NONE;
    const size_t n_choices = e->choices.made.n; /* to tell whether print has made one */
    arena_mark mark = arena_get_mark(e->arena); /* where the text may be given back to */
    TRY(print_instance(e, c, body, 0, &key));
    const gen_routine *routine = body->routine ? body->routine(c) : NULL;
    const uint32_t scratch_bytes = body->scratch_bytes ? body->scratch_bytes(c) : 0;
    map_get(&e->numbers, key, &last);
    *number = find_instance(e, body, routine, (uint32_t)last);
    if (*number != RT_NONE) {
        if (e->choices.made.n == n_choices) /* what was chosen meanwhile lies in the arena, too */
            arena_reset(e->arena, mark);
        gen_instance *known = &e->instances.at[*number];
        known->uses++;
        known->scratch_bytes =
            scratch_bytes > known->scratch_bytes ? scratch_bytes : known->scratch_bytes;
        return MPK_OK;
    }
    *number = (uint32_t)e->instances.n;
    TRY(map_put(e->cx, e->arena, &e->numbers, key, *number));
    gen_instance made = {.body = body,
                         .routine = routine,
                         .uses = 1,
                         .graph = graph,
                         .op = op,
                         .before = (uint32_t)last,
                         .scratch_bytes = scratch_bytes};
    TRY(print_instance(e, c, body, *number, &made.text));
    made.programs = e->choices.noted;
    PUSH(e->cx, e->arena, &e->instances, made);
    return MPK_OK;
}

/* Is the source one of bodies alone?  Tests run it on the host, where memory has no limit. */
static bool is_tested(const emitter *e)
{
    return e->whole == GEN_BODIES || e->whole == GEN_GENERIC;
}

/* The largest scratch of a body, in bytes, that leaves each ring its least pages; 0: no limit. */
static uint32_t most_scratch(const emitter *e)
{
    const uint32_t kept = RT_OWN_BYTES + (e->jit ? 2 : 1) * e->least_pages * e->arch->page_bytes,
                   all = e->arch->shared_bytes;
    return is_tested(e) || kept >= all ? 0 : (all - kept) / 1024 * 1024;
}

/* The call that a body's record gets for this operator (device_body.h). */
static gen_call call_of(emitter *e, uint32_t graph, uint32_t op)
{
    const gen_graph *g = &e->graphs[graph];
    return (gen_call){.ir = g->ir,
                      .op = &g->ir->ops.at[op],
                      .n_tokens = g->n_tokens,
                      .n_workers = e->n_workers,
                      .needs = e->arch->features,
                      .is_call = e->whole == GEN_CALL || (is_tested(e) && e->halves == IR_F16),
                      .scratch_most = most_scratch(e),
                      .halves = e->halves,
                      .arena = e->arena,
                      .caches = &e->caches,
                      .choices = &e->choices,
                      .maps = !e->jit,
                      .all_maps = e->whole == GEN_CALL,
                      .box = g->boxes ? &g->boxes[op] : NULL};
}

/* A body and an instance for each operator that does something; views in place get neither. */
static mpk_status choose_all(emitter *e)
{
    uint32_t highest = e->whole == GEN_GENERIC ? 0 : UINT32_MAX; /* rank */
    NEW(e->cx, e->arena, e->uses, e->n_graphs);
    for (uint32_t g = 0; g < e->n_graphs; g++) {
        const ir_graph *ir = e->graphs[g].ir;
        NEW(e->cx, e->arena, e->uses[g], ir->ops.n);
        for (uint32_t i = 0; i < ir->ops.n; i++) {
            gen_use *use = &e->uses[g][i]; /* of this operator */
            gen_call c = call_of(e, g, i);
            *use = (gen_use){.instance = RT_NONE};
            if (is_no_work(ir, c.op))
                continue;
            use->body = gen_body_choose(&c, highest);
            if (!use->body)
                return gen_fail_no_body(e->cx, &c, highest, e->arch->name, e->jit);
            TRY(number_instance(e, &c, use->body, g, i, &use->instance));
            e->images |= use->body->images;
            use->wide = use->body->parts && gen_is_wide(&c);
            if (use->body->pack)
                use->body->pack(&c, &use->pack);
            e->of_rows |= use->body->of_rows;
        }
    }
    return MPK_OK;
}

/* ---- regimes ---- */

/* One kernel serves calls, programs with JIT tasks, and GPUs without a ring. */
static bool may_have_regimes(const emitter *e)
{
    return !e->jit && e->whole == GEN_KERNEL && e->arch->features & GEN_RING;
}

/* Give each graph its regime, and each instance the regimes whose graphs use it.  Graphs that are
 * all of one kind have one regime. */
static mpk_status find_regimes(emitter *e)
{
    uint32_t n_prompts = 0;
    NEW(e->cx, e->arena, e->regime_of, e->n_graphs);
    for (uint32_t g = 0; g < e->n_graphs && may_have_regimes(e); g++)
        n_prompts += e->regime_of[g] =
            gen_is_for_prompts(&e->graphs[g], e->uses[g]) ? GEN_PROMPTS : GEN_STREAMS;
    e->n_regimes = n_prompts && n_prompts < e->n_graphs ? GEN_REGIMES : 1;
    for (uint32_t g = 0; g < e->n_graphs; g++) {
        if (e->n_regimes == 1)
            e->regime_of[g] = GEN_STREAMS;
        for (uint32_t i = 0; i < e->graphs[g].ir->ops.n; i++)
            if (e->uses[g][i].instance != RT_NONE)
                e->instances.at[e->uses[g][i].instance].regimes |= 1u << e->regime_of[g];
    }
    return MPK_OK;
}

/* Has the program, a call, a task whose body would load boxes if there were tensor maps? */
static bool wants_boxes(emitter *e)
{
    const gen_graph *g = &e->graphs[0];
    bool wanted = false;
    for (uint32_t t = 0; !wanted && !g->jit && t < g->n_tasks; t++) {
        const uint32_t op = g->tasks[t].op;
        if (op == RT_NONE || !e->uses[0][op].body || !e->uses[0][op].body->parts)
            continue;
        const gen_call c = call_of(e, 0, op);
        const ir_box box = gen_box_of_task(&g->tasks[t], c.ir->tensors.at[c.op->out[0]].rank);
        wanted = gen_wants_boxes(&c, e->uses[0][op].body, &box);
    }
    return wanted;
}

/* Decide for which regimes the host makes tensor maps (src/cuda/maps.c).  A call's ring must then
 * have all pages, so one with JIT tasks wants none. */
static void find_maps(emitter *e)
{
    if (!(e->arch->features & GEN_WGMMA))
        return;
    e->maps[GEN_PROMPTS] = true;
    e->maps[GEN_STREAMS] = e->whole == GEN_CALL && wants_boxes(e);
    for (uint32_t g = 0; g < e->n_graphs; g++)
        e->maps[e->regime_of[g]] |= gen_needs_maps(&e->graphs[g], e->uses[g]);
}

/* Divide an SM's shared memory: scratch for the body that needs most, and the ring's pages. */
static void find_room(emitter *e, uint32_t regime)
{
    const gen_arch *a = e->arch;
    gen_room *room = &e->rooms[regime];
    bool pairs = e->maps[regime]; /* pages that begin at even places: of boxes (linear_box.cuh) */
    for (const gen_instance *k = e->instances.at; k < e->instances.at + e->instances.n; k++) {
        if (k->regimes >> regime & 1 && k->scratch_bytes > room->scratch_bytes)
            room->scratch_bytes = k->scratch_bytes;
        pairs |= k->regimes >> regime & 1 && k->body->pairs;
    }
    room->scratch_bytes = (room->scratch_bytes + 1023) / 1024 * 1024;
    const uint32_t used = room->scratch_bytes + RT_OWN_BYTES; /* the rest is pages */
    const uint32_t fit = used < a->shared_bytes ? (a->shared_bytes - used) / a->page_bytes : 0;
    room->n_pages = fit < a->n_pages && !is_tested(e) ? fit : a->n_pages;
    room->n_pages -= pairs ? room->n_pages % 2 : 0;
}

/* ---- what a regime needs ---- */

/* Collect the units of a regime.  The first four always exist, because the roles of warps have
 * code even where no body stands beside them. */
static void find_units(emitter *e, uint32_t regime)
{
    const bool shares = e->forms[regime] >> TILE_FORM_PARTS & 1, joint = e->short_forms[regime];
    e->units[regime] =
        1u << GEN_UNIT_KERNEL | 1u << GEN_UNIT_ROLES | 1u << GEN_UNIT_STEP | 1u << GEN_UNIT_PLAIN;
    for (size_t i = 0; i < e->instances.n; i++) {
        const gen_body *b = e->instances.at[i].body;
        if (e->instances.at[i].regimes >> regime & 1)
            e->units[regime] |=
                1u << gen_unit_of(b) | (uint32_t)(b->parts && shares) << GEN_UNIT_PARTS |
                (uint32_t)(gen_unit_of(b) == GEN_UNIT_PRODUCTS && joint) << GEN_UNIT_SHORT;
    }
}

/* Which operators of a regime have tensor maps?  The host fails if it cannot make those of a kernel
 * (src/cuda/maps.c); in a call some operands may lie elsewhere each time. */
static gen_maps maps_of(const emitter *e, uint32_t regime)
{
    if (!e->maps[regime])
        return GEN_MAPS_NONE;
    return e->whole == GEN_KERNEL ? GEN_MAPS_ALL : GEN_MAPS_SOME;
}

/* Add the forms that the tasks of a graph need: all of them if the tasks are not known yet. */
static void add_forms(emitter *e, uint32_t graph)
{
    const gen_graph *g = &e->graphs[graph];
    const uint32_t regime = e->regime_of[graph];
    for (ir_op_id op = 0; op < g->ir->ops.n; op++)
        e->centred |= gen_is_centred(g->ir, op), e->terms |= gen_is_of_terms(g->ir, op);
    if (!g->tasks)
        e->forms[regime] = e->short_forms[regime] = UINT64_MAX;
    for (uint32_t t = 0; g->tasks && t < g->n_tasks; t++) {
        const uint32_t op = g->tasks[t].op;
        const gen_body *body = op != RT_NONE ? e->uses[graph][op].body : NULL;
        if (!body || !body->forms)
            continue;
        const gen_call c = call_of(e, graph, op);
        const ir_box box = gen_box_of_task(&g->tasks[t], c.ir->tensors.at[c.op->out[0]].rank);
        const bool is_short = box.hi[0] - box.lo[0] <= RT_SHORT_TOKENS && body->many;
        *(is_short ? &e->short_forms[regime] : &e->forms[regime]) |=
            body->forms(&c, &box, maps_of(e, regime));
    }
}

/* Tasks of at most 64 tokens have a unit of their own if some of them come by boxes. */
static void join_forms(emitter *e, uint32_t regime)
{
    if (e->short_forms[regime] >> TILE_FORM_JOINT & 1)
        return;
    e->forms[regime] |= e->short_forms[regime];
    e->short_forms[regime] = 0;
}

/* ---- the whole ---- */

static const char unit_macros[] =
    "#ifndef MPK_UNIT\n#define MPK_UNIT 0 /* not 0: one of the units that are linked (units.cuh) "
    "*/\n#endif\n"
    "#ifndef MPK_REGIME\n#define MPK_REGIME 0 /* whose kernel this is */\n#endif\n"
    "#if MPK_UNIT > 1\n#define MPK_ELSEWHERE extern\n#else\n#define MPK_ELSEWHERE\n#endif\n";

/* Names of the units, by gen_unit. */
static const char *const unit_names[] = {"KERNEL", "ROLES", "STEP",     "PLAIN", "SOME", "EXPERTS",
                                         "HEADS",  "ROWS",  "PRODUCTS", "PARTS", "SHORT"};

/* *any: are there JIT tasks?  *loads: do bodies of JIT tasks load?  If not, AOT tasks have all
 * pages. */
static void find_jit(const emitter *e, bool *any, bool *loads)
{
    *any = *loads = false;
    for (uint32_t g = 0; g < e->n_graphs; g++)
        for (uint32_t i = 0; e->graphs[g].jit && i < e->graphs[g].ir->ops.n; i++)
            if (e->graphs[g].jit[i]) {
                *any = true;
                *loads |= e->uses[g][i].body && e->uses[g][i].body->loads;
            }
}

/* Text that differs between regimes stands between begin_regime and end_regimes, one branch of an
 * #if for each; the last regime has the #else. */
static void begin_regime(emitter *e, uint32_t regime)
{
    if (regime + 1 < e->n_regimes)
        text_print(&e->out, "\n#if MPK_REGIME == %u\n", regime);
    else if (regime)
        text_print(&e->out, "\n#else\n");
}

static void end_regimes(emitter *e)
{
    if (e->n_regimes > 1)
        text_print(&e->out, "\n#endif\n");
}

/* Pages of the smaller ring.  Tests always run bodies in half of the pages, as JIT tasks would. */
static uint32_t least_pages(const emitter *e, uint32_t n_pages, bool jit)
{
    return e->arch->features & GEN_RING && (jit || is_tested(e)) ? n_pages / 2 : n_pages;
}

/* The forms that tasks need.  GEN_BODIES gets none, because each tested task brings its own. */
static void print_forms(emitter *e, uint32_t regime)
{
    const uint64_t most = e->forms[regime], of_short = e->short_forms[regime];
    text_print(&e->out, "/* what tasks of many tokens need (linear_tile_shape.h) */\n");
    if (of_short)
        text_print(&e->out,
                   "#if MPK_UNIT == MPK_UNIT_SHORT\n#define MPK_FORMS 0x%llxull\n"
                   "#elif MPK_UNIT == MPK_UNIT_PRODUCTS || MPK_UNIT == MPK_UNIT_PARTS\n"
                   "#define MPK_FORMS 0x%llxull\n#else\n",
                   (unsigned long long)of_short, (unsigned long long)most);
    text_print(&e->out,
               "#define MPK_FORMS 0x%llxull\n%s"
               "#define MPK_ONE_WIDE %d /* one loop for wide tasks without boxes */\n"
               "#define MPK_CENTRED %d /* rows have two sums */\n"
               "#define MPK_TERMS %d /* x of few tokens may be a sum of terms */\n",
               (unsigned long long)(most | of_short), of_short ? "#endif\n" : "", e->maps[regime],
               e->centred, e->terms);
}

/* The sizes of each regime: pages, scratch, units and forms. */
static void print_rooms(emitter *e)
{
    bool jit, loads;
    find_jit(e, &jit, &loads);
    for (uint32_t r = 0; r < e->n_regimes; r++) {
        begin_regime(e, r);
        const gen_room *room = &e->rooms[r];
        text_print(&e->out, "#define MPK_PAGES %u /* of the ring */\n", room->n_pages);
        text_print(&e->out,
                   "#define MPK_JIT_PAGES %u /* of these, kept for the loads of JIT tasks */\n",
                   loads && e->arch->features & GEN_RING ? room->n_pages / 2 : 0);
        text_print(
            &e->out,
            "#define MPK_LEAST_PAGES %u /* of a ring: the most that a body takes at once */\n",
            least_pages(e, room->n_pages, loads));
        text_print(&e->out, "#define MPK_SCRATCH_BYTES %u /* of shared memory for a body */\n",
                   room->scratch_bytes);
        text_print(&e->out, "#define MPK_MAPS %d /* bodies may copy boxes by tensor maps */\n",
                   e->maps[r] || (e->whole == GEN_BODIES && e->arch->features & GEN_WGMMA) ? 1 : 0);
        text_print(&e->out, "#define MPK_UNITS 0x%xu /* bit u: unit u has bodies */\n",
                   e->units[r]);
        if (e->whole != GEN_BODIES)
            print_forms(e, r);
    }
    end_regimes(e);
}

/* The constants by which the headers of device/ are compiled.  Each line says what it means,
 * because people read the text, too. */
static void print_constants(emitter *e)
{
    const gen_arch *a = e->arch;
    bool jit, loads;
    find_jit(e, &jit, &loads);
    text_print(&e->out,
               "/* A program for %s (%s) on %u workers: %u graphs, %zu kinds of tasks.  Generated "
               "by mpk; compiles alone, "
               "with\n * NVRTC or with nvcc -std=c++17 -arch=%s. */\n",
               a->gpu, a->name, e->n_workers, e->n_graphs, e->instances.n, a->name);
    text_print(&e->out,
               "#ifndef MPK_THREADS\n#define MPK_THREADS %u /* that call a body */\n#endif\n",
               a->body_threads);
    const struct {
        const char *name;
        uint32_t value;
        const char *meaning;
    } rows[] = {
        {"WORKER_THREADS", a->worker_threads,
         "of a worker: bodies, loader, step task, courier, scheduler"},
        {"WORKERS", e->n_workers, "that the program was compiled for"},
        {"PAGE_BYTES", a->page_bytes, "of a page of the loader's ring"},
        {"HYBRID", jit ? 1 : 0, "1: there are JIT tasks"},
        {"PEERS", e->n_peers, "GPUs that share the program, each with that many workers"},
        {"DRAFT_MODEL", e->graphs[e->n_graphs - 1].drafts,
         "1: the last graphs are a draft model's"},
        {"CALLS", e->whole == GEN_CALL, "1: each launch is a call, no requests are served"},
        {"RING", a->features & GEN_RING ? 1 : 0, "a page ring with mbarriers, filled by a loader"},
        {"BULK", a->features & GEN_BULK ? 1 : 0, "bulk copies, else the loader's lanes copy"},
        {"WGMMA", a->features & GEN_WGMMA ? 1 : 0, "warpgroup products"},
        {"ROOM", a->features & GEN_ROOM ? 1 : 0, "of shared memory for large scratch"},
        {"IMAGES", e->images, "some products are convolutions of images"},
        {"OF_ROWS", e->of_rows, "some products multiply weights that the step makes"},
        {"HALVES_F16", e->halves == IR_F16, "1: streamed products multiply f16, else bf16"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        text_print(&e->out, "#define MPK_%s %u /* %s */\n", rows[i].name, rows[i].value,
                   rows[i].meaning);
    text_print(&e->out, "%s", unit_macros);
    for (size_t i = 0; i < sizeof unit_names / sizeof *unit_names; i++)
        text_print(&e->out, "#define MPK_UNIT_%s %zu\n", unit_names[i], i + 1);
    text_print(&e->out, "#define MPK_REGIMES %u /* kernels of the program */\n", e->n_regimes);
    print_rooms(e);
    text_print(&e->out, "\n");
}

/* The table of KV caches.  A kernel has only their number, since the host sets the sizes; bodies
 * that are tested alone have no such host, so their table is filled in. */
static void print_caches(emitter *e)
{
    const bool told = is_tested(e); /* sizes stand in the text */
    if (!e->caches.n)
        return;
    text_print(
        &e->out,
        "/* Sizes of KV caches, from the host: pages[slots][slot_pages] of a cache of n_pages. */\n"
        "struct mpk_cache {\n    int slots, slot_pages, n_pages;\n};\n");
    text_print(&e->out, "extern \"C\" {\nMPK_ELSEWHERE __constant__ mpk_cache mpk_caches[%zu]%s",
               e->caches.n, told ? " = {" : ";\n");
    for (size_t i = 0; told && i < e->caches.n; i++)
        text_print(&e->out, "%s{%d, %d, %d}", i ? ", " : "", e->caches.at[i].slots,
                   e->caches.at[i].slot_pages, e->caches.at[i].n_pages);
    text_print(&e->out, "%s}\n\n", told ? "};\n" : "");
}

/* The files of the bodies that occur, in the order of the instances, after what they include. */
static mpk_status print_headers(emitter *e)
{
    char name[128];
    TRY(gen_files_add(e->cx, e->arena, &e->printed, &e->out, STR("tile/task.cuh")));
    if (e->whole != GEN_GENERIC)
        TRY(gen_files_add(e->cx, e->arena, &e->printed, &e->out, STR("tile/ring.cuh")));
    for (size_t i = 0; i < e->instances.n; i++) {
        snprintf(name, sizeof name, "task/%s.cuh", e->instances.at[i].body->name);
        const gen_text *file = gen_files_find(str_from(name));
        CHECK(e->cx, file, MPK_EVERIFY, "device source \"%s\" is not there", name);
        TRY(gen_files_add(e->cx, e->arena, &e->printed, &e->out, str_from(file->name)));
    }
    return MPK_OK;
}

/* A comment in the text that says which operators an instance serves. */
static void print_use(emitter *e, uint32_t i)
{
    const gen_instance *k = &e->instances.at[i];
    const ir_op *op = &e->graphs[k->graph].ir->ops.at[k->op];
    text_print(
        &e->out,
        "\n/* %u: %s by %s, for %u operators; the first is %%%.*s of the graph for %u tokens */\n",
        i, op->def->name, k->body->name, k->uses, STR_ARG(op->name), e->graphs[k->graph].n_tokens);
}

/* Does instance i call a routine with shapes of this kind? */
static bool has_shape(const emitter *e, uint32_t i, const char *shape)
{
    const gen_routine *routine = e->instances.at[i].routine;
    return routine && strcmp(routine->shape, shape) == 0;
}

/* The first instance with a shape of this kind; *end is one past the last such. */
static uint32_t find_shapes(const emitter *e, const char *shape, uint32_t *end)
{
    uint32_t first = 0;
    while (!has_shape(e, first, shape))
        first++;
    *end = (uint32_t)e->instances.n;
    while (!has_shape(e, *end - 1, shape))
        --*end;
    return first;
}

/* The table of all shapes of one kind: entry i belongs to instance first + i.  A kernel has 64 KB
 * of constant memory, so the unit of the kernel defines the table and the others refer to it. */
static void print_shapes(emitter *e, const char *shape, uint32_t first, uint32_t end)
{
    text_print(&e->out,
               "\n#if MPK_UNIT > 1\nextern __constant__ %s %s_of[%u];\n#else\n"
               "__constant__ %s %s_of[%u] = {\n",
               shape, shape, end - first, shape, shape, end - first);
    for (uint32_t i = first; i < end; i++) {
        const gen_instance *k = &e->instances.at[i];
        if (!has_shape(e, i, shape)) {
            text_print(&e->out, "    {},\n"); /* of another kind: never read */
            continue;
        }
        print_use(e, i);
        text_print(&e->out, "    %.*s,\n", STR_ARG(k->text));
    }
    text_print(&e->out, "};\n#endif\n");
}

/* Print all instances in order: one with a function of its own as it is; shapes of a kind as one
 * table, in the place of the first. */
static void print_instances(emitter *e)
{
    for (uint32_t i = 0; i < e->instances.n; i++) {
        const gen_instance *k = &e->instances.at[i];
        if (k->routine) {
            uint32_t end; /* of the table */
            if (find_shapes(e, k->routine->shape, &end) == i)
                print_shapes(e, k->routine->shape, i, end);
            continue;
        }
        print_use(e, i);
        text_add(&e->out, k->text.at, k->text.n);
    }
}

/* Which instances a switch chooses among. */
typedef enum {
    OF_PLAIN,
    OF_MANY,
    OF_MANY_WAITING,
    OF_SOME,
    OF_WAITING,
    OF_LOADING,
    OF_UNIT /* + gen_unit */
} choice;

/* Is the body in the set?  OF_MANY, OF_SOME, OF_WAITING and OF_PLAIN are disjoint and hold all
 * bodies; the other sets overlap with these. */
static bool is_chosen(const gen_body *b, choice of)
{
    if (of == OF_UNIT + GEN_UNIT_PARTS)
        return b->parts;
    if (of == OF_UNIT + GEN_UNIT_SHORT) /* tasks of at most 64 tokens */
        return gen_unit_of(b) == GEN_UNIT_PRODUCTS;
    if (of >= OF_UNIT)
        return gen_unit_of(b) == (gen_unit)(of - OF_UNIT);
    if (of == OF_LOADING)
        return b->loads;
    if (of == OF_MANY_WAITING)
        return b->many && b->waits;
    if (b->many || b->some)
        return of == (b->many ? OF_MANY : OF_SOME);
    return of == (b->waits ? OF_WAITING : OF_PLAIN);
}

/* Is instance i in the set, and used by the regime whose switches are printed (e->regime)? */
static bool is_of(const emitter *e, uint32_t i, choice of)
{
    const gen_instance *k = &e->instances.at[i];
    return k->regimes >> e->regime & 1 && is_chosen(k->body, of);
}

/* Is i the first instance of the set that calls its routine? */
static bool is_first_of_routine(const emitter *e, uint32_t i, choice of)
{
    for (uint32_t k = 0; k < i; k++)
        if (is_of(e, k, of) && e->instances.at[k].routine == e->instances.at[i].routine)
            return false;
    return e->instances.at[i].routine != NULL;
}

/* At the first instance that calls a routine: one case for all instances of the set that do. */
static void print_shared_case(emitter *e, uint32_t first, choice of)
{
    const gen_routine *r = e->instances.at[first].routine;
    if (!is_first_of_routine(e, first, of))
        return;
    uint32_t end;
    const uint32_t shapes = find_shapes(e, r->shape, &end);
    for (uint32_t i = first; i < e->instances.n; i++)
        if (is_of(e, i, of) && e->instances.at[i].routine == r)
            text_print(&e->out, "    case %u:\n", i);
    text_print(&e->out, "        %s(t, %s_of[body - %u]);\n        break;\n",
               of == OF_LOADING ? r->load : r->body, r->shape, shapes);
}

/* A switch over the instances of a choice, mpk_dispatch_NAME:
 *
 *   case 7:
 *       body_7(mpk_apart(t));
 *       break;
 *
 * Instances with a routine share its one call, which finds the shape by the number. */
static void print_dispatch(emitter *e, const char *name, const char *type, const char *call,
                           choice of)
{
    text_print(
        &e->out,
        "\nMPK_FN void mpk_dispatch_%s(rt_u32 body, %s &t)\n{\n    (void)t;\n    switch (body) {\n",
        name, type);
    for (uint32_t i = 0; i < e->instances.n; i++) {
        const gen_instance *k = &e->instances.at[i];
        if (!is_of(e, i, of))
            continue;
        if (k->routine)
            print_shared_case(e, i, of);
        else
            text_print(&e->out, "    case %u:\n        %s_%u(%s);\n        break;\n", i, call, i,
                       k->body->loads ? "t" : "mpk_apart(t)");
    }
    text_print(&e->out, "    default:\n        break;\n    }\n}\n");
}

/* mpk_body_NAME: is the instance one of these? */
static void print_question(emitter *e, const char *name, choice of)
{
    bool any = false; /* an empty switch returns false alone */
    text_print(&e->out, "\nMPK_FN bool mpk_body_%s(rt_u32 body)\n{\n    switch (body) {\n", name);
    for (uint32_t i = 0; i < e->instances.n; i++)
        if (is_of(e, i, of)) {
            text_print(&e->out, "    case %u:\n", i);
            any = true;
        }
    text_print(&e->out, "%s    default:\n        return false;\n    }\n}\n",
               any ? "        return true;\n" : "");
}

/* mpk_unit_of: in which unit is the instance, if its task has its tile alone?  0: it is waited for
 * or plain. */
static void print_units(emitter *e)
{
    text_print(&e->out, "\nMPK_FN rt_u32 mpk_unit_of(rt_u32 body)\n{\n    switch (body) {\n");
    for (uint32_t unit = GEN_UNIT_SOME; unit < GEN_UNIT_PARTS; unit++) {
        bool any = false;
        for (uint32_t i = 0; i < e->instances.n; i++)
            if (is_of(e, i, OF_UNIT + unit)) {
                text_print(&e->out, "    case %u:\n", i);
                any = true;
            }
        if (any)
            text_print(&e->out, "        return %u;\n", unit);
    }
    text_print(&e->out, "    default:\n        return 0;\n    }\n}\n");
}

/* The bodies for many tokens: all in a kernel that is compiled as a whole, in a unit its own. */
static void print_many(emitter *e)
{
    text_print(&e->out, "\n#if MPK_UNIT == 0\n");
    print_dispatch(e, "many", "const mpk_task", "body", OF_MANY);
    for (uint32_t unit = GEN_UNIT_SOME + 1; unit < GEN_UNITS; unit++)
        if (e->units[e->regime] >> unit & 1) {
            text_print(&e->out, "\n#elif MPK_UNIT == %u\n", unit);
            print_dispatch(e, "many", "const mpk_task", "body", OF_UNIT + unit);
        }
    text_print(&e->out, "\n#endif\n");
}

/* The switches of one regime. */
static void print_switches(emitter *e)
{
    print_units(e);
    print_question(e, "many", OF_MANY);
    print_question(e, "many_waits", OF_MANY_WAITING);
    print_question(e, "some", OF_SOME);
    text_print(&e->out, "\n#if MPK_UNIT == 0 || MPK_UNIT == %d\n", GEN_UNIT_SOME);
    print_dispatch(e, "some", "const mpk_task", "body", OF_SOME);
    text_print(&e->out, "\n#endif\n\n#if MPK_UNIT == 0 || MPK_UNIT == %d\n", GEN_UNIT_PLAIN);
    print_dispatch(e, "plain", "const mpk_task", "body", OF_PLAIN);
    text_print(&e->out, "\n#endif\n");
    print_many(e);
    text_print(&e->out,
               "\n#if MPK_UNIT == 0\n\nMPK_FN void mpk_dispatch_body(rt_u32 body, const "
               "mpk_task &t)\n"
               "{\n    if (mpk_body_many(body))\n        mpk_dispatch_many(body, t);\n    else\n"
               "        mpk_dispatch_plain(body, t);\n}\n\n#endif\n");
    if (e->whole == GEN_GENERIC)
        return;
    print_dispatch(e, "waiting", "const mpk_task", "body", OF_WAITING);
    if (e->arch->features & GEN_RING)
        print_dispatch(e, "load", "mpk_load", "load", OF_LOADING);
    print_question(e, "waits", OF_WAITING);
    print_question(e, "loads", OF_LOADING);
}

/* The text, in the order in which C needs it: constants, sizes of caches, files, instances,
 * switches, the kernel.  Bodies alone, for tests, get no kernel around them. */
static mpk_status print_all(emitter *e)
{
    print_constants(e);
    print_caches(e);
    TRY(print_headers(e));
    print_instances(e);
    for (e->regime = 0; e->regime < e->n_regimes; e->regime++) {
        begin_regime(e, e->regime);
        print_switches(e);
    }
    end_regimes(e);
    if (is_tested(e))
        return MPK_OK;
    TRY(gen_files_add(e->cx, e->arena, &e->printed, &e->out, STR("units.cuh")));
    text_print(&e->out, "\n#if MPK_UNIT <= MPK_UNIT_STEP\n");
    TRY(gen_files_add(e->cx, e->arena, &e->printed, &e->out, STR("kernel.cuh")));
    text_print(&e->out, "\n#endif\n");
    return MPK_OK;
}

/* First everything is decided and all instances are printed, then the text is put together; what
 * *out points to is in the arena.  No file is read and no compiler is needed. */
mpk_status gen_source_make(mpk_context *cx, arena *a, uint32_t n_graphs, const gen_graph *graphs,
                           uint32_t n_workers, const gen_arch *arch, gen_whole whole,
                           gen_source *out)
{
    emitter e = {.cx = cx,
                 .arena = a,
                 .arch = arch,
                 .whole = whole,
                 .n_workers = n_workers,
                 .n_graphs = n_graphs,
                 .graphs = graphs};
    e.n_peers = gen_find_peers(n_graphs, graphs);
    e.jit = gen_has_jit(n_graphs, graphs);
    e.halves = gen_find_halves(n_graphs, graphs);
    e.least_pages = gen_find_pages(n_graphs, graphs, arch);
    TRY(choose_all(&e));
    TRY(find_regimes(&e));
    find_maps(&e);
    /* what tasks need can be told only when every operator has its body and every graph its
     * regime */
    for (uint32_t g = 0; g < n_graphs; g++)
        add_forms(&e, g);
    if (whole == GEN_CALL && graphs[0].tasks)
        TRY(gen_drop_parts(cx, a, &graphs[0], e.uses[0], n_workers, &e.forms[GEN_STREAMS]));
    for (uint32_t r = 0; r < e.n_regimes; r++) {
        join_forms(&e, r);
        find_room(&e, r);
        find_units(&e, r);
    }
    TRY(gen_files_finish(cx, a, print_all(&e), &e.out, &out->text));
    out->n_instances = (uint32_t)e.instances.n;
    out->instances = e.instances.at;
    out->uses = (const gen_use *const *)e.uses;
    out->n_caches = (uint32_t)e.caches.n;
    out->caches = e.caches.at;
    out->n_regimes = e.n_regimes;
    out->centred = e.centred;
    out->regime_of = e.regime_of;
    memcpy(out->rooms, e.rooms, sizeof e.rooms);
    memcpy(out->units, e.units, sizeof e.units);
    for (uint32_t r = 0; r < e.n_regimes; r++) {
        out->maps[r] = e.maps[r];
        out->joint[r] = e.maps[r] && e.short_forms[r];
        out->x_maps[r] =
            e.maps[r] || gen_wants_boxes_of_x(e.arch->features, e.forms[r] | e.short_forms[r]);
    }
    return MPK_OK;
}
