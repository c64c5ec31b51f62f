/* engine_form.c - answers of a given form (JSON schema, regular expression ...): each form is
 * compiled once, and followed token by token on one thread for the whole engine.
 *
 *   collector --token--> queue --> this thread: matcher takes it, mask of the next --> machine
 *
 * The machine draws no token of such a request before the mask for its index is there, so a slow
 * grammar delays only its own requests.  Relies on grammar/grammar.h; called by engine_request.c.
 *
 * Locks: `guard` guards grammars, matchers and the list of kept ones; `queue_guard` guards the
 * queue, and is the only one of the two that may be taken with the engine's mutex held.  A form
 * lives while anyone holds it: its request, and the thread while it makes a mask.  The engine's
 * mutex is never taken with one of the two held, and never held where `guard` is taken, so making a
 * mask does not hold up the collector.
 *
 * A form of an answer, token by token: with the choices "yes" and "no" the first mask has the
 * tokens that begin one of them ("y", "yes", "n", "no"); after "y" the next has "es" and "e"; after
 * "yes" the form is over, and the request ends as if the model had ended it.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/thread.h"
#include "engine/engine_form.h"
#include "engine/engine_request.h"
#include "grammar/grammar.h"

/* Compiled forms that are kept after their last request; a server meets the same few schemas again
 * and again. */
enum { KEPT_GRAMMARS = 32 };

/* A form that has been compiled, found again by kind and source.  The list is ordered by last use,
 * the latest first, and is guarded by `guard`. */
typedef struct kept_grammar {
    struct kept_grammar *next;
    grammar_kind kind;
    char *source;     /* heap, NUL-terminated: as the caller gave it */
    grammar *grammar; /* owned */
    uint32_t uses;    /* matchers that are open: 0 before it may be freed */
} kept_grammar;

/* A request on its way through a form. */
struct engine_form {
    atomic_uint holders;
    kept_grammar *kept;       /* counts this form among its uses */
    grammar_matcher *matcher; /* owned; under `guard` */
    uint32_t index;           /* of the token that the next mask is for; the thread's */
    /* where the drafts of the step that runs lead, and the same of them; guess_index 0: nowhere.
     * NULL: it had no drafts yet */
    grammar_matcher *guess;
    uint32_t guess_index;
};

/* A request is named by its id, not by a pointer: it may be freed while the event waits. */
typedef struct form_event {
    uint64_t id;
    int32_t token; /* or ENGINE_FORM_FIRST */
    /* of a draft: its number in its step, from 1 on, and the index of the token after it */
    uint32_t draft, index;
} form_event;

/* What an engine has for all its forms: compiled ones, the thread that follows them, and the queue
 * that leads to it.  Vocabulary, mask and thread are made under `guard`, the thread last. */
struct engine_forms {
    mpk_engine *engine; /* its owner */
    pthread_mutex_t guard;
    grammar_vocab *vocab; /* the bytes of every token; made once, then only read */
    uint32_t *mask;       /* heap; the thread's */
    kept_grammar *kept;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t queue_guard; /* guards what follows */
    pthread_cond_t arrived;      /* an event, or `closing` */
    form_event *queue;           /* heap; the thread takes it whole */
    size_t n, capacity;
    bool closing;
};

/* ---- the thread ---- */

/* Take a token and write the mask of the next one to f->mask; the guard is held.  *over: the text
 * is complete and nothing can follow it, so no mask was written.  MPK_EUNSUPPORTED: no token of the
 * vocabulary can follow, though the form needs more: a vocabulary need not spell every byte. */
static mpk_status follow(mpk_context *cx, engine_forms *f, engine_form *form, int32_t token,
                         bool *over)
{
    uint32_t n;
    *over = false;
    if (token != ENGINE_FORM_FIRST) {
        TRY(grammar_matcher_take(cx, form->matcher, token, over));
        form->index++;
    }
    if (*over)
        return MPK_OK;
    TRY(grammar_matcher_mask(cx, form->matcher, f->mask, &n));
    CHECK(cx, n, MPK_EUNSUPPORTED,
          "no token of the model's vocabulary goes on in the form that was asked for");
    return MPK_OK;
}

/* The guard is held.  Follow a draft from where the draft before it led, or from the text, and
 * write the mask of the token after it to f->mask.  False: there is none, as the draft cannot
 * stand. */
static bool follow_guess(engine_forms *f, engine_form *form, const form_event *event)
{
    mpk_context cx = {0};
    const bool begins = event->draft == 1 && event->index == form->index + 1;
    bool over = true;
    uint32_t n = 0;
    if (!begins && event->index != form->guess_index + 1)
        return false;
    form->guess_index = 0;
    if (!form->guess &&
        grammar_matcher_open(&cx, form->kept->grammar, f->vocab, &form->guess) != MPK_OK)
        return false;
    if (begins)
        grammar_matcher_go(form->guess, form->matcher);
    if (grammar_matcher_take(&cx, form->guess, event->token, &over) != MPK_OK || over ||
        grammar_matcher_mask(&cx, form->guess, f->mask, &n) != MPK_OK || !n)
        return false;
    form->guess_index = event->index;
    return true;
}

/* One draft, on the thread. */
static void handle_guess(engine_forms *f, const form_event *event)
{
    engine_form *form = engine_hold_form(f->engine, event->id);
    if (!form)
        return;
    pthread_mutex_lock(&f->guard);
    const bool leads = follow_guess(f, form, event);
    pthread_mutex_unlock(&f->guard);
    if (leads)
        machine_put_guess(f->engine->machine, event->id, event->draft, event->index, f->mask);
    engine_form_drop(f, form);
}

/* One event, on the thread.  The request may have ended meanwhile: then there is no form to hold,
 * and nothing to do.  `guard` is released before the request is ended or the form dropped, since
 * engine_end_request takes the engine's mutex and engine_form_drop takes `guard` itself. */
static void handle(engine_forms *f, const form_event *event)
{
    mpk_context cx = {0};
    bool over;
    engine_form *form = engine_hold_form(f->engine, event->id);
    if (!form)
        return;
    pthread_mutex_lock(&f->guard);
    mpk_status status = follow(&cx, f, form, event->token, &over);
    const bool same = grammar_matcher_is_same(form->matcher); /* inside a text most masks are */
    pthread_mutex_unlock(&f->guard);
    if (status != MPK_OK || over)
        engine_end_request(f->engine, event->id, status, cx.text);
    else
        machine_put_mask(f->engine->machine, event->id, form->index, same ? NULL : f->mask);
    engine_form_drop(f, form);
}

/* Take all events with their array, which the caller frees, so that the collector never waits for a
 * mask.  False: it is time to end, and events that are left do not matter. */
static bool wait_events(engine_forms *f, form_event **events, size_t *n)
{
    pthread_mutex_lock(&f->queue_guard);
    while (!f->n && !f->closing)
        pthread_cond_wait(&f->arrived, &f->queue_guard);
    *events = f->queue;
    *n = f->n;
    f->queue = NULL;
    f->n = f->capacity = 0;
    bool go_on = !f->closing;
    pthread_mutex_unlock(&f->queue_guard);
    return go_on;
}

/* The thread, from the first form until the engine closes. */
static void *make_masks(void *argument)
{
    engine_forms *f = argument;
    form_event *events;
    size_t n;
    for (bool go_on = true; go_on; free(events)) {
        go_on = wait_events(f, &events, &n);
        for (size_t i = 0; i < n && go_on; i++)
            if (events[i].draft)
                handle_guess(f, &events[i]);
            else
                handle(f, &events[i]);
    }
    return NULL;
}

/* Room for more events, doubled; the queue's lock is held.  False: no memory for the event.  The
 * request then has to end; the caller holds the engine's mutex, so it asks the machine to cancel
 * instead of ending it here. */
static bool grow_queue(engine_forms *f)
{
    size_t capacity = f->capacity ? 2 * f->capacity : 64;
    form_event *queue = realloc(f->queue, capacity * sizeof *queue);
    if (!queue)
        return false;
    f->queue = queue;
    f->capacity = capacity;
    return true;
}

/* Events of one request stand in the queue in the order of its tokens: the collector is the only
 * one that adds tokens, and the first mask was asked for before the first token can come. */
void engine_form_take(engine_forms *f, uint64_t id, int32_t token)
{
    pthread_mutex_lock(&f->queue_guard);
    if (f->n < f->capacity || grow_queue(f))
        f->queue[f->n++] = (form_event){.id = id, .token = token};
    else
        machine_cancel(f->engine->machine, id);
    pthread_cond_signal(&f->arrived);
    pthread_mutex_unlock(&f->queue_guard);
}

void engine_form_guess(engine_forms *f, const rt_token *guess)
{
    pthread_mutex_lock(&f->queue_guard);
    if (f->n < f->capacity || grow_queue(f))
        f->queue[f->n++] = (form_event){guess->id, guess->token, guess->count, guess->index};
    pthread_cond_signal(&f->arrived);
    pthread_mutex_unlock(&f->queue_guard);
}

/* ---- start and end ---- */

/* All three, or none and the error number of the one that failed: those before it are destroyed. */
static int init_locks(engine_forms *f)
{
    int error = pthread_mutex_init(&f->guard, NULL);
    if (error)
        return error;
    error = pthread_mutex_init(&f->queue_guard, NULL);
    if (error) {
        pthread_mutex_destroy(&f->guard);
        return error;
    }
    error = pthread_cond_init(&f->arrived, NULL);
    if (error) {
        pthread_mutex_destroy(&f->guard);
        pthread_mutex_destroy(&f->queue_guard);
    }
    return error;
}

/* *f is the engine's from here on, and engine_forms_close frees it.  It costs two mutexes and a
 * condition; a model without forms never has a vocabulary made for them. */
mpk_status engine_forms_open(mpk_context *cx, mpk_engine *e)
{
    engine_forms *f = calloc(1, sizeof *f);
    CHECK(cx, f, MPK_ENOMEM, "out of memory for the forms of answers");
    f->engine = e;
    const int error = init_locks(f);
    if (error) {
        free(f);
        FAIL(cx, MPK_ENOMEM, "no mutex: %s", strerror(error));
    }
    e->forms = f;
    return MPK_OK;
}

/* Only if no matcher is open on it. */
static void free_kept(kept_grammar *k)
{
    grammar_free(k->grammar);
    free(k->source);
    free(k);
}

/* Forms that requests held are gone, for the caller has freed all requests before. */
void engine_forms_close(engine_forms *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->queue_guard);
    f->closing = true;
    pthread_cond_signal(&f->arrived);
    pthread_mutex_unlock(&f->queue_guard);
    if (f->has_thread)
        pthread_join(f->thread, NULL);
    while (f->kept) {
        kept_grammar *next = f->kept->next;
        free_kept(f->kept);
        f->kept = next;
    }
    grammar_vocab_free(f->vocab);
    free(f->mask);
    free(f->queue);
    pthread_cond_destroy(&f->arrived);
    pthread_mutex_destroy(&f->queue_guard);
    pthread_mutex_destroy(&f->guard);
    free(f);
}

/* The bytes that each id of the model stands for, from the tokenizer.  grammar_vocab_make copies
 * what it needs from the scratch arena. */
static mpk_status make_vocab(mpk_context *cx, engine_forms *f)
{
    const model_config *c = &f->engine->build.model.config;
    arena scratch = {0};
    str *bytes = arena_alloc(&scratch, c->vocab_size, sizeof *bytes);
    mpk_status status =
        bytes ? tokenizer_bytes(cx, f->engine->tokens.tokenizer, &scratch, c->vocab_size, bytes)
              : status_fail(cx, MPK_ENOMEM, "out of memory for the bytes of tokens");
    if (status == MPK_OK)
        status =
            grammar_vocab_make(cx, bytes, c->vocab_size, c->eos_tokens, c->n_eos_tokens, &f->vocab);
    arena_free(&scratch);
    return status;
}

/* The guard is held.  Make the vocabulary, the mask and the thread when the first form is asked
 * for; after a failure the next form tries again with what is there. */
static mpk_status begin(mpk_context *cx, engine_forms *f)
{
    if (f->has_thread)
        return MPK_OK;
    if (!f->vocab)
        TRY(make_vocab(cx, f));
    if (!f->mask)
        f->mask = malloc(grammar_mask_words(f->vocab) * sizeof *f->mask);
    CHECK(cx, f->mask, MPK_ENOMEM, "out of memory for a mask of tokens");
    TRY(thread_start(cx, &f->thread, make_masks, f));
    f->has_thread = true;
    return MPK_OK;
}

/* ---- compiled forms, the one used last first ---- */

/* The guard is held.  What is found moves to the front; NULL: it is not kept. */
static kept_grammar *find_kept(engine_forms *f, grammar_kind kind, const char *source)
{
    for (kept_grammar **link = &f->kept; *link; link = &(*link)->next) {
        kept_grammar *k = *link;
        if (k->kind != kind || strcmp(k->source, source) != 0)
            continue;
        *link = k->next;
        k->next = f->kept;
        return f->kept = k;
    }
    return NULL;
}

/* Free forms past the first KEPT_GRAMMARS of the list, the least recently used ones, unless a
 * request still uses them. */
static void drop_old(engine_forms *f)
{
    uint32_t n = 0;
    for (kept_grammar **link = &f->kept; *link;) {
        kept_grammar *k = *link;
        if (++n <= KEPT_GRAMMARS || k->uses) {
            link = &k->next;
            continue;
        }
        *link = k->next;
        free_kept(k);
    }
}

/* The guard is held.  Find a form in the list, or add g to it: g was compiled without the guard and
 * is given over, whatever the status; NULL: only look.  If another thread has added the same form
 * meanwhile, that one is taken and g is freed.  *out NULL with MPK_OK: it is not there. */
static mpk_status keep(mpk_context *cx, engine_forms *f, grammar_kind kind, const char *source,
                       grammar *g, kept_grammar **out)
{
    *out = find_kept(f, kind, source);
    if (*out || !g) {
        grammar_free(g);
        return MPK_OK;
    }
    kept_grammar *k = calloc(1, sizeof *k);
    char *copy = strdup(source);
    if (!k || !copy) {
        grammar_free(g);
        free(k);
        free(copy);
        FAIL(cx, MPK_ENOMEM, "out of memory for a form");
    }
    *k = (kept_grammar){.next = f->kept, .kind = kind, .source = copy, .grammar = g};
    *out = f->kept = k;
    drop_old(f);
    return MPK_OK;
}

/* ---- forms of requests ---- */

/* The guard is held.  A matcher at the beginning of the form, held once by the request. */
static mpk_status open_matcher(mpk_context *cx, engine_forms *f, kept_grammar *k, engine_form **out)
{
    engine_form *form = calloc(1, sizeof *form);
    CHECK(cx, form, MPK_ENOMEM, "out of memory for a form");
    atomic_init(&form->holders, 1);
    form->kept = k;
    mpk_status status = grammar_matcher_open(cx, k->grammar, f->vocab, &form->matcher);
    if (status != MPK_OK) {
        free(form);
        return status;
    }
    k->uses++;
    *out = form;
    return MPK_OK;
}

/* Open a form that is kept, or that g is; g NULL: only if it is kept, else *out stays NULL.  g is
 * given over whatever the status.  The caller compiles g without the guard, since that may take
 * long and would hold up the masks of other requests. */
static mpk_status open_with(mpk_context *cx, engine_forms *f, grammar_kind kind, const char *source,
                            grammar *g, engine_form **out)
{
    kept_grammar *k = NULL;
    pthread_mutex_lock(&f->guard);
    mpk_status status = begin(cx, f);
    if (status == MPK_OK)
        status = keep(cx, f, kind, source, g, &k);
    else
        grammar_free(g);
    if (status == MPK_OK && k)
        status = open_matcher(cx, f, k, out);
    pthread_mutex_unlock(&f->guard);
    return status;
}

/* Look, compile without a lock, look again and add.  Two requests that bring the same new form at
 * once both compile it, and one result is dropped. */
mpk_status engine_form_open(mpk_context *cx, mpk_engine *e, const mpk_request_options *o,
                            engine_form **out)
{
    static const grammar_kind kinds[] = {[MPK_FORM_JSON_OBJECT] = GRAMMAR_JSON_OBJECT,
                                         [MPK_FORM_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
                                         [MPK_FORM_REGEX] = GRAMMAR_REGEX,
                                         [MPK_FORM_CHOICE] = GRAMMAR_CHOICE,
                                         [MPK_FORM_GRAMMAR] = GRAMMAR_EBNF,
                                         [MPK_FORM_STRUCTURAL_TAG] = GRAMMAR_TAG};
    const char *source = o->form_source && o->form != MPK_FORM_JSON_OBJECT ? o->form_source : "";
    grammar *g = NULL;
    *out = NULL;
    if (!o->form)
        return MPK_OK;
    CHECK(cx, e->tokens.tokenizer, MPK_EUNSUPPORTED,
          "answers of a given form need a tokenizer, and this model has none");
    CHECK(cx, machine_takes_masks(e->machine), MPK_EUNSUPPORTED,
          "answers of a given form (JSON schema, regular expression ...) are not possible on %s: "
          "run on the CPU",
          e->build.device.name);
    TRY(open_with(cx, e->forms, kinds[o->form], source, NULL, out));
    if (*out)
        return MPK_OK;
    TRY(grammar_make(cx, kinds[o->form], (str){source, strlen(source)}, &g));
    return open_with(cx, e->forms, kinds[o->form], source, g, out);
}

/* Relaxed: the caller has the form from a request that holds it, found under the engine's mutex. */
void engine_form_hold(engine_form *form)
{
    atomic_fetch_add_explicit(&form->holders, 1, memory_order_relaxed);
}

/* The release of each holder and the acquire of the last one order all work on the form before it
 * is freed.  `guard` is for the list's `uses`, which drop_old reads. */
void engine_form_drop(engine_forms *f, engine_form *form)
{
    if (!form || atomic_fetch_sub_explicit(&form->holders, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&f->guard);
    grammar_matcher_close(form->matcher);
    grammar_matcher_close(form->guess);
    form->kept->uses--;
    pthread_mutex_unlock(&f->guard);
    free(form);
}
