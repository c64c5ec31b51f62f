/* grammar_compile.c - trees of rules -> states.
 *
 * A tree is turned into states from its end to its beginning: each part is given the state that
 * follows it.  Counts stay counts, so that {1,100000} is one state.  A rule that could call itself
 * without having read a byte is refused: its stack would grow for ever.  Cost: linear in the
 * trees, but for sets of bytes.
 *
 * Called by grammar.c and, for the schemas that judge literals, by grammar_schema.c.
 *
 * A repetition with a count, (ab){2,5} followed by c:
 *
 *   COUNT min 2 max 5 --a--> BYTE a --> BYTE b --> END
 *         |
 *         --b--> BYTE c ...
 *
 * END returns to the COUNT, which is on the stack with how often it was called. */
#include "grammar/grammar_parts.h"

/* States take at most a few tens of megabytes; visits, while rules are examined, a fraction of a
 * second. */
enum { MOST_STATES = 1 << 20, MOST_VISITS = 100000000 };

/* A compilation.  `end` and `never` are two states that all rules share. */
typedef struct compiler {
    mpk_context *cx;
    arena *a;
    maker *k;
    automaton *to;
    map sets; /* content -> number */
    uint64_t visits;
    uint32_t end, never;
} compiler;

/* ---- which parts may be empty ---- */

/* Can it match the empty text?  Judged by the rules that are known to be nullable so far:
 * fill_nullable repeats until nothing changes.  Recursion is as deep as the tree. A count of at
 * least 1 asks its body: (a?){3} is nullable. */
static bool is_nullable(compiler *c, const node *n)
{
    c->visits++;
    switch (n->kind) {
    case NODE_EMPTY:
        return true;
    case NODE_RULE:
        return c->k->rules.at[n->rule].is_nullable;
    case NODE_REPEAT:
        return n->min == 0 || is_nullable(c, n->children.at[0]);
    case NODE_SEQ:
        for (size_t i = 0; i < n->children.n; i++)
            if (!is_nullable(c, n->children.at[i]))
                return false;
        return true;
    case NODE_ALT:
        for (size_t i = 0; i < n->children.n; i++)
            if (is_nullable(c, n->children.at[i]))
                return true;
        return false;
    default:
        return false;
    }
}

/* Asking a part again at each level above it costs the square of its height. */
static mpk_status check_visits(const compiler *c)
{
    CHECK(c->cx, c->visits < MOST_VISITS, MPK_ELIMIT,
          "the grammar's rules depend on each other in chains that are too long");
    return MPK_OK;
}

/* Repeat until nothing changes; rules are visited in both directions alternately, so that chains
 * settle quickly. */
static mpk_status fill_nullable(compiler *c)
{
    size_t n = c->k->rules.n;
    for (bool changed = true, up = true; changed; up = !up) {
        changed = false;
        for (size_t i = 0; i < n; i++) {
            rule *r = &c->k->rules.at[up ? i : n - 1 - i];
            bool now = !r->is_nullable && is_nullable(c, r->body);
            r->is_nullable |= now;
            changed |= now;
        }
        TRY(check_visits(c));
    }
    return MPK_OK;
}

/* ---- rules that begin with themselves ---- */

typedef VEC(uint32_t) rule_list;

/* The rules that a part may call before it has read a byte: for a sequence, those of its first
 * children up to the first that cannot be empty. */
static mpk_status list_first(compiler *c, const node *n, rule_list *out)
{
    if (n->kind == NODE_RULE)
        PUSH(c->cx, c->a, out, n->rule);
    for (size_t i = 0; i < n->children.n; i++) {
        TRY(list_first(c, n->children.at[i], out));
        if (n->kind == NODE_SEQ && !is_nullable(c, n->children.at[i]))
            break;
    }
    return check_visits(c);
}

/* Depth first, without recursion: a rule that is met while it is open calls itself. calls[r] are
 * the rules that r may begin with, before it has read a byte: r -> r "a" would call itself for
 * ever. at[r] is how many of them have been looked at; `open` is the path, `mark` the state of each
 * rule. All three arrays have a place for each rule. */
static mpk_status check_from(compiler *c, uint32_t first, uint8_t *mark, rule_list *calls,
                             uint32_t *at, uint32_t *open)
{
    enum { NEW_RULE, OPEN, DONE };
    uint32_t n = 0;
    open[n++] = first;
    mark[first] = OPEN;
    while (n) {
        uint32_t r = open[n - 1];
        if (at[r] == calls[r].n) {
            mark[r] = DONE;
            n--;
            continue;
        }
        uint32_t next = calls[r].at[at[r]++];
        CHECK(c->cx, mark[next] != OPEN, MPK_EUNSUPPORTED,
              "%.*s refers to itself before it has any text of its own (left recursion): write it "
              "as a repetition",
              STR_ARG(c->k->rules.at[next].name));
        if (mark[next] == NEW_RULE) {
            mark[next] = OPEN;
            open[n++] = next;
        }
    }
    return MPK_OK;
}

/* Which rules can be reached from which before a byte is read; a rule that reaches itself is
 * refused. */
static mpk_status check_recursion(compiler *c)
{
    size_t n = c->k->rules.n;
    uint8_t *mark;
    uint32_t *at, *open;
    rule_list *calls;
    NEW(c->cx, c->a, mark, n);
    NEW(c->cx, c->a, at, n);
    NEW(c->cx, c->a, open, n);
    NEW(c->cx, c->a, calls, n);
    for (size_t i = 0; i < n; i++)
        TRY(list_first(c, c->k->rules.at[i].body, &calls[i]));
    for (uint32_t i = 0; i < n; i++)
        if (!mark[i])
            TRY(check_from(c, i, mark, calls, at, open));
    return MPK_OK;
}

/* ---- states ---- */

/* *out stays valid: states are never moved, only marked. */
static mpk_status add_state(compiler *c, grammar_state s, uint32_t *out)
{
    CHECK(c->cx, c->to->states.n < MOST_STATES, MPK_ELIMIT,
          "the grammar is too large: more than %d states", MOST_STATES);
    *out = (uint32_t)c->to->states.n;
    PUSH(c->cx, c->a, &c->to->states, s);
    return MPK_OK;
}

/* Equal sets of bytes are stored once: most states read one of a few sets, and their number
 * bounds the tables of situations. */
static mpk_status add_byte(compiler *c, const byte_set *set, uint32_t next, uint32_t *out)
{
    str key = {(const char *)set, sizeof *set};
    uint64_t number;
    if (!map_get(&c->sets, key, &number)) {
        number = c->to->sets.n;
        key.at = arena_copy(c->a, key.at, key.n);
        CHECK(c->cx, key.at, MPK_ENOMEM, "out of memory for a set of bytes");
        TRY(map_put(c->cx, c->a, &c->sets, key, number));
        PUSH(c->cx, c->a, &c->to->sets, *set);
    }
    return add_state(c, (grammar_state){.kind = STATE_BYTE, .a = (uint32_t)number, .b = next}, out);
}

/* Add the bytes low to high, both included. */
static void set_bytes(byte_set *set, uint8_t low, uint8_t high)
{
    for (uint32_t b = low; b <= high; b++)
        set->bits[b / 64] |= 1ull << b % 64;
}

/* The UTF-8 bytes of a character; returns how many.  Surrogates do not occur: node_chars removes
 * them. */
static uint32_t encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    uint32_t n = 2 + (c >= 0x800) + (c >= 0x10000);
    for (uint32_t i = n; i-- > 1; c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)((0xf00 >> n & 0xff) | c);
    return n;
}

/* Characters whose encodings vary byte by byte independently: one chain of sets of bytes. */
static mpk_status emit_chain(compiler *c, uint32_t low, uint32_t high, uint32_t next,
                             uint32_t *entry)
{
    uint8_t from[4], to[4];
    uint32_t n = encode(low, from), first;
    encode(high, to);
    for (uint32_t i = n; i-- > 0;) {
        byte_set set = {0};
        set_bytes(&set, from[i], to[i]);
        TRY(add_byte(c, &set, next, &next));
    }
    if (*entry == c->never) {
        *entry = next;
        return MPK_OK;
    }
    TRY(add_state(c, (grammar_state){.kind = STATE_SPLIT, .a = next, .b = *entry}, &first));
    *entry = first;
    return MPK_OK;
}

/* Characters [low, high], cut where encodings change their length, and where their bytes depend
 * on each other: U+0080 .. U+07FF is [c2-df][80-bf] at once, U+00A5 .. U+0101 is c2 [a5-bf], c3
 * [80-bf], c4 [80-81]. */
static mpk_status emit_range(compiler *c, uint32_t low, uint32_t high, uint32_t next,
                             uint32_t *entry)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff};
    for (uint32_t i = 0; i < 3; i++)
        if (low <= last[i] && high > last[i]) {
            TRY(emit_range(c, low, last[i], next, entry));
            return emit_range(c, last[i] + 1, high, next, entry);
        }
    for (uint32_t i = 1; i < 4 && low > 0x7f; i++) {
        uint32_t m = (1u << 6 * i) - 1;
        if ((low & ~m) == (high & ~m))
            continue;
        uint32_t cut = 0;
        if (low & m)
            cut = (low | m) + 1;
        else if ((high & m) != m)
            cut = high & ~m;
        if (cut) {
            TRY(emit_range(c, low, cut - 1, next, entry));
            return emit_range(c, cut, high, next, entry);
        }
    }
    return emit_chain(c, low, high, next, entry);
}

/* ASCII is one set of bytes; characters above it are a few sequences of ranges of UTF-8 bytes, as
 * alternatives in a chain of splits. A set of one range "a" to "\u00ff" is the state {61..7f}
 * beside C2 {80..BF} and C3 {80..BF}. UTF-8 is spelled out, so that a token which ends within a
 * character can be judged, too. */
static mpk_status emit_chars(compiler *c, const char_set *set, uint32_t next, uint32_t *entry)
{
    byte_set ascii = {0};
    bool any = false;
    *entry = c->never;
    for (size_t i = 0; i < set->n; i++) {
        char_range r = set->at[i];
        if (r.low < 0x80) {
            set_bytes(&ascii, (uint8_t)r.low, (uint8_t)(r.high < 0x80 ? r.high : 0x7f));
            any = true;
            r.low = 0x80;
        }
        if (r.low <= r.high)
            TRY(emit_range(c, r.low, r.high, next, entry));
    }
    if (!any)
        return MPK_OK;
    uint32_t first, others = *entry;
    TRY(add_byte(c, &ascii, next, &first));
    *entry = first;
    return others == c->never
               ? MPK_OK
               : add_state(c, (grammar_state){.kind = STATE_SPLIT, .a = first, .b = others}, entry);
}

static mpk_status emit(compiler *c, const node *n, uint32_t next, uint32_t *entry);

/* From the last byte to the first, since a state must know its successor. */
static mpk_status emit_bytes(compiler *c, str bytes, uint32_t next, uint32_t *entry)
{
    for (size_t i = bytes.n; i-- > 0;) {
        byte_set set = {0};
        set_bytes(&set, (uint8_t)bytes.at[i], (uint8_t)bytes.at[i]);
        TRY(add_byte(c, &set, next, &next));
    }
    *entry = next;
    return MPK_OK;
}

/* A loop without a count: min is 0 or 1.  The split is made before the body, which leads back to
 * it, and gets the body's start afterwards. */
static mpk_status emit_loop(compiler *c, const node *n, uint32_t next, uint32_t *entry)
{
    uint32_t split, body;
    TRY(add_state(c, (grammar_state){.kind = STATE_SPLIT, .b = next}, &split));
    TRY(emit(c, n->children.at[0], split, &body));
    c->to->states.at[split].a = body;
    *entry = n->min ? body : split;
    return MPK_OK;
}

/* Loops and optional parts need no count; {n,m} is one state that counts, whose body ends at
 * c->end, which returns to it. A body that may be empty counts from 0: its rounds may be empty
 * ones, so any number of them is reached already. */
static mpk_status emit_repeat(compiler *c, const node *n, uint32_t next, uint32_t *entry)
{
    uint32_t body;
    if (n->min <= 1 && n->max == GRAMMAR_FOREVER)
        return emit_loop(c, n, next, entry);
    if (n->max == 1) {
        TRY(emit(c, n->children.at[0], next, &body));
        if (n->min == 1) {
            *entry = body;
            return MPK_OK;
        }
        return add_state(c, (grammar_state){.kind = STATE_SPLIT, .a = body, .b = next}, entry);
    }
    const bool nullable = is_nullable(c, n->children.at[0]);
    TRY(check_visits(c));
    TRY(emit(c, n->children.at[0], c->end, &body));
    return add_state(c,
                     (grammar_state){.kind = STATE_COUNT,
                                     .a = body,
                                     .b = next,
                                     .min = nullable ? 0 : n->min,
                                     .max = n->max,
                                     .is_nullable = nullable},
                     entry);
}

/* A chain of splits.  An alternative that can never match is left out, so masks do not follow
 * it. */
static mpk_status emit_alt(compiler *c, const node *n, uint32_t next, uint32_t *entry)
{
    uint32_t first = c->never, one;
    for (size_t i = n->children.n; i-- > 0;) {
        TRY(emit(c, n->children.at[i], next, &one));
        if (first == c->never)
            first = one;
        else if (one != c->never)
            TRY(add_state(c, (grammar_state){.kind = STATE_SPLIT, .a = one, .b = first}, &first));
    }
    *entry = first;
    return MPK_OK;
}

/* The states of a part that is followed by `next`; returns its first one. Backwards: the last child
 * is emitted first, since a state names the one that follows it. */
static mpk_status emit(compiler *c, const node *n, uint32_t next, uint32_t *entry)
{
    switch (n->kind) {
    case NODE_EMPTY:
        *entry = next;
        return MPK_OK;
    case NODE_CHARS:
        return emit_chars(c, &n->chars, next, entry);
    case NODE_BYTES:
        return emit_bytes(c, n->bytes, next, entry);
    case NODE_SEQ:
        for (size_t i = n->children.n; i-- > 0;)
            TRY(emit(c, n->children.at[i], next, &next));
        *entry = next;
        return MPK_OK;
    case NODE_ALT:
        return emit_alt(c, n, next, entry);
    case NODE_REPEAT:
        return emit_repeat(c, n, next, entry);
    case NODE_RULE:
        return add_state(c, (grammar_state){.kind = STATE_CALL, .a = n->rule, .b = next}, entry);
    default:
        *entry = c->never;
        return MPK_OK;
    }
}

/* Turn rules into states; then let calls know where their rules begin. */
static mpk_status emit_rules(compiler *c)
{
    automaton *to = c->to;
    uint32_t *starts;
    NEW(c->cx, c->a, starts, c->k->rules.n);
    TRY(add_state(c, (grammar_state){.kind = STATE_END}, &c->end));
    TRY(add_state(c, (grammar_state){.kind = STATE_NEVER}, &c->never));
    for (size_t i = 0; i < c->k->rules.n; i++)
        TRY(emit(c, c->k->rules.at[i].body, c->end, &starts[i]));
    for (size_t i = 0; i < to->states.n; i++)
        if (to->states.at[i].kind == STATE_CALL)
            to->states.at[i].a = starts[to->states.at[i].a];
    to->start = starts[0];
    return MPK_OK;
}

/* ---- dead ends ---- */

/* Can the end be reached from a state?  Judged by what is known so far; called until nothing
 * changes, it only turns from false to true. */
static bool leads_on(const grammar_state *s, const bool *good)
{
    switch (s->kind) {
    case STATE_END:
        return true;
    case STATE_BYTE:
        return good[s->b];
    case STATE_SPLIT:
        return good[s->a] || good[s->b];
    case STATE_CALL:
        return good[s->a] && good[s->b];
    case STATE_COUNT:
        return good[s->b] && (!s->min || good[s->a]);
    default:
        return false;
    }
}

/* States from which the end cannot be reached are removed, so that a text that has begun can always
 * be completed. `good` grows until nothing changes; going through the states upwards and downwards
 * in turn reaches long chains in a few passes. A count whose body is dead may still be left at
 * once, so it becomes one of no rounds. */
static mpk_status drop_dead_ends(compiler *c)
{
    size_t n = c->to->states.n;
    bool *good;
    NEW(c->cx, c->a, good, n);
    for (bool changed = true, up = true; changed; up = !up) {
        changed = false;
        for (size_t i = 0; i < n; i++) {
            size_t at = up ? i : n - 1 - i;
            bool now = !good[at] && leads_on(&c->to->states.at[at], good);
            good[at] |= now;
            changed |= now;
        }
        c->visits += n;
        TRY(check_visits(c));
    }
    for (size_t i = 0; i < n; i++) {
        grammar_state *s = &c->to->states.at[i];
        if (!good[i])
            s->kind = STATE_NEVER;
        else if (s->kind == STATE_COUNT && !good[s->a])
            s->max = 0;
    }
    CHECK(c->cx, good[c->to->start], MPK_EFORMAT,
          "no text has the form that is asked for: it contradicts itself");
    return MPK_OK;
}

/* Each set splits the bytes that were one class so far into those inside and those outside. Bytes
 * of one class lead from every state to the same states, so a situation keeps one transition for
 * each class, not for each byte. class_of and byte_of lead from a byte to its class and from a
 * class to one of its bytes. */
static void classify(automaton *to)
{
    to->n_classes = 1;
    memset(to->class_of, 0, sizeof to->class_of);
    for (size_t i = 0; i < to->sets.n; i++) {
        int16_t inside[256];
        uint32_t sizes[256] = {0}, within[256] = {0};
        for (uint32_t b = 0; b < 256; b++) {
            inside[b] = -1;
            sizes[to->class_of[b]]++;
            within[to->class_of[b]] += to->sets.at[i].bits[b / 64] >> b % 64 & 1;
        }
        for (uint32_t b = 0; b < 256; b++) {
            uint8_t old = to->class_of[b];
            if (!(to->sets.at[i].bits[b / 64] >> b % 64 & 1) || within[old] == sizes[old])
                continue;
            if (inside[old] < 0)
                inside[old] = (int16_t)to->n_classes++;
            to->class_of[b] = (uint8_t)inside[old];
        }
    }
    for (uint32_t b = 0; b < 256; b++)
        to->byte_of[to->class_of[b]] = (uint8_t)b;
}

/* Each step relies on those before it: nullable rules matter for recursion, recursion must be
 * sound before states are made, and only then can dead ends be found. */
mpk_status automaton_make(mpk_context *cx, arena *a, maker *k, automaton *out)
{
    compiler c = {.cx = cx, .a = a, .k = k, .to = out};
    TRY(fill_nullable(&c));
    TRY(check_recursion(&c));
    TRY(emit_rules(&c));
    TRY(drop_dead_ends(&c));
    classify(out);
    return MPK_OK;
}
