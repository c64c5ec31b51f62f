/* engine_request.h - a request as the engine keeps it (engine_request.c), and what the files
 * that make its parts share: rules and log probabilities (engine_rules.c), forms
 * (engine_form.c), ends (engine_stop.c).  A sequence (engine_sequence.c) is a request whose
 * tokens the caller chooses. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "engine/engine.h"

struct mpk_request {
    /* set before submission, then only read: by any thread, without the mutex */
    mpk_engine *engine;
    arena arena; /* what is copied from the options, tokens, times; freed with the request */
    mpk_request_options options;
    size_t n_prompt;     /* tokens of the prompt */
    uint32_t limit;      /* tokens of the answer at most */
    uint32_t n_logprobs; /* entries of `shares` for each token; 0: none */
    host_shares *shares; /* first of the prompt, if prompt_logprobs */
    bool is_sequence;
    struct engine_form *form; /* NULL: any text */
    int32_t ends[RT_MAX_EOS]; /* tokens that end the answer */
    uint32_t n_ends;

    /* guarded by the engine's mutex */
    uint64_t id;
    bool is_inside;    /* the machine: in the engine's table */
    mpk_request *next; /* in its bucket */
    bool cancelled;
    bool fed; /* of a sequence: the logits of what was fed last are there */
    mpk_finish finish;
    mpk_context words; /* why, if it failed */
    uint64_t submitted_ns;
    int32_t *tokens;    /* [limit] */
    uint64_t *token_ns; /* [limit] since submission */
    uint64_t queue_ns;  /* from submission to admission; 0: no token has come */
    size_t n_tokens;
    size_t n_cached;              /* tokens of the prompt that came from the prefix cache */
    size_t n_drafted, n_accepted; /* drafts that were tried, and that stood */
    tokenizer_stream *decoder;    /* NULL: no tokenizer */
    engine_stream stream;
    pthread_cond_t changed;

    /* the reader's */
    size_t n_read, n_text_read;
    text piece;
};

/* MPK_EUNSUPPORTED: the engine was opened for embeddings and gives vectors. */
mpk_status engine_check_words(mpk_context *cx, const mpk_engine *e);
/* An empty request, not in the table, that the caller owns; mpk_request_free takes it in every
 * state.  MPK_ENOMEM. */
mpk_status engine_new_request(mpk_context *cx, mpk_engine *e, mpk_request **out);
/* MPK_EARG: an id that the vocabulary has not. */
mpk_status engine_check_tokens(mpk_context *cx, const mpk_engine *e, const int32_t *tokens,
                               size_t n);
/* Positions that one request may take. */
uint32_t engine_capacity(const mpk_engine *e);
/* Fill r->ends with the tokens that end the answer: the model's, and those of the options.
 * MPK_EARG, MPK_ELIMIT. */
mpk_status engine_make_ends(mpk_context *cx, mpk_request *r);
/* The record of rules, in the request's arena; nothing is written if it asks for none.  MPK_EARG,
 * MPK_ELIMIT, MPK_EUNSUPPORTED: bad words without a tokenizer. */
mpk_status engine_make_rules(mpk_context *cx, mpk_request *r, const int32_t **words, uint32_t *n);
/* Entries for each token that the options ask for. */
uint32_t engine_logprobs(const mpk_request_options *options);
/* The place for log probabilities, if any are asked for; limit and n_prompt are set. */
mpk_status engine_make_logprobs(mpk_context *cx, mpk_request *r);
/* End a request that still runs.  MPK_OK: as if the model had ended it; any other status: with that
 * failure and these words.  Takes the engine's mutex; an id that is not in the table is ignored. */
void engine_end_request(mpk_engine *e, uint64_t id, mpk_status status, const char *words);
/* Of a sequence: wait until the logits of what was fed last are there.  The status of the failure
 * if it failed; MPK_ELIMIT: it has ended.  Takes the engine's mutex. */
mpk_status engine_wait_fed(mpk_context *cx, mpk_request *r);
/* Give it to the machine and enter it in the table; from then on the collector finds it.  The
 * engine's failure if it has one, and what machine_submit gives; nothing was submitted then. */
mpk_status engine_submit(mpk_context *cx, mpk_request *r, const machine_request *wire);

#endif
