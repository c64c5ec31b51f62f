/* engine_ranks.c - one process for each peer (docs/gpus.md): who they are to each other.
 *
 * Input: a build whose model is loaded and whose device is known.  Output: the ranks that have met.
 * Each tells rank 0 in words what it was started with, so that a rank of another version, model or
 * option is refused by the name of what differs.  Options that change the program and are not named
 * here are found when the machine starts, by a hash of the program.  Called by engine_compile.c.
 */
#include <inttypes.h>

#include "engine/engine.h"

enum { MEET_SECONDS = 60 };

/* What the options give the program and nothing that a process may have for itself, as where it
 * reads the model or what it prints. */
static mpk_status print_terms(mpk_context *cx, const engine_build *b, text *t)
{
    const mpk_engine_options *o = &b->options;
    uint64_t model, draft = 0;
    TRY(engine_fingerprint(cx, &b->model, &model));
    if (b->has_draft)
        TRY(engine_fingerprint(cx, &b->draft, &draft));
    text_print(t, "mpk %s (%s)\n", mpk_version(), engine_source_key);
    text_print(t, "adapters %016" PRIx64 "\nmodel %016" PRIx64 "\n", b->model.adapters_hash, model);
    text_print(t, "draft model %016" PRIx64 "\n", draft);
    text_print(t, "device %s %s\nthreads %u\n", b->device.target->name, b->device.arch,
               b->device.n_workers);
    text_print(t, "max-batch %u\ncontext %u\nstep-tokens %u\nkv %d\n",
               o->max_batch ? o->max_batch : ENGINE_DEFAULT_BATCH, o->context_tokens,
               o->step_tokens, (int)o->kv_dtype);
    text_print(t, "activations %d\nspeculate %d %u %u\nembeddings %u\n", (int)o->activations,
               (int)o->speculation, o->draft_tokens, o->draft_ngram, o->embeddings);
    text_print(t, "random-weights %d %" PRIu64 "\nrouting %d\nexperts %u\nown-experts %u\n",
               o->random_weights, o->random_seed, (int)o->random_routing, o->count_experts,
               o->own_experts);
    text_print(t, "keep-blocks %d\nrandom-mix %s\n", (int)o->keep_blocks,
               o->random_mix ? o->random_mix : "");
    text_print(t, "ops %d\nlaunch %d\ncoarse-events %d\nbatch-invariant %u\n", (int)o->fusion,
               (int)o->launch, o->coarse_events, o->batch_invariant);
    if (b->device.target->has_own_memory) /* where others look into tables, these change them */
        text_print(t, "profile %u\nno-carriers %u\n", o->profile != 0, o->no_carriers != 0);
    CHECK(cx, !t->failed, MPK_ENOMEM, "out of memory for the terms of a rank");
    return MPK_OK;
}

/* The KV cache follows from the free memory, which changes: rank 0's size counts for all. */
mpk_status engine_meet(mpk_context *cx, engine_build *b)
{
    mpk_engine_options *o = &b->options;
    text terms = {0};
    uint64_t kv_tokens = (uint64_t)b->plan.n_pages * ENGINE_PAGE_TOKENS;
    if (!o->meet)
        return MPK_OK;
    const ranks_place place = {.path = o->meet,
                               .rank = o->rank,
                               .n = o->gpus,
                               .wait_ns = 1000000000ull *
                                          (o->meet_seconds ? o->meet_seconds : MEET_SECONDS)};
    mpk_status status = print_terms(cx, b, &terms);
    if (status == MPK_OK)
        status = ranks_meet(cx, &place, (str){terms.at, terms.n}, &kv_tokens, &b->ranks);
    text_free(&terms);
    if (status != MPK_OK)
        return status_note(cx, status, "rank %u of %u meets the others", o->rank, o->gpus);
    if (o->rank)
        o->kv_tokens = kv_tokens;
    return MPK_OK;
}
