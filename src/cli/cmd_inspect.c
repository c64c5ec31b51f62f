/* cmd_inspect.c - mpk inspect: what a model is, what memory it takes, and what the compiler makes
 * of it.
 *
 * The library answers in JSON (mpk_inspect), as text (mpk_print_program) or as a drawing for
 * graphviz (mpk_draw); here that is only printed.  Nothing is run and no weights are read: a
 * config.json alone is enough, and with --target the GPU need not be here.
 *
 *   {"model": {"family": ..., "vocab_size": ...}, "memory": {"weights_bytes": ...},
 *    "graphs": [{"tokens": 1, "operators": ..., "tasks": ..., "events": ...}, ...]} */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

typedef struct inspect_arguments {
    const char *model, *part;
    uint32_t batch;
    bool stats, json, dot, program;
    cli_engine engine;
} inspect_arguments;

static const cli_option options[] = {
    CLI_OPTION(inspect_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a folder, a GGUF file or an image; a config.json alone is enough"),
    CLI_OPTION(inspect_arguments, batch, "batch", CLI_COUNT, .letter = 'b', .value = "N",
               .help = "the task graph for steps of N tokens (1)", .least = 1, .most = 8192),
    CLI_OPTION(inspect_arguments, stats, "stats", CLI_FLAG,
               .help = "what each stage of the compiler made, as in the paper's table"),
    CLI_OPTION(inspect_arguments, json, "json", CLI_FLAG, .help = "print JSON"),
    CLI_OPTION(inspect_arguments, dot, "dot", CLI_FLAG,
               .help = "draw a part of the task graph: pipe it into dot -Tsvg"),
    CLI_OPTION(inspect_arguments, part, "part", CLI_TEXT, .value = "NAME",
               .help = "with --dot: operators with NAME in name, kind or weights (the first layer)",
               .needs = "dot"),
    CLI_OPTION(inspect_arguments, program, "program", CLI_FLAG,
               .help = "print the tensor program, as mpk opt reads it"),
    CLI_OPTION(inspect_arguments, engine.threads, "workers", CLI_COUNT, .letter = 'w', .value = "N",
               .help = "compile for N workers (one for each core, or SM of a GPU)", .least = 1,
               .most = 1024),
    CLI_DEVICE_ROW(inspect_arguments, engine),
    CLI_TARGET_ROW(inspect_arguments, engine),
    CLI_BATCH_ROW(inspect_arguments, engine),
    CLI_MODEL_ROWS(inspect_arguments, engine),
};

typedef struct inspection {
    const cli_command *command;
    mpk_context *cx;
    const inspect_arguments *args;
    mpk_engine_options wanted;
} inspection;

/* The number of a key, or 0 if it is absent: older rows of the report have fewer keys. */
static double number(const json_value *object, const char *key)
{
    const json_value *value = json_get(object, key);
    return value ? value->number : 0;
}

/* A number of bytes in a readable unit. */
static const char *shown_bytes(double n, char buffer[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    for (; n >= 1024 && i < 4; i++)
        n /= 1024;
    snprintf(buffer, 32, i ? "%.2f %s" : "%.0f %s", n, units[i]);
    return buffer;
}

/* Names that end in _bytes are shown with a unit. */
static void print_value(const json_value *value)
{
    char bytes[32];
    size_t n = value->key.n;
    bool is_size = n > 6 && memcmp(value->key.at + n - 6, "_bytes", 6) == 0;
    printf("  %-24.*s ", STR_ARG(value->key));
    if (value->kind == JSON_KIND_STRING)
        printf("%.*s\n", STR_ARG(value->text));
    else if (value->kind == JSON_KIND_BOOL)
        printf("%s\n", value->boolean ? "yes" : "no");
    else if (is_size)
        printf("%s\n", shown_bytes(value->number, bytes));
    else
        printf("%.12g\n", value->number);
}

/* A section is an object of plain values, each printed as it is. */
static void print_section(const json_value *root, const char *name)
{
    const json_value *section = json_get(root, name);
    printf("%s\n", name);
    for (size_t i = 0; section && i < section->n; i++)
        print_value(&section->items[i]);
}

/* One graph for each number of tokens in a step. */
static void print_graphs(const json_value *graphs)
{
    printf("graphs\n  tokens  operators     tasks    events    compile ms\n");
    for (size_t i = 0; i < graphs->n; i++) {
        const json_value *g = &graphs->items[i];
        printf("%8.0f %10.0f %9.0f %9.0f %13.1f\n", number(g, "tokens"), number(g, "operators"),
               number(g, "tasks"), number(g, "events"), number(g, "compile_ms"));
    }
}

/* The paper's names for the stages are in brackets. A row whose key the report lacks is left out:
 * an image has no compile time. */
static void print_stats(const json_value *graph)
{
    static const struct {
        const char *key, *words;
    } rows[] = {
        {"operators", "operators of the tensor program"},
        {"tasks", "tasks, without the empty ones"},
        {"tasks_per_operator", "tasks per operator"},
        {"pairs", "overlapping pairs of tasks, an event each"},
        {"events", "events after fusion"},
        {"fusion", "pairs per event (event fusion)"},
        {"normalize_tasks", "empty tasks that normalisation added"},
        {"successor_bytes_list", "bytes of successor lists"},
        {"successor_bytes_range", "bytes as ranges (linearisation)"},
        {"compile_ms", "ms to compile"},
        {"verify_ms", "ms to verify"},
    };
    printf("task graph for %.0f tokens a step and %.0f workers\n", number(graph, "tokens"),
           number(graph, "workers"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (json_get(graph, rows[i].key))
            printf("  %-24s %14.10g  %s\n", rows[i].key, number(graph, rows[i].key), rows[i].words);
}

/* Indented for people; programs that parse JSON ignore the blanks. */
static int print_json(const inspection *s, const json_value *value)
{
    text t = {0};
    json_write(&t, value, 2);
    text_add(&t, "\n", 1);
    bool failed = t.failed;
    if (!failed)
        cli_write(t.at, t.n);
    text_free(&t);
    return failed ? cli_fail(s->command, "out of memory") : CLI_DONE;
}

/* With --stats the graph for the requested tokens is the first one. */
static int print_report(const inspection *s, arena *a, const char *source)
{
    const json_value *root;
    if (json_parse(s->cx, a, str_from(source), &root) != MPK_OK)
        return cli_report(s->command, s->cx);
    const json_value *graphs = json_get(root, "graphs");
    if (s->args->json)
        return print_json(s, s->args->stats ? &graphs->items[0] : root);
    if (s->args->stats)
        print_stats(&graphs->items[0]);
    else {
        print_section(root, "model");
        print_section(root, "memory");
        print_graphs(graphs);
    }
    return CLI_DONE;
}

/* --stats without --batch reports on the graph for one token. --batch is the number of tokens, as
 * of a decode step with as many streams. */
static int inspect(inspection *s)
{
    const inspect_arguments *args = s->args;
    arena a = {0};
    char *result = NULL;
    uint32_t tokens = args->batch ? args->batch : 1;
    mpk_status status = MPK_OK;
    int code = CLI_DONE;
    cli_catch_interrupt();
    if (args->dot)
        status = mpk_draw(s->cx, args->model, &s->wanted, tokens, args->part, &result);
    else if (args->program)
        status = mpk_print_program(s->cx, args->model, &s->wanted, tokens, &result);
    else
        status = mpk_inspect(s->cx, args->model, &s->wanted,
                             args->stats || args->batch ? tokens : 0, &result);
    if (status != MPK_OK)
        return cli_report(s->command, s->cx);
    cli_progress("%s", "");
    if (args->dot || args->program)
        cli_write(result, strlen(result));
    else
        code = print_report(s, &a, result);
    arena_free(&a);
    mpk_free(result);
    return code;
}

/* No weights are read for any of it. */
static int run(const cli_command *command, void *arguments)
{
    inspect_arguments *args = arguments;
    mpk_degree degrees[CLI_MAX_LIST];
    inspection s = {.command = command, .args = args};
    if (args->dot + args->program + (args->stats || args->json) > 1)
        return cli_misuse(command, "--dot, --program and --stats or --json exclude one another");
    if (args->part && !args->dot)
        return cli_misuse(command, "--part belongs to --dot");
    int code = cli_engine_options(command, &args->engine, degrees, &s.wanted);
    if (code != CLI_DONE)
        return code;
    s.wanted.verify |= args->stats; /* the table has the time that the proof takes */
    s.cx = mpk_context_create();
    code = s.cx ? inspect(&s) : cli_fail(command, "out of memory");
    mpk_context_free(s.cx);
    return code;
}

const cli_command cmd_inspect = {
    .name = "inspect",
    .operands = "MODEL [--stats | --dot | --program] [--workers N] [--batch N] [--json]",
    .summary = "show a model, its memory plan and its task graphs, without running it",
    .notes = "Without --stats, --dot or --program: the model, the memory it takes, and all its "
             "task graphs.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(inspect_arguments),
    .run = run,
};
