/* cmd_perplexity.c - mpk perplexity: how well a model foresees a text in windows, and how far it is
 * from another model.
 *
 * Input: a text of T tokens; output: the perplexity with its standard error.  Windows of N tokens
 * each begin a new context, with BOS in place of the first token where the model's texts begin with
 * it.  Without --stride windows follow each other and the second half of each but its first token
 * is scored, as llama-perplexity does, so that every scored token has at least N / 2 before it.
 * With --stride S windows begin S tokens apart and the last S of each are scored.  With N = 8, s
 * scored:
 *
 *   no stride   |.....sss|.....sss|.....sss|
 *   stride 4    |....ssss|
 *                   |....ssss|
 *                       |....ssss|
 *
 * --kl runs a second model over the same windows and compares the distributions.  Memory: 64 rows
 * of logits a model.  mpk quantize --report (cmd_quantize.c) measures in the same way. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/ids.h"
#include "base/json.h"
#include "cli/cli.h"

enum { CHUNK_TOKENS = 64, DEFAULT_WINDOW = 512, LEAST_WINDOW = 4 };

static const cli_option options[] = {
    CLI_OPTION(cli_perplexity, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder or a GGUF file"),
    CLI_OPTION(cli_perplexity, file, "file", CLI_TEXT, .letter = 'f', .value = "FILE",
               .help = "the text; - for standard input"),
    CLI_OPTION(cli_perplexity, window, "window", CLI_COUNT, .letter = 'c', .value = "N",
               .help = "tokens of a window (512, or the models' context if that is less)",
               .least = LEAST_WINDOW, .most = 1 << 20),
    CLI_OPTION(cli_perplexity, stride, "stride", CLI_COUNT, .value = "S",
               .help = "windows begin S tokens apart, the last S of each are scored", .least = 1,
               .most = 1 << 20),
    CLI_OPTION(cli_perplexity, windows, "windows", CLI_COUNT, .value = "N",
               .help = "the first N windows only", .least = 1, .most = 4294967295.0),
    CLI_OPTION(cli_perplexity, base, "kl", CLI_TEXT, .value = "BASE",
               .help = "compare with the distributions of this model"),
    CLI_OPTION(cli_perplexity, adapters, "lora", CLI_ADAPTER, .value = "PATH[:SCALE]",
               .help =
                   "merge this adapter into MODEL, SCALE (1) times; may be given several times"),
    CLI_OPTION(cli_perplexity, activations, "activations", CLI_CHOICE, .value = "auto|f32|i8",
               .help = "what MODEL's weights in GGUF blocks are multiplied by (BASE: f32)"),
    CLI_OPTION(cli_perplexity, threads, "threads", CLI_COUNT, .letter = 't', .value = "N",
               .help = "workers (one for each processor)", .least = 1, .most = 1024),
    CLI_OPTION(cli_perplexity, json, "json", CLI_FLAG, .help = "print JSON"),
    CLI_OPTION(cli_perplexity, quiet, "quiet", CLI_FLAG, .letter = 'q', .help = "show no progress"),
};

/* A model and its position in the current window. */
typedef struct side {
    mpk_engine *engine;
    mpk_sequence *sequence;
    float *logits; /* [CHUNK_TOKENS, V] */
} side;

typedef struct measuring {
    const cli_command *command;
    mpk_context *cx;
    arena *arena;
    const cli_perplexity *args;
    side model, base; /* base.engine NULL: no --kl */
    uint32_t vocab_size;
    const int32_t *ids;
    /* Of a window: its length in tokens, the distance to the next one, how many tokens are
     * scored. */
    size_t n, window, step, scored;
    int32_t bos;     /* The token put before a text; -1: none. */
    int32_t *tokens; /* [window] */
    size_t n_windows, count, same;
    /* Sums over the scored tokens: of the losses (minus the log probabilities), of their
     * squares, and of the losses of the base. */
    double sum, squares, base_sum;
    double *divergences; /* [n_windows * scored] */
} measuring;

/* The logarithm of the sum of exp(row), in double so that nothing is lost in a long text. */
static double log_sum(const float *row, uint32_t n)
{
    float top = row[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        top = row[i] > top ? row[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - top);
    return top + log(sum); /* NaN if one of them is, or is +infinity */
}

/* The token with the largest logit; of equal ones the first. */
static uint32_t find_top(const float *row, uint32_t n)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < n; i++)
        top = row[i] > row[top] ? i : top;
    return top;
}

/* KL divergence of the model's distribution from the base's, in nats.  Rounding can make it
 * slightly negative; NaN stays NaN.  A token to which the base gives probability 0 adds nothing,
 * even if both logits are -infinity. */
static double divergence(const float *base, double base_log, const float *row, double row_log,
                         uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double log_p = base[i] - base_log, p = exp(log_p);
        sum += p == 0 ? 0 : p * (log_p - (row[i] - row_log));
    }
    return sum < 0 ? 0 : sum;
}

/* Only finite numbers are summed: one other value would make the mean meaningless. */
static int refuse_token(const measuring *m, const char *model)
{
    return cli_fail(m->command,
                    "%s: the logits before token %zu of window %zu are not finite numbers, so "
                    "that nothing can be measured",
                    model, m->window - m->scored + m->count % m->scored, m->count / m->scored + 1);
}

/* Row `row` of the logits predicted the token `next`: add its loss in nats, in double, and the
 * square of the loss for the standard error.  With --kl also add the loss of the base and the
 * divergence of the two rows. */
static int score_token(measuring *m, size_t row, int32_t next)
{
    const uint32_t n = m->vocab_size;
    const float *logits = m->model.logits + row * n, *base = m->base.logits + row * n;
    double own_log = log_sum(logits, n), loss = own_log - logits[next];
    if (!isfinite(loss))
        return refuse_token(m, m->args->model);
    m->sum += loss;
    m->squares += loss * loss;
    if (m->base.engine) {
        double base_log = log_sum(base, n), base_loss = base_log - base[next];
        if (!isfinite(base_loss))
            return refuse_token(m, m->args->base);
        double apart = divergence(base, base_log, logits, own_log, n);
        if (!isfinite(apart))
            return refuse_token(m, m->args->model);
        m->base_sum += base_loss;
        m->divergences[m->count] = apart;
        m->same += find_top(base, n) == find_top(logits, n);
    }
    m->count++;
    return CLI_DONE;
}

/* ---- windows ---- */

/* Feed the next n tokens of the window and get their rows of logits; does nothing for a base
 * without an engine (no --kl). */
static mpk_status feed(measuring *m, side *s, size_t first, size_t n)
{
    if (!s->engine)
        return MPK_OK;
    return mpk_sequence_feed(m->cx, s->sequence, m->tokens + first, n, s->logits);
}

/* Token i is scored by the logits of token i - 1. Only the last `scored` tokens of a window count:
 * they have context in front of them. */
static int run_chunks(measuring *m)
{
    for (size_t first = 0; first < m->window; first += CHUNK_TOKENS) {
        size_t n = m->window - first < CHUNK_TOKENS ? m->window - first : CHUNK_TOKENS;
        if (cli_interrupted())
            return cli_fail(m->command, "interrupted after %zu tokens", m->count);
        if (feed(m, &m->model, first, n) != MPK_OK || feed(m, &m->base, first, n) != MPK_OK)
            return cli_report(m->command, m->cx);
        for (size_t i = 0; i < n; i++) {
            size_t next = first + i + 1;
            if (next >= m->window || next < m->window - m->scored)
                continue;
            int code = score_token(m, i, m->tokens[next]);
            if (code != CLI_DONE)
                return code;
        }
    }
    return CLI_DONE;
}

/* Start a new sequence: the context is empty. */
static mpk_status open_side(measuring *m, side *s)
{
    s->sequence = NULL;
    return s->engine ? mpk_sequence_open(m->cx, s->engine, true, &s->sequence) : MPK_OK;
}

/* Each window is a new sequence, so its first tokens are predicted without the text before it. */
static int run_window(measuring *m, size_t start)
{
    int code;
    memcpy(m->tokens, m->ids + start, m->window * sizeof *m->tokens);
    if (m->bos >= 0)
        m->tokens[0] = m->bos;
    if (open_side(m, &m->model) != MPK_OK)
        return cli_report(m->command, m->cx);
    code = open_side(m, &m->base) == MPK_OK ? run_chunks(m) : cli_report(m->command, m->cx);
    mpk_sequence_close(m->base.engine ? m->base.sequence : NULL);
    mpk_sequence_close(m->model.sequence);
    return code;
}

/* Windows begin `step` tokens apart; plan_windows has made sure that the last one is whole. */
static int run_windows(measuring *m)
{
    for (size_t i = 0; i < m->n_windows; i++) {
        int code = run_window(m, i * m->step);
        if (code != CLI_DONE)
            return code;
        if (!m->args->quiet)
            cli_progress("window %zu of %zu: perplexity %.4f", i + 1, m->n_windows,
                         exp(m->sum / (double)m->count));
    }
    cli_progress("%s", "");
    return CLI_DONE;
}

/* ---- the report ---- */

/* For qsort; divergences are finite (score_token). */
static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Before or after the sort: the order changes the last digits only. */
static double mean_divergence(const measuring *m)
{
    double sum = 0;
    for (size_t i = 0; i < m->count; i++)
        sum += m->divergences[i];
    return sum / (double)m->count;
}

/* By the delta method: the standard error of the mean loss, times the perplexity. */
static double standard_error(const measuring *m, double perplexity)
{
    double n = (double)m->count, mean = m->sum / n, variance = m->squares / n - mean * mean;
    return m->count > 1 && variance > 0 ? perplexity * sqrt(variance / (n - 1)) : 0;
}

/* KL divergences are in nats a token; the same first choice is a share of the tokens. Sorted once,
 * for the quantiles. */
static void print_report(measuring *m)
{
    double n = (double)m->count, perplexity = exp(m->sum / n),
           error = standard_error(m, perplexity);
    double *kl = m->divergences, same = (double)m->same / n;
    if (m->base.engine)
        qsort(kl, m->count, sizeof *kl, compare_doubles);
    if (m->args->json) {
        printf("{\"windows\": %zu, \"scored\": %zu, \"perplexity\": %.9g, \"error\": %.6g",
               m->n_windows, m->count, perplexity, error);
        if (m->base.engine)
            printf(", \"base_perplexity\": %.9g, \"kl\": {\"mean\": %.6g, \"median\": %.6g, "
                   "\"p99\": %.6g, \"most\": %.6g}"
                   ", \"same_top\": %.6g",
                   exp(m->base_sum / n), mean_divergence(m), kl[m->count / 2],
                   kl[m->count * 99 / 100], kl[m->count - 1], same);
        printf("}\n");
        return;
    }
    printf("windows %zu of %zu tokens\nscored %zu\nperplexity %.4f +- %.4f\n", m->n_windows,
           m->window, m->count, perplexity, error);
    if (m->base.engine)
        printf("perplexity of the base %.4f\nKL divergence: mean %.6f, median %.6f, 99 %% %.6f, "
               "most %.6f\n"
               "the same first choice: %.2f %%\n",
               exp(m->base_sum / n), mean_divergence(m), kl[m->count / 2], kl[m->count * 99 / 100],
               kl[m->count - 1], 100 * same);
}

/* ---- opening ---- */

/* A window is no longer than the context that a model was trained with. */
static mpk_status fit_window(measuring *m, const char *model)
{
    const mpk_engine_options wanted = {
        .size = sizeof wanted, .device = "cpu", .max_batch = 1, .step_tokens = 1};
    const json_value *root;
    char *json;
    mpk_status status = mpk_inspect(m->cx, model, &wanted, 1, &json);
    if (status != MPK_OK)
        return status;
    status = json_parse(m->cx, m->arena, str_from(json), &root);
    if (status == MPK_OK) {
        long long most = json_get(json_get(root, "model"), "trained_context")->integer;
        m->window = most >= LEAST_WINDOW && most < (long long)m->window ? (size_t)most : m->window;
    }
    mpk_free(json);
    return status;
}

/* The window of the option, else the default, cut to what both models were trained with. */
static mpk_status choose_window(measuring *m)
{
    m->window = m->args->window ? m->args->window : DEFAULT_WINDOW;
    if (m->args->window)
        return MPK_OK;
    mpk_status status = fit_window(m, m->args->model);
    return status == MPK_OK && m->args->base ? fit_window(m, m->args->base) : status;
}

/* Without --stride a last window that is not full is left out. A window begins `step` tokens after
 * the one before; without --stride they do not overlap and the second half of each is scored, as
 * llama.cpp does. */
static int plan_windows(measuring *m)
{
    if (choose_window(m) != MPK_OK)
        return cli_report(m->command, m->cx);
    m->step = m->args->stride ? m->args->stride : m->window;
    m->scored = m->args->stride ? m->step : m->window - m->window / 2 - 1;
    if (m->args->stride >= m->window)
        return cli_misuse(m->command,
                          "--stride is %zu, expected less than a window, which has %zu tokens",
                          m->step, m->window);
    if (m->n < m->window)
        return cli_fail(m->command,
                        "%s has %zu tokens, which is less than a window of %zu: give a longer "
                        "text%s",
                        m->args->file, m->n, m->window, m->args->only_ask ? "" : ", or -c");
    m->n_windows = (m->n - m->window) / m->step + 1;
    if (m->args->windows && m->args->windows < m->n_windows)
        m->n_windows = m->args->windows;
    m->tokens = calloc(m->window, sizeof *m->tokens);
    m->divergences = calloc(m->n_windows * m->scored, sizeof *m->divergences);
    return m->tokens && m->divergences ? CLI_DONE
                                       : cli_fail(m->command, "out of memory for %zu tokens", m->n);
}

/* The base keeps f32 activations: it is what the model is measured against. The prefix cache is
 * off: every window is computed whole, so that the time is that of the model. */
static int open_engine(measuring *m, const char *model, const cli_adapters *adapters,
                       int activations, side *s)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_options wanted = {.size = sizeof wanted,
                                 .threads = m->args->threads,
                                 .max_batch = 1,
                                 .context_tokens = (uint32_t)m->window,
                                 .progress = cli_show_progress,
                                 .progress_user = m->args->quiet ? m : NULL,
                                 .activations = (mpk_activations)activations,
                                 .no_prefix_cache = 1,
                                 .adapters = adapters->at,
                                 .n_adapters = adapters->n};
    if (mpk_engine_open(m->cx, model, &wanted, &s->engine) != MPK_OK)
        return cli_report(m->command, m->cx);
    cli_progress("%s", "");
    mpk_engine_describe(s->engine, &facts);
    if (m->vocab_size && m->vocab_size != facts.vocab_size)
        return cli_fail(m->command, "%s has a vocabulary of %u tokens, the model one of %u", model,
                        facts.vocab_size, m->vocab_size);
    m->vocab_size = facts.vocab_size;
    s->logits = calloc((size_t)CHUNK_TOKENS * m->vocab_size, sizeof *s->logits);
    return s->logits ? CLI_DONE
                     : cli_fail(m->command, "out of memory for rows of %u logits", m->vocab_size);
}

/* Engines that were opened are closed by cli_measure_perplexity. */
static int measure(measuring *m)
{
    int code = plan_windows(m);
    if (code != CLI_DONE || m->args->only_ask)
        return code;
    code = open_engine(m, m->args->model, &m->args->adapters, m->args->activations, &m->model);
    if (code == CLI_DONE && m->args->base)
        code =
            open_engine(m, m->args->base, &m->args->base_adapters, MPK_ACTIVATIONS_F32, &m->base);
    if (code == CLI_DONE && ids_check(m->cx, m->ids, m->n, m->vocab_size) != MPK_OK)
        code = cli_report(m->command, m->cx);
    if (code == CLI_DONE)
        code = run_windows(m);
    if (code == CLI_DONE)
        print_report(m);
    return code;
}

/* The token that the tokenizer puts before a text, found by tokenising a short one; -1: none. */
static mpk_status find_bos(measuring *m, const mpk_tokenizer *t)
{
    int32_t first[2] = {-1, -1};
    for (int special = 0; special < 2; special++) {
        int32_t *ids;
        size_t n;
        mpk_status status = mpk_tokenize(m->cx, t, "a", 1, special, &ids, &n);
        if (status != MPK_OK)
            return status;
        first[special] = n ? ids[0] : -1;
        mpk_free(ids);
    }
    m->bos = first[1] != first[0] ? first[1] : -1;
    return MPK_OK;
}

/* The text is tokenised by the model's own tokenizer, and by it alone: base and model must have one
 * vocabulary (open_engine). */
static int tokenize(measuring *m, const mpk_tokenizer *t, str source)
{
    int32_t *ids;
    if (find_bos(m, t) != MPK_OK ||
        mpk_tokenize(m->cx, t, source.at, source.n, true, &ids, &m->n) != MPK_OK)
        return cli_report(m->command, m->cx);
    m->ids = ids;
    int code = measure(m);
    mpk_free(ids);
    return code;
}

/* The text is read first and the tokenizer next, so that a wrong name costs no loading of
 * weights. */
static int with_arena(measuring *m, arena *a)
{
    str source = m->args->text;
    mpk_tokenizer *t;
    int code = CLI_DONE;
    if (!source.at)
        code = cli_read_text(m->command, m->cx, a, NULL, m->args->file, NULL, &source);
    if (code != CLI_DONE)
        return code;
    cli_catch_interrupt();
    if (mpk_tokenizer_open(m->cx, m->args->model, &t) != MPK_OK)
        return cli_report(m->command, m->cx);
    code = tokenize(m, t, source);
    mpk_tokenizer_close(t);
    return code;
}

/* Everything is freed here, also after a failure on the way. */
int cli_measure_perplexity(const cli_command *command, const cli_perplexity *args)
{
    arena a = {0};
    measuring m = {.command = command, .cx = mpk_context_create(), .arena = &a, .args = args};
    int code = m.cx ? with_arena(&m, &a) : cli_fail(command, "out of memory");
    mpk_engine_close(m.model.engine);
    mpk_engine_close(m.base.engine);
    free(m.model.logits);
    free(m.base.logits);
    free(m.tokens);
    free(m.divergences);
    mpk_context_free(m.cx);
    arena_free(&a);
    return code;
}

/* Also called by `mpk quantize --report` through cli_measure_perplexity. */
static int run(const cli_command *command, void *arguments)
{
    const cli_perplexity *args = arguments;
    if (!args->file)
        return cli_misuse(command, "give the text with -f FILE");
    return cli_measure_perplexity(command, args);
}

const cli_command cmd_perplexity = {
    .name = "perplexity",
    .operands = "MODEL -f TEXT [--kl BASE]",
    .summary = "measure how well a model foresees a text, and how far it is from another",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(cli_perplexity),
    .run = run,
};
