/* cmd_opt.c - mpk opt: passes of the compiler on the text form of a tensor program or a task graph. */
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
    {"FILE", 0, CLI_OPERAND, false, NULL, "the text form; - or nothing: standard input", offsetof(opt_arguments, file),
     0, 0},
    {"pass", 'p', CLI_TEXT, false, "NAME", "the pass to run; several with commas between",
     offsetof(opt_arguments, passes), 0, 0},
    {"out", 'o', CLI_TEXT, false, "FILE", "where the result goes (standard output)", offsetof(opt_arguments, out), 0,
     0},
    {"list", 0, CLI_FLAG, false, NULL, "list the passes", offsetof(opt_arguments, list), 0, 0},
    {"operators", 0, CLI_FLAG, false, NULL, "list the operators with their operands and attributes",
     offsetof(opt_arguments, operators), 0, 0},
    {"workers", 'w', CLI_COUNT, false, "N", "compile for N workers (one for each processor)",
     offsetof(opt_arguments, engine.threads), 1, 1024},
    {"ops", 0, CLI_CHOICE, false, "full|paper|none", "which operators are fused (full)",
     offsetof(opt_arguments, engine.ops), 0, 0},
    {"launch", 0, CLI_CHOICE, false, "auto|paper|aot|jit", "how tasks reach workers (auto)",
     offsetof(opt_arguments, engine.launch), 0, 0},
    {"degree", 0, CLI_LIST, false, "OP:AXIS=N", "cut this axis of an operator, or of a kind of them, in N parts",
     offsetof(opt_arguments, engine.degrees), 0, 0},
    {"coarse-events", 0, CLI_FLAG, false, NULL, "one event between operators instead of one between tiles",
     offsetof(opt_arguments, engine.coarse_events), 0, 0},
};

static int print_list(const cli_command *command, mpk_context *cx, mpk_status (*list)(mpk_context *, char **))
{
    char *lines;
    if (list(cx, &lines) != MPK_OK)
        return cli_report(command, cx);
    cli_write(lines, strlen(lines));
    mpk_free(lines);
    return CLI_DONE;
}

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
