/* safetensors.c - the tensors of a .safetensors file.
 *
 *   u64 n, little-endian
 *   n bytes of JSON  {"w": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}, ..}
 *   the data; offsets count from its beginning
 *
 * Nothing in the header is trusted: offsets are compared with the file, sizes with shape and
 * dtype, tensors with each other.  Names and data stay in the mapping.  Called by load.c and by
 * the fuzzer.
 */
#include "base/json.h"
#include "load/load.h"

enum { HEADER_LIMIT_BYTES = 100 << 20 }; /* the limit of the format's own library */

/* "shape": sizes, outermost first; [] is a scalar. */
static mpk_status fill_shape(mpk_context *cx, const json_value *shape, load_tensor *t)
{
    CHECK(cx, json_is(shape, JSON_KIND_LIST) && shape->n <= IR_MAX_RANK, MPK_EFORMAT,
          "tensor %.*s: \"shape\" is not a list of at most %d sizes", LOAD_NAME(t->name),
          IR_MAX_RANK);
    t->rank = (uint32_t)shape->n;
    for (uint32_t i = 0; i < t->rank; i++) {
        CHECK(cx, shape->items[i].is_integer, MPK_EFORMAT,
              "tensor %.*s: \"shape\" holds something that is not a size", LOAD_NAME(t->name));
        t->dims[i] = shape->items[i].integer;
    }
    return MPK_OK;
}

/* The three dtypes that programs compute with, and those of quantised weights (quantised.h,
 * interleaved.c); others are named in the error. */
static mpk_status fill_dtype(mpk_context *cx, const json_value *dtype, load_tensor *t)
{
    static const struct {
        const char *name;
        ir_dtype dtype;
    } known[] = {{"F32", IR_F32}, {"F16", IR_F16}, {"BF16", IR_BF16},
                 {"U8", IR_U8},   {"BOOL", IR_U8}, {"I8", IR_I8},
                 {"I32", IR_I32}, {"I64", IR_I64}, {"F8_E4M3", IR_U8}};
    CHECK(cx, json_is(dtype, JSON_KIND_STRING), MPK_EFORMAT, "tensor %.*s has no \"dtype\"",
          LOAD_NAME(t->name));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!str_is(dtype->text, known[i].name))
            continue;
        t->dtype = known[i].dtype;
        t->is_f8 = str_is(dtype->text, "F8_E4M3");
        return MPK_OK;
    }
    FAIL(cx, MPK_EUNSUPPORTED,
         "tensor %.*s: the dtype %.*s is not supported; F32, F16, BF16, F8_E4M3, U8, I8, I32 and "
         "I64 are",
         LOAD_NAME(t->name), LOAD_NAME(dtype->text));
}

/* Check that the bytes lie within the file and that their number fits shape and dtype. */
static mpk_status fill_data(mpk_context *cx, const json_value *offsets, const unsigned char *data,
                            uint64_t n_data, load_tensor *t)
{
    CHECK(cx,
          json_is(offsets, JSON_KIND_LIST) && offsets->n == 2 && offsets->items[0].is_integer &&
              offsets->items[1].is_integer,
          MPK_EFORMAT, "tensor %.*s: \"data_offsets\" is not a pair of integers",
          LOAD_NAME(t->name));
    int64_t begin = offsets->items[0].integer, end = offsets->items[1].integer;
    CHECK(cx, begin >= 0 && begin <= end && (uint64_t)end <= n_data, MPK_EFORMAT,
          "tensor %.*s: bytes %lld to %lld of %llu: the file is damaged or incomplete",
          LOAD_NAME(t->name), (long long)begin, (long long)end, (unsigned long long)n_data);
    TRY(load_tensor_bytes(cx, t, &t->n_bytes));
    CHECK(cx, t->n_bytes == (uint64_t)(end - begin), MPK_EFORMAT,
          "tensor %.*s has %lld bytes, its shape and dtype need %llu", LOAD_NAME(t->name),
          (long long)(end - begin), (unsigned long long)t->n_bytes);
    t->data = data + begin;
    return MPK_OK;
}

/* Add the tensor that a member of the header describes; its name stays in the mapping. */
static mpk_status add_tensor(mpk_context *cx, load_model *m, const json_value *j,
                             const unsigned char *data, uint64_t n_data)
{
    load_tensor t = {.name = j->key};
    CHECK(cx, j->kind == JSON_KIND_OBJECT, MPK_EFORMAT, "tensor %.*s is not described by an object",
          LOAD_NAME(t.name));
    TRY(fill_dtype(cx, json_get(j, "dtype"), &t));
    TRY(fill_shape(cx, json_get(j, "shape"), &t));
    TRY(fill_data(cx, json_get(j, "data_offsets"), data, n_data, &t));
    return load_add_tensor(cx, m, &t);
}

/* Add all of them.  Tensors of one file must not overlap: a file with two names for the same
 * bytes is damaged or hostile. */
static mpk_status add_tensors(mpk_context *cx, load_model *m, const json_value *header,
                              const unsigned char *data, uint64_t n_data)
{
    size_t first = m->tensors.n;
    CHECK(cx, header->kind == JSON_KIND_OBJECT, MPK_EFORMAT, "the header is not an object");
    for (size_t i = 0; i < header->n; i++)
        if (!str_is(header->items[i].key, "__metadata__"))
            TRY(add_tensor(cx, m, &header->items[i], data, n_data));
    return load_check_overlap(cx, m, first);
}

/* The length of the header is checked against the file and a limit before it is used. */
mpk_status load_safetensors_bytes(mpk_context *cx, const unsigned char *bytes, size_t n,
                                  load_model *m)
{
    uint64_t n_header = 0;
    CHECK(cx, n >= 8, MPK_EFORMAT, "%zu bytes are too few for a safetensors file", n);
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | bytes[i];
    CHECK(cx, n_header <= n - 8 && n_header <= HEADER_LIMIT_BYTES, MPK_EFORMAT,
          "the header should have %llu bytes: not a safetensors file, damaged or incomplete",
          (unsigned long long)n_header);
    const json_value *header = NULL;
    NOTE(cx, json_parse(cx, &m->arena, (str){(const char *)bytes + 8, (size_t)n_header}, &header),
         "parsing the header");
    return add_tensors(cx, m, header, bytes + 8 + n_header, n - 8 - n_header);
}

/* The mapping belongs to *m, and so do names and data in it. */
mpk_status load_safetensors(mpk_context *cx, const char *path, load_model *m)
{
    file_map file = {0};
    TRY(load_map(cx, path, m, &file));
    NOTE(cx, load_safetensors_bytes(cx, file.bytes, file.n_bytes, m), "reading %s", path);
    return MPK_OK;
}

/* Load each file that the index names once; then check that every tensor it lists exists. A shard's
 * name may hold no slash: an index must not lead to files elsewhere. */
static mpk_status add_shards(mpk_context *cx, const char *folder, const json_value *weight_map,
                             load_model *m)
{
    map shards = {0};
    for (size_t i = 0; i < weight_map->n; i++) {
        str shard = weight_map->items[i].text;
        const char *path, *name = arena_copy(&m->arena, shard.at ? shard.at : "", shard.n);
        CHECK(cx, name, MPK_ENOMEM, "out of memory for the name of a shard");
        CHECK(cx, shard.n && !memchr(shard.at, '/', shard.n) && strlen(name) == shard.n,
              MPK_EFORMAT,
              "\"weight_map\": the shard of %.*s is not the name of a file beside the index",
              LOAD_NAME(weight_map->items[i].key));
        if (map_get(&shards, shard, NULL))
            continue;
        TRY(map_put(cx, &m->arena, &shards, shard, 0));
        TRY(file_join(cx, &m->arena, folder, name, &path));
        TRY(load_safetensors(cx, path, m));
    }
    for (size_t i = 0; i < weight_map->n; i++)
        CHECK(cx, map_get(&m->names, weight_map->items[i].key, NULL), MPK_EFORMAT,
              "tensor %.*s is not in the shard %.*s that should have it",
              LOAD_NAME(weight_map->items[i].key), LOAD_NAME(weight_map->items[i].text));
    return MPK_OK;
}

/* The index lists a file for each tensor; every file is opened once. */
mpk_status load_safetensors_index(mpk_context *cx, const char *folder, str json, load_model *m)
{
    const json_value *index = NULL;
    TRY(json_parse(cx, &m->arena, json, &index));
    const json_value *weight_map = json_get(index, "weight_map");
    CHECK(cx, json_is(weight_map, JSON_KIND_OBJECT), MPK_EFORMAT,
          "the index has no object \"weight_map\"");
    return add_shards(cx, folder, weight_map, m);
}
