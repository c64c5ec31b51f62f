/* cmd_score.c - mpk score: how probable a text is, token by token (teacher-forced), and the logits
 * behind that.
 *
 * Input: T tokens; output: the log-likelihood of tokens 1 ... T-1 given those before, the
 * perplexity, and on request float32 [T, V] as a .npy file.  The logits pass through in chunks:
 * memory is a chunk, not T * V.  The tests compare these logits with those of other
 * implementations. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ids.h"
#include "base/thread.h"
#include "cli/cli.h"

enum { CHUNK_TOKENS = 64, DEFAULT_CONTEXT = 4096 };

typedef struct score_arguments {
    const char *model, *tokens, *file, *prompt, *logits;
    bool json;
    cli_engine engine;
} score_arguments;

typedef struct scoring {
    const cli_command *command;
    mpk_context *cx;
    mpk_engine *engine;
    const int32_t *ids;
    size_t n;
    uint32_t vocab_size;
    FILE *npy; /* NULL: not wanted */
    const char *npy_path;
    bool quiet;
    double log_likelihood;
    size_t n_bad, first_bad; /* tokens whose log probability is not a finite number */
} scoring;

static const cli_option options[] = {
    CLI_OPTION(score_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder, a GGUF file, or an image of mpk compile"),
    CLI_OPTION(score_arguments, tokens, "tokens", CLI_TEXT, .value = "FILE",
               .help = "read token ids from a file; - for standard input"),
    CLI_OPTION(score_arguments, file, "file", CLI_TEXT, .letter = 'f', .value = "FILE",
               .help = "read a text from a file; - for standard input"),
    CLI_OPTION(score_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "TEXT",
               .help = "the text itself"),
    CLI_OPTION(score_arguments, logits, "logits", CLI_TEXT, .value = "FILE",
               .help = "write the logits after each token: float32 [T, V], .npy"),
    CLI_OPTION(score_arguments, json, "json", CLI_FLAG, .help = "print JSON"),
    CLI_DEVICE_ROW(score_arguments, engine),
    CLI_MEET_ROWS(score_arguments, engine),
    CLI_THREADS_ROW(score_arguments, engine),
    CLI_MODEL_ROWS(score_arguments, engine),
    CLI_QUIET_ROW(score_arguments, engine),
};

/* log softmax(row)[token]; in double, so that sums over a long text keep their precision. */
static double log_probability(const float *row, uint32_t n, int32_t token)
{
    float top = row[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        top = row[i] > top ? row[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - top);
    return (double)row[token] - top - log(sum);
}

/* The header of a .npy file, version 1.0: a Python literal padded with spaces so that the data is
 * 64-byte aligned. */
static bool write_npy_header(FILE *to, size_t rows, size_t columns)
{
    char header[128];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10); /* 0x76: the bytes that follow */
    int n =
        snprintf(header + 10, sizeof header - 10,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, columns);
    header[10 + n] = ' ';
    header[sizeof header - 1] = '\n';
    return fwrite(header, 1, sizeof header, to) == sizeof header;
}

/* Logits that are not finite are counted and reported at the end, so that a .npy file still gets
 * all rows. */
static void add_token(scoring *s, const float *row, size_t at)
{
    double found = log_probability(row, s->vocab_size, s->ids[at]);
    s->log_likelihood += found;
    if (!isfinite(found) && !s->n_bad++)
        s->first_bad = at;
}

/* Row i of a chunk predicts token first + i + 1; the last row of the text predicts nothing. */
static int score_chunks(scoring *s, mpk_sequence *sequence, float *logits)
{
    for (size_t first = 0; first < s->n; first += CHUNK_TOKENS) {
        size_t n = s->n - first < CHUNK_TOKENS ? s->n - first : CHUNK_TOKENS;
        if (cli_interrupted())
            return cli_fail(s->command, "interrupted after %zu of %zu tokens", first, s->n);
        if (mpk_sequence_feed(s->cx, sequence, s->ids + first, n, logits) != MPK_OK)
            return cli_report(s->command, s->cx);
        if (s->npy && fwrite(logits, sizeof(float) * s->vocab_size, n, s->npy) != n)
            return cli_fail(s->command, "cannot write %s: %s", s->npy_path, strerror(errno));
        for (size_t i = 0; i < n && first + i + 1 < s->n; i++)
            add_token(s, logits + i * s->vocab_size, first + i + 1);
        if (!s->quiet)
            cli_progress("scored %zu of %zu tokens", first + n, s->n);
    }
    cli_progress("%s", "");
    return CLI_DONE;
}

/* One sequence for the whole text; CHUNK_TOKENS rows of logits on the heap. */
static int score_sequence(scoring *s)
{
    mpk_sequence *sequence;
    float *logits = calloc((size_t)CHUNK_TOKENS * s->vocab_size, sizeof *logits);
    if (!logits)
        return cli_fail(s->command, "out of memory for %d rows of %u logits", CHUNK_TOKENS,
                        s->vocab_size);
    int code = CLI_DONE;
    if (mpk_sequence_open(s->cx, s->engine, true, &sequence) != MPK_OK)
        code = cli_report(s->command, s->cx);
    else {
        code = score_chunks(s, sequence, logits);
        mpk_sequence_close(sequence);
    }
    free(logits);
    return code;
}

/* A full disk may be reported only when the file is closed. */
static int score_to_file(scoring *s)
{
    if (!s->npy_path)
        return score_sequence(s);
    s->npy = fopen(s->npy_path, "ab");
    if (!s->npy)
        return cli_fail(s->command, "cannot write %s: %s", s->npy_path, strerror(errno));
    int code = cli_empty_output(s->command, s->engine, s->npy, s->npy_path);
    if (code == CLI_DONE)
        code = write_npy_header(s->npy, s->n, s->vocab_size)
                   ? score_sequence(s)
                   : cli_fail(s->command, "cannot write %s: %s", s->npy_path, strerror(errno));
    if (fclose(s->npy) != 0 && code == CLI_DONE)
        code = cli_fail(s->command, "cannot write %s: %s", s->npy_path, strerror(errno));
    return code;
}

/* Natural logarithms; the perplexity is exp of minus their mean over the tokens that were
 * scored. */
static void print_result(const scoring *s, bool json, uint64_t ns)
{
    size_t n = s->n - 1; /* the first token has nothing before it */
    double mean = n ? s->log_likelihood / (double)n : 0, seconds = (double)ns * 1e-9;
    if (json)
        printf("{\"tokens\": %zu, \"scored\": %zu, \"log_likelihood\": %.9g, \"mean\": %.9g, "
               "\"perplexity\": %.9g, "
               "\"seconds\": %.6f}\n",
               s->n, n, s->log_likelihood, mean, exp(-mean), seconds);
    else
        printf("tokens %zu\nscored %zu\nlog-likelihood %.6f\nper token %.6f\nperplexity %.6f\n",
               s->n, n, s->log_likelihood, mean, exp(-mean));
}

/* n_tokens 0: not known yet. The context is as long as the text, if that is longer than the
 * default. */
static int open_engine(scoring *s, score_arguments *args, size_t n_tokens)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    mpk_engine_facts facts = {.size = sizeof facts};
    int code = cli_engine_options(s->command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    wanted.max_batch = 1;
    if (!wanted.context_tokens && n_tokens > DEFAULT_CONTEXT)
        wanted.context_tokens = (uint32_t)n_tokens;
    cli_catch_interrupt();
    if (mpk_engine_open(s->cx, args->model, &wanted, &s->engine) != MPK_OK)
        return cli_report(s->command, s->cx);
    cli_progress("%s", "");
    mpk_engine_describe(s->engine, &facts);
    s->vocab_size = facts.vocab_size;
    return CLI_DONE;
}

/* The time is that of the tokens alone, without opening the model. */
static int score(scoring *s, score_arguments *args)
{
    uint64_t start = clock_ns();
    int code = score_to_file(s);
    if (code == CLI_DONE && s->n_bad)
        return cli_fail(s->command,
                        "%zu of %zu tokens, the first of them token %zu, have a log probability "
                        "that is not finite: the model's logits before them are not finite",
                        s->n_bad, s->n - 1, s->first_bad);
    if (code == CLI_DONE)
        print_result(s, args->json, clock_ns() - start);
    return code;
}

/* The engine may be open already (score_text); else it is opened with a context for n tokens. */
static int score_ids(scoring *s, score_arguments *args, const int32_t *ids, size_t n)
{
    s->ids = ids;
    s->n = n;
    if (!n)
        return cli_fail(s->command, "%s holds no token ids",
                        args->tokens ? args->tokens : "the text");
    int code = s->engine ? CLI_DONE : open_engine(s, args, n);
    /* the last row of a chunk is asked for an id of the next, which is not fed yet */
    if (code == CLI_DONE && ids_check(s->cx, ids, n, s->vocab_size) != MPK_OK)
        code = cli_report(s->command, s->cx);
    return code == CLI_DONE ? score(s, args) : code;
}

/* The text's length decides the context, so its tokens come first; but a random model brings its
 * tokenizer itself. The tokenizer is then opened alone, which is quick, and the engine brings its
 * own later. */
static int score_text(scoring *s, score_arguments *args, str source)
{
    mpk_tokenizer *own = NULL;
    int32_t *ids;
    size_t n;
    int code = args->engine.random.given ? open_engine(s, args, 0) : CLI_DONE;
    if (code != CLI_DONE)
        return code;
    const mpk_tokenizer *t = s->engine ? mpk_engine_tokenizer(s->engine) : NULL;
    if (!t && mpk_tokenizer_open(s->cx, args->model, &own) != MPK_OK)
        return cli_report(s->command, s->cx);
    mpk_status status = mpk_tokenize(s->cx, t ? t : own, source.at, source.n, true, &ids, &n);
    mpk_tokenizer_close(own);
    if (status != MPK_OK)
        return cli_report(s->command, s->cx);
    code = score_ids(s, args, ids, n);
    mpk_free(ids);
    return code;
}

/* Exactly one source of tokens or text. */
static int with_arena(scoring *s, arena *a, score_arguments *args)
{
    str source;
    int32_t *ids;
    size_t n;
    if (!args->tokens + !args->file + !args->prompt != 2)
        return cli_misuse(s->command, "give one of --tokens FILE, -f FILE, -p TEXT");
    const char *file = args->tokens ? args->tokens : args->file;
    int code = cli_check_output(s->command, args->logits, file);
    if (code == CLI_DONE)
        code = cli_read_text(s->command, s->cx, a, args->prompt, file, NULL, &source);
    if (code != CLI_DONE)
        return code;
    if (!args->tokens)
        return score_text(s, args, source);
    code = cli_read_ids(s->command, a, source, &ids, &n);
    return code == CLI_DONE ? score_ids(s, args, ids, n) : code;
}

/* s.engine may be NULL: nothing was opened. */
static int run(const cli_command *command, void *arguments)
{
    score_arguments *args = arguments;
    arena a = {0};
    scoring s = {.command = command,
                 .cx = mpk_context_create(),
                 .npy_path = args->logits,
                 .quiet = args->engine.quiet};
    int code = s.cx ? with_arena(&s, &a, args) : cli_fail(command, "out of memory");
    mpk_engine_close(s.engine);
    mpk_context_free(s.cx);
    arena_free(&a);
    return code;
}

const cli_command cmd_score = {
    .name = "score",
    .operands = "MODEL (--tokens IDS.txt | -f FILE | -p TEXT) [--logits OUT.npy]",
    .summary = "print the log-likelihood and perplexity of a text",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(score_arguments),
    .run = run,
};
