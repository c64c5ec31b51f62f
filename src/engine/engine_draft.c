/* engine_draft.c - the draft model of an engine (docs/runtime.md): opened beside the model, refused
 * unless it speaks of the same tokens.
 *
 * Input: a path, and the model that is loaded.  Output: engine_build.draft, from which
 * engine_compile.c compiles further graphs into the same program.  Called when an engine is opened.
 *
 * The two models meet in token ids: the draft model proposes some, the model checks them.  So their
 * tokens must be the same; sizes and layers may differ.  In the program the draft model's weights
 * have names that begin with MODEL_DRAFT, by which they are told from the model's.
 */
#include <stdlib.h>

#include "engine/engine.h"

/* Ids that one vocabulary spells and the other does not: files pad them in different ways. */
enum { MOST_ALONE = 1024 };

/* Are the ids of both models the same tokens?  An id that both spell must be spelt alike: if it
 * were not, a draft would be accepted or refused as another token.  An id that only one of them
 * spells is never drafted, or never stands, and a few of them are allowed. */
static mpk_status compare_tokens(mpk_context *cx, const load_model *model, const load_model *draft)
{
    const tokenizer *a = model->tokenizer, *b = draft->tokenizer;
    int32_t n = tokenizer_vocab_size(a), n_alone = 0;
    n = n > tokenizer_vocab_size(b) ? n : tokenizer_vocab_size(b);
    for (int32_t id = 0; id < n; id++) {
        str x = tokenizer_token(a, id), y = tokenizer_token(b, id);
        n_alone += (x.at != NULL) != (y.at != NULL);
        CHECK(cx, !x.at || !y.at || str_equal(x, y), MPK_EARG,
              "it has another vocabulary: token %d is \"%.*s\", of the model \"%.*s\"", id,
              STR_SHOWN(y, 64), STR_SHOWN(x, 64));
    }
    CHECK(cx, n_alone <= MOST_ALONE, MPK_EARG,
          "it has another vocabulary: %d of the %d tokens are in one of the two models alone",
          n_alone, n);
    return MPK_OK;
}

/* By their tokens; with random weights, where a tokenizer may be missing, by their numbers
 * alone. */
static mpk_status check_vocabulary(mpk_context *cx, const engine_build *b)
{
    const load_model *model = &b->model, *draft = &b->draft;
    if (model->tokenizer && draft->tokenizer)
        return compare_tokens(cx, model, draft);
    CHECK(cx, b->options.random_weights, MPK_EARG,
          "%s has no vocabulary, so whether both models have the same cannot be checked",
          model->tokenizer ? "it" : "the model");
    CHECK(cx, model->config.vocab_size == draft->config.vocab_size, MPK_EARG,
          "it has %u tokens, the model %u", draft->config.vocab_size, model->config.vocab_size);
    return MPK_OK;
}

/* On failure after load_open has_draft is set, by which engine_build_free closes it. */
static mpk_status open_draft(mpk_context *cx, engine_build *b)
{
    CHECK(cx, !engine_is_image(b->options.draft_model), MPK_EARG,
          "it is an image: name the model that it was made from");
    TRY(load_open(cx, b->options.draft_model, &b->draft));
    b->has_draft = true;
    TRY(load_order_heads(cx, &b->draft, b->device.target->most_group));
    CHECK(cx, b->draft.has_config, MPK_EARG, "it is a vocabulary alone");
    CHECK(cx, b->options.random_weights || b->draft.tensors.n, MPK_EARG,
          "it has a configuration but no weights");
    return check_vocabulary(cx, b);
}

mpk_status engine_open_draft(mpk_context *cx, engine_build *b)
{
    const mpk_engine_options *o = &b->options;
    if (!o->draft_model)
        return MPK_OK;
    CHECK(cx, !o->embeddings, MPK_EARG, "a draft model is for answers, not for embeddings");
    NOTE(cx, open_draft(cx, b), "opening the draft model %s", o->draft_model);
    return MPK_OK;
}

/* Weights of the draft model have the prefix MODEL_DRAFT in the program; it is cut from *name. */
const load_model *engine_weight_model(const engine_build *b, str *name)
{
    const size_t n = sizeof MODEL_DRAFT - 1;
    if (!b->has_draft || name->n < n || memcmp(name->at, MODEL_DRAFT, n) != 0)
        return &b->model;
    *name = (str){name->at + n, name->n - n};
    return &b->draft;
}

/* The structs are copied, not the maps: the models own these and close them. */
mpk_status engine_join_files(mpk_context *cx, engine_build *b, const file_map **files, size_t *n)
{
    const size_t n_model = b->model.files.n, n_draft = b->has_draft ? b->draft.files.n : 0;
    file_map *all;
    *files = b->model.files.at;
    *n = n_model + n_draft;
    if (!n_model || !n_draft)
        return MPK_OK;
    NEW(cx, &b->arena, all, *n);
    memcpy(all, b->model.files.at, n_model * sizeof *all);
    memcpy(all + n_model, b->draft.files.at, n_draft * sizeof *all);
    *files = all;
    return MPK_OK;
}
