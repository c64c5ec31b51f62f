/* cmd_rank.c - mpk rank: one peer of a model whose rank 0 is another mpk process on this host.
 *
 * Input: the model and the options of rank 0, and which rank this is.  Output: none; it computes
 * until rank 0 closes its engine, and fails with one line if another rank ends before. */
#include "base/arena.h"
#include "cli/cli.h"

typedef struct rank_arguments {
    const char *model;
    cli_engine engine;
} rank_arguments;

static const cli_option options[] = {
    CLI_OPTION(rank_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "the model of rank 0, or its image"),
    CLI_OPTION(rank_arguments, engine.rank, "rank", CLI_COUNT, .value = "R",
               .help = "which one this is (1)", .least = 1, .most = 15, .needs = "meet"),
    CLI_DEVICE_ROW(rank_arguments, engine),
    CLI_MEET_ROWS(rank_arguments, engine),
    CLI_THREADS_ROW(rank_arguments, engine),
    CLI_BATCH_ROW(rank_arguments, engine),
    CLI_MODEL_ROWS(rank_arguments, engine),
    CLI_OPTION(rank_arguments, engine.embeddings, "embeddings", CLI_FLAG,
               .help = "rank 0 is mpk embed"),
    CLI_OPTION(rank_arguments, engine.profile, "profile", CLI_FLAG,
               .help = "rank 0 is mpk bench --profile, on GPUs"),
    CLI_QUIET_ROW(rank_arguments, engine),
};

/* The engine computes in threads of its own; this one waits. */
static int attend(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    rank_arguments *args = arguments;
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options o;
    mpk_engine *engine = NULL;
    (void)a;
    if (!args->engine.meet)
        return cli_misuse(command, "--meet is missing: the path where rank 0 waits");
    args->engine.rank = args->engine.rank ? args->engine.rank : 1;
    int code = cli_engine_options(command, &args->engine, degrees, &o);
    if (code != CLI_DONE)
        return code;
    mpk_status status = mpk_engine_open(cx, args->model, &o, &engine);
    if (status == MPK_OK)
        status = mpk_engine_attend(cx, engine);
    mpk_engine_close(engine);
    return status == MPK_OK ? CLI_DONE : cli_report(command, cx);
}

static int run(const cli_command *command, void *arguments)
{
    return cli_run_body(command, arguments, attend);
}

const cli_command cmd_rank = {
    .name = "rank",
    .operands = "MODEL --gpus N --meet PATH [--rank R] [options]",
    .summary = "compute one part of a model for another mpk process",
    .notes =
        "Rank 0 is any verb with the same --gpus and --meet: mpk serve MODEL --gpus 2 --meet "
        "PATH.  It takes the requests;\nthe ranks end when it ends.  Model and options must be "
        "those of rank 0.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(rank_arguments),
    .run = run,
};
