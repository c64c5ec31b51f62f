/* tgraph.h - the SM-level task graph (paper §3).
 *
 * A task computes a box of an operator's output on one SM (or CPU core).  An event is activated
 * when all its in-tasks have triggered it; its out-tasks depend on it.  Tasks and events alternate.
 * Event 0 is the start event (no in-tasks); event 1 is the end event (no out-tasks): every task
 * without producers depends on the start, every task without consumers triggers the end.
 *
 * The passes take a graph through these levels (paper §4.1), each with the promises of those before
 * it:
 *   TG_TASKS   the tasks of an operator are disjoint and cover its output; no events but start and
 *              end
 *   TG_RAW     one event for each producer-consumer pair of tasks: tasks whose accesses conflict
 *              are ordered
 *   TG_FUSED   no two events have equal out-tasks, none have equal in-tasks
 *   TG_NORMAL  each task depends on exactly one event and triggers exactly one; empty tasks (op
 *              IR_NONE) were added; the tasks that depend on one event are all JIT or all AOT
 *   TG_LINEAR  the out-tasks of an event are one range of task numbers, and task numbers are a
 *              topological order.  So a worker that takes its AOT tasks by rising number cannot
 *              deadlock: every task waits for smaller numbers
 *
 * An operator with the flag OP_VIEW whose result shares its input's storage has no tasks.
 *
 *   tgraph.c     build, edge lists, names
 *   tg_access.c  which tasks touch the same bytes
 *   tg_reach.c   which tasks come before which, exactly
 *   tg_verify.c  prove the promises above
 *   tg_print.c   write the text form; tg_parse.c reads it
 *   tg_stats.c   the paper's compiler-stage table
 *   tg_dot.c     drawing
 *   tg_run.c     run sequentially in any legal order (seeded): the oracle of the passes
 */
#ifndef TGRAPH_H
#define TGRAPH_H

#include "ir/ir.h"

typedef uint32_t tg_task_id;
typedef uint32_t tg_event_id;
#define TG_NONE UINT32_MAX /* no such task, event or worker */
/* Event numbers of the start and the end, in every graph. */
enum { TG_START = 0, TG_END = 1 };

/* The levels, in the order in which the passes reach them; see the table above. */
typedef enum tg_level { TG_TASKS, TG_RAW, TG_FUSED, TG_NORMAL, TG_LINEAR, TG_LEVELS } tg_level;
/* How a task reaches a worker.  AOT: the compiler put it on a worker's list, and the worker waits
 * for its event there.  JIT: a scheduler sends it to a worker once its event is activated. */
typedef enum tg_launch { TG_AOT, TG_JIT } tg_launch;

/* A task's number is its index in tg_graph.tasks.  Passes may renumber; from TG_LINEAR on the
 * numbers are those of the image and of the runtime's descriptors. */
typedef struct tg_task {
    /* the operator it is a part of; IR_NONE: an empty task of normalisation, which passes a trigger
     * on */
    ir_op_id op;
    /* what it writes of the operator's output 0, half-open, in elements of the whole tensor (not of
     * a step: a worker clips axis 0 to the live tokens or rows) */
    ir_box box;
    tg_launch launch;
    /* of an AOT task after assign: 0 <= worker < n_workers; else TG_NONE */
    uint32_t worker;
    /* from TG_NORMAL on the one event it waits for and the one it triggers; before that TG_NONE,
     * and only the events' lists say what waits for what */
    tg_event_id depends, triggers;
} tg_task;

/* The in-tasks and out-tasks of an event: ranges of tg_graph.in_tasks and .out_tasks, each
 * sorted.  At TG_LINEAR the out-tasks are the task numbers first_out ... first_out + n_out - 1
 * themselves, and tg_out_task hides the difference. */
typedef struct tg_event {
    uint32_t first_in, n_in;
    uint32_t first_out, n_out;
} tg_event;

/* The arrays grow only by being replaced: a pass allocates new ones in the arena and leaves the old
 * ones to the arena's end, so pointers into them must not be kept across a pass. */
typedef struct tg_graph {
    /* owns the arrays; borrowed.  The compiler's scratch up to linearize, the result's arena after
     * it */
    arena *arena;
    /* borrowed; must live as long as the graph.  Boxes and operator numbers refer to it */
    const ir_graph *ir;
    tg_level level;
    tg_task *tasks;
    tg_event *events;
    /* the lists of all events, in any order of the events; out_tasks is NULL at TG_LINEAR */
    tg_task_id *in_tasks, *out_tasks;
    uint32_t n_tasks, n_events, n_in_tasks, n_out_tasks;
    /* of all peers together, at least 1 */
    uint32_t n_workers;
} tg_graph;

/* ---- tgraph.c ---- */

/* By level, as in the text form. */
extern const char *const tg_level_names[TG_LEVELS];

/* A graph with the two events and no task, at TG_TASKS. */
mpk_status tg_create(mpk_context *cx, arena *a, const ir_graph *ir, uint32_t n_workers,
                     tg_graph **out);
/* Does an operator have tasks?  A view has none unless it had to copy: then its result has
 * storage of its own, which a task must write. */
bool tg_op_has_tasks(const ir_graph *ir, const ir_op *op);
/* The tensor that owns a tensor's storage: itself, or what it is a view or an in-place result of,
 * followed to the end.  Conflicts, lifetimes and places are those of roots. */
ir_tensor_id tg_root(const ir_graph *ir, ir_tensor_id tensor);
/* Out-task number i of an event. */
static inline tg_task_id tg_out_task(const tg_graph *g, const tg_event *e, uint32_t i)
{
    return g->out_tasks ? g->out_tasks[e->first_out + i] : e->first_out + i;
}

/* The events of each task: task t depends on depends[first_depends[t]] ... depends[first_depends[t
 * + 1] - 1], rising, and so for triggers. */
typedef struct tg_links {
    uint32_t *first_depends, *first_triggers; /* [n_tasks + 1] */
    tg_event_id *depends, *triggers;
} tg_links;

/* Derive them from the events' lists; everything lies in `a`. */
mpk_status tg_fill_links(mpk_context *cx, arena *a, const tg_graph *g, tg_links *out);
/* Make the events' lists from the tasks' `depends` and `triggers`, in the graph's arena.  n_events
 * is set. */
mpk_status tg_fill_events(mpk_context *cx, tg_graph *g);
/* The tasks of each operator: tasks[first[op]] ... tasks[first[op + 1] - 1], rising. */
typedef struct tg_op_tasks {
    uint32_t *first; /* [ir->ops.n + 1] */
    tg_task_id *tasks;
} tg_op_tasks;
mpk_status tg_fill_op_tasks(mpk_context *cx, arena *a, const tg_graph *g, tg_op_tasks *out);

enum { TG_NAME_BYTES = 160 };
/* "linear_17/12": an operator and the ordinal of its task; "empty/3" for an empty task.  Linear in
 * the tasks: meant for messages. */
const char *tg_name_task(const tg_graph *g, tg_task_id task, char name[TG_NAME_BYTES]);

/* ---- tg_reach.c ---- */

/* Tasks by position in a topological order: all positions below `prefix`, and those whose bit is
 * set in `bits`, word 0 of which stands for positions 64 * first_word ... */
typedef struct tg_set {
    uint32_t prefix, first_word, n_words;
    const uint64_t *bits;
} tg_set;

/* before[t], [n_tasks]: exactly the tasks that must end before task t may begin.  Tasks with
 * equal dependencies share a set, and in a deep graph nearly all of a set is its prefix, so the
 * sets take little memory.  Everything lies in the arena given to tg_fill_reach. */
typedef struct tg_reach {
    uint32_t *position; /* [n_tasks] in a topological order */
    const tg_set **before;
    uint64_t *work; /* a bit for each task, all zero between calls */
} tg_reach;

/* MPK_EVERIFY: there is a cycle; names a task and an event on it.  Cost: the sum of the events'
 * in- and out-tasks, if barriers are frequent. */
mpk_status tg_fill_reach(mpk_context *cx, arena *a, const tg_graph *g, const tg_links *links,
                         tg_reach *out);

/* Is the task at this position of the topological order in the set? */
static inline bool tg_set_has(const tg_set *s, uint32_t position)
{
    uint32_t word = position / 64 - s->first_word;
    return position < s->prefix || (position / 64 >= s->first_word && word < s->n_words &&
                                    s->bits[word] >> position % 64 & 1);
}
/* Must `first` end before `second` begins? */
static inline bool tg_comes_before(const tg_reach *r, tg_task_id first, tg_task_id second)
{
    return tg_set_has(r->before[second], r->position[first]);
}
/* Of the n tasks, keep those that come before none of the others (the transitive reduction of a
 * list of producers).  Returns how many are kept. */
uint32_t tg_keep_last(const tg_reach *r, tg_task_id *tasks, uint32_t n);

/* ---- tg_access.c ---- */

/* Called for each task that conflicts with tasks of earlier operators in program order: a read
 * after a write, a write after a read, or a write after a write of the same bytes.  before[n] has
 * no duplicates.  Conflicts across an operator that overwrites the whole tensor in between are
 * omitted: that operator is ordered between the two tasks. */
typedef mpk_status tg_conflict_visitor(void *user, tg_task_id after, tg_task_id *before,
                                       uint32_t n);

/* Visit all conflicts, operator by operator in program order.  Overlap is judged between boxes of
 * the tensor that owns the storage (ir_root).  MPK_EVERIFY: two tasks of one operator conflict.
 * Cost: boxes + overlapping pairs. */
mpk_status tg_visit_conflicts(mpk_context *cx, arena *scratch, const tg_graph *g,
                              tg_conflict_visitor *visit, void *user);

/* ---- tg_verify.c ---- */

/* Prove what the graph's level promises, that it is acyclic, that counts match, and that every two
 * conflicting tasks are ordered by events.  MPK_EVERIFY with the names of task and event. */
mpk_status tg_verify(mpk_context *cx, arena *scratch, const tg_graph *g);

/* ---- tg_print.c, tg_parse.c: the text form (docs/text-form.md), the tensor program first; same
 * bytes again ---- */

void tg_print(const tg_graph *g, text *out);
/* MPK_EFORMAT with line and column.  Numbers are checked against their ranges; the promises of the
 * level are checked by tg_verify, not here. */
mpk_status tg_parse(mpk_context *cx, arena *a, str source, tg_graph **out);

/* ---- tg_dot.c ---- */

/* Draw, in the language of graphviz, the tasks of the operators first_op ... first_op + n_ops - 1
 * that have tasks (counted without views) and the events that touch them; all others are one dotted
 * node on each side. */
mpk_status tg_dot(mpk_context *cx, arena *scratch, const tg_graph *g, uint32_t first_op,
                  uint32_t n_ops, text *out);

/* ---- tg_run.c ---- */

/* Run every task, empty ones included, with the reference code: sequentially, in a legal order
 * chosen by the seed.  values: as for ir_eval.  MPK_EVERIFY: the end event is never activated. */
mpk_status tg_run(mpk_context *cx, arena *scratch, const tg_graph *g, const ir_values *values,
                  uint64_t seed);

#endif
