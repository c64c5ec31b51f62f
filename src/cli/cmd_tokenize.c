/* cmd_tokenize.c - mpk tokenize: text to token ids, and back.
 *
 * Only the vocabulary is read: weights may be missing.  Text may be any bytes; what is not UTF-8
 * becomes U+FFFD.  Without --add-special the ids are those of the text alone. */
#include <stdlib.h>

#include "base/file.h"
#include "cli/cli.h"

typedef struct tokenize_arguments {
    const char *model, *dash, *prompt, *file;
    bool decode, add_special;
} tokenize_arguments;

static const cli_option options[] = {
    CLI_OPTION(tokenize_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a folder, a GGUF file or an image; a vocabulary alone is enough"),
    CLI_OPTION(tokenize_arguments, dash, "-", CLI_OPERAND, .help = "read standard input"),
    CLI_OPTION(tokenize_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "TEXT",
               .help = "the text, or with --decode the ids"),
    CLI_OPTION(tokenize_arguments, file, "file", CLI_TEXT, .letter = 'f', .value = "FILE",
               .help = "read it from a file"),
    CLI_OPTION(tokenize_arguments, decode, "decode", CLI_FLAG, .help = "from ids to text"),
    CLI_OPTION(tokenize_arguments, add_special, "add-special", CLI_FLAG,
               .help = "with the tokens before and after the text that the model asks for"),
};

/* One line, so that it can be fed to --decode or to mpk score --tokens. */
static int encode(const cli_command *command, mpk_context *cx, const mpk_tokenizer *t, str source,
                  bool add_special)
{
    int32_t *ids;
    size_t n;
    text line = {0};
    if (mpk_tokenize(cx, t, source.at, source.n, add_special, &ids, &n) != MPK_OK)
        return cli_report(command, cx);
    for (size_t i = 0; i < n; i++)
        text_print(&line, i ? " %d" : "%d", ids[i]);
    text_add(&line, "\n", 1);
    mpk_free(ids);
    bool failed = line.failed;
    if (!failed)
        cli_write(line.at, line.n);
    text_free(&line);
    return failed ? cli_fail(command, "out of memory for %zu ids", n) : CLI_DONE;
}

/* The bytes and nothing after them, not even a line end: they may be a part of a text. */
static int decode(const cli_command *command, mpk_context *cx, arena *a, const mpk_tokenizer *t,
                  str source)
{
    int32_t *ids;
    size_t n_ids, n;
    char *bytes;
    int code = cli_read_ids(command, a, source, &ids, &n_ids);
    if (code != CLI_DONE)
        return code;
    if (mpk_detokenize(cx, t, ids, n_ids, &bytes, &n) != MPK_OK)
        return cli_report(command, cx);
    cli_write(bytes, n);
    mpk_free(bytes);
    return CLI_DONE;
}

/* Opens the tokenizer alone: no weights are needed. */
static int convert(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    const tokenize_arguments *args = arguments;
    mpk_tokenizer *t;
    str source;
    int code = cli_read_text(command, cx, a, args->prompt, args->file, args->dash, &source);
    if (code != CLI_DONE)
        return code;
    if (mpk_tokenizer_open(cx, args->model, &t) != MPK_OK)
        return cli_report(command, cx);
    code = args->decode ? decode(command, cx, a, t, source)
                        : encode(command, cx, t, source, args->add_special);
    mpk_tokenizer_close(t);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    return cli_run_body(command, arguments, convert);
}

const cli_command cmd_tokenize = {
    .name = "tokenize",
    .operands = "MODEL [-p TEXT | -f FILE | -] [--decode]",
    .summary = "print the token ids of a text, or the text of ids",
    .notes = "Ids are printed on one line with spaces between; --decode takes spaces, line ends "
             "and commas, and prints the\n"
             "text and nothing else.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(tokenize_arguments),
    .run = run,
};
