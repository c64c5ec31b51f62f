/* grammar_schema.h - JSON schemas -> trees; for the files grammar_schema*.c and grammar_number.c.
 *
 * Output is JSON as a model writes it: members in the order of `properties`, others after them; a
 * blank or a line break with indentation where JSON allows white space; numbers within bounds
 * without exponent.
 */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "grammar/grammar_parts.h"

/* A place in the schema, linked from the inside to the outside; for messages. */
typedef struct place {
    const struct place *up; /* NULL: the whole */
    str name;
} place;

/* The reading of a schema.  `targets` maps a schema, by its address in the parsed document, to
 * its rule, so that it is made once and may refer to itself; merged schemas have new addresses
 * and are made again. */
typedef struct schema_reader {
    maker *k;
    const json_value *root;
    uint32_t nesting;
    /* rules that all schemas share; 0: not made yet */
    uint32_t any_value, any_object, any_array, any_string, any_char, any_number, integer, blank;
    VEC(struct schema_target {
        const json_value *schema;
        uint32_t rule;
    })
    targets; /* of $ref */
    char where[256];
} schema_reader;

/* Bits of the types of a value. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8, /* a number that is not an integer */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
    TYPE_ANY = 127
};

typedef struct number_rules {
    const json_value *minimum, *maximum, *above, *below, *multiple; /* NULL: none */
} number_rules;

/* "#/properties/name", in the reader. */
const char *schema_where(schema_reader *r, const place *at);
/* MPK_EUNSUPPORTED: "WHAT at PLACE is not supported". */
mpk_status schema_refuse(schema_reader *r, const place *at, const char *what);
/* Count steps of work that makes no nodes (merging, comparing), since a short schema can require
 * 2^n of them.  MPK_ELIMIT. */
mpk_status schema_charge(schema_reader *r, const place *at, uint64_t steps);

/* What a schema allows. */
mpk_status schema_node(schema_reader *r, const place *at, const json_value *schema,
                       const node **out);
/* MPK_EUNSUPPORTED: a keyword is not known. */
mpk_status schema_check_keywords(schema_reader *r, const place *at, const json_value *schema);
/* A schema that is used more than once, as a rule. */
mpk_status schema_as_rule(schema_reader *r, const place *at, const json_value *schema,
                          const node **out);

/* grammar_schema_value.c: values of any form, and literals. */
mpk_status schema_any(schema_reader *r, const node **out);
mpk_status schema_any_object(schema_reader *r, const node **out);
mpk_status schema_any_array(schema_reader *r, const node **out);
mpk_status schema_any_string(schema_reader *r, const node **out);
mpk_status schema_any_char(schema_reader *r, const node **out);
mpk_status schema_any_number(schema_reader *r, const node **out);
mpk_status schema_integer(schema_reader *r, const node **out);
mpk_status schema_blank(schema_reader *r, const node **out);
mpk_status schema_literal(schema_reader *r, const json_value *value, const node **out);
/* The only spelling of a literal without white space: a whole number has no point. */
void schema_spell(text *t, const json_value *value);
/* Any string except these. */
mpk_status schema_other_string(schema_reader *r, const place *at, str *texts, size_t n,
                               const node **out);
/* Parts one after the other; NULL ends the list. */
mpk_status schema_join(schema_reader *r, const node *const *parts, const node **out);
mpk_status schema_text(schema_reader *r, const char *bytes, const node **out);

/* grammar_schema_text.c, grammar_schema_list.c, grammar_schema_object.c: one type with its
 * keywords. */
mpk_status schema_string(schema_reader *r, const place *at, const json_value *schema,
                         const node **out);
mpk_status schema_array(schema_reader *r, const place *at, const json_value *schema,
                        const node **out);
mpk_status schema_object(schema_reader *r, const place *at, const json_value *schema,
                         const node **out);
/* grammar_number.c */
mpk_status number_between(schema_reader *r, const place *at, const number_rules *n, bool integer,
                          const node **out);
mpk_status number_multiple(schema_reader *r, const place *at, const number_rules *n, bool integer,
                           const node **out);

/* A count of a schema; *out stays as it is if there is none. */
mpk_status schema_count(schema_reader *r, const place *at, const json_value *schema,
                        const char *key, uint32_t *out);

/* grammar_schema_merge.c: one schema with the meaning of two, without $ref and allOf at its top. */
mpk_status schema_flatten(schema_reader *r, const place *at, const json_value *schema,
                          const json_value **out);
mpk_status schema_merge(schema_reader *r, const place *at, const json_value *a, const json_value *b,
                        const json_value **out);
/* Are two values equal?  Its work is charged. */
mpk_status schema_equals(schema_reader *r, const place *at, const json_value *a,
                         const json_value *b, bool *yes);
/* The schema to which a $ref points. */
mpk_status schema_find(schema_reader *r, const place *at, const json_value *ref,
                       const json_value **out);
/* The object without some of its members. */
mpk_status schema_without(schema_reader *r, const json_value *schema, const char *const *names,
                          const json_value **out);
/* Bits TYPE_* that a flat schema allows. */
mpk_status schema_types(schema_reader *r, const place *at, const json_value *schema, uint32_t *out);
/* Is it certain that no value fits both? */
mpk_status schema_exclude(schema_reader *r, const place *at, const json_value *a,
                          const json_value *b, bool *yes);

#endif
