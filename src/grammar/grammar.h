/* grammar.h - which tokens may come next, so that an answer has the form that a request asks for.
 *
 * Input: a form (a JSON schema, a regular expression, a list of texts, a grammar) and the bytes of
 * each token; output: for a text so far, one bit for each token.  Relies on base alone; the
 * engine's thread for masks calls it.
 *
 * Every form becomes one kind of automaton: states that read a byte, and calls of rules that push
 * the state to go on with.  All stacks that a text so far may have led to are held as one graph in
 * which equal parts are one, so that there is a single number for each situation: what follows
 * from it is computed once.  Whatever a hostile form could make large is limited, and the limit is
 * a status (grammar_parts.h).
 *
 * Threads: a grammar and all its matchers belong to one thread at a time.  A vocabulary does not
 * change.
 *
 * How a matcher is used, as src/engine does for each request with a form:
 *
 *   grammar_make -> grammar_matcher_open
 *     -> { grammar_matcher_mask -> a token is drawn among the bits -> grammar_matcher_take }
 *        until *over or an end token
 *     -> grammar_matcher_close -> grammar_free
 *
 * grammar_vocab_make is called once for a model's tokens. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <stdint.h>

#include "base/str.h"

typedef struct grammar grammar;
typedef struct grammar_vocab grammar_vocab;
typedef struct grammar_matcher grammar_matcher;

typedef enum grammar_kind {
    /* the source is a schema: docs/structured-output.md lists what is supported */
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_JSON_OBJECT, /* any JSON object; no source */
    GRAMMAR_REGEX,       /* the whole answer matches */
    GRAMMAR_CHOICE,      /* a JSON list of texts: the answer is one of them */
    GRAMMAR_EBNF,        /* rules as llama.cpp writes them; the rule root is the whole */
    GRAMMAR_TAG,         /* a structural tag, JSON: a composition of texts, forms and free text */
    GRAMMAR_KINDS
} grammar_kind;

/* "json_schema", "json_object", ... */
const char *grammar_kind_name(grammar_kind kind);

/* Compile a form.  MPK_EFORMAT: it is faulty; MPK_EUNSUPPORTED: it asks for something that is
 * not supported, which the message names with its place; MPK_ELIMIT: it is too large. */
mpk_status grammar_make(mpk_context *cx, grammar_kind kind, str source, grammar **out);
/* All its matchers must be closed before.  NULL is allowed. */
void grammar_free(grammar *g);

/* The tokens for which a mask has bits: the bytes of each (n 0: it never comes), and those that
 * end an answer. */
mpk_status grammar_vocab_make(mpk_context *cx, const str *tokens, uint32_t n, const int32_t *ends,
                              uint32_t n_ends, grammar_vocab **out);
void grammar_vocab_free(grammar_vocab *v);
/* Words of a mask: a bit for each token, the lowest first. */
uint32_t grammar_mask_words(const grammar_vocab *v);

/* A text that follows a grammar; grammar and vocabulary are borrowed. */
mpk_status grammar_matcher_open(mpk_context *cx, grammar *g, const grammar_vocab *v,
                                grammar_matcher **out);
void grammar_matcher_close(grammar_matcher *m);
/* Go where another matcher of the same grammar is. */
void grammar_matcher_go(grammar_matcher *m, const grammar_matcher *to);
/* Which tokens may come next: words[grammar_mask_words].  *n: how many bits are set.
 * MPK_ELIMIT: the grammar is so ambiguous that the limits of work do not suffice. */
mpk_status grammar_matcher_mask(mpk_context *cx, grammar_matcher *m, uint32_t *words, uint32_t *n);
/* Has the last mask the bits of the one before it?  True is sure; false may also mean that it is
 * not known. */
bool grammar_matcher_is_same(const grammar_matcher *m);
/* A token has come.  *over: only the end can follow.  MPK_EARG: the token was not allowed. */
mpk_status grammar_matcher_take(mpk_context *cx, grammar_matcher *m, int32_t token, bool *over);
/* The same for bytes, for tests and for the choice among literals.  *fits is false if no text of
 * the grammar continues so, and then the matcher does not move; *may_end: the text so far is
 * complete. */
mpk_status grammar_matcher_read(mpk_context *cx, grammar_matcher *m, str bytes, bool *fits,
                                bool *may_end);

#endif
