/* safetensors.c - the tensors of a .safetensors file.
 *
 * The file: u64 n (little-endian), n bytes of JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the
 * data; offsets count from the start of the data.
 */
#include "load/load.h"
#include "load/load_json.h"

enum { HEADER_LIMIT_BYTES = 100 << 20 }; /* that of the format's own library */

static mpk_status fill_shape(mpk_context *cx, const json_t *shape, load_tensor *t)
{
    CHECK(cx, json_is_array(shape) && json_array_size(shape) <= IR_MAX_RANK, MPK_EFORMAT,
          "tensor %.*s: \"shape\" is not a list of at most %d sizes", LOAD_NAME(t->name), IR_MAX_RANK);
    t->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->rank; i++) {
        const json_t *size = json_array_get(shape, i);
        CHECK(cx, json_is_integer(size), MPK_EFORMAT, "tensor %.*s: \"shape\" holds something that is no size",
              LOAD_NAME(t->name));
        t->dims[i] = json_integer_value(size);
    }
    return MPK_OK;
}

static mpk_status fill_dtype(mpk_context *cx, const json_t *dtype, load_tensor *t)
{
    const char *name = json_string_value(dtype);
    CHECK(cx, name, MPK_EFORMAT, "tensor %.*s has no \"dtype\"", LOAD_NAME(t->name));
    if (strcmp(name, "F32") == 0)
        t->dtype = IR_F32;
    else if (strcmp(name, "F16") == 0)
        t->dtype = IR_F16;
    else if (strcmp(name, "BF16") == 0)
        t->dtype = IR_BF16;
    else
        FAIL(cx, MPK_EUNSUPPORTED, "tensor %.*s: the dtype %.16s is not supported; F32, F16 and BF16 are",
             LOAD_NAME(t->name), name);
    return MPK_OK;
}

static mpk_status fill_data(mpk_context *cx, const json_t *offsets, const unsigned char *data, uint64_t n_data,
                            load_tensor *t)
{
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    CHECK(cx, json_array_size(offsets) == 2 && json_is_integer(from) && json_is_integer(to), MPK_EFORMAT,
          "tensor %.*s: \"data_offsets\" is not a pair of integers", LOAD_NAME(t->name));
    json_int_t begin = json_integer_value(from), end = json_integer_value(to);
    CHECK(cx, begin >= 0 && begin <= end && (uint64_t)end <= n_data, MPK_EFORMAT,
          "tensor %.*s: bytes %lld to %lld of %llu: the file is damaged or incomplete", LOAD_NAME(t->name),
          (long long)begin, (long long)end, (unsigned long long)n_data);
    TRY(load_tensor_bytes(cx, t, &t->n_bytes));
    CHECK(cx, t->n_bytes == (uint64_t)(end - begin), MPK_EFORMAT,
          "tensor %.*s has %lld bytes, its shape and dtype need %llu", LOAD_NAME(t->name), (long long)(end - begin),
          (unsigned long long)t->n_bytes);
    t->data = data + begin;
    return MPK_OK;
}

static mpk_status add_tensor(mpk_context *cx, load_model *m, const char *name, const json_t *j,
                             const unsigned char *data, uint64_t n_data)
{
    load_tensor t = {.name = str_from(name)};
    CHECK(cx, json_is_object(j), MPK_EFORMAT, "tensor %.*s is not described by an object", LOAD_NAME(t.name));
    TRY(fill_dtype(cx, json_object_get(j, "dtype"), &t));
    TRY(fill_shape(cx, json_object_get(j, "shape"), &t));
    TRY(fill_data(cx, json_object_get(j, "data_offsets"), data, n_data, &t));
    t.name.at = arena_copy(&m->arena, name, t.name.n); /* the document goes */
    CHECK(cx, t.name.at, MPK_ENOMEM, "out of memory for a tensor's name");
    return load_add_tensor(cx, m, &t);
}

static mpk_status add_tensors(mpk_context *cx, load_model *m, json_t *header, const unsigned char *data,
                              uint64_t n_data)
{
    size_t first = m->tensors.n;
    const char *name;
    json_t *value;
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, "__metadata__") != 0)
            TRY(add_tensor(cx, m, name, value, data, n_data));
    }
    return load_check_overlap(cx, m, first);
}

mpk_status load_safetensors_bytes(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m)
{
    uint64_t n_header = 0;
    CHECK(cx, n >= 8, MPK_EFORMAT, "%zu bytes are too few for a safetensors file", n);
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | bytes[i];
    CHECK(cx, n_header <= n - 8 && n_header <= HEADER_LIMIT_BYTES, MPK_EFORMAT,
          "the header should have %llu bytes: not a safetensors file, damaged or incomplete",
          (unsigned long long)n_header);
    json_t *header = NULL;
    NOTE(cx, load_json_parse(cx, (str){(const char *)bytes + 8, (size_t)n_header}, &header), "parsing the header");
    mpk_status status = add_tensors(cx, m, header, bytes + 8 + n_header, n - 8 - n_header);
    json_decref(header);
    return status;
}

mpk_status load_safetensors(mpk_context *cx, const char *path, load_model *m)
{
    file_map file = {0};
    TRY(load_map(cx, path, m, &file));
    NOTE(cx, load_safetensors_bytes(cx, file.bytes, file.n_bytes, m), "reading %s", path);
    return MPK_OK;
}

/* Load each file that the map names, once; then every tensor that it promises must be there. */
static mpk_status add_shards(mpk_context *cx, const char *folder, json_t *weight_map, load_model *m)
{
    const char *name;
    json_t *value;
    map shards = {0};
    json_object_foreach(weight_map, name, value)
    {
        str shard = {json_string_value(value), json_string_length(value)};
        const char *path;
        CHECK(cx, shard.n && !memchr(shard.at, '/', shard.n) && strlen(shard.at) == shard.n, MPK_EFORMAT,
              "\"weight_map\": the shard of %.96s is not the name of a file beside the index", name);
        if (map_get(&shards, shard, NULL))
            continue;
        TRY(map_put(cx, &m->arena, &shards, shard, 0));
        TRY(file_join(cx, &m->arena, folder, shard.at, &path));
        TRY(load_safetensors(cx, path, m));
    }
    json_object_foreach(weight_map, name, value)
        CHECK(cx, load_find(m, name), MPK_EFORMAT, "tensor %.96s is not in the shard %.96s that should have it", name,
              json_string_value(value));
    return MPK_OK;
}

mpk_status load_safetensors_index(mpk_context *cx, const char *folder, str json, load_model *m)
{
    json_t *index = NULL;
    TRY(load_json_parse(cx, json, &index));
    json_t *weight_map = json_object_get(index, "weight_map");
    mpk_status status = json_is_object(weight_map)
                            ? add_shards(cx, folder, weight_map, m)
                            : status_fail(cx, MPK_EFORMAT, "the index has no object \"weight_map\"");
    json_decref(index);
    return status;
}
