/* engine_cache.c - programs that have been compiled before, which the target keeps on disk
 * (target_def.find_program).
 *
 * Key: what the passes and the target's code follow from, written out: mpk's own sources, what the
 * target says of the device, the options of the passes, and the tensor programs as text.  Entry:
 * the length of the image, the image, and the code as target_start.code takes it.  An image is
 * proved before it is kept (image_open), beside the compilation of its kernel, and not again when
 * it is taken out: the target's cache finds damage, the key holds mpk's own sources, and an entry's
 * code is run without any proof.  The target checks that the code is of this image, so a wrong
 * entry costs time and nothing else.
 *
 * Called by engine_compile.c, before it compiles and when a target has compiled code.
 */
#include "base/thread.h"
#include "engine/engine.h"

/* Every field of pass_options that changes the program must be here: one that is missing would let
 * a program be found that was compiled otherwise.  verify changes nothing, and with it the cache is
 * not asked. */
static void print_options(const pass_options *o, text *t)
{
    text_print(t, "workers %u\npages %u %u\nfusion %d\nlaunch %d\ncoarse %d\ntasks %u\n",
               o->n_workers, o->page_bytes, o->pages_per_worker, (int)o->fusion, (int)o->launch,
               o->coarse_events, o->tasks_per_worker);
    text_print(t, "peers %u %llu %d\n", o->n_peers, (unsigned long long)o->gather_bytes,
               o->own_experts);
    text_print(
        t,
        "splits %u %u %u\ncontext %u\nnorm %u\nshare %u\neven %u %u\nrelaxed %d\nwhole %d\nlogits "
        "%d\nnarrow %d\nflatten %d\nunpack %u\nterms %d\n",
        o->splits, o->split_tokens, o->own_units, o->context_tasks, o->norm_elements,
        o->share_tokens, o->even_over, o->even_up_to, o->relaxed, o->whole_tiles, o->logits,
        o->narrow, o->flatten, o->unpack_tokens, o->sum_terms);
    for (uint32_t i = 0; i < o->n_degrees; i++)
        text_print(t, "degree %u %u %.*s\n", o->degrees[i].axis, o->degrees[i].degree,
                   STR_ARG(o->degrees[i].match));
}

/* The texts of the graphs, each made by a thread. */
typedef struct printing {
    ir_graph *const *graphs;
    text *texts;
} printing;

static mpk_status print_one(mpk_context *cx, void *user, uint32_t i)
{
    const printing *p = user;
    ir_print(p->graphs[i], &p->texts[i]);
    CHECK(cx, !p->texts[i].failed, MPK_ENOMEM, "out of memory for the text of the program");
    return MPK_OK;
}

/* Sizes and names of all weights are in the graphs' text, so the model's path need not be in the
 * key: two folders with the same shapes share an entry. */
mpk_status engine_program_key(mpk_context *cx, arena *a, const target_device *device,
                              const pass_options *options, uint32_t n_graphs,
                              ir_graph *const *graphs, const uint32_t *n_tokens, str *key)
{
    text t = {0}, *texts;
    NEW(cx, a, texts, n_graphs);
    printing p = {graphs, texts};
    mpk_status status = thread_each(cx, n_graphs, print_one, &p);
    text_print(&t, "mpk %s\n%s ", engine_source_key, device->target->name);
    device->target->print_key(device, &t);
    print_options(options, &t);
    for (uint32_t i = 0; i < n_graphs; i++) {
        text_print(&t, "graph %u\n", n_tokens[i]);
        if (texts[i].n)
            text_add(&t, texts[i].at, texts[i].n);
        text_free(&texts[i]);
    }
    key->at = t.failed ? NULL : arena_copy(a, t.at, t.n);
    key->n = t.n;
    text_free(&t);
    TRY(status);
    CHECK(cx, key->at, MPK_ENOMEM, "out of memory for the text of the program");
    return MPK_OK;
}

/* An entry that cannot be used counts as not found: the program is then compiled and written over
 * it. */
bool engine_find_program(engine_build *b)
{
    mpk_context unheard = {0};
    file_map file;
    str bytes;
    uint64_t n;
    if (!b->device.target->find_program(b->key, &file, &bytes))
        return false;
    memcpy(&n, bytes.at, bytes.n >= sizeof n ? sizeof n : 0);
    bool good = bytes.n >= sizeof n && n <= bytes.n - sizeof n;
    if (good) {
        text_add(&b->code, bytes.at + sizeof n + n, bytes.n - sizeof n - n);
        good = !b->code.failed && image_open_proved(&unheard, &b->arena, bytes.at + sizeof n,
                                                    (size_t)n, &b->image) == MPK_OK;
    }
    file_map_close(&file);
    if (!good)
        text_free(&b->code);
    return good;
}

/* The thread's work: as if the image came from a file.  What is read is not used. */
static void *run_proof(void *argument)
{
    engine_proof *p = argument;
    arena a = {0};
    program_image read;
    p->status = image_open(&p->cx, &a, p->image->block, p->image->block->n_bytes, &read);
    arena_free(&a);
    return NULL;
}

/* Without a thread the proof is done at once. */
void engine_begin_proof(const program_image *image, engine_proof *p)
{
    *p = (engine_proof){.image = image};
    p->has_thread = thread_start(&p->cx, &p->thread, run_proof, p) == MPK_OK;
    if (!p->has_thread)
        run_proof(p);
}

mpk_status engine_end_proof(engine_proof *p)
{
    if (p->has_thread)
        pthread_join(p->thread, NULL);
    p->has_thread = false;
    return p->status;
}

/* Failures are dropped, since a program that is not kept is only compiled again. */
void engine_keep_program(mpk_context *cx, const target_def *target, str key,
                         const program_image *image, str code)
{
    text t = {0};
    uint64_t n = image->block->n_bytes;
    text_add(&t, (const char *)&n, sizeof n);
    text_add(&t, (const char *)image->block, n);
    text_add(&t, code.at, code.n);
    if (!t.failed)
        target->keep_program(cx, key, (str){t.at, t.n});
    text_free(&t);
}
