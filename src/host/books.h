/* books.h - the host's books of requests, and its ends of the rings, whatever machine reads them.
 *
 * The host keeps a book of every request from submission until its end is drained.  What does not
 * fit into the request ring or the token arena waits in the book, in order, and moves up whenever
 * someone drains.  The rings lie where the target wants them: on the CPU they are the machine's own
 * (rt_machine.request_ring ...), on a GPU pinned memory of the host, between which and the
 * machine's rings a courier moves entries.  Of a courier the books rely on order alone: who sees a
 * command has seen every request that was sent before it.
 */
#ifndef HOST_BOOKS_H
#define HOST_BOOKS_H

#include <stdatomic.h>

#include "base/thread.h"
#include "image/image.h"

/* ---- what a target supplies ---- */

/* The host's ends, all zero at the start, in memory that outlives the books.  Masks are capacities
 * - 1. */
typedef struct host_rings {
    rt_ring *request_ring, *command_ring, *token_ring;
    rt_request *requests; /* [request_mask + 1] */
    rt_command *commands; /* [command_mask + 1] */
    rt_token *tokens;     /* [token_mask + 1] */
    rt_i32 *token_arena;  /* [n_arena]: prompts; read by the machine */
    uint32_t request_mask, command_mask, token_mask;
    uint64_t n_arena;
    /* grows whenever there is something new for the host, or machine_nudge was called */
    rt_word *bell;
} host_rings;

/* What the program offers: filled in full, all pages free, no slot taken.  ready 0: it takes no
 * requests. */
void host_find_serving(const program_image *image, rt_serving *out);
/* Have steps filled so that company changes no bit of a request (rt_step_fill_apart).  few_tokens:
 * graphs of at most this many tokens have bodies that give a token the same bits; 0: nothing is
 * done. MPK_EARG: no graph is so small. */
mpk_status host_fill_apart(mpk_context *cx, const program_image *image, uint32_t few_tokens,
                           rt_serving *s);
/* How KV pages are given out (rt_admit.h), for a program that host_find_serving and host_fill_apart
 * have seen.  grows: requests get pages as they use them, and are put back if there are none: only
 * where feeding a text once more gives the same bits; otherwise they lend what they do not use, and
 * pause.  shared: requests share the pages of equal beginnings.  Growing and sharing need the
 * program to keep texts, and where steps are filled apart none grows. */
void host_plan_pages(rt_serving *s, bool grows, bool shared);
/* Have requests try drafts (rt_draft.h): in steps of at most step_tokens, found by their last
 * gram_tokens tokens (0: not in texts, by a draft model alone).  freely: a step costs nearly the
 * same with drafts as without.  0 step_tokens, or a program whose machine keeps no texts: no
 * request drafts.  After host_plan_pages. */
void host_plan_drafts(rt_serving *s, uint32_t step_tokens, uint32_t gram_tokens, bool freely);
/* The draft model of a program, whether requests draft or not: the step task must know which graphs
 * are the model's.  False: it has none.  *out is what stands first after rt_machine.drafters. */
bool host_find_draft_model(const program_image *image, const rt_serving *s, rt_ahead *out);
/* The stack of free pages [n_pages] and the buckets [bucket_mask + 1] at the start. */
void host_lay_pages(const rt_serving *s, rt_u32 *free_pages, rt_u32 *buckets);
/* Names that come with a prompt of n tokens. */
uint32_t host_names(const rt_serving *s, uint64_t n_tokens);
/* Random bits of the operating system (host_port.c). */
uint64_t host_random(void);
/* Positions that one request may take, as far as the KV pages limit it. */
uint64_t host_context(const rt_serving *s);
/* Masks and n_arena for a program that is ready; the addresses stay as they are.  waiting: entries
 * of the request ring, 0: 256; tokens: entries of the token ring at least, 0: 1024. */
void host_size_rings(const rt_serving *s, uint32_t waiting, uint32_t tokens, host_rings *rings);

/* ---- the books ---- */

/* A piece of the token arena. */
typedef struct host_region {
    uint64_t at, n;
} host_region;

/* Log probabilities of a request's tokens.  The book and the caller who submitted the request both
 * hold it, since either may be the last to let go. */
typedef struct host_shares {
    atomic_uint holders;
    uint64_t n;
    float at[]; /* [n] */
} host_shares;

/* n zeros, held once; NULL: out of memory. */
host_shares *host_shares_new(uint64_t n);
/* Let go; NULL is allowed. */
void host_shares_drop(host_shares *s);

/* A request that has been submitted and whose end has not been drained. */
typedef struct host_entry {
    uint64_t id;
    int32_t *tokens; /* on the heap; NULL once they are in the arena */
    host_region region;
    float *logits; /* the caller's, while `lent` stands for it; NULL: nothing is lent */
    uint64_t n_logits;
    rt_u64 lent;
    host_shares *shares; /* NULL: none */
    bool is_masked;      /* request.mask is set when it is sent */
    /* heap: of its first token, if that comes before it is sent; NULL: it has no masks */
    uint32_t *first_mask;
    bool has_first_mask;
    bool sent;      /* in the machine's ring, or past it */
    bool cancelled; /* machine_cancel was called */
    bool ready;     /* host_samples: its logits were drained, it may be continued */
    rt_request request;
} host_entry;

typedef struct host_books {
    host_rings rings;
    rt_serving serving; /* as at the start: sizes, not state */
    bool has_lock;

    pthread_mutex_t lock; /* guards what follows */
    uint64_t next_id;
    /* in order of submission, but those that are not in the ring by priority before; on the heap */
    VEC(host_entry *) entries;
    size_t entries_unsent; /* index of the first entry that is not in the ring */
    bool *mask_taken;      /* heap, [serving.n_masks] */
    rt_token *early;       /* ends of requests that never reached the machine */
    size_t n_early, early_capacity;
    bool nudged; /* a machine_drain that finds nothing returns once */
} host_books;

/* Begin; for a program that is not ready, rings may be NULL.  b is zeroed before, and
 * host_books_close is called after any status.  MPK_ENOMEM. */
mpk_status host_books_open(mpk_context *cx, const rt_serving *s, const host_rings *rings,
                           host_books *b);
/* Free what the books have on the heap; the machine has stopped. */
void host_books_close(host_books *b);
/* Are requests under way? */
bool host_books_are_busy(host_books *b);

#endif
