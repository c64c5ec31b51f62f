/* cmd_chat.c - mpk chat: a conversation at the terminal, or one line of a pipe after the other.
 *
 * The conversation is kept as the JSON list that a chat template takes.  Each message is rendered
 * with all that was said before, answered, and the answer joins the list.  A message that could not
 * be answered leaves it again.
 *
 *   [{"role": "system", "content": "..."}, {"role": "user", "content": "..."}
 *
 * The bracket at the end is added for rendering alone.  That every message is rendered and fed from
 * the beginning costs little: the engine's prefix cache has all but the last one. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/lines.h"

typedef struct chat_arguments {
    const char *model, *prompt, *system, *chat_template;
    uint32_t max_tokens;
    cli_sampling sampling;
    cli_engine engine;
    cli_list stop, variables;
} chat_arguments;

static const cli_option options[] = {
    CLI_OPTION(chat_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder, a GGUF file, or an image of mpk compile"),
    CLI_OPTION(chat_arguments, prompt, "prompt", CLI_TEXT, .letter = 'p', .value = "TEXT",
               .help = "one message; end when it is answered"),
    CLI_OPTION(chat_arguments, system, "system", CLI_TEXT, .letter = 's', .value = "TEXT",
               .help = "what the model is told before the conversation"),
    CLI_OPTION(chat_arguments, max_tokens, "max-tokens", CLI_COUNT, .letter = 'n', .value = "N",
               .help = "tokens of an answer at most (until the model ends it)", .least = 1,
               .most = 1 << 24),
    CLI_OPTION(chat_arguments, stop, "stop", CLI_LIST, .value = "TEXT",
               .help = "end an answer before this text; may be given several times"),
    CLI_OPTION(chat_arguments, chat_template, "chat-template", CLI_TEXT, .value = "FILE",
               .help = "a template (Jinja) instead of the model's own"),
    CLI_OPTION(chat_arguments, variables, "set", CLI_LIST, .value = "NAME=VALUE",
               .help = "a variable of the template, JSON or text: enable_thinking=false"),
    CLI_SAMPLING_ROWS(chat_arguments, sampling),
    CLI_DEVICE_ROW(chat_arguments, engine),
    CLI_MEET_ROWS(chat_arguments, engine),
    CLI_THREADS_ROW(chat_arguments, engine),
    CLI_KEEP_ROW(chat_arguments, engine),
    CLI_MODEL_ROWS(chat_arguments, engine),
    CLI_QUIET_ROW(chat_arguments, engine),
};

typedef struct chat {
    const cli_command *command;
    mpk_context *cx;
    mpk_engine *engine;
    mpk_request_options wanted;
    mpk_chat_options how;
    bool at_terminal;
    size_t first_bytes; /* Length of `messages` with the system message alone. */
    text messages;      /* The JSON list of messages without its closing bracket. */
} chat;

/* ---- the conversation ---- */

/* Append a message to the list.  Running out of memory is remembered in the text and reported by
 * render. */
static void add_message(chat *c, const char *role, str content)
{
    text_print(&c->messages, "%s{\"role\": \"%s\", \"content\": ", c->messages.n > 1 ? ", " : "",
               role);
    json_write_str(&c->messages, content);
    text_add(&c->messages, "}", 1);
}

/* Cut the list back to an earlier length: the messages added since are dropped. */
static void cut_messages(chat *c, size_t n_bytes)
{
    c->messages.n = n_bytes;
    c->messages.at[n_bytes] = 0;
}

/* Render the conversation with the chat template into the text that the model reads. */
static mpk_status render(chat *c, char **prompt, size_t *n)
{
    const size_t before = c->messages.n;
    text_add(&c->messages, "]", 1);
    if (c->messages.failed)
        FAIL(c->cx, MPK_ENOMEM, "out of memory for the conversation");
    mpk_status status = mpk_chat_prompt(c->cx, mpk_engine_tokenizer(c->engine), c->messages.at,
                                        c->messages.n, &c->how, prompt, n);
    cut_messages(c, before);
    return status;
}

/* The template writes the special tokens itself, hence raw_prompt. */
static mpk_status submit(chat *c, mpk_request **request)
{
    mpk_request_options wanted = c->wanted;
    char *prompt;
    size_t n;
    mpk_status status = render(c, &prompt, &n);
    if (status != MPK_OK)
        return status;
    status = cli_submit(c->cx, c->engine, (str){prompt, n}, &wanted, request);
    mpk_free(prompt);
    return status;
}

/* Send a message and print the answer.  A message that fails is dropped from the conversation. So a
 * message that did not fit can be sent again, shorter. */
static int say(chat *c, str content)
{
    const size_t before = c->messages.n;
    mpk_request *request;
    mpk_answer answer;
    add_message(c, "user", content);
    if (submit(c, &request) != MPK_OK) {
        cut_messages(c, before);
        return cli_report(c->command, c->cx);
    }
    int code = cli_stream(c->command, c->cx, request);
    if (code == CLI_DONE && mpk_request_wait(c->cx, request, &answer) != MPK_OK)
        code = cli_report(c->command, c->cx);
    if (code == CLI_DONE) {
        add_message(c, "assistant", (str){answer.text, answer.n_bytes});
        if (answer.finish == MPK_FINISH_LENGTH && !c->wanted.max_tokens)
            fprintf(stderr,
                    "mpk: the context is full: /clear begins anew, --context=N gives more of it\n");
    } else {
        cut_messages(c, before);
    }
    mpk_request_free(request);
    return code;
}

/* ---- lines ---- */

/* A command: a line that begins with a slash, at a terminal.  Returns false if it ends the
 * conversation. */
static bool obey(chat *c, str line)
{
    if (str_is(line, "/exit") || str_is(line, "/quit"))
        return false;
    if (str_is(line, "/clear"))
        cut_messages(c, c->first_bytes);
    else
        fprintf(stderr, "/clear forgets what was said, /exit (or Ctrl-D) ends; a line that ends "
                        "with \\ goes on in the "
                        "next; Ctrl-C ends an answer\n");
    return true;
}

/* The prompt mark at a terminal: for the beginning of a message, or for its continuation lines. */
static void ask(const chat *c, bool goes_on)
{
    if (c->at_terminal)
        cli_write(goes_on ? "  " : "> ", 2);
}

/* Read the next message: one line, or several of which all but the last end with a backslash. The
 * end of the input ends a message that was begun. */
static cli_line next_message(chat *c, cli_lines *lines, text *message)
{
    const char *line;
    size_t n;
    message->n = 0;
    for (;;) {
        ask(c, message->n > 0);
        cli_line state = cli_lines_next(lines, true, &line, &n);
        if (state != CLI_LINE)
            return message->n ? CLI_LINE : state;
        if (n && line[n - 1] == '\r')
            n--;
        const bool goes_on = n && line[n - 1] == '\\';
        text_add(message, line, n - goes_on);
        if (!goes_on)
            return CLI_LINE;
        text_add(message, "\n", 1);
    }
}

/* Ends at the end of the input, at /quit, or at Ctrl-C if the input is a pipe.  At a terminal
 * Ctrl-C ends only the answer. */
static int converse(chat *c)
{
    cli_lines lines = {.fd = STDIN_FILENO};
    text message = {0};
    int code = CLI_DONE;
    cli_line state = CLI_LINE;
    while (code == CLI_DONE && (state = next_message(c, &lines, &message)) == CLI_LINE) {
        if (message.failed)
            code = cli_fail(c->command, "out of memory for a message");
        else if (message.n && c->at_terminal && message.at[0] == '/')
            state = obey(c, (str){message.at, message.n}) ? state : CLI_LINE_END;
        else if (message.n)
            code = say(c, (str){message.at, message.n});
        if (state == CLI_LINE_END || (!c->at_terminal && cli_interrupted()))
            break;
        if (c->at_terminal && code == CLI_FAILED && !ferror(stdout))
            /* The error has been reported; the next message may be shorter and succeed. */
            code = CLI_DONE;
        cli_catch_interrupt();
    }
    if (state == CLI_LINE_ERROR && errno != EINTR)
        code = cli_fail(c->command, "cannot read standard input: %s", strerror(errno));
    if (c->at_terminal)
        cli_write("\n", 1);
    cli_lines_free(&lines);
    text_free(&message);
    return code;
}

/* ---- options ---- */

/* Turn NAME=VALUE into a member of an object; a value that is not JSON is taken as a string. */
static int add_variable(chat *c, arena *a, const char *word, text *to)
{
    const char *equals = strchr(word, '=');
    const json_value *value;
    if (!equals || equals == word)
        return cli_misuse(c->command, "--set: '%s' is not NAME=VALUE", word);
    mpk_status status = json_parse(c->cx, a, str_from(equals + 1), &value);
    if (status == MPK_ENOMEM)
        return cli_report(c->command, c->cx);
    json_write_str(to, (str){word, (size_t)(equals - word)});
    text_add(to, ": ", 2);
    if (status == MPK_OK)
        text_add(to, equals + 1, strlen(equals + 1));
    else
        json_write_str(to, str_from(equals + 1));
    return CLI_DONE;
}

/* All --set options as one object. */
static int read_variables(chat *c, arena *a, const cli_list *list, const char **out)
{
    text t = {0};
    int code = CLI_DONE;
    for (uint32_t i = 0; i < list->n && code == CLI_DONE; i++) {
        text_print(&t, "%s", i ? ", " : "{");
        code = add_variable(c, a, list->at[i], &t);
    }
    if (list->n)
        text_add(&t, "}", 1);
    *out = list->n && !t.failed ? arena_copy(a, t.at, t.n) : NULL;
    text_free(&t);
    if (code == CLI_DONE && list->n && !*out)
        code = cli_fail(c->command, "out of memory for the template's variables");
    return code;
}

/* Files named by options are read before the model is loaded. */
static int read_how(chat *c, arena *a, const chat_arguments *args)
{
    c->how = (mpk_chat_options){.size = sizeof c->how};
    int code = cli_read_template(c->command, c->cx, a, args->chat_template, &c->how.chat_template);
    if (code == CLI_DONE)
        code = cli_request_form(c->command, c->cx, a, &args->sampling, &c->wanted);
    return code == CLI_DONE ? read_variables(c, a, &args->variables, &c->how.variables) : code;
}

/* The sampling options that the model's makers suggest, then those of the command line, which
 * replace them. */
static void fill_wanted(chat *c, const chat_arguments *args)
{
    c->wanted.size = sizeof c->wanted;
    mpk_engine_suggest(c->engine, &c->wanted);
    cli_request_options(&args->sampling, &c->wanted);
    c->wanted.max_tokens = args->max_tokens;
    c->wanted.stop = args->stop.at;
    c->wanted.n_stop = args->stop.n;
    c->wanted.raw_prompt = true;
}

/* One message if -p is given, else messages from standard input until it ends. */
static int talk(chat *c, const chat_arguments *args)
{
    c->at_terminal = !args->prompt && isatty(STDIN_FILENO);
    fill_wanted(c, args);
    text_add(&c->messages, "[", 1);
    if (args->system)
        add_message(c, "system", str_from(args->system));
    c->first_bytes = c->messages.n;
    if (c->messages.failed)
        return cli_fail(c->command, "out of memory for the conversation");
    return args->prompt ? say(c, str_from(args->prompt)) : converse(c);
}

/* One conversation, so one place in the batch; its earlier turns are found in the prefix cache. */
static int chat_body(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    chat_arguments *args = arguments;
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    chat c = {.command = command, .cx = cx};
    int code = cli_engine_options(command, &args->engine, degrees, &wanted);
    if (code == CLI_DONE)
        code = read_how(&c, a, args);
    if (code != CLI_DONE)
        return code;
    wanted.max_batch = 1;
    cli_catch_interrupt();
    if (mpk_engine_open(cx, args->model, &wanted, &c.engine) != MPK_OK)
        return cli_report(command, cx);
    cli_progress("%s", "");
    code = talk(&c, args);
    text_free(&c.messages);
    mpk_engine_close(c.engine);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    return cli_run_body(command, arguments, chat_body);
}

const cli_command cmd_chat = {
    .name = "chat",
    .operands = "MODEL [-s TEXT] [-p TEXT] [options]",
    .summary = "talk with a model, by its chat template",
    .notes = "Sampling is what the model's makers suggest, unless options say otherwise.  At a "
             "terminal: /clear forgets "
             "what was said,\n/exit or Ctrl-D ends, Ctrl-C ends an answer.  Of a pipe each line is "
             "a message.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(chat_arguments),
    .run = run,
};
