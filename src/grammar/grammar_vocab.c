/* grammar_vocab.c - the bytes of all tokens as trees, walked together with an automaton.
 *
 * Tokens are parted by length into three classes, each with a tree: what a long token needs to
 * know of a situation (counts near their limits) must not make the answer for the many short ones
 * a new one.  A tree is a list of its nodes in the order of a walk; `skip` leads past what is
 * below a node.
 *
 * The tree of  "a", "ab", "b", walked as the list  a (depth 0, skip 2), b (depth 1, skip 2), b
 * (depth 0, skip 3): where "a" does not fit, its node's skip leads to the second "b". */
#include "grammar/grammar_vocab.h"

#include <stdlib.h>

/* Most bytes of a token of class i. */
static const uint32_t class_bytes[GRAMMAR_LENGTHS] = {4, 16, UINT32_MAX};

typedef struct named_token {
    str bytes;
    int32_t id;
} named_token;

/* A text comes before those that begin with it: a node of the tree precedes those below it. */
static int compare_tokens(const void *a, const void *b)
{
    const named_token *x = a, *y = b;
    size_t n = x->bytes.n < y->bytes.n ? x->bytes.n : y->bytes.n;
    int order = memcmp(x->bytes.at, y->bytes.at, n);
    if (order)
        return order;
    return x->bytes.n < y->bytes.n ? -1 : x->bytes.n > y->bytes.n;
}

/* The length of the common beginning of two texts. */
static uint32_t same_bytes(str a, str b)
{
    uint32_t n = 0;
    while (n < a.n && n < b.n && a.at[n] == b.at[n])
        n++;
    return n;
}

/* Build nodes from sorted tokens; open[d] is the last node of depth d. Nodes lie in the order of a
 * walk, and `skip` leads past a node's subtree: so a walk that finds a byte not allowed goes on
 * there. Tokens "a", "ab", "b" make the nodes a (skip 2), b below it, b. */
static mpk_status fill_tree(mpk_context *cx, grammar_vocab *v, const named_token *tokens, size_t n,
                            token_tree *to)
{
    uint32_t *open, depth = 0;
    NEW(cx, &v->arena, open, to->longest + 1);
    NEW(cx, &v->arena, to->ids, n);
    for (size_t i = 0; i < n; i++) {
        str bytes = tokens[i].bytes;
        uint32_t same = i ? same_bytes(tokens[i - 1].bytes, bytes) : 0;
        for (; depth > same; depth--)
            to->nodes.at[open[depth]].skip = (uint32_t)to->nodes.n;
        for (; depth < bytes.n; depth++) {
            open[depth + 1] = (uint32_t)to->nodes.n;
            PUSH(cx, &v->arena, &to->nodes,
                 (token_node){
                     .byte = (uint8_t)bytes.at[depth], .depth = depth, .first = (uint32_t)i});
        }
        to->ids[i] = tokens[i].id;
        to->nodes.at[open[depth]].n++;
    }
    for (; depth > 0; depth--)
        to->nodes.at[open[depth]].skip = (uint32_t)to->nodes.n;
    return MPK_OK;
}

/* The tokens of this class: longer than those of the class before, at most class_bytes. */
static mpk_status make_tree(mpk_context *cx, grammar_vocab *v, const str *tokens, uint32_t class)
{
    token_tree *to = &v->trees[class];
    uint32_t least = class ? class_bytes[class - 1] : 0;
    named_token *sorted;
    size_t n = 0;
    NEW(cx, &v->arena, sorted, v->n_tokens);
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (tokens[i].n > least && tokens[i].n <= class_bytes[class]) {
            sorted[n++] = (named_token){tokens[i], (int32_t)i};
            if (tokens[i].n > to->longest)
                to->longest = (uint32_t)tokens[i].n;
        }
    if (n)
        qsort(sorted, n, sizeof *sorted, compare_tokens);
    return fill_tree(cx, v, sorted, n, to);
}

/* The engine's texts may go before the vocabulary does. A token that ends an answer gets no bytes:
 * it is never found by the walk, and is added where the text may end. */
static mpk_status copy_tokens(mpk_context *cx, grammar_vocab *v, const str *tokens,
                              const int32_t *ends, uint32_t n_ends)
{
    NEW(cx, &v->arena, v->tokens, v->n_tokens);
    NEW(cx, &v->arena, v->ends, n_ends);
    v->n_ends = n_ends;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        v->tokens[i] = (str){arena_copy(&v->arena, tokens[i].at ? tokens[i].at : "", tokens[i].n),
                             tokens[i].n};
        CHECK(cx, v->tokens[i].at, MPK_ENOMEM, "out of memory for the bytes of tokens");
    }
    for (uint32_t i = 0; i < n_ends; i++) {
        CHECK(cx, ends[i] >= 0 && (uint32_t)ends[i] < v->n_tokens, MPK_EARG,
              "token %d ends an answer, of %u tokens", ends[i], v->n_tokens);
        v->ends[i] = ends[i];
        v->tokens[ends[i]].n = 0; /* it ends the text and adds no bytes */
    }
    return MPK_OK;
}

/* tokens[i]: the bytes that token i adds to a text; empty ones are in no mask. */
mpk_status grammar_vocab_make(mpk_context *cx, const str *tokens, uint32_t n, const int32_t *ends,
                              uint32_t n_ends, grammar_vocab **out)
{
    grammar_vocab *v = calloc(1, sizeof *v);
    CHECK(cx, v, MPK_ENOMEM, "out of memory for a vocabulary");
    v->n_tokens = n;
    mpk_status status = copy_tokens(cx, v, tokens, ends, n_ends);
    for (uint32_t i = 0; status == MPK_OK && i < GRAMMAR_LENGTHS; i++)
        status = make_tree(cx, v, v->tokens, i);
    if (status == MPK_OK)
        *out = v;
    else
        grammar_vocab_free(v);
    return status;
}

/* Grammars and matchers that use it must be freed before. */
void grammar_vocab_free(grammar_vocab *v)
{
    if (!v)
        return;
    arena_free(&v->arena);
    free(v);
}

uint32_t grammar_mask_words(const grammar_vocab *v)
{
    return (v->n_tokens + 31) / 32;
}
