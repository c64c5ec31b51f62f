/* net_parts.h - the text of a chat's answer, as it arrives -> reasoning, content, and calls of
 * tools.
 *
 * Reasoning is the text between <think> and </think>, or marks of the same meaning, at the
 * beginning; if the prompt ends with <think>, the answer begins within it.  Calls are recognised
 * if tools were given:
 * <tool_call>{"name":.., "arguments":{..}}</tool_call> (Qwen, Hermes), DeepSeek's marks around
 * names and arguments, <function=NAME> with a tag for each argument within <tool_call>
 * (Qwen3-Coder) or <seed:tool_call> (Seed-OSS), or an answer that is nothing but one object of
 * name and "arguments" or "parameters" (Llama 3), or a list of them (Mistral), or
 * [TOOL_CALLS]NAME[ARGS]{..} (Mistral's later models).
 *
 * gpt-oss answers in channels instead: <|channel|>analysis<|message|>.. is reasoning, other
 * channels are content, and a message to functions.NAME is a call with its text as arguments.
 *
 * Text that may still become the beginning of a mark waits until that is decided; text that
 * turns out to be no call is content.  However an answer is cut into pieces, the parts are the
 * same.
 */
#ifndef NET_PARTS_H
#define NET_PARTS_H

#include "base/json.h"

/* A call of a tool, as parsed from the answer; in the arena of its net_parts. */
typedef struct net_call {
    char id[40]; /* "call_" and random letters */
    str name, arguments;
} net_call;

/* DeepSeek's marks, as UTF-8. */
#define NET_CALLS_BEGIN "<\uff5ctool\u2581calls\u2581begin\uff5c>"
#define NET_CALLS_END "<\uff5ctool\u2581calls\u2581end\uff5c>"
#define NET_CALL_BEGIN "<\uff5ctool\u2581call\u2581begin\uff5c>"
#define NET_CALL_END "<\uff5ctool\u2581call\u2581end\uff5c>"
#define NET_CALL_SEP "<\uff5ctool\u2581sep\uff5c>"

/* Marks around reasoning: of most models, of Mistral's, of Seed-OSS. */
enum { NET_THOUGHTS = 3 };
extern const struct net_thought {
    str open, close;
} net_thoughts[NET_THOUGHTS];
/* The marks with whose opening, or closing one the text ends, apart from white space; NULL. */
const struct net_thought *net_thought_at_end(str words, bool closed);

/* How calls are written in an answer. */
typedef enum net_call_style {
    NET_CALLS_ANY,    /* in any of the ways below */
    NET_CALLS_BLOCKS, /* <tool_call>{"name":..., "arguments":{...}}</tool_call>: Qwen, Hermes */
    NET_CALLS_OBJECT, /* the whole answer is {"name":..., "parameters":{...}}: Llama 3 */
    NET_CALLS_LIST,   /* the whole answer is [{"name":..., "arguments":{...}}, ...]: Mistral */
    /* DeepSeek-V3 and R1: marks around calls, each a name and arguments within ```json */
    NET_CALLS_FENCED,
    NET_CALLS_MARKED,  /* DeepSeek-V3.1: the same without ```json */
    NET_CALLS_TAGGED,  /* <tool_call><function=..><parameter=..>: Qwen3-Coder (net_tagged.h) */
    NET_CALLS_ARGS,    /* [TOOL_CALLS]name[ARGS]{...}: Mistral since 2025 */
    NET_CALLS_CHANNEL, /* a message to functions.NAME: gpt-oss */
    NET_CALLS_SEED,    /* the same within <seed:tool_call>: Seed-OSS */
} net_call_style;

typedef enum net_parts_state {
    NET_PARTS_START,     /* only white space has come */
    NET_PARTS_REASONING, /* inside <think>, or marks of the same meaning */
    NET_PARTS_OPEN,      /* content may begin, or a call */
    NET_PARTS_CONTENT,
    NET_PARTS_CALL,    /* between marks of calls */
    NET_PARTS_BARE,    /* the whole answer may be a call: waits for the end */
    NET_PARTS_HEADER,  /* before <|message|>: whom a message is for */
    NET_PARTS_MESSAGE, /* of a channel, up to <|end|> or the next header */
} net_parts_state;

/* What a message of a channel is. */
typedef enum net_message_kind {
    NET_MESSAGE_CONTENT,
    NET_MESSAGE_REASONING,
    NET_MESSAGE_CALL
} net_message_kind;

/* The parser of one answer. */
typedef struct net_parts {
    text reasoning, content; /* decided text; a stream empties them when it has sent them */
    VEC(net_call) calls;
    arena arena; /* of the calls */
    /* NULL: no tools, so no calls are looked for; borrowed */
    const json_value *tools;
    net_call_style style; /* set after net_parts_open */
    /* also set after it: drop all calls after the first; drop reasoning */
    bool one_call, hide_reasoning;
    net_parts_state state;
    const struct net_thought *thought; /* in NET_PARTS_REASONING: its marks */
    /* in NET_PARTS_CALL: which pair of marks; bytes of `pending` that were searched for its end,
     * and whether they end within a string */
    unsigned mark;
    size_t n_seen;
    bool in_string;
    /* in NET_PARTS_MESSAGE; n_seen counts there, too.  called: the tool, in the arena */
    net_message_kind kind;
    str called;
    /* drop white space before what comes next: after reasoning and calls */
    bool drop_space;
    /* since the beginning, even if a stream has emptied the texts */
    bool any_reasoning, any_content;
    text pending; /* not yet decided */
} net_parts;

/* Begin; *p was zero-initialised.  prompt: the text that the answer continues. */
void net_parts_open(net_parts *p, const json_value *tools, str prompt);
/* Parse a piece, which ends between characters.  MPK_ENOMEM. */
mpk_status net_parts_put(mpk_context *cx, net_parts *p, str piece);
/* The answer has ended: decide what is pending. */
mpk_status net_parts_end(mpk_context *cx, net_parts *p);
void net_parts_close(net_parts *p);

#endif
