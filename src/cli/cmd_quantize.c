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
    cli_adapters adapters;
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
    CLI_ADAPTER_ROW(quantize_arguments, adapters),
    CLI_OPTION(quantize_arguments, calibrate, "calibrate", CLI_TEXT, .value = "FILE",
               .help = "read this text first: errors count by what the weights multiply there"),
    CLI_OPTION(quantize_arguments, windows, "windows", CLI_COUNT, .value = "N",
               .help = "of each text the first N windows of 512 tokens only", .least = 1,
               .most = 4294967295.0, .needs = "calibrate|report"),
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

/* The texts of --calibrate and --report; a NULL `at`: not given. */
typedef struct quantize_texts {
    str calibration, report;
} quantize_texts;

/* The file, and the line or the JSON that says what it holds. The text to calibrate by is read
 * before, since it may come from standard input. */
static int write_file(const cli_command *command, mpk_context *cx, arena *a,
                      quantize_arguments *args, str calibration)
{
    const mpk_quantize_options wanted = {.size = sizeof wanted,
                                         .type = args->type,
                                         .calibration = calibration.at,
                                         .calibration_bytes = calibration.n,
                                         .calibration_windows = args->windows,
                                         .threads = args->threads,
                                         .adapters = args->adapters.at,
                                         .n_adapters = args->adapters.n,
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

/* Measure the new file against the model that it was made from.  only_ask: check that this text
 * can be measured.  The new file has the model's tokenizer and context, so checking the model is
 * enough. */
static int measure(const cli_command *command, const quantize_arguments *args, str source,
                   bool only_ask)
{
    const cli_perplexity wanted = {.model = only_ask ? args->model : args->output,
                                   .base = only_ask ? NULL : args->model,
                                   .base_adapters = args->adapters,
                                   .file = args->report,
                                   .text = source,
                                   .only_ask = only_ask,
                                   .windows = args->windows,
                                   .threads = args->threads,
                                   .json = args->json,
                                   .quiet = args->quiet};
    return cli_measure_perplexity(command, &wanted);
}

/* Read before the model and the work, so that a wrong name or a short text costs nothing. */
static int read_texts(const cli_command *command, mpk_context *cx, arena *a,
                      const quantize_arguments *args, quantize_texts *to)
{
    int code = cli_check_output(command, args->output, args->calibrate);
    if (code == CLI_DONE)
        code = cli_check_output(command, args->output, args->report);
    if (code == CLI_DONE && args->calibrate)
        code = cli_read_text(command, cx, a, NULL, args->calibrate, NULL, &to->calibration);
    if (code != CLI_DONE || !args->report)
        return code;
    code = cli_read_text(command, cx, a, NULL, args->report, NULL, &to->report);
    return code == CLI_DONE ? measure(command, args, to->report, true) : code;
}

/* Both texts are read before the file is written: a mistake in the second costs no time. */
static int quantize(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    quantize_arguments *args = arguments;
    quantize_texts texts = {0};
    int code = read_texts(command, cx, a, args, &texts);
    if (code == CLI_DONE)
        code = write_file(command, cx, a, args, texts.calibration);
    return code == CLI_DONE && args->report ? measure(command, args, texts.report, false) : code;
}

/* Checked before anything is read. */
static int run(const cli_command *command, void *arguments)
{
    quantize_arguments *args = arguments;
    if (!args->output || !args->type)
        return cli_misuse(command, "give -o FILE and --type TYPE, such as q4_k_m");
    if (args->calibrate && args->report && !strcmp(args->calibrate, "-") &&
        !strcmp(args->report, "-"))
        return cli_misuse(command, "--calibrate and --report cannot both read standard input");
    return cli_run_body(command, args, quantize);
}

const cli_command cmd_quantize = {
    .name = "quantize",
    .operands = "MODEL -o FILE --type TYPE",
    .summary = "write a model as a GGUF file of another type",
    .notes = "Types, smallest first: q2_k q3_k_s q3_k_m q3_k_l q4_0 q4_k_s q4_k_m q4_1 q5_0 q5_k_s "
             "q5_k_m q5_1 q6_k q8_0\n"
             "f16 bf16 f32.  Of the K types, _m gives the tensors that count most more bits, _s "
             "fewer, _l most.  Rows\n"
             "that are not multiples of 256 take the type of blocks of 32 next above.  llama.cpp "
             "opens the file too.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(quantize_arguments),
    .run = run,
};
