/* cmd_tokenize.c - mpk tokenize: text to token ids, and back. */
#include <stdlib.h>

#include "base/file.h"
#include "cli/cli.h"

typedef struct tokenize_arguments {
    const char *model, *dash, *prompt, *file;
    bool decode, add_special;
} tokenize_arguments;

static const cli_option options[] = {
    {"MODEL", 0, CLI_OPERAND, true, NULL, "a folder, a GGUF file or an image; a vocabulary alone is enough",
     offsetof(tokenize_arguments, model), 0, 0},
    {"-", 0, CLI_OPERAND, false, NULL, "read standard input", offsetof(tokenize_arguments, dash), 0, 0},
    {"prompt", 'p', CLI_TEXT, false, "TEXT", "the text, or with --decode the ids", offsetof(tokenize_arguments, prompt),
     0, 0},
    {"file", 'f', CLI_TEXT, false, "FILE", "read it from a file", offsetof(tokenize_arguments, file), 0, 0},
    {"decode", 0, CLI_FLAG, false, NULL, "from ids to text", offsetof(tokenize_arguments, decode), 0, 0},
    {"add-special", 0, CLI_FLAG, false, NULL, "with the tokens before and after the text that the model asks for",
     offsetof(tokenize_arguments, add_special), 0, 0},
};

static int encode(const cli_command *command, mpk_context *cx, const mpk_tokenizer *t, str source, bool add_special)
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

static int decode(const cli_command *command, mpk_context *cx, arena *a, const mpk_tokenizer *t, str source)
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
    code = args->decode ? decode(command, cx, a, t, source) : encode(command, cx, t, source, args->add_special);
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
    .notes =
        "Ids are printed on one line with spaces between; --decode takes spaces, line ends and commas, and prints the\n"
        "text and nothing else.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(tokenize_arguments),
    .run = run,
};
