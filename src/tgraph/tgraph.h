/* tgraph.h - the SM-level task graph (paper §3).
 *
 * A task computes a box of an operator's output on one SM (or CPU core).  An event is activated when all its in-tasks
 * have triggered it; its out-tasks depend on it.  Tasks and events alternate.  Event 0 is the start event (no in-tasks); event 1 is
 * the end event (no out-tasks): every task without producers depends on the start, every task without consumers triggers the end.
 *
 * The passes take a graph through four levels (paper §4.1):
 *   TG_RAW     one event for each overlapping producer-consumer pair of tasks (and start, end)
 *   TG_FUSED   no two events have equal out-tasks, none have equal in-tasks
 *   TG_NORMAL  each task depends on exactly one event and triggers exactly one; empty tasks (op IR_NONE) were added
 *   TG_LINEAR  the out-tasks of an event are one range of task numbers, and task numbers are a topological order
 *
 *   tgraph.c    build, edge lists, sets
 *   tg_print.c  write the text form          tg_parse.c  read it
 *   tg_verify.c prove the invariants         tg_stats.c  the paper's compiler-stage table
 *   tg_dot.c    drawing                      tg_run.c    run sequentially in any legal order (seeded): the oracle of the passes
 */
#ifndef TGRAPH_H
#define TGRAPH_H

#include "ir/ir.h"

typedef uint32_t tg_task_id;
typedef uint32_t tg_event_id;
enum { TG_START = 0, TG_END = 1 };

typedef enum tg_level { TG_RAW, TG_FUSED, TG_NORMAL, TG_LINEAR } tg_level;
typedef enum tg_launch { TG_AOT, TG_JIT } tg_launch;

typedef struct tg_task {
    ir_op_id op; /* IR_NONE: an empty task of normalisation */
    ir_box box;  /* of the operator's output 0 */
    tg_launch launch;
    uint32_t worker;                /* of an AOT task after assign, else UINT32_MAX */
    tg_event_id depends, triggers;  /* from TG_NORMAL on; before that UINT32_MAX */
} tg_task;

/* The in- and out-tasks of an event: ranges of tg_graph.in_tasks and .out_tasks, each sorted.  From TG_LINEAR on the out-tasks
 * are the task numbers first_out ... first_out + n_out - 1 themselves. */
typedef struct tg_event {
    uint32_t first_in, n_in;
    uint32_t first_out, n_out;
} tg_event;

typedef struct tg_graph {
    arena *arena;       /* owns the arrays; borrowed */
    const ir_graph *ir; /* borrowed */
    tg_level level;
    tg_task *tasks;
    tg_event *events;
    tg_task_id *in_tasks, *out_tasks; /* out_tasks is NULL at TG_LINEAR */
    uint32_t n_tasks, n_events, n_in_tasks, n_out_tasks;
    uint32_t n_workers;
} tg_graph;

#endif
