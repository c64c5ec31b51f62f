/* cmd_opt.c - mpk opt: passes of the compiler on the text form of a tensor program or a task graph.
 *
 * Text in, text out (docs/text-form.md), so that each pass can be tried and tested alone;
 * tests/golden runs this verb. */
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "mpk/graph.h"

enum { MAX_SOURCE_BYTES = 1 << 30 };

typedef struct opt_arguments {
    const char *file, *passes, *out;
    bool list, operators;
    cli_engine engine;
} opt_arguments;

static const cli_option options[] = {
    CLI_OPTION(opt_arguments, file, "FILE", CLI_OPERAND,
               .help = "the text form; - or nothing: standard input"),
    CLI_OPTION(opt_arguments, passes, "pass", CLI_TEXT, .letter = 'p', .value = "NAME",
               .help = "the pass to run; several with commas between"),
    CLI_OPTION(opt_arguments, out, "out", CLI_TEXT, .letter = 'o', .value = "FILE",
               .help = "where the result goes (standard output)"),
    CLI_OPTION(opt_arguments, list, "list", CLI_FLAG, .help = "list the passes"),
    CLI_OPTION(opt_arguments, operators, "operators", CLI_FLAG,
               .help = "list the operators with their operands and attributes"),
    CLI_OPTION(opt_arguments, engine.threads, "workers", CLI_COUNT, .letter = 'w', .value = "N",
               .help = "compile for N workers (one for each core)", .least = 1, .most = 1024),
    CLI_OPTION(opt_arguments, engine.ops, "ops", CLI_CHOICE, .value = "full|paper|none",
               .help = "which operators are fused (full)"),
    CLI_OPTION(opt_arguments, engine.launch, "launch", CLI_CHOICE, .value = "auto|paper|aot|jit",
               .help = "how tasks reach workers (auto)"),
    CLI_OPTION(opt_arguments, engine.degrees, "degree", CLI_LIST, .value = "OP:AXIS=N",
               .help = "cut this axis of an operator, or of a kind of them, in N parts"),
    CLI_OPTION(opt_arguments, engine.coarse_events, "coarse-events", CLI_FLAG,
               .help = "one event between operators instead of one between tiles"),
};

/* Print a list that the library returns, unchanged. */
static int print_list(const cli_command *command, mpk_context *cx,
                      mpk_status (*list)(mpk_context *, char **))
{
    char *lines;
    if (list(cx, &lines) != MPK_OK)
        return cli_report(command, cx);
    cli_write(lines, strlen(lines));
    mpk_free(lines);
    return CLI_DONE;
}

/* Options of the engine are read for what they mean to passes: workers, fusion, degrees. "-" is
 * standard input; the file that is read may not be the one that is written. */
static int opt(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    opt_arguments *args = arguments;
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    str source;
    char *result;
    int code = cli_engine_options(command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    if (args->list)
        return print_list(command, cx, mpk_opt_passes);
    if (args->operators)
        return print_list(command, cx, mpk_operators);
    if (!args->passes)
        return cli_misuse(command, "--pass=NAME is missing; mpk opt --list shows the names");
    code = cli_check_output(command, args->out, args->file ? args->file : "-");
    if (code != CLI_DONE)
        return code;
    if (file_read(cx, a, args->file ? args->file : "-", MAX_SOURCE_BYTES, &source) != MPK_OK ||
        mpk_opt(cx, args->passes, source.at, source.n, &wanted, &result) != MPK_OK)
        return cli_report(command, cx);
    if (!args->out)
        cli_write(result, strlen(result));
    else if (file_write(cx, args->out, result, strlen(result)) != MPK_OK)
        code = cli_report(command, cx);
    mpk_free(result);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    return cli_run_body(command, arguments, opt);
}

const cli_command cmd_opt = {
    .name = "opt",
    .operands = "--pass=NAME[,NAME...] [FILE]",
    .summary = "run passes of the compiler on text",
    .notes = "mpk inspect MODEL --program prints a tensor program to begin with.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(opt_arguments),
    .run = run,
};
