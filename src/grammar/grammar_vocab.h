/* grammar_vocab.h - the tokens of a vocabulary as trees of bytes; for grammar_vocab.c and
 * grammar_mask.c. */
#ifndef GRAMMAR_VOCAB_H
#define GRAMMAR_VOCAB_H

#include "grammar/grammar_parts.h"

/* A beginning of tokens: its last byte; `depth` bytes precede it. */
typedef struct token_node {
    uint8_t byte;
    uint32_t depth, skip; /* skip: the next node that is not below this one */
    uint32_t first, n;    /* tokens with exactly this text, in token_tree.ids */
} token_node;

typedef struct token_tree {
    VEC(token_node) nodes;
    int32_t *ids;
    uint32_t longest; /* bytes of a token */
} token_tree;

struct grammar_vocab {
    arena arena;
    uint32_t n_tokens, n_ends;
    str *tokens; /* [n_tokens] */
    int32_t *ends;
    token_tree trees[GRAMMAR_LENGTHS];
};

#endif
