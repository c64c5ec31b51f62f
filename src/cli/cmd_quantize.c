/* cmd_quantize.c - mpk quantize: a model written as a GGUF file of another type; with --calibrate
 * after it has read a text, with --report followed by what mpk perplexity says of the file.
 *
 *   OUT.gguf: ... MB, ... bits a weight; tensors: f32 61, q4_k 181, q6_k 30
 *
 * The work is the library's (mpk_quantize); here texts are read, and its JSON becomes a line. */
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "cli/cli.h"

typedef struct quantize_arguments {
    const char *model, *output, *type, *calibrate, *report;
    uint32_t windows, threads;
    bool quiet, json;
} quantize_arguments;

static const cli_option options[] = {
    CLI_OPTION(
        quantize_arguments, model, "MODEL", CLI_OPERAND, .required = true,
        .help =
            "a Hugging Face folder or a GGUF file; best one whose weights are not quantised yet"),
    CLI_OPTION(quantize_arguments, output, "output", CLI_TEXT, .letter = 'o', .value = "FILE",
               .help = "the GGUF file to write"),
    CLI_OPTION(quantize_arguments, type, "type", CLI_TEXT, .letter = 't', .value = "TYPE",
               .help = "what most matrices become; see below"),
    CLI_OPTION(quantize_arguments, calibrate, "calibrate", CLI_TEXT, .value = "FILE",
               .help = "read this text first: errors count by what the weights multiply there"),
    CLI_OPTION(quantize_arguments, windows, "windows", CLI_COUNT, .value = "N",
               .help = "of each text the first N windows of 512 tokens only", .least = 1,
               .most = 4294967295.0),
    CLI_OPTION(quantize_arguments, report, "report", CLI_TEXT, .value = "FILE",
               .help = "then measure on this text what it has cost: perplexity before and after, "
                       "KL"),
    CLI_OPTION(quantize_arguments, threads, "threads", CLI_COUNT, .value = "N",
               .help = "workers that read texts (one for each core)", .least = 1, .most = 1024),
    CLI_OPTION(quantize_arguments, json, "json", CLI_FLAG, .help = "print JSON"),
    CLI_OPTION(quantize_arguments, quiet, "quiet", CLI_FLAG, .letter = 'q',
               .help = "show no progress"),
};

/* "q4_k 150, f32 61" from the report's object. */
static void print_types(const json_value *tensors)
{
    for (size_t i = 0; tensors && i < tensors->n; i++)
        printf("%s%.*s %lld", i ? ", " : "", STR_ARG(tensors->items[i].key),
               (long long)tensors->items[i].integer);
}

/* In one line: size, bits a weight, tensors by type, and what calibration read. */
static int print_report(const cli_command *command, mpk_context *cx, arena *a, const char *output,
                        const char *json)
{
    const json_value *root;
    if (json_parse(cx, a, str_from(json), &root) != MPK_OK)
        return cli_report(command, cx);
    double bytes = json_get(root, "bytes")->number, weights = json_get(root, "weights")->number;
    const json_value *tokens = json_get(root, "calibration_tokens");
    printf("%s: %.1f MB, %.2f bits a weight; tensors: ", output, bytes * 1e-6, 8 * bytes / weights);
    print_types(json_get(root, "tensors"));
    if (tokens)
        printf("; calibrated by %lld tokens", (long long)tokens->integer);
    printf("\n");
    return CLI_DONE;
}

/* The file, and the line or the JSON that says what it holds. */
static int write_file(const cli_command *command, mpk_context *cx, arena *a,
                      quantize_arguments *args, str calibration)
{
    const mpk_quantize_options wanted = {.size = sizeof wanted,
                                         .type = args->type,
                                         .calibration = calibration.at,
                                         .calibration_bytes = calibration.n,
                                         .calibration_windows = args->windows,
                                         .threads = args->threads,
                                         .progress = cli_show_progress,
                                         .progress_user = args->quiet ? args : NULL};
    char *json;
    cli_catch_interrupt();
    mpk_status status = mpk_quantize(cx, args->model, args->output, &wanted, &json);
    cli_progress("%s", "");
    if (status != MPK_OK)
        return cli_report(command, cx);
    int code = CLI_DONE;
    if (args->json)
        printf("%s\n", json);
    else
        code = print_report(command, cx, a, args->output, json);
    mpk_free(json);
    return code;
}

/* The calibration text is read before the model, so a wrong name costs nothing. */
static int quantize(const cli_command *command, mpk_context *cx, arena *a, quantize_arguments *args)
{
    str source = {0};
    int code = CLI_DONE;
    if (args->calibrate)
        code = cli_read_text(command, cx, a, NULL, args->calibrate, NULL, &source);
    return code == CLI_DONE ? write_file(command, cx, a, args, source) : code;
}

/* The new file against the model that it was made of. */
static int measure(const cli_command *command, const quantize_arguments *args)
{
    const cli_perplexity wanted = {.model = args->output,
                                   .base = args->model,
                                   .file = args->report,
                                   .windows = args->windows,
                                   .threads = args->threads,
                                   .json = args->json,
                                   .quiet = args->quiet};
    return cli_measure_perplexity(command, &wanted);
}

static int run(const cli_command *command, void *arguments)
{
    quantize_arguments *args = arguments;
    if (!args->output || !args->type)
        return cli_misuse(command, "give -o FILE and --type TYPE, such as q4_k_m");
    if (args->calibrate && args->report && !strcmp(args->calibrate, "-") &&
        !strcmp(args->report, "-"))
        return cli_misuse(command, "--calibrate and --report cannot both read standard input");
    arena a = {0};
    mpk_context *cx = mpk_context_create();
    int code = cx ? quantize(command, cx, &a, args) : cli_fail(command, "out of memory");
    mpk_context_free(cx);
    arena_free(&a);
    return code == CLI_DONE && args->report ? measure(command, args) : code;
}

const cli_command cmd_quantize = {
    .name = "quantize",
    .operands = "MODEL -o FILE --type TYPE",
    .summary = "write a model as a GGUF file of another type",
    .notes = "Types, smallest first: q2_k q3_k_s q3_k_m q3_k_l q4_0 q4_k_s q4_k_m q4_1 q5_0 q5_k_s "
             "q5_k_m q5_1 q6_k q8_0\n"
             "f16 bf16 f32.  Of the K types, _m gives the tensors that count most more bits, _s "
             "fewer, _l most.  Rows\n"
             "that are no multiple of 256 take the type of blocks of 32 next above.  llama.cpp "
             "opens the file too.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(quantize_arguments),
    .run = run,
};
