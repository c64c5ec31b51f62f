/* rules.h - what a request asks of its tokens beyond the filters of `sample`: penalties, biases,
 * bans, two more filters.
 *
 * A request's rules are one record of 32-bit words in its row of `rules`; a part of `history`
 * holds the tokens of the request from position 0 on.  The engine writes the record
 * (engine/engine_rules.c); `sample` and its GPU body (device/task/sample.cuh) read it.  They
 * change a copy of the row of logits, in this order:
 *
 *   biases       x += bias
 *   repetition   of each token in the history, once: x is divided by the penalty if x > 0, else
 *                multiplied by it
 *   presence     of each token among those generated, once: x -= penalty
 *   frequency    of each occurrence among those generated: x -= penalty
 *   allowed      if any is listed: all other tokens are banned (x = -inf)
 *   mask         tokens without a bit are banned
 *   ends         banned while fewer than `least` tokens have been generated
 *   banned       the last token of a sequence is banned where the history ends with the tokens
 *                before it
 *   sigma        banned if x is more than this many standard deviations below the largest logit
 *   typical      the tokens whose surprise is nearest the expected one, the fewest with this share,
 *                are kept
 *
 * The last two apply to rows with a temperature only.  A value that is off changes nothing.
 */
#ifndef OP_RULES_H
#define OP_RULES_H

#include <math.h>
#include <string.h>

#include "op/walk.h"

/* Words of a record.  The words RULES_PROMPT .. RULES_BANNED are counts; the lists themselves
 * follow each other from RULES_LISTS on, in the order of their counts.  A record with one bias
 * and one banned sequence 5 6:
 *
 *   .. BIASES 1, ALLOWED 0, ENDS 0, BANNED 3 | id, bias | 2, 5, 6 */
enum {
    RULES_REPETITION, /* float bits; off: 1 */
    RULES_PRESENCE,   /* float bits; off: 0 */
    RULES_FREQUENCY,  /* float bits; off: 0 */
    RULES_SIGMA,      /* float bits; off: 0 */
    RULES_TYPICAL,    /* float bits; off: 1 */
    RULES_PROMPT,     /* tokens of the prompt: the history after them was generated */
    RULES_LEAST,      /* tokens to generate before an end may come */
    RULES_BIASES,     /* pairs: id, float bits; no id twice */
    RULES_ALLOWED,    /* ids; 0: all are */
    RULES_ENDS,       /* ids that end the text */
    RULES_BANNED,     /* words of the banned sequences, each its length and its ids */
    RULES_LISTS,
    RULES_WORDS = 4096 /* of a record at most */
};

/* What a row asks for: the words of its row of `asks`. */
enum {
    ASK_RULES,    /* 1 + the row of rules; 0: no rules */
    ASK_FROM,     /* where in `history` the request's tokens begin */
    ASK_HISTORY,  /* how many tokens they are */
    ASK_LOGPROBS, /* entries of logprobs; 0: none */
    ASK_TOKEN,    /* the token of the first entry; -1: the one that is drawn */
    /* 1 + the row of rules that holds its mask; 0: none.  A row with a mask has rules too. */
    ASK_MASK,
    ASK_CHOICE, /* with rules: the row of choice, which no other row of the step has */
    ASKS
};

/* Words of a mask: the number of the draw that it is for, draws[r] + 1, then a bit for each
 * token that may come, the lowest first.  The host writes the mask while the step runs: first
 * the bits, then the number (release), and changes neither until that draw has been read.
 * `sample` loads the number (acquire): if it is the number of its draw, the bits are there; if
 * not, the token of the row is RULES_LATE and the row must be drawn again. */
enum { MASK_NUMBER, MASK_BITS, RULES_LATE = -1 };

/* Words of a mask for a vocabulary, its number included. */
static inline int64_t rules_mask_words(int64_t vocab_size)
{
    return MASK_BITS + (vocab_size + 31) / 32;
}

/* Entries of logprobs: the token that was drawn or asked for, then the most probable ones. */
enum { LOGPROBS_TOP = 20, LOGPROBS = 1 + LOGPROBS_TOP };

/* One row of logits with what changes it; everything is borrowed.  `x` and `marks` belong to
 * this row alone, so several rows of a step may be changed at the same time. */
typedef struct rules {
    const int32_t *words, *history; /* the record; the request's tokens so far */
    int64_t n_history;              /* tokens in the history */
    float *x;                       /* [n] the row, changed */
    int64_t n;
    int32_t *marks;      /* [n] by id: RULES_SEEN and so on; scratch */
    const int32_t *mask; /* bits of the tokens that may come; NULL: all may */
} rules;

/* Do the lists lie within a record of `width` words?  A record that is not sound is ignored: its
 * row has no rules. */
static inline bool rules_are_sound(const int32_t *words, int64_t width)
{
    int64_t n = RULES_LISTS;
    for (uint32_t i = RULES_PROMPT; i < RULES_LISTS; i++) {
        if (words[i] < 0)
            return false;
        n += (int64_t)words[i] * (i < RULES_BIASES ? 0 : 1 + (i == RULES_BIASES));
    }
    if (n > width)
        return false;
    for (int64_t at = n - words[RULES_BANNED]; at < n; at += 1 + (int64_t)words[at])
        if (words[at] < 1 || words[at] >= n - at)
            return false;
    return true;
}

/* A float of the record, which holds floats as their bits. */
static inline float rules_float(const rules *r, uint32_t word)
{
    float x;
    memcpy(&x, &r->words[word], sizeof x);
    return x;
}

/* Ban a token.  An id may name no token of this vocabulary; it is skipped. */
static inline void rules_ban(const rules *r, int32_t id)
{
    if (id >= 0 && id < r->n)
        r->x[id] = -INFINITY;
}

/* Set a bit of an id's mark.  True if it was clear: the first time that this id comes; false too
 * if there is no such id. */
static inline bool rules_mark(const rules *r, int32_t id, int32_t bit)
{
    if (id < 0 || id >= r->n || r->marks[id] & bit)
        return false;
    r->marks[id] |= bit;
    return true;
}

/* Bits of a mark: in the history, generated, on the list of allowed tokens. */
enum { RULES_SEEN = 1, RULES_MADE = 2, RULES_PERMITTED = 4 };

/* The three penalties, in the order of their definitions: repetition once for each token of the
 * whole history, presence once and frequency each time for the generated tokens.  Marks tell
 * which tokens have had theirs. */
static inline void rules_penalize(const rules *r)
{
    float repetition = rules_float(r, RULES_REPETITION), presence = rules_float(r, RULES_PRESENCE),
          frequency = rules_float(r, RULES_FREQUENCY);
    for (int64_t i = 0; i < r->n_history && repetition != 1; i++) {
        int32_t id = r->history[i];
        if (rules_mark(r, id, RULES_SEEN))
            r->x[id] = r->x[id] > 0 ? r->x[id] / repetition : r->x[id] * repetition;
    }
    for (int64_t i = r->words[RULES_PROMPT]; i < r->n_history && presence != 0; i++)
        if (rules_mark(r, r->history[i], RULES_MADE))
            r->x[r->history[i]] -= presence;
    for (int64_t i = r->words[RULES_PROMPT]; i < r->n_history && frequency != 0; i++)
        if (r->history[i] >= 0 && r->history[i] < r->n)
            r->x[r->history[i]] -= frequency;
}

/* Ban the last token of each sequence whose other tokens end the history.  The words at .. end -
 * 1 are sequences, each its length and its ids. */
static inline void rules_ban_sequences(const rules *r, const int32_t *at, const int32_t *end)
{
    for (; at < end; at += 1 + at[0]) {
        int64_t before = at[0] - 1;
        if (before <= r->n_history &&
            memcmp(at + 1, r->history + r->n_history - before, (size_t)before * sizeof *at) == 0)
            rules_ban(r, at[at[0]]);
    }
}

/* Biases, penalties and bans, up to the banned sequences.  `at` walks over the lists; the loop
 * over allowed tokens leaves it at the next list. */
static inline void rules_list(const rules *r)
{
    const int32_t *w = r->words, *at = w + RULES_LISTS;
    for (int32_t i = 0; i < w[RULES_BIASES]; i++, at += 2) {
        float bias;
        memcpy(&bias, at + 1, sizeof bias);
        if (at[0] >= 0 && at[0] < r->n)
            r->x[at[0]] += bias;
    }
    rules_penalize(r);
    for (int32_t i = 0; i < w[RULES_ALLOWED]; i++)
        rules_mark(r, *at++, RULES_PERMITTED);
    for (int64_t id = 0; id < r->n && w[RULES_ALLOWED]; id++)
        if (!(r->marks[id] & RULES_PERMITTED))
            r->x[id] = -INFINITY;
    for (int64_t id = 0; id < r->n && r->mask; id++)
        if (!((uint32_t)r->mask[id / 32] >> id % 32 & 1))
            r->x[id] = -INFINITY;
    for (int32_t i = 0; i < w[RULES_ENDS]; i++, at++)
        if (r->n_history - w[RULES_PROMPT] < w[RULES_LEAST])
            rules_ban(r, *at);
    rules_ban_sequences(r, at, at + w[RULES_BANNED]);
}

/* Ban what is more than `sigmas` standard deviations below the largest.  Mean and deviation are
 * of the tokens that are not banned, in double and in two passes: squares are of the differences
 * to the mean. */
static inline void rules_cut_deviation(const rules *r, double largest, double sigmas)
{
    double count = 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < r->n; i++)
        if (r->x[i] > -INFINITY) {
            count += 1;
            sum += (double)r->x[i];
        }
    double mean = sum / count;
    for (int64_t i = 0; i < r->n; i++)
        if (r->x[i] > -INFINITY)
            squares += ((double)r->x[i] - mean) * ((double)r->x[i] - mean);
    double least = largest - sigmas * sqrt(squares / count);
    for (int64_t i = 0; i < r->n; i++)
        if ((double)r->x[i] < least)
            r->x[i] = -INFINITY;
}

/* How far a token's surprise is from the expected one, as bits: those of non-negative floats
 * rise with the float.  scaled: its logit, relative to the largest, over the temperature. */
static inline uint32_t rules_distance(double scaled, double expected)
{
    float far = (float)fabs(scaled - expected);
    uint32_t bits;
    memcpy(&bits, &far, sizeof bits);
    return bits;
}

/* Keep the fewest tokens of typical surprise whose share reaches `share`; equally far ones stay
 * together.  The distance at which to cut is found by bisection over the bits of a float: at
 * most 31 passes, each of which computes only the weights in the half that it looks at.  `marks`
 * holds the distances; banned tokens are infinitely far (0x7f800000). */
static inline void rules_cut_untypical(const rules *r, double largest, double temperature,
                                       double share)
{
    uint32_t *far = (uint32_t *)r->marks, low = 0, high = 0x7f800000u;
    double sum = 0, weighted = 0, below = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double scaled = ((double)r->x[i] - largest) / temperature, weight = exp(scaled);
        sum += r->x[i] > -INFINITY ? weight : 0;
        weighted += r->x[i] > -INFINITY ? weight * scaled : 0;
    }
    for (int64_t i = 0; i < r->n; i++)
        far[i] = r->x[i] > -INFINITY
                     ? rules_distance(((double)r->x[i] - largest) / temperature, weighted / sum)
                     : 0x7f800000u;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        double inside = 0;
        for (int64_t i = 0; i < r->n; i++)
            if (far[i] >= low && far[i] <= middle)
                inside += exp(((double)r->x[i] - largest) / temperature);
        if (below + inside >= share * sum) {
            high = middle;
        } else {
            below += inside;
            low = middle + 1;
        }
    }
    for (int64_t i = 0; i < r->n; i++)
        if (far[i] > high)
            r->x[i] = -INFINITY;
}

/* The largest logit; -inf if all are banned. */
static inline double rules_largest(const rules *r)
{
    double largest = -INFINITY;
    for (int64_t i = 0; i < r->n; i++)
        largest = (double)r->x[i] > largest ? (double)r->x[i] : largest;
    return largest;
}

/* Change the row as the record says.  temperature: the row's; without one (0 or NaN) the two
 * filters do not apply. */
static inline void rules_apply(const rules *r, double temperature)
{
    double sigmas = (double)rules_float(r, RULES_SIGMA),
           typical = (double)rules_float(r, RULES_TYPICAL);
    memset(r->marks, 0, (size_t)r->n * sizeof *r->marks);
    rules_list(r);
    double largest = rules_largest(r);
    if (!(temperature > 0) || !isfinite(largest))
        return;
    if (sigmas > 0)
        rules_cut_deviation(r, largest, sigmas);
    if (typical > 0 && typical < 1)
        rules_cut_untypical(r, largest, temperature, typical);
}

#endif
