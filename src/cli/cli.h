/* cli.h - what the verbs of the command share: tables of options, words for errors, input and output.
 *
 * A verb is a file cmd_VERB.c with a table of its options; parsing and --help read the same table, so that they cannot
 * disagree.  Exit codes: 0 done, 1 failed, 2 wrong usage; an error is one line on standard error.
 */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/str.h"
#include "mpk/mpk.h"

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_MISUSED = 2 };

typedef struct cli_whole {
    bool given;
    uint64_t value;
} cli_whole;

typedef struct cli_number {
    bool given;
    float value;
} cli_number;

enum { CLI_MAX_LIST = 64 };
typedef struct cli_list {
    const char *at[CLI_MAX_LIST];
    uint32_t n;
} cli_list;

typedef enum cli_type {
    CLI_OPERAND, /* const char *, by position */
    CLI_FLAG,    /* bool */
    CLI_TEXT,    /* const char * */
    CLI_COUNT,   /* uint32_t between least and most */
    CLI_NUMBER,  /* cli_number between least and most */
    CLI_WHOLE,   /* cli_whole, between least and most unless both are 0 */
    CLI_CHOICE,  /* int: index into the words of value, "a|b|c" */
    CLI_LIST,    /* cli_list: may be given several times */
} cli_type;

/* One row of a verb's table; the value goes to `offset` of the verb's struct of arguments. */
typedef struct cli_option {
    const char *name; /* without the dashes; of an operand its name in capitals */
    char letter;      /* 0: none; an option whose name is NULL has only its letter */
    cli_type type;
    bool required;     /* of an operand */
    const char *value; /* what stands for the value in --help; of a choice its words */
    const char *help;
    size_t offset;
    double least, most;
} cli_option;

typedef struct cli_command {
    const char *name, *operands, *summary;
    const char *notes; /* below the options in --help; NULL: none */
    const cli_option *options;
    size_t n_options, arguments_bytes;
    int (*run)(const struct cli_command *command, void *arguments);
} cli_command;

extern const cli_command cmd_run, cmd_chat, cmd_batch, cmd_serve, cmd_score, cmd_tokenize, cmd_compile, cmd_inspect,
    cmd_opt, cmd_bench, cmd_doctor;

#define CLI_TABLE(table) .options = (table), .n_options = sizeof(table) / sizeof *(table)

/* The options of every verb that opens a model. */
typedef struct cli_engine {
    uint32_t threads, max_batch, step_tokens, context, kv_tokens;
    cli_whole random;
    int kv, ops, launch;
    bool coarse_events, verify, batch_invariant, quiet, no_preload, no_descriptor_prefetch, profile;
    const char *device, *target, *keep;
    int mode;
    cli_list degrees;
} cli_engine;

/* Rows for a cli_engine that is member `m` of struct type `t`: what it is compiled for, and how. */
#define CLI_MODEL_ROWS(t, m)                                                                                             \
    {"context",                                                                                                          \
     0,                                                                                                                  \
     CLI_COUNT,                                                                                                          \
     false,                                                                                                              \
     "N",                                                                                                                \
     "tokens of prompt and answer (the model's own, at most 4096)",                                                      \
     offsetof(t, m.context),                                                                                             \
     1,                                                                                                                  \
     1 << 24},                                                                                                           \
        {"step-tokens",                                                                                                  \
         0,                                                                                                              \
         CLI_COUNT,                                                                                                      \
         false,                                                                                                          \
         "N",                                                                                                            \
         "tokens of a step at most, a power of two (512)",                                                               \
         offsetof(t, m.step_tokens),                                                                                     \
         1,                                                                                                              \
         8192},                                                                                                          \
        {"kv",                                                                                                           \
         0,                                                                                                              \
         CLI_CHOICE,                                                                                                     \
         false,                                                                                                          \
         "f32|f16|bf16",                                                                                                 \
         "dtype of the KV cache (f32; on a GPU that of the activations)",                                                \
         offsetof(t, m.kv),                                                                                              \
         0,                                                                                                              \
         0},                                                                                                             \
        {"kv-tokens",                                                                                                    \
         0,                                                                                                              \
         CLI_COUNT,                                                                                                      \
         false,                                                                                                          \
         "N",                                                                                                            \
         "tokens that all requests together may hold (as memory allows)",                                                \
         offsetof(t, m.kv_tokens),                                                                                       \
         1,                                                                                                              \
         4294967295.0},                                                                                                  \
        {"random-weights",      0, CLI_WHOLE, false, "SEED", "make the weights up; a config.json alone is then a model", \
         offsetof(t, m.random), 0, 0},                                                                                   \
        {"ops", 0, CLI_CHOICE, false, "full|paper|none", "which operators are fused (full)", offsetof(t, m.ops), 0, 0},  \
        {"launch", 0, CLI_CHOICE, false, "auto|paper|aot|jit", "how tasks reach workers (auto)", offsetof(t, m.launch),  \
         0,        0},                                                                                                   \
        {"degree",                                                                                                       \
         0,                                                                                                              \
         CLI_LIST,                                                                                                       \
         false,                                                                                                          \
         "OP:AXIS=N",                                                                                                    \
         "cut this axis of an operator, or of a kind of them, in N parts",                                               \
         offsetof(t, m.degrees),                                                                                         \
         0,                                                                                                              \
         0},                                                                                                             \
        {"batch-invariant",                                                                                              \
         0,                                                                                                              \
         CLI_FLAG,                                                                                                       \
         false,                                                                                                          \
         NULL,                                                                                                           \
         "on a GPU: the same bits alone and in any company",                                                             \
         offsetof(t, m.batch_invariant),                                                                                 \
         0,                                                                                                              \
         0},                                                                                                             \
        {"coarse-events",                                                                                                \
         0,                                                                                                              \
         CLI_FLAG,                                                                                                       \
         false,                                                                                                          \
         NULL,                                                                                                           \
         "one event between operators instead of one between tiles",                                                     \
         offsetof(t, m.coarse_events),                                                                                   \
         0,                                                                                                              \
         0},                                                                                                             \
    {                                                                                                                    \
        "verify", 0, CLI_FLAG, false, NULL, "prove the task graph before it runs", offsetof(t, m.verify), 0, 0           \
    }
#define CLI_DEVICE_ROW(t, m)                                                                                 \
    {                                                                                                        \
        "device", 0, CLI_TEXT, false, "auto|cpu|cuda|cuda:1", "where it runs (auto: a GPU if there is one)", \
            offsetof(t, m.device), 0, 0                                                                      \
    }
#define CLI_TARGET_ROW(t, m)                                                                      \
    {                                                                                             \
        "target", 0, CLI_TEXT, false, "sm_80|sm_90a|sm_100a",                                     \
            "for a GPU of this architecture, which need not be here", offsetof(t, m.target), 0, 0 \
    }
#define CLI_KEEP_ROW(t, m)                                                                                            \
    {                                                                                                                 \
        "keep", 0, CLI_TEXT, false, "FOLDER", "leave the source of the GPU's kernel there", offsetof(t, m.keep), 0, 0 \
    }
#define CLI_THREADS_ROW(t, m)                                                                      \
    {                                                                                              \
        "threads", 't', CLI_COUNT, false, "N", "workers (one for each processor, or SM of a GPU)", \
            offsetof(t, m.threads), 1, 4096                                                        \
    }
#define CLI_BATCH_ROW(t, m)                                                                                            \
    {                                                                                                                  \
        "max-batch", 0, CLI_COUNT, false, "N", "requests that run at the same time", offsetof(t, m.max_batch), 1, 1024 \
    }
#define CLI_QUIET_ROW(t, m)                                                                                \
    {                                                                                                      \
        "quiet", 'q', CLI_FLAG, false, NULL, "no progress and no closing line", offsetof(t, m.quiet), 0, 0 \
    }

/* How tokens are drawn, as far as it was said. */
typedef struct cli_sampling {
    cli_number temperature, top_p, min_p;
    cli_whole top_k, seed;
} cli_sampling;

#define CLI_SAMPLING_ROWS(t, m)                                                                                       \
    {"temp",                                                                                                          \
     0,                                                                                                               \
     CLI_NUMBER,                                                                                                      \
     false,                                                                                                           \
     "X",                                                                                                             \
     "temperature; 0: always the most probable token (0)",                                                            \
     offsetof(t, m.temperature),                                                                                      \
     0,                                                                                                               \
     100},                                                                                                            \
        {"top-k", 0,      CLI_WHOLE, false, "N", "only the N most probable tokens; 0: off (0)", offsetof(t, m.top_k), \
         0,       1 << 30},                                                                                           \
        {"top-p",                                                                                                     \
         0,                                                                                                           \
         CLI_NUMBER,                                                                                                  \
         false,                                                                                                       \
         "X",                                                                                                         \
         "only the fewest tokens that add up to X; 1: off (1)",                                                       \
         offsetof(t, m.top_p),                                                                                        \
         0,                                                                                                           \
         1},                                                                                                          \
        {"min-p",                                                                                                     \
         0,                                                                                                           \
         CLI_NUMBER,                                                                                                  \
         false,                                                                                                       \
         "X",                                                                                                         \
         "only tokens with X times the best one's probability; 0: off (0)",                                           \
         offsetof(t, m.min_p),                                                                                        \
         0,                                                                                                           \
         1},                                                                                                          \
    {                                                                                                                 \
        "seed", 0, CLI_WHOLE, false, "N", "of the random draws (0)", offsetof(t, m.seed), 0, 0                        \
    }

/* ---- options.c ---- */

/* Fill the zeroed struct of arguments from argv.  CLI_DONE, or CLI_MISUSED after a line on standard error; *help:
 * --help was asked for. */
int cli_parse(const cli_command *command, int argc, char **argv, void *arguments, bool *help);
/* --help of a verb, to standard output. */
void cli_help(const cli_command *command);

/* ---- console.c ---- */

/* "mpk: VERB: ..." on standard error; returns CLI_FAILED. */
int cli_fail(const cli_command *command, const char *format, ...) BASE_PRINTF(2, 3);
/* The same, with a hint to --help; returns CLI_MISUSED. */
int cli_misuse(const cli_command *command, const char *format, ...) BASE_PRINTF(2, 3);
/* The context's message on one line; returns CLI_FAILED. */
int cli_report(const cli_command *command, const mpk_context *cx);
/* What a command does, with a context and an arena that end with it; arguments: those of cli_command.run. */
typedef int cli_body(const cli_command *command, mpk_context *cx, arena *a, void *arguments);
int cli_run_body(const cli_command *command, void *arguments, cli_body *body);
/* Bytes to standard output and on their way: false if that failed. */
bool cli_write(const void *bytes, size_t n);
/* At the end of a verb: `code`, or CLI_FAILED with a line on standard error if standard output could not be written. */
int cli_finish(const cli_command *command, int code);
/* The engine's options.  degrees[CLI_MAX_LIST] and the names in it are borrowed from `from`'s words, which are cut up.
 * CLI_MISUSED after a line on standard error. */
int cli_engine_options(const cli_command *command, cli_engine *from, mpk_degree *degrees, mpk_engine_options *to);
/* What was said of sampling takes the place of what *to holds. */
void cli_request_options(const cli_sampling *from, mpk_request_options *to);
/* Submit a text; max_tokens asks for so many at most: what the context cannot hold is not an error here. */
mpk_status cli_submit(mpk_context *cx, mpk_engine *engine, str prompt, mpk_request_options *wanted,
                      mpk_request **request);
/* Print pieces until the end; Ctrl-C cancels, and what has come is kept. */
int cli_stream(const cli_command *command, mpk_context *cx, mpk_request *request);
/* The text of -p, of the file of -f, or of standard input if it is "-"; exactly one must be given.  *text is in `a`. */
int cli_read_text(const cli_command *command, mpk_context *cx, arena *a, const char *inline_text, const char *file,
                  const char *dash, str *text);
/* The chat template in a file; NULL without one.  *source is in `a` and NUL-terminated. */
int cli_read_template(const cli_command *command, mpk_context *cx, arena *a, const char *file, const char **source);
/* Token ids from text: whitespace or commas between.  *ids is in `a`. */
int cli_read_ids(const cli_command *command, arena *a, str source, int32_t **ids, size_t *n);
/* From now on Ctrl-C (and a request to end) is noted instead of ending the process; a second one ends it. */
void cli_catch_interrupt(void);
/* Has one been noted since the last cli_catch_interrupt? */
bool cli_interrupted(void);
/* A line that the next one replaces, if standard error is a terminal; an empty one wipes it. */
void cli_progress(const char *format, ...) BASE_PRINTF(1, 2);
/* For mpk_engine_options.progress: shows it, and stops at Ctrl-C. */
bool cli_show_progress(void *user, const char *stage, double done);
/* Where the demo model lies, or would: in `a`; NULL without a home folder. */
const char *cli_demo_model(arena *a);

#endif
