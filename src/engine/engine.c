/* engine.c - open a model, compile it, start the machine; and the reverse.
 *
 * Threads of an engine: the callers', the collector (engine_request.c), one that follows forms
 * (engine_form.c), and those of the machine.  They are stopped so that no thread calls into a part
 * that is gone: first the collector, which calls requests and forms; then the forms' thread, which
 * calls the machine; then the machine.  The caller has freed all requests before (mpk.h).
 *
 * Input: a model's path and options; output: an mpk_engine, and facts about it.  Relies on
 * engine_compile.c for everything up to the machine.  Called through mpk.h, and by
 * engine_calibrate.c, which opens an engine with a watcher.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "engine/engine_form.h"

/* Does the program fit the model?  An image comes from a file, so what the engine relies on is
 * compared: slots and pages with the plan, and the width of the output with the model, which for
 * embeddings is a hidden state. */
static mpk_status check_machine(mpk_context *cx, mpk_engine *e)
{
    machine_facts facts;
    machine_describe(e->machine, &facts);
    const engine_plan *p = &e->build.plan;
    const model_config *c = &e->build.model.config;
    CHECK(cx,
          facts.n_slots == p->max_batch && facts.n_pages == p->n_pages &&
              facts.n_vocab == (e->build.options.embeddings ? c->hidden_size : c->vocab_size),
          MPK_EFORMAT,
          "the program is not of this model, or of embeddings where logits are wanted or the "
          "reverse: it has %u slots, "
          "%u pages and %u logits",
          facts.n_slots, facts.n_pages, facts.n_vocab);
    return MPK_OK;
}

/* From a compiled build with bound weights to a running engine.  Each step leaves its trace in *e
 * (has_mutex, machine, forms, has_collector), by which mpk_engine_close undoes what was reached.
 * The collector comes last: as soon as it runs it takes the mutex and calls forms and machine. */
static mpk_status start(mpk_context *cx, mpk_engine *e, const machine_watcher *watcher)
{
    int error = pthread_mutex_init(&e->mutex, NULL);
    CHECK(cx, !error, MPK_ENOMEM, "no mutex: %s", strerror(error));
    e->has_mutex = true;
    e->tokens.tokenizer = e->build.model.tokenizer;
    e->tokens.chats = &e->build.model;
    engine_code code = {{e->build.code.at, e->build.code.n}, e->build.key};
    machine_weights weights = {.at = e->weights, .seed = e->build.options.random_seed};
    TRY(engine_join_files(cx, &e->build, &weights.files, &weights.n_files));
    TRY(engine_start_machine(cx, &e->build.image, &e->build.options, &e->build.device, &code,
                             &weights, watcher, e->build.ranks, &e->machine));
    TRY(check_machine(cx, e));
    TRY(engine_forms_open(cx, e));
    return e->build.options.rank ? MPK_OK : engine_start_collector(cx, e);
}

/* The caller gives *e as zeros, and closes it after a failure too.  Loading, compiling and waiting
 * for the device are told apart in the engine's facts, so what the machine spent on its device and
 * on waiting for code is taken out of the time since `begin`. */
static mpk_status open_engine(mpk_context *cx, const char *model, const mpk_engine_options *options,
                              const machine_watcher *watcher, mpk_engine *e)
{
    TRY(engine_build_open(cx, model, options, true, 0, &e->build));
    uint64_t begin = clock_ns();
    machine_facts facts;
    TRY(engine_bind_weights(cx, e));
    NOTE(cx, start(cx, e, watcher), "starting %s on %s with %u workers", model,
         e->build.device.name, e->build.plan.threads);
    machine_describe(e->machine, &facts);
    e->build.device_ns += facts.device_ns;
    e->build.load_ns += clock_ns() - begin - facts.device_ns - facts.code_wait_ns;
    e->build.compile_ns += facts.code_ns;
    return MPK_OK;
}

/* On failure everything is undone and *out keeps its value. */
mpk_status engine_open_watched(mpk_context *cx, const char *model,
                               const mpk_engine_options *options, const machine_watcher *watcher,
                               mpk_engine **out)
{
    mpk_engine *e = calloc(1, sizeof *e);
    CHECK(cx, e, MPK_ENOMEM, "out of memory for an engine");
    mpk_status status = open_engine(cx, model, options, watcher, e);
    if (status == MPK_OK)
        *out = e;
    else
        mpk_engine_close(e);
    return status;
}

mpk_status mpk_engine_open(mpk_context *cx, const char *model, const mpk_engine_options *options,
                           mpk_engine **out)
{
    return engine_open_watched(cx, model, options, NULL, out);
}

/* Takes an engine that was opened in part; each of the calls takes what is not there.  The order is
 * that of the comment at the top, and the build goes last: the machine runs its image and reads
 * weights in its mapped files. */
void mpk_engine_close(mpk_engine *e)
{
    if (!e)
        return;
    engine_stop_collector(e);
    engine_forms_close(e->forms);
    machine_stop(e->machine);
    if (e->has_mutex)
        pthread_mutex_destroy(&e->mutex);
    free(e->weights);
    engine_build_free(&e->build);
    free(e);
}

/* Looks at the machine now and then; its threads compute meanwhile.  Once more at the end: rank 0
 * also closes after a fault, and may do so before this rank has looked. */
mpk_status mpk_engine_attend(mpk_context *cx, mpk_engine *e)
{
    enum { LOOK_NS = 20000000 };
    CHECK(cx, e->build.options.rank, MPK_EARG, "this engine takes requests, it attends to none");
    while (!ranks_closed(e->build.ranks)) {
        TRY(machine_check(cx, e->machine));
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    return machine_check(cx, e->machine);
}

/* Do the model's files suggest a value (else it is 0), and one in the range that options accept? */
static bool is_said(float value, float most)
{
    return value > 0 && value <= most;
}

/* A caller that was built against an older header has a shorter struct, so fields past its size are
 * not written. */
void mpk_engine_suggest(const mpk_engine *e, mpk_request_options *options)
{
    const load_model *m = &e->build.model;
    if (options->size < offsetof(mpk_request_options, seed))
        return;
    if (is_said(m->suggested.temperature, 1e6f))
        options->temperature = m->suggested.temperature;
    if (m->suggested.top_k > 0)
        options->top_k = (uint32_t)m->suggested.top_k;
    if (is_said(m->suggested.top_p, 1))
        options->top_p = m->suggested.top_p;
    if (is_said(m->suggested.min_p, 1))
        options->min_p = m->suggested.min_p;
    if (options->size < offsetof(mpk_request_options, top_logprobs))
        return;
    if (is_said(m->suggested.typical_p, 1))
        options->typical_p = m->suggested.typical_p;
    if (is_said(m->suggested.repetition_penalty, 1e6f))
        options->repetition_penalty = m->suggested.repetition_penalty;
}

/* Any thread; a machine is described by one at a time, which the engine's mutex sees to.  The mutex
 * is part of an engine that is const to the caller: nothing that the caller can see changes. */
static void describe_machine(const mpk_engine *e, machine_facts *out)
{
    pthread_mutex_t *mutex = (pthread_mutex_t *)&e->mutex;
    pthread_mutex_lock(mutex);
    machine_describe(e->machine, out);
    pthread_mutex_unlock(mutex);
}

/* Facts of the plan and of the build never change after opening; those of `live` are read now.  As
 * with options, no more is written than the caller's struct has room for. */
void mpk_engine_describe(const mpk_engine *e, mpk_engine_facts *facts)
{
    const rt_header *h = e->build.image.block;
    const engine_plan *p = &e->build.plan;
    machine_facts live;
    describe_machine(e, &live);
    mpk_engine_facts all = {
        .vocab_size = e->build.model.config.vocab_size,
        .embedding_size = e->build.options.embeddings ? e->build.model.config.hidden_size : 0,
        .context_tokens = p->context_tokens,
        .max_batch = p->max_batch,
        .step_tokens = p->n_tokens[p->n_graphs - 1],
        .threads = p->threads,
        .weight_bytes = h->area_bytes[RT_WEIGHTS],
        .kv_bytes = p->kv_bytes,
        .other_bytes = h->area_bytes[RT_STEP] + h->area_bytes[RT_TEMPS] + live.scratch_bytes,
        .load_ns = e->build.load_ns,
        .compile_ns = e->build.compile_ns,
        .graphs = p->n_graphs,
        .tasks = (uint32_t)image_count(h, RT_TASKS),
        .events = (uint32_t)image_count(h, RT_EVENTS),
        .kernel_cached = live.code_cached,
        .program_cached = e->build.is_cached,
        .device_ns = e->build.device_ns,
        .kv_tokens = (uint64_t)p->n_pages * ENGINE_PAGE_TOKENS,
        .prefix_asked_tokens = live.asked,
        .drafted_tokens = live.drafted,
        .accepted_tokens = live.accepted,
        .draft_model_tokens = live.ahead_drafted,
        .draft_model_accepted_tokens = live.ahead_accepted,
        .draft_steps = live.ahead_steps,
        .prefix_found_tokens = live.found,
        .put_back = live.put_back,
        .kv_free_tokens = (uint64_t)live.free_pages * ENGINE_PAGE_TOKENS,
    };
    all.size = facts->size < sizeof all ? facts->size : sizeof all; /* what the caller knows */
    snprintf(all.device, sizeof all.device, "%.63s", live.device);
    memcpy(facts, &all, all.size);
}

/* For a caller that is about to write a file: would it overwrite one that is mapped here? */
bool mpk_engine_reads(const mpk_engine *e, const char *path)
{
    return engine_build_reads(&e->build, path);
}

/* The engine's own, valid until it is closed; the caller must not close it.  NULL: the model brings
 * none. */
const mpk_tokenizer *mpk_engine_tokenizer(const mpk_engine *e)
{
    return e->tokens.tokenizer ? &e->tokens : NULL;
}
