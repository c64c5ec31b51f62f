/* engine_rules.c - what a request asks of its tokens beyond the filters, as the record that
 * `sample` reads (op/rules.h); the tokens that end it; its log probabilities.
 *
 * Input: checked options; output: words for the machine, none if nothing is asked for.  Everything
 * is made on the submitting thread before the machine knows of the request, so no lock is held, and
 * what is made lies in the request's arena, but for the log probabilities.  The functions at the
 * end read log probabilities on the caller's thread while the machine may still write later ones.
 * Called by engine_request.c and through mpk.h.
 */
#include <stdlib.h>

#include "engine/engine_request.h"
#include "op/rules.h"

/* The record that is being made; n counts from the head, RULES_LISTS words, on. */
typedef struct record {
    int32_t *words; /* [RULES_WORDS], in the request's arena */
    uint32_t n;     /* words so far; lists are appended here, their counts set in the head */
} record;

/* MPK_ELIMIT if the record is full; the words say which options fill it. */
static mpk_status add_word(mpk_context *cx, record *to, int32_t word)
{
    CHECK(cx, to->n < RULES_WORDS, MPK_ELIMIT,
          "biases, allowed tokens and bad words take more than the %d words that a request has for "
          "them: ask for fewer",
          RULES_WORDS);
    to->words[to->n++] = word;
    return MPK_OK;
}

/* A record has one type of word; sample reads these back as floats. */
static int32_t float_bits(float x)
{
    int32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = ((const mpk_token_bias *)a)->token, y = ((const mpk_token_bias *)b)->token;
    return x < y ? -1 : x > y;
}

/* Biases as pairs of id and float bits, sorted so that two for one token are neighbours and are
 * found: the record must have no id twice. */
static mpk_status add_biases(mpk_context *cx, mpk_request *r, record *to)
{
    const mpk_request_options *o = &r->options;
    mpk_token_bias *sorted;
    NEW(cx, &r->arena, sorted, o->n_biases);
    if (!o->n_biases)
        return MPK_OK;
    memcpy(sorted, o->biases, o->n_biases * sizeof *sorted);
    qsort(sorted, o->n_biases, sizeof *sorted, compare_ids);
    for (uint32_t i = 0; i < o->n_biases; i++) {
        TRY(engine_check_tokens(cx, r->engine, &sorted[i].token, 1));
        CHECK(cx, !i || sorted[i].token != sorted[i - 1].token, MPK_EARG, "token %d has two biases",
              sorted[i].token);
        TRY(add_word(cx, to, sorted[i].token));
        TRY(add_word(cx, to, float_bits(sorted[i].bias)));
    }
    return MPK_OK;
}

/* A list of ids, each checked against the vocabulary. */
static mpk_status add_ids(mpk_context *cx, const mpk_engine *e, const int32_t *ids, uint32_t n,
                          record *to)
{
    TRY(engine_check_tokens(cx, e, ids, n));
    for (uint32_t i = 0; i < n; i++)
        TRY(add_word(cx, to, ids[i]));
    return MPK_OK;
}

/* The tokens of a text as one banned sequence: their number, then the ids.  A text without tokens
 * adds nothing.  The length is checked before it is narrowed to a word. */
static mpk_status add_sequence(mpk_context *cx, mpk_request *r, str word, record *to)
{
    tokenizer_ids ids = {0};
    TRY(tokenizer_encode(cx, r->engine->tokens.tokenizer, &r->arena, word.at, word.n, 0, &ids));
    if (!ids.n)
        return MPK_OK;
    CHECK(cx, ids.n < RULES_WORDS, MPK_ELIMIT, "a bad word has %zu tokens, at most %d are possible",
          ids.n, RULES_WORDS - 1);
    TRY(add_word(cx, to, (int32_t)ids.n));
    return add_ids(cx, r->engine, ids.at, (uint32_t)ids.n, to);
}

/* Each text as it stands at the beginning and after a space, since tokenizers have different tokens
 * for these: "no" bans the tokens of "no" and those of " no".  A text that begins with a space is
 * taken as it is. */
static mpk_status add_bad_words(mpk_context *cx, mpk_request *r, record *to)
{
    const mpk_request_options *o = &r->options;
    CHECK(cx, !o->n_bad_words || r->engine->tokens.tokenizer, MPK_EUNSUPPORTED,
          "bad words need a tokenizer, and this model has none");
    for (uint32_t i = 0; i < o->n_bad_words; i++) {
        size_t n = strlen(o->bad_words[i]);
        char *spaced;
        NEW(cx, &r->arena, spaced, n + 2);
        spaced[0] = ' ';
        memcpy(spaced + 1, o->bad_words[i], n + 1);
        TRY(add_sequence(cx, r, (str){spaced + 1, n}, to));
        if (spaced[1] != ' ')
            TRY(add_sequence(cx, r, (str){spaced, n + 1}, to));
    }
    return MPK_OK;
}

/* ---- ends ---- */

static bool ends_with(const mpk_request *r, int32_t token)
{
    bool found = false;
    for (uint32_t i = 0; i < r->n_ends; i++)
        found |= r->ends[i] == token;
    return found;
}

/* r->ends: the model's tokens unless ignore_eos, then the stop tokens that are not among them.  The
 * stop tokens are also copied whole, because mpk_request_stop looks up in them which one came,
 * after the caller's array may be gone. */
mpk_status engine_make_ends(mpk_context *cx, mpk_request *r)
{
    const mpk_request_options *o = &r->options;
    const model_config *c = &r->engine->build.model.config;
    int32_t *stops;
    NEW(cx, &r->arena, stops, o->n_stop_tokens);
    TRY(engine_check_tokens(cx, r->engine, o->stop_tokens, o->n_stop_tokens));
    r->n_ends = o->ignore_eos ? 0 : c->n_eos_tokens;
    memcpy(r->ends, c->eos_tokens, r->n_ends * sizeof *r->ends);
    for (uint32_t i = 0; i < o->n_stop_tokens; i++) {
        stops[i] = o->stop_tokens[i];
        if (ends_with(r, stops[i]))
            continue;
        CHECK(cx, r->n_ends < RT_MAX_EOS, MPK_ELIMIT,
              "more than %d tokens end the answer, those of the model among them: name fewer stop "
              "tokens",
              RT_MAX_EOS);
        r->ends[r->n_ends++] = stops[i];
    }
    r->options.stop_tokens = stops;
    return MPK_OK;
}

/* ---- the record ---- */

/* Does any option need a record?  A value of 0, and 1 for penalties and shares that multiply,
 * changes nothing.  A form needs one, since a row with a mask has rules too. */
static bool are_rules(const mpk_request_options *o)
{
    bool repetition = o->repetition_penalty > 0 && o->repetition_penalty != 1;
    bool typical = o->typical_p > 0 && o->typical_p < 1;
    return o->presence_penalty != 0 || o->frequency_penalty != 0 || repetition || o->min_tokens ||
           o->top_n_sigma > 0 || typical || o->n_biases || o->n_allowed || o->n_bad_words ||
           o->form;
}

/* The lists in the order of their counts in the head, which `sample` relies on.  Ends are listed
 * only with min_tokens: they are there to be banned until that many tokens have come. */
static mpk_status add_lists(mpk_context *cx, mpk_request *r, record *to)
{
    const mpk_request_options *o = &r->options;
    uint32_t n_ends = o->min_tokens ? r->n_ends : 0;
    TRY(add_biases(cx, r, to));
    TRY(add_ids(cx, r->engine, o->allowed_tokens, o->n_allowed, to));
    TRY(add_ids(cx, r->engine, r->ends, n_ends, to));
    uint32_t before = to->n;
    TRY(add_bad_words(cx, r, to));
    to->words[RULES_BIASES] = (int32_t)o->n_biases;
    to->words[RULES_ALLOWED] = (int32_t)o->n_allowed;
    to->words[RULES_ENDS] = (int32_t)n_ends;
    to->words[RULES_BANNED] = (int32_t)(to->n - before);
    return MPK_OK;
}

/* min_tokens is compared with the limit that the request ends at anyway.  An option of 0 becomes
 * the value that means "off" in the record, which for a factor is 1. */
mpk_status engine_make_rules(mpk_context *cx, mpk_request *r, const int32_t **words, uint32_t *n)
{
    const mpk_request_options *o = &r->options;
    record made = {.n = RULES_LISTS};
    if (!are_rules(o))
        return MPK_OK;
    CHECK(cx, o->min_tokens <= r->limit, MPK_EARG,
          "min_tokens is %u, more than the %u tokens that the answer may have", o->min_tokens,
          r->limit);
    NEW(cx, &r->arena, made.words, RULES_WORDS);
    made.words[RULES_REPETITION] =
        float_bits(o->repetition_penalty > 0 ? o->repetition_penalty : 1);
    made.words[RULES_PRESENCE] = float_bits(o->presence_penalty);
    made.words[RULES_FREQUENCY] = float_bits(o->frequency_penalty);
    made.words[RULES_SIGMA] = float_bits(o->top_n_sigma);
    made.words[RULES_TYPICAL] = float_bits(o->typical_p > 0 ? o->typical_p : 1);
    made.words[RULES_PROMPT] = (int32_t)r->n_prompt;
    made.words[RULES_LEAST] = (int32_t)o->min_tokens;
    TRY(add_lists(cx, r, &made));
    *words = made.words;
    *n = made.n;
    return MPK_OK;
}

/* ---- log probabilities ---- */

uint32_t engine_logprobs(const mpk_request_options *o)
{
    return o->logprobs || o->prompt_logprobs ? 1 + o->top_logprobs : 0;
}

/* A place for n_logprobs pairs (id, log probability) of floats for each token, those of the prompt
 * before those of the answer.  The machine writes it and holds it too, so it is not part of the
 * request's arena: a request may be freed while it runs. */
mpk_status engine_make_logprobs(mpk_context *cx, mpk_request *r)
{
    uint64_t tokens = (uint64_t)r->limit + (r->options.prompt_logprobs ? r->n_prompt : 0);
    r->n_logprobs = engine_logprobs(&r->options);
    if (!r->n_logprobs)
        return MPK_OK;
    r->shares = host_shares_new(2 * tokens * r->n_logprobs);
    CHECK(cx, r->shares, MPK_ENOMEM, "out of memory for the log probabilities of %llu tokens",
          (unsigned long long)tokens);
    return MPK_OK;
}

/* The entries of token `index` of those that have log probabilities, the prompt's included, at most
 * `most`.  The mutex is held, and the token has come: its entries were written before it was
 * reported. */
static uint32_t copy_logprobs(const mpk_request *r, size_t index, mpk_logprob *out, uint32_t most)
{
    uint32_t n = r->n_logprobs < most ? r->n_logprobs : most;
    const float *from = r->shares->at + 2 * index * r->n_logprobs;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (mpk_logprob){(int32_t)from[2 * i], from[2 * i + 1]};
    return n;
}

/* Entries of the answer's tokens stand after those of the whole prompt, if these were asked for.
 * Without `logprobs` there may be entries all the same, for the prompt alone: they are not
 * given. */
uint32_t mpk_request_logprobs(const mpk_request *r, size_t token, mpk_logprob *out, uint32_t most)
{
    if (!r->options.logprobs)
        return 0;
    pthread_mutex_lock(&r->engine->mutex);
    uint32_t n = 0;
    if (token < r->n_tokens) {
        const size_t first = r->options.prompt_logprobs ? r->n_prompt : 0;
        n = copy_logprobs(r, first + token, out, most);
    }
    pthread_mutex_unlock(&r->engine->mutex);
    return n;
}

/* Token 0 follows nothing and has none.  The first token of the answer tells that the whole prompt
 * has been computed, or with prompt_only the end. */
uint32_t mpk_prompt_logprobs(const mpk_request *r, size_t token, mpk_logprob *out, uint32_t most)
{
    if (!r->options.prompt_logprobs || !token || token >= r->n_prompt)
        return 0;
    pthread_mutex_lock(&r->engine->mutex);
    const bool computed = r->n_tokens || (r->options.prompt_only && r->finish == MPK_FINISH_LENGTH);
    uint32_t n = computed ? copy_logprobs(r, token, out, most) : 0;
    pthread_mutex_unlock(&r->engine->mutex);
    return n;
}
