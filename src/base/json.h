/* json.h - read JSON documents that strangers wrote; write them.
 *
 * Our own reader and not a library's, because a document becomes slices of its source inside an
 * arena: no allocation for each value, nothing to free, and memory that runs out is a status (the
 * common C library drops characters or aborts). RFC 8259, UTF-8 checked; a name that stands twice
 * in an object is refused; at most 256 levels.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdint.h>

#include "base/str.h"

typedef enum json_kind {
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_NUMBER,
    JSON_KIND_STRING,
    JSON_KIND_LIST,
    JSON_KIND_OBJECT
} json_kind;

typedef struct json_value {
    json_kind kind;
    bool boolean;
    bool is_integer; /* a number without fraction and exponent that fits int64: see integer */
    int64_t integer;
    double number;                  /* of any number */
    str text;                       /* of a string, unescaped; of a number, its spelling */
    str key;                        /* its name, if it is a member of an object */
    const struct json_value *items; /* n of a list or an object, in the order of the document */
    size_t n;
} json_value;

/* Parse a document.  Numbers and strings without escapes are slices of the source, which must
 * outlive them; the rest is in *a. MPK_EFORMAT with line and column, MPK_ENOMEM. */
mpk_status json_parse(mpk_context *cx, arena *a, str source, const json_value **out);

/* The same for what is passed on, such as the arguments of a model's calls: a number beyond the
 * range of a double is one too, and `number` is infinite. */
mpk_status json_parse_any_number(mpk_context *cx, arena *a, str source, const json_value **out);

/* The member of this name; NULL if it is absent or null, or if object is NULL or no object. */
const json_value *json_get(const json_value *object, const char *key);
/* The same for a name that is not known here. */
const json_value *json_find(const json_value *object, str key);
/* True for a value of this kind; false for NULL. */
bool json_is(const json_value *value, json_kind kind);
/* Same kind and content, members of objects in any order. */
bool json_equals(const json_value *a, const json_value *b);

/* Add a string in quotes, escaped, to a document that is written as text.  Bytes that are no UTF-8
 * become U+FFFD; the line ends of Unicode are escaped too. */
void json_write_str(text *t, str s);
/* Add a value as it was read: numbers keep their spelling.  indent: spaces for each level; 0: in
 * one line, no spaces.
 */
void json_write(text *t, const json_value *value, unsigned indent);

/* Read a member into *out, or leave *out as it is if json_get gives none.  MPK_EFORMAT: another
 * type or range. */
mpk_status json_read_u32(mpk_context *cx, const json_value *object, const char *key, uint32_t *out);
mpk_status json_read_double(mpk_context *cx, const json_value *object, const char *key,
                            double *out);
mpk_status json_read_bool(mpk_context *cx, const json_value *object, const char *key, bool *out);
mpk_status json_read_str(mpk_context *cx, const json_value *object, const char *key, str *out);

#endif
