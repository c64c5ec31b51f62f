/* engine_options.c - the caller's options, checked and with defaults filled in.
 *
 * Every struct of options begins with its size, so that programs built against an older or a newer
 * header work: what the caller does not know takes its default, and what this library does not
 * know must be zero.  Of an engine's options texts and lists are copied, so the caller's may go.
 * Called by every function of mpk.h that takes options; each refusal names the field, its value
 * and what is expected.
 */
#include "engine/engine.h"
#include "op/rules.h"

/* Copy a struct that begins with its own size.  least: bytes of the first version of the struct;
 * from: NULL for all defaults; what: the struct's name, for messages.  Fields past the caller's
 * size are zero, the default; bytes past ours must be zero, for they ask for something that this
 * version cannot do.  Afterwards the copy has our size.
 *
 *     caller 40 bytes, ours 64:  40 are copied, 24 are zero
 *     caller 64 bytes, ours 40:  40 are copied, the other 24 are compared with zero
 *
 * A size below `least`, or of more than 64 KiB, is that of a struct that was never filled in. */
static mpk_status copy_sized(mpk_context *cx, const char *what, const void *from, size_t least,
                             void *to, size_t n)
{
    size_t size = 0;
    memset(to, 0, n);
    if (from) {
        memcpy(&size, from, sizeof size);
        CHECK(cx, size >= least && size <= 1 << 16, MPK_EARG,
              "%s.size is %zu: set it to sizeof(%s)", what, size, what);
        memcpy(to, from, size < n ? size : n);
        for (size_t i = n; i < size; i++)
            CHECK(cx, !((const char *)from)[i], MPK_EUNSUPPORTED,
                  "%s asks for something that this version of mpk (%s) does not know: build "
                  "against its headers",
                  what, mpk_version());
    }
    memcpy(to, &n, sizeof n);
    return MPK_OK;
}

/* Replace the caller's list, and the text in each entry, by copies in the arena: the passes read
 * degrees when the caller's list may be gone.  Which operators the texts match is found out by the
 * passes. */
static mpk_status copy_degrees(mpk_context *cx, arena *a, mpk_engine_options *o)
{
    mpk_degree *degrees;
    NEW(cx, a, degrees, o->n_degrees);
    for (uint32_t i = 0; i < o->n_degrees; i++) {
        CHECK(cx, o->degrees[i].match && o->degrees[i].degree, MPK_EARG,
              "degree %u has no operator or is 0", i);
        degrees[i] = o->degrees[i];
        degrees[i].match = arena_copy(a, o->degrees[i].match, strlen(o->degrees[i].match));
        CHECK(cx, degrees[i].match, MPK_ENOMEM, "out of memory for the options");
    }
    o->degrees = degrees;
    return MPK_OK;
}

/* Replace a text of the caller's by a copy in the arena.  NULL stays NULL, the default. */
static mpk_status copy_word(mpk_context *cx, arena *a, const char **word)
{
    if (!*word)
        return MPK_OK;
    *word = arena_copy(a, *word, strlen(*word));
    CHECK(cx, *word, MPK_ENOMEM, "out of memory for the options");
    return MPK_OK;
}

/* Zeros become the defaults even where nothing is speculated, so that later code never sees a 0. */
static mpk_status read_speculation(mpk_context *cx, mpk_engine_options *o)
{
    CHECK(cx, (unsigned)o->speculation <= MPK_SPECULATION_NGRAM, MPK_EARG,
          "speculation is %d: no such choice", (int)o->speculation);
    CHECK(cx, o->draft_tokens <= ENGINE_MAX_DRAFTS, MPK_EARG,
          "draft_tokens is %u, expected up to %d", o->draft_tokens, ENGINE_MAX_DRAFTS);
    CHECK(cx, o->draft_ngram <= ENGINE_MAX_NGRAM, MPK_EARG, "draft_ngram is %u, expected up to %d",
          o->draft_ngram, ENGINE_MAX_NGRAM);
    o->draft_tokens = o->draft_tokens ? o->draft_tokens : ENGINE_DRAFTS;
    o->draft_ngram = o->draft_ngram ? o->draft_ngram : ENGINE_NGRAM;
    return MPK_OK;
}

/* Checks what can be said without a model or a device; what a target cannot do it refuses itself.
 * On failure *to may be half filled and what was copied stays in the arena. */
mpk_status engine_read_options(mpk_context *cx, arena *a, const mpk_engine_options *from,
                               mpk_engine_options *to)
{
    TRY(copy_sized(cx, "mpk_engine_options", from, offsetof(mpk_engine_options, context_tokens), to,
                   sizeof *to));
    CHECK(cx, to->threads <= RT_MAX_WORKERS, MPK_EARG, "%u threads, at most %d", to->threads,
          RT_MAX_WORKERS);
    to->gpus = to->gpus ? to->gpus : 1;
    CHECK(cx, to->gpus <= IR_MAX_PEERS, MPK_EARG, "gpus is %u, expected 1 to %d", to->gpus,
          IR_MAX_PEERS);
    CHECK(cx, to->gpus == 1 || to->launch == MPK_LAUNCH_AUTO || to->launch == MPK_LAUNCH_AOT,
          MPK_EARG, "with %u gpus all tasks are launched ahead of time: launch must be auto or aot",
          to->gpus);
    CHECK(cx, to->embeddings <= 1, MPK_EARG, "embeddings is %u, expected 0 or 1", to->embeddings);
    CHECK(cx, to->drafts_apart <= 1, MPK_EARG, "drafts_apart is %u, expected 0 or 1",
          to->drafts_apart);
    CHECK(cx, to->own_experts <= 1, MPK_EARG, "own_experts is %u, expected 0 or 1",
          to->own_experts);
    CHECK(
        cx, to->gpus > 1 || !to->own_experts, MPK_EARG,
        "own_experts shares a mixture's experts out among peers, but gpus is 1: say how many gpus "
        "there are, or leave own_experts away");
    CHECK(cx, (unsigned)to->keep_blocks <= MPK_BLOCKS_UNPACK, MPK_EARG,
          "keep_blocks is %d: no such choice", (int)to->keep_blocks);
    CHECK(cx, !to->random_mix || to->random_weights, MPK_EARG,
          "random_mix is \"%s\", but the weights are not random", to->random_mix);
    CHECK(cx, to->count_experts <= 1, MPK_EARG, "count_experts is %u, expected 0 or 1",
          to->count_experts);
    CHECK(cx, to->max_batch <= ENGINE_MAX_BATCH, MPK_EARG, "max_batch is %u, at most %d",
          to->max_batch, ENGINE_MAX_BATCH);
    CHECK(cx, !(to->step_tokens & (to->step_tokens - 1)) && to->step_tokens <= ENGINE_MAX_STEP,
          MPK_EARG, "step_tokens is %u, expected a power of two up to %d", to->step_tokens,
          ENGINE_MAX_STEP);
    CHECK(cx,
          to->kv_dtype == MPK_F32 || to->kv_dtype == MPK_F16 || to->kv_dtype == MPK_BF16 ||
              to->kv_dtype == MPK_Q8_0,
          MPK_EARG, "the dtype of the KV cache is f32, f16, bf16 or q8_0");
    CHECK(cx, (unsigned)to->fusion <= MPK_FUSION_NONE && (unsigned)to->launch <= MPK_LAUNCH_JIT,
          MPK_EARG, "fusion is %d and launch %d: no such choice", (int)to->fusion, (int)to->launch);
    CHECK(cx, (unsigned)to->mode <= MPK_MODE_CALLS, MPK_EARG, "mode is %d: no such choice",
          (int)to->mode);
    CHECK(cx, (unsigned)to->activations <= MPK_ACTIVATIONS_I8, MPK_EARG,
          "activations is %d: no such choice", (int)to->activations);
    CHECK(cx, (unsigned)to->random_routing <= MPK_ROUTING_SAME, MPK_EARG,
          "random_routing is %d: no such choice", (int)to->random_routing);
    CHECK(cx, !to->profile || to->mode == MPK_MODE_KERNEL || to->mode == MPK_MODE_CALLS, MPK_EARG,
          "a profile is of the one kernel: mode must be MPK_MODE_KERNEL or MPK_MODE_CALLS");
    TRY(read_speculation(cx, to));
    TRY(copy_word(cx, a, &to->device));
    TRY(copy_word(cx, a, &to->target));
    TRY(copy_word(cx, a, &to->keep));
    TRY(copy_word(cx, a, &to->draft_model));
    TRY(copy_word(cx, a, &to->meet));
    CHECK(cx, to->meet || (!to->rank && !to->meet_seconds), MPK_EARG,
          "rank and meet_seconds are for processes that meet: set meet");
    CHECK(cx, !to->meet || to->gpus > 1, MPK_EARG,
          "ranks meet at %s, but gpus is 1: say how many ranks there are", to->meet);
    CHECK(cx, to->rank < to->gpus, MPK_EARG, "rank is %u, expected 0 to %u", to->rank,
          to->gpus - 1);
    CHECK(cx, !to->n_adapters || !to->random_weights, MPK_EARG,
          "adapters change the weights of files, but the weights are random");
    TRY(engine_read_adapters(cx, a, &to->adapters, to->n_adapters));
    return copy_degrees(cx, a, to);
}

/* A NaN from the caller would pass a check of the form "x < low || x > high is wrong". */
static bool is_in(float x, float low, float high)
{
    return x >= low && x <= high; /* false for NaN */
}

/* A list that is said to have items is there. */
static mpk_status check_lists(mpk_context *cx, const mpk_request_options *o)
{
    const struct {
        const char *name;
        uint32_t n;
        const void *at;
    } lists[] = {{"stop", o->n_stop, o->stop},
                 {"biases", o->n_biases, o->biases},
                 {"allowed_tokens", o->n_allowed, o->allowed_tokens},
                 {"bad_words", o->n_bad_words, o->bad_words},
                 {"stop_tokens", o->n_stop_tokens, o->stop_tokens}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        CHECK(cx, lists[i].at || !lists[i].n, MPK_EARG, "%s should have %u items, but is NULL",
              lists[i].name, lists[i].n);
    return MPK_OK;
}

/* What is wrong in itself with the rules of a request; whether tokens exist is checked where the
 * model is known (engine_rules.c).  The ranges keep logits finite: with 1e6 as the largest penalty
 * no sum of them reaches infinity in f32.  A bias of -inf is allowed and bans the token; NaN fails
 * the comparison. */
static mpk_status check_rules(mpk_context *cx, const mpk_request_options *o)
{
    CHECK(cx, is_in(o->repetition_penalty, 0, 1e6f), MPK_EARG,
          "repetition_penalty is %g, expected 0 or more", o->repetition_penalty);
    CHECK(cx, is_in(o->presence_penalty, -1e6f, 1e6f), MPK_EARG,
          "presence_penalty is %g, expected a finite number", o->presence_penalty);
    CHECK(cx, is_in(o->frequency_penalty, -1e6f, 1e6f), MPK_EARG,
          "frequency_penalty is %g, expected a finite number", o->frequency_penalty);
    CHECK(cx, is_in(o->top_n_sigma, 0, 1e6f), MPK_EARG, "top_n_sigma is %g, expected 0 or more",
          o->top_n_sigma);
    CHECK(cx, is_in(o->typical_p, 0, 1), MPK_EARG, "typical_p is %g, expected 0 to 1",
          o->typical_p);
    CHECK(cx, o->top_logprobs <= LOGPROBS_TOP, MPK_EARG, "top_logprobs is %u, expected up to %d",
          o->top_logprobs, LOGPROBS_TOP);
    TRY(check_lists(cx, o));
    for (uint32_t i = 0; i < o->n_biases; i++)
        CHECK(cx, o->biases[i].bias < 1e6f, MPK_EARG,
              "the bias of token %d is %g, expected a finite number or -inf", o->biases[i].token,
              o->biases[i].bias);
    for (uint32_t i = 0; i < o->n_bad_words; i++)
        CHECK(cx, o->bad_words[i] && *o->bad_words[i], MPK_EARG, "bad word %u is empty", i + 1);
    return MPK_OK;
}

/* *to is a copy of the struct alone.  Texts and lists are still the caller's: the function that
 * keeps the request copies what it needs later (copy_stops, engine_make_ends). */
mpk_status engine_read_request_options(mpk_context *cx, const mpk_request_options *from,
                                       mpk_request_options *to)
{
    TRY(copy_sized(cx, "mpk_request_options", from, offsetof(mpk_request_options, temperature), to,
                   sizeof *to));
    CHECK(cx, is_in(to->temperature, 0, 1e6f), MPK_EARG, "temperature is %g, expected 0 or more",
          to->temperature);
    CHECK(cx, is_in(to->top_p, 0, 1), MPK_EARG, "top_p is %g, expected 0 to 1", to->top_p);
    CHECK(cx, is_in(to->min_p, 0, 1), MPK_EARG, "min_p is %g, expected 0 to 1", to->min_p);
    CHECK(cx, to->top_k <= INT32_MAX, MPK_EARG, "top_k is %u, expected up to %d", to->top_k,
          INT32_MAX);
    TRY(check_rules(cx, to));
    CHECK(cx,
          (unsigned)to->form <= MPK_FORM_STRUCTURAL_TAG &&
              (to->form_source || to->form <= MPK_FORM_JSON_OBJECT),
          MPK_EARG, "form is %d: no such choice, or it has no form_source", (int)to->form);
    CHECK(cx, !to->form || !to->ignore_eos, MPK_EARG,
          "an answer of a given form ends where the form does: not with "
          "ignore_eos");
    CHECK(cx, !to->prompt_only || !(to->max_tokens || to->min_tokens), MPK_EARG,
          "prompt_only is an answer of no token: not with max_tokens or min_tokens");
    CHECK(cx, to->draft_tokens >= -1 && to->draft_tokens <= ENGINE_MAX_DRAFTS, MPK_EARG,
          "draft_tokens is %d, expected -1 to %d", to->draft_tokens, ENGINE_MAX_DRAFTS);
    for (uint32_t i = 0; i < to->n_stop; i++) {
        /* A stop text that began inside a character would cut one in half. */
        bool good = to->stop[i] && *to->stop[i] && ((unsigned char)*to->stop[i] & 0xc0) != 0x80;
        CHECK(cx, good, MPK_EARG, "stop text %u is empty or begins inside a UTF-8 character",
              i + 1);
    }
    return MPK_OK;
}

/* Called from several places while a model is opened, on the opening thread; done: 0 to 1 of this
 * stage.  MPK_ECANCELLED: the callback asks to give up, and the caller undoes what it has. */
mpk_status engine_progress(mpk_context *cx, const mpk_engine_options *o, const char *stage,
                           double done)
{
    if (o->progress && !o->progress(o->progress_user, stage, done))
        FAIL(cx, MPK_ECANCELLED, "given up while %s", stage);
    return MPK_OK;
}

/* Its texts are JSON and Jinja, which engine_chat.c parses; they stay the caller's. */
mpk_status engine_read_chat_options(mpk_context *cx, const mpk_chat_options *from,
                                    mpk_chat_options *to)
{
    return copy_sized(cx, "mpk_chat_options", from, offsetof(mpk_chat_options, chat_template), to,
                      sizeof *to);
}

/* The type's name is checked by quantize_find_mix, where the names are. */
mpk_status engine_read_quantize_options(mpk_context *cx, arena *a, const mpk_quantize_options *from,
                                        mpk_quantize_options *to)
{
    TRY(copy_sized(cx, "mpk_quantize_options", from, offsetof(mpk_quantize_options, progress), to,
                   sizeof *to));
    CHECK(cx, to->type, MPK_EARG,
          "mpk_quantize_options.type is NULL: name the type of the weights");
    CHECK(cx, to->calibration || !to->calibration_bytes, MPK_EARG,
          "mpk_quantize_options.calibration is NULL, and calibration_bytes is %zu",
          to->calibration_bytes);
    CHECK(cx, to->threads <= ENGINE_MAX_BATCH, MPK_EARG,
          "mpk_quantize_options.threads is %u, expected at most %d", to->threads, ENGINE_MAX_BATCH);
    return engine_read_adapters(cx, a, &to->adapters, to->n_adapters);
}

/* What depends on the model is checked by mpk_embed. */
mpk_status engine_read_embed_options(mpk_context *cx, const mpk_embed_options *from,
                                     mpk_embed_options *to)
{
    TRY(copy_sized(cx, "mpk_embed_options", from, offsetof(mpk_embed_options, raw), to,
                   sizeof *to));
    CHECK(cx, (unsigned)to->pooling <= MPK_POOL_MEAN, MPK_EARG, "pooling is %d: no such choice",
          (int)to->pooling);
    return MPK_OK;
}
