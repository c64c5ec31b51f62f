/* cmd_compile.c - mpk compile: a model to an image, so that opening it again compiles nothing.
 *
 * All options of a start are compiled into the image; the verbs that take it as MODEL refuse
 * options that contradict them.  The work is mpk_compile_to_file's; with --target the GPU need not
 * be here. */
#include "cli/cli.h"

typedef struct compile_arguments {
    const char *model, *out;
    cli_engine engine;
} compile_arguments;

static const cli_option options[] = {
    CLI_OPTION(compile_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder or a GGUF file"),
    CLI_OPTION(compile_arguments, out, "out", CLI_TEXT, .letter = 'o', .value = "FILE",
               .help = "where the image goes"),
    CLI_DEVICE_ROW(compile_arguments, engine),
    CLI_TARGET_ROW(compile_arguments, engine),
    CLI_THREADS_ROW(compile_arguments, engine),
    CLI_BATCH_ROW(compile_arguments, engine),
    CLI_MODEL_ROWS(compile_arguments, engine),
    CLI_EXPERTS_ROW(compile_arguments, engine),
    CLI_KEEP_ROW(compile_arguments, engine),
    CLI_QUIET_ROW(compile_arguments, engine),
};

/* The image holds no weights: it names the model's files and refuses to run if they have
 * changed. */
static int compile(const cli_command *command, mpk_context *cx, compile_arguments *args)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    if (!args->out)
        return cli_misuse(command, "-o FILE is missing: where the image shall go");
    int code = cli_engine_options(command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    cli_catch_interrupt();
    if (mpk_compile_to_file(cx, args->model, &wanted, args->out) != MPK_OK)
        return cli_report(command, cx);
    cli_progress("%s", "");
    return CLI_DONE;
}

/* The context outlives everything that reports errors. */
static int run(const cli_command *command, void *arguments)
{
    mpk_context *cx = mpk_context_create();
    int code = cx ? compile(command, cx, arguments) : cli_fail(command, "out of memory");
    mpk_context_free(cx);
    return code;
}

const cli_command cmd_compile = {
    .name = "compile",
    .operands = "MODEL -o FILE [options]",
    .summary = "compile a model for this machine, or for a GPU elsewhere, into a file that the "
               "other verbs take as MODEL",
    .notes = "The image holds no weights: it names the model's files and finds out if they have "
             "changed.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(compile_arguments),
    .run = run,
};
