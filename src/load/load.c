/* load.c - open a model, a Hugging Face folder or a GGUF file; code that the formats share.  No
 * weights are read here: a tensor is an address in a mapping.
 *
 * After everything is found, the model's program is built once for one token.  That asks for
 * each weight by name and shape, so missing or misshapen weights are reported now, and so are
 * weights of a layer that the program would not use (a different architecture under a known
 * name).
 *
 * What is read of a folder; all is optional but one of the first two:
 *
 *   config.json                         hyper-parameters              hf_config.c
 *   tokenizer.json                      vocabulary                    tokenizer_json.c
 *   generation_config.json              suggestions, ends of text     hf_config.c
 *   hf_quant_config.json                how weights were quantised    hf_scheme.c
 *   chat_template.jinja, tokenizer_config.json, special_tokens_map.json   hf_chat.c
 *   model.safetensors, or the shards that model.safetensors.index.json names
 *
 * Called by the engine (load_open) and by the tests of the formats.
 */
#include "load/load.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "ir/blocks.h"

/* A larger JSON file is refused. */
enum { JSON_BYTES_LIMIT = 1 << 28 };

/* Add an end-of-text token; several files may name the same one. */
mpk_status load_add_eos(mpk_context *cx, model_config *c, int32_t id)
{
    for (uint32_t i = 0; i < c->n_eos_tokens; i++)
        if (c->eos_tokens[i] == id)
            return MPK_OK;
    CHECK(cx, c->n_eos_tokens < sizeof c->eos_tokens / sizeof *c->eos_tokens, MPK_ELIMIT,
          "the model names more than %zu end-of-text tokens",
          sizeof c->eos_tokens / sizeof *c->eos_tokens);
    c->eos_tokens[c->n_eos_tokens++] = id;
    return MPK_OK;
}

/* The size follows from shape and dtype, never from the file.  The limit of 2^48 elements keeps
 * every later product of sizes within 64 bits. Blocks lie along the last axis, so rows are whole
 * blocks. */
mpk_status load_tensor_bytes(mpk_context *cx, const load_tensor *t, uint64_t *n_bytes)
{
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    uint64_t elements = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        CHECK(cx, t->dims[i] >= 1, MPK_EFORMAT, "tensor %.*s: dimension %u is %lld",
              LOAD_NAME(t->name), i, (long long)t->dims[i]);
        CHECK(cx,
              !__builtin_mul_overflow(elements, (uint64_t)t->dims[i], &elements) &&
                  elements < UINT64_C(1) << 48,
              MPK_EFORMAT, "tensor %.*s: its dimensions multiply to more than 2^48",
              LOAD_NAME(t->name));
    }
    uint64_t row = t->rank ? (uint64_t)t->dims[t->rank - 1] : 1;
    CHECK(cx, row % info->block_elements == 0, MPK_EFORMAT,
          "tensor %.*s: rows of %llu are not a multiple of %u (%s)", LOAD_NAME(t->name),
          (unsigned long long)row, info->block_elements, info->name);
    *n_bytes = elements / info->block_elements * info->block_bytes;
    return MPK_OK;
}

float load_number(const load_tensor *t, int64_t i)
{
    float whole;
    uint16_t half;
    if (t->dtype == IR_F32)
        return memcpy(&whole, (const char *)t->data + 4 * i, sizeof whole), whole;
    memcpy(&half, (const char *)t->data + 2 * i, sizeof half);
    return t->dtype == IR_BF16 ? num_from_bf16(half) : num_from_f16(half);
}

const void *load_row_at(const load_tensor *t, int64_t rows, int64_t row)
{
    const uint64_t row_bytes = t->n_bytes / (uint64_t)rows;
    if (!t->parts)
        return (const char *)t->data + (uint64_t)row * row_bytes;
    const int64_t of_part = rows / t->dims[0];
    return (const char *)t->parts[row / of_part] + (uint64_t)(row % of_part) * row_bytes;
}

bool load_unpack(ir_dtype dtype, const void *from, int64_t n, float *to)
{
    const char *at = from;
    uint16_t half;
    if (dtype == IR_F32)
        return memcpy(to, from, (size_t)n * sizeof *to), true;
    if (dtype != IR_F16 && dtype != IR_BF16)
        return blocks_unpack_row(dtype, from, n, to);
    for (int64_t i = 0; i < n; i++) {
        memcpy(&half, at + 2 * i, sizeof half);
        to[i] = dtype == IR_BF16 ? num_from_bf16(half) : num_from_f16(half);
    }
    return true;
}

mpk_status load_make_name(mpk_context *cx, arena *a, str stem, const char *end, str *out)
{
    char name[192];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)stem.n, stem.at, end);
    CHECK(cx, n > 0 && (size_t)n < sizeof name, MPK_EFORMAT, "the name %.*s is too long",
          LOAD_NAME(stem));
    *out = (str){arena_copy(a, name, (size_t)n), (size_t)n};
    CHECK(cx, out->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

void load_empty_list(load_model *m)
{
    m->tensors.at = NULL;
    m->tensors.n = m->tensors.capacity = 0;
    m->names = (map){0};
}

/* Names appear in error messages on terminals, so control characters are refused here, for all
 * formats. */
mpk_status load_add_tensor(mpk_context *cx, load_model *m, const load_tensor *t)
{
    CHECK(cx, t->name.n, MPK_EFORMAT, "a tensor has an empty name");
    for (size_t i = 0; i < t->name.n; i++)
        CHECK(cx, (unsigned char)t->name.at[i] >= ' ' && t->name.at[i] != 127, MPK_EFORMAT,
              "the name of tensor number %zu has a control character", m->tensors.n);
    CHECK(cx, !map_get(&m->names, t->name, NULL), MPK_EFORMAT, "tensor %.*s is there twice",
          LOAD_NAME(t->name));
    PUSH(cx, &m->arena, &m->tensors, *t);
    return map_put(cx, &m->arena, &m->names, t->name, m->tensors.n - 1);
}

/* For qsort over pointers to tensors: by address. */
static int compare_addresses(const void *left, const void *right)
{
    const load_tensor *a = *(const load_tensor *const *)left,
                      *b = *(const load_tensor *const *)right;
    return (a->data > b->data) - (a->data < b->data);
}

/* If any two tensors overlap, some two neighbours by address do.  Only tensors of one file are
 * compared (from `first` on); the sorted list goes back to the arena. */
mpk_status load_check_overlap(mpk_context *cx, load_model *m, size_t first)
{
    size_t n = m->tensors.n - first;
    arena_mark mark = arena_get_mark(&m->arena);
    const load_tensor **sorted;
    NEW(cx, &m->arena, sorted, n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &m->tensors.at[first + i];
    qsort(sorted, n, sizeof *sorted, compare_addresses);
    for (size_t i = 1; i < n; i++)
        CHECK(cx,
              (const char *)sorted[i - 1]->data + sorted[i - 1]->n_bytes <=
                  (const char *)sorted[i]->data,
              MPK_EFORMAT, "the bytes of tensors %.*s and %.*s overlap",
              LOAD_NAME(sorted[i - 1]->name), LOAD_NAME(sorted[i]->name));
    arena_reset(&m->arena, mark);
    return MPK_OK;
}

/* The mapping is closed with the model. */
mpk_status load_map(mpk_context *cx, const char *path, load_model *m, file_map *out)
{
    file_map file = {0};
    /* reserved first, so that a mapping cannot be lost */
    PUSH(cx, &m->arena, &m->files, file);
    TRY(file_map_open(cx, path, &file));
    m->files.at[m->files.n - 1] = file;
    *out = file;
    return MPK_OK;
}

const load_tensor *load_find(const load_model *m, const char *name)
{
    uint64_t index;
    return map_get(&m->names, str_from(name), &index) ? &m->tensors.at[index] : NULL;
}

/* Write dims as "[576, 64]"; returns `to`. */
static const char *print_dims(char to[128], uint32_t rank, const int64_t *dims)
{
    int n = snprintf(to, 128, "[");
    for (uint32_t i = 0; i < rank; i++)
        n += snprintf(to + n, (size_t)(128 - n), "%s%lld", i ? ", " : "", (long long)dims[i]);
    snprintf(to + n, (size_t)(128 - n), "]");
    return to;
}

/* model_weights.dtype for a loaded model: the only place where a weight's shape is compared with
 * the expected one. */
static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                               const int64_t *dims, ir_dtype *dtype)
{
    const load_model *m = self;
    char found[128], expected[128];
    if (m->tensors.n == 0) {
        *dtype = m->config.weight_dtype;
        return MPK_OK;
    }
    const load_tensor *t = load_find(m, name);
    CHECK(cx, t, MPK_EFORMAT, "the weight %s is missing", name);
    CHECK(cx, t->rank == rank && memcmp(t->dims, dims, rank * sizeof *dims) == 0, MPK_ESHAPE,
          "the weight %s has shape %s, expected %s", name, print_dims(found, t->rank, t->dims),
          print_dims(expected, rank, dims));
    *dtype = t->dtype;
    return MPK_OK;
}

model_weights load_weights(const load_model *m)
{
    return (model_weights){.dtype = weight_dtype, .self = m};
}

/* Is it a tensor that checkpoints store beside the weights, but which follows from the
 * configuration? */
static bool is_derived(str name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".attn_rot_embd.weight",
                                       ".self_attn.masked_bias", ".self_attn.bias"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);
        if (name.n >= n && memcmp(name.at + name.n - n, ends[i], n) == 0)
            return true;
    }
    return false;
}

/* Is it a bias of zeros?  Some writers of quantised weights add them where a family has none. */
static bool is_no_bias(const load_tensor *t)
{
    const unsigned char *bytes = t->data;
    bool zero = str_ends(t->name, str_from(".bias")) && bytes;
    for (uint64_t i = 0; zero && i < t->n_bytes; i++)
        zero = bytes[i] == 0;
    return zero;
}

/* Is it a tensor of the stack of layers, in either spelling? */
static bool is_of_layers(str name)
{
    return (name.n > 13 && memcmp(name.at, "model.layers.", 13) == 0) ||
           (name.n > 4 && memcmp(name.at, "blk.", 4) == 0);
}

/* Is it a tensor of a layer after the last one, in a family whose files have such? */
static bool is_guess(const model_def *def, const model_config *c, str name)
{
    uint64_t layer = 0;
    for (size_t i = 13; i < name.n && i < 20 && name.at[i] >= '0' && name.at[i] <= '9'; i++)
        layer = layer * 10 + (uint64_t)(name.at[i] - '0');
    return def->guesses && is_of_layers(name) && layer >= c->n_layers;
}

/* Build the program for one token, then look for weights of layers that it did not use, such as
 * a q_norm in a model that calls itself llama.  Ignoring them would give wrong answers without a
 * warning. */
static mpk_status check_weights_with(mpk_context *cx, arena *scratch, const load_model *m)
{
    model_shape shape = {.n_tokens = 1,
                         .n_rows = 1,
                         .n_slots = 1,
                         .n_pages = 1,
                         .page_tokens = 1,
                         .max_pages_per_slot = 1,
                         .kv_dtype = IR_F32,
                         .activation_dtype = IR_F32};
    model_weights weights = load_weights(m);
    const model_def *def;
    ir_graph *g;
    TRY(model_find(cx, m->config.family, &def));
    TRY(model_build(cx, scratch, &m->config, &shape, &weights, &g));
    for (size_t i = 0; i < m->tensors.n; i++) {
        str name = m->tensors.at[i].name;
        CHECK(cx,
              map_get(&g->names, name, NULL) || is_derived(name) || !is_of_layers(name) ||
                  is_guess(def, &m->config, name) || is_no_bias(&m->tensors.at[i]),
              MPK_EUNSUPPORTED, "the weight %.*s is not part of a %.*s model as it is known here",
              LOAD_NAME(name), LOAD_NAME(m->config.family));
    }
    return MPK_OK;
}

/* The program that is built for this check lives in a scratch arena. */
static mpk_status check_weights(mpk_context *cx, const load_model *m)
{
    arena scratch = {0};
    mpk_status status = check_weights_with(cx, &scratch, m);
    arena_free(&scratch);
    return status;
}

mpk_status load_read_member(mpk_context *cx, load_model *m, const char *folder, const char *name,
                            str *out)
{
    const char *path;
    *out = (str){0};
    TRY(file_join(cx, &m->arena, folder, name, &path));
    if (!file_exists(path))
        return MPK_OK;
    PUSH(cx, &m->arena, &m->members, path);
    return file_read(cx, &m->arena, path, JSON_BYTES_LIMIT, out);
}

/* Open one file of weights, or shards.  A folder without weights is accepted, since weights may
 * be random.  Pickled weights are refused: reading them would run code. */
static mpk_status open_weights(mpk_context *cx, load_model *m, const char *folder)
{
    const char *path;
    str index;
    TRY(file_join(cx, &m->arena, folder, "model.safetensors", &path));
    if (file_exists(path))
        return load_safetensors(cx, path, m);
    TRY(load_read_member(cx, m, folder, "model.safetensors.index.json", &index));
    if (index.at) {
        NOTE(cx, load_safetensors_index(cx, folder, index, m),
             "reading %s/model.safetensors.index.json", folder);
        return MPK_OK;
    }
    TRY(file_join(cx, &m->arena, folder, "pytorch_model.bin", &path));
    CHECK(cx, !file_exists(path), MPK_EUNSUPPORTED,
          "%s holds pickled weights; save the model as safetensors (save_pretrained does)", path);
    return MPK_OK;
}

/* Chat templates are in files of their own or in tokenizer_config.json. */
static mpk_status open_chat_template(mpk_context *cx, load_model *m, const char *folder)
{
    str source;
    TRY(load_read_member(cx, m, folder, "chat_template.jinja", &m->chat_template));
    TRY(load_read_member(cx, m, folder, "additional_chat_templates/tool_use.jinja",
                         &m->tool_template));
    TRY(load_read_member(cx, m, folder, "tokenizer_config.json", &source));
    if (source.at)
        NOTE(cx, load_hf_chat_template(cx, source, m), "reading %s/tokenizer_config.json", folder);
    if (m->lists_added_tokens)
        return MPK_OK;
    TRY(load_read_member(cx, m, folder, "special_tokens_map.json", &source));
    if (source.at)
        NOTE(cx, load_hf_special_tokens(cx, source, m), "reading %s/special_tokens_map.json",
             folder);
    return MPK_OK;
}

/* How weights were quantised stands in config.json, or beside it. */
static mpk_status open_scheme(mpk_context *cx, load_model *m, const char *folder, str config)
{
    str beside;
    NOTE(cx, load_hf_scheme(cx, config, &m->scheme), "reading %s/config.json", folder);
    if (m->scheme.method != LOAD_PLAIN)
        return MPK_OK;
    TRY(load_read_member(cx, m, folder, "hf_quant_config.json", &beside));
    if (beside.at)
        NOTE(cx, load_hf_scheme(cx, beside, &m->scheme), "reading %s/hf_quant_config.json", folder);
    return MPK_OK;
}

/* A folder with config.json, tokenizer.json or both. A tokenizer alone is a model without weights,
 * for `mpk tokenize`; a config.json alone is one for `mpk inspect` and random weights. */
static mpk_status open_folder(mpk_context *cx, const char *folder, const load_adapter *adapters,
                              uint32_t n, load_model *m)
{
    str config, generation;
    const char *tokenizer_path, *adapter_path;
    TRY(file_join(cx, &m->arena, folder, "adapter_config.json", &adapter_path));
    const bool is_adapter = file_exists(adapter_path);
    TRY(load_read_member(cx, m, folder, "config.json", &config));
    TRY(load_read_member(cx, m, folder, "generation_config.json", &generation));
    TRY(file_join(cx, &m->arena, folder, "tokenizer.json", &tokenizer_path));
    CHECK(cx, config.at || !is_adapter, MPK_EARG,
          "%s is an adapter: name the model that it was trained for, and the adapter beside it "
          "(--lora=PATH)",
          folder);
    CHECK(cx, config.at || file_exists(tokenizer_path), MPK_EIO,
          "%s has neither a config.json nor a tokenizer.json", folder);
    if (file_exists(tokenizer_path)) {
        PUSH(cx, &m->arena, &m->members, tokenizer_path);
        NOTE(cx, tokenizer_from_json(cx, tokenizer_path, &m->tokenizer), "reading %s",
             tokenizer_path);
    }
    TRY(open_chat_template(cx, m, folder));
    if (!config.at)
        return MPK_OK;
    NOTE(cx, load_hf_config(cx, &m->arena, config, &m->config), "reading %s/config.json", folder);
    m->has_config = true;
    TRY(open_scheme(cx, m, folder, config));
    if (generation.at)
        NOTE(cx, load_hf_generation_config(cx, generation, m), "reading %s/generation_config.json",
             folder);
    TRY(open_weights(cx, m, folder));
    NOTE(cx, load_dequantize(cx, m), "opening %s", folder);
    TRY(load_merge_adapters(cx, adapters, n, true, m));
    return load_hf_weights(cx, m);
}

/* Drop ends of text for which the model has no logit.  They are never drawn, but requests that
 * refer to the ends of a text (min_tokens, forms) would be refused for them. */
static void drop_unknown_ends(model_config *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_eos_tokens; i++)
        if ((uint32_t)c->eos_tokens[i] < c->vocab_size)
            c->eos_tokens[n++] = c->eos_tokens[i];
    c->n_eos_tokens = n;
}

/* Fill a zeroed model; after a failure the caller closes the partly filled model.  Weights are
 * checked against the configuration only if both exist. */
static mpk_status open_any(mpk_context *cx, const char *path, const load_adapter *adapters,
                           uint32_t n_adapters, load_model *m)
{
    size_t n = strlen(path);
    char *copy = arena_copy(&m->arena, path, n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory opening %s", path);
    m->path = (str){copy, n};
    if (file_is_folder(path)) {
        TRY(open_folder(cx, path, adapters, n_adapters, m));
    } else {
        TRY(load_gguf(cx, path, m));
        TRY(load_merge_adapters(cx, adapters, n_adapters, false, m));
    }
    drop_unknown_ends(&m->config);
    if (!m->has_config || !m->tensors.n)
        return MPK_OK;
    NOTE(cx, load_split_joined(cx, m), "opening %s", path);
    NOTE(cx, load_split_latent(cx, m), "opening %s", path);
    NOTE(cx, load_split_delta(cx, m), "opening %s", path);
    NOTE(cx, load_stack_experts(cx, m), "opening %s", path);
    NOTE(cx, check_weights(cx, m), "opening %s", path);
    return MPK_OK;
}

/* After a failure everything is unmapped and *out is unchanged. */
mpk_status load_open_adapted(mpk_context *cx, const char *path, const load_adapter *adapters,
                             uint32_t n, load_model *out)
{
    load_model m = {0};
    CHECK(cx, path, MPK_EARG, "no model is given: its folder or file");
    mpk_status status = open_any(cx, path, adapters, n, &m);
    if (status != MPK_OK) {
        load_close(&m);
        return status;
    }
    *out = m;
    return MPK_OK;
}

mpk_status load_open(mpk_context *cx, const char *path, load_model *out)
{
    return load_open_adapted(cx, path, NULL, 0, out);
}

/* Compares files, not names: a link or another spelling of the path is the same file. Used before a
 * file is overwritten. */
bool load_reads(const load_model *m, const char *path)
{
    for (size_t i = 0; i < m->files.n; i++)
        if (file_map_is(&m->files.at[i], path))
            return true;
    for (size_t i = 0; i < m->members.n; i++)
        if (file_is_same(m->members.at[i], path))
            return true;
    return false;
}

/* Also for a model that was opened in part. */
void load_close(load_model *m)
{
    tokenizer_free(m->tokenizer);
    for (size_t i = 0; i < m->files.n; i++)
        file_map_close(&m->files.at[i]);
    arena_free(&m->arena);
    *m = (load_model){0};
}
