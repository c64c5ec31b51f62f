/* tokenizer_json.h - what the readers of tokenizer.json share (private to src/load).
 *
 * tokenizer_json.c reads the file, its model and its added tokens; tokenizer_json_steps.c the
 * parts around the model: normalizer, pre-tokenizer, decoder and post-processor; both take
 * single values by tokenizer_json_values.c.  All of them refuse what they do not know, by name.
 *
 * Every function except doc_type and the two tests returns MPK_EFORMAT for a value of a kind
 * that the format does not have, MPK_EUNSUPPORTED for one that the format allows and mpk does
 * not know, and MPK_ENOMEM.  Copies lie in the tokenizer's arena.
 */
#ifndef LOAD_TOKENIZER_JSON_H
#define LOAD_TOKENIZER_JSON_H

#include "base/json.h"
#include "load/tokenizer_parts.h"

/* The document while it is read. */
typedef struct doc_reader {
    mpk_context *cx;
    tokenizer *t; /* is filled part by part */
    int depth;    /* nesting of sequences */
} doc_reader;

enum { DOC_MAX_IDS = 1 << 24 }; /* an id is below this */

/* For %.*s: a name of the file, cut to what a message has room for. */
#define SHOWN(s) STR_SHOWN(s, 100)

/* The "type" of an object; "(none)" if it has none. */
str doc_type(const json_value *object);
bool doc_is_text(const json_value *v);
/* Is it a whole number from 0 to limit - 1? */
bool doc_is_below(const json_value *v, int64_t limit);

/* Refuse keys of an object that are not in the list, which ends with NULL; "type" is always
 * known. */
mpk_status doc_check_keys(doc_reader *r, const char *what, const json_value *object,
                          const char *const *known);
#define KNOWN(r, what, object, ...) \
    TRY(doc_check_keys(r, what, object, (const char *const[]){__VA_ARGS__, NULL}))

/* The value of a key; if the key is absent, `otherwise`, or an empty text if the text is not
 * needed. */
mpk_status doc_get_bool(doc_reader *r, const json_value *object, const char *key, bool otherwise,
                        bool *out);
mpk_status doc_get_text(doc_reader *r, const json_value *object, const char *key, bool needed,
                        str *out);
mpk_status doc_get_count(doc_reader *r, const json_value *object, const char *key, uint32_t *out);
/* One of the names, which end with NULL, as its index. */
mpk_status doc_get_choice(doc_reader *r, const json_value *object, const char *key,
                          const char *const *names, int otherwise, int *out);
/* {"String": ..} or {"Regex": ..} under "pattern" as the matcher of a step. */
mpk_status doc_get_pattern(doc_reader *r, const json_value *object, step *s);
/* A copy of a JSON string in the tokenizer. */
mpk_status doc_copy_text(doc_reader *r, const json_value *v, str *out);

/* Read the items of a Sequence, the list under `key`, in order.  MPK_ELIMIT: nested too deeply. */
typedef mpk_status (*doc_read)(doc_reader *r, const json_value *object);
mpk_status doc_read_sequence(doc_reader *r, const json_value *object, const char *key,
                             doc_read one);
/* Always an error: this `what` is not an object, or its type is not supported. */
mpk_status doc_refuse(doc_reader *r, const char *what, const json_value *object);

/* Put ids around those that are there: a template's ids are outside of those of the processors
 * before it. */
mpk_status doc_surround(doc_reader *r, const tokenizer_ids *before, const tokenizer_ids *after);

/* The four parts around the model; each adds its steps to the tokenizer. */
mpk_status doc_read_normalizer(doc_reader *r, const json_value *o);
mpk_status doc_read_pre_tokenizer(doc_reader *r, const json_value *o);
mpk_status doc_read_decoder(doc_reader *r, const json_value *o);
mpk_status doc_read_post_processor(doc_reader *r, const json_value *o);

#endif
