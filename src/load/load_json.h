/* load_json.h - read JSON documents that strangers wrote (over jansson).
 *
 * Members are read with their type checked; null counts as absent.
 */
#ifndef LOAD_JSON_H
#define LOAD_JSON_H

#include <jansson.h>

#include "base/str.h"

/* Parse one object; duplicate keys are refused.  MPK_EFORMAT with line and column, MPK_ENOMEM.  Free with json_decref.
 */
mpk_status load_json_parse(mpk_context *cx, str source, json_t **out);

/* A member that is there and not null, or NULL. */
const json_t *load_json_get(const json_t *object, const char *key);

/* Read a member into *out, or leave *out as it is if the member is absent.  MPK_EFORMAT: another type or range. */
mpk_status load_json_u32(mpk_context *cx, const json_t *object, const char *key, uint32_t *out);
mpk_status load_json_double(mpk_context *cx, const json_t *object, const char *key, double *out);
mpk_status load_json_bool(mpk_context *cx, const json_t *object, const char *key, bool *out);
/* The text is borrowed from the document. */
mpk_status load_json_str(mpk_context *cx, const json_t *object, const char *key, str *out);

#endif
