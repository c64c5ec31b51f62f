/* adapter_peft.c - an adapter as a folder of PEFT: adapter_config.json and the tensors of
 * adapter_model.safetensors.
 *
 *   base_model.model.MODULE.lora_A.weight [r, K], lora_B.weight [N, r]
 *   base_model.model.MODULE.lora_embedding_A [r, V], lora_embedding_B [D, r]
 *   base_model.model.MODULE.lora_magnitude_vector [N]      of DoRA
 *   base_model.model.MODULE.weight, .bias                  trained whole (modules_to_save, "bias")
 *
 * MODULE is the model's own name for a layer; its weight is MODULE.weight.  The factor of an update
 * is lora_alpha / r, with rsLoRA lora_alpha / sqrt(r); rank_pattern and alpha_pattern give modules
 * whose names end in a match another r or lora_alpha.  Which modules have an update the tensors say
 * themselves, so target_modules and layers_to_transform are not read.  "fan_in_fan_out" is of
 * modules that store their weight transposed; no family here has one, and PEFT ignores it for all
 * others, too.
 */
#include <math.h>

#include "base/json.h"
#include "load/adapter.h"
#include "load/tokenizer_parts.h"

/* What the configuration says of all modules. */
typedef struct peft {
    adapter *a;
    uint32_t r;
    double alpha;
    bool root, dora; /* use_rslora, use_dora */
    const json_value *ranks, *alphas;
    regex_match *match;
} peft;

/* ---- the configuration ---- */

/* Is a member there and neither false nor empty? */
static bool is_given(const json_value *v)
{
    if (!v || (v->kind == JSON_KIND_BOOL && !v->boolean))
        return false;
    return (v->kind != JSON_KIND_LIST && v->kind != JSON_KIND_OBJECT) || v->n;
}

/* What needs more than an update of weights, or an update that the tensors alone do not say. */
static mpk_status refuse_unsupported(mpk_context *cx, const json_value *j)
{
    static const char *const members[][2] = {
        {"target_parameters", "experts that are one tensor have updates (\"target_parameters\")"},
        {"layer_replication", "layers of the model stand several times (\"layer_replication\")"},
        {"trainable_token_indices",
         "single rows of the embedding were trained (\"trainable_token_indices\")"},
        {"alora_invocation_tokens",
         "it begins at certain tokens (\"alora_invocation_tokens\"), which cannot be merged into "
         "weights"},
        {"lora_bias", "updates have biases (\"lora_bias\")"},
        {"use_qalora", "updates are of groups of columns (\"use_qalora\")"},
        {"use_bdlora", "updates are of blocks along a diagonal (\"use_bdlora\")"},
        {"kasa_config", "singular values of the weights are cut off (\"kasa_config\")"},
        {"monteclora_config", "updates are drawn at random (\"monteclora_config\")"},
        {"arrow_config", "it chooses among adapters for each token (\"arrow_config\")"}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        CHECK(cx, !is_given(json_get(j, members[i][0])), MPK_EUNSUPPORTED,
              "the adapter cannot be merged: %s", members[i][1]);
    return MPK_OK;
}

/* Ways of beginning a training that change the model's own weights: the update is then of other
 * weights than the model's. */
static mpk_status refuse_changed_base(mpk_context *cx, const json_value *j)
{
    static const char *const ways[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    const json_value *way = json_get(j, "init_lora_weights");
    for (size_t i = 0; json_is(way, JSON_KIND_STRING) && i < sizeof ways / sizeof *ways; i++)
        CHECK(cx, !str_begins(way->text, str_from(ways[i])), MPK_EUNSUPPORTED,
              "\"init_lora_weights\" is \"%.*s\", so the adapter belongs to weights that training "
              "has changed: save it for the model's own (PEFT's "
              "path_initial_model_for_weight_conversion)",
              LOAD_NAME(way->text));
    return MPK_OK;
}

static mpk_status read_config(mpk_context *cx, const json_value *j, peft *p)
{
    str type = {0};
    CHECK(cx, json_is(j, JSON_KIND_OBJECT), MPK_EFORMAT, "adapter_config.json is not an object");
    TRY(json_read_str(cx, j, "peft_type", &type));
    CHECK(cx, str_is(type, "LORA"), MPK_EUNSUPPORTED,
          "the adapter's method (\"peft_type\") is \"%.*s\"; LORA is supported", LOAD_NAME(type));
    TRY(refuse_unsupported(cx, j));
    TRY(refuse_changed_base(cx, j));
    CHECK(cx, json_get(j, "r") && json_get(j, "lora_alpha"), MPK_EFORMAT,
          "adapter_config.json has no \"r\" or no \"lora_alpha\"");
    TRY(json_read_u32(cx, j, "r", &p->r));
    TRY(json_read_double(cx, j, "lora_alpha", &p->alpha));
    TRY(json_read_bool(cx, j, "use_rslora", &p->root));
    TRY(json_read_bool(cx, j, "use_dora", &p->dora));
    TRY(json_read_bool(cx, j, "ensure_weight_tying", &p->a->ties));
    TRY(json_read_str(cx, j, "base_model_name_or_path", &p->a->made_for));
    p->ranks = json_get(j, "rank_pattern");
    p->alphas = json_get(j, "alpha_pattern");
    return MPK_OK;
}

/* Is the whole name, or what follows a dot in it, a match of the pattern?  The pattern is a regular
 * expression, though most are plain names. */
static mpk_status matches(mpk_context *cx, peft *p, str pattern, str name, bool *found)
{
    const subject in = {.original = name, .shown = name};
    regex *r = NULL;
    text t = {0};
    size_t start, end;
    text_print(&t, "\\A(?:.*\\.)?(?:%.*s)\\z", STR_ARG(pattern));
    mpk_status status =
        t.failed ? status_fail(cx, MPK_ENOMEM, "out of memory for a pattern of modules") : MPK_OK;
    if (status == MPK_OK && !p->match)
        status = regex_match_new(cx, &p->match);
    if (status == MPK_OK)
        status = regex_compile_native(cx, &p->a->files.arena, text_str(&t), &r);
    if (status == MPK_OK)
        status = regex_find(cx, p->match, r, &in, 0, found, &start, &end);
    regex_free(r);
    text_free(&t);
    return status;
}

/* The number of the first pattern that matches the module; NULL: none does. */
static mpk_status find_pattern(mpk_context *cx, peft *p, const json_value *patterns, str module,
                               const json_value **out)
{
    *out = NULL;
    for (size_t i = 0; json_is(patterns, JSON_KIND_OBJECT) && i < patterns->n; i++) {
        bool found = false;
        NOTE(cx, matches(cx, p, patterns->items[i].key, module, &found),
             "reading rank_pattern and alpha_pattern");
        if (!found)
            continue;
        CHECK(cx, patterns->items[i].kind == JSON_KIND_NUMBER, MPK_EFORMAT,
              "the pattern %.*s has no number", LOAD_NAME(patterns->items[i].key));
        *out = &patterns->items[i];
        return MPK_OK;
    }
    return MPK_OK;
}

/* The factor of a module's update, whose rank must be what the configuration says. */
static mpk_status find_factor(mpk_context *cx, peft *p, str module, adapter_change *c)
{
    const json_value *rank = NULL, *alpha = NULL;
    const int64_t found = adapter_rank(c);
    TRY(find_pattern(cx, p, p->ranks, module, &rank));
    TRY(find_pattern(cx, p, p->alphas, module, &alpha));
    const double said = rank ? rank->number : p->r, root = sqrt((double)found);
    CHECK(cx, said == (double)found, MPK_ESHAPE,
          "tensor %.*s has the rank %lld, but adapter_config.json says %g", LOAD_NAME(c->found),
          (long long)found, said);
    c->factor = alpha ? alpha->number : p->alpha;
    c->factor /= p->root ? root : (double)found;
    return MPK_OK;
}

/* ---- tensors ---- */

/* The module of a tensor and what of it the tensor is. */
typedef enum peft_role {
    PEFT_A,
    PEFT_B,
    PEFT_EMBEDDING_A,
    PEFT_EMBEDDING_B,
    PEFT_MAGNITUDE,
    PEFT_ROLES
} peft_role;
static const char *const role_ends[] = {".lora_A.weight", ".lora_B.weight", ".lora_embedding_A",
                                        ".lora_embedding_B", ".lora_magnitude_vector"};

/* The name without what PEFT puts before every name. */
static str cut_head(str name)
{
    const str head = STR("base_model.model.");
    return str_begins(name, head) ? (str){name.at + head.n, name.n - head.n} : name;
}

static peft_role find_role(str name, str *stem)
{
    peft_role role = PEFT_A;
    while (role < PEFT_ROLES && !str_ends(name, str_from(role_ends[role])))
        role++;
    *stem = name;
    if (role < PEFT_ROLES)
        stem->n -= strlen(role_ends[role]);
    return role;
}

/* Another tensor of the module; stem: with PEFT's head. */
static mpk_status find_part(mpk_context *cx, const peft *p, str stem, peft_role role,
                            const load_tensor **out)
{
    str name;
    uint64_t index;
    TRY(load_make_name(cx, &p->a->files.arena, stem, role_ends[role], &name));
    CHECK(cx, map_get(&p->a->files.names, name, &index), MPK_EFORMAT,
          "the adapter has no tensor %.*s", LOAD_NAME(name));
    *out = &p->a->files.tensors.at[index];
    return MPK_OK;
}

/* The update of a module; t: its lora_A or lora_embedding_A. */
static mpk_status add_update(mpk_context *cx, peft *p, const load_tensor *t, peft_role role,
                             str stem)
{
    arena *memory = &p->a->files.arena;
    const bool embeds = role == PEFT_EMBEDDING_A;
    const load_tensor *b = t, *magnitude = t;
    adapter_change c = {.found = t->name, .entry = -1};
    TRY(find_part(cx, p, stem, embeds ? PEFT_EMBEDDING_B : PEFT_B, &b));
    TRY(load_make_name(cx, memory, cut_head(stem), ".weight", &c.name));
    c.left = embeds ? *t : *b;
    c.right = embeds ? *b : *t;
    c.left_turned = c.right_turned = embeds;
    TRY(adapter_check_update(cx, &c));
    TRY(find_factor(cx, p, cut_head(stem), &c));
    if (p->dora) {
        CHECK(cx, !embeds, MPK_EUNSUPPORTED, "tensor %.*s: DoRA of an embedding cannot be merged",
              LOAD_NAME(t->name));
        TRY(find_part(cx, p, stem, PEFT_MAGNITUDE, &magnitude));
        c.magnitude = *magnitude;
    }
    PUSH(cx, memory, &p->a->changes, c);
    return MPK_OK;
}

/* A tensor that was trained whole. */
static mpk_status add_whole(mpk_context *cx, const peft *p, const load_tensor *t)
{
    arena *memory = &p->a->files.arena;
    const char *const ends[] = {".weight", ".bias"};
    const str inner = STR(".base_layer");
    str name = cut_head(t->name);
    const int i = str_ends(name, str_from(ends[1])), before = (int)strlen(ends[i]);
    CHECK(cx, str_ends(name, str_from(ends[i])) && !memmem(name.at, name.n, "lora_", 5),
          MPK_EUNSUPPORTED, "tensor %.*s of the adapter is not known here", LOAD_NAME(t->name));
    str stem = {name.at, name.n - (size_t)before};
    if (str_ends(stem, inner))
        stem.n -= inner.n;
    adapter_change c = {.found = t->name, .entry = -1, .whole = *t, .factor = 1};
    TRY(load_make_name(cx, memory, stem, ends[i], &c.name));
    PUSH(cx, memory, &p->a->changes, c);
    return MPK_OK;
}

/* A tensor of the folder: that of an update's first part adds it, those of others only look for
 * the first part. */
static mpk_status take_tensor(mpk_context *cx, peft *p, const load_tensor *t)
{
    const load_tensor *first = t;
    str stem;
    const peft_role role = find_role(t->name, &stem);
    switch (role) {
    case PEFT_A:
    case PEFT_EMBEDDING_A:
        return add_update(cx, p, t, role, stem);
    case PEFT_MAGNITUDE:
        CHECK(cx, p->dora, MPK_EUNSUPPORTED,
              "tensor %.*s is of DoRA, which adapter_config.json does not say (\"use_dora\")",
              LOAD_NAME(t->name));
        return find_part(cx, p, stem, PEFT_A, &first);
    case PEFT_B:
        return find_part(cx, p, stem, PEFT_A, &first);
    case PEFT_EMBEDDING_B:
        return find_part(cx, p, stem, PEFT_EMBEDDING_A, &first);
    case PEFT_ROLES:
        break;
    }
    return add_whole(cx, p, t);
}

mpk_status adapter_read_peft(mpk_context *cx, str config, adapter *a)
{
    const json_value *j;
    peft p = {.a = a};
    NOTE(cx, json_parse(cx, &a->files.arena, config, &j), "parsing adapter_config.json");
    TRY(read_config(cx, j, &p));
    CHECK(cx, a->files.tensors.n, MPK_EFORMAT, "the adapter has no tensors");
    mpk_status status = MPK_OK;
    for (size_t i = 0; status == MPK_OK && i < a->files.tensors.n; i++)
        status = take_tensor(cx, &p, &a->files.tensors.at[i]);
    regex_match_free(p.match);
    return status;
}
