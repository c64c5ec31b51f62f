/* cmd_bench.c - mpk bench: how fast prompts are read and tokens come (paper 6).
 *
 * Each run submits a batch of requests with random prompts and reads the times at which their
 * tokens came.  Prompt: all prompt tokens over the time until the last request has its first token.
 * Decode, from then until the first request ends, so that every step has the whole batch: the
 * distances between neighbouring tokens of a request, and the mean time of a step.  Prompts of
 * unequal length are drawn once, and the same in every run.
 *
 * --planted measures speculation where each draft stands with a given probability if those before
 * it do.  Answers are drawn from few tokens, whose probabilities do not depend on the model, so
 * that a draft is right about as often as two draws are equal.  A draft model draws apart for this.
 * For a look-up, which prefers some places of the text, the probabilities are adjusted in runs that
 * are not counted.  Each run is done without drafts and then with them, and so it is with a draft
 * model.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "base/thread.h"
#include "cli/cli.h"

typedef struct bench_arguments {
    const char *model, *prompt;
    uint32_t least, most; /* of prompt */
    uint32_t generate, batch, runs;
    cli_whole seed;
    cli_number planted;
    cli_number bandwidth; /* TB/s */
    bool json;
    cli_sampling sampling; /* of it the filters and the temperature */
    cli_engine engine;
} bench_arguments;

/* --planted: tokens of which an answer is drawn. */
enum { MOST_PLANTED = 1024 };
/* So high a temperature that the logits of the model do not matter; and a bias by which they differ
 * from the next likely token's, so that rounding changes no order. */
static const float FLAT = 1e5f, APART = 100;

static const cli_option options[] = {
    CLI_OPTION(bench_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder, a GGUF file, or an image of mpk compile"),
    CLI_OPTION(bench_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "N",
               .help = "tokens of each prompt (64); A-B: drawn between these"),
    CLI_OPTION(bench_arguments, seed, "seed", CLI_WHOLE, .value = "N",
               .help = "of the prompts' lengths and tokens (0)"),
    CLI_OPTION(bench_arguments, generate, "generate", CLI_COUNT, .letter = 'n', .value = "N",
               .help = "tokens to generate after it (64)", .least = 1, .most = 1 << 24),
    CLI_OPTION(bench_arguments, batch, "batch", CLI_COUNT, .letter = 'b', .value = "N",
               .help = "requests at the same time (1)", .least = 1, .most = 1024),
    CLI_OPTION(bench_arguments, runs, "runs", CLI_COUNT, .letter = 'r', .value = "N",
               .help = "how often; the first one warms up and is not counted (3)", .least = 1,
               .most = 1000),
    CLI_OPTION(bench_arguments, planted, "planted", CLI_NUMBER, .value = "P",
               .help = "with --speculate or --draft-model: answers of which each draft stands with "
                       "this probability if those before it do, without drafts and with them",
               .least = 1.0 / MOST_PLANTED, .most = 1, .needs = "speculate|draft-model"),
    CLI_EXPERTS_ROW(bench_arguments, engine),
    CLI_OPTION(bench_arguments, bandwidth, "bandwidth", CLI_NUMBER, .value = "TB/s",
               .help = "of the memory; with --experts: the least time that the weights read take",
               .least = 1e-6, .most = 1e6, .needs = "experts"),
    CLI_OPTION(bench_arguments, json, "json", CLI_FLAG, .help = "print JSON"),
    CLI_DEVICE_ROW(bench_arguments, engine),
    CLI_MEET_ROWS(bench_arguments, engine),
    CLI_THREADS_ROW(bench_arguments, engine),
    CLI_KEEP_ROW(bench_arguments, engine),
    CLI_MODEL_ROWS(bench_arguments, engine),
    CLI_OPTION(bench_arguments, engine.no_preload, "no-preload", CLI_FLAG,
               .help = "a waiting worker does not look ahead to the weights of its next tasks"),
    CLI_OPTION(bench_arguments, engine.no_descriptor_prefetch, "no-descriptor-prefetch", CLI_FLAG,
               .help = "a GPU's worker reads what to do one task at a time"),
    CLI_OPTION(bench_arguments, engine.no_carriers, "no-carriers", CLI_FLAG,
               .help = "a GPU's tasks wait for counters of events, not for the data themselves"),
    CLI_OPTION(bench_arguments, engine.mode, "mode", CLI_CHOICE, .value = "kernel|graph|graph-pdl",
               .help = "on a GPU: one kernel; or one for each operator in a CUDA graph, without "
                       "and with overlap (kernel)"),
    CLI_OPTION(bench_arguments, engine.profile, "profile", CLI_FLAG,
               .help = "where the time of the last step went, by kind of operator (with -n 1: of "
                       "the prompts)"),
    CLI_DRAW_ROWS(bench_arguments, sampling),
    CLI_QUIET_ROW(bench_arguments, engine),
};

/* Measured values, sorted when they are asked for. */
typedef struct samples {
    double *at;
    size_t n;
} samples;

typedef struct bench {
    const cli_command *command;
    mpk_context *cx;
    mpk_engine *engine;
    const bench_arguments *args;
    uint32_t vocab_size;
    mpk_request **requests; /* [batch] */
    uint32_t *lengths;      /* [batch] of the prompts */
    int32_t *prompt;        /* [most] */
    /* Times from the start of opening: until the engine is open, and until the first token of
     * the first answer. */
    uint64_t open_ns, answer_ns;
    samples decode_ms, step_ms, prompt_rate, decode_rate, first_ms;
    samples plain_rate; /* With --compare: as decode_rate, but of runs without drafts. */
    uint64_t plain_sum; /* Checksum of the tokens of the run without drafts. */
    int32_t planted[MOST_PLANTED];
    uint32_t n_planted; /* Planted tokens; 0: the answers are the model's own. */
    mpk_token_bias biases[MOST_PLANTED];
    mpk_engine_facts begun; /* before the counted runs */
    mpk_routing routing;    /* of the last step; layers 0: no experts, or they were not counted */
    char *profile;          /* JSON; NULL: not wanted */
} bench;

/* For qsort of doubles. */
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The q-quantile, 0 <= q <= 1, linearly interpolated between neighbours; the samples must be
 * sorted. */
static double quantile(const samples *s, double q)
{
    if (!s->n)
        return 0;
    double at = q * (double)(s->n - 1);
    size_t low = (size_t)at, high = low + 1 < s->n ? low + 1 : low;
    return s->at[low] + (at - (double)low) * (s->at[high] - s->at[low]);
}

/* By the seed and the request's number alone: every run and every build measures the same
 * lengths. */
static void draw_lengths(bench *b)
{
    uint32_t span = b->args->most - b->args->least + 1;
    for (uint32_t i = 0; i < b->args->batch; i++)
        b->lengths[i] = b->args->least + (uint32_t)(rng_u64(b->args->seed.value, i) % span);
}

/* Choose what answers are drawn from, so that two draws are equal with probability P.
 *
 *   P > 0.5   two tokens; the first comes with probability q, where q² + (1 - q)² = P.  Its bias is
 *             FLAT * log(q / (1 - q)), as the temperature FLAT divides it again
 *   P <= 0.5  1 / P tokens, each about as likely
 *
 * For P = 1 one token is left, and every draft stands. */
static void plant(bench *b, double P)
{
    const double q = (1 + sqrt(P > 0.5 ? 2 * P - 1 : 0)) / 2;
    const uint32_t n = P > 0.5 ? 2 : (uint32_t)lround(1 / P);
    for (uint32_t i = 0; i < n && i < b->vocab_size; i++) {
        b->planted[i] = (int32_t)i;
        b->biases[i] = (mpk_token_bias){(int32_t)i, -APART * (float)i};
        b->n_planted = i + 1;
    }
    if (P > 0.5 && P < 1)
        b->biases[0].bias = FLAT * (float)log(q / (1 - q));
    if (P >= 1)
        b->n_planted = 1;
}

/* Is each run done without drafts too? */
static bool compares(const bench *b)
{
    return b->n_planted || b->args->engine.draft_model;
}

/* ignore_eos: every answer has exactly the length that is measured. */
static mpk_request_options what_to_ask(const bench *b, bool drafts)
{
    mpk_request_options wanted = {
        .size = sizeof wanted, .max_tokens = b->args->generate, .ignore_eos = true};
    cli_request_options(&b->args->sampling, &wanted);
    wanted.draft_tokens = drafts ? 0 : -1;
    if (b->n_planted) {
        wanted.temperature = FLAT;
        wanted.allowed_tokens = b->planted;
        wanted.n_allowed = b->n_planted;
        wanted.biases = b->biases;
        wanted.n_biases = b->n_planted;
    }
    return wanted;
}

/* Random tokens, different in every run, so that the prefix cache never matches.  Each run uses
 * 1024 random streams, the largest batch. */
static mpk_status submit_all(bench *b, uint32_t run, bool drafts)
{
    mpk_request_options wanted = what_to_ask(b, drafts);
    for (uint32_t i = 0; i < b->args->batch; i++) {
        uint64_t stream = b->args->seed.value + run * 1024 + i;
        wanted.seed = stream;
        for (uint32_t t = 0; t < b->lengths[i]; t++)
            b->prompt[t] = (int32_t)(rng_u64(stream, t) % b->vocab_size);
        mpk_status status =
            mpk_submit_tokens(b->cx, b->engine, b->prompt, b->lengths[i], &wanted, &b->requests[i]);
        if (status != MPK_OK)
            return status;
    }
    return MPK_OK;
}

/* A run without drafts: only its rate of decoding is kept. */
static void count_plain(bench *b, uint64_t first, uint64_t last)
{
    mpk_answer answer;
    size_t after = 0;
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_request_wait(b->cx, b->requests[i], &answer);
        for (size_t t = 1; t < answer.n_tokens && answer.token_ns[t] <= last; t++)
            after += answer.token_ns[t] > first;
    }
    if (after)
        b->plain_rate.at[b->plain_rate.n++] = (double)after * 1e9 / (double)(last - first);
}

/* What one run took; every request is finished.  `first`: when the last prompt had been read;
 * `last`: when the first request ended, or the last one if that was before `first`: then no step
 * had the whole batch. */
static void count_times(bench *b, uint64_t first, uint64_t last, bool has_whole_steps)
{
    mpk_answer answer;
    size_t after = 0, prompts = 0;
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_request_wait(b->cx, b->requests[i], &answer);
        b->first_ms.at[b->first_ms.n++] = (double)answer.token_ns[0] * 1e-6;
        prompts += b->lengths[i];
        for (size_t t = 1; t < answer.n_tokens && answer.token_ns[t] <= last; t++) {
            if (answer.token_ns[t - 1] >= first)
                b->decode_ms.at[b->decode_ms.n++] =
                    (double)(answer.token_ns[t] - answer.token_ns[t - 1]) * 1e-6;
            after += answer.token_ns[t] > first;
        }
    }
    b->prompt_rate.at[b->prompt_rate.n++] = (double)prompts * 1e9 / (double)first;
    if (!after)
        return;
    b->decode_rate.at[b->decode_rate.n++] = (double)after * 1e9 / (double)(last - first);
    if (has_whole_steps)
        b->step_ms.at[b->step_ms.n++] =
            (double)(last - first) * 1e-6 * b->args->batch / (double)after;
}

/* The purpose of a run: warm-up, the rate without drafts, or all times. */
enum count { WARM_UP, PLAIN, COUNTED };

/* Wait for all; the first run warms up and is not counted. Decoding is timed from when the last
 * prompt has been read until the first request ends, so that all requests decode; if they never do
 * together, only the time of the whole is known. */
static mpk_status take_times(bench *b, enum count count)
{
    uint64_t first = 0, earliest = UINT64_MAX, latest = 0;
    mpk_answer answer;
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_status status = mpk_request_wait(b->cx, b->requests[i], &answer);
        if (status != MPK_OK)
            return status;
        uint64_t last = answer.token_ns[answer.n_tokens - 1];
        first = answer.token_ns[0] > first ? answer.token_ns[0] : first;
        earliest = last < earliest ? last : earliest;
        latest = last > latest ? last : latest;
        if (!i && !b->answer_ns)
            b->answer_ns = b->open_ns + answer.token_ns[0];
    }
    if (count == PLAIN)
        count_plain(b, first, earliest > first ? earliest : latest);
    if (count == COUNTED)
        count_times(b, first, earliest > first ? earliest : latest, earliest > first);
    return MPK_OK;
}

/* A checksum over all tokens of a finished run. */
static uint64_t sum_tokens(const bench *b)
{
    uint64_t sum = 0;
    mpk_answer answer;
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_request_wait(b->cx, b->requests[i], &answer);
        for (size_t t = 0; t < answer.n_tokens; t++)
            sum = rng_u64(sum, (uint64_t)answer.tokens[t]);
    }
    return sum;
}

/* The probability with which a draft stood if those before it did: the x of which
 * x + x² + ... + x^n = accepted / steps, where each of the steps had n = drafted / steps drafts.
 * tokens: of all answers, without their first ones. */
static double chance_of(uint64_t tokens, uint64_t drafted, uint64_t accepted)
{
    const double steps = (double)(tokens - accepted), n = (double)drafted / steps;
    double low = 0, high = 1;
    if (!drafted || accepted >= drafted)
        return drafted ? 1 : 0;
    for (int i = 0; i < 40; i++) {
        const double x = (low + high) / 2;
        if (x * (1 - pow(x, n)) / (1 - x) * steps < (double)accepted)
            low = x;
        else
            high = x;
    }
    return low;
}

/* One batch of requests.  *sum: for its tokens. */
static int measure_run(bench *b, uint32_t run, bool drafts, enum count count, uint64_t *sum)
{
    mpk_status status = cli_interrupted() ? MPK_ECANCELLED : submit_all(b, run, drafts);
    if (status == MPK_OK)
        status = take_times(b, count);
    if (status == MPK_OK)
        *sum = sum_tokens(b);
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_request_free(b->requests[i]);
        b->requests[i] = NULL;
    }
    if (cli_interrupted())
        return cli_fail(b->command, "interrupted");
    return status == MPK_OK ? CLI_DONE : cli_report(b->command, b->cx);
}

/* Drafts since the engine was opened. */
static mpk_engine_facts facts_of(const bench *b)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(b->engine, &facts);
    return facts;
}

/* The first token of each answer belongs to its prompt. */
static uint64_t tokens_of_run(const bench *b)
{
    return (uint64_t)b->args->batch * (b->args->generate - 1);
}

/* Adjust what answers are drawn from until drafts stand as often as was asked for.  A look-up takes
 * the latest of equally long places, which in a text of two tokens is often where a run ended, so
 * that its drafts stand less often than two draws are equal.  Later rounds change less, since each
 * is a sample. */
static int tune(bench *b)
{
    enum { ROUNDS = 6, RUN = 2000 };
    const double P = b->args->planted.value;
    double nominal = P;
    uint64_t sum;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const mpk_engine_facts before = facts_of(b);
        const int code = measure_run(b, RUN + i, true, WARM_UP, &sum);
        const mpk_engine_facts after = facts_of(b);
        if (code != CLI_DONE)
            return code;
        nominal += (P - chance_of(tokens_of_run(b), after.drafted_tokens - before.drafted_tokens,
                                  after.accepted_tokens - before.accepted_tokens)) /
                   (i < 2 ? 1 : i);
        nominal = fmin(fmax(nominal, 0.51), 0.999);
        plant(b, nominal);
    }
    return CLI_DONE;
}

/* Run 0 warms caches and is not counted. */
static int measure(bench *b)
{
    uint64_t plain = 0, sum = 0;
    const double P = b->args->planted.value;
    if (b->args->planted.given && !b->args->engine.draft_model && P > 0.5 && P < 1) {
        const int code = tune(b);
        if (code != CLI_DONE)
            return code;
    }
    for (uint32_t run = 0; run <= b->args->runs; run++) {
        if (!b->args->engine.quiet)
            cli_progress("run %u of %u", run, b->args->runs);
        if (run == 1)
            b->begun = facts_of(b);
        int code = compares(b) ? measure_run(b, run, false, run ? PLAIN : WARM_UP, &plain) : 0;
        if (code == CLI_DONE)
            code = measure_run(b, run, true, run ? COUNTED : WARM_UP, &sum);
        if (code != CLI_DONE)
            return code;
        if (compares(b) && sum != plain)
            return cli_fail(b->command,
                            "run %u: the tokens with drafts differ from those without, so their "
                            "times do not compare; on a GPU try --batch-invariant",
                            run);
    }
    cli_progress("%s", "");
    return CLI_DONE;
}

/* ---- results ---- */

/* Once, after the last run; quantile relies on it. */
static void sort_samples(samples *s)
{
    if (s->n)
        qsort(s->at, s->n, sizeof *s->at, compare);
}

/* A member of the JSON: median and ends, which are quantiles; null if nothing was measured. */
static void print_spread(const char *name, const samples *s, const char *low, double q,
                         const char *high)
{
    if (s->n)
        printf(", \"%s\": {\"median\": %.4f, \"%s\": %.4f, \"%s\": %.4f}", name, quantile(s, 0.5),
               low, quantile(s, q), high, quantile(s, 1 - q));
    else
        printf(", \"%s\": null", name);
}

/* Speed-up of decoding by drafts: a ratio of medians, because medians are robust against single
 * disturbed runs. */
static double gain_of(const bench *b)
{
    return quantile(&b->decode_rate, 0.5) / quantile(&b->plain_rate, 0.5);
}

/* null: all tokens of an answer arrived in one poll, so no time between tokens is known. */
static void print_gain(const bench *b)
{
    if (b->plain_rate.n && b->decode_rate.n)
        printf(", \"plain_decode_tokens_per_s\": %.3f, \"gain\": %.4f",
               quantile(&b->plain_rate, 0.5), gain_of(b));
    else
        printf(", \"plain_decode_tokens_per_s\": null, \"gain\": null");
}

/* Lower bound of a step's time in ms: weight bytes over memory bandwidth; 0: the bandwidth was
 * not given. */
static double light_of(const bench *b)
{
    const cli_number *rate = &b->args->bandwidth;
    return rate->given ? b->routing.weight_bytes / ((double)rate->value * 1e9) : 0;
}

/* A member of the JSON: null without --experts, and of a model that has none. */
static void print_routing(const bench *b)
{
    const mpk_routing *r = &b->routing;
    if (!r->layers) {
        printf(", \"experts\": null");
        return;
    }
    printf(", \"experts\": {\"tokens\": %u, \"layers\": %u, \"of_layer\": %u, \"of_token\": %u, "
           "\"hit\": %.3f, \"weight_bytes\": %.0f, \"light_ms\": ",
           r->tokens, r->layers, r->experts, r->of_token, r->hit, r->weight_bytes);
    if (light_of(b) > 0)
        printf("%.4f}", light_of(b));
    else
        printf("null}");
}

/* Members of the JSON: drafts of the counted runs, and how often they stood. */
static void print_drafts(const bench *b, const mpk_engine_facts *facts)
{
    const mpk_engine_facts *was = &b->begun;
    const uint64_t drafted = facts->drafted_tokens - was->drafted_tokens,
                   accepted = facts->accepted_tokens - was->accepted_tokens;
    printf(", \"drafted_tokens\": %" PRIu64 ", \"accepted_tokens\": %" PRIu64, drafted, accepted);
    if (drafted)
        printf(", \"acceptance\": %.4f, \"chance\": %.4f", (double)accepted / (double)drafted,
               chance_of(b->args->runs * tokens_of_run(b), drafted, accepted));
    if (b->args->engine.draft_model)
        printf(", \"draft_model_tokens\": %" PRIu64 ", \"draft_model_accepted_tokens\": %" PRIu64
               ", \"draft_steps\": %" PRIu64,
               facts->draft_model_tokens - was->draft_model_tokens,
               facts->draft_model_accepted_tokens - was->draft_model_accepted_tokens,
               facts->draft_steps - was->draft_steps);
}

/* Times are medians of the counted runs unless named otherwise; docs/performance.md says what each
 * is. bench/ reads these names. */
static void print_json(const bench *b, const mpk_engine_facts *facts)
{
    const bench_arguments *args = b->args;
    printf("{\"device\": \"%s\", \"prompt\": %u, \"generate\": %u, \"batch\": %u, \"threads\": %u, "
           "\"runs\": %u, "
           "\"seed\": %llu, \"prompts\": [",
           facts->device, args->most, args->generate, args->batch, facts->threads, args->runs,
           (unsigned long long)args->seed.value);
    for (uint32_t i = 0; i < args->batch; i++)
        printf("%s%u", i ? ", " : "", b->lengths[i]);
    printf(
        "], \"device_ms\": %.3f, \"load_ms\": %.3f, \"compile_ms\": %.3f, \"program_cached\": %s, "
        "\"kernel_cached\": %s, \"open_ms\": %.3f, "
        "\"open_to_first_token_ms\": %.3f, \"prompt_tokens_per_s\": %.3f, \"decode_tokens_per_s\": "
        "%.3f",
        (double)facts->device_ns * 1e-6, (double)facts->load_ns * 1e-6,
        (double)facts->compile_ns * 1e-6, str_bool(facts->program_cached),
        str_bool(facts->kernel_cached), (double)b->open_ns * 1e-6, (double)b->answer_ns * 1e-6,
        quantile(&b->prompt_rate, 0.5), quantile(&b->decode_rate, 0.5));
    print_spread("first_token_ms", &b->first_ms, "p10", 0.1, "p90");
    print_spread("ms_per_token", &b->decode_ms, "p10", 0.1, "p90");
    print_spread("step_ms", &b->step_ms, "least", 0, "most");
    print_drafts(b, facts);
    if (compares(b))
        print_gain(b);
    print_routing(b);
    printf(", \"profile\": %s}\n", b->profile ? b->profile : "null");
}

/* The member's number, or 0 if the object has no such member. */
static double number(const json_value *object, const char *key)
{
    const json_value *value = json_get(object, key);
    return value ? value->number : 0;
}

/* The engine gives the profile as JSON; this is its table, one line for each kind of operator and
 * body. us a step is the time of all of a kind's operators, wait, body and trigger of a mean
 * task. */
static int print_profile(const bench *b)
{
    arena a = {0};
    const json_value *root;
    if (json_parse(b->cx, &a, str_from(b->profile), &root) != MPK_OK) {
        arena_free(&a);
        return cli_report(b->command, b->cx);
    }
    const json_value *to_host = json_get(root, "to_host");
    if (to_host && number(to_host, "bursts") > 0)
        printf("\ntokens to the host and the news of it back, us: %.1f (median), %.1f (p99), %.1f "
               "(most) of %.0f steps\n",
               number(to_host, "median_us"), number(to_host, "p99_us"), number(to_host, "most_us"),
               number(to_host, "bursts"));
    const json_value *steps = json_get(root, "steps");
    if (steps && number(steps, "n") > 0)
        printf("\nsteps, us: %.1f (median of %.0f), and %.1f before each; %.0f MHz\n",
               number(steps, "median_us"), number(steps, "n"), number(steps, "between_us"),
               number(root, "clock_mhz"));
    printf("\nlast step of the graph for %.0f tokens; of the workers' time %.2f %% scheduling, "
           "%.2f %% waiting for other peers; between tasks %.1f us a step\n"
           "%-18s %-22s %7s %7s %5s %7s %10s %9s %9s %11s %10s\n",
           number(root, "tokens"), 100 * number(root, "scheduling"),
           100 * number(root, "waiting_for_peers"), number(root, "between_tasks_us"), "operators",
           "code", "columns", "to", "count", "tasks", "us a step", "wait, us", "body, us",
           "trigger, us", "slowest");
    const json_value *kinds = json_get(root, "kinds");
    for (size_t i = 0; kinds && i < kinds->n; i++) {
        const json_value *k = &kinds->items[i];
        const json_value *kind = json_get(k, "kind"), *body = json_get(k, "body");
        printf("%-18.*s %-22.*s %7.0f %7.0f %5.0f %7.0f %10.2f %9.3f %9.3f %11.3f %10.3f\n",
               STR_ARG(kind->text), STR_ARG(body->text), number(k, "from"), number(k, "to"),
               number(k, "operators"), number(k, "tasks"), number(k, "sm_us"), number(k, "wait_us"),
               number(k, "body_us"), number(k, "trigger_us"), number(k, "longest_us"));
    }
    arena_free(&a);
    return CLI_DONE;
}

/* Nothing for models without experts. */
static void print_experts(const bench *b)
{
    const mpk_routing *r = &b->routing;
    if (!r->layers)
        return;
    printf("experts %10.1f of %u hit a layer by %u tokens; such a step reads %.2f GB of weights",
           r->hit, r->experts, r->tokens, r->weight_bytes * 1e-9);
    if (light_of(b) > 0)
        printf(", in %.3f ms at the least", light_of(b));
    printf("\n");
}

/* The figures of the JSON form, as a few lines. */
static int print_text(const bench *b, const mpk_engine_facts *facts)
{
    const bench_arguments *args = b->args;
    char range[32] = "";
    if (args->least < args->most)
        snprintf(range, sizeof range, "%u to ", args->least);
    printf("%s, batch %u, prompt %s%u, generate %u, %u runs\n"
           "prompt  %10.1f tokens/s\ndecode  %10.1f tokens/s\n",
           facts->device, args->batch, range, args->most, args->generate, args->runs,
           quantile(&b->prompt_rate, 0.5), quantile(&b->decode_rate, 0.5));
    if (b->step_ms.n)
        printf("step    %10.3f ms (median of runs' means)  %.3f to %.3f\n",
               quantile(&b->step_ms, 0.5), quantile(&b->step_ms, 0), quantile(&b->step_ms, 1));
    else if (args->generate > 1)
        printf("step             - : the first request ended before the last prompt was through; "
               "-n %u is too few\n",
               args->generate);
    printf("token   %10.3f ms (median)  %.3f (p10)  %.3f (p90)\nfirst   %10.3f ms (median)  %.3f "
           "(p90)\n",
           quantile(&b->decode_ms, 0.5), quantile(&b->decode_ms, 0.1), quantile(&b->decode_ms, 0.9),
           quantile(&b->first_ms, 0.5), quantile(&b->first_ms, 0.9));
    print_experts(b);
    if (facts->drafted_tokens)
        printf("drafts  %10" PRIu64 ", of which %" PRIu64 " stood\n",
               facts->drafted_tokens - b->begun.drafted_tokens,
               facts->accepted_tokens - b->begun.accepted_tokens);
    if (b->plain_rate.n && b->decode_rate.n)
        printf("gain    %10.3f times the %.1f tokens/s without drafts; the same tokens\n",
               gain_of(b), quantile(&b->plain_rate, 0.5));
    const char *cached = facts->kernel_cached ? " (kernel from the cache)" : "";
    if (facts->program_cached)
        cached = " (from the cache)";
    printf("open    %10.1f ms: device %.1f, load %.1f, compile %.1f%s; %.1f ms to a first token\n",
           (double)b->open_ns * 1e-6, (double)facts->device_ns * 1e-6,
           (double)facts->load_ns * 1e-6, (double)facts->compile_ns * 1e-6, cached,
           (double)b->answer_ns * 1e-6);
    return b->profile ? print_profile(b) : CLI_DONE;
}

/* Of a run that generates one token each, the last step is the rest of the prompts, or where these
 * do not share steps that of the last one; otherwise each request has one. */
static uint32_t tokens_of_last_step(const bench *b, uint32_t step_tokens)
{
    uint64_t tokens = 0;
    if (b->args->generate > 1)
        return b->args->batch;
    for (uint32_t i = 0; i < b->args->batch; i++)
        tokens = b->lengths[i] + (b->args->engine.batch_invariant ? 0 : tokens);
    return (uint32_t)((tokens - 1) % step_tokens) + 1;
}

/* What the engine knows of the last step, as far as it was asked for. */
static mpk_status read_last_step(bench *b, uint32_t step_tokens)
{
    const cli_engine *asked = &b->args->engine;
    const uint32_t tokens = tokens_of_last_step(b, step_tokens);
    mpk_status status = MPK_OK;
    b->routing.size = sizeof b->routing;
    if (asked->experts)
        status = mpk_engine_routing(b->cx, b->engine, tokens < step_tokens ? tokens : step_tokens,
                                    &b->routing);
    if (status == MPK_OK && asked->profile)
        status = mpk_engine_profile(b->cx, b->engine, tokens, &b->profile);
    return status;
}

/* Samples are sorted once, for all quantiles. */
static int print_result(bench *b)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(b->engine, &facts);
    if (read_last_step(b, facts.step_tokens) != MPK_OK)
        return cli_report(b->command, b->cx);
    sort_samples(&b->decode_ms);
    sort_samples(&b->step_ms);
    sort_samples(&b->prompt_rate);
    sort_samples(&b->decode_rate);
    sort_samples(&b->plain_rate);
    sort_samples(&b->first_ms);
    if (!b->args->json)
        return print_text(b, &facts);
    print_json(b, &facts);
    return CLI_DONE;
}

/* ---- the verb ---- */

/* Everything is reserved before the first run, so that measuring allocates nothing. */
static bool has_memory(bench *b)
{
    const bench_arguments *args = b->args;
    size_t runs = args->runs, requests = runs * args->batch;
    samples *all[] = {&b->decode_ms,   &b->step_ms,    &b->prompt_rate,
                      &b->decode_rate, &b->plain_rate, &b->first_ms};
    size_t n[] = {requests * args->generate, runs, runs, runs, runs, requests};
    b->requests = calloc(args->batch, sizeof(mpk_request *));
    b->lengths = calloc(args->batch, sizeof *b->lengths);
    b->prompt = calloc(args->most, sizeof *b->prompt);
    bool good = b->requests && b->lengths && b->prompt;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i]->at = calloc(n[i], sizeof(double));
        good = good && all[i]->at;
    }
    return good;
}

/* Also correct if has_memory allocated only a part. */
static void free_memory(bench *b)
{
    samples *all[] = {&b->decode_ms,   &b->step_ms,    &b->prompt_rate,
                      &b->decode_rate, &b->plain_rate, &b->first_ms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->at);
    free((void *)b->requests);
    free(b->lengths);
    free(b->prompt);
    mpk_free(b->profile);
}

/* Lengths are drawn once, so every run has the same prompts. */
static int with_engine(bench *b)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(b->engine, &facts);
    b->vocab_size = facts.vocab_size;
    int code = CLI_FAILED;
    if (!has_memory(b)) {
        cli_fail(b->command, "out of memory for the times of %u runs of %u tokens", b->args->runs,
                 b->args->generate);
    } else {
        draw_lengths(b);
        if (b->args->planted.given)
            plant(b, b->args->planted.value);
        code = measure(b);
        if (code == CLI_DONE)
            code = print_result(b);
    }
    free_memory(b);
    return code;
}

/* A context that just holds prompt and answer, unless the user gave one. The time to open is
 * measured with the clock, the parts of it come from the engine. */
static int with_context(bench *b, bench_arguments *args)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    int code = cli_engine_options(b->command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    wanted.max_batch = args->batch;
    wanted.drafts_apart = args->planted.given && args->engine.draft_model;
    if (!wanted.context_tokens)
        wanted.context_tokens = args->most + args->generate;
    cli_catch_interrupt();
    uint64_t begin = clock_ns();
    if (mpk_engine_open(b->cx, args->model, &wanted, &b->engine) != MPK_OK)
        return cli_report(b->command, b->cx);
    b->open_ns = clock_ns() - begin;
    code = with_engine(b);
    mpk_engine_close(b->engine);
    return code;
}

enum { MOST_PROMPT = 1 << 24 };

/* "64", or "64-4096". */
static bool read_prompt(bench_arguments *args)
{
    if (!args->prompt) {
        args->least = args->most = 64;
        return true;
    }
    char *end;
    bool is_number = *args->prompt >= '0' && *args->prompt <= '9';
    unsigned long least = strtoul(args->prompt, &end, 10), most = least;
    if (*end == '-' && end[1] >= '0' && end[1] <= '9')
        most = strtoul(end + 1, &end, 10);
    args->least = (uint32_t)least;
    args->most = (uint32_t)most;
    return is_number && !*end && least >= 1 && least <= most && most <= MOST_PROMPT;
}

/* Checks what the table of options cannot say, and fills in defaults. */
static int run(const cli_command *command, void *arguments)
{
    bench_arguments *args = arguments;
    args->generate = args->generate ? args->generate : 64;
    args->batch = args->batch ? args->batch : 1;
    args->runs = args->runs ? args->runs : 3;
    if (args->planted.given && args->engine.speculate && args->engine.draft_model)
        return cli_misuse(command, "--planted is about the drafts of --speculate or of "
                                   "--draft-model, not of both");
    if (args->planted.given && (args->sampling.temperature.given || args->sampling.top_k.given ||
                                args->sampling.top_p.given || args->sampling.min_p.given))
        return cli_misuse(command,
                          "--planted draws answers in its own way, without --temp, --top-k, "
                          "--top-p and --min-p");
    if (!read_prompt(args))
        return cli_misuse(
            command, "--prompt: '%s' is not a length from 1 to %d, nor two with a dash between",
            args->prompt, MOST_PROMPT);
    bench b = {.command = command, .cx = mpk_context_create(), .args = args};
    int code = b.cx ? with_context(&b, args) : cli_fail(command, "out of memory");
    mpk_context_free(b.cx);
    return code;
}

const cli_command cmd_bench = {
    .name = "bench",
    .operands = "MODEL [--prompt N|A-B] [--generate N] [--batch N] [--runs N]",
    .summary = "measure ms a token and prompt tokens/s",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(bench_arguments),
    .run = run,
};
