/* jinja.h - chat templates: Jinja2 as Hugging Face Transformers runs it, for templates that
 * strangers wrote.
 *
 * source --lex--> tokens --parse--> tree --names--> tree with scopes --run--> text
 *
 * The language is that of Transformers' environment: the immutable sandbox of Jinja2 with
 * trim_blocks, lstrip_blocks, break and continue, {% generation %}, a tojson that is Python's
 * json.dumps, raise_exception and strftime_now.  Values behave as Python's: str of a float, repr of
 * a list, slices by code points, truth, comparison, what is an error.
 *
 *     statements    for (if, else, recursive) if set (block, namespace, tuple) macro call filter
 *                   with generation raw break continue
 *     expressions   all of Jinja2's, but integers have 64 bits
 *     names         the filters, tests, globals and methods listed in jinja_filters.c,
 *                   jinja_sequence.c, jinja_is.c, jinja_globals.c and jinja_methods.c
 *
 * Whatever else there is in Jinja2 or Python (include, block, urlize, big integers) is refused by
 * name: the text is the one that Transformers makes, or there is none.  A template can do nothing
 * but compute: there are no files, no objects of the program, and depth, work, memory and output
 * are bounded.
 */
#ifndef JINJA_H
#define JINJA_H

#include "base/json.h"

/* A parsed template.  It never changes, so any number of threads may render it at the same time. */
typedef struct jinja_template jinja_template;

/* Parse into arena a; the source is copied.  MPK_EFORMAT with line and column: it is not Jinja, or
 * not UTF-8; MPK_EUNSUPPORTED: a statement, filter or test that is not known; MPK_ELIMIT: nested
 * too deep; MPK_ENOMEM. */
mpk_status jinja_parse(mpk_context *cx, arena *a, str source, const jinja_template **out);

/* Add what the template makes of the members of `variables` (an object, or NULL: none).  now:
 * seconds since 1970, which strftime_now gives as local time.  MPK_EFORMAT with the line: the
 * template has an error or raises one; MPK_EUNSUPPORTED: it asks for what is not known; MPK_ELIMIT:
 * too deep, too long, or it does not end; MPK_ENOMEM.  After a failure *out may hold a part. */
mpk_status jinja_render(mpk_context *cx, const jinja_template *t, const json_value *variables,
                        int64_t now, text *out);

#endif
