/* mpk.h - a language model as one compiled program: open it, submit requests, close it.
 *
 * mpk takes a model (a Hugging Face folder, a GGUF file, or an image made by mpk_compile_to_file),
 * compiles it into task graphs for this machine and starts them: workers that run until the engine
 * is closed.  A request enters through a ring and tokens leave through another; there is no call
 * per layer and none per token.
 *
 *     mpk_context *cx = mpk_context_create();
 *     mpk_engine *engine;
 *     mpk_request *request;
 *     mpk_answer answer;
 *     if (mpk_engine_open(cx, "model.gguf", NULL, &engine) ||
 *         mpk_submit_text(cx, engine, "Hello", 5, NULL, &request) ||
 *         mpk_request_wait(cx, request, &answer))
 *         fprintf(stderr, "%s\n", mpk_error_message(cx));
 *
 * The whole program is examples/complete.c.
 *
 * Rules that hold everywhere:
 *   Status     Whatever can fail returns mpk_status, MPK_OK being 0.  Results go through
 *              out-parameters, which are written on success only.  Nothing here aborts, exits or
 *              prints.
 *   Words      Why a call failed is in the context that was passed to it: mpk_error_message.
 *   Options    A struct of options begins with its size and every zero means the default:
 *                  mpk_engine_options o = {.size = sizeof o, .threads = 4};
 *              NULL is all defaults.  A program built with an older header goes on working, as
 *              fields are only added at the end; one built with a newer header is told
 *              MPK_EUNSUPPORTED if it asks for what is not known.
 *   Ownership  Strings and arrays that you pass are copied, unless the comment says borrowed.  What
 *              a handle hands out belongs to the handle.  char * results are yours: mpk_free.
 *   Threads    A context belongs to one thread at a time; make one for each thread.  An engine, a
 *              tokenizer and the requests of an engine may be used by any number of threads at
 *              once, a single request or sequence by one at a time (mpk_request_cancel by any).
 *   Repeats    The same request gives the same tokens, whatever else runs beside it, in any order
 *              of arrival and with any number of threads; on a GPU, with batch_invariant.
 */
#ifndef MPK_H
#define MPK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mpk/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#define MPK_API __attribute__((visibility("default")))
#else
#define MPK_API
#endif

typedef struct mpk_context mpk_context;     /* the error state of one thread */
typedef struct mpk_engine mpk_engine;       /* a model, compiled and running */
typedef struct mpk_request mpk_request;     /* a text to be continued */
typedef struct mpk_tokenizer mpk_tokenizer; /* text to token ids and back */
/* a sequence of tokens that the caller feeds and samples itself */
typedef struct mpk_sequence mpk_sequence;

/* ---- Contexts -------------------------------------------------------------------------------- */

/* "0.1.0" */
MPK_API const char *mpk_version(void);

/* NULL: out of memory. */
MPK_API mpk_context *mpk_context_create(void);
/* NULL is allowed. */
MPK_API void mpk_context_free(mpk_context *cx);
/* What went wrong in the last call that failed, where, and what to do; "" if none did.  Further
 * lines say what was being done.  Valid until the next call with this context. */
MPK_API const char *mpk_error_message(const mpk_context *cx);
/* A status in general words; never NULL. */
MPK_API const char *mpk_status_sentence(mpk_status status);
/* For char * and int32_t * results.  NULL is allowed. */
MPK_API void mpk_free(void *p);

/* ---- Engines --------------------------------------------------------------------------------- */

typedef enum mpk_dtype {
    MPK_F32,
    MPK_F16,
    MPK_BF16,
    MPK_F64,
    MPK_I32,
    MPK_I64,
    MPK_BOOL,
    MPK_Q4_0, /* blocks of 32 along the last axis, as in GGUF */
    MPK_Q4_1,
    MPK_Q5_0,
    MPK_Q5_1,
    MPK_Q8_0,
    MPK_Q2_K, /* blocks of 256 */
    MPK_Q3_K,
    MPK_Q4_K,
    MPK_Q5_K,
    MPK_Q6_K,
} mpk_dtype;

/* Which operators the tensor program is made of. */
typedef enum mpk_fusion {
    MPK_FUSION_FULL,  /* as few as our task code can do */
    MPK_FUSION_PAPER, /* those of the paper: 8 a layer + 5 */
    MPK_FUSION_NONE,  /* as the model's forward pass is written */
} mpk_fusion;

/* Which tasks are queued to a worker at compile time (AOT), and which by a scheduler when they are
 * ready (JIT; paper 5.2). */
typedef enum mpk_launch {
    MPK_LAUNCH_AUTO,
    MPK_LAUNCH_PAPER,
    MPK_LAUNCH_AOT,
    MPK_LAUNCH_JIT
} mpk_launch;

/* How operators reach a GPU. */
typedef enum mpk_mode {
    MPK_MODE_KERNEL, /* one kernel that runs until the engine is closed */
    /* the same task code, one kernel for each operator in a CUDA graph: the baseline */
    MPK_MODE_GRAPH,
    MPK_MODE_GRAPH_PDL, /* the same, each kernel beginning while the one before ends */
    /* of tensor programs (graph.h): a launch for each run, in the caller's memory on the GPU */
    MPK_MODE_CALLS,
} mpk_mode;

/* In which form activations are multiplied by weights in the block formats of GGUF (Q4_0, Q4_K
 * ...), on the CPU.  Weights in plain dtypes are always multiplied by activations in f32. */
typedef enum mpk_activations {
    /* of a model on the CPU: i8; else f32.  A program of graph.h is run as it is written */
    MPK_ACTIVATIONS_AUTO,
    MPK_ACTIVATIONS_F32, /* exact but for the rounding of fp32 */
    /* rounded to 8 bits, in blocks with a scale: faster, with a KL divergence from F32 that
     * bench/kl.py measures (3e-3 nats a token of SmolLM2-135M in Q4_1) */
    MPK_ACTIVATIONS_I8,
} mpk_activations;

/* Where tokens that may come next are guessed from. */
typedef enum mpk_speculation {
    MPK_SPECULATION_NONE,
    /* the request's own text: what followed its last few tokens where they stood before */
    MPK_SPECULATION_NGRAM,
} mpk_speculation;

/* What a GPU holds in the place of matrices and experts in the block formats Q4_0 to Q8_0 and Q4_K
 * to Q6_K of a GGUF file, and of experts in MXFP4.  A CPU keeps them in blocks in any case. */
typedef enum mpk_blocks {
    /* blocks where these are mostly faster: on one GPU with wgmma (sm_90a), if requests and their
     * drafts are at most 16 tokens of a step together (max_batch); else bf16 */
    MPK_BLOCKS_AUTO,
    /* blocks: 5 or 9 bits a weight in place of 16, in MXFP4 4.25 */
    MPK_BLOCKS_KEEP,
    /* bf16, which loading unpacks */
    MPK_BLOCKS_UNPACK,
} mpk_blocks;

/* Where random routers send tokens.  With all but the first each token's experts follow from the
 * token alone, as attention adds nothing. */
typedef enum mpk_routing_law {
    MPK_ROUTING_RANDOM, /* as random weights route: tokens of a text prefer the same experts */
    MPK_ROUTING_EVEN,   /* each expert as often as any other */
    MPK_ROUTING_ZIPF,   /* about as 1 / n, for the n-th of a layer's experts */
    MPK_ROUTING_SAME,   /* every token to the same experts of a layer */
} mpk_routing_law;

/* Cut axis `axis` of the output of every operator that matches into `degree` parts, instead of what
 * the compiler chooses. */
typedef struct mpk_degree {
    const char *match; /* a kind of operator ("linear") or the name of one */
    uint32_t axis, degree;
} mpk_degree;

/* An adapter (LoRA) whose update is added to the weights when a model is opened. */
typedef struct mpk_adapter {
    const char *path; /* a folder of PEFT or a GGUF file */
    /* what its update is multiplied by, besides its own factor; finite.  1: as it was trained;
     * below 0: the other way; 0: it is checked and changes nothing */
    float scale;
} mpk_adapter;

/* Called by the thread that opens the engine: what is being done, and how far that is (0 to 1).
 * False gives up: MPK_ECANCELLED. */
typedef bool mpk_progress(void *user, const char *stage, double done);

typedef struct mpk_engine_options {
    size_t size; /* sizeof(mpk_engine_options) */
    /* workers; 0: one for each core that this process may use, or SM of a GPU */
    uint32_t threads;
    uint32_t max_batch; /* requests that run at the same time; 0: 16 */
    /* tokens of a step at most; a power of two, at most 8192; 0: 2048 on a GPU, 512 elsewhere and
     * with batch_invariant.  A step in which requests decode has at most 512 */
    uint32_t step_tokens;
    /* prompt and answer of a request at most; 0: the model's own, at most 4096 */
    uint32_t context_tokens;
    /* tokens that all running requests together may hold; 0: max_batch * context_tokens, or what a
     * quarter of the free memory takes */
    uint64_t kv_tokens;
    /* MPK_F16, MPK_BF16, or on the CPU MPK_Q8_0: 8 bits and a scale for each 32 entries of a head
     * (MPK_EUNSUPPORTED on a GPU, and for heads that 32 does not divide); 0: f32, but on a GPU bf16
     * unless the weights are f32 */
    mpk_dtype kv_dtype;
    /* do not read weights, use random ones: a configuration alone is then a model */
    bool random_weights;
    uint64_t random_seed;
    mpk_progress *progress; /* NULL: none */
    void *progress_user;

    /* How it is compiled; nothing here changes a result by more than rounding. */
    mpk_fusion fusion;
    mpk_launch launch;
    bool coarse_events; /* one event between operators instead of one between tiles (ablation) */
    bool verify;        /* prove that every hazard is ordered and that nothing can deadlock */
    const mpk_degree *degrees;
    uint32_t n_degrees;
    /* 1: a worker that waits does not look ahead to the weights of its next tasks (ablation) */
    uint32_t no_preload;

    /* Where it runs. */
    /* "cpu"; "cuda", "cuda:1": an NVIDIA GPU; NULL, "auto": the first GPU if it can be used, else
     * the CPU (the environment's MPK_DEVICE decides instead, if it is set) */
    const char *device;
    /* mpk_compile_to_file, mpk_inspect and the like: the architecture of a GPU that need not be
     * there, "sm_90a"; NULL: of the device */
    const char *target;
    mpk_mode mode; /* of a GPU */
    /* 1: of a GPU: a worker reads the description of one task at a time (ablation) */
    uint32_t no_descriptor_prefetch;
    /* of a GPU: a folder where the kernel's source is left; NULL: nowhere */
    const char *keep;
    /* 1: workers note times, for mpk_engine_profile and, on a GPU, mpk_program_profile; of a GPU's
     * one kernel (MPK_MODE_KERNEL, MPK_MODE_CALLS) or of a CPU */
    uint32_t profile;
    /* 1: of a GPU: a request's tokens and logits have the same bits alone and in any company,
     * whatever the order in which requests come and end, in every engine with the same model, kind
     * of GPU and options.  Each context is cut by itself, and a prompt's piece of more than 16
     * tokens has a step to itself (docs/gpu.md has the cost).  0: the last bits of logits, and so
     * now and then a token, may depend on company.  On the CPU they never do. */
    uint32_t batch_invariant;
    /* 1: of a GPU: every task waits for its event's counter; 0: most tasks of a decode step poll
     * their operands instead (ablation; the same results) */
    uint32_t no_carriers;
    mpk_activations activations; /* I8: MPK_EUNSUPPORTED on a GPU */
    /* 1: every request computes its whole prompt.  0: the KV cache of texts that have been computed
     * is kept as long as there is room, and requests that begin with the same tokens take it from
     * there, while it is in use or later.  On the CPU and with batch_invariant that changes no bit
     * of an answer. */
    uint32_t no_prefix_cache;
    /* Peers that share the model, 1 to 16: each holds and multiplies its part of the weights and of
     * the KV cache (docs/gpus.md); 0: 1.  On the CPU they are groups of threads, else the GPUs of
     * one host from `device` on, of one kind and linked by NVLink; otherwise MPK_EUNSUPPORTED. */
    uint32_t gpus;
    /* Speculation: a request that decodes may have drafts, tokens that are guessed, in a step
     * beside its last token.  Each place draws with its own random number, and a draft stands if it
     * is the token that is drawn there.  So it changes no token, only how many a step yields; on a
     * GPU without batch_invariant the last bits of logits may differ.  Drafts use only the places
     * that the requests' own tokens leave free in a small step; a request whose drafts do not stand
     * stops drafting for a while. */
    mpk_speculation speculation;
    uint32_t draft_tokens; /* drafts of a request in one step at most, up to 64; 0: 8 */
    uint32_t draft_ngram;  /* the last tokens by which the text is looked up, up to 16; 0: 3 */
    /* 1: the program ends with the final norm: the engine gives vectors (mpk_embed), no text */
    uint32_t embeddings;
    /* of random weights of a mixture of experts, to measure; all but RANDOM are one program */
    mpk_routing_law random_routing;
    /* 1: of a mixture of experts: each step leaves the experts of its tokens for
     * mpk_engine_routing, which costs a GPU's step time */
    uint32_t count_experts;
    /* A small model of the same vocabulary, a folder or a GGUF file, that guesses drafts too: what
     * the request's text does not say, or all without `speculation`.  It is compiled into the same
     * program, has its own weights and its part of the KV cache, and changes no token.  NULL: none.
     * MPK_EARG: the vocabularies differ, or the model is an image. */
    const char *draft_model;
    /* 1: with several gpus each peer has some experts whole (expert parallelism), wherever there
     * are as many experts as peers; 0: a share of every expert, which keeps all peers equally busy
     * whatever the router does, and whole ones only where experts cannot be cut (docs/gpus.md).
     * MPK_EARG: 1 with fewer than two gpus. */
    uint32_t own_experts;
    /* 1: a draft model draws with random numbers of its own, so that its drafts stand only as often
     * as two draws agree (a measurement: by 0 they stand wherever both models agree) */
    uint32_t drafts_apart;
    /* With gpus of 2 or more: one process for each peer, on one host.  A path where a socket can be
     * made; processes with the same path, `gpus`, model and options are the ranks of one engine.
     * Rank 0 takes requests, the others compute until it closes (mpk_engine_attend).  NULL: this
     * process runs all peers.  MPK_EARG: a rank differs in what is named; MPK_EDEVICE: a rank has
     * not come, or has ended. */
    const char *meet;
    uint32_t rank;          /* of this process, below gpus */
    uint32_t meet_seconds;  /* that ranks wait for each other to come; 0: 60 */
    mpk_blocks keep_blocks; /* MPK_EARG: no such choice */
    /* of random weights: the formats that `mpk quantize` gives a file of this type ("q4_k_m"); on a
     * GPU only those that stay in blocks (keep_blocks).  NULL: the dtype of the configuration */
    const char *random_mix;
    /* Adapters that are merged into the weights, up to 64: the sum of their updates in f32 is added
     * to each weight and rounded once, to the weight's dtype; a weight in blocks becomes f16 (of a
     * quantised folder the dtype that its config.json names) and is not quantised again.  Weights
     * that are changed are copied into memory.  Of the draft model nothing is changed.
     * MPK_EFORMAT, MPK_EUNSUPPORTED, MPK_ESHAPE: an adapter is damaged, holds what cannot be
     * merged, or is of another model, by name; MPK_ELIMIT: a weight is beyond its dtype then;
     * MPK_EARG: more than 64, a scale that is not finite, with random_weights, or the model is an
     * image, which has those that it was compiled with. */
    const mpk_adapter *adapters;
    uint32_t n_adapters;
} mpk_engine_options;

/* Open, compile, start.  MPK_EIO, MPK_EFORMAT, MPK_EUNSUPPORTED: the model; MPK_ELIMIT, MPK_ENOMEM:
 * it does not fit, with numbers; MPK_ECANCELLED: by progress. */
MPK_API mpk_status mpk_engine_open(mpk_context *cx, const char *model,
                                   const mpk_engine_options *options, mpk_engine **out);
/* Of a rank other than 0: wait until rank 0 has closed its engine, and close this one then.
 * MPK_EDEVICE: another rank has ended; MPK_EARG: the engine takes requests itself. */
MPK_API mpk_status mpk_engine_attend(mpk_context *cx, mpk_engine *engine);
/* Stop, and free everything.  Requests and sequences must have been freed before.  NULL is
 * allowed. */
MPK_API void mpk_engine_close(mpk_engine *engine);

/* What there is to know of an engine. */
typedef struct mpk_engine_facts {
    size_t size; /* in: sizeof(mpk_engine_facts); no more is written */
    uint32_t vocab_size, context_tokens, max_batch, step_tokens, threads;
    uint64_t weight_bytes, kv_bytes, other_bytes;
    /* Spent in mpk_engine_open: reading the model and bringing its weights; compiling.  On a GPU
     * the kernel is compiled while weights are brought, so that the parts may be more than the
     * whole. */
    uint64_t load_ns, compile_ns;
    uint32_t graphs, tasks, events;
    char device[64];        /* "CPU, 2 threads", "NVIDIA H100 80GB HBM3" */
    uint32_t kernel_cached; /* 1: of a GPU: its kernel had been compiled before */
    /* also spent in mpk_engine_open: finding the GPU and opening it */
    uint64_t device_ns;
    /* program_cached 1: of a GPU: the task graphs had been made before too */
    uint32_t program_cached, reserved;
    uint64_t kv_tokens; /* that all running requests together may hold */
    /* Since the engine was opened: tokens of prompts that were looked for in the prefix cache, and
     * those found. */
    uint64_t prefix_asked_tokens, prefix_found_tokens;
    /* how often a running request was suspended because older ones needed its KV memory */
    uint32_t put_back;
    uint32_t embedding_size; /* of an engine of embeddings: numbers of a vector; else 0 */
    /* of kv_tokens: in pages that no request holds now; the prefix cache lives there */
    uint64_t kv_free_tokens;
    /* drafts that were tried since the engine was opened, and that stood */
    uint64_t drafted_tokens, accepted_tokens;
    /* those of them that a draft model guessed, and the steps that this took */
    uint64_t draft_model_tokens, draft_model_accepted_tokens, draft_steps;
} mpk_engine_facts;

MPK_API void mpk_engine_describe(const mpk_engine *engine, mpk_engine_facts *facts);
/* Where the time of a step goes.  The profile is of the last step that ran the smallest graph that
 * holds `tokens` tokens.  *json is a JSON object that the caller frees (mpk_free):
 *   tokens      of the graph
 *   clock_mhz   the GPU's clock during these steps, which converts cycles to microseconds; of a
 *               graph without notes in `steps` its highest clock; 1000 on a CPU, whose notes are
 *               in nanoseconds
 *   scheduling  share of the workers' time between the end of a task's work and the count on its
 *               event; 0 on a CPU, where that is part of the wait for the worker's next task
 *   waiting_for_peers
 *               share of the workers' time in which tasks waited that read what other peers make
 *               (options.gpus); 0 with one peer
 *   to_host     {bursts, median_us, p99_us, most_us}: from the end of a step until the thread that
 *               takes its tokens out of the ring has done so and the GPU knows; over all steps, the
 *               last 4,096 at most
 *   steps       {n, median_us, between_us}: of the graph's steps among the last 1,024 that a GPU
 *               ran, how many, how long they took, and how long the GPU had waited before them
 *               for the step task (medians); n is 0 on a CPU and in calls of a program
 *   between_tasks_us
 *               from a task's results to the worker's next task, summed over the step and divided
 *               by the number of workers; 0 on a CPU, and on a GPU in a step with JIT tasks
 *   kinds       one object for each kind of operator:
 *     kind, body, from, to, operators, tasks
 *               `from` and `to` are the columns of the first input and of the result
 *     programs  block programs that the search chose for it, none where the body was written by
 *               hand: {listed, fitting, refused, cycles, text}: candidates, those that fit the GPU,
 *               those of them that a proof refused, cycles of the longest task by the model of
 *               cost, the program (docs/superoptimizer.md)
 *     sm_us     time of all its tasks over the number of workers: what a step spends on it
 *     share     of the time of all tasks
 *     wait_us   mean over tasks, from when the worker came to the task until its event was
 *               activated; on a CPU from the end of the worker's last task until this one began
 *     body_us, trigger_us
 *               means over tasks
 *     longest_us
 *               the slowest task of an operator, mean over operators
 * MPK_EARG: the engine was opened without `profile`, a request is in flight, or no graph holds so
 * many tokens. */
MPK_API mpk_status mpk_engine_profile(mpk_context *cx, mpk_engine *engine, uint32_t tokens,
                                      char **json);
/* Which experts tokens went to. */
typedef struct mpk_routing {
    size_t size;      /* in: sizeof(mpk_routing); no more is written */
    uint32_t layers;  /* that have experts; 0: the model has none, and the rest is 0 */
    uint32_t experts; /* of a layer */
    uint32_t of_token;
    uint32_t tokens; /* that were counted */
    double hit;      /* experts that at least one of them went to, mean over layers */
    /* of all weights that a step reads for such tokens: of experts those that were hit, and of an
     * embedding nothing, as few of its rows are read */
    double weight_bytes;
} mpk_routing;

/* Of the first `tokens` tokens of the last step that ran the smallest graph that holds that many; a
 * step of fewer tokens in between leaves the rest as they were.  MPK_EARG: the engine was opened
 * without count_experts, a request is in flight, or no graph holds that many tokens. */
MPK_API mpk_status mpk_engine_routing(mpk_context *cx, mpk_engine *engine, uint32_t tokens,
                                      mpk_routing *out);
/* Is path one of the files that the engine was opened from (its models' weights, configurations and
 * tokenizers, or an image), by this name or another?  To be asked before a file is written. */
MPK_API bool mpk_engine_reads(const mpk_engine *engine, const char *path);
/* Borrowed from the engine; NULL if the model brings no vocabulary. */
MPK_API const mpk_tokenizer *mpk_engine_tokenizer(const mpk_engine *engine);

/* ---- Requests -------------------------------------------------------------------------------- */

typedef struct mpk_token_bias {
    int32_t token;
    float bias; /* added to its logit; -INFINITY: never */
} mpk_token_bias;

/* What an answer has to look like (docs/structured-output.md). */
typedef enum mpk_form {
    MPK_FORM_ANY,
    MPK_FORM_JSON_OBJECT, /* any JSON object; no source */
    MPK_FORM_JSON_SCHEMA, /* JSON that is valid by the schema that the source is */
    /* a text of which the source, a regular expression, matches the whole */
    MPK_FORM_REGEX,
    MPK_FORM_CHOICE, /* one of the texts of the source, a JSON list */
    /* a text of the grammar that the source is, as llama.cpp writes them (GBNF) */
    MPK_FORM_GRAMMAR,
    /* texts, forms and free text put together, as JSON (docs/structured-output.md) */
    MPK_FORM_STRUCTURAL_TAG,
} mpk_form;

typedef struct mpk_request_options {
    size_t size;             /* sizeof(mpk_request_options) */
    uint32_t max_tokens;     /* of the answer; 0: until the model ends it or the context is full */
    float temperature;       /* 0: always the most probable token */
    uint32_t top_k;          /* 0: off */
    float top_p;             /* 0 or 1: off */
    float min_p;             /* 0: off */
    uint64_t seed;           /* of the random draws; the same seed draws the same tokens */
    const char *const *stop; /* the answer ends before the first of these texts */
    uint32_t n_stop;
    bool ignore_eos; /* go on when the model ends the text */
    /* of a text: do not put the tokens before and after it that the model's tokenizer asks for */
    bool raw_prompt;
    bool include_stop; /* the text that ends the answer belongs to it, a stop token's text too */
    /* compute the prompt and nothing else: the answer has no token and ends with
     * MPK_FINISH_LENGTH; for prompt_logprobs, or to fill the prefix cache.  max_tokens is 0 then */
    bool prompt_only;

    /* Rules for the tokens, in the order in which they change the logits, before temperature and
     * filters.  The prompt counts for repetition_penalty and bad_words, not for the other two
     * penalties. */
    const mpk_token_bias *biases; /* each token at most once */
    uint32_t n_biases;
    /* logits of tokens that were there: divided by it if positive, else multiplied; 0 or 1: off */
    float repetition_penalty;
    float presence_penalty;        /* subtracted for each token generated before; 0: off */
    float frequency_penalty;       /* the same for each time that it was generated; 0: off */
    const int32_t *allowed_tokens; /* no others come; n_allowed 0: all may */
    uint32_t n_allowed;
    uint32_t min_tokens; /* neither the model nor a stop token ends the answer before; 0: off */
    const char *const *bad_words; /* texts that do not come, at a beginning or after a space */
    uint32_t n_bad_words;
    /* only tokens whose logit is at most this many standard deviations below the largest; 0: off */
    float top_n_sigma;
    /* only the tokens of the most typical surprise that add up to this share; 0 or 1: off */
    float typical_p;

    /* Log probabilities, by softmax over the logits as the model made them; see
     * mpk_request_logprobs. */
    uint32_t top_logprobs; /* also of the most probable tokens, at most 20 */
    bool logprobs;         /* of each token of the answer */
    /* of each token of the prompt but the first; this needs the whole prompt to be computed */
    bool prompt_logprobs;

    bool no_prefix_cache; /* compute the whole prompt, and keep nothing of it for others */
    char reserved_2[1];   /* 0 */
    /* only requests with the same salt take each other's part of the prefix cache; NULL: "" */
    const char *cache_salt;

    /* The form of the answer.  Tokens that would leave it do not come, and the answer ends
     * (MPK_FINISH_STOP) where nothing can follow; with max_tokens it may be cut before.  A form
     * that is compiled is kept for the next request.  MPK_EFORMAT: the source is faulty;
     * MPK_EUNSUPPORTED: it asks for what is not supported, by name and place, or the engine has no
     * tokenizer; MPK_ELIMIT: it is too large. */
    const char *form_source;
    mpk_form form;
    /* Drafts in a step at most, if the engine speculates; 0: as many as the engine's draft_tokens;
     * -1: none.  A request with a form drafts four at most, in engines for up to 64 requests. */
    int32_t draft_tokens;

    /* The least number comes first: of the requests that wait, of the prompts that are computed,
     * and on a CPU where KV memory is short: less urgent requests then go on later, with the same
     * tokens.  Among equals, the one that came first. */
    int32_t priority;
    /* Tokens that end the answer (MPK_FINISH_STOP), ignore_eos or not; with the model's own 16 at
     * most (MPK_ELIMIT).  The last token of the answer is then one of them. */
    const int32_t *stop_tokens;
    uint32_t n_stop_tokens; /* 0: none */
} mpk_request_options;

typedef enum mpk_finish {
    MPK_RUNNING,          /* not finished */
    MPK_FINISH_STOP,      /* the model ended the text, or a stop text or token came */
    MPK_FINISH_LENGTH,    /* max_tokens, or the context is full */
    MPK_FINISH_CANCELLED, /* by the caller */
    MPK_FINISH_ERROR,     /* the engine failed */
} mpk_finish;
/* "stop", "length", "cancelled", "error", "running" */
MPK_API const char *mpk_finish_name(mpk_finish finish);

/* Put a request in the queue; it runs as soon as there is room.  The text need not end with NUL nor
 * be valid UTF-8.  MPK_ELIMIT: it could never fit into the context (the message says how long it
 * is); MPK_EARG: an option or a token id is out of range, or the prompt is empty; MPK_EUNSUPPORTED:
 * a text, but the model has no tokenizer. */
MPK_API mpk_status mpk_submit_text(mpk_context *cx, mpk_engine *engine, const char *bytes, size_t n,
                                   const mpk_request_options *options, mpk_request **out);
MPK_API mpk_status mpk_submit_tokens(mpk_context *cx, mpk_engine *engine, const int32_t *tokens,
                                     size_t n, const mpk_request_options *options,
                                     mpk_request **out);

/* What has come since the last read.  Belongs to the request, valid until its next read, wait or
 * free. */
typedef struct mpk_piece {
    /* valid UTF-8, never half a character, never part of a stop text; "" if none */
    const char *text;
    size_t n_bytes;
    const int32_t *tokens;
    size_t n_tokens;
    mpk_finish finish; /* MPK_RUNNING: there is more to come */
} mpk_piece;

/* Wait until something has come or the request is finished, at most timeout_ms (negative: for ever;
 * 0: not at all), and take it.  A timeout is MPK_OK with an empty piece.  After the end every read
 * gives an empty, finished piece. */
MPK_API mpk_status mpk_request_read(mpk_context *cx, mpk_request *request, int64_t timeout_ms,
                                    mpk_piece *piece);

/* The whole answer.  Belongs to the request. */
typedef struct mpk_answer {
    const char *text; /* NUL-terminated, but the text may hold NULs of its own */
    size_t n_bytes;
    const int32_t *tokens;    /* as drawn: a final end-of-text token is among them */
    const uint64_t *token_ns; /* [n_tokens] when each came, since submission */
    size_t n_tokens, n_prompt_tokens;
    mpk_finish finish;
} mpk_answer;

/* Wait for the end.  The status of the failure if the finish is MPK_FINISH_ERROR. */
MPK_API mpk_status mpk_request_wait(mpk_context *cx, mpk_request *request, mpk_answer *answer);
/* Tokens of the prompt that came from the prefix cache; 0 before the first token of the answer. */
MPK_API size_t mpk_request_cached_tokens(const mpk_request *request);
/* What ended an answer: the index of a stop text, or n_stop plus that of a stop token; -1:
 * something else, or it is not over. */
MPK_API int32_t mpk_request_stop(const mpk_request *request);
/* Nanoseconds from submission until the engine began with the prompt; 0 before the first token of
 * the answer. */
MPK_API uint64_t mpk_request_queue_ns(const mpk_request *request);
/* Drafts that the answer's tokens so far came with: those that were tried, and those that stood. */
MPK_API void mpk_request_drafts(const mpk_request *request, size_t *drafted, size_t *accepted);
/* A token and the natural logarithm of its probability. */
typedef struct mpk_logprob {
    int32_t token;
    float logprob;
} mpk_logprob;

/* Log probabilities of token `token` of the answer, of those that have been read or waited for:
 * out[0] of that token, after it top_logprobs of the most probable ones in falling order.  Returns
 * how many were written, at most `most`; 0: none were asked for, or there is no such token yet. */
MPK_API uint32_t mpk_request_logprobs(const mpk_request *request, size_t token, mpk_logprob *out,
                                      uint32_t most);
/* The same of a token of the prompt, from number 1 on, once the first token of the answer has
 * come. */
MPK_API uint32_t mpk_prompt_logprobs(const mpk_request *request, size_t token, mpk_logprob *out,
                                     uint32_t most);

/* Ask it to end soon; it then finishes with MPK_FINISH_CANCELLED unless it was faster.  Any
 * thread. */
MPK_API void mpk_request_cancel(mpk_request *request);
/* Cancels what is not finished.  NULL is allowed. */
MPK_API void mpk_request_free(mpk_request *request);

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* The tokenizer of a model; nothing else of it is read, so a vocabulary alone is enough.  Close
 * what you opened. */
MPK_API mpk_status mpk_tokenizer_open(mpk_context *cx, const char *model, mpk_tokenizer **out);
MPK_API void mpk_tokenizer_close(mpk_tokenizer *tokenizer);
/* Ids of a text: *ids is yours (mpk_free).  add_special: with the tokens before and after that the
 * model asks for. */
MPK_API mpk_status mpk_tokenize(mpk_context *cx, const mpk_tokenizer *tokenizer, const char *bytes,
                                size_t n, bool add_special, int32_t **ids, size_t *n_ids);
/* The text of ids: *bytes is yours and NUL-terminated.  MPK_EARG: no such id. */
MPK_API mpk_status mpk_detokenize(mpk_context *cx, const mpk_tokenizer *tokenizer,
                                  const int32_t *ids, size_t n_ids, char **bytes, size_t *n);

/* ---- Chats ----------------------------------------------------------------------------------- */

typedef struct mpk_chat_options {
    size_t size;               /* sizeof(mpk_chat_options) */
    const char *chat_template; /* Jinja, instead of the model's own; NULL: that one */
    /* JSON list of the functions that the model may call, as in OpenAI's API; NULL: none */
    const char *tools;
    /* JSON object: what else the template may ask for, {"enable_thinking": false} */
    const char *variables;
    bool no_answer;   /* end after the last message, not where the answer begins */
    char reserved[7]; /* 0 */
} mpk_chat_options;

/* The text that a conversation is to a model, by the chat template that it brings, as Transformers
 * renders it.  messages: JSON, n bytes, a list of objects such as {"role": "user", "content":
 * "Hello"}; what a role and its members mean is up to the template.  *prompt is yours (mpk_free)
 * and NUL-terminated; submit it with raw_prompt, since it has its special tokens already.
 * tokenizer NULL: with chat_template only, and without the tokenizer's special tokens.
 * MPK_EUNSUPPORTED: the model brings no template, or it asks for what we do not know; MPK_EFORMAT:
 * messages, tools, variables or template are faulty, or the template refuses the conversation (the
 * message has its words); MPK_ELIMIT: the template does not come to an end. */
MPK_API mpk_status mpk_chat_prompt(mpk_context *cx, const mpk_tokenizer *tokenizer,
                                   const char *messages, size_t n, const mpk_chat_options *options,
                                   char **prompt, size_t *n_prompt);

/* Set those of temperature, top_k, top_p, min_p, typical_p and repetition_penalty that the model's
 * makers suggest (generation_config.json); the others stay as they are. */
MPK_API void mpk_engine_suggest(const mpk_engine *engine, mpk_request_options *options);

/* ---- Sequences: logits for a sampler of your own --------------------------------------------- */

/* A timeline of tokens that runs in the same steps as the engine's requests.  From its first token
 * until it is closed it holds one of the engine's max_batch places, and KV memory for a whole
 * context.  all_logits: the logits after every token are wanted, not only after the last of each
 * feed.  MPK_ELIMIT: max_batch sequences are open already. */
MPK_API mpk_status mpk_sequence_open(mpk_context *cx, mpk_engine *engine, bool all_logits,
                                     mpk_sequence **out);
/* NULL is allowed. */
MPK_API void mpk_sequence_close(mpk_sequence *sequence);
/* Append n >= 1 tokens and wait for their logits: f32[V] of what follows the last one, or with
 * all_logits f32[n, V], of what follows each.  MPK_ELIMIT: the context would overflow, nothing was
 * appended; MPK_EARG: no such token id. */
MPK_API mpk_status mpk_sequence_feed(mpk_context *cx, mpk_sequence *sequence, const int32_t *tokens,
                                     size_t n, float *logits);
/* Tokens so far. */
MPK_API size_t mpk_sequence_length(const mpk_sequence *sequence);

/* ---- Quantising ------------------------------------------------------------------------------ */

typedef struct mpk_quantize_options {
    size_t size; /* sizeof(mpk_quantize_options) */
    /* What most matrices become: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k_s,
     * q3_k_m, q3_k_l, q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k.  Which tensors take another type is as
     * in llama.cpp's files of this name. */
    const char *type;
    mpk_progress *progress; /* called by the calling thread; NULL: none */
    void *progress_user;
    /* A text that the model reads on the CPU before it is quantised, calibration_bytes of UTF-8:
     * an error in a column of a weight then counts what the column was multiplied by there (an
     * importance matrix).  At least 512 tokens, or the model's trained context if that is less.
     * NULL: every column counts alike. */
    const char *calibration;
    size_t calibration_bytes;
    uint32_t calibration_windows; /* of 512 tokens, at most this many are read; 0: all */
    uint32_t threads;             /* workers that read it; 0: one for each core */
    const mpk_adapter *adapters;  /* merged into the weights before, as in mpk_engine_options */
    uint32_t n_adapters;
} mpk_quantize_options;

/* Write a model, a Hugging Face folder or a GGUF file, as a GGUF file of other types, which mpk and
 * llama.cpp open: its weights, hyper-parameters, tokenizer and chat template.  The file at path is
 * whole or untouched.  *json, yours (mpk_free; NULL: not wanted): {"bytes": 105454432, "weights":
 * 134515008, "tensors": {"q4_k": 150, "f32": 61}}, with "calibration_tokens": 51200 if a text was
 * read.  MPK_EARG: no such type, path is a file of the model, or the text is too short; MPK_EIO:
 * path cannot be written, the disk is full; MPK_EFORMAT: a weight, or a number that the model
 * computes from the text, is not finite; MPK_ELIMIT: a weight is too large for the type;
 * MPK_EUNSUPPORTED: GGUF cannot say something of this model, or a text cannot be read for want of a
 * tokenizer; MPK_ECANCELLED: by progress. */
MPK_API mpk_status mpk_quantize(mpk_context *cx, const char *model, const char *path,
                                const mpk_quantize_options *options, char **json);

/* ---- Embeddings: a vector for a text --------------------------------------------------------- */

typedef enum mpk_pooling {
    MPK_POOL_LAST, /* the final hidden state of the last token */
    MPK_POOL_MEAN, /* the mean of those of all tokens */
} mpk_pooling;

typedef struct mpk_embed_options {
    size_t size; /* sizeof(mpk_embed_options) */
    mpk_pooling pooling;
    uint32_t dimensions; /* only this many of the first numbers; 0: embedding_size */
    /* leave the length as it is; else the vector has length 1, after it was cut */
    bool raw;
    char reserved[7]; /* 0 */
} mpk_embed_options;

/* A text as token ids. */
typedef struct mpk_tokens {
    const int32_t *at;
    size_t n;
} mpk_tokens;

/* The vectors of n texts, each of at least one token, into f32[n, dimensions], from an engine that
 * was opened with `embeddings`.  As many texts are computed together as the engine takes requests;
 * the call returns when all are done.  Any thread.  options: NULL: last, whole, of length 1.
 * MPK_ELIMIT: more tokens than the context; MPK_EARG: no such token id, more dimensions than there
 * are; MPK_EFORMAT: a vector is not finite; MPK_EUNSUPPORTED: another engine. */
MPK_API mpk_status mpk_embed(mpk_context *cx, mpk_engine *engine, const mpk_tokens *texts, size_t n,
                             const mpk_embed_options *options, float *out);

/* ---- Advanced: the compiler ------------------------------------------------------------------ */

/* Compile for the options' number of workers and write an image: mpk_engine_open takes it in place
 * of the model, whose files it finds again by path and checks by size and a hash of their headers.
 * The same holds for adapters, which are compared whole.  The file is whole or untouched. */
MPK_API mpk_status mpk_compile_to_file(mpk_context *cx, const char *model,
                                       const mpk_engine_options *options, const char *path);

/* Look into a compiled model without running it; a configuration without weights is enough.  JSON,
 * yours (mpk_free):
 *   model      family, sizes, dtypes
 *   memory     weights, kv, activations: bytes, and what they are made of
 *   graphs     for each number of tokens: operators, tasks, tasks_per_operator, events, pairs,
 *              fusion, normalize_tasks, successor_bytes_list, successor_bytes_range, compile_ms,
 *              verify_ms
 * tokens: one graph, of this many tokens a step; 0: all. */
MPK_API mpk_status mpk_inspect(mpk_context *cx, const char *model,
                               const mpk_engine_options *options, uint32_t tokens, char **json);
/* A readable part of one task graph in the language of graphviz: from the first operator whose
 * name, kind or weights contain `part` to the last ("layers.0.", "lm_head"); NULL: the first
 * layer. */
MPK_API mpk_status mpk_draw(mpk_context *cx, const char *model, const mpk_engine_options *options,
                            uint32_t tokens, const char *part, char **dot);
/* The tensor program of a step of this many tokens, in its text form. */
MPK_API mpk_status mpk_print_program(mpk_context *cx, const char *model,
                                     const mpk_engine_options *options, uint32_t tokens,
                                     char **source);
/* Run one pass of the compiler, or several with commas between, on the text form of a tensor
 * program or task graph.  Of the options only threads and those of the compiler count. */
MPK_API mpk_status mpk_opt(mpk_context *cx, const char *passes, const char *source, size_t n,
                           const mpk_engine_options *options, char **result);
/* The names that mpk_opt takes, one a line with a tab and what it does; yours (mpk_free). */
MPK_API mpk_status mpk_opt_passes(mpk_context *cx, char **lines);
/* What this machine has, as JSON: processors, instruction sets, memory, GPUs, their compiler, its
 * cache. */
MPK_API mpk_status mpk_machine(mpk_context *cx, char **json);
/* Empty the cache of kernels compiled for GPUs (MPK_CACHE, else mpk/kernels in the user's cache
 * folder).  Nothing else is lost: they are compiled again when they are needed. */
MPK_API mpk_status mpk_clear_kernels(mpk_context *cx);

#ifdef __cplusplus
}
#endif

#endif
