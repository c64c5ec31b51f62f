/* cli.h - what the verbs of the command share: tables of options, words for errors, input and
 * output.
 *
 * A verb is a file cmd_VERB.c with a table of its options; parsing and --help read the same table,
 * so that they cannot disagree.  Exit codes: 0 done, 1 failed, 2 wrong usage; an error is one line
 * on standard error.
 *
 *   typedef struct count_arguments { const char *file; uint32_t most; } count_arguments;
 *   static const cli_option options[] = {
 *       CLI_OPTION(count_arguments, file, "FILE", CLI_OPERAND, .required = true, .help = "..."),
 *       CLI_OPTION(count_arguments, most, "most", CLI_COUNT, .letter = 'n', .value = "N",
 *                  .help = "stop there (10)", .least = 1, .most = 1000)};
 *   const cli_command cmd_count = {.name = "count", .operands = "FILE [-n N]", .summary = "...",
 *                                  CLI_TABLE(options),
 *                                  .arguments_bytes = sizeof(count_arguments), .run = run};
 *
 * Of an option that is given twice the last one counts, unless its type is a list. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/str.h"
#include "mpk/mpk.h"

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_MISUSED = 2 };

/* For options where 0 is a valid value: `given` distinguishes 0 from an option that was left
 * out. */
typedef struct cli_whole {
    bool given;
    uint64_t value;
} cli_whole;

typedef struct cli_number {
    bool given;
    float value;
} cli_number;

enum { CLI_MAX_LIST = 64 };
/* The values of a CLI_LIST option in the order of the command line; borrowed from argv. */
typedef struct cli_list {
    const char *at[CLI_MAX_LIST];
    uint32_t n;
} cli_list;

/* The adapters of --lora.  A word is PATH or PATH:SCALE, unless a file has this whole name. */
typedef struct cli_adapters {
    mpk_adapter at[CLI_MAX_LIST];
    uint32_t n;
} cli_adapters;

typedef enum cli_type {
    CLI_OPERAND, /* const char *, by position */
    CLI_FLAG,    /* bool */
    CLI_TEXT,    /* const char * */
    CLI_COUNT,   /* uint32_t between least and most */
    CLI_NUMBER,  /* cli_number between least and most */
    CLI_WHOLE,   /* cli_whole, between least and most unless both are 0 */
    CLI_CHOICE,  /* int: index into the words of value, "a|b|c" */
    CLI_LIST,    /* cli_list: may be given several times */
    CLI_ADAPTER, /* cli_adapters: may be given several times */
} cli_type;

/* One row of a verb's table.  The parsed value is stored at `offset` of the verb's struct of
 * arguments. */
typedef struct cli_option {
    const char *name; /* without the dashes; of an operand its name in capitals */
    char letter;      /* 0: none; an option whose name is NULL has only its letter */
    cli_type type;
    bool required;     /* of an operand */
    const char *value; /* what stands for the value in --help; of a choice its words */
    const char *help;
    size_t offset;
    double least, most;
    /* Names separated by |: at least one of these options must be given too, because this option
     * has no effect without it.  NULL: no such condition. */
    const char *needs;
} cli_option;

typedef struct cli_command {
    const char *name, *operands, *summary;
    const char *notes; /* Printed below the options in --help; NULL: nothing. */
    const cli_option *options;
    size_t n_options, arguments_bytes;
    int (*run)(const struct cli_command *command, void *arguments);
} cli_command;

extern const cli_command cmd_run, cmd_chat, cmd_batch, cmd_serve, cmd_embed, cmd_score,
    cmd_tokenize, cmd_rank, cmd_compile, cmd_inspect, cmd_quantize, cmd_perplexity, cmd_opt,
    cmd_bench, cmd_doctor;

/* One row: the value is stored in member `member` of struct type `t`; the remaining arguments
 * are designated initialisers (.field = value) for the fields that are not zero. */
#define CLI_OPTION(t, member, option_name, kind, ...)                                 \
    {                                                                                 \
        .name = option_name, .type = kind, .offset = offsetof(t, member), __VA_ARGS__ \
    }
enum { CLI_MAX_OPTIONS = 64 };
/* CLI_ROWS: the number of rows.  CLI_TABLE of more than CLI_MAX_OPTIONS rows divides by zero and
 * so does not compile. */
#define CLI_ROWS(table) (sizeof(table) / sizeof *(table))
#define CLI_TABLE(table) \
    .options = (table), .n_options = CLI_ROWS(table) / (CLI_ROWS(table) <= CLI_MAX_OPTIONS)

/* The options of every verb that opens a model. */
typedef struct cli_engine {
    uint32_t threads, gpus, max_batch, step_tokens, context, kv_tokens;
    cli_whole random;
    int kv, activations, ops, launch, routing;
    bool coarse_events, verify, batch_invariant, quiet, no_preload, no_descriptor_prefetch,
        no_carriers, profile, no_prefix_cache, embeddings, experts, own_experts, keep_blocks,
        unpack_blocks;
    const char *device, *target, *keep, *speculate, *draft_model, *meet, *mix;
    uint32_t drafts, rank, meet_seconds;
    int mode;
    cli_list degrees;
    cli_adapters adapters;
} cli_engine;

/* A row for cli_adapters that are member `m` of struct type `t`. */
#define CLI_ADAPTER_ROW(t, m)                                      \
    CLI_OPTION(t, m, "lora", CLI_ADAPTER, .value = "PATH[:SCALE]", \
               .help = "merge this adapter, SCALE (1) times; may be given several times")

/* Rows for a cli_engine that is member `m` of struct type `t`: what it is compiled for, and how. */
#define CLI_MODEL_ROWS(t, m)                                                                      \
    CLI_OPTION(t, m.context, "context", CLI_COUNT, .value = "N",                                  \
               .help = "tokens of prompt and answer (the model's own, at most 4096)", .least = 1, \
               .most = 1 << 24),                                                                  \
        CLI_OPTION(t, m.step_tokens, "step-tokens", CLI_COUNT, .value = "N",                      \
                   .help = "tokens of a step at most, a power of two (512; on a GPU 2048)",       \
                   .least = 1, .most = 8192),                                                     \
        CLI_OPTION(t, m.kv, "kv", CLI_CHOICE, .value = "f32|f16|bf16|q8_0",                       \
                   .help = "dtype of the KV cache (f32; on a GPU that of the activations)"),      \
        CLI_OPTION(t, m.activations, "activations", CLI_CHOICE, .value = "auto|f32|i8",           \
                   .help =                                                                        \
                       "what a CPU multiplies weights in GGUF blocks by (i8: in 8-bit blocks)"),  \
        CLI_OPTION(t, m.kv_tokens, "kv-tokens", CLI_COUNT, .value = "N",                          \
                   .help = "tokens that all requests together may hold (as memory allows)",       \
                   .least = 1, .most = 4294967295.0),                                             \
        CLI_OPTION(t, m.no_prefix_cache, "no-prefix-cache", CLI_FLAG,                             \
                   .help = "every request computes its whole prompt"),                            \
        CLI_OPTION(t, m.speculate, "speculate", CLI_TEXT, .value = "ngram[:DRAFTS[:N]]",          \
                   .help =                                                                        \
                       "try up to DRAFTS (8) tokens a step that followed the last N (3) before"), \
        CLI_OPTION(t, m.draft_model, "draft-model", CLI_TEXT, .value = "PATH",                    \
                   .help = "a small model of the same vocabulary that guesses tokens to try"),    \
        CLI_OPTION(t, m.drafts, "draft", CLI_COUNT, .value = "N",                                 \
                   .help = "with --draft-model or --speculate: tokens to try in a step at most "  \
                           "(8)",                                                                 \
                   .least = 1, .most = 64),                                                       \
        CLI_ADAPTER_ROW(t, m.adapters),                                                           \
        CLI_OPTION(t, m.random, "random-weights", CLI_WHOLE, .value = "SEED",                     \
                   .help = "make the weights up; a config.json alone is then a model"),           \
        CLI_OPTION(t, m.mix, "random-mix", CLI_TEXT, .value = "TYPE",                             \
                   .help = "the formats of made-up weights, as mpk quantize names them: q4_k_m",  \
                   .needs = "random-weights"),                                                    \
        CLI_OPTION(t, m.keep_blocks, "keep-blocks", CLI_FLAG,                                     \
                   .help = "on a GPU: weights in GGUF blocks stay in blocks"),                    \
        CLI_OPTION(t, m.unpack_blocks, "unpack-blocks", CLI_FLAG,                                 \
                   .help = "on a GPU: weights in GGUF blocks become bf16"),                       \
        CLI_OPTION(t, m.routing, "routing", CLI_CHOICE, .value = "random|even|zipf|same",         \
                   .help = "which experts made-up weights prefer (random: as they fall)"),        \
        CLI_OPTION(t, m.ops, "ops", CLI_CHOICE, .value = "full|paper|none",                       \
                   .help = "which operators are fused (full)"),                                   \
        CLI_OPTION(t, m.launch, "launch", CLI_CHOICE, .value = "auto|paper|aot|jit",              \
                   .help = "how tasks reach workers (auto)"),                                     \
        CLI_OPTION(t, m.degrees, "degree", CLI_LIST, .value = "OP:AXIS=N",                        \
                   .help = "cut this axis of an operator, or of a kind of them, in N parts"),     \
        CLI_OPTION(t, m.batch_invariant, "batch-invariant", CLI_FLAG,                             \
                   .help = "on a GPU: the same bits alone and in any company"),                   \
        CLI_OPTION(t, m.own_experts, "own-experts", CLI_FLAG,                                     \
                   .help = "with --gpus: each has some experts whole, not a share of all"),       \
        CLI_OPTION(t, m.coarse_events, "coarse-events", CLI_FLAG,                                 \
                   .help = "one event between operators instead of one between tiles"),           \
        CLI_OPTION(t, m.verify, "verify", CLI_FLAG, .help = "prove the task graph before it runs")
#define CLI_DEVICE_ROW(t, m)                                                                      \
    CLI_OPTION(t, m.device, "device", CLI_TEXT, .value = "auto|cpu|cuda|cuda:1",                  \
               .help = "where it runs (auto: a GPU if there is one)"),                            \
        CLI_OPTION(                                                                               \
            t, m.gpus, "gpus", CLI_COUNT, .value = "N",                                           \
            .help =                                                                               \
                "share the model among N GPUs of this host, or on the CPU groups of threads (1)", \
            .least = 1, .most = 16)
#define CLI_MEET_ROWS(t, m)                                                                        \
    CLI_OPTION(t, m.meet, "meet", CLI_TEXT, .value = "PATH",                                       \
               .help =                                                                             \
                   "with --gpus: one process for each, the others are mpk rank with this path",    \
               .needs = "gpus"),                                                                   \
        CLI_OPTION(t, m.meet_seconds, "meet-seconds", CLI_COUNT, .value = "N",                     \
                   .help = "that processes wait for each other (60)", .least = 1, .most = 1 << 20, \
                   .needs = "meet")
#define CLI_TARGET_ROW(t, m)                                                           \
    CLI_OPTION(t, m.target, "target", CLI_TEXT, .value = "sm_80|sm_86|sm_90a|sm_100a", \
               .help = "for a GPU of this architecture, which need not be here")
#define CLI_KEEP_ROW(t, m)                                     \
    CLI_OPTION(t, m.keep, "keep", CLI_TEXT, .value = "FOLDER", \
               .help = "leave the source of the GPU's kernel there")
#define CLI_EXPERTS_ROW(t, m)                     \
    CLI_OPTION(t, m.experts, "experts", CLI_FLAG, \
               .help =                            \
                   "count the experts that a step hits, for bench; it costs a GPU's step time")
#define CLI_THREADS_ROW(t, m)                                                   \
    CLI_OPTION(t, m.threads, "threads", CLI_COUNT, .letter = 't', .value = "N", \
               .help = "workers (one for each core, or SM of a GPU)", .least = 1, .most = 4096)
#define CLI_BATCH_ROW(t, m)                                          \
    CLI_OPTION(t, m.max_batch, "max-batch", CLI_COUNT, .value = "N", \
               .help = "requests that run at the same time", .least = 1, .most = 1024)
#define CLI_QUIET_ROW(t, m)                                  \
    CLI_OPTION(t, m.quiet, "quiet", CLI_FLAG, .letter = 'q', \
               .help = "no progress and no closing line")

/* The sampling options that were given; what was not given keeps the library's default. */
typedef struct cli_sampling {
    cli_number temperature, top_p, min_p, typical_p, top_n_sigma;
    cli_number repetition_penalty, presence_penalty, frequency_penalty;
    cli_whole top_k, seed;
    cli_list bad_words;
    uint32_t min_tokens;
    /* The form of the answer (grammar): `regex` is the expression itself, the other options name
     * files. */
    const char *json_schema, *regex, *grammar, *structural_tag;
    cli_list choices;
} cli_sampling;

/* Those of how a token is drawn. */
#define CLI_DRAW_ROWS(t, m)                                                                   \
    CLI_OPTION(t, m.temperature, "temp", CLI_NUMBER, .value = "X",                            \
               .help = "temperature; 0: always the most probable token (0)", .most = 100),    \
        CLI_OPTION(t, m.top_k, "top-k", CLI_WHOLE, .value = "N",                              \
                   .help = "only the N most probable tokens; 0: off (0)", .most = 1 << 30),   \
        CLI_OPTION(t, m.top_p, "top-p", CLI_NUMBER, .value = "X",                             \
                   .help = "only the fewest tokens that add up to X; 1: off (1)", .most = 1), \
        CLI_OPTION(t, m.min_p, "min-p", CLI_NUMBER, .value = "X",                             \
                   .help = "only tokens with X times the best one's probability; 0: off (0)", \
                   .most = 1)
/* All of them. */
#define CLI_SAMPLING_ROWS(t, m)                                                                    \
    CLI_DRAW_ROWS(t, m),                                                                           \
        CLI_OPTION(t, m.typical_p, "typical-p", CLI_NUMBER, .value = "X",                          \
                   .help = "only tokens of typical surprise that add up to X; 1: off (1)",         \
                   .most = 1),                                                                     \
        CLI_OPTION(t, m.top_n_sigma, "top-n-sigma", CLI_NUMBER, .value = "X",                      \
                   .help = "only logits within X standard deviations of the best; 0: off (0)",     \
                   .most = 1000),                                                                  \
        CLI_OPTION(t, m.repetition_penalty, "repetition-penalty", CLI_NUMBER, .value = "X",        \
                   .help = "divide logits of tokens that were there by X; 1: off (1)",             \
                   .most = 1000),                                                                  \
        CLI_OPTION(t, m.presence_penalty, "presence-penalty", CLI_NUMBER, .value = "X",            \
                   .help = "less X for tokens of the answer (0)", .least = -1000, .most = 1000),   \
        CLI_OPTION(t, m.frequency_penalty, "frequency-penalty", CLI_NUMBER, .value = "X",          \
                   .help = "less X for each time that they came (0)", .least = -1000,              \
                   .most = 1000),                                                                  \
        CLI_OPTION(t, m.min_tokens, "min-tokens", CLI_COUNT, .value = "N",                         \
                   .help = "the model may not end the text before (0)", .most = 1 << 24),          \
        CLI_OPTION(t, m.bad_words, "bad-word", CLI_LIST, .value = "TEXT",                          \
                   .help = "a text that does not come; may be given several times"),               \
        CLI_OPTION(t, m.json_schema, "json-schema", CLI_TEXT, .value = "FILE",                     \
                   .help = "answer in JSON that is valid by this schema"),                         \
        CLI_OPTION(t, m.regex, "regex", CLI_TEXT, .value = "TEXT",                                 \
                   .help = "answer with a text that this regular expression matches"),             \
        CLI_OPTION(t, m.grammar, "grammar", CLI_TEXT, .value = "FILE",                             \
                   .help = "answer with a text of this grammar (GBNF)"),                           \
        CLI_OPTION(                                                                                \
            t, m.structural_tag, "structural-tag", CLI_TEXT, .value = "FILE",                      \
            .help =                                                                                \
                "answer with texts, forms and free text as this structural tag (JSON) puts them"), \
        CLI_OPTION(t, m.choices, "choice", CLI_LIST, .value = "TEXT",                              \
                   .help = "answer with one of these; may be given several times"),                \
        CLI_OPTION(t, m.seed, "seed", CLI_WHOLE, .value = "N", .help = "of the random draws (0)")

/* ---- options.c ---- */

/* Fill the zeroed struct of arguments from argv.  Returns CLI_DONE, or CLI_MISUSED after one
 * line on standard error.  *help: --help was given. */
int cli_parse(const cli_command *command, int argc, char **argv, void *arguments, bool *help);
/* Print the --help of a verb to standard output. */
void cli_help(const cli_command *command);

/* ---- console.c ---- */

/* "mpk: VERB: ..." on standard error; returns CLI_FAILED. */
int cli_fail(const cli_command *command, const char *format, ...) BASE_PRINTF(2, 3);
/* The same, with a hint to --help; returns CLI_MISUSED. */
int cli_misuse(const cli_command *command, const char *format, ...) BASE_PRINTF(2, 3);
/* The context's message on one line; returns CLI_FAILED. */
int cli_report(const cli_command *command, const mpk_context *cx);
/* What a command does, with a context and an arena that end with it; arguments: those of
 * cli_command.run. */
typedef int cli_body(const cli_command *command, mpk_context *cx, arena *a, void *arguments);
int cli_run_body(const cli_command *command, void *arguments, cli_body *body);
/* Write bytes to standard output and flush them.  Returns false if writing failed. */
bool cli_write(const void *bytes, size_t n);
/* Call at the end of a verb.  Returns `code`, or CLI_FAILED after a line on standard error if
 * writing to standard output failed at any time. */
int cli_finish(const cli_command *command, int code);
/* The engine's options.  degrees[CLI_MAX_LIST] and the names in it are borrowed from `from`'s
 * words, which are cut up.  CLI_MISUSED after a line on standard error. */
int cli_engine_options(const cli_command *command, cli_engine *from, mpk_degree *degrees,
                       mpk_engine_options *to);
/* Sampling options given on the command line replace those of *to.  The bad words stay borrowed
 * from argv. */
void cli_request_options(const cli_sampling *from, mpk_request_options *to);
/* Set the form of the answer; its source text is allocated in the arena.  Returns CLI_DONE, or
 * another exit code after a line on standard error. */
int cli_request_form(const cli_command *command, mpk_context *cx, arena *a,
                     const cli_sampling *from, mpk_request_options *to);
/* Submit a text as a request.  max_tokens is an upper limit: if the context has less room, the
 * answer is cut to it without an error. */
mpk_status cli_submit(mpk_context *cx, mpk_engine *engine, str prompt, mpk_request_options *wanted,
                      mpk_request **request);
/* Print the pieces of an answer until it ends.  Ctrl-C cancels the request; what was printed
 * until then stays. */
int cli_stream(const cli_command *command, mpk_context *cx, mpk_request *request);
/* The text of -p, of the file of -f, or of standard input if it is "-"; exactly one must be given.
 * *text is in `a`. */
int cli_read_text(const cli_command *command, mpk_context *cx, arena *a, const char *inline_text,
                  const char *file, const char *dash, str *text);
/* Refuse an output file that is the same file as `input` ("-": standard input), also under
 * another name (link, other path).  NULL on either side: no file, nothing to refuse.  Called
 * before anything is read or written. */
int cli_check_output(const cli_command *command, const char *output, const char *input);
/* Empty the file at path, which was opened to append; refused if it is a file of the engine's
 * models. */
int cli_empty_output(const cli_command *command, const mpk_engine *engine, FILE *output,
                     const char *path);
/* What mpk perplexity measures. */
typedef struct cli_perplexity {
    const char *model, *file, *base;           /* base NULL: no KL divergence */
    uint32_t window, stride, windows, threads; /* 0: as without the option */
    int activations;
    bool json, quiet;
    cli_adapters adapters, base_adapters; /* merged into the model and into the base */
    /* Borrowed.  With a NULL `at` the text is read from `file`; the name `file` is used in
     * messages in either case. */
    str text;
    /* Only check that this text can be measured: nothing is measured or printed. */
    bool only_ask;
} cli_perplexity;
/* Measure the perplexity and print the report.  Returns the exit code.  Defined in
 * cmd_perplexity.c. */
int cli_measure_perplexity(const cli_command *command, const cli_perplexity *args);
/* The chat template in a file; NULL without one.  *source is in `a` and NUL-terminated. */
int cli_read_template(const cli_command *command, mpk_context *cx, arena *a, const char *file,
                      const char **source);
/* Token ids from text: whitespace or commas between.  *ids is in `a`. */
int cli_read_ids(const cli_command *command, arena *a, str source, int32_t **ids, size_t *n);
/* From now on Ctrl-C and SIGTERM set a flag instead of ending the process; the second signal
 * ends it. */
void cli_catch_interrupt(void);
/* Has such a signal arrived since the last cli_catch_interrupt? */
bool cli_interrupted(void);
/* From now on SIGHUP also only sets a flag. */
void cli_catch_hangup(void);
/* Has a SIGHUP arrived since the last call? */
bool cli_take_hangup(void);
/* If standard error is a terminal, show a line that the next call overwrites; an empty text
 * erases it. */
void cli_progress(const char *format, ...) BASE_PRINTF(1, 2);
/* For mpk_engine_options.progress: shows it, and stops at Ctrl-C. */
bool cli_show_progress(void *user, const char *stage, double done);
/* The path of the demo model, whether or not it exists; allocated in `a`.  NULL if there is no
 * home folder. */
const char *cli_demo_model(arena *a);

#endif
