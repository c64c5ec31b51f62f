/* engine.h - what the files that implement mpk.h share: a model, its compiled program, the machine
 * that runs it, its requests.
 *
 *   engine_options.c   options of the caller -> complete ones
 *   engine_model.c     MODEL -> loaded model and shapes
 *   engine_draft.c     the draft model beside it
 *   engine_adapters.c  the adapters merged into it
 *   engine_device.c    where it runs: a device of some target
 *   engine_compile.c   shapes -> compiled program, weights bound
 *   engine_image.c     the file of mpk_compile_to_file
 *   engine_ranks.c     one process for each peer
 *   engine_cache.c     programs that have been compiled before
 *   engine.c           open, close, describe
 *   engine_request.c   requests and the collector's thread
 *   engine_stop.c      stop texts in a stream of text
 *   engine_form.c      answers of a given form: masks of tokens, and the thread that makes them
 *   engine_sequence.c  timelines that the caller drives
 *   engine_tokens.c    tokenizers; engine_letters.c: a stand-in for one
 *   engine_chat.c      conversations -> prompts, by chat templates
 *   engine_inspect.c   inspect, draw, print, opt, machine
 *   engine_profile.c   where a step's time went
 *   engine_routing.c   which experts it hit; random routers
 *   engine_graph.c     graph.h
 *   engine_quantize.c  models written as GGUF files
 *   engine_calibrate.c importances of their weights, from a text
 *   engine_blocks.c    the dtypes of weights, and which stay in blocks
 *   engine_embed.c     texts -> vectors
 *   engine_rules.c     penalties, biases, ends and log probabilities of a request
 *   engine_context.c   contexts, memory of the caller
 *   watch.c            are another library's tensors as they were?
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <pthread.h>

#include "base/map.h"
#include "host/target.h"
#include "load/load.h"
#include "mpk/graph.h"
#include "mpk/mpk.h"
#include "pass/pass.h"

enum {
    ENGINE_DEFAULT_BATCH = 16,
    ENGINE_DEFAULT_STEP = 512,
    /* of a target with memory of its own, where long steps pay */
    ENGINE_LONG_STEP = 2048,
    ENGINE_DEFAULT_CONTEXT = 4096,
    ENGINE_MAX_BATCH = 1024,
    ENGINE_MAX_STEP = 8192,
    /* half of RT_MAX_GRAPHS, for a draft model may have as many: powers of two up to
     * ENGINE_MAX_STEP, two of them twice, or up to half of it, three twice */
    ENGINE_MAX_GRAPHS = 16,
    ENGINE_TWICE = 128, /* the larger of those two */
    /* P: whole cache lines of every head, and at most 63 positions of a request wasted */
    ENGINE_PAGE_TOKENS = 64,
    ENGINE_DRAWN_OPS = 12, /* of a drawing that names no part: about one layer */
    /* rows of logits that a step makes at most, unless the batch is larger */
    ENGINE_ROWS = 64,
    ENGINE_DRAFTS = 8, /* of a request in one step, unless the options say otherwise */
    ENGINE_MAX_DRAFTS = 64,
    ENGINE_NGRAM = 3,
    ENGINE_MAX_NGRAM = 16,
    ENGINE_GUESSES = 4,         /* of them in one step of a request with a form */
    ENGINE_GUESSING_BATCH = 64, /* where it has any */
    ENGINE_CHOICES = 16,        /* rows of a step with drafts that can have rules at least */
    ENGINE_MAX_ADAPTERS = 64,
};

struct mpk_tokenizer {
    const tokenizer *tokenizer; /* of `model`, or borrowed from an engine's */
    const load_model *chats;    /* whose chat template it is: `model`, or an engine's */
    load_model model;           /* of mpk_tokenizer_open; otherwise empty */
};

/* What a model is compiled for.  Counts are final: no zero stands for a default. */
typedef struct engine_plan {
    /* threads: workers of all peers together; n_peers: GPUs that share the program, 1 if there is
     * no other; max_batch: requests that run at a time, the machine's slots; context_tokens: of a
     * request, its prompt included; max_rows: of logits in a step */
    uint32_t threads, n_peers, max_batch, context_tokens, max_rows;
    uint32_t n_choices; /* rows of a step that can have rules */
    /* rising powers of two; the last is the step's maximum */
    uint32_t n_graphs, n_tokens[ENGINE_MAX_GRAPHS];
    /* KV pages of ENGINE_PAGE_TOKENS positions: of all requests, and of one whole context */
    uint32_t n_pages, pages_per_slot;
    ir_dtype kv_dtype, activation_dtype;
    bool no_head;                      /* of embeddings */
    bool counts_experts;               /* see model_shape */
    uint64_t kv_bytes, kv_token_bytes; /* of all pages; of one position */
    char arch[16];                     /* target_device.arch */
} engine_plan;

/* A compiled model and everything that it was made from. */
typedef struct engine_build {
    arena arena;                /* options, graphs, program, image */
    load_model model, draft;    /* draft: of options.draft_model, if has_draft */
    const char *source;         /* MODEL as the caller gave it, in the arena */
    bool is_loaded, has_draft;  /* model and draft are open, for engine_build_free to close */
    mpk_engine_options options; /* complete; of an image: those it was made with */
    target_device device;
    engine_plan plan;
    tg_program program; /* n_graphs 0: the image was read from a file */
    program_image image;
    /* of a target that compiles: its code, if it came with the image or goes into one */
    text code;
    str key;           /* of the cache of programs; at NULL: this one is not kept */
    bool is_cached;    /* image and code came from there */
    host_ranks *ranks; /* the other processes, with options.meet; NULL: there are none */
    /* how long the parts of opening took, none counted twice; for mpk_engine_facts */
    uint64_t load_ns, compile_ns, device_ns;
} engine_build;

enum { ENGINE_BUCKETS = 1024 }; /* of the table of requests, by id modulo this */

struct mpk_engine {
    engine_build build;
    /* heap, [image.n_weights]: where the files have them; empty: made up */
    machine_weight *weights;
    machine *machine;
    mpk_tokenizer tokens; /* tokenizer NULL: the model brings none */

    struct engine_forms *forms; /* see engine_form.h */

    /* guards everything below, and every request's fields that say so */
    pthread_mutex_t mutex;
    struct mpk_request *requests[ENGINE_BUCKETS]; /* in the machine, by id */
    uint32_t n_sequences;                         /* open ones, at most plan.max_batch */
    bool closing;                                 /* the collector ends after its next drain */
    mpk_status failure;                           /* the machine failed: nothing runs any more */
    char failure_words[512];
    pthread_t collector;
    bool has_mutex, has_collector; /* what there is for mpk_engine_close to end */
};

/* ---- engine_options.c ---- */

/* Complete the caller's options (NULL: defaults) with zeros; degrees are copied into a.  MPK_EARG,
 * MPK_EUNSUPPORTED. */
mpk_status engine_read_options(mpk_context *cx, arena *a, const mpk_engine_options *from,
                               mpk_engine_options *to);
mpk_status engine_read_request_options(mpk_context *cx, const mpk_request_options *from,
                                       mpk_request_options *to);
mpk_status engine_read_chat_options(mpk_context *cx, const mpk_chat_options *from,
                                    mpk_chat_options *to);
mpk_status engine_read_quantize_options(mpk_context *cx, arena *a, const mpk_quantize_options *from,
                                        mpk_quantize_options *to);
mpk_status engine_read_embed_options(mpk_context *cx, const mpk_embed_options *from,
                                     mpk_embed_options *to);
/* Tell the caller's callback, if there is one, how far a stage is: done is 0 to 1.  MPK_ECANCELLED:
 * the callback asks to give up. */
mpk_status engine_progress(mpk_context *cx, const mpk_engine_options *o, const char *stage,
                           double done);

/* ---- engine_adapters.c ---- */

/* Copy the caller's adapters into a.  MPK_EARG. */
mpk_status engine_read_adapters(mpk_context *cx, arena *a, const mpk_adapter **adapters,
                                uint32_t n);
/* load_open_adapted. */
mpk_status engine_load_model(mpk_context *cx, const char *path, const mpk_adapter *adapters,
                             uint32_t n, load_model *out);
/* Adapters as an image holds them: each a scale and a path that ends with NUL.  Paths become
 * absolute.  MPK_EIO, MPK_ELIMIT. */
mpk_status engine_print_adapters(mpk_context *cx, const mpk_adapter *adapters, uint32_t n, text *t);
/* The reverse, of any bytes; the list and its texts lie in a.  MPK_EFORMAT. */
mpk_status engine_parse_adapters(mpk_context *cx, arena *a, str bytes, const mpk_adapter **out,
                                 uint32_t *n);

/* ---- engine_device.c ---- */

/* Find and open the device that the options name.  for_running: a target alone is not enough.  The
 * caller calls engine_leave_device when it is done with *out, whatever the status.  MPK_EARG: there
 * is no such device or target; MPK_EUNSUPPORTED: the device is not here or cannot be used. */
mpk_status engine_choose_device(mpk_context *cx, const mpk_engine_options *o, bool for_running,
                                target_device *out);
/* The value that stands for an absent option `device`, for tensors in the host's memory; launches:
 * in a device's memory, for MPK_MODE_CALLS.  NULL: no target has such runs. */
const char *engine_default_device(bool launches);

void engine_leave_device(target_device *device);

/* Does some target compile for this architecture? */
bool engine_knows_arch(const char *arch);
/* The device of an image that was compiled for this plan. */
mpk_status engine_image_device(mpk_context *cx, const mpk_engine_options *o,
                               const engine_plan *plan, bool for_running, target_device *out);

/* ---- engine_model.c ---- */

/* Decide sizes from b's options, device and models: b->plan.  for_running: refuse what does not fit
 * into memory.  MPK_EARG, MPK_ELIMIT. */
mpk_status engine_make_plan(mpk_context *cx, bool for_running, engine_build *b);
/* In which dtypes a graph has the weights of a model: those of the file; on a target that works in
 * bf16 that, but for f32, except of routers that are as exact in bf16, and for blocks that it keeps
 * (keep_blocks).  Made-up weights have the configuration's, or those of a mix (random_mix). */
typedef struct engine_dtypes {
    const load_model *model;
    const target_def *target;
    bool keeps;
    const struct quantize_mix *mix; /* NULL: none */
    /* with `keeps`, of each layer and number of columns, in the arena: the kind of all of
     * the file's matrices, 0 where they differ */
    map kinds;
    map routers; /* names of those in f32 that become bf16, in the arena */
} engine_dtypes;
mpk_status engine_find_dtypes(mpk_context *cx, arena *a, const engine_build *b, bool drafts,
                              engine_dtypes *out);
/* `to` reads d when the graph is built. */
void engine_weight_dtypes(const engine_dtypes *d, model_weights *to);
/* About what the weights take on the target. */
uint64_t engine_weight_bytes(const engine_dtypes *d);

/* The tensor program for n_tokens tokens, of the model or (drafts) of the draft model, with weights
 * in the dtypes that the target keeps them in.  It lies in a.  Threads may build graphs of one
 * build side by side. */
mpk_status engine_build_graph(mpk_context *cx, arena *a, const engine_build *b, bool drafts,
                              uint32_t n_tokens, ir_graph **out);

/* ---- engine_draft.c ---- */

/* Open the draft model, if the options name one.  MPK_EARG: another vocabulary, or the options do
 * not fit; MPK_EUNSUPPORTED: not on this target; and what load_open gives. */
mpk_status engine_open_draft(mpk_context *cx, engine_build *b);
/* The model that has a weight of the program, whose name becomes what that model calls it. */
const load_model *engine_weight_model(const engine_build *b, str *name);
/* The files of both models, in b->arena if there are two. */
mpk_status engine_join_files(mpk_context *cx, engine_build *b, const file_map **files, size_t *n);

/* ---- engine_ranks.c ---- */

/* With options.meet: wait for the other ranks, which must have the same version, model and options.
 * Rank 0 has its plan by then; the others make theirs afterwards, with rank 0's KV cache. */
mpk_status engine_meet(mpk_context *cx, engine_build *b);

/* ---- engine_compile.c ---- */

/* Load, plan and compile; an image is read instead.  only_tokens: one graph, the smallest that
 * holds this many tokens, and no image; 0: all.  The caller zeroes *b before, and frees it with
 * engine_build_free whatever the status. */
mpk_status engine_build_open(mpk_context *cx, const char *model, const mpk_engine_options *options,
                             bool for_running, uint32_t only_tokens, engine_build *b);
void engine_build_free(engine_build *b);
/* Is path a file that the build was made from: of the models, or the image? */
bool engine_build_reads(const engine_build *b, const char *path);
/* Find every weight of the program in the files, and refuse what does not fit into the device's
 * memory. */
mpk_status engine_bind_weights(mpk_context *cx, mpk_engine *e);
/* The compiler's options for a device.  kv_heads: of the model (host/target.h), 0 if there is
 * none. */
mpk_status engine_pass_options(mpk_context *cx, arena *a, const mpk_engine_options *from,
                               const target_device *device, uint32_t kv_heads, pass_options *to);
/* What the target compiled for an image; empty: it compiles.  With the key of the cache of programs
 * (at NULL: there is none) it need not be of this image, and what is compiled is kept. */
typedef struct engine_code {
    str code, key;
} engine_code;
/* Start the image on the device.  watcher: NULL, or of a program on the CPU. */
mpk_status engine_start_machine(mpk_context *cx, const program_image *image,
                                const mpk_engine_options *o, const target_device *device,
                                const engine_code *code, const machine_weights *weights,
                                const machine_watcher *watcher, host_ranks *ranks, machine **out);

/* ---- engine.c ---- */

/* mpk_engine_open; watcher, on the CPU: borrowed until the engine closes. */
mpk_status engine_open_watched(mpk_context *cx, const char *model,
                               const mpk_engine_options *options, const machine_watcher *watcher,
                               mpk_engine **out);

/* ---- engine_cache.c ---- */

extern const char engine_source_key[]; /* a hash of mpk's own sources (generated) */

/* *key, in the arena, says all that the program and its kernel follow from. */
mpk_status engine_program_key(mpk_context *cx, arena *a, const target_device *device,
                              const pass_options *options, uint32_t n_graphs,
                              ir_graph *const *graphs, const uint32_t *n_tokens, str *key);
/* True if the program of b->key is in the cache: b->image and b->code are filled. */
bool engine_find_program(engine_build *b);
/* The proof of an image that is to be kept, in a thread of its own, which engine_end_proof waits
 * for, the first time it is called.  The image must stay till then.  Of zeros the end is MPK_OK. */
typedef struct engine_proof {
    const program_image *image;
    pthread_t thread;
    bool has_thread;
    mpk_context cx; /* says why, if it failed */
    mpk_status status;
} engine_proof;
void engine_begin_proof(const program_image *image, engine_proof *p);
mpk_status engine_end_proof(engine_proof *p);
/* Of an image that was proved. */
void engine_keep_program(mpk_context *cx, const target_def *target, str key,
                         const program_image *image, str code);

/* ---- engine_profile.c ---- */

/* What mpk_engine_profile gives, of a machine that was started with a profile; the caller frees it
 * with mpk_free. */
mpk_status engine_read_profile(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                               char **json);
/* The text of it.  codes: [ir->ops.n]. */
void engine_write_profile(const ir_graph *ir, const machine_code *codes,
                          const machine_profile *profile, uint32_t n_tokens, uint32_t n_workers,
                          text *out);
/* What runs a graph's operators, as a list of JSON. */
mpk_status engine_print_code(mpk_context *cx, const machine *m, uint32_t graph, text *out);

/* ---- engine_routing.c ---- */

/* With options.random_routing the model's routers get biases.  MPK_EARG: it has no experts, or its
 * weights are not made up. */
mpk_status engine_ask_routing(mpk_context *cx, engine_build *b);
/* The weights that random_routing says, in the build's arena; weights [image.n_weights]. */
mpk_status engine_make_routers(mpk_context *cx, engine_build *b, machine_weight *weights);

/* ---- engine_letters.c ---- */

/* A stand-in for the tokenizer of a random model, or NULL if it has too few ids.  MPK_ENOMEM. */
mpk_status engine_make_tokenizer(mpk_context *cx, uint32_t vocab_size, tokenizer **out);

/* ---- engine_image.c ---- */

bool engine_is_image(const char *path);
/* Read an image in place of loading and planning, and for_running of compiling, too.  The caller
 * has read its options into b->options, which become those of the image; MPK_EARG if they ask for
 * more, or if the model's files are not those that the image was made from.  MPK_EIO,
 * MPK_EFORMAT. */
mpk_status engine_read_image(mpk_context *cx, const char *path, bool for_running, engine_build *b);
/* What tells whether two models are of the same files and make the same program. */
mpk_status engine_fingerprint(mpk_context *cx, const load_model *m, uint64_t *out);
/* The path of its model alone. */
mpk_status engine_read_image_model(mpk_context *cx, arena *a, const char *path, const char **model);

/* ---- engine_stop.c ---- */

/* Text that grows, of which what could be the beginning of a stop text is held back. */
typedef struct engine_stream {
    text text;      /* all of it; cut by a stop text that came */
    size_t n_shown; /* bytes that no stop text can reach any more */
    bool stopped;
    bool keeps_stop;  /* it is cut after the stop text, else before */
    const str *stops; /* borrowed */
    uint32_t n_stops;
    uint32_t stop; /* stopped: index of the stop text */
} engine_stream;

/* Add a piece of whole characters; sets stopped.  False: out of memory. */
bool engine_stream_put(engine_stream *s, str piece);
/* The end has come: nothing is held back any more. */
void engine_stream_end(engine_stream *s);

/* ---- engine_request.c ---- */

mpk_status engine_start_collector(mpk_context *cx, mpk_engine *e);
void engine_stop_collector(mpk_engine *e);

#endif
