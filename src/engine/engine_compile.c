/* engine_compile.c - from MODEL to a compiled program with its weights, and to the machine that
 * runs it.
 *
 * Input: a path and options; output: an image, where the files have each weight, a machine.  The
 * target (host/target.h) decides what the passes are tuned for, what is compiled besides the image,
 * and how weights reach the device.  Called by engine.c to open an engine, by engine_image.c to
 * write an image, and by engine_inspect.c, which compiles a part and starts nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "engine/engine.h"

enum { PAGE_BYTES = 16384, PAGES_PER_WORKER = 1 << 16 };
/* A smaller weight is not divided among peers if its results would then have to be gathered:
 * reading it whole takes less time than the gather. */
enum { GATHER_BYTES = 1 << 20 };

/* For a refusal: the name of a target that can multiply by activations in 8 bits. */
static const char *who_narrows(void)
{
    for (const target_def *const *t = target_table; *t; t++)
        if ((*t)->narrows)
            return (*t)->title;
    return "no device";
}

/* What holds for every target is set here; `tune` comes last and may change any of it.  Degrees lie
 * in a, their texts in the options, which outlive the compilation.  With several peers all tasks
 * are launched ahead of time, whatever was asked for (engine_read_options refuses the rest). */
mpk_status engine_pass_options(mpk_context *cx, arena *a, const mpk_engine_options *from,
                               const target_device *device, uint32_t kv_heads, pass_options *to)
{
    static const pass_fusion fusions[] = {PASS_FUSE_FULL, PASS_FUSE_PAPER, PASS_FUSE_NONE};
    static const pass_launch launches[] = {PASS_LAUNCH_AUTO, PASS_LAUNCH_PAPER, PASS_LAUNCH_AOT,
                                           PASS_LAUNCH_JIT};
    pass_degree *degrees;
    NEW(cx, a, degrees, from->n_degrees);
    for (uint32_t i = 0; i < from->n_degrees; i++)
        degrees[i] = (pass_degree){str_from(from->degrees[i].match), from->degrees[i].axis,
                                   from->degrees[i].degree};
    *to = (pass_options){
        .n_workers = device->n_workers,
        .n_peers = device->n_peers,
        .gather_bytes = GATHER_BYTES,
        .own_experts = from->own_experts,
        .page_bytes = PAGE_BYTES, /* a target counts its own scratch when it chooses bodies */
        .pages_per_worker = PAGES_PER_WORKER,
        .fusion = fusions[from->fusion],
        .launch = device->n_peers > 1 ? PASS_LAUNCH_AOT : launches[from->launch],
        .coarse_events = from->coarse_events,
        .verify = from->verify,
        .degrees = degrees,
        .n_degrees = from->n_degrees,
    };
    CHECK(cx, device->target->narrows || from->activations != MPK_ACTIVATIONS_I8, MPK_EUNSUPPORTED,
          "activations in 8 bits (i8) are for %s: on %s say auto or f32", who_narrows(),
          device->target->title);
    to->narrow = from->activations == MPK_ACTIVATIONS_I8;
    device->target->tune(device, from, kv_heads, to);
    return MPK_OK;
}

/* ---- compile ---- */

/* b->is_loaded is set as soon as there is something to close.  Tensors are mapped, not read: the
 * cost is that of the files' headers and of the tokenizer. */
static mpk_status load(mpk_context *cx, const char *path, engine_build *b)
{
    TRY(engine_progress(cx, &b->options, "loading", 0));
    TRY(engine_load_model(cx, path, b->options.adapters, b->options.n_adapters, &b->model));
    b->is_loaded = true;
    CHECK(cx, b->model.has_config, MPK_EUNSUPPORTED,
          "%s is a vocabulary alone: it serves mpk tokenize, nothing else", path);
    return engine_progress(cx, &b->options, "loading", 1);
}

/* Is the program in the cache?  Then b->is_cached, and image and code are there.  It is not looked
 * for where compiling itself is what the user wants: to keep the source, to prove the task graph,
 * or to inspect a part.  b->key stays empty there, so that what is compiled is not kept either. */
static mpk_status look_into_cache(mpk_context *cx, engine_build *b, const pass_options *options,
                                  uint32_t n, ir_graph *const *graphs, const uint32_t *tokens)
{
    if (!b->device.held || !b->device.target->find_program || b->options.keep || options->verify)
        return MPK_OK;
    TRY(engine_program_key(cx, &b->arena, &b->device, options, n, graphs, tokens, &b->key));
    b->is_cached = engine_find_program(b);
    return MPK_OK;
}

/* The graphs of a program: those of the model, then those of the draft model. */
typedef struct wanted_graphs {
    const engine_build *b;
    uint32_t n, n_drafts;
    uint32_t n_tokens[2 * ENGINE_MAX_GRAPHS];
    ir_graph *graphs[2 * ENGINE_MAX_GRAPHS];
    arena arenas[2 * ENGINE_MAX_GRAPHS]; /* of each while it is built */
} wanted_graphs;

/* parallel: graph i, in an arena of its own. */
static mpk_status build_one(mpk_context *cx, void *user, uint32_t i)
{
    wanted_graphs *w = user;
    return engine_build_graph(cx, &w->arenas[i], w->b, i >= w->n - w->n_drafts, w->n_tokens[i],
                              &w->graphs[i]);
}

/* Which graphs there are to be.  only_tokens: only the first one that takes this many tokens, or
 * the last; 0: all. */
static void list_graphs(const engine_build *b, uint32_t only_tokens, wanted_graphs *w)
{
    const engine_plan *p = &b->plan;
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        const bool last = i + 1 == p->n_graphs;
        if (only_tokens && p->n_tokens[i] < only_tokens && !last)
            continue;
        w->n_tokens[w->n++] = p->n_tokens[i];
        if (only_tokens)
            return;
    }
    for (uint32_t i = 0; b->has_draft && i < p->n_graphs; i++) {
        if (p->n_tokens[i] > RT_MIXED_TOKENS) /* no draft step has more */
            return;
        w->n_tokens[w->n++] = p->n_tokens[i];
        w->n_drafts++;
    }
}

/* Build and compile the graphs of the plan, in one program.  Everything lies in b->arena, so a
 * failure needs no undoing. */
static mpk_status compile(mpk_context *cx, uint32_t only_tokens, engine_build *b)
{
    wanted_graphs w = {.b = b};
    pass_options options;
    TRY(engine_pass_options(cx, &b->arena, &b->options, &b->device,
                            model_kv_heads(&b->model.config), &options));
    options.narrow = b->device.target->narrows && b->options.activations != MPK_ACTIVATIONS_F32;
    list_graphs(b, only_tokens, &w);
    options.n_draft_graphs = w.n_drafts;
    TRY(engine_progress(cx, &b->options, "compiling", 0));
    mpk_status status = thread_each(cx, w.n, build_one, &w);
    for (uint32_t i = 0; i < w.n; i++)
        arena_adopt(&b->arena, &w.arenas[i]);
    TRY(status);
    TRY(look_into_cache(cx, b, &options, w.n, w.graphs, w.n_tokens));
    if (!b->is_cached) {
        TRY(pass_compile(cx, &b->arena, &options, w.n, w.graphs, w.n_tokens, &b->program));
        TRY(image_make(cx, &b->arena, &b->program, &b->image));
    }
    return engine_progress(cx, &b->options, "compiling", 1);
}

/* Linear attention keeps one state for all tokens of a text, those of drafts among them. */
static mpk_status check_drafts(mpk_context *cx, const engine_build *b)
{
    const bool tries = b->options.speculation || b->has_draft;
    CHECK(cx, !tries || (!b->model.config.delta_heads && !b->draft.config.delta_heads),
          MPK_EUNSUPPORTED,
          "models with linear attention cannot speculate: a token that was tried cannot be taken "
          "back from their state");
    return MPK_OK;
}

/* Options come first, so that a wrong one is told before a large file is read; the plan needs the
 * model and the device.  Of an image all of them come from the file, and the caller's options are
 * only compared.
 *
 * An image that is opened for running brings its program (b->image.block), and nothing is compiled.
 * One that is only looked at brings the plan, and is compiled anew from its model, for the task
 * graph is not in the file.  Times are taken at the seams: each part is what has passed since
 * `start` less what the parts before it took. */
mpk_status engine_build_open(mpk_context *cx, const char *model, const mpk_engine_options *options,
                             bool for_running, uint32_t only_tokens, engine_build *b)
{
    uint64_t start = clock_ns();
    CHECK(cx, model, MPK_EARG, "no model is given: its folder, file or image");
    TRY(engine_read_options(cx, &b->arena, options, &b->options));
    b->source = arena_copy(&b->arena, model, strlen(model));
    CHECK(cx, b->source, MPK_ENOMEM, "out of memory opening %s", model);
    CHECK(cx, b->options.mode != MPK_MODE_CALLS, MPK_EARG,
          "MPK_MODE_CALLS is for tensor programs (mpk/graph.h)");
    CHECK(cx, for_running || !b->options.meet, MPK_EARG,
          "meet is for engines that run, and nothing runs here");
    if (engine_is_image(model)) {
        CHECK(cx, !b->options.draft_model, MPK_EARG,
              "%s is an image, which holds one model: give the model itself to have a draft model",
              model);
        CHECK(cx, !b->options.n_adapters, MPK_EARG,
              "%s is an image, which has the adapters that it was compiled with: leave them away, "
              "or compile the model again with these",
              model);
        NOTE(cx, engine_read_image(cx, model, for_running, b), "opening the image %s", model);
        TRY(check_drafts(cx, b));
        TRY(engine_meet(cx, b));
        b->load_ns = clock_ns() - start - b->device_ns;
    } else {
        NOTE(cx, load(cx, model, b), "loading %s", model);
        b->load_ns = clock_ns() - start;
        TRY(engine_ask_routing(cx, b));
        TRY(engine_choose_device(cx, &b->options, for_running, &b->device));
        b->device_ns = clock_ns() - start - b->load_ns;
        TRY(load_order_heads(cx, &b->model, b->device.target->most_group));
        TRY(engine_open_draft(cx, b));
        TRY(check_drafts(cx, b));
        if (b->options.rank)
            TRY(engine_meet(cx, b));
        TRY(engine_make_plan(cx, for_running, b));
        if (!b->options.rank)
            TRY(engine_meet(cx, b));
    }
    if (b->options.random_weights && !b->model.tensors.n && !b->model.tokenizer)
        TRY(engine_make_tokenizer(cx, b->model.config.vocab_size, &b->model.tokenizer));
    if (b->image.block)
        return MPK_OK;
    NOTE(cx, compile(cx, only_tokens, b), "compiling %s", model);
    b->compile_ns = clock_ns() - start - b->load_ns - b->device_ns;
    return MPK_OK;
}

/* Takes a build that was opened in part, or one of zeros; *b is zeros afterwards, so a second call
 * does nothing. */
void engine_build_free(engine_build *b)
{
    if (b->is_loaded)
        load_close(&b->model);
    if (b->has_draft)
        load_close(&b->draft);
    ranks_free(b->ranks);
    engine_leave_device(&b->device);
    text_free(&b->code);
    arena_free(&b->arena);
    *b = (engine_build){0};
}

/* `source` alone names an image; the files of a model are asked of the model. */
bool engine_build_reads(const engine_build *b, const char *path)
{
    return (b->source && file_is_same(b->source, path)) || load_reads(&b->model, path) ||
           (b->has_draft && load_reads(&b->draft, path));
}

/* ---- weights ---- */

/* The tensor of the file that a weight of the program is, or is a part of: a peer's share of a
 * weight names the whole, the axis and the range.  Its sizes are compared, because an image's
 * program may have been compiled for another file.  A target that works in bf16 may have it in
 * another dtype. */
static mpk_status find_weight(mpk_context *cx, const mpk_engine *e, uint32_t i,
                              const load_tensor **out)
{
    const tg_weight *w = &e->build.image.weights[i];
    ir_share share = ir_read_share(w->name);
    char name[256];
    str whole = share.whole;
    const load_model *model = engine_weight_model(&e->build, &whole);
    CHECK(cx, whole.n < sizeof name, MPK_EFORMAT, "a weight's name has %zu bytes", whole.n);
    snprintf(name, sizeof name, "%.*s", STR_ARG(whole));
    const load_tensor *t = load_find(model, name);
    CHECK(cx, t, MPK_EFORMAT, "%.*s has no weight %s", STR_ARG(model->path), name);
    bool same = t->rank == w->rank &&
                (e->build.device.target->works_in_bf16 || t->dtype == w->dtype) &&
                (share.axis == IR_NONE || share.axis < w->rank);
    for (uint32_t d = 0; same && d < w->rank; d++)
        same = d == share.axis ? t->dims[d] == share.size && w->dims[d] == share.hi - share.lo
                               : t->dims[d] == w->dims[d];
    CHECK(cx, same, MPK_ESHAPE,
          "weight %s is not of the shape and dtype that the program was compiled for", name);
    *out = t;
    return MPK_OK;
}

/* For messages. */
static const double GIB = 1 << 30;

/* Bytes of the weights that have to be copied because they lie in pieces; all others are read where
 * they are mapped.  A weight that is not in the file is left to find_weight, which refuses it. */
static uint64_t copied_bytes(const mpk_engine *e)
{
    uint64_t n = 0, index;
    for (uint32_t i = 0; i < e->build.image.n_weights; i++) {
        const tg_weight *w = &e->build.image.weights[i];
        str name = ir_read_share(w->name).whole;
        const load_model *model = engine_weight_model(&e->build, &name);
        if (!map_get(&model->names, name, &index))
            continue;
        const load_tensor *t = &model->tensors.at[index];
        if (!host_weight_in_place(w, &(machine_weight){t->data, t->dtype, t->parts}))
            n += host_weight_bytes(w);
    }
    return n;
}

/* What is not mapped from files must fit into memory: said now, with numbers, instead of by the
 * system later, which would end the process.  On a device with memory of its own that is
 * everything; elsewhere weights count only if they are made up or have to be copied. */
static mpk_status check_memory(mpk_context *cx, const mpk_engine *e)
{
    const rt_u64 *area = e->build.image.block->area_bytes;
    const target_device *d = &e->build.device;
    bool own = d->target->has_own_memory, counted = own || e->build.options.random_weights;
    uint64_t weights = counted ? area[RT_WEIGHTS] : copied_bytes(e), kv = e->build.plan.kv_bytes;
    uint64_t other = area[RT_STEP] + area[RT_TEMPS];
    const char *kind = counted && !own ? "made-up " : "";
    const char *place = own ? d->name : "this machine";
    const char *also = e->build.plan.kv_dtype == IR_F32 ? ", or keep the KV cache in bf16" : "";
    CHECK(cx, weights + kv + other <= d->free_bytes, MPK_ELIMIT,
          "this takes %.2f GiB of memory (%sweights %.2f, KV cache %.2f, activations %.2f), but "
          "only %.2f are free on %s: lower the context or the batch%s",
          (double)(weights + kv + other) / GIB, kind, (double)weights / GIB, (double)kv / GIB,
          (double)other / GIB, (double)d->free_bytes / GIB, place, also);
    return MPK_OK;
}

/* Fill e->weights, which mpk_engine_close frees.  Random weights are bound to nothing here: the
 * machine makes them from the seed, but for routers with a law of their own (engine_make_routers).
 * Memory is checked first, before any page of a weight is touched. */
mpk_status engine_bind_weights(mpk_context *cx, mpk_engine *e)
{
    uint32_t n = e->build.image.n_weights;
    CHECK(cx, e->build.options.random_weights || e->build.model.tensors.n, MPK_EARG,
          "%.*s has a configuration but no weights: put them beside it, or have them made up "
          "(--random-weights=SEED)",
          STR_ARG(e->build.model.path));
    TRY(check_memory(cx, e));
    e->weights = calloc(n + 1, sizeof *e->weights);
    CHECK(cx, e->weights, MPK_ENOMEM, "out of memory for %u weights", n);
    for (uint32_t i = 0; i < n && !e->build.options.random_weights; i++) {
        const load_tensor *t;
        TRY(find_weight(cx, e, i, &t));
        e->weights[i] = (machine_weight){t->data, t->dtype, t->parts};
    }
    return engine_make_routers(cx, &e->build, e->weights);
}

/* ---- starting ---- */

/* As target_start.progress. */
static mpk_status tell_progress(mpk_context *cx, void *options, const char *stage, double done)
{
    return engine_progress(cx, options, stage, done);
}

/* What code that is compiled while a machine starts belongs to. */
typedef struct made_for {
    const target_def *target;
    const program_image *image;
    str key;
    engine_proof proof; /* zeros: of an image from the cache, which was proved before it was kept */
} made_for;

/* target_start.made: the target has compiled `code`, which goes into the cache of programs.  A
 * program that cannot be proved is refused by engine_start_machine. */
static void keep_made(mpk_context *cx, void *user, str code)
{
    made_for *of = user;
    if (engine_end_proof(&of->proof) == MPK_OK)
        engine_keep_program(cx, of->target, of->key, of->image, code);
}

/* The machine is there.  Without the proof of its program it goes again, before it gets work. */
static mpk_status require_proof(mpk_context *cx, engine_proof *proof, machine **out)
{
    const mpk_status status = engine_end_proof(proof);
    if (status == MPK_OK)
        return MPK_OK;
    machine_stop(*out);
    *out = NULL;
    return status_fail(cx, status, "the compiled program cannot be proved: %s", proof->cx.text);
}

/* With a key, code that the target compiles is handed to keep_made; without one nothing is kept.
 * The copy `told` is there because a callback's user pointer is not const. */
mpk_status engine_start_machine(mpk_context *cx, const program_image *image,
                                const mpk_engine_options *o, const target_device *device,
                                const engine_code *code, const machine_weights *weights,
                                const machine_watcher *watcher, host_ranks *ranks, machine **out)
{
    mpk_engine_options told = *o;
    made_for of = {.target = device->target, .image = image, .key = code->key};
    const target_start start = {
        .options = o,
        .weights = *weights,
        .code = code->code,
        .code_may_differ = code->key.at != NULL,
        .made = code->key.at ? keep_made : NULL,
        .made_user = &of,
        .watcher = watcher,
        .ranks = ranks,
        .progress = tell_progress,
        .progress_user = &told,
    };
    if (code->key.at && !code->code.n)
        engine_begin_proof(image, &of.proof);
    mpk_status status = device->target->start(cx, image, device, &start, out);
    if (status == MPK_OK)
        return require_proof(cx, &of.proof, out);
    engine_end_proof(&of.proof);
    return status;
}
