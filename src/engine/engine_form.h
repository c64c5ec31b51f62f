/* engine_form.h - answers of a given form; for engine_form.c and engine_request.c.
 *
 * A thread of its own makes the masks of tokens (src/grammar), so that neither the collector nor
 * other requests wait for one: the collector tells it of each token of a request that has a form,
 * it follows the form and puts the mask of the next token into the machine, while the machine
 * computes that token's logits.
 */
#ifndef ENGINE_FORM_H
#define ENGINE_FORM_H

#include "engine/engine.h"

typedef struct engine_forms engine_forms;
typedef struct engine_form engine_form;

/* In place of a token: the request has been submitted and its first mask is wanted. */
enum { ENGINE_FORM_FIRST = -1 };

/* e->forms, empty: vocabulary and thread are made when the first form is asked for.  MPK_ENOMEM. */
mpk_status engine_forms_open(mpk_context *cx, mpk_engine *e);
/* End the thread and free every compiled form.  The collector has stopped and no request is left,
 * so nothing can add to the queue.  NULL is allowed. */
void engine_forms_close(engine_forms *f);

/* The form that the options ask for, held once for the request; *out = NULL: none.  Compiles it on
 * the calling thread unless it is kept from an earlier request; the engine's mutex must not be
 * held.  Statuses of mpk_request_options.form. */
mpk_status engine_form_open(mpk_context *cx, mpk_engine *e, const mpk_request_options *o,
                            engine_form **out);
/* Hold it once more.  A form is held by its request, and by the thread while that works on it, so a
 * request may be freed meanwhile. */
void engine_form_hold(engine_form *form);
/* Let go; the last holder frees the form.  Takes a lock of its own, so the engine's mutex must not
 * be held.  NULL is allowed. */
void engine_form_drop(engine_forms *f, engine_form *form);
/* A token of request `id` has come, or ENGINE_FORM_FIRST.  Only puts it in a queue, so the
 * collector may call it with the engine's mutex held.  Without memory the request is cancelled. */
void engine_form_take(engine_forms *f, uint64_t id, int32_t token);
/* A draft of a request (RT_GUESSED) is under way: the mask of the token after it is wanted.  As
 * engine_form_take, but without memory the draft only fails. */
void engine_form_guess(engine_forms *f, const rt_token *guess);

/* engine_request.c: the form of a request that still runs, held; NULL: there is none. */
engine_form *engine_hold_form(mpk_engine *e, uint64_t id);

#endif
