/* gguf.c - GGUF files, versions 2 and 3, little-endian: key-value pairs and tensors.
 *
 *   file      "GGUF", u32 version, u64 tensors, u64 pairs; the pairs; the tensors; padding; data
 *   pair      string key, u32 type, value
 *   tensor    string name, u32 rank, u64 dims innermost first, u32 type, u64 offset into the data
 *   string    u64 length, bytes
 *   array     u32 type of its items, u64 count, items
 *
 * One pass checks that everything lies within the file and builds an index; only the names of
 * tensors are copied, because they are translated to those of Hugging Face:
 *
 *   token_embd.weight          model.embed_tokens.weight
 *   blk.3.attn_q.weight        model.layers.3.self_attn.q_proj.weight
 *   blk.3.ffn_gate_exps.weight model.layers.3.mlp.experts.gate_proj.weight
 *
 * Called by load.c, by the fuzzer and, for the values of a file that is rewritten, by
 * gguf_describe.c.  gguf_config.c interprets the pairs.
 */
#include "load/gguf.h"

#include <stdio.h>

/* ---- reading bytes ---- */

/* A cursor over the mapped file.  Every read first checks that the bytes exist, so a truncated
 * or hostile file is refused and never read beyond its end. */
typedef struct reader {
    mpk_context *cx;
    const unsigned char *bytes;
    uint64_t n, at; /* at <= n */
} reader;

/* MPK_EFORMAT unless n more bytes are left; what: named by the message. */
static mpk_status check_left(reader *r, uint64_t n, const char *what)
{
    CHECK(r->cx, n <= r->n - r->at, MPK_EFORMAT,
          "the file ends at byte %llu inside %s: damaged or incomplete", (unsigned long long)r->n,
          what);
    return MPK_OK;
}

/* Read n bytes as a little-endian integer, at any alignment. */
static uint64_t get_unsigned(const unsigned char *at, unsigned n)
{
    uint64_t value = 0;
    for (unsigned i = n; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* An unsigned integer of 1 to 8 bytes, the lowest first, whatever the machine's own order is. */
static mpk_status read_unsigned(reader *r, unsigned n, const char *what, uint64_t *out)
{
    TRY(check_left(r, n, what));
    *out = get_unsigned(r->bytes + r->at, n);
    r->at += n;
    return MPK_OK;
}

/* Read a string.  It stays in the mapping and has no NUL at its end. */
static mpk_status read_str(reader *r, const char *what, str *out)
{
    uint64_t n = 0;
    TRY(read_unsigned(r, 8, what, &n));
    TRY(check_left(r, n, what));
    *out = (str){(const char *)r->bytes + r->at, (size_t)n};
    r->at += n;
    return MPK_OK;
}

/* ---- key-value pairs ---- */

/* Bytes of a value, by gguf_type; 0: the value itself says its size. */
static const uint8_t type_bytes[GGUF_TYPES] = {
#define GGUF_TYPE_BYTES(name, bytes) bytes,
    GGUF_TYPE_MAP(GGUF_TYPE_BYTES)
#undef GGUF_TYPE_BYTES
};

/* Skip the items of a value.  Strings are skipped one by one, because each has its own length. */
static mpk_status skip_items(reader *r, const gguf_value *v)
{
    str skipped;
    unsigned size = type_bytes[v->type];
    if (size) {
        CHECK(r->cx, v->n <= (r->n - r->at) / size, MPK_EFORMAT,
              "the file ends inside the value of %.*s: damaged or incomplete", LOAD_NAME(v->key));
        r->at += v->n * size;
        return MPK_OK;
    }
    for (uint64_t i = 0; i < v->n; i++)
        TRY(read_str(r, "a string", &skipped));
    return MPK_OK;
}

/* Read a type; it is checked before it is used as an index of type_bytes. */
static mpk_status read_type(reader *r, const gguf_value *v, gguf_type *out)
{
    uint64_t type = 0;
    TRY(read_unsigned(r, 4, "the type of a value", &type));
    CHECK(r->cx, type < GGUF_TYPES, MPK_EFORMAT,
          "the value of %.*s has the type %llu, which no GGUF has", LOAD_NAME(v->key),
          (unsigned long long)type);
    *out = (gguf_type)type;
    return MPK_OK;
}

/* Read a pair and index its value, which stays in the mapping.  From then on all of it is known to
 * lie within the file, so later readers (take_str, gguf_item_int) check nothing. A pair is: length
 * and bytes of the key, a u32 for the type, the value; an array's value is the type of its items,
 * their number, and the items. */
static mpk_status read_value(reader *r, arena *a, gguf *f)
{
    gguf_value v = {.n = 1};
    TRY(read_str(r, "a key", &v.key));
    CHECK(r->cx, v.key.n && !map_get(&f->keys, v.key, NULL), MPK_EFORMAT,
          "the key \"%.*s\" is empty or there twice", LOAD_NAME(v.key));
    TRY(read_type(r, &v, &v.type));
    if (v.type == GGUF_ARRAY) {
        v.is_array = true;
        TRY(read_type(r, &v, &v.type));
        TRY(read_unsigned(r, 8, "an array", &v.n));
        CHECK(r->cx, v.type != GGUF_ARRAY, MPK_EUNSUPPORTED,
              "the value of %.*s is an array of arrays", LOAD_NAME(v.key));
    }
    v.at = r->bytes + r->at;
    TRY(skip_items(r, &v));
    PUSH(r->cx, a, &f->values, v);
    return map_put(r->cx, a, &f->keys, v.key, f->values.n - 1);
}

/* NULL: the file has no such key. */
const gguf_value *gguf_find(const gguf *f, const char *key)
{
    uint64_t index;
    return map_get(&f->keys, str_from(key), &index) ? &f->values.at[index] : NULL;
}

/* Is it an integer: neither a float, a bool nor a string? */
bool gguf_type_is_int(gguf_type type)
{
    return type != GGUF_F32 && type != GGUF_F64 && type_bytes[type] && type != GGUF_BOOL;
}

/* Item i < v->n of a number type as a double; integers beyond 2^53 are rounded. */
double gguf_item_double(const gguf_value *v, uint64_t i)
{
    const unsigned char *at = v->at + i * type_bytes[v->type];
    float f32;
    double f64;
    if (v->type == GGUF_F32)
        return memcpy(&f32, at, 4), f32;
    if (v->type == GGUF_F64)
        return memcpy(&f64, at, 8), f64;
    return (double)gguf_item_int(v, i);
}

/* Item i as an int64.  Signed types are sign-extended from their width; a u64 beyond int64 is
 * clamped, so that a check of its range still fails. */
int64_t gguf_item_int(const gguf_value *v, uint64_t i)
{
    unsigned size = type_bytes[v->type];
    uint64_t bits = get_unsigned(v->at + i * size, size);
    bool is_signed =
        v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 || v->type == GGUF_I64;
    if (is_signed && size < 8 && bits >> (8 * size - 1))
        bits |= ~UINT64_C(0) << (8 * size);
    if (!is_signed && bits > INT64_MAX)
        return INT64_MAX;
    return (int64_t)bits;
}

/* Read an integer.  Some writers give a list with a number for each layer, which is accepted if
 * all are equal.  A negative number, or one beyond u32, is an error. */
mpk_status gguf_get_u32(mpk_context *cx, const gguf *f, const char *key, uint32_t *out)
{
    const gguf_value *v = gguf_find(f, key);
    if (!v)
        return MPK_OK;
    CHECK(cx, gguf_type_is_int(v->type) && v->n >= 1, MPK_EFORMAT, "%s is not an integer", key);
    int64_t value = gguf_item_int(v, 0);
    for (uint64_t i = 1; i < v->n; i++) /* a list has one for each layer */
        CHECK(cx, gguf_item_int(v, i) == value, MPK_EUNSUPPORTED,
              "%s differs between layers: not supported", key);
    CHECK(cx, value >= 0 && value <= UINT32_MAX, MPK_EFORMAT, "%s is %lld, expected 0 to %u", key,
          (long long)value, UINT32_MAX);
    *out = (uint32_t)value;
    return MPK_OK;
}

/* This and the following: an absent key leaves *out as it was, so callers set defaults before; a
 * value of another type is an error. */
mpk_status gguf_get_double(mpk_context *cx, const gguf *f, const char *key, double *out)
{
    const gguf_value *v = gguf_find(f, key);
    if (!v)
        return MPK_OK;
    CHECK(cx, !v->is_array && type_bytes[v->type] && v->type != GGUF_BOOL, MPK_EFORMAT,
          "%s is not a number", key);
    *out = gguf_item_double(v, 0);
    return MPK_OK;
}

/* *out stays as it is if the key is absent. Other bytes than 0 and 1 are a damaged file. */
mpk_status gguf_get_bool(mpk_context *cx, const gguf *f, const char *key, bool *out)
{
    const gguf_value *v = gguf_find(f, key);
    if (!v)
        return MPK_OK;
    CHECK(cx, !v->is_array && v->type == GGUF_BOOL && v->at[0] <= 1, MPK_EFORMAT,
          "%s is neither true nor false", key);
    *out = v->at[0];
    return MPK_OK;
}

/* Take the string at *at and advance *at past it.  read_value has checked its bounds. */
static str take_str(const unsigned char **at)
{
    str s = {(const char *)*at + 8, (size_t)get_unsigned(*at, 8)};
    *at += 8 + s.n;
    return s;
}

/* *out is in the mapping and has no NUL at its end. */
mpk_status gguf_get_str(mpk_context *cx, const gguf *f, const char *key, str *out)
{
    const gguf_value *v = gguf_find(f, key);
    if (!v)
        return MPK_OK;
    CHECK(cx, !v->is_array && v->type == GGUF_STRING, MPK_EFORMAT, "%s is not a string", key);
    const unsigned char *at = v->at;
    *out = take_str(&at);
    return MPK_OK;
}

/* The list of `str` is new, in arena a; the bytes are the file's. */
mpk_status gguf_list_strings(mpk_context *cx, arena *a, const gguf_value *v, const str **out)
{
    CHECK(cx, v->is_array && v->type == GGUF_STRING, MPK_EFORMAT, "%.*s is not a list of strings",
          LOAD_NAME(v->key));
    str *list;
    NEW(cx, a, list, v->n);
    const unsigned char *at = v->at;
    for (uint64_t i = 0; i < v->n; i++)
        list[i] = take_str(&at);
    *out = list;
    return MPK_OK;
}

/* The bytes of a value as it lies in the file, for copying it verbatim.  Only walking over
 * strings shows how long they are. */
uint64_t gguf_value_bytes(const gguf_value *v)
{
    const unsigned char *at = v->at;
    if (type_bytes[v->type])
        return v->n * type_bytes[v->type];
    for (uint64_t i = 0; i < v->n; i++)
        take_str(&at);
    return (uint64_t)(at - v->at);
}

/* ---- tensors ---- */

/* Tensor types by their number in the format.  Types without a dtype of ours are listed so that
 * errors can name them. */
static const struct tensor_type {
    const char *name;
    int dtype; /* -1: not supported */
} tensor_types[] = {
    [0] = {"F32", IR_F32},
    [1] = {"F16", IR_F16},
    [2] = {"Q4_0", IR_Q4_0},
    [3] = {"Q4_1", IR_Q4_1},
    [6] = {"Q5_0", IR_Q5_0},
    [7] = {"Q5_1", IR_Q5_1},
    [8] = {"Q8_0", IR_Q8_0},
    [9] = {"Q8_1", -1},
    [10] = {"Q2_K", IR_Q2_K},
    [11] = {"Q3_K", IR_Q3_K},
    [12] = {"Q4_K", IR_Q4_K},
    [13] = {"Q5_K", IR_Q5_K},
    [14] = {"Q6_K", IR_Q6_K},
    [15] = {"Q8_K", -1},
    [16] = {"IQ2_XXS", IR_IQ2_XXS},
    [17] = {"IQ2_XS", IR_IQ2_XS},
    [18] = {"IQ3_XXS", IR_IQ3_XXS},
    [19] = {"IQ1_S", IR_IQ1_S},
    [20] = {"IQ4_NL", IR_IQ4_NL},
    [21] = {"IQ3_S", IR_IQ3_S},
    [22] = {"IQ2_S", IR_IQ2_S},
    [23] = {"IQ4_XS", IR_IQ4_XS},
    [24] = {"I8", -1},
    [25] = {"I16", -1},
    [26] = {"I32", -1},
    [27] = {"I64", -1},
    [28] = {"F64", -1},
    [29] = {"IQ1_M", IR_IQ1_M},
    [30] = {"BF16", IR_BF16},
    [34] = {"TQ1_0", IR_TQ1_0},
    [35] = {"TQ2_0", IR_TQ2_0},
    [39] = {"MXFP4", IR_MXFP4},
    [40] = {"NVFP4", -1},
};

/* The dtype of a type number.  MPK_EUNSUPPORTED names the type, or gives the number if the
 * format has one that is newer than this table. */
static mpk_status find_dtype(mpk_context *cx, str name, uint64_t type, ir_dtype *out)
{
    const struct tensor_type *t = type < sizeof tensor_types / sizeof *tensor_types
                                      ? &tensor_types[type]
                                      : &(struct tensor_type){NULL, -1};
    CHECK(cx, t->name, MPK_EUNSUPPORTED,
          "tensor %.*s has the type number %llu, which is not known here", LOAD_NAME(name),
          (unsigned long long)type);
    CHECK(cx, t->dtype >= 0, MPK_EUNSUPPORTED,
          "tensor %.*s has the type %s; F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ1 to IQ4, "
          "TQ1_0, TQ2_0 and MXFP4 "
          "are supported",
          LOAD_NAME(name), t->name);
    *out = (ir_dtype)t->dtype;
    return MPK_OK;
}

/* The number of a dtype in the format; UINT32_MAX: it has none. */
uint32_t gguf_type_number(ir_dtype dtype)
{
    for (uint32_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++)
        if (tensor_types[i].name && tensor_types[i].dtype == (int)dtype)
            return i;
    return UINT32_MAX;
}

/* Parts of tensor names, in GGUF's and in Hugging Face's spelling; layer_names are those within
 * a layer. */
static const char *const names[][2] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
static const char *const layer_names[][2] = {{"attn_norm", "input_layernorm"},
                                             {"attn_q", "self_attn.q_proj"},
                                             {"attn_k", "self_attn.k_proj"},
                                             {"attn_v", "self_attn.v_proj"},
                                             {"attn_output", "self_attn.o_proj"},
                                             {"attn_q_norm", "self_attn.q_norm"},
                                             {"attn_k_norm", "self_attn.k_norm"},
                                             {"ffn_norm", "post_attention_layernorm"},
                                             {"ffn_gate", "mlp.gate_proj"},
                                             {"ffn_up", "mlp.up_proj"},
                                             {"ffn_down", "mlp.down_proj"},
                                             {"ffn_gate_inp", "mlp.gate"},
                                             {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                             {"ffn_up_exps", "mlp.experts.up_proj"},
                                             {"ffn_down_exps", "mlp.experts.down_proj"},
                                             {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"}};

enum {
    OF_GGUF,
    OF_HF,
    N_NAMES = sizeof names / sizeof *names,
    N_LAYER_NAMES = sizeof layer_names / sizeof *layer_names
};

/* The other spelling of a name that is in column `from`; NULL: the table does not have it. */
static const char *find_name(const char *const (*table)[2], size_t n, int from, str name)
{
    for (size_t i = 0; i < n; i++)
        if (str_is(name, table[i][from]))
            return table[i][1 - from];
    return NULL;
}

/* A name in parts: whole.last, or prefix + layer + "." + part.last.  "blk.12.attn_q.weight" has
 * whole "blk.12.attn_q", last "weight", layer "12", part "attn_q". */
typedef struct tensor_name {
    str whole, last, layer, part; /* layer.n 0: the tensor belongs to no layer */
} tensor_name;

/* Split a name.  False if there is nothing to translate: it has no dot, or is longer than any
 * name that the tables make (renamed names are built in a buffer of fixed size). */
static bool cut_name(str name, str prefix, tensor_name *out)
{
    size_t stem = name.n, digits = prefix.n;
    while (stem && name.at[stem - 1] != '.')
        stem--; /* last: what follows the last dot, weight or bias */
    if (!stem || name.n > 96)
        return false;
    *out = (tensor_name){.whole = {name.at, stem - 1}, .last = {name.at + stem, name.n - stem}};
    if (out->whole.n <= prefix.n || memcmp(name.at, prefix.at, prefix.n) != 0)
        return true;
    while (digits < out->whole.n && name.at[digits] >= '0' && name.at[digits] <= '9')
        digits++;
    if (digits == prefix.n || digits >= out->whole.n || name.at[digits] != '.')
        return true;
    out->layer = (str){name.at + prefix.n, digits - prefix.n};
    out->part = (str){name.at + digits + 1, out->whole.n - digits - 1};
    return true;
}

/* The other spelling of a layer's part: the family's own names come before those of all. */
static const char *find_part(const char *const (*own)[2], int from, str part)
{
    size_t n = 0;
    while (own && own[n][0])
        n++;
    const char *found = find_name(own, n, from, part);
    return found ? found : find_name(layer_names, N_LAYER_NAMES, from, part);
}

/* Translate a name from column `from` of the tables to the other; *known false: there is no other
 * spelling, and *name stays. blk.3.attn_q.weight <-> model.layers.3.self_attn.q_proj.weight; from:
 * 0 GGUF's, 1 Hugging Face's; own: the family's own names (model_def.gguf_names). */
static mpk_status translate_name(mpk_context *cx, arena *a, const char *const (*own)[2], int from,
                                 str *name, bool *known)
{
    static const str prefixes[] = {{"blk.", 4}, {"model.layers.", 13}};
    char renamed[160];
    tensor_name cut;
    int n = 0;
    if (!cut_name(*name, prefixes[from], &cut))
        return MPK_OK;
    const char *whole = find_name(names, N_NAMES, from, cut.whole);
    const char *part = cut.layer.n ? find_part(own, from, cut.part) : NULL;
    if (part)
        n = snprintf(renamed, sizeof renamed, "%.*s%.*s.%s.%.*s", STR_ARG(prefixes[1 - from]),
                     STR_ARG(cut.layer), part, STR_ARG(cut.last));
    else if (whole)
        n = snprintf(renamed, sizeof renamed, "%s.%.*s", whole, STR_ARG(cut.last));
    *known = n != 0;
    if (!n)
        return MPK_OK;
    *name = (str){arena_copy(a, renamed, (size_t)n), (size_t)n};
    CHECK(cx, name->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

/* For writing: from Hugging Face's name to GGUF's. */
mpk_status gguf_name_tensor(mpk_context *cx, arena *a, const char *const (*own)[2], str name,
                            str *out, bool *known)
{
    *out = name;
    *known = false;
    return translate_name(cx, a, own, OF_HF, out, known);
}

mpk_status gguf_rename_tensor(mpk_context *cx, arena *a, const char *const (*own)[2], str *name,
                              bool *known)
{
    *known = false;
    return translate_name(cx, a, own, OF_GGUF, name, known);
}

/* Read one entry of the tensor table.  Its data is kept as an offset until the start of the data
 * section is known, which follows the last entry.  The number of bytes follows from shape and
 * type. */
static mpk_status read_tensor(reader *r, load_model *m, const char *const (*own)[2],
                              uint64_t *offset)
{
    load_tensor t = {0};
    uint64_t rank = 0, size = 0, type = 0;
    TRY(read_str(r, "a tensor's name", &t.name));
    TRY(read_unsigned(r, 4, "a tensor's rank", &rank));
    CHECK(r->cx, rank >= 1 && rank <= 4, MPK_EFORMAT,
          "tensor %.*s has %llu dimensions, expected 1 to 4", LOAD_NAME(t.name),
          (unsigned long long)rank);
    t.rank = (uint32_t)rank;
    for (uint32_t i = 0; i < t.rank; i++) {
        TRY(read_unsigned(r, 8, "a tensor's dimensions", &size));
        CHECK(r->cx, size <= INT64_MAX, MPK_EFORMAT, "tensor %.*s has a dimension of %llu",
              LOAD_NAME(t.name), (unsigned long long)size);
        t.dims[t.rank - 1 - i] = (int64_t)size;
    }
    TRY(read_unsigned(r, 4, "a tensor's type", &type));
    TRY(read_unsigned(r, 8, "a tensor's offset", offset));
    TRY(find_dtype(r->cx, t.name, type, &t.dtype));
    TRY(load_tensor_bytes(r->cx, &t, &t.n_bytes));
    TRY(translate_name(r->cx, &m->arena, own, OF_GGUF, &t.name, &(bool){false}));
    return load_add_tensor(r->cx, m, &t);
}

/* Turn the offsets of the tensors from `first` on into addresses.  Offsets are multiples of the
 * alignment and count from the start of the data; no tensor may reach beyond the file or overlap
 * another. */
static mpk_status place_tensors(reader *r, load_model *m, size_t first, const uint64_t *offsets,
                                uint64_t alignment)
{
    uint64_t start = (r->at + alignment - 1) / alignment * alignment;
    uint64_t n_data = start < r->n ? r->n - start : 0;
    for (size_t i = first; i < m->tensors.n; i++) {
        load_tensor *t = &m->tensors.at[i];
        uint64_t offset = offsets[i - first];
        CHECK(r->cx, offset % alignment == 0, MPK_EFORMAT,
              "tensor %.*s lies at %llu, no multiple of the alignment %llu", LOAD_NAME(t->name),
              (unsigned long long)offset, (unsigned long long)alignment);
        CHECK(r->cx, offset <= n_data && t->n_bytes <= n_data - offset, MPK_EFORMAT,
              "tensor %.*s: %llu bytes at %llu of %llu: the file is damaged or incomplete",
              LOAD_NAME(t->name), (unsigned long long)t->n_bytes, (unsigned long long)offset,
              (unsigned long long)n_data);
        t->data = r->bytes + start + offset;
    }
    return load_check_overlap(r->cx, m, first);
}

/* Read the table of n tensors.  Their data begins at the next multiple of the alignment. */
static mpk_status read_tensors(reader *r, const gguf *f, uint64_t n_tensors, load_model *m)
{
    size_t first = m->tensors.n;
    uint32_t alignment = 32;
    uint64_t *offsets;
    str architecture = {0};
    TRY(gguf_get_str(r->cx, f, "general.architecture", &architecture));
    const char *const(*own)[2] = model_gguf_names(architecture);
    TRY(gguf_get_u32(r->cx, f, "general.alignment", &alignment));
    CHECK(r->cx, alignment && (alignment & (alignment - 1)) == 0, MPK_EFORMAT,
          "general.alignment is %u, expected a power of two", alignment);
    NEW(r->cx, &m->arena, offsets, n_tensors);
    for (uint64_t i = 0; i < n_tensors; i++)
        NOTE(r->cx, read_tensor(r, m, own, &offsets[i]), "reading tensor %llu of %llu",
             (unsigned long long)i + 1, (unsigned long long)n_tensors);
    return place_tensors(r, m, first, offsets, alignment);
}

/* ---- the file ---- */

/* Read magic, version and counts.  A version whose low half is 0 was written by a big-endian
 * machine. */
static mpk_status read_header(reader *r, uint64_t *n_tensors, uint64_t *n_values)
{
    uint64_t version = 0;
    CHECK(r->cx, r->n >= 4 && memcmp(r->bytes, "GGUF", 4) == 0, MPK_EFORMAT,
          "not a GGUF file (a model is a GGUF file, or a folder with config.json)");
    r->at = 4;
    TRY(read_unsigned(r, 4, "the header", &version));
    CHECK(r->cx, (version & 0xffff) || !version, MPK_EUNSUPPORTED,
          "big-endian GGUF files are not supported");
    CHECK(r->cx, version == 2 || version == 3, MPK_EUNSUPPORTED,
          "GGUF version %llu is not supported; 2 and 3 are", (unsigned long long)version);
    TRY(read_unsigned(r, 8, "the header", n_tensors));
    TRY(read_unsigned(r, 8, "the header", n_values));
    /* the smallest tensor entry has 33 bytes, the smallest pair 14: so both counts are bounded
     * by the size of the file */
    CHECK(r->cx, *n_tensors <= r->n / 33 && *n_values <= r->n / 14, MPK_EFORMAT,
          "%llu tensors and %llu values do not fit into %llu bytes", (unsigned long long)*n_tensors,
          (unsigned long long)*n_values, (unsigned long long)r->n);
    return MPK_OK;
}

/* Hyper-parameters and vocabulary from the values.  Called after the tensors are indexed, since
 * some hyper-parameters follow from which tensors exist. */
static mpk_status fill_model(mpk_context *cx, const gguf *f, load_model *m)
{
    mpk_status status = gguf_fill_config(cx, f, m);
    /* a file with a vocabulary only may be of any architecture */
    if (status != MPK_OK && (m->tensors.n || status == MPK_ENOMEM))
        return status;
    m->has_config = status == MPK_OK;
    status_clear(cx);
    return gguf_fill_vocab(cx, f, m);
}

/* Read the header and all pairs; r is at the first tensor afterwards. */
static mpk_status read_values(reader *r, arena *a, uint64_t *n_tensors, gguf *f)
{
    uint64_t n_values = 0;
    TRY(read_header(r, n_tensors, &n_values));
    for (uint64_t i = 0; i < n_values; i++)
        NOTE(r->cx, read_value(r, a, f), "reading value %llu of %llu", (unsigned long long)i + 1,
             (unsigned long long)n_values);
    return MPK_OK;
}

/* The values alone, without tensors, for gguf_describe.c; they point into `bytes`. */
mpk_status gguf_read_values(mpk_context *cx, arena *a, const unsigned char *bytes, size_t n,
                            gguf *out)
{
    reader r = {.cx = cx, .bytes = bytes, .n = n};
    uint64_t n_tensors = 0;
    *out = (gguf){0};
    return read_values(&r, a, &n_tensors, out);
}

/* Refuse one of the files NAME-00001-of-00003.gguf of a split model: it would be reported as a
 * model without most of its weights. */
static mpk_status refuse_part(mpk_context *cx, const gguf *f)
{
    uint32_t n = 1, index = 0;
    TRY(gguf_get_u32(cx, f, "split.count", &n));
    TRY(gguf_get_u32(cx, f, "split.no", &index));
    CHECK(cx, n <= 1, MPK_EUNSUPPORTED,
          "this is part %llu of %u of a model: join the parts into one file first, for instance "
          "with llama-gguf-split --merge",
          (unsigned long long)index + 1, n);
    return MPK_OK;
}

/* Names, numbers and tensors, with all that does not depend on what they mean. */
mpk_status gguf_read_file(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m,
                          gguf *out)
{
    reader r = {.cx = cx, .bytes = bytes, .n = n};
    uint64_t n_tensors = 0;
    *out = (gguf){0};
    TRY(read_values(&r, &m->arena, &n_tensors, out));
    TRY(refuse_part(cx, out));
    return read_tensors(&r, out, n_tensors, m);
}

/* Refuse an adapter: it would be reported as a model without its sizes. */
static mpk_status refuse_adapter(mpk_context *cx, const gguf *f)
{
    str type = {0};
    TRY(gguf_get_str(cx, f, "general.type", &type));
    CHECK(cx, !str_is(type, "adapter"), MPK_EARG,
          "this is an adapter: name the model that it was trained for, and the adapter beside it "
          "(--lora=PATH)");
    return MPK_OK;
}

/* As load_gguf, from bytes in memory, which must outlive the model: its tensors point into them. */
mpk_status load_gguf_bytes(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m)
{
    gguf f;
    TRY(gguf_read_file(cx, bytes, n, m, &f));
    TRY(refuse_adapter(cx, &f));
    return fill_model(cx, &f, m);
}

mpk_status load_gguf(mpk_context *cx, const char *path, load_model *m)
{
    file_map file = {0};
    TRY(load_map(cx, path, m, &file));
    NOTE(cx, load_gguf_bytes(cx, file.bytes, file.n_bytes, m), "reading %s", path);
    return MPK_OK;
}
