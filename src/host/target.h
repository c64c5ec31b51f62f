/* target.h - a target: a kind of device that runs programs, as one record in the file NAME_target.c
 * of its room.
 *
 * Relies on: the compiler's options (pass/pass.h), which a target tunes, and the machine
 * (host/machine.h), which it starts.  Called by: src/engine, which finds the records in
 * target_table and knows nothing else of any target.  CMake makes the table from the files
 * src/ROOM/NAME_target.c, so a new target is a new folder with one record.
 *
 * What a user asks for (mpk_engine_options) reaches a target as it is; each reads the options that
 * concern it and refuses those that it cannot follow.
 */
#ifndef HOST_TARGET_H
#define HOST_TARGET_H

#include "base/file.h"
#include "host/machine.h"
#include "host/ranks.h"
#include "mpk/mpk.h"
#include "pass/pass.h"

typedef struct target_def target_def;

/* A device on which a program runs, or for which it is only compiled. */
typedef struct target_device {
    const target_def *target;
    uint32_t index; /* among the devices of its target, as their driver counts */
    uint32_t n_workers;
    uint32_t n_peers; /* that share the workers evenly; at least 1 */
    /* of the memory that weights and KV cache will lie in; UINT64_MAX: the device is not here */
    uint64_t free_bytes;
    char name[128]; /* for people: "NVIDIA H100 80GB HBM3" */
    /* what code is compiled for it with: "sm_90a"; "": the target has no code of its own */
    char arch[16];
    bool runs_code; /* code compiled for `arch` runs on it as it is */
    /* the target's: keeps the device open until leave.  NULL: nothing is open */
    void *held;
} target_device;

/* Which device to look for, and what for; from the user's options. */
typedef struct target_ask {
    const mpk_engine_options *options;
    uint32_t index;
    /* a device of this architecture, which need not be here; NULL: the device `index`, which must
     * be here */
    const char *arch;
    bool for_running; /* a machine will be started: the device stays open until leave */
    /* the user named no device: refuse one on which a program could be neither compiled nor
     * found */
    bool unnamed;
} target_ask;

/* Memory that a machine allocates on the device for one purpose. */
typedef struct target_area {
    const char *name; /* "weights" */
    uint64_t n_bytes;
} target_area;
enum { TARGET_AREAS = 8 };

/* What starts a machine, besides the image. */
typedef struct target_start {
    const mpk_engine_options *options;
    machine_weights weights;
    str code; /* what `compile` made for this image before; empty: compiled now */
    /* `code` may be of another program, which costs a compilation and is no error. */
    bool code_may_differ;
    /* Code was compiled: its bytes, borrowed until the function returns.  NULL: it is not kept. */
    void (*made)(mpk_context *cx, void *user, str code);
    void *made_user;
    const machine_watcher *watcher; /* until the machine stops; for the CPU alone.  NULL: none */
    host_ranks
        *ranks; /* until the machine stops: one process for each peer.  NULL: this one alone */
    /* How far starting is, 0 to 1; anything but MPK_OK gives up with that status. */
    mpk_status (*progress)(mpk_context *cx, void *user, const char *stage, double done);
    void *progress_user;
} target_start;

struct target_def {
    const char *name;  /* what the option `device` calls it: "cpu" */
    const char *title; /* in messages: "the CPU" */

    /* of one target: every machine has its device, which is taken where no other opens */
    bool is_fallback;
    bool is_numbered; /* "NAME:1" is its second device */
    /* weights and KV cache are copied to the device, and count against its memory */
    bool has_own_memory;
    /* weights that are not f32, and with them results and the KV cache, are bf16 there */
    bool works_in_bf16;
    /* of such a target: 0, or that it can keep weights of this block format as they are
     * (keep_blocks), matrices or stacks of experts; weights of equal kinds may be one product's.
     * NULL: of none */
    uint32_t (*block_kind)(ir_dtype dtype, bool of_experts);
    /* Are they faster than weights of 16 bits, in steps of up to so many tokens that decode?  NULL:
     * never. */
    bool (*prefers_blocks)(const target_device *d, uint32_t n_tokens);
    /* if that is asked for, multiplies weights in block formats by activations in 8 bits, and keeps
     * keys and values in q8_0 */
    bool narrows;
    /* runs of MPK_MODE_CALLS are launched on tensors in the device's memory, at multiples of this
     * many bytes; 0: the target has no such runs */
    uint32_t call_align;

    /* Row i of the architectures that code is compiled for, NULL past the last.  NULL: the target
     * has none. */
    const char *(*arch_name)(uint32_t i);
    /* *out is zeroed before.  MPK_EARG: an option does not fit; MPK_EUNSUPPORTED: there is no such
     * device, in one line that says what is missing. */
    mpk_status (*open)(mpk_context *cx, const target_ask *ask, target_device *out);
    /* Let go of what open holds.  NULL: it holds nothing. */
    void (*leave)(target_device *d);

    /* query heads for a KV head that its bodies of attention take at most; 0: any number */
    uint32_t most_group;

    /* In graphs of up to how many tokens attention is split (pass_options.split_tokens).  NULL: in
     * none. */
    uint32_t (*split_tokens)(const target_device *d, const mpk_engine_options *o);
    /* Set what the target's bodies are good at.  kv_heads: of the model, 0 if there is
     * none. */
    void (*tune)(const target_device *d, const mpk_engine_options *o, uint32_t kv_heads,
                 pass_options *to);
    /* Bytes that the KV cache may take: *most at all, *usual unless more is asked for.
     * weight_bytes: of the model as the target keeps it; tied_bytes: those of embeddings that are
     * the vocabulary product's weights too. */
    void (*kv_budget)(const target_device *d, uint64_t weight_bytes, uint64_t tied_bytes,
                      uint64_t *most, uint64_t *usual);
    /* What a machine of this image allocates; the names "weights", "kv", "inputs_and_outputs" and
     * "activations" mean the same on all targets.  MPK_EUNSUPPORTED, MPK_ELIMIT: start would refuse
     * it on any such device. */
    mpk_status (*plan_areas)(mpk_context *cx, const program_image *image, const target_device *d,
                             const mpk_engine_options *o, target_area out[TARGET_AREAS],
                             uint32_t *n);

    /* Compile the code of an image; the device need not be here.  The caller frees *code with
     * text_free.  NULL: the target needs no code. */
    mpk_status (*compile)(mpk_context *cx, const program_image *image, const target_device *d,
                          const mpk_engine_options *o, text *code);
    /* Start a machine; the image is borrowed until machine_stop. */
    mpk_status (*start)(mpk_context *cx, const program_image *image, const target_device *d,
                        const target_start *s, machine **out);

    /* Compiled programs on disk.  All NULL: the target keeps none, since it compiles nothing.
     * print_key: what of the device the program and its code follow from.  find: true if a program
     * of this key is there and whole; its bytes are in the file, which the caller closes.  A cache
     * that cannot be written is no error. */
    void (*print_key)(const target_device *d, text *key);
    bool (*find_program)(str key, file_map *file, str *bytes);
    void (*keep_program)(mpk_context *cx, str key, str bytes);
    mpk_status (*clear_programs)(mpk_context *cx);

    /* Add members of a JSON object, what mpk doctor tells of the target's devices and libraries.
     * That something is missing is part of the report; MPK_EARG: a variable of the environment has
     * no meaning. */
    mpk_status (*report)(mpk_context *cx, text *t);
};

/* All targets; ends with NULL.  Generated. */
extern const target_def *const target_table[];

#endif
