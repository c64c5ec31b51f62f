/* cmd_embed.c - mpk embed: texts to vectors, a JSON list of numbers on a line for each.
 *
 * The program ends with the final norm: no head is computed.  Lines are taken in portions of
 * PORTION, whose texts are computed together; vectors come out in the order of the lines.  An empty
 * line has one, too, if the tokenizer puts tokens around a text. */
#include <stdlib.h>

#include "cli/cli.h"

typedef struct embed_arguments {
    const char *model, *dash, *prompt, *file;
    int pooling;
    uint32_t dimensions;
    bool raw;
    cli_engine engine;
} embed_arguments;

enum { PORTION = 64 };

typedef struct embedding {
    const cli_command *command;
    mpk_context *cx;
    mpk_engine *engine;
    mpk_embed_options options;
    float *vectors;            /* f32[PORTION, size], heap */
    int32_t *ids[PORTION];     /* of the texts, as the library gave them */
    mpk_tokens texts[PORTION]; /* that wait for their vectors */
    size_t n_texts;
    size_t line; /* the number of the last one read, from 1; 0: the text is not of lines */
    uint32_t context_tokens;
} embedding;

static const cli_option options[] = {
    CLI_OPTION(embed_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder or a GGUF file"),
    CLI_OPTION(embed_arguments, dash, "-", CLI_OPERAND,
               .help = "read standard input, a text on each line"),
    CLI_OPTION(embed_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "TEXT",
               .help = "the text"),
    CLI_OPTION(embed_arguments, file, "file", CLI_TEXT, .letter = 'f', .value = "FILE",
               .help = "a text on each line of a file"),
    CLI_OPTION(
        embed_arguments, pooling, "pooling", CLI_CHOICE, .value = "last|mean",
        .help = "which hidden states make the vector: of the last token, the mean of all (last)"),
    CLI_OPTION(embed_arguments, dimensions, "dimensions", CLI_COUNT, .value = "N",
               .help = "only the first N numbers (all)", .least = 1, .most = 1 << 20),
    CLI_OPTION(embed_arguments, raw, "raw", CLI_FLAG, .help = "leave the length as it is (1)"),
    CLI_BATCH_ROW(embed_arguments, engine),
    CLI_DEVICE_ROW(embed_arguments, engine),
    CLI_MEET_ROWS(embed_arguments, engine),
    CLI_THREADS_ROW(embed_arguments, engine),
    CLI_MODEL_ROWS(embed_arguments, engine),
    CLI_QUIET_ROW(embed_arguments, engine),
};

/* One text needs one place in the batch. Texts of a file are embedded PORTION at a time, whose
 * vectors have room here. */
static int open_engine(embedding *e, embed_arguments *args)
{
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    mpk_engine_facts facts = {.size = sizeof facts};
    args->engine.embeddings = true;
    int code = cli_engine_options(e->command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    if (args->prompt)
        wanted.max_batch = 1;
    cli_catch_interrupt();
    if (mpk_engine_open(e->cx, args->model, &wanted, &e->engine) != MPK_OK)
        return cli_report(e->command, e->cx);
    cli_progress("%s", "");
    mpk_engine_describe(e->engine, &facts);
    e->context_tokens = facts.context_tokens;
    e->options = (mpk_embed_options){.size = sizeof e->options,
                                     .pooling = (mpk_pooling)args->pooling,
                                     .dimensions =
                                         args->dimensions ? args->dimensions : facts.embedding_size,
                                     .raw = args->raw};
    if (!mpk_engine_tokenizer(e->engine))
        return cli_fail(e->command,
                        "the model has no tokenizer: put its tokenizer.json beside the weights");
    e->vectors = calloc((size_t)PORTION * facts.embedding_size, sizeof *e->vectors);
    return e->vectors ? CLI_DONE : cli_fail(e->command, "out of memory for %d vectors", PORTION);
}

/* %.9g keeps every bit of an f32. */
static int print_vectors(const embedding *e)
{
    const uint32_t size = e->options.dimensions;
    text lines = {0};
    for (size_t i = 0; i < e->n_texts * size; i++) {
        text_print(&lines, i % size ? ", %.9g" : "[%.9g", (double)e->vectors[i]);
        if (i % size + 1 == size)
            text_print(&lines, "]\n");
    }
    int code =
        lines.failed ? cli_fail(e->command, "out of memory for %zu vectors", e->n_texts) : CLI_DONE;
    if (code == CLI_DONE && !cli_write(lines.at, lines.n))
        code = CLI_FAILED;
    text_free(&lines);
    return code;
}

/* The library's memory; the list may be used again. */
static void drop_texts(embedding *e)
{
    for (size_t i = 0; i < e->n_texts; i++)
        mpk_free(e->ids[i]);
    e->n_texts = 0;
}

/* The vectors of the texts that were added. */
static int embed(embedding *e)
{
    if (cli_interrupted())
        return cli_fail(e->command, "interrupted");
    if (mpk_embed(e->cx, e->engine, e->texts, e->n_texts, &e->options, e->vectors) != MPK_OK)
        return cli_report(e->command, e->cx);
    int code = print_vectors(e);
    drop_texts(e);
    return code;
}

/* Refuse a text that the library would refuse, by the number of its line: the library counts from
 * the portion's first text. */
static int check_text(const embedding *e, size_t n)
{
    char where[48] = "the text";
    if (e->line)
        snprintf(where, sizeof where, "line %zu", e->line);
    if (!n)
        return cli_fail(e->command, "%s has no tokens", where);
    if (n > e->context_tokens)
        return cli_fail(e->command, "%s: its %zu tokens are more than the context of %u", where, n,
                        e->context_tokens);
    return CLI_DONE;
}

/* One more text, and the vectors of a portion that is full. */
static int add_text(embedding *e, str words)
{
    const size_t at = e->n_texts;
    size_t n;
    if (mpk_tokenize(e->cx, mpk_engine_tokenizer(e->engine), words.n ? words.at : "", words.n, true,
                     &e->ids[at], &n) != MPK_OK)
        return cli_report(e->command, e->cx);
    e->texts[at] = (mpk_tokens){e->ids[at], n};
    e->n_texts++;
    int code = check_text(e, n);
    return code == CLI_DONE && e->n_texts == PORTION ? embed(e) : code;
}

/* A line end at the end begins no further text. */
static int add_lines(embedding *e, str source)
{
    int code = CLI_DONE;
    while (code == CLI_DONE && source.n) {
        const char *end = memchr(source.at, '\n', source.n);
        const size_t n = end ? (size_t)(end - source.at) : source.n, all = n + (end != NULL);
        e->line++;
        code = add_text(e, (str){source.at, n && source.at[n - 1] == '\r' ? n - 1 : n});
        source = (str){source.at + all, source.n - all};
    }
    return code;
}

/* The input is read before the model is loaded: a wrong name is told at once. */
static int with_arena(embedding *e, arena *a, embed_arguments *args)
{
    str source;
    int code = cli_read_text(e->command, e->cx, a, args->prompt, args->file, args->dash, &source);
    if (code == CLI_DONE)
        code = open_engine(e, args);
    if (code != CLI_DONE)
        return code;
    code = args->prompt ? add_text(e, source) : add_lines(e, source);
    return code == CLI_DONE ? embed(e) : code;
}

/* What was not opened is NULL, and freeing it does nothing. */
static int run(const cli_command *command, void *arguments)
{
    arena a = {0};
    embedding e = {.command = command, .cx = mpk_context_create()};
    int code = e.cx ? with_arena(&e, &a, arguments) : cli_fail(command, "out of memory");
    drop_texts(&e);
    mpk_engine_close(e.engine);
    mpk_context_free(e.cx);
    free(e.vectors);
    arena_free(&a);
    return code;
}

const cli_command cmd_embed = {
    .name = "embed",
    .operands = "MODEL [-p TEXT | -f FILE | -] [options]",
    .summary = "print the vector of a text",
    .notes = "Each text gets a JSON list of numbers on a line: the final hidden state of its last "
             "token, or the mean of\n"
             "those of all its tokens, of length 1.  It is computed by a program without the "
             "model's head.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(embed_arguments),
    .run = run,
};
