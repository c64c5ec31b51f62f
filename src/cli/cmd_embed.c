/* cmd_embed.c - mpk embed: texts to vectors, a JSON list of numbers on a line for each.
 *
 * The program ends with the final norm: no head is computed.  Texts are taken one after the other.
 */
#include <stdlib.h>

#include "cli/cli.h"

typedef struct embed_arguments {
    const char *model, *dash, *prompt, *file;
    int pooling;
    uint32_t dimensions;
    bool raw;
    cli_engine engine;
} embed_arguments;

typedef struct embedding {
    const cli_command *command;
    mpk_context *cx;
    mpk_engine *engine;
    mpk_embed_options options;
    float *vector; /* heap */
} embedding;

static const cli_option options[] = {
    CLI_OPTION(embed_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder or a GGUF file"),
    CLI_OPTION(embed_arguments, dash, "-", CLI_OPERAND, .help = "read standard input, a text on each line"),
    CLI_OPTION(embed_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "TEXT", .help = "the text"),
    CLI_OPTION(embed_arguments, file, "file", CLI_TEXT, .letter = 'f', .value = "FILE",
               .help = "a text on each line of a file"),
    CLI_OPTION(embed_arguments, pooling, "pooling", CLI_CHOICE, .value = "last|mean",
               .help = "which hidden states make the vector: of the last token, the mean of all (last)"),
    CLI_OPTION(embed_arguments, dimensions, "dimensions", CLI_COUNT, .value = "N",
               .help = "only the first N numbers (all)", .least = 1, .most = 1 << 20),
    CLI_OPTION(embed_arguments, raw, "raw", CLI_FLAG, .help = "leave the length as it is (1)"),
    CLI_DEVICE_ROW(embed_arguments, engine),
    CLI_THREADS_ROW(embed_arguments, engine),
    CLI_MODEL_ROWS(embed_arguments, engine),
    CLI_QUIET_ROW(embed_arguments, engine),
};

static int open_engine(embedding *e, embed_arguments *args)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    mpk_engine_facts facts = {.size = sizeof facts};
    args->engine.embeddings = true;
    int code = cli_engine_options(e->command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    wanted.max_batch = 1;
    cli_catch_interrupt();
    if (mpk_engine_open(e->cx, args->model, &wanted, &e->engine) != MPK_OK)
        return cli_report(e->command, e->cx);
    cli_progress("%s", "");
    mpk_engine_describe(e->engine, &facts);
    e->options = (mpk_embed_options){.size = sizeof e->options,
                                     .pooling = (mpk_pooling)args->pooling,
                                     .dimensions = args->dimensions ? args->dimensions : facts.embedding_size,
                                     .raw = args->raw};
    e->vector = calloc(facts.embedding_size, sizeof *e->vector);
    return e->vector ? CLI_DONE : cli_fail(e->command, "out of memory for a vector");
}

static int print_vector(const embedding *e)
{
    text line = {0};
    for (uint32_t i = 0; i < e->options.dimensions; i++)
        text_print(&line, i ? ", %.9g" : "[%.9g", (double)e->vector[i]);
    text_print(&line, "]\n");
    int code = line.failed ? cli_fail(e->command, "out of memory for a vector") : CLI_DONE;
    if (code == CLI_DONE && !cli_write(line.at, line.n))
        code = CLI_FAILED;
    text_free(&line);
    return code;
}

static int embed(embedding *e, str words)
{
    const mpk_tokenizer *t = mpk_engine_tokenizer(e->engine);
    int32_t *ids;
    size_t n;
    if (!t)
        return cli_fail(e->command, "the model brings no tokenizer: put its tokenizer.json beside the weights");
    if (cli_interrupted())
        return cli_fail(e->command, "interrupted");
    if (mpk_tokenize(e->cx, t, words.n ? words.at : "", words.n, true, &ids, &n) != MPK_OK)
        return cli_report(e->command, e->cx);
    mpk_status status = mpk_embed(e->cx, e->engine, ids, n, &e->options, e->vector);
    mpk_free(ids);
    return status == MPK_OK ? print_vector(e) : cli_report(e->command, e->cx);
}

/* A line end at the end begins no further text. */
static int embed_lines(embedding *e, str source)
{
    int code = CLI_DONE;
    while (code == CLI_DONE && source.n) {
        const char *end = memchr(source.at, '\n', source.n);
        const size_t n = end ? (size_t)(end - source.at) : source.n, all = n + (end != NULL);
        code = embed(e, (str){source.at, n && source.at[n - 1] == '\r' ? n - 1 : n});
        source = (str){source.at + all, source.n - all};
    }
    return code;
}

static int with_arena(embedding *e, arena *a, embed_arguments *args)
{
    str source;
    int code = cli_read_text(e->command, e->cx, a, args->prompt, args->file, args->dash, &source);
    if (code == CLI_DONE)
        code = open_engine(e, args);
    if (code != CLI_DONE)
        return code;
    return args->prompt ? embed(e, source) : embed_lines(e, source);
}

static int run(const cli_command *command, void *arguments)
{
    arena a = {0};
    embedding e = {.command = command, .cx = mpk_context_create()};
    int code = e.cx ? with_arena(&e, &a, arguments) : cli_fail(command, "out of memory");
    mpk_engine_close(e.engine);
    mpk_context_free(e.cx);
    free(e.vector);
    arena_free(&a);
    return code;
}

const cli_command cmd_embed = {
    .name = "embed",
    .operands = "MODEL [-p TEXT | -f FILE | -] [options]",
    .summary = "print the vector of a text",
    .notes =
        "Each text gets a JSON list of numbers on a line: the final hidden state of its last token, or the mean of\n"
        "those of all its tokens, of length 1.  It is computed by a program without the model's head.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(embed_arguments),
    .run = run,
};
