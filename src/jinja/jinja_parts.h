/* jinja_parts.h - what a template and its rendering are made of; for the files jinja*.c alone.
 *
 *     jinja_lex.c          source -> tokens
 *     jinja_expression.c   tokens -> trees of expressions
 *     jinja_parse.c        tokens -> trees of statements
 *     jinja_names.c        tree -> what each scope hides and what macros capture; filters and tests
 *                          by name
 *     jinja_run.c          statements and scopes
 *     jinja_loop.c         for
 *     jinja_macro.c        macros and calls
 *     jinja_eval.c         expressions
 *     jinja_operators.c    + - * and comparisons
 *     jinja_attribute.c    a.b, a[b], a[b:c]
 *     jinja_value.c        truth, equality, order, length
 *     jinja_print.c        str, repr and JSON
 *     jinja_iterate.c      iterators
 *     jinja_filters.c      filters of one value
 *     jinja_sequence.c     filters of sequences
 *     jinja_is.c           tests
 *     jinja_methods.c      methods of list, dict and others; arguments
 *     jinja_str_methods.c  methods of str
 *     jinja_format.c       % and format
 *     jinja_globals.c      namespace, range, strftime_now ...
 *     jinja_text.c         characters and their case
 *     jinja_case.c         the table of case mappings
 *
 * The data, in the order in which they are made:
 *
 *     token   kind and place in the source
 *     node    of the tree, one struct for all kinds; what its fields hold stands beside each kind
 *     value   24 bytes; text is a slice, a container a pointer into the arena of the rendering
 *     scope   names and values of a template, a loop's turn, a macro's call ...; a chain of them is
 *             what a name means
 *
 * Lists and dicts never change after they are made, for the sandbox is immutable; namespaces,
 * iterators, loops, cyclers and joiners do.
 */
#ifndef JINJA_PARTS_H
#define JINJA_PARTS_H

#include "base/map.h"
#include "jinja/jinja.h"

enum {
    JINJA_MAX_HEIGHT = 200, /* of the tree */
    /* of nodes that are being run; of values in values while they are looked through */
    JINJA_MAX_DEPTH = 1000,
    JINJA_MAX_STEPS = 20000000,  /* nodes run, items looked at, and 32 bytes of text each */
    JINJA_MAX_OUTPUT = 64 << 20, /* bytes; also of any text */
    JINJA_MAX_RANGE = 100000,    /* the sandbox's */
    JINJA_MAX_SOURCE = 16 << 20, /* bytes */
    JINJA_MAX_ARGS = 64,         /* of a call that are written out */
};
#define JINJA_MAX_MEMORY ((size_t)512 << 20)

/* ---- values ---- */

typedef enum jkind {
    J_ABSENT, /* no value: a parameter that was not given, a name that is not set here */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_BIG, /* an integer beyond 64 bits, from JSON: it can be printed and compared for equality */
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW, /* keys(), values(), items() of a dict */
    J_RANGE,
    J_ITERATOR, /* of map, select ...: runs once */
    J_NAMESPACE,
    J_MACRO,
    J_METHOD, /* of a value: "a".upper */
    J_GLOBAL, /* a function of the environment */
    J_LOOP,
    J_CYCLER,
    J_JOINER,
} jkind;

typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jview jview;
typedef struct jrange jrange;
typedef struct jiterator jiterator;
typedef struct jmacro jmacro;
typedef struct jbound jbound;
typedef struct jloop jloop;
typedef struct jcycler jcycler;
typedef struct jglobal jglobal;
typedef struct jfilter jfilter;
typedef struct jtest jtest;
typedef struct jmethod jmethod;
typedef struct jnode jnode;
typedef struct jrun jrun;

typedef struct jval {
    jkind kind;
    bool markup; /* of J_STR: it went through safe or escape; what is added to it is escaped */
    union {
        bool boolean;
        int64_t integer;
        double number;
        str text;    /* also of J_BIG: its spelling; of J_UNDEFINED: why */
        jlist *list; /* also of J_TUPLE */
        jdict *dict; /* also of J_NAMESPACE */
        jview *view;
        jrange *range;
        jiterator *iterator;
        jmacro *macro;
        jbound *method;
        const jglobal *global;
        jloop *loop;
        jcycler *cycler; /* also of J_JOINER */
    };
} jval;

struct jlist {
    jval *at;
    size_t n, capacity;
    bool is_group; /* of groupby: a tuple (grouper, list) with these names */
};
typedef struct jentry {
    jval key, value;
} jentry;
struct jdict {
    jentry *at; /* in the order of insertion */
    size_t n, capacity;
    map texts; /* from 16 entries on: keys that are texts -> index */
    bool is_indexed;
};
typedef enum jpart { J_KEYS, J_VALUES, J_ITEMS } jpart;
struct jview {
    jdict *dict;
    jpart part;
};
struct jrange {
    int64_t start, stop, step, n;
};
struct jcycler {
    jlist items; /* of a joiner: its separator */
    size_t at;   /* of a joiner: 1 when it was used */
};
/* A method and the value that it is of. */
struct jbound {
    jval self;
    const jmethod *method;
};

/* Arguments of a call. */
typedef struct jkeyword {
    str name;
    jval value;
} jkeyword;
typedef struct jargs {
    const jval *at;
    size_t n;
    const jkeyword *keywords;
    size_t n_keywords;
} jargs;

typedef mpk_status (*jfilter_call)(jrun *r, jval subject, const jargs *args, jval *out);
struct jfilter {
    const char *name;
    jfilter_call call; /* NULL: Jinja2 has it, we do not */
};
struct jtest {
    const char *name;
    mpk_status (*call)(jrun *r, jval subject, const jargs *args, bool *out);
};
struct jglobal {
    const char *name;
    mpk_status (*call)(jrun *r, const jargs *args, jval *out);
};
struct jmethod {
    const char *name;
    jfilter_call call; /* NULL: Python has it, we do not */
    bool mutates;      /* the sandbox hides it */
    bool is_data;      /* not a method but a number */
};

static inline jval jinja_none(void)
{
    return (jval){.kind = J_NONE};
}
static inline jval jinja_bool(bool b)
{
    return (jval){.kind = J_BOOL, .boolean = b};
}
static inline jval jinja_int(int64_t i)
{
    return (jval){.kind = J_INT, .integer = i};
}
static inline jval jinja_float(double x)
{
    return (jval){.kind = J_FLOAT, .number = x};
}
static inline jval jinja_str(str s)
{
    return (jval){.kind = J_STR, .text = s};
}
/* What `name` would mean if there were such a thing. */
static inline jval jinja_undefined(str name)
{
    return (jval){.kind = J_UNDEFINED, .text = name};
}
static inline bool jinja_is_integral(jval v)
{
    return v.kind == J_INT || v.kind == J_BOOL;
}
/* Of an integral value. */
static inline int64_t jinja_integral(jval v)
{
    return v.kind == J_INT ? v.integer : v.boolean;
}

/* ---- tokens ---- */

typedef enum jtoken_kind {
    T_DATA,
    T_PRINT, /* {{ */
    T_PRINT_END,
    T_BLOCK, /* {% */
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_OPERATOR,
    T_END,
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    uint32_t at, line; /* of its first byte: offset in the source, number from 1 */
    /* as in the source; of T_STRING: its meaning; of T_DATA: what is left of it */
    str text;
} jtoken;

/* A source and its tokens; the last is T_END. */
typedef struct jtokens {
    str source; /* with \n at the ends of lines */
    jtoken *at;
    size_t n, capacity;
} jtokens;

mpk_status jinja_lex(mpk_context *cx, arena *a, str source, jtokens *out);
/* MPK_EFORMAT (or code) with line and column of the byte at this offset. */
mpk_status jinja_fail_at(mpk_context *cx, mpk_status code, str source, size_t at,
                         const char *format, ...) BASE_PRINTF(5, 6);

/* ---- the tree ---- */

typedef enum jnode_kind {
    /* expressions */
    N_CONST,     /* value */
    N_NAME,      /* name */
    N_TUPLE,     /* items */
    N_LIST,      /* items */
    N_DICT,      /* items: key, value, key, value ... */
    N_NOT,       /* a */
    N_SIGN,      /* op '-' or '+', a */
    N_BINARY,    /* op, a, b */
    N_AND,       /* a, b */
    N_OR,        /* a, b */
    N_CONCAT,    /* items */
    N_COMPARE,   /* a, items: N_OPERAND */
    N_OPERAND,   /* op, a */
    N_CHOICE,    /* a if b else c (may be NULL) */
    N_ATTRIBUTE, /* a.name */
    N_ITEM,      /* a[b]; b may be N_SLICE */
    N_SLICE,     /* a:b:c, each may be NULL */
    N_CALL,      /* a, arguments */
    N_FILTER,    /* a (NULL: what a block printed), name, arguments, filter */
    N_TEST,      /* a, name, arguments, test */
    /* statements */
    N_TEXT,         /* name: the text */
    N_PRINT,        /* a */
    N_FOR,          /* for a in b if c: body, items: else; flag: recursive */
    N_IF,           /* a, body, more: N_IF for each elif, items: else */
    N_SET,          /* a = b; a is N_NAME, N_TUPLE or N_MEMBER */
    N_MEMBER,       /* name.member: part of a namespace, as a target */
    N_SET_BLOCK,    /* a, body, b: filters or NULL */
    N_MACRO,        /* name, items: parameters, more: the defaults of the last of them, body */
    N_CALL_BLOCK,   /* the same without name, a: N_CALL */
    N_FILTER_BLOCK, /* a: filters, body */
    N_WITH,         /* items: targets, more: values, body */
    N_GENERATION,   /* body */
    N_BREAK,
    N_CONTINUE,
} jnode_kind;

typedef struct jnodes {
    jnode **at;
    size_t n, capacity;
} jnodes;
typedef struct jnames {
    str *at;
    size_t n, capacity;
} jnames;

/* f(positional..., name=value..., *star, **stars) */
typedef struct jarguments {
    jnodes at;
    jnames names;
    jnodes values;
    jnode *star, *stars;
} jarguments;

enum { J_CATCH_CALLER = 1, J_CATCH_KWARGS = 2, J_CATCH_VARARGS = 4 };
enum {
    J_FLOORDIV = '/' | '/' << 8,
    J_POW = '*' | '*' << 8,
    J_EQ = '=' | '=' << 8,
    J_NE = '!' | '=' << 8,
    J_LE = '<' | '=' << 8,
    J_GE = '>' | '=' << 8,
    J_IN = 'i',
    J_NOT_IN = 'n'
};

struct jnode {
    jnode_kind kind;
    uint32_t line;
    uint32_t height; /* 1 + that of the highest child */
    int op;          /* a character, or one of J_FLOORDIV ... */
    bool flag;
    str name, member;
    jval value;
    jnode *a, *b, *c;
    jnodes items, more, body;
    jarguments *arguments;
    const jfilter *filter; /* NULL: unknown */
    const jtest *test;
    /* names that this scope stores before it reads them: they mean nothing until then */
    jnames hidden;
    jnames hidden_else; /* of N_FOR: the same of its else */
    unsigned catches;   /* of a macro: J_CATCH_ */
};

struct jinja_template {
    str source;
    jnodes body;
    jnames hidden;
};

/* What is left to parse. */
typedef struct jparser {
    mpk_context *cx;
    arena *a;
    const jtokens *tokens;
    size_t at;
    unsigned depth;
    unsigned loops; /* for statements around this place */
} jparser;

static inline const jtoken *jinja_peek(const jparser *p)
{
    return &p->tokens->at[p->at];
}
bool jinja_next_is(const jparser *p, const char *op);
bool jinja_next_is_name(const jparser *p, const char *name);
/* Take it if it is next. */
bool jinja_skip(jparser *p, const char *op);
bool jinja_skip_name(jparser *p, const char *name);
mpk_status jinja_expect(jparser *p, const char *op);
mpk_status jinja_expect_name(jparser *p, str *out);
mpk_status jinja_unexpected(const jparser *p, const char *expected);
mpk_status jinja_node(jparser *p, jnode_kind kind, uint32_t line, jnode **out);
/* A child has come: check heights. */
mpk_status jinja_grow(jparser *p, jnode *parent, const jnode *child);
mpk_status jinja_parse_expression(jparser *p, bool with_choice, jnode **out);
/* An expression, or several with commas between them.  end: a name that ends it (NULL: none). */
mpk_status jinja_parse_tuple(jparser *p, bool with_choice, const char *end, bool may_be_empty,
                             jnode **out);
/* What can be assigned to: names, or with_member also name.member; maybe a tuple of them. */
mpk_status jinja_parse_target(jparser *p, bool with_member, const char *end, jnode **out);
/* | filter | filter ... on node; inline_start: the first has no bar. */
mpk_status jinja_parse_filters(jparser *p, jnode *node, bool inline_start, jnode **out);

mpk_status jinja_resolve_names(mpk_context *cx, arena *a, struct jinja_template *t);

const jfilter *jinja_find_filter(str name);
const jtest *jinja_find_test(str name);
const jglobal *jinja_find_global(str name);
extern const jfilter jinja_sequence_filters[], jinja_text_filters[];
extern const jglobal jinja_globals[];

/* ---- rendering ---- */

typedef struct jbinding {
    str name;
    jval value; /* J_ABSENT: hidden */
} jbinding;
typedef struct jscope {
    struct jscope *outer;
    jbinding *at;
    size_t n, capacity;
    bool is_kept; /* a macro lives in it: no turn of a loop may use it again */
} jscope;

typedef enum jflow { J_GO_ON, J_LEAVE, J_AGAIN } jflow;

struct jmacro {
    const jnode *node;
    jscope *scope; /* where it was defined */
    str name;
};

/* A for statement that runs. */
struct jloop {
    const jnode *node;
    jscope *scope; /* around it */
    jval over;
    jiterator *iterator;
    int64_t index0, length;      /* length -1: not counted yet */
    jval before, current, after; /* after J_ABSENT: it was not looked at, or there is none */
    /* the last arguments of changed(), a tuple; J_ABSENT: there were none */
    jval changed;
    int64_t depth0;
};

/* A render under way; one thread's.  steps, depth: work so far and nesting, both limited, so that
 * a template cannot run for ever or use up the stack; `now`: seconds, for strftime_now, the same
 * throughout.
 */
struct jrun {
    mpk_context *cx;
    arena *a;
    const jinja_template *t;
    text *out;
    jscope *scope;
    uint32_t line;
    unsigned depth;
    uint64_t steps;
    int64_t now;
    /* after the text that was made last; room bytes are free there, so that it can grow in place */
    char *tail;
    size_t room;
};

/* Fail in the line that runs: MPK_EFORMAT; MPK_EUNSUPPORTED. */
mpk_status jinja_fail(jrun *r, const char *format, ...) BASE_PRINTF(2, 3);
mpk_status jinja_refuse(jrun *r, const char *format, ...) BASE_PRINTF(2, 3);
/* An integer beyond 64 bits is needed, or given (J_BIG) where one is computed with. */
mpk_status jinja_refuse_big(jrun *r);
/* Count the work of making something of this many bytes (an item counts as 32), and see that there
 * is memory for it. MPK_ELIMIT. */
mpk_status jinja_charge(jrun *r, size_t bytes);
/* The same, of work that makes nothing. */
mpk_status jinja_work(jrun *r, uint64_t bytes);
mpk_status jinja_deeper(jrun *r);
/* Names for messages. */
const char *jinja_type_name(jval v);
#define JINJA_SHOWN(s) STR_SHOWN(s, 200)

/* jinja_run.c */
mpk_status jinja_call(jrun *r, jval f, const jargs *args, jval *out);
mpk_status jinja_lookup(jrun *r, str name, jval *out);
mpk_status jinja_loop_attribute(jrun *r, jloop *l, str name, jval *out);
extern const jmethod jinja_loop_methods[];
extern const jmethod jinja_str_methods[];
mpk_status jinja_emit(jrun *r, str s);
mpk_status jinja_run_nodes(jrun *r, const jnodes *nodes, jflow *flow);
mpk_status jinja_open_scope(jrun *r, jscope *outer, const jnames *hidden, jscope **out);
mpk_status jinja_bind_name(jrun *r, jscope *s, str name, jval v);
/* Give a value to a target of set, for or with in the present scope. */
mpk_status jinja_assign(jrun *r, const jnode *target, jval v);

/* jinja_loop.c */
mpk_status jinja_run_for(jrun *r, const jnode *n, jflow *flow);
mpk_status jinja_loop_recurse(jrun *r, jloop *l, const jargs *args, jval *out);

/* jinja_macro.c */
mpk_status jinja_make_macro(jrun *r, const jnode *n, jval *out);
mpk_status jinja_call_macro(jrun *r, const jmacro *m, const jargs *args, jval *out);
/* What the body prints, in a scope of its own or (scope false) in the present one. */
mpk_status jinja_capture(jrun *r, const jnodes *body, jflow *flow, jval *out);

/* jinja_eval.c */
mpk_status jinja_eval(jrun *r, const jnode *n, jval *out);
mpk_status jinja_eval_arguments(jrun *r, const jarguments *from, jargs *to);
/* Filters of a block upon what it printed. */
mpk_status jinja_eval_filters(jrun *r, const jnode *n, jval subject, jval *out);

/* jinja_operators.c */
mpk_status jinja_binary(jrun *r, int op, jval a, jval b, jval *out);
mpk_status jinja_sign(jrun *r, int op, jval a, jval *out);
mpk_status jinja_compare(jrun *r, int op, jval a, jval b, bool *out);
mpk_status jinja_contains(jrun *r, jval container, jval item, bool *out);

/* jinja_attribute.c */
mpk_status jinja_get_attribute(jrun *r, jval v, str name, jval *out); /* a.name */
mpk_status jinja_get_item(jrun *r, jval v, jval key, jval *out);      /* a[key] */
mpk_status jinja_get_slice(jrun *r, jval v, jval start, jval stop, jval step, jval *out);
/* A call, or anything that needs a value, of what is undefined. */
mpk_status jinja_fail_undefined(jrun *r, jval v);

/* jinja_value.c */
bool jinja_true(jval v);
mpk_status jinja_equal(jrun *r, jval a, jval b, bool *out);
/* MPK_EFORMAT: they have no order. */
mpk_status jinja_less(jrun *r, jval a, jval b, bool *out);
/* MPK_EFORMAT: it has no length. */
mpk_status jinja_length(jrun *r, jval v, int64_t *out);
/* The part of v that Python cannot hash: v itself or something in a tuple; J_ABSENT: there is none,
 * v can be a key. */
mpk_status jinja_find_unhashable(jrun *r, jval v, jval *out);
/* MPK_EFORMAT: v cannot be a key. */
mpk_status jinja_check_hashable(jrun *r, jval v);
mpk_status jinja_make_list(jrun *r, jkind kind, size_t capacity, jval *out);
mpk_status jinja_push(jrun *r, jlist *l, jval v);
/* A tuple of two. */
mpk_status jinja_pair(jrun *r, jval a, jval b, jval *out);
mpk_status jinja_make_dict(jrun *r, jval *out);
mpk_status jinja_dict_put(jrun *r, jdict *d, jval key, jval value);
/* NULL: there is none. */
mpk_status jinja_dict_find(jrun *r, const jdict *d, jval key, const jval **out);
mpk_status jinja_from_json(jrun *r, const json_value *j, jval *out);

mpk_status jinja_escape(jrun *r, str s, str *out); /* jinja_filters.c: for HTML */

/* jinja_print.c */
mpk_status jinja_to_text(jrun *r, jval v, text *out); /* Python's str */
mpk_status jinja_repr(jrun *r, jval v, text *out);
mpk_status jinja_to_str(jrun *r, jval v, str *out); /* str, in the arena */
void jinja_float_repr(text *out, double x);
typedef struct jjson {
    int64_t indent;  /* -1: all in one line */
    str indent_text; /* at != NULL: instead of indent spaces */
    str comma, colon;
    bool sort_keys, ascii;
} jjson;
mpk_status jinja_dump_json(jrun *r, jval v, const jjson *style, text *out);
/* The text becomes a value; whatever the status, it is freed. */
mpk_status jinja_take_text(jrun *r, mpk_status status, text *t, jval *out);

/* jinja_iterate.c */
/* MPK_EFORMAT: it cannot be iterated. */
mpk_status jinja_iterate(jrun *r, jval v, jiterator **out);
bool jinja_can_iterate(jval v);
/* *out is J_ABSENT at the end. */
mpk_status jinja_next(jrun *r, jiterator *it, jval *out);
mpk_status jinja_collect(jrun *r, jval v, jval *list);
/* An iterator over a list. */
mpk_status jinja_iterate_list(jrun *r, const jlist *l, jval *out);
/* What map, select and the like do to each item. */
typedef struct jeach {
    jval attribute; /* J_ABSENT: the item itself */
    jval otherwise; /* instead of an attribute that is undefined; J_ABSENT: nothing */
    const jfilter *filter;
    const jtest *test;
    jargs args;
    bool selects, negates;
} jeach;
mpk_status jinja_iterate_each(jrun *r, jval over, const jeach *each, jval *out);
/* item.a.b for attribute "a.b"; an integer is an index. */
mpk_status jinja_attribute_path(jrun *r, jval item, jval attribute, jval otherwise, jval *out);

/* jinja_methods.c */
const jmethod *jinja_find_method(jval v, str name);
/* Values of parameters by place or by name: `names` lists them with spaces between, after "/" if
 * they go by place only; what is not given is J_ABSENT.  MPK_EFORMAT: too many, unknown, or fewer
 * than `needed`. */
mpk_status jinja_bind(jrun *r, const char *what, const jargs *args, const char *names,
                      size_t needed, jval *to);
mpk_status jinja_need_str(jrun *r, jval v, const char *what, str *out);
mpk_status jinja_need_int(jrun *r, jval v, const char *what, int64_t *out);
mpk_status jinja_str_split(jrun *r, str s, jval sep, int64_t most, bool from_right, jval *out);
mpk_status jinja_splitlines(jrun *r, str s, bool keep, jval *out);
mpk_status jinja_str_replace(jrun *r, str s, str from, str to, int64_t most, str *out);

/* jinja_format.c */
mpk_status jinja_percent(jrun *r, str format, jval arguments, jval *out);
mpk_status jinja_str_format(jrun *r, str format, const jargs *args, jval *out);

/* jinja_text.c: text is valid UTF-8 */
/* How Python spells a character that it does not print: the format of one unsigned. */
const char *jinja_escape_of(uint32_t c);
uint32_t jinja_char(const char *at, size_t *size);
size_t jinja_chars(str s);
/* Offset of the character number i (at most their number). */
size_t jinja_offset(str s, size_t i);
bool jinja_is_space(uint32_t c);
bool jinja_is_valid(str s);
/* strip: of white space, or of the characters of chars (at != NULL). */
str jinja_strip(str s, str chars, bool left, bool right);
typedef enum jcase { J_UPPER, J_LOWER, J_TITLE, J_CAPITAL, J_SWAP } jcase;
mpk_status jinja_set_case(jrun *r, str s, jcase to, str *out);
/* Classes of characters, as Python's str.isalpha and so on have them. */
typedef enum jclass {
    J_ALPHA,
    J_DIGIT,
    J_DECIMAL,
    J_NUMERIC,
    J_ALNUM,
    J_SPACE,
    J_IS_UPPER,
    J_IS_LOWER,
    J_IS_TITLE
} jclass;
bool jinja_is_class(str s, jclass c);
bool jinja_is_printable(uint32_t c);
/* Offset of the first (last) `what` in s, SIZE_MAX if there is none. */
size_t jinja_find(str s, str what);
mpk_status jinja_rfind(jrun *r, str s, str what, size_t *out);
/* Room for n bytes of text in the arena, after `before` in place if that is the newest text. */
mpk_status jinja_text_room(jrun *r, str before, size_t n, char **out);
mpk_status jinja_copy(jrun *r, str s, str *out);

/* jinja_case.c: characters whose upper case, title case are several. */
typedef struct jcase_row {
    uint16_t from, upper[3], title[3];
} jcase_row;
extern const jcase_row jinja_case_rows[];
extern const size_t jinja_n_case_rows;

#endif
