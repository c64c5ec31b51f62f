/* load_json.c - typed access to JSON documents. */
#include "load/load_json.h"

mpk_status load_json_parse(mpk_context *cx, str source, json_t **out)
{
    json_error_t error;
    json_t *root = json_loadb(source.at ? source.at : "", source.n, JSON_REJECT_DUPLICATES, &error);
    CHECK(cx, root || json_error_code(&error) != json_error_out_of_memory, MPK_ENOMEM, "out of memory parsing JSON");
    CHECK(cx, root, MPK_EFORMAT, "not valid JSON: line %d, column %d: %s", error.line, error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        FAIL(cx, MPK_EFORMAT, "the JSON document is not an object");
    }
    *out = root;
    return MPK_OK;
}

const json_t *load_json_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

mpk_status load_json_u32(mpk_context *cx, const json_t *object, const char *key, uint32_t *out)
{
    const json_t *value = load_json_get(object, key);
    if (!value)
        return MPK_OK;
    double number = json_number_value(value); /* some writers say 4096.0 */
    CHECK(cx, json_is_number(value) && number >= 0 && number <= UINT32_MAX && number == (uint32_t)number, MPK_EFORMAT,
          "\"%s\" is not a whole number from 0 to %u", key, UINT32_MAX);
    *out = (uint32_t)number;
    return MPK_OK;
}

mpk_status load_json_double(mpk_context *cx, const json_t *object, const char *key, double *out)
{
    const json_t *value = load_json_get(object, key);
    if (!value)
        return MPK_OK;
    CHECK(cx, json_is_number(value), MPK_EFORMAT, "\"%s\" is not a number", key);
    *out = json_number_value(value);
    return MPK_OK;
}

mpk_status load_json_bool(mpk_context *cx, const json_t *object, const char *key, bool *out)
{
    const json_t *value = load_json_get(object, key);
    if (!value)
        return MPK_OK;
    CHECK(cx, json_is_boolean(value), MPK_EFORMAT, "\"%s\" is neither true nor false", key);
    *out = json_is_true(value);
    return MPK_OK;
}

mpk_status load_json_str(mpk_context *cx, const json_t *object, const char *key, str *out)
{
    const json_t *value = load_json_get(object, key);
    if (!value)
        return MPK_OK;
    CHECK(cx, json_is_string(value), MPK_EFORMAT, "\"%s\" is not a string", key);
    *out = (str){json_string_value(value), json_string_length(value)};
    return MPK_OK;
}
