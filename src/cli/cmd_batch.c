/* cmd_batch.c - mpk batch: many requests from a file of JSON lines, answered in their order.
 *
 * Input: one object a line; output: one object a line with text, tokens and finish_reason, or with
 * error.  The window of lines that are in work is a few times the batch, so that memory does not
 * grow with the file.  An answer goes out when it is there, also while the next line is still to
 * come: who writes into a pipe may wait for it.
 *
 *   {"prompt": "The sky is", "max_tokens": 4, "id": 7}
 *   {"id":7,"text":" blue because of","tokens":[6070,1062,275],"finish_reason":"length"}
 *
 * A line that is wrong costs its own answer alone: it becomes a job with an error.  The fields are
 * those of docs/command-line.md; an unknown one is an error, since it may be a misspelt one. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/lines.h"

/* MAX_ANSWERS bounds n and best_of.  WINDOW_BATCHES: lines in flight, in multiples of the batch.
 * LOOK_MS: how long to wait for the oldest line when there is no new input. */
enum {
    MAX_ANSWERS = 128,
    MAX_DRAFTS = 64,
    MAX_STOPS = 16,
    MAX_LOGPROBS = 21,
    WINDOW_BATCHES = 4,
    DEFAULT_BATCH = 16,
    ERROR_BYTES = 512,
    LOOK_MS = 10
};

typedef struct batch_arguments {
    const char *model, *requests, *out;
    uint32_t max_tokens;
    cli_engine engine;
} batch_arguments;

/* One line of the input, read as a request. */
typedef struct line_request {
    mpk_request_options options;
    const char *stops[MAX_STOPS];
    arena *arena; /* for lists, until it is submitted */
    str prompt;   /* at NULL: tokens */
    size_t n_tokens;
    int32_t *tokens; /* heap */
    /* Answers to return, and answers to generate, of which the best are returned; 0: not given.
     * */
    uint32_t n, best_of;
} line_request;

/* A line in flight: read, but its answer is not yet written. */
typedef struct job {
    mpk_request **requests;       /* heap; in the order of their seeds */
    uint32_t n_requests, n_shown; /* submitted; the best of them, which are returned */
    /* The line gives n or best_of: its answers are returned as a list. */
    bool many;
    bool logprobs, prompt_logprobs; /* they were asked for */
    text id;                        /* JSON, given back with the answer; empty: none */
    char error[ERROR_BYTES];
} job;

/* Jobs are a ring of `window` places: the line with number i uses place i % window.  Lines
 * n_written .. n_read - 1 are in flight. */
typedef struct batch {
    const cli_command *command;
    mpk_context *cx;
    mpk_engine *engine;
    arena arena; /* of one line */
    int in;      /* descriptor */
    FILE *out;
    const char *in_name, *out_name;
    uint32_t max_tokens, window;
    job *jobs; /* [window], a ring */
    size_t n_read, n_written, n_errors, n_tokens;
    bool quiet;
} batch;

static const cli_option options[] = {
    CLI_OPTION(batch_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder, a GGUF file, or an image of mpk compile"),
    CLI_OPTION(batch_arguments, requests, "REQUESTS", CLI_OPERAND, .required = true,
               .help = "a file with one JSON object a line; - for standard input"),
    CLI_OPTION(batch_arguments, out, "out", CLI_TEXT, .letter = 'o', .value = "FILE",
               .help = "where the answers go (standard output)"),
    CLI_OPTION(batch_arguments, max_tokens, "max-tokens", CLI_COUNT, .letter = 'n', .value = "N",
               .help = "for requests that do not say (until the model ends the text)", .least = 1,
               .most = 1 << 24),
    CLI_BATCH_ROW(batch_arguments, engine),
    CLI_DEVICE_ROW(batch_arguments, engine),
    CLI_MEET_ROWS(batch_arguments, engine),
    CLI_THREADS_ROW(batch_arguments, engine),
    CLI_MODEL_ROWS(batch_arguments, engine),
    CLI_QUIET_ROW(batch_arguments, engine),
};

/* ---- one line to a request; each returns NULL, or what is wrong ---- */

/* Called by a reader of a field to fail: the message becomes the answer's error. */
#define REFUSE(error, ...) return snprintf((error), ERROR_BYTES, __VA_ARGS__), false

/* A number between two bounds; NaN cannot be written in JSON. */
static bool read_number(const json_value *value, double least, double most, float *to, char *error)
{
    if (value->kind != JSON_KIND_NUMBER || !(value->number >= least && value->number <= most))
        REFUSE(error, "%.*s is not a number from %g to %g", STR_ARG(value->key), least, most);
    *to = (float)value->number;
    return true;
}

/* `key` may differ from the key of the value itself: an item of a list has none. */
static bool read_count(str key, const json_value *value, int64_t least, int64_t most, uint64_t *to,
                       char *error)
{
    if (value->kind != JSON_KIND_NUMBER || !value->is_integer || value->integer < least ||
        value->integer > most)
        REFUSE(error, "%.*s is not a whole number from %lld to %lld", STR_ARG(key),
               (long long)least, (long long)most);
    *to = (uint64_t)value->integer;
    return true;
}

/* As read_count, with the field's own key, into 32 bits: `most` is below 2^32. */
static bool read_u32(const json_value *value, int64_t least, int64_t most, uint32_t *to,
                     char *error)
{
    uint64_t n;
    if (!read_count(value->key, value, least, most, &n, error))
        return false;
    *to = (uint32_t)n;
    return true;
}

/* On the heap, since a prompt may be long and the arena is for small things. */
static bool read_tokens(const json_value *value, line_request *r, char *error)
{
    if (value->kind != JSON_KIND_LIST)
        REFUSE(error, "tokens is not a list");
    r->n_tokens = value->n;
    r->tokens = calloc(r->n_tokens + 1, sizeof *r->tokens);
    if (!r->tokens)
        REFUSE(error, "out of memory for %zu tokens", r->n_tokens);
    for (size_t i = 0; i < r->n_tokens; i++) {
        uint64_t id;
        if (!read_count(STR("a token"), &value->items[i], 0, INT32_MAX, &id, error))
            return false;
        r->tokens[i] = (int32_t)id;
    }
    return true;
}

/* A text, or a list of texts; one with a NUL inside is refused. */
static bool read_stops(batch *b, const json_value *value, line_request *r, char *error)
{
    const json_value *items = value->kind == JSON_KIND_LIST ? value->items : value;
    size_t n = value->kind == JSON_KIND_LIST ? value->n : 1;
    if (n > MAX_STOPS)
        REFUSE(error, "stop has %zu texts, at most %d", n, MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        str stop = items[i].text;
        if (items[i].kind != JSON_KIND_STRING || !stop.n || memchr(stop.at, 0, stop.n))
            REFUSE(error, "stop %zu is not a text, is empty, or holds a NUL", i + 1);
        r->stops[i] = arena_copy(&b->arena, stop.at, stop.n);
        if (!r->stops[i])
            REFUSE(error, "out of memory for the stop texts");
    }
    r->options.stop = r->stops;
    r->options.n_stop = (uint32_t)n;
    return true;
}

/* {"ID": bias, ...}; an id is digits only, not "+5". */
static bool read_biases(const json_value *value, line_request *r, char *error)
{
    mpk_token_bias *biases = arena_alloc(r->arena, value->n + 1, sizeof *biases);
    if (value->kind != JSON_KIND_OBJECT || !biases)
        REFUSE(error, biases ? "logit_bias is not an object" : "out of memory for logit_bias");
    for (size_t i = 0; i < value->n; i++) {
        const json_value *item = &value->items[i];
        uint64_t id = 0;
        for (size_t k = 0; k < item->key.n && id <= INT32_MAX; k++)
            id = item->key.at[k] >= '0' && item->key.at[k] <= '9'
                     ? 10 * id + (uint64_t)(item->key.at[k] - '0')
                     : UINT64_MAX;
        if (!item->key.n || id > INT32_MAX)
            REFUSE(error, "logit_bias: \"%.*s\" is not a token id", STR_ARG(item->key));
        biases[i].token = (int32_t)id;
        if (!read_number(item, -1e6, 1e6, &biases[i].bias, error))
            return false;
    }
    r->options.biases = biases;
    r->options.n_biases = (uint32_t)value->n;
    return true;
}

/* The list lives in the batch's arena until the line is submitted; the library copies it. */
static bool read_ids(const json_value *value, line_request *r, const int32_t **to, uint32_t *n,
                     char *error)
{
    int32_t *ids = arena_alloc(r->arena, value->n + 1, sizeof *ids);
    if (!ids)
        REFUSE(error, "out of memory for %.*s", STR_ARG(value->key));
    if (value->kind != JSON_KIND_LIST || !value->n)
        REFUSE(error, "%.*s is not a list of token ids", STR_ARG(value->key));
    for (size_t i = 0; i < value->n; i++) {
        uint64_t id;
        if (!read_count(value->key, &value->items[i], 0, INT32_MAX, &id, error))
            return false;
        ids[i] = (int32_t)id;
    }
    *to = ids;
    *n = (uint32_t)value->n;
    return true;
}

/* C strings, as mpk.h takes them, hence no NUL. */
static bool read_bad_words(const json_value *value, line_request *r, char *error)
{
    const char **words = arena_alloc(r->arena, value->n + 1, sizeof *words);
    if (value->kind != JSON_KIND_LIST || !words)
        REFUSE(error, words ? "bad_words is not a list of texts" : "out of memory for bad_words");
    for (size_t i = 0; i < value->n; i++) {
        str word = value->items[i].text;
        if (value->items[i].kind != JSON_KIND_STRING || !word.n || memchr(word.at, 0, word.n))
            REFUSE(error, "bad word %zu is not a text, is empty, or holds a NUL", i + 1);
        words[i] = arena_copy(r->arena, word.at, word.n);
        if (!words[i])
            REFUSE(error, "out of memory for bad_words");
    }
    r->options.bad_words = words;
    r->options.n_bad_words = (uint32_t)value->n;
    return true;
}

/* The form of the answer; a second one is an error.  *found: the key is one that sets it. */
static bool read_form(const json_value *value, line_request *r, bool *found, char *error)
{
    static const struct {
        const char *key;
        mpk_form form;
        json_kind kind;
    } forms[] = {{"json_schema", MPK_FORM_JSON_SCHEMA, JSON_KIND_OBJECT},
                 {"json_object", MPK_FORM_JSON_OBJECT, JSON_KIND_BOOL},
                 {"regex", MPK_FORM_REGEX, JSON_KIND_STRING},
                 {"choice", MPK_FORM_CHOICE, JSON_KIND_LIST},
                 {"grammar", MPK_FORM_GRAMMAR, JSON_KIND_STRING},
                 {"structural_tag", MPK_FORM_STRUCTURAL_TAG, JSON_KIND_OBJECT}};
    size_t i = 0;
    while (i < sizeof forms / sizeof *forms && !str_is(value->key, forms[i].key))
        i++;
    *found = i < sizeof forms / sizeof *forms;
    if (!*found || (value->kind == JSON_KIND_BOOL && !value->boolean))
        return true;
    if (value->kind != forms[i].kind || r->options.form)
        REFUSE(error, "%s is of another type, or the second form of the answer", forms[i].key);
    text t = {0};
    if (value->kind == JSON_KIND_STRING)
        text_add(&t, value->text.at, value->text.n);
    else
        json_write(&t, value, 0);
    r->options.form = forms[i].form;
    r->options.form_source = text_copy(&t, r->arena);
    text_free(&t);
    if (!r->options.form_source)
        REFUSE(error, "out of memory for %s", forms[i].key);
    return true;
}

/* Sampling rules and log probabilities.  *found: the key is one of them. */
static bool read_rule(const json_value *value, line_request *r, bool *found, char *error)
{
    mpk_request_options *o = &r->options;
    const struct {
        const char *key;
        double least, most;
        float *to;
    } numbers[] = {{"repetition_penalty", 0, 1e6, &o->repetition_penalty},
                   {"presence_penalty", -1e6, 1e6, &o->presence_penalty},
                   {"frequency_penalty", -1e6, 1e6, &o->frequency_penalty},
                   {"top_n_sigma", 0, 1e6, &o->top_n_sigma},
                   {"typical_p", 0, 1, &o->typical_p}};
    *found = true;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (str_is(value->key, numbers[i].key))
            return read_number(value, numbers[i].least, numbers[i].most, numbers[i].to, error);
    if (str_is(value->key, "min_tokens"))
        return read_u32(value, 0, 1 << 24, &o->min_tokens, error);
    if (str_is(value->key, "logit_bias"))
        return read_biases(value, r, error);
    if (str_is(value->key, "allowed_token_ids"))
        return read_ids(value, r, &o->allowed_tokens, &o->n_allowed, error);
    if (str_is(value->key, "bad_words"))
        return read_bad_words(value, r, error);
    *found = str_is(value->key, "logprobs") || str_is(value->key, "prompt_logprobs");
    uint32_t n = 0;
    if (*found && !read_u32(value, 0, MAX_LOGPROBS - 1, &n, error))
        return false;
    o->logprobs = o->logprobs || str_is(value->key, "logprobs");
    o->prompt_logprobs = o->prompt_logprobs || str_is(value->key, "prompt_logprobs");
    o->top_logprobs = n > o->top_logprobs ? n : o->top_logprobs;
    return true;
}

/* An empty text is a valid prompt: its `at` is not NULL. */
static bool read_text(const json_value *value, line_request *r, char *error)
{
    if (value->kind != JSON_KIND_STRING)
        REFUSE(error, "prompt is not a text");
    r->prompt = value->text.at ? value->text : STR("");
    return true;
}

/* Requests with the same salt share cached prefixes, others do not. */
static bool read_salt(const json_value *value, line_request *r, char *error)
{
    str salt = value->text;
    if (value->kind != JSON_KIND_STRING || (salt.n && memchr(salt.at, 0, salt.n)))
        REFUSE(error, "cache_salt is not a text, or holds a NUL");
    r->options.cache_salt = arena_copy(r->arena, salt.at ? salt.at : "", salt.n);
    if (!r->options.cache_salt)
        REFUSE(error, "out of memory for cache_salt");
    return true;
}

/* In a line 0 means none, which the library writes as -1; the library's own 0 means the engine's
 * default. */
static bool read_drafts(const json_value *value, line_request *r, char *error)
{
    uint32_t n;
    if (!read_u32(value, 0, MAX_DRAFTS, &n, error))
        return false;
    r->options.draft_tokens = n ? (int32_t)n : -1;
    return true;
}

/* No number counts as a flag: 1 for true is refused. */
static bool read_flag(const json_value *value, bool *to, char *error)
{
    if (value->kind != JSON_KIND_BOOL)
        REFUSE(error, "%.*s is neither true nor false", STR_ARG(value->key));
    *to = value->boolean;
    return true;
}

static bool read_priority(const json_value *value, line_request *r, char *error)
{
    uint64_t n;
    if (!read_count(value->key, value, INT32_MIN, INT32_MAX, &n, error))
        return false;
    r->options.priority = (int32_t)n;
    return true;
}

/* Conditions that end an answer.  *found: the key is one of them. */
static bool read_ends(batch *b, const json_value *value, line_request *r, bool *found, char *error)
{
    mpk_request_options *o = &r->options;
    *found = true;
    if (str_is(value->key, "stop"))
        return read_stops(b, value, r, error);
    if (str_is(value->key, "stop_token_ids"))
        return read_ids(value, r, &o->stop_tokens, &o->n_stop_tokens, error);
    if (str_is(value->key, "include_stop_str_in_output"))
        return read_flag(value, &o->include_stop, error);
    if (str_is(value->key, "ignore_eos"))
        return read_flag(value, &o->ignore_eos, error);
    *found = false;
    return true;
}

/* One member of the line's object.  An unknown name, perhaps misspelt, is an error of the line. */
static bool read_field(batch *b, const json_value *value, line_request *r, char *error)
{
    mpk_request_options *o = &r->options;
    str key = value->key;
    bool is_rule;
    bool good = read_rule(value, r, &is_rule, error);
    if (!is_rule)
        good = read_form(value, r, &is_rule, error);
    if (!is_rule)
        good = read_ends(b, value, r, &is_rule, error);
    if (is_rule)
        return good;
    if (str_is(key, "prompt"))
        return read_text(value, r, error);
    if (str_is(key, "tokens"))
        return read_tokens(value, r, error);
    if (str_is(key, "max_tokens")) {
        good = read_u32(value, 0, 1 << 24, &o->max_tokens, error);
        o->prompt_only = good && !o->max_tokens;
        return good;
    }
    if (str_is(key, "temperature"))
        return read_number(value, 0, 100, &o->temperature, error);
    if (str_is(key, "top_k"))
        return read_u32(value, 0, 1 << 30, &o->top_k, error);
    if (str_is(key, "top_p"))
        return read_number(value, 0, 1, &o->top_p, error);
    if (str_is(key, "min_p"))
        return read_number(value, 0, 1, &o->min_p, error);
    if (str_is(key, "seed"))
        return read_count(key, value, 0, INT64_MAX, &o->seed, error);
    if (str_is(key, "n"))
        return read_u32(value, 1, MAX_ANSWERS, &r->n, error);
    if (str_is(key, "best_of"))
        return read_u32(value, 1, MAX_ANSWERS, &r->best_of, error);
    if (str_is(key, "priority"))
        return read_priority(value, r, error);
    if (str_is(key, "cache_salt"))
        return read_salt(value, r, error);
    if (str_is(key, "draft_tokens"))
        return read_drafts(value, r, error);
    if (!str_is(key, "id"))
        REFUSE(error, "there is no field \"%.*s\"", STR_SHOWN(key, 100));
    return true;
}

/* null counts as absent, as most writers of JSON mean it. */
static bool read_request(batch *b, const json_value *object, line_request *r, char *error)
{
    if (object->kind != JSON_KIND_OBJECT)
        REFUSE(error, "the line is not a JSON object");
    for (size_t i = 0; i < object->n; i++)
        if (object->items[i].kind != JSON_KIND_NULL && !read_field(b, &object->items[i], r, error))
            return false;
    if (!r->prompt.at == !r->tokens)
        REFUSE(error, r->tokens ? "both prompt and tokens are given"
                                : "neither prompt nor tokens is given");
    if (r->best_of && r->best_of < (r->n ? r->n : 1))
        REFUSE(error, "best_of is %u, less than n", r->best_of);
    return true;
}

/* Exactly one of prompt and tokens is given, see read_request. */
static mpk_status submit_one(batch *b, const line_request *r, const mpk_request_options *o,
                             mpk_request **out)
{
    return r->prompt.at ? mpk_submit_text(b->cx, b->engine, r->prompt.at, r->prompt.n, o, out)
                        : mpk_submit_tokens(b->cx, b->engine, r->tokens, r->n_tokens, o, out);
}

/* The answers of a line; the i-th has seed + i. */
static bool submit(batch *b, const line_request *r, job *j)
{
    mpk_request_options o = r->options;
    const uint32_t n_shown = r->n ? r->n : 1;
    const uint32_t n = r->best_of ? r->best_of : n_shown;
    j->logprobs = o.logprobs;
    j->prompt_logprobs = o.prompt_logprobs;
    j->n_shown = n_shown;
    j->many = r->n || r->best_of;
    o.logprobs |= n > n_shown; /* the best ones are chosen by these */
    j->requests = calloc(n, sizeof *j->requests);
    if (!j->requests)
        REFUSE(j->error, "out of memory for %u answers", n);
    for (; j->n_requests < n; j->n_requests++, o.seed++)
        if (submit_one(b, r, &o, &j->requests[j->n_requests]) != MPK_OK)
            REFUSE(j->error, "%s", mpk_error_message(b->cx));
    return true;
}

/* A line with an error becomes a job too: errors are written in the order of the input. */
static void start_job(batch *b, const char *line, size_t n, job *j)
{
    line_request r = {.options = {.size = sizeof r.options, .max_tokens = b->max_tokens},
                      .arena = &b->arena};
    const json_value *object;
    *j = (job){0};
    if (json_parse(b->cx, &b->arena, (str){line, n}, &object) != MPK_OK)
        snprintf(j->error, sizeof j->error, "%s", mpk_error_message(b->cx));
    else {
        const json_value *id = json_get(object, "id");
        if (id)
            json_write(&j->id, id, 0);
        if (read_request(b, object, &r, j->error))
            submit(b, &r, j);
    }
    arena_free(&b->arena);
    free(r.tokens);
}

/* Also frees requests that still run; the library then cancels them. */
static void end_job(job *j)
{
    text_free(&j->id);
    for (uint32_t i = 0; i < j->n_requests; i++)
        mpk_request_free(j->requests[i]);
    free(j->requests);
    *j = (job){0};
}

/* ---- answers ---- */

/* Of answers or of prompts: mpk_request_logprobs or mpk_prompt_logprobs. */
typedef uint32_t logprobs_of(const mpk_request *request, size_t token, mpk_logprob *out,
                             uint32_t most);

/* For each token first .. n - 1 the list of [id, logarithm of the probability]: its own, then the
 * best. */
static void write_logprobs(const mpk_request *request, const char *name, logprobs_of *of,
                           size_t first, size_t n, text *line)
{
    mpk_logprob found[MAX_LOGPROBS];
    text_print(line, ",\"%s\":[%s", name, first && n ? "null" : "");
    for (size_t i = first; i < n; i++) {
        uint32_t entries = of(request, i, found, MAX_LOGPROBS);
        text_print(line, i ? ",[" : "[");
        for (uint32_t k = 0; k < entries; k++)
            text_print(line, "%s[%d,%.6g]", k ? "," : "", found[k].token, (double)found[k].logprob);
        text_print(line, "]");
    }
    text_print(line, "]");
}

/* "text":..., of an answer. */
static void write_members(batch *b, const job *j, const mpk_request *request,
                          const mpk_answer *answer, text *line)
{
    text_print(line, "\"text\":");
    json_write_str(line, (str){answer->text, answer->n_bytes});
    text_print(line, ",\"tokens\":[");
    for (size_t i = 0; i < answer->n_tokens; i++)
        text_print(line, i ? ",%d" : "%d", answer->tokens[i]);
    text_print(line, "],\"finish_reason\":\"%s\"", mpk_finish_name(answer->finish));
    if (j->logprobs)
        write_logprobs(request, "logprobs", mpk_request_logprobs, 0, answer->n_tokens, line);
    if (j->prompt_logprobs)
        write_logprobs(request, "prompt_logprobs", mpk_prompt_logprobs, 1, answer->n_prompt_tokens,
                       line);
    b->n_tokens += answer->n_tokens;
}

/* The mean log probability and not the sum, which would favour the shortest answer. */
static double mean_logprob(const mpk_request *request, size_t n)
{
    double sum = 0;
    mpk_logprob own;
    for (size_t i = 0; i < n; i++)
        if (mpk_request_logprobs(request, i, &own, 1))
            sum += own.logprob;
    return n ? sum / (double)n : -HUGE_VAL;
}

/* Move the most probable of the answers from `first` on, by the mean of its tokens, to place
 * `first`; those in between move up by one, so that equal ones stay in the order of their seeds. */
static void bring_best(const job *j, mpk_answer *answers, uint32_t first)
{
    uint32_t best = first;
    double most = -HUGE_VAL;
    for (uint32_t i = first; i < j->n_requests; i++) {
        const double mean = mean_logprob(j->requests[i], answers[i].n_tokens);
        if (mean > most) {
            most = mean;
            best = i;
        }
    }
    mpk_request *request = j->requests[best];
    const mpk_answer answer = answers[best];
    for (uint32_t i = best; i > first; i--) {
        j->requests[i] = j->requests[i - 1];
        answers[i] = answers[i - 1];
    }
    j->requests[first] = request;
    answers[first] = answer;
}

/* The n_shown best answers, best first.  If one request failed, the whole line has that error. */
static void wait_answers(batch *b, job *j, mpk_answer *answers)
{
    for (uint32_t i = 0; i < j->n_requests && !*j->error; i++)
        if (mpk_request_wait(b->cx, j->requests[i], &answers[i]) != MPK_OK)
            snprintf(j->error, sizeof j->error, "%s", mpk_error_message(b->cx));
    for (uint32_t i = 0; i < j->n_shown && j->n_shown < j->n_requests && !*j->error; i++)
        bring_best(j, answers, i);
}

/* The line's own id, as it was read, comes first; several answers are written as a list. */
static void write_answer(batch *b, job *j, text *line)
{
    mpk_answer answers[MAX_ANSWERS];
    wait_answers(b, j, answers);
    text_print(line, "{");
    if (j->id.n)
        text_print(line, "\"id\":%s,", j->id.at);
    if (*j->error) {
        b->n_errors++;
        text_print(line, "\"error\":");
        json_write_str(line, str_from(j->error));
    } else if (j->many) {
        text_print(line, "\"answers\":[");
        for (uint32_t i = 0; i < j->n_shown; i++) {
            text_print(line, i ? ",{" : "{");
            write_members(b, j, j->requests[i], &answers[i], line);
            text_print(line, "}");
        }
        text_print(line, "]");
    } else
        write_members(b, j, j->requests[0], &answers[0], line);
    text_print(line, "}\n");
    line->failed |= j->id.failed;
}

/* Flushed line by line, so that a reader of the output sees answers as they come. */
static int put_line(batch *b, const text *line)
{
    if (line->failed)
        return cli_fail(b->command, "out of memory for answer %zu", b->n_written + 1);
    if (b->out == stdout)
        return cli_write(line->at, line->n) ? CLI_DONE : CLI_FAILED;
    if (fwrite(line->at, 1, line->n, b->out) != line->n || fflush(b->out) != 0)
        return cli_fail(b->command, "cannot write %s: %s", b->out_name, strerror(errno));
    return CLI_DONE;
}

/* Waits for the oldest job: output is in the order of input. */
static int finish_job(batch *b, job *j)
{
    text line = {0};
    write_answer(b, j, &line);
    end_job(j);
    int code = put_line(b, &line);
    text_free(&line);
    b->n_written++;
    if (!b->quiet)
        cli_progress("%zu of %zu requests done, %zu tokens, %zu errors", b->n_written, b->n_read,
                     b->n_tokens, b->n_errors);
    return code;
}

/* A carriage return counts as a blank: files from Windows have one at the end of each line. */
static bool is_blank(const char *line, size_t n)
{
    while (n > 0 && memchr(" \t\r", line[n - 1], 3))
        n--;
    return n == 0;
}

/* Have all requests of the oldest job ended?  Waits up to LOOK_MS for progress of the first that
 * has not. */
static bool is_done(batch *b, const job *j)
{
    mpk_piece piece;
    for (uint32_t i = 0; i < j->n_requests; i++)
        if (mpk_request_read(b->cx, j->requests[i], LOOK_MS, &piece) == MPK_OK &&
            piece.finish == MPK_RUNNING)
            return false;
    return true;
}

/* Submit the lines that have arrived and write the oldest answer when it is ready, whichever is
 * possible first. Answers come in the order of the lines. n_read - n_written lines are under way,
 * at most `window`; job i uses place i % window. Only with none under way may reading block. */
static int run_lines(batch *b)
{
    cli_lines lines = {.fd = b->in};
    cli_line state = CLI_LINE;
    int code = CLI_DONE;
    while (code == CLI_DONE && state != CLI_LINE_END && !cli_interrupted()) {
        const bool any = b->n_written < b->n_read, full = b->n_read - b->n_written == b->window;
        job *oldest = &b->jobs[b->n_written % b->window];
        const char *line;
        size_t n;
        state = full ? CLI_LINE_NONE : cli_lines_next(&lines, !any, &line, &n);
        if (state == CLI_LINE && !is_blank(line, n))
            start_job(b, line, n, &b->jobs[b->n_read++ % b->window]);
        else if (state == CLI_LINE_NONE && (full || is_done(b, oldest)))
            code = finish_job(b, oldest);
        else if (state == CLI_LINE_ERROR && errno != EINTR)
            code = cli_fail(b->command, "cannot read %s: %s", b->in_name, strerror(errno));
    }
    while (code == CLI_DONE && b->n_written < b->n_read && !cli_interrupted())
        code = finish_job(b, &b->jobs[b->n_written % b->window]);
    if (code == CLI_DONE && cli_interrupted())
        code = cli_fail(b->command, "interrupted: %zu of %zu requests were answered", b->n_written,
                        b->n_read);
    for (; b->n_written < b->n_read; b->n_written++)
        end_job(&b->jobs[b->n_written % b->window]);
    cli_lines_free(&lines);
    return code;
}

/* To standard error: standard output is the answers. */
static void print_closing_line(const batch *b)
{
    mpk_engine_facts f = {.size = sizeof f};
    mpk_engine_describe(b->engine, &f);
    cli_progress("%s", "");
    fprintf(stderr,
            "mpk: %zu requests, %zu errors, %zu tokens; %llu of %llu tokens of prompts from the "
            "prefix cache",
            b->n_written, b->n_errors, b->n_tokens, (unsigned long long)f.prefix_found_tokens,
            (unsigned long long)f.prefix_asked_tokens);
    if (f.drafted_tokens)
        fprintf(stderr, "; %llu of %llu drafts stood", (unsigned long long)f.accepted_tokens,
                (unsigned long long)f.drafted_tokens);
    fprintf(stderr, "\n");
}

/* After a failure run_lines has already freed the jobs that were left; the closing line is
 * printed on success only. */
static int with_engine(batch *b)
{
    b->jobs = calloc(b->window, sizeof *b->jobs);
    if (!b->jobs)
        return cli_fail(b->command, "out of memory");
    int code = run_lines(b);
    free(b->jobs);
    if (!b->quiet && code == CLI_DONE)
        print_closing_line(b);
    return code;
}

/* The output file is emptied only once the model is open: a mistyped name costs no old result. */
static int open_engine(batch *b, batch_arguments *args)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    int code = cli_engine_options(b->command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    cli_catch_interrupt();
    if (mpk_engine_open(b->cx, args->model, &wanted, &b->engine) != MPK_OK)
        return cli_report(b->command, b->cx);
    code = args->out ? cli_empty_output(b->command, b->engine, b->out, args->out) : CLI_DONE;
    if (code == CLI_DONE)
        code = with_engine(b);
    mpk_engine_close(b->engine);
    return code;
}

/* NULL: standard output.  What lies in the file stays there until the engine is open, which knows
 * whether it is one of its own (cli_empty_output). */
static int open_output(batch *b, const char *path)
{
    int code = cli_check_output(b->command, path, b->in_name);
    if (code != CLI_DONE)
        return code;
    b->out = path ? fopen(path, "ab") : stdout;
    return b->out ? CLI_DONE : cli_fail(b->command, "cannot write %s: %s", path, strerror(errno));
}

/* The output is opened between input and model, so that a wrong name is reported at once. */
static int open_files(batch *b, batch_arguments *args)
{
    bool from_standard = strcmp(args->requests, "-") == 0;
    b->in = from_standard ? STDIN_FILENO : open(args->requests, O_RDONLY | O_CLOEXEC);
    if (b->in < 0)
        return cli_fail(b->command, "cannot open %s: %s", args->requests, strerror(errno));
    int code = open_output(b, args->out);
    if (code == CLI_DONE)
        code = open_engine(b, args);
    if (!from_standard)
        close(b->in);
    if (b->out && args->out && fclose(b->out) != 0 && code == CLI_DONE)
        code = cli_fail(b->command, "cannot write %s: %s", args->out, strerror(errno));
    return code;
}

/* The window bounds the lines in flight, and so the memory. */
static int run(const cli_command *command, void *arguments)
{
    batch_arguments *args = arguments;
    uint32_t at_once = args->engine.max_batch ? args->engine.max_batch : DEFAULT_BATCH;
    batch b = {
        .command = command,
        .cx = mpk_context_create(),
        .in_name = args->requests,
        .out_name = args->out,
        .max_tokens = args->max_tokens,
        .window = at_once * WINDOW_BATCHES,
        .quiet = args->engine.quiet,
    };
    int code = b.cx ? open_files(&b, args) : cli_fail(command, "out of memory");
    mpk_context_free(b.cx);
    return code;
}

const cli_command cmd_batch = {
    .name = "batch",
    .operands = "MODEL REQUESTS.jsonl [-o OUT.jsonl] [--max-batch N]",
    .summary = "answer many requests at once, from a file of JSON lines",
    .notes =
        "A request is a line with prompt (a text) or tokens (a list of ids), and where wanted "
        "max_tokens, temperature,\n"
        "top_k, top_p, min_p, seed, stop (a text or a list of them), stop_token_ids, ignore_eos, "
        "priority, cache_salt, id\n"
        "(given back); docs/command-line.md has all fields.  Its answer is a line with text, "
        "tokens "
        "and finish_reason\n"
        "(stop, length), in the order of the requests; a line that is no request, or one that "
        "cannot run, gets an error\n"
        "in its place.  Blank lines are skipped.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(batch_arguments),
    .run = run,
};
