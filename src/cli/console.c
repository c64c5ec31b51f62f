/* console.c - how the verbs read and speak: errors in one line, progress, standard input and
 * output, Ctrl-C.
 *
 * What the user gets goes to standard output and nothing else does; errors and progress go to
 * standard error.  A failed write is remembered (write_error) and told once, by cli_finish.  The
 * two signals are noted in words that the verbs look at between their steps, so nothing is done in
 * a handler.  Called by all verbs. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"

/* State of the process, not of a verb: signals and the terminal exist once.  Atomic, since the
 * system may run a handler on any thread, such as one of libmicrohttpd's. */
static atomic_int interrupted, hung_up;
static int write_error; /* errno of the first failed write to standard output */
static bool progress_shown;

/* ---- errors ---- */

/* One line: control characters, which may come out of a file's name or a model, become spaces. */
static void print_line(const cli_command *command, const char *words, const char *hint)
{
    cli_progress("%s", "");
    fprintf(stderr, "mpk: %s%s", command->name, *command->name ? ": " : "");
    for (const char *p = words; *p; p++)
        fputc((unsigned char)*p < ' ' ? ' ' : *p, stderr);
    if (*hint)
        fprintf(stderr, "; mpk %s%s", command->name, hint);
    fputc('\n', stderr);
}

/* Longer messages are cut at the buffer's end, which holds the least important part; a path has
 * at most 4096 bytes. */
int cli_fail(const cli_command *command, const char *format, ...)
{
    char words[2048];
    va_list values;
    va_start(values, format);
    vsnprintf(words, sizeof words, format, values);
    va_end(values);
    print_line(command, words, "");
    return CLI_FAILED;
}

/* The hint comes after the message, which is what the user looks for. */
int cli_misuse(const cli_command *command, const char *format, ...)
{
    char words[2048];
    va_list values;
    va_start(values, format);
    vsnprintf(words, sizeof words, format, values);
    va_end(values);
    print_line(command, words, " --help lists the options");
    return CLI_MISUSED;
}

/* The engine's message may have several lines; an error of the command is one line. */
int cli_report(const cli_command *command, const mpk_context *cx)
{
    text line = {0};
    for (const char *p = mpk_error_message(cx); *p;) {
        size_t n = strcspn(p, "\n");
        const char *from = p + strspn(p, " ");
        text_print(&line, "%s%.*s", line.n ? ", " : "", (int)(p + n - from), from);
        p += n + (p[n] == '\n');
    }
    print_line(command, line.failed || !line.at ? "out of memory" : line.at, "");
    text_free(&line);
    return CLI_FAILED;
}

/* Context and arena are freed whatever the body returns. */
int cli_run_body(const cli_command *command, void *arguments, cli_body *body)
{
    arena a = {0};
    mpk_context *cx = mpk_context_create();
    int code = cx ? body(command, cx, &a, arguments) : cli_fail(command, "out of memory");
    mpk_context_free(cx);
    arena_free(&a);
    return code;
}

/* ---- standard output ---- */

/* Flushed at once, since readers of a pipe wait for tokens.  After a failed write nothing more
 * is written. */
bool cli_write(const void *bytes, size_t n)
{
    if (!write_error && ((n && fwrite(bytes, 1, n, stdout) != n) || fflush(stdout) != 0))
        write_error = errno ? errno : EIO;
    return !write_error;
}

/* errno of a write inside printf is not known: EIO stands for it. */
int cli_finish(const cli_command *command, int code)
{
    cli_write("", 0);
    if (!write_error && ferror(stdout))
        write_error = EIO;
    if (!write_error)
        return code;
    /* EPIPE: the reader has closed the pipe because it needs no more, which is not reported. */
    if (write_error != EPIPE)
        cli_fail(command, "standard output: %s", strerror(write_error));
    return CLI_FAILED;
}

/* The number of answer tokens is cut to the room left in the context; a prompt that does not fit
 * is refused by the engine. */
mpk_status cli_submit(mpk_context *cx, mpk_engine *engine, str prompt, mpk_request_options *wanted,
                      mpk_request **request)
{
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(engine);
    mpk_engine_facts facts = {.size = sizeof facts};
    int32_t *ids;
    size_t n;
    if (!tokenizer)
        return mpk_submit_text(cx, engine, prompt.at, prompt.n, wanted,
                               request); /* says what is missing */
    mpk_status status =
        mpk_tokenize(cx, tokenizer, prompt.at, prompt.n, !wanted->raw_prompt, &ids, &n);
    if (status != MPK_OK)
        return status;
    mpk_engine_describe(engine, &facts);
    if (n < facts.context_tokens && wanted->max_tokens > facts.context_tokens - n)
        wanted->max_tokens = 0;
    status = mpk_submit_tokens(cx, engine, ids, n, wanted, request);
    mpk_free(ids);
    return status;
}

/* The reader of a pipe may close it: the request is then cancelled and waited for. */
int cli_stream(const cli_command *command, mpk_context *cx, mpk_request *request)
{
    mpk_piece piece;
    do {
        if (mpk_request_read(cx, request, 100, &piece) != MPK_OK)
            return cli_report(command, cx);
        if (piece.n_bytes && !cli_write(piece.text, piece.n_bytes))
            mpk_request_cancel(request);
        if (cli_interrupted())
            mpk_request_cancel(request);
    } while (piece.finish == MPK_RUNNING);
    cli_write("\n", 1);
    return CLI_DONE;
}

/* Does nothing on a pipe or a file; at a terminal it prints one line, which the next call
 * overwrites. */
void cli_progress(const char *format, ...)
{
    va_list values;
    if (!isatty(STDERR_FILENO) || (!*format && !progress_shown))
        return;
    va_start(values, format);
    fputs("\r\033[K", stderr);
    progress_shown = vfprintf(stderr, format, values) > 0;
    va_end(values);
    fflush(stderr);
}

/* false ends what the engine is doing, with MPK_ECANCELLED. */
bool cli_show_progress(void *user, const char *stage, double done)
{
    if (!user) /* not --quiet */
        cli_progress("%s %3.0f %%", stage, done * 100);
    return !interrupted;
}

/* ---- Ctrl-C ---- */

/* A signal handler may only set a flag; the verbs poll it between their steps. */
static void note_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* SA_RESETHAND: the second signal has its default action, which ends the process. */
void cli_catch_interrupt(void)
{
    interrupted = 0;
    struct sigaction action = {.sa_handler = note_interrupt, .sa_flags = SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool cli_interrupted(void)
{
    return interrupted;
}

static void note_hangup(int signal_number)
{
    (void)signal_number;
    hung_up = 1;
}

/* SA_RESTART: the server, the only user of SIGHUP, should not see its system calls fail with
 * EINTR. */
void cli_catch_hangup(void)
{
    const struct sigaction action = {.sa_handler = note_hangup, .sa_flags = SA_RESTART};
    sigaction(SIGHUP, &action, NULL);
}

/* Several SIGHUPs before a call count as one: the caller reads the whole file again in any case. */
bool cli_take_hangup(void)
{
    return atomic_exchange(&hung_up, 0);
}

/* ---- options ---- */

/* "linear:1=8": operator or kind, axis, parts.  The name itself may contain colons, so the last
 * colon is the separator. */
static int parse_degree(const cli_command *command, const char *word, mpk_degree *degree)
{
    const char *colon = strrchr(word, ':');
    char *end;
    unsigned long axis = colon ? strtoul(colon + 1, &end, 10) : 0;
    unsigned long n = colon && end > colon + 1 && *end == '=' ? strtoul(end + 1, &end, 10) : 0;
    if (!colon || colon == word || *end || n < 1 || n > 1 << 20 || axis > 5)
        return cli_misuse(command, "--degree: '%s' is not OP:AXIS=N, such as linear:1=8", word);
    /* The word is cut in place: argv may be modified. */
    *(char *)(uintptr_t)colon = 0;
    *degree = (mpk_degree){word, (uint32_t)axis, (uint32_t)n};
    return CLI_DONE;
}

/* "none", or "ngram" with numbers after colons: drafts, then tokens to look back.  A number that is
 * left out keeps the engine's default. ngram:8:3 tries up to 8 tokens that followed the last place
 * where the present 3 stood. */
static int parse_speculation(const cli_command *command, const char *word, mpk_engine_options *to)
{
    uint32_t *const numbers[] = {&to->draft_tokens, &to->draft_ngram};
    const size_t n = strcspn(word, ":");
    const char *at = word + n;
    to->speculation =
        n == 5 && memcmp(word, "ngram", n) == 0 ? MPK_SPECULATION_NGRAM : MPK_SPECULATION_NONE;
    for (size_t i = 0; i < 2 && *at == ':' && at[1] >= '1' && at[1] <= '9' && to->speculation;
         i++) {
        char *end;
        unsigned long value = strtoul(at + 1, &end, 10);
        *numbers[i] = value < 1 << 20 ? (uint32_t)value : 1 << 20;
        at = end;
    }
    if (*at || (!to->speculation && strcmp(word, "none") != 0))
        return cli_misuse(
            command, "--speculate: '%s' is neither none nor ngram[:DRAFTS[:N]], such as ngram:8",
            word);
    return CLI_DONE;
}

/* --draft, which overrides the number in ngram:DRAFTS. */
static int take_drafts(const cli_command *command, const cli_engine *from, mpk_engine_options *to)
{
    if (!from->drafts)
        return CLI_DONE;
    if (!to->speculation && !to->draft_model)
        return cli_misuse(command, "--draft: it needs --draft-model or --speculate");
    if (to->draft_tokens && to->draft_tokens != from->drafts)
        return cli_misuse(command, "--draft=%u: --speculate says %u", from->drafts,
                          to->draft_tokens);
    to->draft_tokens = from->drafts;
    return CLI_DONE;
}

/* `degrees` must live as long as *to: the options point to it. The orders of kv_dtypes and modes
 * are those of the words in the tables of options. */
int cli_engine_options(const cli_command *command, cli_engine *from, mpk_degree *degrees,
                       mpk_engine_options *to)
{
    static const mpk_dtype kv_dtypes[] = {MPK_F32, MPK_F16, MPK_BF16, MPK_Q8_0};
    static const mpk_mode modes[] = {MPK_MODE_KERNEL, MPK_MODE_GRAPH, MPK_MODE_GRAPH_PDL};
    const mpk_blocks otherwise = from->unpack_blocks ? MPK_BLOCKS_UNPACK : MPK_BLOCKS_AUTO;
    if (from->step_tokens & (from->step_tokens - 1))
        return cli_misuse(command, "--step-tokens: %u is not a power of two", from->step_tokens);
    if (from->keep_blocks && from->unpack_blocks)
        return cli_misuse(command, "--unpack-blocks: --keep-blocks says the opposite");
    for (uint32_t i = 0; i < from->degrees.n; i++) {
        int code = parse_degree(command, from->degrees.at[i], &degrees[i]);
        if (code != CLI_DONE)
            return code;
    }
    *to = (mpk_engine_options){
        .size = sizeof *to,
        .threads = from->threads,
        .gpus = from->gpus,
        .max_batch = from->max_batch,
        .step_tokens = from->step_tokens,
        .context_tokens = from->context,
        .kv_tokens = from->kv_tokens,
        .kv_dtype = kv_dtypes[from->kv],
        .random_weights = from->random.given,
        .random_seed = from->random.value,
        .progress = cli_show_progress,
        .progress_user = from->quiet ? from : NULL,
        .fusion = (mpk_fusion)from->ops,
        .launch = (mpk_launch)from->launch,
        .coarse_events = from->coarse_events,
        .verify = from->verify,
        .no_preload = from->no_preload,
        .degrees = degrees,
        .n_degrees = from->degrees.n,
        .device = from->device,
        .target = from->target,
        .mode = modes[from->mode],
        .no_descriptor_prefetch = from->no_descriptor_prefetch,
        .no_carriers = from->no_carriers,
        .keep = from->keep,
        .profile = from->profile,
        .batch_invariant = from->batch_invariant,
        .no_prefix_cache = from->no_prefix_cache,
        .embeddings = from->embeddings,
        .draft_model = from->draft_model,
        .activations = (mpk_activations)from->activations,
        .random_routing = (mpk_routing_law)from->routing,
        .count_experts = from->experts,
        .own_experts = from->own_experts,
        .keep_blocks = from->keep_blocks ? MPK_BLOCKS_KEEP : otherwise,
        .random_mix = from->mix,
        .meet = from->meet,
        .rank = from->rank,
        .meet_seconds = from->meet_seconds,
        .adapters = from->adapters.at,
        .n_adapters = from->adapters.n,
    };
    int code = from->speculate ? parse_speculation(command, from->speculate, to) : CLI_DONE;
    return code == CLI_DONE ? take_drafts(command, from, to) : code;
}

/* The defaults of the options are the library's, so nothing is stored for what was not given. */
static void take_number(cli_number from, float *to)
{
    if (from.given)
        *to = from.value;
}

/* Only what was given is taken, the rest keeps its default. */
void cli_request_options(const cli_sampling *from, mpk_request_options *to)
{
    take_number(from->temperature, &to->temperature);
    take_number(from->top_p, &to->top_p);
    take_number(from->min_p, &to->min_p);
    take_number(from->typical_p, &to->typical_p);
    take_number(from->top_n_sigma, &to->top_n_sigma);
    take_number(from->repetition_penalty, &to->repetition_penalty);
    take_number(from->presence_penalty, &to->presence_penalty);
    take_number(from->frequency_penalty, &to->frequency_penalty);
    to->min_tokens = from->min_tokens;
    to->bad_words = from->bad_words.at;
    to->n_bad_words = from->bad_words.n;
    if (from->top_k.given)
        to->top_k = (uint32_t)from->top_k.value;
    if (from->seed.given)
        to->seed = from->seed.value;
}

/* ---- the form of an answer ---- */

enum { MAX_FORM_BYTES = 1 << 20 };

/* The list of choices as JSON, which is how the library takes them. */
static mpk_status write_choices(mpk_context *cx, arena *a, const cli_list *choices,
                                const char **out)
{
    text t = {0};
    for (uint32_t i = 0; i < choices->n; i++) {
        text_print(&t, i ? "," : "[");
        json_write_str(&t, str_from(choices->at[i]));
    }
    text_print(&t, "]");
    *out = t.failed ? NULL : arena_copy(a, t.at, t.n);
    text_free(&t);
    CHECK(cx, *out, MPK_ENOMEM, "out of memory for the choices");
    return MPK_OK;
}

/* A form whose source is read from a file. */
static int read_form(const cli_command *command, mpk_context *cx, arena *a, const char *file,
                     mpk_form form, mpk_request_options *to)
{
    str source;
    if (file_read(cx, a, file, MAX_FORM_BYTES, &source) != MPK_OK)
        return cli_report(command, cx);
    to->form = form;
    to->form_source = arena_copy(a, source.at, source.n);
    return to->form_source ? CLI_DONE : cli_fail(command, "out of memory for %s", file);
}

/* At most one form may be given. A form's source is a text, or the content of a file for the forms
 * that are documents. */
int cli_request_form(const cli_command *command, mpk_context *cx, arena *a,
                     const cli_sampling *from, mpk_request_options *to)
{
    if ((from->json_schema != NULL) + (from->regex != NULL) + (from->grammar != NULL) +
            (from->structural_tag != NULL) + (from->choices.n > 0) >
        1)
        return cli_misuse(
            command,
            "give one of --json-schema, --regex, --grammar, --structural-tag and --choice");
    to->form_source = from->regex;
    to->form = from->regex ? MPK_FORM_REGEX : MPK_FORM_ANY;
    if (from->json_schema)
        return read_form(command, cx, a, from->json_schema, MPK_FORM_JSON_SCHEMA, to);
    if (from->grammar)
        return read_form(command, cx, a, from->grammar, MPK_FORM_GRAMMAR, to);
    if (from->structural_tag)
        return read_form(command, cx, a, from->structural_tag, MPK_FORM_STRUCTURAL_TAG, to);
    if (!from->choices.n)
        return CLI_DONE;
    to->form = MPK_FORM_CHOICE;
    return write_choices(cx, a, &from->choices, &to->form_source) == MPK_OK
               ? CLI_DONE
               : cli_report(command, cx);
}

/* ---- input ---- */

enum { MAX_TEXT_BYTES = 1 << 30, MAX_TEMPLATE_BYTES = 16 << 20 };

/* !p is 1 for what was not given: of three exactly two must be so. */
int cli_read_text(const cli_command *command, mpk_context *cx, arena *a, const char *inline_text,
                  const char *file, const char *dash, str *out)
{
    if (dash && strcmp(dash, "-") != 0)
        return cli_misuse(command, "'%s' is one word too many; a text is given by -p, a file by -f",
                          dash);
    if (!inline_text + !file + !dash != 2)
        return cli_misuse(command, "give one of -p TEXT, -f FILE, or - for standard input");
    if (inline_text) {
        *out = str_from(inline_text);
        return CLI_DONE;
    }
    const mpk_status status = file_read(cx, a, file ? file : "-", MAX_TEXT_BYTES, out);
    return status == MPK_OK ? CLI_DONE : cli_report(command, cx);
}

/* A NUL byte is refused, because the template is passed on as a C string and would end there
 * unnoticed. */
int cli_read_template(const cli_command *command, mpk_context *cx, arena *a, const char *file,
                      const char **source)
{
    str found;
    *source = NULL;
    if (!file)
        return CLI_DONE;
    if (file_read(cx, a, file, MAX_TEMPLATE_BYTES, &found) != MPK_OK)
        return cli_report(command, cx);
    if (memchr(found.at, 0, found.n))
        return cli_fail(command, "%s: a chat template holds no NUL", file);
    *source = found.at;
    return CLI_DONE;
}

/* Brackets count as blanks, so that a JSON or Python list can be pasted. "[1, 2, 3]" and "1 2 3"
 * are the same. */
int cli_read_ids(const cli_command *command, arena *a, str source, int32_t **ids, size_t *n)
{
    const char *p = source.at, *end = source.at + source.n;
    int32_t *at = arena_alloc(a, source.n / 2 + 1, sizeof *at);
    size_t count = 0;
    if (!at)
        return cli_fail(command, "out of memory for %zu token ids", source.n / 2 + 1);
    for (;;) {
        while (p < end && memchr(" \t\r\n,[]", *p, 8))
            p++;
        if (p == end)
            break;
        const char *word = p;
        int64_t value = 0;
        while (p < end && *p >= '0' && *p <= '9' && value <= INT32_MAX)
            value = value * 10 + (*p++ - '0');
        if (p == word || value > INT32_MAX || (p < end && !memchr(" \t\r\n,]", *p, 6)))
            return cli_fail(command,
                            "word %zu of the token ids is not a whole number below 2147483648",
                            count + 1);
        at[count++] = (int32_t)value;
    }
    *ids = at;
    *n = count;
    return CLI_DONE;
}

/* Compares files, not names; "-" is the file that standard input comes from, if it is one. */
int cli_check_output(const cli_command *command, const char *output, const char *input)
{
    const char *from = input && strcmp(input, "-") == 0 ? "/dev/stdin" : input;
    if (!output || !from || !file_is_same(output, from))
        return CLI_DONE;
    return cli_misuse(command, "%s is a file that is read here: write to another", output);
}

/* A device or a pipe has nothing to truncate. */
int cli_empty_output(const cli_command *command, const mpk_engine *engine, FILE *output,
                     const char *path)
{
    struct stat s;
    if (mpk_engine_reads(engine, path))
        return cli_fail(command, "%s is a file of the model that is read: write to another", path);
    if (fstat(fileno(output), &s) == 0 && S_ISREG(s.st_mode) && ftruncate(fileno(output), 0) != 0)
        return cli_fail(command, "cannot write %s: %s", path, strerror(errno));
    return CLI_DONE;
}

/* The path where `./dev demo` writes the demo model. */
const char *cli_demo_model(arena *a)
{
    static const char name[] = "mpk/SmolLM2-135M-Instruct.Q4_1.gguf";
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    text path = {0};
    if (cache && *cache)
        text_print(&path, "%s/%s", cache, name);
    else if (home && *home)
        text_print(&path, "%s/.cache/%s", home, name);
    const char *copy = path.at && !path.failed ? arena_copy(a, path.at, path.n) : NULL;
    text_free(&path);
    return copy;
}
