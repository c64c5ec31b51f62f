/* cmd_bench.c - mpk bench: how fast prompts are read and tokens come.
 *
 * Each run submits a batch of requests with random prompts and reads the times at which their tokens came.  Prompt: all
 * prompt tokens over the time until the last request has its first token.  Decode, after that: the distances between
 * neighbouring tokens of a request, and the tokens of all requests over the time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cli/cli.h"

typedef struct bench_arguments {
    const char *model;
    uint32_t prompt, generate, batch, runs;
    bool json;
    cli_engine engine;
} bench_arguments;

static const cli_option options[] = {
    {"MODEL", 0, CLI_OPERAND, true, NULL, "a Hugging Face folder, a GGUF file, or an image of mpk compile",
     offsetof(bench_arguments, model), 0, 0},
    {"prompt", 'p', CLI_COUNT, false, "N", "tokens of each prompt (64)", offsetof(bench_arguments, prompt), 1, 1 << 24},
    {"generate", 'n', CLI_COUNT, false, "N", "tokens to generate after it (64)", offsetof(bench_arguments, generate), 1,
     1 << 24},
    {"batch", 'b', CLI_COUNT, false, "N", "requests at the same time (1)", offsetof(bench_arguments, batch), 1, 1024},
    {"runs", 'r', CLI_COUNT, false, "N", "how often; the first one warms up and is not counted (3)",
     offsetof(bench_arguments, runs), 1, 1000},
    {"json", 0, CLI_FLAG, false, NULL, "print JSON", offsetof(bench_arguments, json), 0, 0},
    CLI_DEVICE_ROW(bench_arguments, engine),
    CLI_THREADS_ROW(bench_arguments, engine),
    CLI_KEEP_ROW(bench_arguments, engine),
    CLI_MODEL_ROWS(bench_arguments, engine),
    {"no-preload", 0, CLI_FLAG, false, NULL, "a waiting worker does not look ahead to the weights of its next tasks",
     offsetof(bench_arguments, engine.no_preload), 0, 0},
    {"no-descriptor-prefetch", 0, CLI_FLAG, false, NULL, "a GPU's worker reads what to do one task at a time",
     offsetof(bench_arguments, engine.no_descriptor_prefetch), 0, 0},
    {"mode", 0, CLI_CHOICE, false, "kernel|graph|graph-pdl",
     "on a GPU: one kernel; or one for each operator in a CUDA graph, without and with overlap (kernel)",
     offsetof(bench_arguments, engine.mode), 0, 0},
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
    int32_t *prompt;        /* [prompt] */
    samples decode_ms, prompt_rate, decode_rate;
} bench;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The q-quantile, between neighbours by the straight line. */
static double quantile(const samples *s, double q)
{
    if (!s->n)
        return 0;
    double at = q * (double)(s->n - 1);
    size_t low = (size_t)at, high = low + 1 < s->n ? low + 1 : low;
    return s->at[low] + (at - (double)low) * (s->at[high] - s->at[low]);
}

static mpk_status submit_all(bench *b, uint32_t run)
{
    mpk_request_options wanted = {.size = sizeof wanted, .max_tokens = b->args->generate, .ignore_eos = true};
    for (uint32_t i = 0; i < b->args->batch; i++) {
        for (uint32_t t = 0; t < b->args->prompt; t++)
            b->prompt[t] = (int32_t)(rng_u64(run * 1024 + i, t) % b->vocab_size);
        mpk_status status = mpk_submit_tokens(b->cx, b->engine, b->prompt, b->args->prompt, &wanted, &b->requests[i]);
        if (status != MPK_OK)
            return status;
    }
    return MPK_OK;
}

/* What one run took; every request is finished. */
static void count_times(bench *b, uint64_t first, uint64_t last)
{
    mpk_answer answer;
    size_t after = 0;
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_request_wait(b->cx, b->requests[i], &answer);
        for (size_t t = 1; t < answer.n_tokens; t++) {
            if (answer.token_ns[t - 1] >= first)
                b->decode_ms.at[b->decode_ms.n++] = (double)(answer.token_ns[t] - answer.token_ns[t - 1]) * 1e-6;
            after += answer.token_ns[t] > first;
        }
    }
    b->prompt_rate.at[b->prompt_rate.n++] = (double)b->args->batch * b->args->prompt * 1e9 / (double)first;
    if (last > first)
        b->decode_rate.at[b->decode_rate.n++] = (double)after * 1e9 / (double)(last - first);
}

/* Wait for all; the first run warms up and is not counted.  `first`: when the last prompt was through. */
static mpk_status take_times(bench *b, bool counted)
{
    uint64_t first = 0, last = 0;
    mpk_answer answer;
    for (uint32_t i = 0; i < b->args->batch; i++) {
        mpk_status status = mpk_request_wait(b->cx, b->requests[i], &answer);
        if (status != MPK_OK)
            return status;
        if (answer.token_ns[0] > first)
            first = answer.token_ns[0];
        if (answer.token_ns[answer.n_tokens - 1] > last)
            last = answer.token_ns[answer.n_tokens - 1];
    }
    if (counted)
        count_times(b, first, last);
    return MPK_OK;
}

static int measure(bench *b)
{
    for (uint32_t run = 0; run <= b->args->runs; run++) {
        if (!b->args->engine.quiet)
            cli_progress("run %u of %u", run, b->args->runs);
        mpk_status status = cli_interrupted() ? MPK_ECANCELLED : submit_all(b, run);
        if (status == MPK_OK)
            status = take_times(b, run > 0);
        for (uint32_t i = 0; i < b->args->batch; i++) {
            mpk_request_free(b->requests[i]);
            b->requests[i] = NULL;
        }
        if (cli_interrupted())
            return cli_fail(b->command, "interrupted");
        if (status != MPK_OK)
            return cli_report(b->command, b->cx);
    }
    cli_progress("%s", "");
    return CLI_DONE;
}

static void print_result(bench *b)
{
    const bench_arguments *args = b->args;
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(b->engine, &facts);
    qsort(b->decode_ms.at, b->decode_ms.n, sizeof(double), compare);
    qsort(b->prompt_rate.at, b->prompt_rate.n, sizeof(double), compare);
    qsort(b->decode_rate.at, b->decode_rate.n, sizeof(double), compare);
    double median = quantile(&b->decode_ms, 0.5), p10 = quantile(&b->decode_ms, 0.1),
           p90 = quantile(&b->decode_ms, 0.9);
    double prompt = quantile(&b->prompt_rate, 0.5), decode = quantile(&b->decode_rate, 0.5);
    double load_ms = (double)facts.load_ns * 1e-6, compile_ms = (double)facts.compile_ns * 1e-6;
    if (args->json)
        printf("{\"device\": \"%s\", \"prompt\": %u, \"generate\": %u, \"batch\": %u, \"threads\": %u, \"runs\": %u, "
               "\"load_ms\": %.3f, "
               "\"compile_ms\": %.3f, \"prompt_tokens_per_s\": %.3f, \"decode_tokens_per_s\": %.3f, "
               "\"ms_per_token\": {\"median\": %.4f, \"p10\": %.4f, \"p90\": %.4f}}\n",
               facts.device, args->prompt, args->generate, args->batch, facts.threads, args->runs, load_ms, compile_ms,
               prompt, decode, median, p10, p90);
    else
        printf("%s, batch %u, prompt %u, generate %u, %u runs\n"
               "prompt  %10.1f tokens/s\ndecode  %10.1f tokens/s\n"
               "step    %10.3f ms (median)  %.3f (p10)  %.3f (p90)\nopen    %10.1f ms to load, %.1f ms to compile\n",
               facts.device, args->batch, args->prompt, args->generate, args->runs, prompt, decode, median, p10, p90,
               load_ms, compile_ms);
}

static int with_memory(bench *b)
{
    const bench_arguments *args = b->args;
    size_t tokens = (size_t)args->runs * args->batch * args->generate;
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(b->engine, &facts);
    b->vocab_size = facts.vocab_size;
    b->requests = calloc(args->batch, sizeof(mpk_request *));
    b->prompt = calloc(args->prompt, sizeof *b->prompt);
    b->decode_ms.at = calloc(tokens, sizeof(double));
    b->prompt_rate.at = calloc(args->runs, sizeof(double));
    b->decode_rate.at = calloc(args->runs, sizeof(double));
    int code = CLI_FAILED;
    if (!b->requests || !b->prompt || !b->decode_ms.at || !b->prompt_rate.at || !b->decode_rate.at)
        cli_fail(b->command, "out of memory for the times of %zu tokens", tokens);
    else if ((code = measure(b)) == CLI_DONE)
        print_result(b);
    free((void *)b->requests);
    free(b->prompt);
    free(b->decode_ms.at);
    free(b->prompt_rate.at);
    free(b->decode_rate.at);
    return code;
}

static int with_context(bench *b, bench_arguments *args)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    int code = cli_engine_options(b->command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    wanted.max_batch = args->batch;
    if (!wanted.context_tokens)
        wanted.context_tokens = args->prompt + args->generate;
    cli_catch_interrupt();
    if (mpk_engine_open(b->cx, args->model, &wanted, &b->engine) != MPK_OK)
        return cli_report(b->command, b->cx);
    code = with_memory(b);
    mpk_engine_close(b->engine);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    bench_arguments *args = arguments;
    args->prompt = args->prompt ? args->prompt : 64;
    args->generate = args->generate ? args->generate : 64;
    args->batch = args->batch ? args->batch : 1;
    args->runs = args->runs ? args->runs : 3;
    bench b = {.command = command, .cx = mpk_context_create(), .args = args};
    int code = b.cx ? with_context(&b, args) : cli_fail(command, "out of memory");
    mpk_context_free(b.cx);
    return code;
}

const cli_command cmd_bench = {
    .name = "bench",
    .operands = "MODEL [--prompt N] [--generate N] [--batch N] [--runs N]",
    .summary = "measure ms a token and prompt tokens/s",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(bench_arguments),
    .run = run,
};
