/* cmd_serve.c - mpk serve: an OpenAI-compatible HTTP server over one model, until it is told to
 * stop.
 *
 * Options become net_options (net/net_server.h), which does the rest.  The order of a start: take
 * the port, load the model, answer; of an end: stop taking requests, let running ones finish for
 * --grace seconds, close the model.  SIGHUP reads the file of keys again. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "net/net_server.h"

enum {
    DEFAULT_PORT = 8000,
    DEFAULT_GRACE_S = 10,
    DEFAULT_WAITING = 1024,
    DEFAULT_CONNECTIONS = 2048,
    DEFAULT_TIMEOUT_S = 60,
    DEFAULT_PING_S = 10,
    DEFAULT_BODY_MIB = 32,
};

/* The options as given; 0 and NULL are those left out, which read_options replaces by defaults. */
typedef struct serve_arguments {
    const char *model, *host, *api_key, *key_file, *certificate, *private_key, *model_name,
        *template_file, *cors_origin;
    cli_whole port, max_waiting, grace, ping; /* for these 0 is a value */
    bool any_model_name;
    int log_format, metrics_names, pooling;
    uint32_t max_connections, timeout, max_body;
    cli_engine engine;
} serve_arguments;

static const cli_option options[] = {
    CLI_OPTION(serve_arguments, model, "MODEL", CLI_OPERAND, .required = true,
               .help = "a Hugging Face folder, a GGUF file, or an image of mpk compile"),
    CLI_OPTION(serve_arguments, host, "host", CLI_TEXT, .value = "ADDRESS",
               .help = "where it listens (127.0.0.1); 0.0.0.0 or ::, everywhere"),
    CLI_OPTION(serve_arguments, port, "port", CLI_WHOLE, .value = "N",
               .help = "which port (8000); 0: any that is free", .most = 65535),
    CLI_OPTION(serve_arguments, api_key, "api-key", CLI_TEXT, .value = "KEY",
               .help = "answer only who sends this key ($MPK_API_KEY)"),
    CLI_OPTION(serve_arguments, key_file, "api-key-file", CLI_TEXT, .value = "FILE",
               .help = "keys, one a line, and their limits; SIGHUP reads it again"),
    CLI_OPTION(serve_arguments, certificate, "tls-cert", CLI_TEXT, .value = "FILE",
               .help = "serve HTTPS with this certificate (PEM)"),
    CLI_OPTION(serve_arguments, private_key, "tls-key", CLI_TEXT, .value = "FILE",
               .help = "and its key (PEM)"),
    CLI_OPTION(serve_arguments, model_name, "model-name", CLI_TEXT, .value = "NAME",
               .help = "as clients call the model (the last part of its path)"),
    CLI_OPTION(serve_arguments, template_file, "chat-template", CLI_TEXT, .value = "FILE",
               .help = "a Jinja template in place of the model's own"),
    CLI_OPTION(serve_arguments, cors_origin, "cors-origin", CLI_TEXT, .value = "ORIGIN",
               .help = "whose web pages may ask; *: everyone's (none)"),
    CLI_OPTION(serve_arguments, max_waiting, "max-waiting", CLI_WHOLE, .value = "N",
               .help = "requests that may wait for a place (1024)", .most = 1 << 20),
    CLI_OPTION(serve_arguments, max_connections, "max-connections", CLI_COUNT, .value = "N",
               .help = "connections at a time (2048)", .least = 1, .most = 65535),
    CLI_OPTION(serve_arguments, max_body, "max-body", CLI_COUNT, .value = "MIB",
               .help = "size of a request in MiB (32)", .least = 1, .most = 1024),
    CLI_OPTION(serve_arguments, timeout, "timeout", CLI_COUNT, .value = "SECONDS",
               .help = "close a connection on which nothing moves for so long (60)", .least = 1,
               .most = 86400),
    CLI_OPTION(serve_arguments, grace, "grace", CLI_WHOLE, .value = "SECONDS",
               .help = "how long running requests may go on at the end (10)", .most = 1 << 20),
    CLI_OPTION(serve_arguments, ping, "sse-ping", CLI_WHOLE, .value = "SECONDS",
               .help = "a stream on which nothing comes for so long gets a comment (10); 0: never",
               .most = 86400),
    CLI_OPTION(serve_arguments, any_model_name, "any-model-name", CLI_FLAG,
               .help = "answer whatever model a request names"),
    CLI_OPTION(serve_arguments, log_format, "log-format", CLI_CHOICE, .value = "text|json",
               .help = "of the line for each request (text)"),
    CLI_OPTION(serve_arguments, metrics_names, "metrics-names", CLI_CHOICE, .value = "mpk|vllm",
               .help = "vllm: metrics also under vLLM's names (mpk)"),
    CLI_OPTION(serve_arguments, engine.embeddings, "embeddings", CLI_FLAG,
               .help = "serve vectors of texts instead of answers"),
    CLI_OPTION(serve_arguments, pooling, "pooling", CLI_CHOICE, .value = "last|mean",
               .help = "with --embeddings: of the last token, or the mean of all (last)",
               .needs = "embeddings"),
    CLI_BATCH_ROW(serve_arguments, engine),
    CLI_DEVICE_ROW(serve_arguments, engine),
    CLI_MEET_ROWS(serve_arguments, engine),
    CLI_THREADS_ROW(serve_arguments, engine),
    CLI_KEEP_ROW(serve_arguments, engine),
    CLI_MODEL_ROWS(serve_arguments, engine),
    CLI_OPTION(serve_arguments, engine.quiet, "quiet", CLI_FLAG, .letter = 'q',
               .help = "no progress and no line for each request"),
};

/* ---- options ---- */

/* For options where 0 is valid (port 0, no waiting, no grace, no pings): the value if it was
 * given, else the default. */
static uint32_t whole_or(cli_whole given, uint32_t otherwise)
{
    return given.given ? (uint32_t)given.value : otherwise;
}

/* For options that cannot be 0: the value, or the default where it is 0. */
static uint32_t count_or(uint32_t given, uint32_t otherwise)
{
    return given ? given : otherwise;
}

/* As count_or, for strings. */
static const char *word_or(const char *given, const char *otherwise)
{
    return given ? given : otherwise;
}

/* The last component of a path, without trailing slashes. */
static const char *last_part(arena *a, const char *path)
{
    size_t n = strlen(path), from;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (from = n; from > 0 && path[from - 1] != '/'; from--)
        continue;
    return arena_copy(a, path + from, n - from);
}

/* The server's log: one line for each request. */
static void print_line(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

/* Options that the user left out get their defaults here, so the server sees complete options. The
 * key from the environment does not show in the list of processes, as an option does. */
static int read_options(const cli_command *command, mpk_context *cx, arena *a,
                        const serve_arguments *args, net_options *to)
{
    const char *key = args->api_key ? args->api_key : getenv("MPK_API_KEY");
    *to = (net_options){
        .host = word_or(args->host, "127.0.0.1"),
        .port = (uint16_t)whole_or(args->port, DEFAULT_PORT),
        .model_name = word_or(args->model_name, last_part(a, args->model)),
        .api_key = key,
        .key_file = args->key_file,
        .tls_certificate = args->certificate,
        .tls_key = args->private_key,
        .vllm_metrics = args->metrics_names,
        .cors_origin = args->cors_origin,
        .max_waiting = whole_or(args->max_waiting, DEFAULT_WAITING),
        .max_connections = count_or(args->max_connections, DEFAULT_CONNECTIONS),
        .ping_s = whole_or(args->ping, DEFAULT_PING_S),
        .any_model_name = args->any_model_name,
        .pooling = (mpk_pooling)args->pooling,
        .log_json = args->log_format,
        .timeout_s = count_or(args->timeout, DEFAULT_TIMEOUT_S),
        .body_bytes = (size_t)count_or(args->max_body, DEFAULT_BODY_MIB) << 20,
        .log = args->engine.quiet ? NULL : print_line,
    };
    if (!args->certificate != !args->private_key)
        return cli_misuse(command, "--tls-cert and --tls-key belong together: give both or none");
    if (key && !*key)
        return cli_misuse(command, "%s: the key is empty; leave it out to serve everyone",
                          args->api_key ? "--api-key" : "MPK_API_KEY");
    if (!to->model_name)
        return cli_fail(command, "out of memory");
    return cli_read_template(command, cx, a, args->template_file, &to->chat_template);
}

/* ---- the server ---- */

/* On standard output, since scripts wait for this line. */
static bool say_ready(const net_server *server, const net_options *o, mpk_engine *engine)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    text line = {0};
    mpk_engine_describe(engine, &facts);
    text_print(&line, "mpk: serving %s on %s (%s; context %u, %u requests at a time)\n",
               o->model_name, net_server_url(server), facts.device, facts.context_tokens,
               facts.max_batch);
    bool good = !line.failed && cli_write(line.at, line.n);
    text_free(&line);
    return good;
}

/* If the file of keys cannot be read, the old keys stay in force. */
static void reload(mpk_context *cx, const net_options *o, net_server *server)
{
    text line = {0};
    if (net_server_reload(cx, server) == MPK_OK)
        text_print(&line, "the keys were read again");
    else
        text_print(&line, "the keys stay as they were: %s", mpk_error_message(cx));
    net_log_note(o, line.failed ? "out of memory" : line.at);
    text_free(&line);
}

/* Polling is simpler than waiting for a signal that any thread may receive. */
static void wait_for_interrupt(mpk_context *cx, const net_options *o, net_server *server)
{
    const struct timespec nap = {.tv_nsec = 100000000};
    while (!cli_interrupted()) {
        if (cli_take_hangup())
            reload(cx, o, server);
        nanosleep(&nap, NULL);
    }
}

/* The server is stopped before the engine, which it borrows, is closed. */
static int serve(const cli_command *command, mpk_context *cx, const net_options *o,
                 net_server *server, mpk_engine *engine, uint32_t grace)
{
    const mpk_status status = net_server_start(cx, server, engine);
    const bool ready = status == MPK_OK && say_ready(server, o, engine);
    if (ready) {
        wait_for_interrupt(cx, o, server);
        net_log_note(o, "stopping; once more ends at once");
    }
    net_server_stop(server, grace);
    if (status != MPK_OK)
        return cli_report(command, cx);
    return ready ? CLI_DONE : CLI_FAILED;
}

/* A request to stop while the model is loading is not a failure. */
static int stop_early(const cli_command *command, mpk_context *cx, const net_options *o,
                      net_server *server, mpk_status status)
{
    net_server_stop(server, 0);
    if (status != MPK_ECANCELLED || !cli_interrupted())
        return cli_report(command, cx);
    net_log_note(o, "stopped while the model was loading");
    return CLI_DONE;
}

/* The port is bound before the model is loaded, so a port in use is reported at once; clients are
 * refused until the server listens, which it does once the model is ready. */
static int open_and_serve(const cli_command *command, mpk_context *cx, arena *a, void *arguments)
{
    serve_arguments *args = arguments;
    mpk_degree degrees[CLI_MAX_LIST];
    mpk_engine_options wanted;
    mpk_engine *engine;
    net_server *server;
    net_options o;
    int code = read_options(command, cx, a, args, &o);
    if (code == CLI_DONE)
        code = cli_engine_options(command, &args->engine, degrees, &wanted);
    if (code != CLI_DONE)
        return code;
    cli_catch_interrupt();
    if (args->key_file)
        cli_catch_hangup();
    if (net_server_open(cx, &o, &server) != MPK_OK)
        return cli_report(command, cx);
    mpk_status status = mpk_engine_open(cx, args->model, &wanted, &engine);
    cli_progress("%s", "");
    if (status != MPK_OK)
        return stop_early(command, cx, &o, server, status);
    code = serve(command, cx, &o, server, engine, whole_or(args->grace, DEFAULT_GRACE_S));
    mpk_engine_close(engine);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    return cli_run_body(command, arguments, open_and_serve);
}

const cli_command cmd_serve = {
    .name = "serve",
    .operands = "MODEL [--host=ADDRESS] [--port=N] [options]",
    .summary = "answer HTTP requests as OpenAI's API has them",
    .notes = "Ctrl-C, or a request to end, stops taking requests and lets running ones finish; a "
             "second one ends at once.\n"
             "docs/server.md has the endpoints and their parameters.",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(serve_arguments),
    .run = run,
};
