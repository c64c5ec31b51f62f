/* tokenizer_json.c - tokenizer.json (and tokenizer_config.json) -> struct tokenizer.
 *
 *   {"version": "1.0",
 *    "added_tokens": [{"id": 2, "content": "</s>", "special": true, ...}],
 *    "normalizer": {"type": "NFC"},
 *    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [...]},
 *    "model": {"type": "BPE", "vocab": {"a": 0, ...}, "merges": ["a b", ...]},
 *    "decoder": {"type": "ByteLevel", ...},
 *    "post_processor": {"type": "TemplateProcessing", ...}}
 *
 * The file, its model and its added tokens are read here; tokenizer_json_steps.c reads the other
 * parts, tokenizer_json_values.c single values.  A type, an option or a value that is not known
 * here is refused by name: a tokenizer that is nearly right gives wrong answers that go unnoticed.
 * Called by load.c and, for a tokenizer alone, by the engine. */
#include "load/tokenizer_json.h"

#include "base/file.h"

enum { MAX_FILE_BYTES = 1 << 28, MAX_GAP = 1 << 16 };

/* --- the model --- */

/* Ids may have gaps, which added tokens fill, but not so large that a hostile file could make us
 * reserve gigabytes. {"a": 0, "b": 1}: both ways are kept, the text of an id in tokens[], the id of
 * a text in model_ids. */
static mpk_status read_vocab(doc_reader *r, const json_value *vocab)
{
    tokenizer *t = r->t;
    int64_t most = -1;
    CHECK(r->cx, json_is(vocab, JSON_KIND_OBJECT), MPK_EFORMAT,
          "tokenizer.json: model has no \"vocab\" of text to id");
    for (size_t i = 0; i < vocab->n; i++) {
        const json_value *v = &vocab->items[i];
        CHECK(r->cx, doc_is_below(v, DOC_MAX_IDS), MPK_EFORMAT,
              "tokenizer.json: token \"%.*s\" has an id that is none (ids are below %d)",
              SHOWN(v->key), DOC_MAX_IDS);
        if (v->integer > most)
            most = v->integer;
    }
    /* the table has an entry for every id up to the largest */
    CHECK(r->cx, most < (int64_t)(4 * vocab->n + MAX_GAP), MPK_EFORMAT,
          "tokenizer.json: a vocabulary of %zu tokens has an id %lld", vocab->n, (long long)most);
    t->n_tokens = (size_t)(most + 1);
    NEW(r->cx, &t->arena, t->tokens, t->n_tokens);
    for (size_t i = 0; i < vocab->n; i++) {
        const json_value *v = &vocab->items[i];
        str *token = &t->tokens[v->integer];
        CHECK(r->cx, !token->at, MPK_EFORMAT,
              "tokenizer.json: id %lld belongs to \"%.*s\" and to \"%.*s\"", (long long)v->integer,
              SHOWN(*token), SHOWN(v->key));
        token->at = arena_copy(&t->arena, v->key.at, v->key.n);
        token->n = v->key.n;
        CHECK(r->cx, token->at, MPK_ENOMEM, "out of memory for a vocabulary");
        TRY(map_put(r->cx, &t->arena, &t->model_ids, *token, (uint64_t)v->integer));
    }
    return MPK_OK;
}

/* A merge is "left right" or ["left", "right"]. */
static mpk_status split_merge(doc_reader *r, const json_value *v, size_t i, str *left, str *right)
{
    if (json_is(v, JSON_KIND_LIST) && v->n == 2 && doc_is_text(&v->items[0]) &&
        doc_is_text(&v->items[1])) {
        *left = v->items[0].text;
        *right = v->items[1].text;
        return MPK_OK;
    }
    str both = v->text;
    const char *space = doc_is_text(v) ? memchr(both.at, ' ', both.n) : NULL;
    CHECK(r->cx, space && !memchr(space + 1, ' ', (size_t)(both.at + both.n - space - 1)),
          MPK_EFORMAT, "tokenizer.json: merge %zu is not two tokens with a space between", i);
    *left = (str){both.at, (size_t)(space - both.at)};
    *right = (str){space + 1, (size_t)(both.at + both.n - space - 1)};
    return MPK_OK;
}

/* Both sides and their joint text must be tokens: a merge to nothing would be silently
 * unreachable. */
mpk_status tokenizer_add_merge(mpk_context *cx, tokenizer *t, size_t rank, str left, str right)
{
    uint64_t left_id, right_id, id;
    CHECK(cx, map_get(&t->model_ids, left, &left_id), MPK_EFORMAT,
          "merge %zu names \"%.*s\", which is not a token", rank, SHOWN(left));
    CHECK(cx, map_get(&t->model_ids, right, &right_id), MPK_EFORMAT,
          "merge %zu names \"%.*s\", which is not a token", rank, SHOWN(right));
    /* the mark of a token that continues a word goes when it is joined to one before */
    size_t skip = t->prefix.n;
    CHECK(cx, right.n >= skip, MPK_EFORMAT,
          "merge %zu: \"%.*s\" is shorter than the prefix of such tokens", rank, SHOWN(right));
    text joined = {0};
    text_add(&joined, left.at, left.n);
    text_add(&joined, right.at + skip, right.n - skip);
    mpk_status status = text_check(cx, &joined);
    if (status == MPK_OK && !map_get(&t->model_ids, (str){joined.at, joined.n}, &id))
        status = status_fail(cx, MPK_EFORMAT, "merge %zu gives \"%.*s\", which is not a token",
                             rank, (int)joined.n, joined.at);
    text_free(&joined);
    TRY(status);
    pair_map_put(&t->merges, left_id << 32 | right_id, (uint32_t)rank, (uint32_t)id);
    return MPK_OK;
}

/* The rank of a merge is its place in the list. */
static mpk_status read_merges(doc_reader *r, const json_value *merges)
{
    CHECK(r->cx, json_is(merges, JSON_KIND_LIST), MPK_EFORMAT,
          "tokenizer.json: model has no list \"merges\"");
    TRY(pair_map_reserve(r->cx, &r->t->arena, &r->t->merges, merges->n));
    for (size_t i = 0; i < merges->n; i++) {
        str left, right;
        TRY(split_merge(r, &merges->items[i], i, &left, &right));
        NOTE(r->cx, tokenizer_add_merge(r->cx, r->t, i, left, right), "reading tokenizer.json");
    }
    return MPK_OK;
}

/* Options that change ids are read or refused; none is ignored. An option that is not named here is
 * refused by KNOWN: it may come from a newer library and change ids. */
static mpk_status read_model(doc_reader *r, const json_value *o)
{
    tokenizer *t = r->t;
    str unk;
    const json_value *dropout = json_get(o, "dropout");
    CHECK(r->cx, json_is(o, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json has no \"model\"");
    CHECK(r->cx, str_is(doc_type(o), "BPE"), MPK_EUNSUPPORTED,
          "tokenizer.json: model \"%.*s\" is not supported, BPE is", SHOWN(doc_type(o)));
    KNOWN(r, "model", o, "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
          "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges");
    CHECK(r->cx, !dropout || (dropout->kind == JSON_KIND_NUMBER && dropout->number == 0),
          MPK_EUNSUPPORTED,
          "tokenizer.json: \"dropout\" of BPE gives random ids and is not supported");
    TRY(doc_get_text(r, o, "unk_token", false, &unk));
    TRY(doc_get_text(r, o, "continuing_subword_prefix", false, &t->prefix));
    TRY(doc_get_text(r, o, "end_of_word_suffix", false, &t->suffix));
    TRY(doc_get_bool(r, o, "fuse_unk", false, &t->fuse_unk));
    TRY(doc_get_bool(r, o, "byte_fallback", false, &t->byte_fallback));
    TRY(doc_get_bool(r, o, "ignore_merges", false, &t->ignore_merges));
    TRY(read_vocab(r, json_get(o, "vocab")));
    TRY(read_merges(r, json_get(o, "merges")));
    uint64_t id;
    if (unk.at) {
        CHECK(r->cx, map_get(&t->model_ids, unk, &id), MPK_EFORMAT,
              "tokenizer.json: the unknown token \"%.*s\" is not a token", SHOWN(unk));
        t->unk_id = (int32_t)id;
    }
    return MPK_OK;
}

/* --- added tokens --- */

/* normalized is true by default for all but special tokens; such a token is searched for in its
 * normalised form. lstrip and rstrip take white space beside the token into it; single_word asks
 * for no letter beside it. */
static mpk_status read_added(doc_reader *r, const json_value *o, size_t i, added_token *a)
{
    CHECK(r->cx, json_is(o, JSON_KIND_OBJECT), MPK_EFORMAT,
          "tokenizer.json: added token %zu is not an object", i);
    KNOWN(r, "added token", o, "id", "content", "single_word", "lstrip", "rstrip", "normalized",
          "special");
    const json_value *id = json_get(o, "id");
    CHECK(r->cx, doc_is_below(id, DOC_MAX_IDS), MPK_EFORMAT,
          "tokenizer.json: added token %zu has no id", i);
    *a = (added_token){.id = (int32_t)id->integer};
    TRY(doc_get_text(r, o, "content", true, &a->content));
    CHECK(r->cx, a->content.n, MPK_EUNSUPPORTED, "tokenizer.json: added token %d is an empty text",
          a->id);
    TRY(doc_get_bool(r, o, "single_word", false, &a->single_word));
    TRY(doc_get_bool(r, o, "lstrip", false, &a->lstrip));
    TRY(doc_get_bool(r, o, "rstrip", false, &a->rstrip));
    TRY(doc_get_bool(r, o, "special", false, &a->special));
    TRY(doc_get_bool(r, o, "normalized", !a->special, &a->normalized));
    a->text = a->content;
    if (a->normalized)
        TRY(tokenizer_normalize(r->cx, r->t, &r->t->arena, a->content, &a->text));
    return MPK_OK;
}

/* The library does not believe the ids of added tokens: a token of the model keeps its id, others
 * are counted on. */
static mpk_status check_added_id(doc_reader *r, const added_token *a, size_t model_tokens,
                                 int64_t *last)
{
    uint64_t id;
    if (!map_get(&r->t->model_ids, a->content, &id) &&
        !map_get(&r->t->added_ids, a->content, &id)) {
        id = *last >= (int64_t)model_tokens || (*last >= 0 && !model_tokens) ? (uint64_t)*last + 1
                                                                             : model_tokens;
    }
    CHECK(
        r->cx, (int32_t)id == a->id, MPK_EUNSUPPORTED,
        "tokenizer.json: added token \"%.*s\" says id %d, but its place in the vocabulary is %llu",
        SHOWN(a->content), a->id, (unsigned long long)id);
    if (a->id > *last)
        *last = a->id;
    return MPK_OK;
}

/* Room in the table of tokens for id. */
static mpk_status grow_tokens(doc_reader *r, size_t id)
{
    tokenizer *t = r->t;
    if (id < t->n_tokens)
        return MPK_OK;
    str *more;
    NEW(r->cx, &t->arena, more, id + 1);
    if (t->n_tokens)
        memcpy(more, t->tokens, t->n_tokens * sizeof *more);
    t->tokens = more;
    t->n_tokens = id + 1;
    return MPK_OK;
}

/* Added tokens may extend the vocabulary beyond the model's, or give a token of the model a
 * role. */
static mpk_status read_added_tokens(doc_reader *r, const json_value *list)
{
    tokenizer *t = r->t;
    size_t model_tokens = t->model_ids.n;
    int64_t last = -1, most = -1;
    CHECK(r->cx, !list || list->kind == JSON_KIND_LIST, MPK_EFORMAT,
          "tokenizer.json: \"added_tokens\" is not a list");
    for (size_t i = 0; list && i < list->n; i++) {
        added_token a;
        TRY(read_added(r, &list->items[i], i, &a));
        TRY(check_added_id(r, &a, model_tokens, &last));
        TRY(map_put(r->cx, &t->arena, &t->added_ids, a.content, (uint64_t)a.id));
        PUSH(r->cx, &t->arena, &t->added, a);
        most = a.id > most ? a.id : most;
    }
    TRY(grow_tokens(r, (size_t)(most + 1 > 0 ? most : 0)));
    NEW(r->cx, &t->arena, t->special, t->n_tokens);
    /* decoded as they are searched for: so does the library */
    for (size_t i = 0; i < t->added.n; i++) {
        t->tokens[t->added.at[i].id] = t->added.at[i].text;
        t->special[t->added.at[i].id] |= t->added.at[i].special;
    }
    return MPK_OK;
}

/* --- tokenizer_config.json --- */

/* The id of a token that the config names, as text or as an object with "content"; -1 if it does
 * not. */
static int32_t config_id(const tokenizer *t, const json_value *config, const char *key)
{
    const json_value *v = json_get(config, key);
    if (json_is(v, JSON_KIND_OBJECT))
        v = json_get(v, "content");
    return doc_is_text(v) ? tokenizer_find(t, v->text) : -1;
}

/* Anything but true counts as absent here: these flags are not part of tokenizer.json. */
static bool is_true(const json_value *v)
{
    return json_is(v, JSON_KIND_BOOL) && v->boolean;
}

/* BOS, EOS and padding; add_bos_token and add_eos_token add what the post-processor does not add
 * already. */
static mpk_status read_config(doc_reader *r, const json_value *config)
{
    tokenizer *t = r->t;
    tokenizer_ids before = {0}, after = {0};
    t->bos_id = config_id(t, config, "bos_token");
    t->eos_id = config_id(t, config, "eos_token");
    t->pad_id = config_id(t, config, "pad_token");
    bool has_bos = t->before.n && t->before.at[0] == t->bos_id;
    bool has_eos = t->after.n && t->after.at[t->after.n - 1] == t->eos_id;
    if (is_true(json_get(config, "add_bos_token")) && t->bos_id >= 0 && !has_bos)
        PUSH(r->cx, &t->arena, &before, t->bos_id);
    if (is_true(json_get(config, "add_eos_token")) && t->eos_id >= 0 && !has_eos)
        PUSH(r->cx, &t->arena, &after, t->eos_id);
    return doc_surround(r, &before, &after);
}

/* The ids around a text must be ids: their readers index with them. */
static mpk_status check_ids(doc_reader *r, const tokenizer_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        CHECK(r->cx, (size_t)ids->at[i] < r->t->n_tokens, MPK_EFORMAT,
              "tokenizer.json: the post-processor adds id %d, but there are %zu tokens", ids->at[i],
              r->t->n_tokens);
    return MPK_OK;
}

/* --- the file --- */

/* A part that is absent or null leaves its steps empty. */
static mpk_status read_part(doc_reader *r, const json_value *root, const char *key, doc_read one)
{
    const json_value *v = json_get(root, key);
    return v ? one(r, v) : MPK_OK;
}

/* The model comes first: post-processors name its tokens.  Added tokens come after the normalizer,
 * which they pass through. Without a decoder the library joins tokens by blanks (STEP_JOIN).
 * `config` is NULL if there is no tokenizer_config.json. */
static mpk_status read_root(doc_reader *r, const json_value *root, const json_value *config)
{
    const json_value *version = json_get(root, "version");
    step *s = NULL;
    CHECK(r->cx, json_is(root, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json is not an object");
    CHECK(r->cx, !version || (doc_is_text(version) && str_is(version->text, "1.0")),
          MPK_EUNSUPPORTED, "tokenizer.json: only version \"1.0\" is known");
    TRY(read_model(r, json_get(root, "model")));
    TRY(read_part(r, root, "normalizer", doc_read_normalizer));
    TRY(read_part(r, root, "pre_tokenizer", doc_read_pre_tokenizer));
    TRY(read_part(r, root, "decoder", doc_read_decoder));
    if (!json_get(root, "decoder"))
        TRY(steps_add(r->cx, &r->t->decode, STEP_JOIN, &s));
    TRY(read_part(r, root, "post_processor", doc_read_post_processor));
    TRY(read_added_tokens(r, json_get(root, "added_tokens")));
    TRY(check_ids(r, &r->t->before));
    TRY(check_ids(r, &r->t->after));
    TRY(tokenizer_finish(r->cx, r->t));
    return config ? read_config(r, config) : MPK_OK;
}

/* r->t is the caller's to free after a failure. */
static mpk_status read_documents(doc_reader *r, arena *a, str json, str config)
{
    const json_value *root, *config_root = NULL;
    NOTE(r->cx, json_parse(r->cx, a, json, &root), "reading tokenizer.json");
    if (config.n)
        NOTE(r->cx, json_parse(r->cx, a, config, &config_root), "reading tokenizer_config.json");
    TRY(tokenizer_new(r->cx, &r->t));
    return read_root(r, root, config_root);
}

/* The parsed documents are freed here; everything that the tokenizer keeps was copied. */
mpk_status tokenizer_from_json_bytes(mpk_context *cx, str json, str config, tokenizer **out)
{
    doc_reader r = {.cx = cx};
    arena documents = {0};
    mpk_status status = read_documents(&r, &documents, json, config);
    arena_free(&documents);
    if (status == MPK_OK)
        *out = r.t;
    else
        tokenizer_free(r.t);
    return status;
}

/* `path` is a folder or the file itself; tokenizer_config.json lies beside it, or not at all. */
static mpk_status read_files(mpk_context *cx, arena *a, const char *path, str *json, str *config)
{
    const char *folder = path, *file = path;
    if (file_is_folder(path)) {
        TRY(file_join(cx, a, path, "tokenizer.json", &file));
    } else {
        const char *slash = strrchr(path, '/');
        folder = slash ? arena_copy(a, path, (size_t)(slash - path + 1)) : ".";
        CHECK(cx, folder, MPK_ENOMEM, "out of memory for a path");
    }
    TRY(file_read(cx, a, file, MAX_FILE_BYTES, json));
    const char *beside;
    TRY(file_join(cx, a, folder, "tokenizer_config.json", &beside));
    *config = (str){0};
    return file_exists(beside) ? file_read(cx, a, beside, MAX_FILE_BYTES, config) : MPK_OK;
}

/* *out is the caller's, to be freed by tokenizer_free. */
mpk_status tokenizer_from_json(mpk_context *cx, const char *path, tokenizer **out)
{
    arena a = {0};
    str json, config;
    mpk_status status = read_files(cx, &a, path, &json, &config);
    if (status == MPK_OK)
        status = tokenizer_from_json_bytes(cx, json, config, out);
    if (status != MPK_OK)
        status = status_note(cx, status, "loading the tokenizer of %s", path);
    arena_free(&a);
    return status;
}
