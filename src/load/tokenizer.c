/* tokenizer.c - the life of a tokenizer, and encode: text -> ids.
 *
 *     valid UTF-8 --find raw added tokens--> sections --normalise--> --find normalised added
 *     tokens--> pieces
 *       --cutting steps--> words --BPE--> ids, between the ids of the post-processor
 *
 * "<s>Hello world" with a byte-level BPE:
 *
 *     <s>, "Hello world"            raw added tokens
 *     "Hello", " world"             cutting steps
 *     "Hello", "Ġworld"             bytes as characters
 *     15496, 995                    BPE
 *
 * Cost: linear in the text but for BPE's n log n in the longest word and for the regular
 * expressions of the file.  A tokenizer does not change after tokenizer_finish, so any number of
 * threads may encode with it. */
#include "load/tokenizer_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* An empty tokenizer; ids that no file names are -1. */
mpk_status tokenizer_new(mpk_context *cx, tokenizer **out)
{
    tokenizer *t = calloc(1, sizeof *t);
    CHECK(cx, t, MPK_ENOMEM, "out of memory for a tokenizer");
    t->unk_id = t->bos_id = t->eos_id = t->eot_id = t->pad_id = -1;
    for (int i = 0; i < 256; i++)
        t->byte_ids[i] = t->char_ids[i] = -1;
    *out = t;
    return MPK_OK;
}

/* Free what is not in the arena: the compiled patterns. */
static void free_steps(steps *s)
{
    for (size_t i = 0; i < s->n; i++)
        regex_free(s->at[i].regex);
}

/* Regular expressions belong to PCRE2 and are freed one by one; everything else lies in the
 * arena. */
void tokenizer_free(tokenizer *t)
{
    if (!t)
        return;
    free_steps(&t->normalize);
    free_steps(&t->split);
    free_steps(&t->decode);
    regex_free(t->word);
    arena_free(&t->arena);
    free(t);
}

/* Append a step, zeroed except for its kind; *out is valid as long as the tokenizer. */
mpk_status steps_add(mpk_context *cx, steps *s, step_kind kind, step **out)
{
    CHECK(cx, s->n < MAX_STEPS, MPK_ELIMIT, "the tokenizer has more than %d steps of a kind",
          MAX_STEPS);
    *out = &s->at[s->n++];
    **out = (step){.kind = kind};
    return MPK_OK;
}

/* The expression is compiled here, so a bad one is refused when the file is read. */
mpk_status steps_add_split(mpk_context *cx, tokenizer *t, str pattern, split_behavior behavior)
{
    step *s = NULL;
    TRY(steps_add(cx, &t->split, STEP_SPLIT, &s));
    s->behavior = behavior;
    return regex_compile(cx, &t->arena, pattern, &s->regex);
}

/* Append a step that replaces a literal text. */
mpk_status steps_add_replace(mpk_context *cx, steps *list, str literal, str content)
{
    step *s = NULL;
    TRY(steps_add(cx, list, STEP_REPLACE, &s));
    s->match = MATCH_LITERAL;
    s->literal = literal;
    s->content = content;
    return MPK_OK;
}

/* --- indexes --- */

/* Ids for characters that no token spells: those of the byte tokens <0x00> .. <0xFF>; and of the
 * tokens for U+0000 .. U+00FF, which then need no look-up by name. */
static mpk_status index_bytes(mpk_context *cx, tokenizer *t)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        uint64_t id;
        text spelling = {0};
        snprintf(name, sizeof name, "<0x%02X>", b);
        if (t->byte_ids[b] < 0 && map_get(&t->model_ids, str_from(name), &id))
            t->byte_ids[b] = (int32_t)id;
        utf8_add(&spelling, b);
        mpk_status status = text_check(cx, &spelling);
        if (status == MPK_OK && map_get(&t->model_ids, (str){spelling.at, spelling.n}, &id))
            t->char_ids[b] = (int32_t)id;
        text_free(&spelling);
        TRY(status);
    }
    return MPK_OK;
}

/* Add the text of added token number `index` to a tree; of equal texts the first wins. The tree has
 * an edge for each byte; edges are a hash table by (node, byte), `first` the bytes with which any
 * text begins, so that most of a text is skipped without looking into the tree. */
static mpk_status grow_tree(mpk_context *cx, tokenizer *t, added_tree *tree, size_t index)
{
    str s = t->added.at[index].text;
    uint32_t node = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint64_t key = (uint64_t)node << 8 | (unsigned char)s.at[i];
        const pair_slot *edge = pair_map_get(&tree->edges, key);
        if (!edge) {
            TRY(pair_map_reserve(cx, &t->arena, &tree->edges, tree->edges.n + 1));
            pair_map_put(&tree->edges, key, 0, tree->n_nodes);
            node = tree->n_nodes++;
        } else {
            node = edge->id;
        }
    }
    tree->first[(unsigned char)s.at[0]] = true;
    if (!tree->tokens[node])
        tree->tokens[node] = (uint32_t)index + 1;
    return MPK_OK;
}

/* Build the two trees that find added tokens, in raw and in normalised text.  A tree has at most
 * one node for each byte of its tokens, which bounds its size. */
static mpk_status index_added(mpk_context *cx, tokenizer *t)
{
    size_t n_raw = 1, n_normal = 1;
    bool any_word = false;
    for (size_t i = 0; i < t->added.n; i++) {
        const added_token *a = &t->added.at[i];
        CHECK(cx, a->text.n, MPK_EUNSUPPORTED, "added token %d (\"%.*s\") is empty once normalised",
              a->id, STR_ARG(a->content));
        *(a->normalized ? &n_normal : &n_raw) += a->text.n;
        any_word = any_word || a->single_word;
    }
    NEW(cx, &t->arena, t->raw_tree.tokens, n_raw);
    NEW(cx, &t->arena, t->normal_tree.tokens, n_normal);
    t->raw_tree.n_nodes = t->normal_tree.n_nodes = 1;
    /* of equal texts, special tokens come before others */
    for (int special = 1; special >= 0; special--)
        for (size_t i = 0; i < t->added.n; i++)
            if (t->added.at[i].special == special)
                TRY(grow_tree(cx, t, t->added.at[i].normalized ? &t->normal_tree : &t->raw_tree,
                              i));
    if (any_word)
        TRY(regex_compile_native(cx, &t->arena,
                                 STR("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]"),
                                 &t->word));
    return MPK_OK;
}

/* Special tokens without which the parts of an answer could not be told apart (net_parts.h) have
 * their text: the marks of a vocabulary whose answers come in channels (gpt-oss), of one whose
 * calls of tools have marks within (Mistral), and those around Mistral's reasoning.  A family is
 * shown if the vocabulary has its first two. */
static void show_marks(tokenizer *t)
{
    enum { MARKS = 5 };
    static const char *const families[][MARKS] = {
        {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"},
        {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
        {"[THINK]", "[/THINK]"},
    };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        int32_t ids[MARKS] = {-1, -1, -1, -1, -1};
        for (size_t i = 0; i < t->added.n; i++)
            for (int k = 0; k < MARKS; k++)
                if (families[f][k] && str_is(t->added.at[i].content, families[f][k]))
                    ids[k] = t->added.at[i].id;
        for (int k = 0; k < MARKS && ids[0] >= 0 && ids[1] >= 0; k++)
            if (ids[k] >= 0)
                t->special[ids[k]] = false;
    }
}

/* Called once, after the last token was added.  From then on the indexes must not change, since
 * several threads encode without a lock. */
mpk_status tokenizer_finish(mpk_context *cx, tokenizer *t)
{
    for (size_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].n > t->longest_token_bytes)
            t->longest_token_bytes = t->tokens[i].n;
    show_marks(t);
    TRY(index_bytes(cx, t));
    return index_added(cx, t);
}

/* --- the scratch of one call --- */

/* The scratch memory of one call of encode: buffers are reused within the call, and no other
 * thread sees them. */
static mpk_status encoder_open(encoder *e, mpk_context *cx, const tokenizer *t)
{
    e->cx = cx;
    e->t = t;
    return regex_match_new(cx, &e->match);
}

/* Also for an encoder that was opened in part, or not at all. */
static void encoder_close(encoder *e)
{
    regex_match_free(e->match);
    for (int i = 0; i < MAX_STEPS; i++) {
        text_free(&e->buffers[i]);
        subject_free(&e->subjects[i]);
    }
    text_free(&e->normal[0]);
    text_free(&e->normal[1]);
    free(e->symbols);
    free(e->heap);
}

/* --- normalising --- */

/* Replace every match, from left to right; replacements are not searched again. */
mpk_status run_replace(mpk_context *cx, regex_match *match, const step *s, str in, text *out)
{
    subject in_subject = {0};
    finder f = {.cx = cx, .match = match, .step = s, .in = &in_subject};
    size_t before = 0;
    mpk_status status = subject_set(cx, &in_subject, in);
    for (bool found; status == MPK_OK && (status = finder_next(&f, &found)) == MPK_OK && found;
         before = f.end) {
        text_add(out, in.at + before, f.start - before);
        text_add(out, s->content.at, s->content.n);
    }
    subject_free(&in_subject);
    TRY(status);
    text_add(out, in.at + before, in.n - before);
    return text_check(cx, out);
}

/* One character may become two (U+0130).  Each character alone, as the reference does it: a
 * sigma at a word's end is not special. */
static void lowercase(str in, text *out)
{
    for (size_t i = 0; i < in.n; i += utf8_length(in.at + i)) {
        uint32_t second, lower = char_lower(utf8_get(in.at + i), &second);
        utf8_add(out, lower);
        if (second)
            utf8_add(out, second);
    }
}

/* Drop the marks.  Files ask for a decomposition before; a composed letter keeps its accent. */
static void strip_accents(str in, text *out)
{
    for (size_t i = 0, n; i < in.n; i += n) {
        n = utf8_length(in.at + i);
        if (!char_is_mark(utf8_get(in.at + i)))
            text_add(out, in.at + i, n);
    }
}

/* The byte at which the last character of s begins; s is not empty. */
static size_t last_char(str s)
{
    size_t i = s.n - 1;
    while (i && ((unsigned char)s.at[i] & 0xc0) == 0x80)
        i--;
    return i;
}

/* Remove white space at the ends that the step names; the result is a slice of `in`. */
static str strip(const step *s, str in)
{
    while (s->left && in.n && char_is_space(utf8_get(in.at))) {
        size_t n = utf8_length(in.at);
        in = (str){in.at + n, in.n - n};
    }
    while (s->right && in.n && char_is_space(utf8_get(in.at + last_char(in))))
        in.n = last_char(in);
    return in;
}

/* Apply one step to `in` and append to *out; the two must not overlap. STEP_PREPEND puts nothing
 * before an empty text, as the library does. */
static mpk_status normalize_step(encoder *e, const step *s, str in, text *out)
{
    switch (s->kind) {
    case STEP_LOWERCASE:
        lowercase(in, out);
        break;
    case STEP_STRIP_ACCENTS:
        strip_accents(in, out);
        break;
    case STEP_STRIP:
        in = strip(s, in);
        text_add(out, in.at, in.n);
        break;
    case STEP_PREPEND:
        if (in.n)
            text_add(out, s->content.at, s->content.n);
        text_add(out, in.at, in.n);
        break;
    case STEP_BYTES:
        for (size_t i = 0; i < in.n; i++)
            utf8_add(out, byte_to_char((unsigned char)in.at[i]));
        break;
    case STEP_REPLACE:
        return run_replace(e->cx, e->match, s, in, out);
    default:
        return normalize_unicode(e->cx, (normal_form)s->kind, in, out);
    }
    return text_check(e->cx, out);
}

/* Apply all steps, with two buffers in turn, so that a step never reads what it writes.  *in
 * then points into the encoder, and is valid until the next call. */
mpk_status run_normalize(encoder *e, const steps *s, str *in)
{
    for (size_t i = 0; i < s->n; i++) {
        text *out = &e->normal[i % 2];
        out->n = 0;
        TRY(normalize_step(e, &s->at[i], *in, out));
        *in = (str){out->at ? out->at : "", out->n};
    }
    return MPK_OK;
}

/* Normalise a text outside of encoding, such as that of an added token; the result is in arena
 * a. */
mpk_status tokenizer_normalize(mpk_context *cx, const tokenizer *t, arena *a, str in, str *out)
{
    encoder e = {0};
    mpk_status status = encoder_open(&e, cx, t);
    if (status == MPK_OK)
        status = run_normalize(&e, &t->normalize, &in);
    if (status == MPK_OK) {
        char *copy = arena_copy(a, in.at, in.n);
        *out = (str){copy, in.n};
        if (!copy)
            status = status_fail(cx, MPK_ENOMEM, "out of memory for %zu bytes of text", in.n);
    }
    encoder_close(&e);
    return status;
}

/* --- added tokens --- */

/* The longest added token that begins at byte i of s, or NULL. */
static const added_token *longest_added(const tokenizer *t, const added_tree *tree, str s, size_t i)
{
    uint32_t node = 0, best = 0;
    for (; i < s.n; i++) {
        const pair_slot *edge =
            pair_map_get(&tree->edges, (uint64_t)node << 8 | (unsigned char)s.at[i]);
        if (!edge)
            break;
        node = edge->id;
        if (tree->tokens[node])
            best = tree->tokens[node];
    }
    return best ? &t->added.at[best - 1] : NULL;
}

/* Is it a character of a word, as regular expressions define words?  Added tokens with
 * single_word ask this about their neighbours.  `character` is one whole character. */
static mpk_status is_word(encoder *e, str character, bool *yes)
{
    subject s = {0};
    size_t start, end;
    mpk_status status = subject_set(e->cx, &s, character);
    if (status == MPK_OK)
        status = regex_find(e->cx, e->match, e->t->word, &s, 0, yes, &start, &end);
    subject_free(&s);
    return status;
}

/* Does a character of a word precede or follow s[start, end)? */
static mpk_status touches_word(encoder *e, str s, size_t start, size_t end, bool *yes)
{
    *yes = false;
    if (start) {
        size_t i = last_char((str){s.at, start});
        TRY(is_word(e, (str){s.at + i, start - i}, yes));
    }
    if (!*yes && end < s.n)
        TRY(is_word(e, (str){s.at + end, utf8_length(s.at + end)}, yes));
    return MPK_OK;
}

/* Where the white space that ends at byte `end` of s begins, not before byte `from`. */
static size_t strip_end(str s, size_t from, size_t end)
{
    while (end > from) {
        size_t last = last_char((str){s.at, end});
        if (last < from || !char_is_space(utf8_get(s.at + last)))
            break;
        end = last;
    }
    return end;
}

/* What to do with a piece of text between added tokens; at_start: it begins the input. */
typedef mpk_status (*section_action)(encoder *e, str section, bool at_start);

/* Find the added tokens of a tree in s, append their ids, and pass the text between them to
 * `act`, in order.  A token that is ruled out (by single_word, or special without parse_special)
 * is text.  White space that lstrip and rstrip remove goes to no piece. */
static mpk_status cut_added(encoder *e, const added_tree *tree, str s, bool at_start,
                            section_action act)
{
    size_t before = 0; /* text before this byte has been handled */
    for (size_t i = 0; tree->n_nodes > 1 && i < s.n;) {
        const added_token *a =
            tree->first[(unsigned char)s.at[i]] ? longest_added(e->t, tree, s, i) : NULL;
        if (!a) {
            i++;
            continue;
        }
        size_t start = i, end = i + a->text.n;
        bool touched = false;
        i = end;
        if (a->single_word)
            TRY(touches_word(e, s, start, end, &touched));
        if (touched || (a->special && !e->parse_special))
            continue;
        if (a->lstrip)
            start = start < before ? before : strip_end(s, before, start);
        while (a->rstrip && end < s.n && char_is_space(utf8_get(s.at + end)))
            end += utf8_length(s.at + end);
        if (start >= end) /* only white space that another token has removed */
            continue;
        if (before < start)
            TRY(act(e, (str){s.at + before, start - before}, at_start && before == 0));
        PUSH(e->cx, e->out_arena, e->out, a->id);
        before = end;
    }
    return before < s.n ? act(e, (str){s.at + before, s.n - before}, at_start && before == 0)
                        : MPK_OK;
}

/* The innermost action: text without added tokens is cut into words and merged. */
static mpk_status cut_words(encoder *e, str section, bool at_start)
{
    return run_split(e, 0, section, at_start);
}

/* Text between raw added tokens is normalised; the other added tokens are searched for in the
 * result. */
static mpk_status normalize_section(encoder *e, str section, bool at_start)
{
    TRY(run_normalize(e, &e->t->normalize, &section));
    return cut_added(e, &e->t->normal_tree, section, at_start, cut_words);
}

/* --- encode --- */

/* Bytes of a text; a longer one is refused. */
enum { LONGEST_INPUT = 1 << 30 };

/* The ids around the text come from the post-processor, and only on request. */
static mpk_status encode(encoder *e, str input, unsigned flags)
{
    const tokenizer *t = e->t;
    for (size_t i = 0; (flags & TOKENIZER_ADD_SPECIAL) && i < t->before.n; i++)
        PUSH(e->cx, e->out_arena, e->out, t->before.at[i]);
    TRY(cut_added(e, &t->raw_tree, input, true, normalize_section));
    for (size_t i = 0; (flags & TOKENIZER_ADD_SPECIAL) && i < t->after.n; i++)
        PUSH(e->cx, e->out_arena, e->out, t->after.at[i]);
    return MPK_OK;
}

/* The input may be any bytes: invalid UTF-8 becomes U+FFFD, as decoding it anywhere else would
 * give. */
mpk_status tokenizer_encode(mpk_context *cx, const tokenizer *t, arena *a, const char *bytes,
                            size_t n, unsigned flags, tokenizer_ids *out)
{
    CHECK(cx, n <= LONGEST_INPUT, MPK_ELIMIT,
          "a text of %zu bytes is too long to tokenize, the limit is %d", n, LONGEST_INPUT);
    encoder e = {.out_arena = a, .out = out, .parse_special = flags & TOKENIZER_PARSE_SPECIAL};
    text valid = {0};
    utf8_rest rest = {0};
    utf8_add_valid(&valid, &rest, bytes, n);
    utf8_end_valid(&valid, &rest);
    mpk_status status = text_check(cx, &valid);
    if (status == MPK_OK)
        status = encoder_open(&e, cx, t);
    if (status == MPK_OK)
        status = encode(&e, (str){valid.at, valid.n}, flags);
    encoder_close(&e);
    text_free(&valid);
    return status;
}

/* --- looking up --- */

int32_t tokenizer_vocab_size(const tokenizer *t)
{
    return (int32_t)t->n_tokens;
}

str tokenizer_token(const tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_tokens ? t->tokens[id] : (str){0};
}

/* An added token is preferred over one of the model, as in encoding. */
int32_t tokenizer_find(const tokenizer *t, str token)
{
    uint64_t id;
    if (map_get(&t->added_ids, token, &id) || map_get(&t->model_ids, token, &id))
        return (int32_t)id;
    return -1;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_tokens && t->special[id];
}

int32_t tokenizer_bos(const tokenizer *t)
{
    return t->bos_id;
}
int32_t tokenizer_eos(const tokenizer *t)
{
    return t->eos_id;
}
int32_t tokenizer_eot(const tokenizer *t)
{
    return t->eot_id;
}
int32_t tokenizer_pad(const tokenizer *t)
{
    return t->pad_id;
}
