/* rope.h - rotary position embedding: frequencies, angles, the rotation; the same bits in every
 * operator that contains it.
 *
 *   frequency(i)  = theta^(-2 i / size), then scaled          pair i = 0 .. size / 2 - 1
 *                 = 0                                         `plain` pairs after these
 *   angle(p, i)   = p * frequency(i)                           radians at position p
 *   pair (a, b)  -> (a cos - b sin, b cos + a sin)             a = entry i, b = entry i + pairs
 *
 * The scalings are those of Hugging Face's modeling_rope_utils (default, linear, llama3, yarn,
 * longrope).  There a frequency and the angle are fp32 numbers, and at large positions that
 * rounding is part of what models were trained with.  So we round at the same places, and compute
 * in double between them.
 *
 * Used by rope, rope_table and rope_kv, and by the generator, which computes the frequencies
 * when it generates.
 */
#ifndef OP_ROPE_H
#define OP_ROPE_H

#include <math.h>

#include "op/shape.h"

/* The attributes of a rotation, by index; a record that has them lists ROPE_ATTRIBUTE_ROWS
 * first. */
enum {
    ROPE_SIZE,    /* entries of a head that are rotated, even */
    ROPE_PLAIN,   /* pairs that are not, after the others: their angles are 0 */
    ROPE_THETA,   /* base of the frequencies */
    ROPE_SCALING, /* "default", "linear", "llama3", "yarn", "longrope"; "none": all angles are 0 */
    ROPE_FACTOR,  /* how many times the trained context is stretched */
    /* llama3: wavelengths above original / low are stretched in full */
    ROPE_LOW_FREQ_FACTOR,
    ROPE_HIGH_FREQ_FACTOR, /* llama3: wavelengths below original / high stay */
    ROPE_BETA_FAST, /* yarn: pairs that are rotated more often over the original positions stay */
    ROPE_BETA_SLOW, /* yarn: pairs that are rotated less often are stretched in full */
    ROPE_ATTENTION_FACTOR, /* yarn, longrope: factor of cos and sin; 0: from the other numbers */
    ROPE_MSCALE,           /* yarn; 0: absent */
    ROPE_MSCALE_ALL_DIM,   /* yarn; 0: absent */
    ROPE_ORIGINAL,         /* llama3, yarn, longrope: positions the model was first trained for */
    ROPE_TRUNCATE,         /* yarn: whole numbers as bounds of the ramp */
    ROPE_DIVISORS,         /* longrope: what divides the frequency of each pair, "1 1.05 2.5" */
    ROPE_ATTRIBUTES
};

#define ROPE_ATTRIBUTE_ROWS                                                       \
    SHAPE_NEEDED("size", INT), SHAPE_INT("plain", 0), SHAPE_REAL("theta", 10000), \
        SHAPE_WORD("scaling", "default"), SHAPE_REAL("factor", 1),                \
        SHAPE_REAL("low_freq_factor", 1), SHAPE_REAL("high_freq_factor", 4),      \
        SHAPE_REAL("beta_fast", 32), SHAPE_REAL("beta_slow", 1),                  \
        SHAPE_REAL("attention_factor", 0), SHAPE_REAL("mscale", 0),               \
        SHAPE_REAL("mscale_all_dim", 0), SHAPE_INT("original_positions", 8192),   \
        SHAPE_INT("truncate", 1), SHAPE_WORD("divisors", "")

/* All pairs, those that are not rotated too. */
static inline int64_t rope_pairs(const ir_attribute *a)
{
    return a[ROPE_SIZE].i / 2 + a[ROPE_PLAIN].i;
}

/* Number `index` of a list as in ROPE_DIVISORS; false: the list has no such number. */
static inline bool rope_divisor(str list, int64_t index, double *out)
{
    for (size_t at = 0, n = 0; at < list.n; at += n + 1, index--) {
        const char *space = memchr(list.at + at, ' ', list.n - at);
        n = space ? (size_t)(space - (list.at + at)) : list.n - at;
        if (!index)
            return str_read_double((str){list.at + at, n}, out);
    }
    return false;
}

/* longrope needs a positive divisor for each pair, and no more.  MPK_EARG. */
static inline mpk_status rope_check_divisors(mpk_context *cx, const ir_op *op)
{
    const int64_t half = op->attributes[ROPE_SIZE].i / 2;
    str list = op->attributes[ROPE_DIVISORS].s;
    double divisor = 0;
    for (int64_t i = 0; i < half; i++)
        CHECK(cx, rope_divisor(list, i, &divisor) && divisor > 0, MPK_EARG,
              "%s: divisors has no positive number %lld of %lld", op->def->name, (long long)i,
              (long long)half);
    CHECK(cx, !rope_divisor(list, half, &divisor), MPK_EARG,
          "%s: divisors has more than %lld numbers", op->def->name, (long long)half);
    return MPK_OK;
}

/* Every attribute must be in its range (else MPK_EARG) and the scaling known (else
 * MPK_EUNSUPPORTED). */
static inline mpk_status rope_check(mpk_context *cx, const ir_op *op)
{
    const ir_attribute *a = op->attributes;
    str s = a[ROPE_SCALING].s;
    CHECK(cx, a[ROPE_SIZE].i >= 2 && a[ROPE_SIZE].i % 2 == 0 && a[ROPE_SIZE].i < 1 << 20, MPK_EARG,
          "%s: size is %lld, expected an even number from 2", op->def->name,
          (long long)a[ROPE_SIZE].i);
    CHECK(cx, a[ROPE_PLAIN].i >= 0 && a[ROPE_PLAIN].i < 1 << 20, MPK_EARG,
          "%s: plain is %lld, expected a number of pairs from 0", op->def->name,
          (long long)a[ROPE_PLAIN].i);
    CHECK(cx, a[ROPE_THETA].f > 1 && a[ROPE_THETA].f < 1e30, MPK_EARG,
          "%s: theta is %g, expected more than 1", op->def->name, a[ROPE_THETA].f);
    CHECK(cx,
          str_is(s, "default") || str_is(s, "linear") || str_is(s, "llama3") || str_is(s, "yarn") ||
              str_is(s, "longrope") || str_is(s, "none"),
          MPK_EUNSUPPORTED,
          "%s: scaling \"%.*s\" is not known; there are default, linear, llama3, yarn, longrope, "
          "none",
          op->def->name, STR_ARG(s));
    CHECK(cx, a[ROPE_FACTOR].f > 0, MPK_EARG, "%s: factor is %g, expected more than 0",
          op->def->name, a[ROPE_FACTOR].f);
    CHECK(cx, a[ROPE_ORIGINAL].i > 0, MPK_EARG,
          "%s: original_positions is %lld, expected more than 0", op->def->name,
          (long long)a[ROPE_ORIGINAL].i);
    CHECK(cx, !str_is(s, "llama3") || a[ROPE_HIGH_FREQ_FACTOR].f >= a[ROPE_LOW_FREQ_FACTOR].f,
          MPK_EARG, "%s: high_freq_factor %g is below low_freq_factor %g", op->def->name,
          a[ROPE_HIGH_FREQ_FACTOR].f, a[ROPE_LOW_FREQ_FACTOR].f);
    CHECK(cx, !str_is(s, "yarn") || (a[ROPE_BETA_FAST].f > 0 && a[ROPE_BETA_SLOW].f > 0), MPK_EARG,
          "%s: beta_fast and beta_slow must be above 0", op->def->name);
    return str_is(s, "longrope") ? rope_check_divisors(cx, op) : MPK_OK;
}

/* llama3's scaling of one frequency.  Short waves stay, long ones are stretched by factor;
 * between the two bounds both are mixed, linearly in the turns over the original positions. */
static inline float rope_llama3(const ir_attribute *a, float frequency)
{
    float original = (float)a[ROPE_ORIGINAL].i, low = (float)a[ROPE_LOW_FREQ_FACTOR].f;
    float high = (float)a[ROPE_HIGH_FREQ_FACTOR].f, factor = (float)a[ROPE_FACTOR].f;
    float wavelength = (float)(2 * 3.14159265358979323846) / frequency;
    if (wavelength < original / high)
        return frequency;
    if (wavelength >= original / low)
        return frequency / factor;
    float smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

/* The pair number (not whole) whose angle turns `rotations` times over the original positions:
 * frequency solved for the pair. */
static inline double rope_correction(const ir_attribute *a, double rotations)
{
    double turns = (double)a[ROPE_ORIGINAL].i / (rotations * 2 * 3.14159265358979323846);
    return (double)a[ROPE_SIZE].i * log(turns) / (2 * log(a[ROPE_THETA].f));
}

/* yarn's frequency of a pair.  Pairs below `low` turn often and stay, those above `high` turn
 * rarely and are stretched; between them a ramp mixes both.  period: 1 / frequency before
 * scaling. */
static inline float rope_yarn(const ir_attribute *a, int64_t pair, float period)
{
    double low = rope_correction(a, a[ROPE_BETA_FAST].f),
           high = rope_correction(a, a[ROPE_BETA_SLOW].f);
    if (a[ROPE_TRUNCATE].i) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < (double)(a[ROPE_SIZE].i - 1) ? high : (double)(a[ROPE_SIZE].i - 1);
    /* as the reference does, against a division by 0 */
    if (low == high)
        high += 0.001;
    float ramp = ((float)pair - (float)low) / (float)(high - low);
    ramp = ramp < 0 ? 0 : ramp;
    ramp = ramp > 1 ? 1 : ramp;
    float keep = 1 - ramp;
    return 1.0f / ((float)a[ROPE_FACTOR].f * period) * (1 - keep) + 1.0f / period * keep;
}

/* Radians by which one position turns pair number 0 .. rope_pairs - 1, scaled; an fp32 number. */
static inline float rope_frequency(const ir_attribute *a, int64_t pair)
{
    if (pair >= a[ROPE_SIZE].i / 2)
        return 0;
    float exponent = (float)(2 * pair) / (float)a[ROPE_SIZE].i;
    float period = (float)pow((double)(float)a[ROPE_THETA].f, (double)exponent);
    str scaling = a[ROPE_SCALING].s;
    if (str_is(scaling, "linear"))
        return 1.0f / period / (float)a[ROPE_FACTOR].f;
    if (str_is(scaling, "llama3"))
        return rope_llama3(a, 1.0f / period);
    if (str_is(scaling, "yarn"))
        return rope_yarn(a, pair, period);
    if (str_is(scaling, "none"))
        return 0;
    double divisor = 1;
    if (str_is(scaling, "longrope"))
        rope_divisor(a[ROPE_DIVISORS].s, pair, &divisor);
    return 1.0f / ((float)divisor * period);
}

/* YaRN's factor for the attention scores of stretched contexts: it grows with the logarithm of
 * `factor`. */
static inline double rope_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* longrope's factor of cos and sin: it grows with the stretched context's logarithm. */
static inline float rope_long_amplitude(const ir_attribute *a)
{
    double factor = a[ROPE_FACTOR].f, original = (double)a[ROPE_ORIGINAL].i;
    return factor <= 1 || original <= 1 ? 1 : (float)sqrt(1 + log(factor) / log(original));
}

/* The factor of cos and sin; other than 1 with yarn and longrope only. */
static inline float rope_amplitude(const ir_attribute *a)
{
    const bool is_long = str_is(a[ROPE_SCALING].s, "longrope");
    if (!is_long && !str_is(a[ROPE_SCALING].s, "yarn"))
        return 1;
    if (a[ROPE_ATTENTION_FACTOR].f != 0)
        return (float)a[ROPE_ATTENTION_FACTOR].f;
    if (is_long)
        return rope_long_amplitude(a);
    double factor = a[ROPE_FACTOR].f, mscale = a[ROPE_MSCALE].f, all = a[ROPE_MSCALE_ALL_DIM].f;
    if (mscale != 0 && all != 0)
        return (float)(rope_mscale(factor, mscale) / rope_mscale(factor, all));
    return (float)rope_mscale(factor, 1);
}

/* cos and sin of a position for one frequency.  The angle is rounded to fp32 first, as the
 * reference does.  A pair of frequency 0 is not rotated: no amplitude changes it. */
static inline void rope_angle(float frequency, float amplitude, int64_t position, float *cosine,
                              float *sine)
{
    float angle = (float)position * frequency;
    amplitude = frequency == 0 ? 1 : amplitude;
    *cosine = (float)cos((double)angle) * amplitude;
    *sine = (float)sin((double)angle) * amplitude;
}

/* Rotate the first 2 * half entries of a head in place; the pairs are (i, i + half). */
static inline void rope_rotate(float *x, const float *cosine, const float *sine, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

#endif
