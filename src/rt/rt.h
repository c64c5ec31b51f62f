/* rt.h - the wire format of the in-kernel runtime (paper §5): what the compiler writes, what
 * workers and schedulers share, what passes between host and machine.
 *
 * "Machine" is one running mega-kernel: its workers, its schedulers and their shared memory.
 * "Host" is everything else. Input: the tables of an image (constant) and the rings that the host
 * fills.  Output: the token ring.
 *
 * Every struct has a fixed size and holds indices and offsets, never a pointer, so that the same
 * bytes serve any target; only rt_machine, which a target fills at start, holds addresses.  A
 * struct that several threads change states its law: the relation between its fields that holds at
 * every moment.  docs/runtime.md has the protocols and their memory order.
 *
 * Four groups follow: the image, written once by the compiler; the entries of the three rings
 * between host and machine; the state that workers share; the state that belongs to one worker or
 * to the step task.
 *
 *   rt_port.h    what the target supplies
 *   rt_queue.h   queues of events and tasks, rings to the host
 *   rt_wait.h    waiting, waking, faults
 *   rt_event.h   trigger, activate, schedulers
 *   rt_page.h    scratch pages
 *   rt_kv.h      pages of the KV cache, and their names
 *   rt_draft.h   tokens guessed from the text
 *   rt_ahead.h   tokens guessed by a draft model
 *   rt_lend.h    promised pages that are lent to others
 *   rt_admit.h   requests: admitted, put back
 *   rt_collect.h what a step has produced
 *   rt_build.h   what a step is made of
 *   rt_feed.h    tokens of a request as entries of a step
 *   rt_deal.h    decoding tokens spread among those of prompts
 *   rt_fill.h    which requests a step feeds
 *   rt_step.h    the step task: requests in, tokens out
 *   rt_worker.h  the worker's loop; includes all of them: the header that a target includes
 *
 * For a GPU alone: rt_lane.h (tasks as the workers read them), rt_courier.h, rt_peers.h, rt_pack.h,
 * rt_blocks.h.
 */
#ifndef RT_H
#define RT_H

#include "rt/rt_port.h"

#define RT_NONE 0xffffffffu
#define RT_NO_STEP \
    (~(rt_u64)0) /* the step word before the first step; no step has it (RT_EVERY_TOKEN) */
#define RT_NOWHERE (~(rt_u64)0)

enum {
    RT_MAGIC = 0x006b706d, /* "mpk" */
    RT_VERSION = 2,
    RT_MAX_RANK = 6,
    RT_MAX_GRAPHS = 32,
    RT_MAX_WORKERS = 4096, /* of all peers */
    RT_MAX_EOS = 16,
    RT_MAX_TOKENS = 8192, /* of a step */
    RT_MAX_ROWS = 8190,
    RT_MAX_DRAFTS = 64, /* of a request in one step */
    /* bytes between words of different writers: two cache lines, for the prefetcher's sake */
    RT_LINE = 128,
    RT_START = 0, /* the event that the publication of a step activates */
    RT_END = 1,   /* the event whose activation runs the step task */
};

/* What axis 0 of an operator's output counts.  A graph is compiled for up to n_tokens and n_rows; a
 * step has fewer, and only the first live[kind] entries of the axis exist in it.  Same order as
 * ir_live. */
enum { RT_ALL, RT_TOKENS, RT_ROWS, RT_LIVES };

/* Tokens of a step in which some requests decode and others feed prompts, at most. */
enum { RT_MIXED_TOKENS = 512 };

/* The step word holds everything that a worker must know of a step, so that one atomic load fetches
 * it.  From the top:
 *
 *     graph 5 bits | live tokens 14 | live rows 13 | epoch 32
 *
 * The word changes with every step, since the epoch of its graph does; a worker that sees a new
 * value has a new step.  In a step that the host drives, all tokens and rows may be alive: a count
 * of RT_NONE, stored as the two values below. */
enum { RT_EVERY_TOKEN = 16382, RT_EVERY_ROW = 8191 };

RT_FN rt_u64 rt_step_word(rt_u32 graph, rt_u32 epoch, rt_u32 tokens, rt_u32 rows)
{
    rt_u32 live_tokens = tokens < RT_EVERY_TOKEN ? tokens : RT_EVERY_TOKEN;
    rt_u32 live_rows = rows < RT_EVERY_ROW ? rows : RT_EVERY_ROW;
    return (rt_u64)(graph << 27 | live_tokens << 13 | live_rows) << 32 | epoch;
}
RT_FN rt_u32 rt_word_graph(rt_u64 step)
{
    return (rt_u32)(step >> 59);
}
RT_FN rt_u32 rt_word_epoch(rt_u64 step)
{
    return (rt_u32)step;
}
RT_FN rt_u32 rt_word_tokens(rt_u64 step)
{
    rt_u32 n = (rt_u32)(step >> 45) & 0x3fff;
    return n == RT_EVERY_TOKEN ? RT_NONE : n;
}
RT_FN rt_u32 rt_word_rows(rt_u64 step)
{
    rt_u32 n = (rt_u32)(step >> 32) & 0x1fff;
    return n == RT_EVERY_ROW ? RT_NONE : n;
}
/* Live entries of axis 0 by kind (RT_ALL: no limit). */
RT_FN rt_u32 rt_word_live(rt_u64 step, rt_u32 kind)
{
    if (kind == RT_TOKENS)
        return rt_word_tokens(step);
    return kind == RT_ROWS ? rt_word_rows(step) : RT_NONE;
}

/* Where a tensor lies.  Same order as tg_area. */
enum { RT_WEIGHTS, RT_STATE, RT_STEP, RT_TEMPS, RT_AREAS };

/* ---- the image: constant tables, little-endian, each 64-byte aligned, offsets from the start of
 * the header ---- */

/* A task: one operator, and the box of its output 0 that the task computes.  One cache line.  Tasks
 * of a graph are in topological order, and all that depend on one event are neighbours (level
 * LINEAR of docs/compiler.md). */
typedef struct rt_task {
    /* index into the graph's operators; RT_NONE: an empty task, it only triggers */
    rt_u32 op;
    rt_u32 depends, triggers; /* events of the graph */
    rt_u32 worker;            /* whose list holds it; RT_NONE: JIT, a scheduler chooses */
    rt_u32 lo[RT_MAX_RANK], hi[RT_MAX_RANK];
} rt_task;

/* An event.  It is activated in run number `epoch` of its graph once its counter reaches needed *
 * epoch (modulo 2^32).  Counters start at 0 and are never reset, so no worker has to wait for a
 * reset before it triggers.
 * Law: over one step its counter grows by exactly `needed`, the number of tasks that name it in
 * `triggers`. */
typedef struct rt_event {
    rt_u32 needed;
    rt_u32 first, last; /* the tasks that depend on it: first <= t < last */
    /* how many of them are JIT: schedulers launch these, the lists of workers hold the others */
    rt_u32 jit;
} rt_event;

/* An operator of a graph: what its tasks have in common. */
typedef struct rt_op {
    rt_u32 body;  /* the target's number for its code */
    rt_u32 rank;  /* of output 0 */
    rt_u32 live;  /* RT_ALL, RT_TOKENS, RT_ROWS */
    rt_u32 pages; /* scratch pages that a task of it holds while it runs */
} rt_op;

/* One tGraph: for steps of up to n_tokens tokens and n_rows rows of logits.  `first_*` index the
 * tables of the image.
 *
 * most_fresh: a step with more tokens without a row of logits (those of a prompt except its last)
 * than this takes a larger graph, if one holds it.  RT_NONE: there is no such limit.  It affects
 * only speed: every graph computes any step that fits it. */
typedef struct rt_graph {
    rt_u32 n_tokens, n_rows, most_fresh;
    rt_u32 first_task, n_tasks;
    rt_u32 first_event, n_events;
    rt_u32 first_op, n_ops;
    rt_u32 first_range;           /* rt_range[n_workers] of its workers */
    rt_u32 first_place, n_places; /* rt_place of each tensor of its tensor program */
    rt_u32 n_jit;                 /* JIT tasks */
    rt_u32 drafts;                /* 1: of the draft model */
    rt_u64 text, text_bytes;      /* the text form of its tensor program, in the text section */
} rt_graph;

/* The AOT tasks of one worker in one graph: entries first <= i < last of the list table, rising
 * task numbers. */
typedef struct rt_range {
    rt_u32 first, last;
} rt_range;

/* Where one tensor of a graph lies in the machine's memory. */
typedef struct rt_place {
    rt_u32 area, reserved;
    rt_u64 offset; /* bytes from the area's start; of RT_WEIGHTS: the index of the weight */
} rt_place;

/* A weight that the program expects: what the host must load before the machine starts. */
typedef struct rt_weight {
    rt_u32 dtype, rank;      /* ir_dtype */
    rt_u64 name, name_bytes; /* in the text section */
    rt_u64 dims[RT_MAX_RANK];
} rt_weight;

enum {
    RT_GRAPHS, /* rt_graph, by rising n_tokens; then those of the draft model, likewise */
    RT_TASKS,  /* rt_task */
    RT_EVENTS, /* rt_event */
    RT_OPS,    /* rt_op */
    RT_RANGES, /* rt_range */
    RT_LISTS,  /* rt_u32 task numbers */
    RT_PLACES, /* rt_place */
    RT_NAMES,  /* rt_weight */
    RT_TEXT,   /* bytes */
    RT_SECTIONS
};

/* One table of the image. */
typedef struct rt_section {
    rt_u64 offset, count; /* bytes from the header; entries */
} rt_section;

/* The first bytes of an image.  A reader checks magic, version, n_bytes and checksum before it
 * looks further, then every index of every table (image_open), so that a damaged file cannot reach
 * a worker. */
typedef struct rt_header {
    rt_u32 magic, version;
    rt_u64 n_bytes;  /* of the whole image */
    rt_u64 checksum; /* hash_bytes of everything after this field, seed 0 */
    rt_u32 n_workers, page_bytes, pages_per_worker;
    rt_u32 n_peers; /* that share the workers evenly, in order; at least 1 */
    rt_u64 area_bytes[RT_AREAS];
    rt_section sections[RT_SECTIONS];
} rt_header;

/* ---- between host and machine ---- */

/* A ring with one writer and one reader.  `written` and `read` count entries since the start,
 * modulo 2^32; entry i lies in cell i % capacity.  The writer alone stores `written` (release), the
 * reader alone `read` (release); each loads the other's count with acquire.  Law: read <= written
 * <= read + capacity. */
typedef struct rt_ring {
    rt_word written;
    char apart[RT_LINE - sizeof(rt_word)];
    rt_word read;
    char end[RT_LINE - sizeof(rt_word)];
} rt_ring;

enum {
    /* the host chooses the tokens: after each feed it gets logits, and the request waits for
     * RT_APPEND */
    RT_HOST_SAMPLES = 1,
    /* with RT_HOST_SAMPLES: logits of every token fed, not only of the last */
    RT_ALL_LOGITS = 2,
    /* with n_logprobs: also of the tokens of the prompt, from the second on */
    RT_ALL_SHARES = 4,
};

/* Columns of the step input `asks`: what a row of logits wants of `sample` besides the filters
 * (op/rules.h, the same order). */
enum {
    RT_ASK_RULES,
    RT_ASK_FROM,
    RT_ASK_HISTORY,
    RT_ASK_LOGPROBS,
    RT_ASK_TOKEN,
    RT_ASK_MASK,
    RT_ASK_CHOICE,
    RT_ASKS,
    RT_LOGPROBS = 21
};
/* What `sample` returns for a row whose mask has not arrived (op/rules.h). */
enum { RT_LATE_TOKEN = -1 };

/* Host -> machine: a request.  The host has already checked it; the machine checks again the
 * numbers that could make it read out of bounds.  Law: each request gets exactly one rt_token whose
 * reason is not RT_GOING, and that is its last. */
typedef struct rt_request {
    rt_u64 id; /* the host's; unique among those not finished */
    /* index of the first token in the token arena; the host keeps it until the request finishes */
    rt_u64 prompt;
    /* RT_HOST_SAMPLES: address of f32[1, V], or f32[n_prompt, V] for RT_ALL_LOGITS; else 0 */
    rt_u64 logits;
    rt_u64 seed;       /* random stream */
    rt_u32 n_prompt;   /* at least 1 */
    rt_u32 max_tokens; /* tokens to generate; 0: until the context is full */
    rt_u32 flags;
    rt_u32 n_eos; /* 0: never stop for a token */
    float temperature, top_k, top_p, min_p;
    rt_i32 eos[RT_MAX_EOS];
    /* the machine's: its entry in the ring is done; it was admitted or refused, or cancelled while
     * it waited */
    rt_u32 dropped;
    /* words of the record of rules, which lies after the prompt in the token arena; 0: none */
    rt_u32 n_rules;
    /* n_logprobs: address of f32[tokens, n_logprobs, 2], of generated tokens or of all */
    rt_u64 logprobs;
    rt_u32 n_logprobs; /* entries for each token, at most RT_LOGPROBS; 0: none */
    /* rt_name of the first 0, 1, 2 ... full pages of the prompt, after the rules in the token
     * arena; 0: this request neither takes pages of others nor leaves any */
    rt_u32 n_names;
    rt_u32 mask; /* 1 + its row among the masks; 0: none.  With a mask it has rules */
    /* to try in a step at most; 0: none.  With a mask at most n_guesses, not with
     * RT_HOST_SAMPLES */
    rt_u32 drafts;
    rt_i32 priority; /* the least comes first: in admission, among prompts, for pages */
    rt_u32 reserved; /* 0 */
} rt_request;

/* RT_CANCEL ends a request; RT_APPEND gives a request of RT_HOST_SAMPLES its next tokens. */
enum { RT_CANCEL = 1, RT_APPEND = 2 };

/* Host -> machine: a command about a request that was sent before; ignored if that has finished. */
typedef struct rt_command {
    rt_u32 kind;
    rt_u32 n; /* RT_APPEND: how many tokens, at least 1 */
    rt_u64 id;
    rt_u64 tokens; /* RT_APPEND: index in the token arena, kept until their logits are there */
    rt_u64 logits; /* RT_APPEND: as rt_request.logits, for these tokens */
} rt_command;

/* Why a request ended: a token of its eos list, max_tokens, a full context, the host's cancel, or
 * it could never run. */
enum { RT_GOING, RT_EOS, RT_LENGTH, RT_CONTEXT, RT_CANCELLED, RT_REFUSED, RT_REASONS };
/* In the place of a reason: the token is a draft, in the step that is published, of a request with
 * a mask.  The host is to make the mask of the token after it: number `index` of the answer, in row
 * `count` of the masks of the request's drafts, counted from 1. */
enum { RT_GUESSED = RT_REASONS };

/* Machine -> host: a token of a request, or news of it. */
typedef struct rt_token {
    rt_u64 id;
    rt_i32 token; /* -1: none; this entry tells of logits or of the end */
    rt_u32 index; /* of the token among those generated, from 0 */
    /* RT_HOST_SAMPLES: rows of logits delivered for the last feed; else tokens of the prompt that
     * were found in shared or kept pages */
    rt_u32 count;
    rt_u16 reason; /* RT_GOING, or why this is the last entry of the request */
    /* of the step whose last token this is: drafts that were tried, and drawn */
    unsigned char drafted, accepted;
    /* of a request's first token, or logits: since the request was admitted; else 0 */
    rt_u64 age_ns;
} rt_token;

/* What went wrong: no progress for too long, a queue or the scratch pages full (a defect of the
 * compiler), a step input out of range, or the process that runs a worker has ended.  Written once,
 * by the first that sees a fault (rt_raise); the machine then stops. */
enum { RT_STALL = 1, RT_OVERFLOW = 2, RT_BAD_INPUT = 3, RT_LEFT = 4 };
typedef struct rt_fault {
    rt_u32 kind;
    rt_u32 worker;       /* who reports; RT_LEFT: the first of those that are gone */
    rt_u32 graph, epoch; /* of the step */
    rt_u32 task, event;  /* what it waits for; RT_NONE: nothing in particular */
    rt_u32 seen, needed; /* of that event in this step */
} rt_fault;

/* ---- the machine: mutable state and addresses ---- */

/* Statistics since the start.  The step task alone writes them, each by one atomic store; the host
 * reads them at any time, also while a kernel runs. */
typedef struct rt_stats {
    rt_word free_pages; /* rt_serving.n_free + n_kept, now */
    rt_word put_back;   /* how often a request was put back, or paused */
    rt_wide n_steps;
    /* tokens of prompts that might have been in kept or shared pages, and that were */
    rt_wide asked, found;
    rt_wide drafted, accepted;             /* drafts that were tried, and that were drawn */
    rt_wide ahead_drafted, ahead_accepted; /* of the drafts, those of the draft model */
    rt_wide ahead_steps;                   /* of the n_steps, those of the draft model */
} rt_stats;

/* What all workers share.  Words of different writers lie RT_LINE apart, so that no write disturbs
 * the readers of another word. */
typedef struct rt_control {
    rt_wide step; /* rt_step_word of the step that runs; written by the step task alone */
    rt_word idle; /* 1: the step task waits for the host and no step runs */
    char apart0[RT_LINE - sizeof(rt_wide) - sizeof(rt_word)];
    /* RT_RUNNING, RT_STOPPING (the host wants all to leave), RT_FAULTING, RT_FAULTED */
    rt_word abort;
    char apart1[RT_LINE - sizeof(rt_word)];
    rt_word sleepers; /* workers that sleep or are about to */
    char apart2[RT_LINE - sizeof(rt_word)];
    rt_word doorbell; /* grows whenever the host has something new */
    char apart3[RT_LINE - sizeof(rt_word)];
    rt_word host_bell; /* grows whenever the machine has something new */
    char apart4[RT_LINE - sizeof(rt_word)];
    rt_word once_wanted, once_done; /* host-driven steps: asked for, finished */
    rt_u32 once_graph, once_tokens, once_rows, once_running;
    rt_u32 live[RT_LIVES]; /* the step word's counts, for bodies that take an address */
    rt_stats stats;
    rt_fault fault; /* valid once abort is RT_FAULTED */
} rt_control;

/* Values of rt_control.abort.  FAULTING: the thread that changed it from RUNNING is writing the
 * fault record; FAULTED: the record is complete.
 */
enum { RT_RUNNING, RT_STOPPING, RT_FAULTING, RT_FAULTED };

/* A cell of a bounded queue with many writers and many readers (rt_queue.h).  Cell i % capacity is
 * free for ticket i when its turn is i, and holds the item of ticket i when its turn is i + 1; the
 * capacity is at least 2.  Law: 0 <= written - read <= capacity, since the host makes queues as
 * long as rt_jit_bound and rt_event_bound say.  A writer that finds its cell taken nevertheless
 * raises RT_OVERFLOW. */
typedef struct rt_slot_word {
    rt_word turn;
    rt_u32 item;
} rt_slot_word;

/* Tickets taken so far, modulo 2^32: of writers and of readers, on lines of their own. */
typedef struct rt_queue {
    rt_word written;
    char apart[RT_LINE - sizeof(rt_word)];
    rt_word read;
    char end[RT_LINE - sizeof(rt_word)];
} rt_queue;

/* Scratch pages of one worker, handed out in a circle.  Law: released <= acquired <= released + n,
 * modulo 2^32. */
typedef struct rt_pages {
    rt_word acquired, released;
    rt_u32 n;
    rt_u32 at; /* the page that comes next; the acquiring side's */
} rt_pages;

/* A scheduler's own state (paper §6.1: schedulers share nothing with each other). */
typedef struct rt_scheduler {
    rt_u32 index;
    rt_u32 next_worker; /* round robin */
    char apart[RT_LINE - 2 * sizeof(rt_u32)];
} rt_scheduler;

/* What a worker does, for the diagnosis of a stall. */
enum { RT_AT_WAIT, RT_AT_BODY, RT_AT_STEP };

/* A worker's own state.  Others read its first line, claim from its list (`cursor`) and ring its
 * bell; the rest is private. */
typedef struct rt_worker {
    /* epoch << 32 | next entry of its AOT list; of an older step: nothing is claimed yet in this
     * one */
    rt_wide cursor;
    rt_word bell; /* 1: sleeps or is about to; exchanged */
    /* grows with each task and each look of the step task; only the worker writes it */
    rt_word beats;
    rt_word at;   /* RT_AT_*; for the stall's diagnosis */
    rt_word task; /* the last task that it began */
    char apart[RT_LINE - sizeof(rt_wide) - 4 * sizeof(rt_word)];
    rt_u32 index;
    rt_u32 owner;     /* 1: this worker runs the step task */
    rt_u64 step;      /* the value of control.step that the fields below belong to */
    rt_u32 graph;     /* index */
    rt_u32 epoch;     /* run number of the graph */
    rt_u32 spins;     /* fruitless polls since the last task */
    rt_u32 announced; /* 1: it has announced that it is about to sleep */
    rt_u32 ahead;     /* entry of its list from which it looks ahead */
    /* how many entries from that one on have been prefetched, and pieces of the next */
    rt_u32 ahead_task, ahead_piece;
    rt_u32 doorbell;   /* the owner's: the host's bell before it last looked */
    rt_u32 beats_seen; /* sum over all workers when they last changed */
    rt_u64 still_ns;   /* how long they have not changed */
    rt_u64 looked_ns;  /* when that was last looked at; 0: not waiting */
    rt_pages pages;
    char end[RT_LINE];
} rt_worker;

enum {
    RT_SLOT_FREE,
    RT_SLOT_FEEDING,
    RT_SLOT_WAITING,
    RT_SLOT_PARKED,
    RT_SLOT_LATE,
    RT_SLOT_ENDED
};

#define RT_AGAIN \
    (RT_NOWHERE - 1) /* rt_slot.source: the slot's row of `history`, from its beginning */

/* Bits of rt_slot.asks. */
enum { RT_SLOT_RULES = 1, RT_SLOT_SHARES = 2 };

/* One running request, the part that the step task looks at in each step; the rest is
 * rt_machine.running. */
typedef struct rt_slot {
    /* FREE; FEEDING: has tokens to feed; WAITING: for the host's RT_APPEND; PARKED: was put back,
     * or pauses; LATE: the mask of its next token had not arrived when a step was to draw it, or,
     * where tokens leave state behind, is waited for before a token is fed; ENDED: the host knows,
     * and the slot is freed before the step task goes on */
    rt_u32 state;
    rt_u32 admitted; /* number of the admission: the order of prompts */
    rt_u32 position; /* tokens that are in the KV cache */
    rt_u32 limit;    /* position never exceeds it */
    /* KV pages in its row of the page table: at least those of positions below `position` */
    rt_u32 held;
    /* pages promised to it; held <= reserved, which changes as it grows or lends (rt_lend.h) */
    rt_u32 reserved;
    rt_u64 source; /* token arena index of what is being fed; RT_NOWHERE: `token`; or RT_AGAIN */
    rt_u32 n_source, n_fed;
    rt_i32 token;     /* the last token generated */
    rt_u32 generated; /* tokens generated, or appended by the host */
    rt_u32 count;     /* as rt_token.count */
    /* of the step that runs: tokens, rows, and its first row */
    rt_u32 step_tokens, step_rows, step_row;
    rt_u16 n_eos; /* of the request */
    rt_u16 asks;  /* RT_SLOT_RULES, RT_SLOT_SHARES: what the request has */
    rt_u64 admitted_ns;
} rt_slot;

/* The name of a text: two polynomials in its tokens (rt_kv.h). */
typedef struct rt_name {
    rt_u64 at[2];
} rt_name;

enum { RT_PAGE_NAMED = 1, RT_PAGE_KEPT = 2 };

/* What the step task knows of a KV page besides its bytes.  Law: a page is either on the stack of
 * free pages, without a name; or kept, with a name, held by no slot; or held by 1 + sharers
 * slots. */
typedef struct rt_kv_page {
    rt_name name;        /* NAMED: of all tokens up to its end */
    rt_u32 state;        /* RT_PAGE_* */
    rt_u32 sharers;      /* slots that hold it besides the first */
    rt_u32 next;         /* NAMED: the next page in the bucket of its name */
    rt_u32 older, newer; /* KEPT: pages let go before and after it */
    rt_u32 built;        /* NAMED: the step that fills it; later ones may read it */
} rt_kv_page;

/* How far the text of a slot has been named: `name` is that of its first n pages. */
typedef struct rt_chain {
    rt_name name;
    rt_u32 n, known; /* known 0: not even the name of 0 pages is there */
} rt_chain;

/* The state of a slot's drafts from one source (rt_draft.h). */
typedef struct rt_drafter {
    /* positions below it are in the index; 0: the index is empty, or another request's */
    rt_u32 n_indexed;
    rt_u32 again;  /* it drafts from this position on; RT_NONE: never */
    rt_u32 most;   /* tokens to draft next time */
    rt_u32 misses; /* steps in a row of whose drafts none was drawn */
    rt_u32 rest;   /* tokens to wait for after the next miss */
    rt_u32 tried;  /* drafts in the step that runs */
    /* the drafts of this step are the text's tokens from this position on; RT_NONE: the draft model
     * made them */
    rt_u32 from;
} rt_drafter;

/* What the step task knows of the draft model (rt_ahead.h). */
typedef struct rt_ahead {
    rt_u32 first_graph; /* its graphs stand from here on */
    rt_u32 n_vocab;     /* the ids that it knows */
    rt_u32 running;     /* 1: one of its steps runs, or is to be published next */
    /* 1: for measurements: its rows draw with other random numbers than the model's, so that drafts
     * fail as often as two draws differ */
    rt_u32 apart;
} rt_ahead;

/* What the step task knows of a slot in the draft model.  Law: the draft model's cache holds the
 * tokens of the slot's text below `known`; those at the slot's `position` and after it may be
 * drafts. marked * page_tokens <= known. */
typedef struct rt_ahead_slot {
    rt_u32 known;
    rt_u32 marked; /* of the slot's pages, the first that are marked in rt_ahead_pages */
    rt_u32 made;   /* drafts that stand after the slot's last token */
    rt_u32 row;    /* of the step that runs: the row that draws the next; RT_NONE: none does */
    /* when to draft, and how much; n_indexed, tried and from are not used */
    rt_drafter pays;
} rt_ahead_slot;

/* Everything the step task keeps.  Law for the KV pages: n_free + n_kept + those held = n_pages,
 * and n_promised = the sum of (reserved - held) <= n_free + n_kept: a request that runs gets every
 * page that it was promised. */
typedef struct rt_serving {
    /* n_pages 0: there is no KV cache */
    rt_u32 n_slots, n_pages, page_tokens, pages_per_slot;
    rt_u32 n_vocab, max_tokens, max_rows; /* of the largest graph */
    /* where a request's bits must not depend on company (rt_step_fill_apart): the size of the
     * largest graph with bodies for few tokens; 0: steps are filled as requests come */
    rt_u32 few_tokens, few_rows;
    rt_u32 ready; /* 0: the program takes no requests */
    /* 1: requests have state beside the KV cache (OP_CARRIES): they share no pages and try no
     * drafts */
    rt_u32 carries;
    /* offsets in the step area, RT_NOWHERE if the program has no such tensor */
    rt_u64 tokens, positions, slots, pages, rows, sampling, seeds, draws, logits, next;
    rt_u64 asks, rules, history, shares; /* all or none */
    rt_u32 rule_words, history_tokens;   /* of a slot */
    /* rows of `rules` after those of the slots; 0: none has masks */
    rt_u32 n_masks;
    rt_u32 n_guesses; /* rows after those, for the drafts after each mask */
    rt_u32 n_choices; /* rows of a step that can have rules */
    /* of a step with drafts at most; 0: no drafts */
    rt_u32 draft_tokens;
    /* 1: a step costs nearly the same with all the drafts that it can have, so a request that finds
     * any tries as many as it may; 0: the number follows the success of earlier drafts */
    rt_u32 drafts_freely;
    /* N of the index, 0: texts are not looked up; its buckets - 1 */
    rt_u32 gram_tokens, gram_mask;
    rt_u32 n_free, n_promised, n_active, n_admitted; /* n_active: slots FEEDING, WAITING or LATE */
    /* 1: requests grow: each is promised pages for its prompt and one more token, and is put back
     * if it needs a page and none is left. 0: requests lend: each is promised its whole claim, as
     * long as no other request needs the pages (rt_lend.h) */
    rt_u32 grows;
    rt_u32 n_parked; /* slots PARKED */
    rt_u32 n_short;  /* slots that were promised less than they may ever hold; 0 where they grow */
    /* in tokens: of a text, a beginning whose length is a multiple of this can be shared; 0: no
     * page is shared */
    rt_u32 unit;
    /* 1: the tokens of every slot are copied to `history`, not only those of slots with rules */
    rt_u32 keeps_text;
    rt_u32 n_kept, oldest, newest; /* kept pages, in the order in which they were let go */
    rt_u32 bucket_mask;
    rt_u64 keys[2]; /* of names; secret, so that no client can make two texts of one name */
    rt_u32 running; /* 1: a step for requests is under way, its outputs have not been read */
    /* 1: that step has one token and one row of each request that feeds, and no prompt */
    rt_u32 steady;
    rt_u32 blocked; /* 1: the next request in the ring waits until another ends */
    /* n_looked: entries of the request ring examined since the start; n_ranked: of those still in
     * the ring, how many have a priority other than 0 */
    rt_u32 n_looked, n_ranked;
    /* 1: of the entries examined and not dropped, the one to admit next is entry `first`, counted
     * since the start; first_priority is its priority (rt_next_request) */
    rt_u32 has_first, first;
    rt_i32 first_priority;
    /* 1: decoding tokens are spread evenly among those of prompts in a step (rt_deal.h) */
    rt_u32 deals;
    /* with few_tokens, 1: the last step began with a piece of a prompt */
    rt_u32 prompt_led;
    /* with few_tokens, if not all decoding requests fit into a step: the slot with which the next
     * step begins */
    rt_u32 decode_at;
    /* entries written to the token ring since the start; its `written` follows */
    rt_u32 told;
    rt_u32 told_end;                 /* `told` may grow up to here, as far as is known */
    rt_u32 built_tokens, built_rows; /* of the step that is being built */
    rt_u32 built_choices;            /* of its rows, those with rules */
    rt_u64 step;                     /* the step word published last */
    rt_u64 n_steps;                  /* published since the start */
} rt_serving;

/* Limits of waiting.  The two in ns count only time during which a worker reads the clock now and
 * then, so a process that was stopped (a debugger, a suspended laptop) does not count as a
 * stall. */
typedef struct rt_limits {
    rt_u64 stall_ns;      /* no task ends and none runs */
    rt_u64 body_ns;       /* no task ends, but some run */
    rt_u64 spin_polls;    /* polls before the first yield */
    rt_u64 yield_polls;   /* polls before sleeping */
    rt_u32 preload_tasks; /* tasks to look ahead while waiting; 0: none */
    rt_u64 steal_polls;   /* polls before a worker takes what lies in the queues of others */
    rt_u32 processors;    /* more workers than this need not be awake */
} rt_limits;

typedef struct rt_machine {
    const rt_graph *graphs;
    const rt_task *tasks;
    const rt_event *events;
    const rt_op *ops;
    const rt_range *ranges;
    const rt_u32 *lists;
    rt_u32 n_graphs, n_workers, n_schedulers;
    rt_u32 jit_mask, event_mask; /* capacities - 1 */
    /* Workers form groups of this many neighbours.  A worker that would wait takes tasks from the
     * others of its group; 0: it takes none. */
    rt_u32 steal;

    rt_control *control;
    rt_word *counters; /* one for each rt_event of the image */
    rt_u32 *epochs;    /* [n_graphs], the step task's */
    rt_worker *workers;
    rt_scheduler *schedulers;
    rt_queue *jit;             /* [n_workers] */
    rt_slot_word *jit_slots;   /* [n_workers][jit_mask + 1] */
    rt_queue *event;           /* [n_schedulers] */
    rt_slot_word *event_slots; /* [n_schedulers][event_mask + 1] */
    rt_limits limits;

    rt_serving *serving;
    rt_slot *slots;       /* [n_slots] */
    rt_request *running;  /* [n_slots] the request of each slot */
    rt_u32 *free_pages;   /* [n_pages], a stack of n_free */
    rt_kv_page *kv_pages; /* [n_pages] */
    rt_u32 *buckets;      /* [bucket_mask + 1] first pages, by name; RT_NONE: none */
    rt_chain *chains;     /* [n_slots] */
    /* [n_slots]; this and the next: only if requests may draft.  With a draft model they are
     * followed by an rt_ahead, an rt_ahead_slot [n_slots] and the rt_ahead_pages */
    rt_drafter *drafters;
    rt_u32 *grams; /* [n_slots][gram_mask + 1 + history_tokens] the indexes */
    char *step_area;
    rt_ring *request_ring, *command_ring, *token_ring;
    rt_request *requests;      /* [request_mask + 1] */
    rt_command *commands;      /* [command_mask + 1] */
    rt_token *tokens;          /* [token_mask + 1]; at least 2 * n_slots */
    const rt_i32 *token_arena; /* [n_arena] */
    rt_u64 n_arena;
    rt_u32 request_mask, command_mask, token_mask;
    rt_u32 has_draft_model;
    /* 1: worker 0 always runs the step task, because the other workers' processes have no requests,
     * or because worker 0 is the calling thread; 0: the worker that ends a step runs it */
    rt_u32 owner_stays;

    rt_u64 delay; /* for tests: not 0: lose time at random in the protocol's steps */
    void *target; /* the target's own; the runtime does not look */
} rt_machine;

/* Marks a point of the protocol where the order between threads matters.  In tests a thread waits
 * here for a random time, so that unusual orders become common. */
RT_FN void rt_point(const rt_machine *m, rt_u32 who)
{
    if (m->delay)
        rt_delay(m->delay, who);
}

/* The sizes that host and device must agree on, checked by both compilers. */
typedef char rt_size_of_task[sizeof(rt_task) == 64 ? 1 : -1];
typedef char rt_size_of_event[sizeof(rt_event) == 16 ? 1 : -1];
typedef char rt_size_of_op[sizeof(rt_op) == 16 ? 1 : -1];
typedef char rt_size_of_graph[sizeof(rt_graph) == 72 ? 1 : -1];
typedef char rt_size_of_place[sizeof(rt_place) == 16 ? 1 : -1];
typedef char rt_size_of_weight[sizeof(rt_weight) == 72 ? 1 : -1];
typedef char rt_size_of_header[sizeof(rt_header) == 216 ? 1 : -1];
typedef char rt_size_of_request[sizeof(rt_request) == 168 ? 1 : -1];
typedef char rt_size_of_command[sizeof(rt_command) == 32 ? 1 : -1];
typedef char rt_size_of_slot[sizeof(rt_slot) == 80 ? 1 : -1];
typedef char rt_size_of_token[sizeof(rt_token) == 32 ? 1 : -1];

#endif
