/* engine_device.c - where a program runs: a device of some target, there or only named.
 *
 * Input: the options `device` and `target`; output: the device.  Relies on the table of targets
 * (host/target.h); what a device is and which options it takes, its target says.
 *
 * `device` names hardware that is here (a target and a number), `target` an architecture to compile
 * for, which need not be.  Called by engine_compile.c, engine_image.c, engine_inspect.c and
 * engine_graph.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/engine.h"

/* The number after "NAME:", up to eight digits, which fit 32 bits; false: it is empty, too long, or
 * has other characters. */
static bool parse_index(const char *digits, uint32_t *index)
{
    size_t n = strspn(digits, "0123456789");
    *index = 0;
    for (size_t i = 0; i < n && i < 9; i++)
        *index = 10 * *index + (uint32_t)(digits[i] - '0');
    return n && n < 9 && !digits[n];
}

/* "cpu", "NAME" or "NAME:1" of a target with numbered devices; NULL: none of these. */
static const target_def *parse_device(const char *word, uint32_t *index)
{
    for (const target_def *const *t = target_table; *t; t++) {
        size_t n = strlen((*t)->name);
        *index = 0;
        if (strncmp(word, (*t)->name, n) == 0 &&
            (!word[n] || ((*t)->is_numbered && word[n] == ':' && parse_index(word + n + 1, index))))
            return *t;
    }
    return NULL;
}

/* The target that compiles for an architecture; NULL: none does. */
static const target_def *find_arch(const char *arch)
{
    for (const target_def *const *t = target_table; *t; t++)
        for (uint32_t i = 0; (*t)->arch_name && (*t)->arch_name(i); i++)
            if (strcmp((*t)->arch_name(i), arch) == 0)
                return *t;
    return NULL;
}

bool engine_knows_arch(const char *arch)
{
    return find_arch(arch);
}

/* MPK_EARG, with the names that would have been right. */
static mpk_status fail_device(mpk_context *cx, const char *word)
{
    char names[128] = "auto";
    for (const target_def *const *t = target_table; *t; t++) {
        size_t n = strlen(names);
        if ((*t)->is_numbered)
            snprintf(names + n, sizeof names - n, ", %s, %s:1", (*t)->name, (*t)->name);
        else
            snprintf(names + n, sizeof names - n, ", %s", (*t)->name);
    }
    FAIL(cx, MPK_EARG, "there is no device '%s': %s are", word, names);
}

/* MPK_EARG, with the architectures that targets compile for.  The list is cut where the room ends;
 * there are a handful of them. */
static mpk_status fail_arch(mpk_context *cx, const char *word)
{
    char names[128] = "";
    for (const target_def *const *t = target_table; *t; t++)
        for (uint32_t i = 0; (*t)->arch_name && (*t)->arch_name(i); i++) {
            size_t n = strlen(names);
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", (*t)->arch_name(i));
        }
    FAIL(cx, MPK_EARG, "there is no target '%s': %s are", word, names);
}

/* Open a device of target t.  A target that fails has undone what it did; `held` NULL keeps
 * engine_leave_device from undoing it again. */
static mpk_status open_device(mpk_context *cx, const target_def *t, const target_ask *ask,
                              target_device *out)
{
    *out = (target_device){.target = t};
    mpk_status status = t->open(cx, ask, out);
    if (status != MPK_OK)
        out->held = NULL;
    return status;
}

void engine_leave_device(target_device *device)
{
    if (device->held)
        device->target->leave(device);
    device->held = NULL;
}

/* A device of the architecture that is asked for.  named: the target of the option `device`; NULL:
 * auto. */
static mpk_status open_arch(mpk_context *cx, const target_def *named, const target_ask *ask,
                            target_device *out)
{
    const target_def *t = find_arch(ask->arch);
    if (!t)
        return fail_arch(cx, ask->arch);
    CHECK(cx, !named || named == t, MPK_EARG, "the target %s is of %s, and the device is %s",
          ask->arch, t->title, named->title);
    return open_device(cx, t, ask, out);
}

/* The first device of any target, in the table's order, else of the fallback that every machine
 * has.  That the others are not here is no error, so their messages are dropped; the fallback's
 * failure is told. */
static mpk_status open_any(mpk_context *cx, const target_ask *ask, target_device *out)
{
    const target_def *last = NULL;
    for (const target_def *const *t = target_table; *t; t++) {
        mpk_context unsaid = {0};
        if ((*t)->is_fallback)
            last = *t;
        else if (open_device(&unsaid, *t, ask, out) == MPK_OK)
            return MPK_OK;
    }
    return open_device(cx, last, ask, out);
}

/* MPK_DEVICE stands for the option where that says nothing, so that tests and scripts choose
 * without a flag; an explicit device or target wins over it.  For running, a target needs a device
 * that is here, so open_arch, which may do without one, is only for compiling. */
mpk_status engine_choose_device(mpk_context *cx, const mpk_engine_options *o, bool for_running,
                                target_device *out)
{
    const char *chosen = getenv("MPK_DEVICE"), *word = o->device ? o->device : "auto";
    target_ask ask = {.options = o, .for_running = for_running};
    *out = (target_device){0};
    if (strcmp(word, "auto") == 0 && chosen && *chosen && (for_running || !o->target))
        word = chosen;
    const target_def *named = parse_device(word, &ask.index);
    ask.unnamed = strcmp(word, "auto") == 0;
    if (!named && !ask.unnamed)
        return fail_device(cx, word);
    if (o->target && !for_running) {
        ask.arch = o->target;
        return open_arch(cx, named, &ask, out);
    }
    return named ? open_device(cx, named, &ask, out) : open_any(cx, &ask, out);
}

/* The first target in the table that will do. */
const char *engine_default_device(bool launches)
{
    for (const target_def *const *t = target_table; *t; t++)
        if (launches ? (*t)->call_align != 0 : (*t)->is_fallback)
            return (*t)->name;
    return NULL;
}

/* What an image was compiled for, in words: its architecture, or the target's title where code is
 * not compiled for one. */
static const char *words_of(const target_def *t, const char *arch)
{
    return *arch ? arch : t->title;
}

/* Compare before the device is opened, so that a wrong option is not told as a missing device.  The
 * image's threads and peers replace the caller's: its tasks are already divided among that many.
 * Whether the device is really of the image's architecture can only be said when it is open. */
mpk_status engine_image_device(mpk_context *cx, const mpk_engine_options *o,
                               const engine_plan *plan, bool for_running, target_device *out)
{
    mpk_engine_options wanted = *o;
    const char *arch = plan->arch;
    uint32_t index;
    const target_def *t = find_arch(arch);
    bool is_auto = !o->device || strcmp(o->device, "auto") == 0;
    for (const target_def *const *plain = target_table; *plain && !t; plain++)
        t = (*plain)->arch_name ? NULL : *plain;
    CHECK(cx, is_auto || parse_device(o->device, &index) == t, MPK_EARG,
          "the image was compiled for %s, not for %s: compile the model again", words_of(t, arch),
          o->device);
    CHECK(cx, !o->target || strcmp(o->target, arch) == 0, MPK_EARG,
          "the image was compiled for %s, not for %s: compile the model again", words_of(t, arch),
          o->target);
    wanted.threads = plan->threads;
    wanted.gpus = plan->n_peers;
    wanted.target = for_running || !*arch ? NULL : arch;
    if (is_auto)
        wanted.device = t->name;
    TRY(engine_choose_device(cx, &wanted, for_running, out));
    CHECK(cx, strcmp(out->arch, arch) == 0, MPK_EARG,
          "the image was compiled for %s, but %s wants %s: compile the model again",
          words_of(t, arch), out->name, words_of(out->target, out->arch));
    return MPK_OK;
}
