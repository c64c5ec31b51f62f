/* vec_functions.h - logarithms, powers, trigonometric and hyperbolic functions over the
 * sixteen-lane vectors of the vec_*.h that was included first.  Included by element_kernels.h.
 *
 * Each takes every float: subnormals, infinities, NaN and what lies outside its domain give what
 * the C library gives.  The bound of each, in units of the last place, is that of the exact value;
 * functions_test.c holds it against doubles.  The ways to few units:
 *
 *   parts     a result is the sum of a large part, of what its rounding lost, and of a small
 *             polynomial, added last: the polynomial's own rounding hardly counts
 *   doubles   where that does not do: angles less a multiple of pi / 2, logarithms of powers
 *
 * Coefficients are minimax fits, of the highest power first.
 */
#ifndef CPU_VEC_FUNCTIONS_H
#define CPU_VEC_FUNCTIONS_H

#include "cpu/vec_math.h"

/* The smallest float above 0, and the largest. */
#define V_LEAST 0x1p-149f
#define V_MOST 0x1.fffffep127f

/* ---- signs ---- */

V_INLINE vf v_negate(vf x)
{
    return v_sub(v_set(-0.0f), x);
}

/* 1 with the sign of x: tells -0 from 0. */
V_INLINE vf v_sign(vf x)
{
    return v_with_sign(v_set(1), x);
}

/* ---- whole numbers ---- */

V_INLINE vf v_floor(vf x)
{
    vf n = v_round(x);
    return v_select_less(x, n, v_sub(n, v_set(1)), n);
}
V_INLINE vf v_ceil(vf x)
{
    return v_negate(v_floor(v_negate(x)));
}
V_INLINE vf v_trunc(vf x)
{
    return v_with_sign(v_floor(v_abs(x)), x);
}
V_INLINE vf v_truncdiv(vf a, vf b)
{
    return v_trunc(v_div(a, b));
}

/* ---- what the C library is left ---- */

/* y, but f(x) in the lanes whose |x| is not below `bound`, NaN among them. */
V_INLINE vf v_beyond(vf x, float bound, vf y, float (*f)(float x))
{
    float in[16], out[16];
    uint32_t lanes = v_equal(v_select_less(v_abs(x), v_set(bound), v_zero(), v_set(1)), v_set(1));
    if (!lanes)
        return y;
    v_store(in, x);
    v_store(out, y);
    for (int l = 0; l < 16; l++)
        if (lanes >> l & 1)
            out[l] = f(in[l]);
    return v_load(out);
}

/* y, but f(a, b) in the lanes where `far` is not 0. */
V_INLINE vf v_beyond_two(vf far, vf a, vf b, vf y, float (*f)(float a, float b))
{
    float of[2][16], out[16];
    uint32_t lanes = v_equal(far, v_zero()) ^ 0xffff;
    if (!lanes)
        return y;
    v_store(of[0], a);
    v_store(of[1], b);
    v_store(out, y);
    for (int l = 0; l < 16; l++)
        if (lanes >> l & 1)
            out[l] = f(of[0][l], of[1][l]);
    return v_load(out);
}

/* ---- remainders ---- */

/* The remainder of a / b with the sign of a, exactly: what C's fmod gives.  A quotient below 2^24
 * rounds to its whole part or, just below the next whole number, to that; then the product leaves
 * less than 0.  The C library computes where b or the quotient is larger. */
V_INLINE vf v_fmod(vf a, vf b)
{
    vf size = v_abs(b), quotient = v_floor(v_div(v_abs(a), size));
    vf rest = v_fma(v_negate(quotient), size, v_abs(a));
    rest = v_with_sign(v_select_less(rest, v_zero(), v_add(rest, size), rest), a);
    vf far = v_select_less(quotient, v_set(0x1p24f), v_zero(), v_set(1));
    far = v_select_less(size, v_set(INFINITY), far, v_set(1));
    return v_beyond_two(far, a, b, rest, fmodf);
}

/* yes where a rest of the division by b is not 0 and has the other sign, else no. */
V_INLINE vf v_select_apart(vf rest, vf b, vf yes, vf no)
{
    yes = v_select_less(v_mul(v_sign(rest), v_sign(b)), v_zero(), yes, no);
    return v_select_less(v_abs(rest), v_set(V_LEAST), no, yes);
}

/* The remainder with the sign of b, and the quotient rounded down, with the steps of
 * op/map_arithmetic.h. */
V_INLINE vf v_remainder(vf a, vf b)
{
    vf rest = v_fmod(a, b);
    return v_select_apart(rest, b, v_add(rest, b), rest);
}
V_INLINE vf v_floordiv(vf a, vf b)
{
    vf rest = v_fmod(a, b), plain = v_div(a, b), q = v_div(v_sub(a, rest), b);
    q = v_select_apart(rest, b, v_sub(q, v_set(1)), q);
    vf whole = v_floor(q),
       y = v_select_less(v_set(0.5f), v_sub(q, whole), v_add(whole, v_set(1)), whole);
    y = v_select_less(v_abs(q), v_set(V_LEAST), v_with_sign(v_zero(), plain), y);
    return v_select_less(v_abs(b), v_set(V_LEAST), plain, y);
}

/* ---- logarithms ---- */

/* x = 2^e (1 + f) with f in [-1/3, 1/3], exactly, for x above 0 and finite; returns f.  Bits are
 * counted from those of 2/3, so that the exponent field changes where f does. */
V_INLINE vf v_fraction(vf x, vf *e)
{
    const vf normal = v_set(0x1p-126f);
    const int32_t from = 0x3f2aaaab;
    vf bias = v_select_less(x, normal, v_set(128 + 24), v_set(128));
    vi bits = vi_bits(v_select_less(x, normal, v_mul(x, v_set(0x1p24f)), x));
    vi field = vi_shr(vi_sub(bits, vi_set(from - (128 << 23))), 23);
    *e = v_sub(vi_float(field), bias);
    vf part = v_from_bits(vi_sub(bits, vi_shl(vi_sub(field, vi_set(128)), 23)));
    return v_sub(part, v_set(1));
}

/* The base of a logarithm: 1 / ln base and log 2 to that base, each as two floats of which the
 * second is small.  The first of `two` times a whole number below 2^8 is exact. */
typedef struct v_base {
    float scale, scale_rest, two, two_rest;
} v_base;

/* log(2^e (1 + f + rest)), for a rest far below f or f = 0.  log(1 + f) = f + f^2 Q(f). */
V_INLINE vf v_log_parts(vf e, vf f, vf rest, v_base base)
{
    static const float q[] = {-0.128744885f, 0.139867067f, -0.121883437f,
                              0.140053406f,  -0.16680181f, 0.200104445f,
                              -0.249998048f, 0.333332151f, -0.5f};
    vf high = f, low = v_fma(v_mul(f, f), v_polynomial(f, q, 9), rest);
    if (base.scale != 1) {
        const vf scale = v_set(base.scale);
        high = v_mul(f, scale);
        rest = v_fma(f, v_set(base.scale_rest), v_fma(f, scale, v_negate(high)));
        low = v_fma(low, scale, rest);
    }
    vf whole = v_mul(e, v_set(base.two)), sum = v_add(whole, high);
    vf lost = v_sub(high, v_sub(sum, whole));
    return v_add(sum, v_add(v_fma(e, v_set(base.two_rest), low), lost));
}

/* y, the logarithm of x, where x is above 0 and finite. */
V_INLINE vf v_log_ends(vf x, vf y)
{
    y = v_select_less(x, v_set(V_LEAST), v_set(-INFINITY), y);
    y = v_select_less(x, v_zero(), v_set(NAN), y);
    return v_select_less(x, v_set(INFINITY), y, x);
}

/* Logarithms within 1 unit. */
V_INLINE vf v_log_of(vf x, v_base base)
{
    vf e, f = v_fraction(x, &e);
    return v_log_ends(x, v_log_parts(e, f, v_zero(), base));
}

static const v_base v_natural = {1, 0, 0.693145752f, 1.42860677e-06f};
static const v_base v_binary = {1.44269502f, 1.92596303e-08f, 1, 0};
static const v_base v_decimal = {0.434294492f, -1.010305e-08f, 0.30103302f, -3.02435546e-06f};

V_INLINE vf v_log(vf x)
{
    return v_log_of(x, v_natural);
}
V_INLINE vf v_log2(vf x)
{
    return v_log_of(x, v_binary);
}
V_INLINE vf v_log10(vf x)
{
    return v_log_of(x, v_decimal);
}

/* log(1 + x) within 1 unit.  What 1 + x loses is added to the fraction. */
V_INLINE vf v_log1p(vf x)
{
    const vf one = v_set(1);
    vf sum = v_add(one, x), x_part = v_sub(sum, one), e;
    vf lost = v_add(v_sub(one, v_sub(sum, x_part)), v_sub(x, x_part));
    vf f = v_fraction(sum, &e);
    /* beyond 2^126 nothing that is lost counts */
    lost = v_mul(lost, v_scale(one, v_negate(v_min(e, v_set(126)))));
    vf whole = v_add(f, lost);
    lost = v_add(v_sub(f, whole), lost);
    vf y = v_log_ends(sum, v_log_parts(e, whole, lost, v_natural));
    return v_select_less(v_abs(x), v_set(0x1p-30f), x, y);
}

/* log(e^(a ln) + e^(b ln)) / ln: the larger, and log(1 + e^-d) of their distance. */
V_INLINE vf v_log_sum(vf a, vf b, float ln)
{
    vf most = v_select_less(a, b, b, a), d = v_mul(v_abs(v_sub(a, b)), v_set(-ln));
    vf y = v_fma(v_log1p(v_exp_wide(d)), v_set(1 / ln), most);
    y = v_select_less(v_set(V_MOST), most, v_add(v_abs(a), v_abs(b)), y);
    return v_select_less(most, v_set(-V_MOST), v_add(a, b), y);
}
V_INLINE vf v_logaddexp(vf a, vf b)
{
    return v_log_sum(a, b, 1);
}
V_INLINE vf v_logaddexp2(vf a, vf b)
{
    return v_log_sum(a, b, 0.69314718055994530942f);
}

/* a log b; 0 for a = 0, whatever number b is. */
V_INLINE vf v_xlogy(vf a, vf b)
{
    vf none = v_mul(v_zero(), v_min(v_set(1), v_abs(b))); /* NaN for NaN */
    return v_select_less(v_abs(a), v_set(V_LEAST), none, v_mul(a, v_log(b)));
}

/* ---- powers ---- */

/* 2^r for r within 1/2 of 0. */
V_INLINE vf v_exp2_part(vf r)
{
    static const float p[] = {0.00015329264f,
                              0.00133909693f,
                              0.00961849932f,
                              0.0555035956f,
                              0.240226477f,
                              0.693147182f,
                              1.0f};
    return v_polynomial(r, p, 7);
}

/* 2^x within 1 unit. */
V_INLINE vf v_exp2(vf x)
{
    x = v_select_less(x, v_set(-151), v_set(-151), x);
    x = v_select_less(v_set(129), x, v_set(129), x);
    vf n = v_round(x);
    return v_scale_wide(v_exp2_part(v_sub(x, n)), n);
}

/* e^x - 1 within 1 unit: 2^n - 1 + 2^n (r + r^2 P(r)), by halves, as 2^n may be too large. */
V_INLINE vf v_expm1(vf x)
{
    static const float p[] = {0.000197616377f, 0.00139323273f, 0.00833354611f,
                              0.0416664928f,   0.166666657f,   0.5f};
    vf within = v_select_less(x, v_set(-20), v_set(-20), x);
    within = v_select_less(v_set(89), within, v_set(89), within);
    vf n = v_round(v_mul(within, v_set(1.44269504f))), power = v_scale(v_set(0.5f), n);
    vf above = v_fma(n, v_set(-0.693145752f), within), r = v_fma(n, v_set(-1.42860677e-6f), above);
    vf rest = v_fma(n, v_set(-1.42860677e-6f), v_sub(above, r));
    vf low = v_fma(v_mul(r, r), v_polynomial(r, p, 6), rest);
    vf whole = v_sub(power, v_set(0.5f)), sum = v_fma(power, r, whole);
    vf lost = v_fma(power, r, v_sub(whole, sum));
    vf y = v_add(sum, v_fma(power, low, lost));
    return v_select_less(v_abs(x), v_set(0x1p-30f), x, v_add(y, y));
}

/* yes where x is a whole number, else no. */
V_INLINE vf v_select_whole(vf x, vf yes, vf no)
{
    return v_select_less(v_abs(v_sub(x, v_round(x))), v_set(V_LEAST), yes, no);
}

/* log2 |x| in doubles, within 2^-37 of itself. */
V_INLINE vd v_log2_wide(vf x)
{
    static const double p[] = {-0.15057149661417871, 0.15779880656779921,  -0.11172920197088754,
                               0.12347702225402275,  -0.14501383779924956, 0.16090196851452648,
                               -0.18030250758756358, 0.20607535344549227,  -0.24044998099028797,
                               0.28853945792187341,  -0.36067375191198903, 0.48089834380687518,
                               -0.72134752046907047, 1.4426950408925709};
    vf e, f = v_fraction(v_abs(x), &e);
    vd part = vd_wide(f), y = vd_set(p[0]);
#pragma GCC unroll 16
    for (int i = 1; i < 14; i++)
        y = vd_fma(y, part, vd_set(p[i]));
    return vd_fma(y, part, vd_wide(e));
}

/* a^b within 1 unit, as 2^(b log2 |a|) with a sign; 0 and what is not finite as C has it. */
V_INLINE vf v_pow(vf a, vf b)
{
    const vf none = v_zero(), all = v_set(INFINITY);
    vd power = vd_mul(vd_wide(b), v_log2_wide(a));
    vf whole = vd_narrow(power), n = v_round(v_min(v_set(129), v_max(v_set(-151), whole)));
    vf y = v_scale_wide(v_exp2_part(vd_narrow(vd_sub(power, vd_wide(n)))), n);
    y = v_select_less(whole, v_set(-151), none, y);
    y = v_select_less(v_set(129), whole, all, y);
    vf of_none = v_select_less(none, b, none, v_select_less(b, none, all, v_set(1)));
    y = v_select_less(v_abs(a), v_set(V_LEAST), of_none, y);
    vf turned = v_select_whole(v_mul(b, v_set(0.5f)), y, v_negate(y));
    turned = v_select_whole(b, turned, v_select_less(a, none, v_set(NAN), y));
    y = v_select_less(v_sign(a), none, turned, y);
    vf far = v_select_less(v_abs(a), all, none, v_set(1));
    return v_beyond_two(v_select_less(v_abs(b), all, far, v_set(1)), a, b, y, powf);
}

V_INLINE vf v_ldexp(vf a, vf b)
{
    return v_mul(a, v_exp2(b));
}

/* ---- angles ---- */

/* sin x within 1 unit for steps = 0, cos x for steps = 1: x is a multiple n of pi / 2 and a rest,
 * in doubles; n + steps says which function of the rest it is, and its sign.  n is exact up to
 * 2^20, beyond which the C library computes. */
typedef struct v_quarters {
    vf sine, cosine; /* of the rest */
    vi n;
} v_quarters;
V_INLINE v_quarters v_quarters_of(vf x)
{
    vf n = v_round(v_mul(x, v_set(0.636619747f)));
    vd turns = vd_wide(n), r = vd_fma(turns, vd_set(-1.5707963267948966), vd_wide(x));
    r = vd_fma(turns, vd_set(-6.123233995736766e-17), r);
    vd z = vd_mul(r, r), s = vd_set(2.7060939982682391e-06), c = vd_set(2.4256426965464309e-05);
    s = vd_fma(s, z, vd_set(-0.0001983786029318357));
    c = vd_fma(c, z, vd_set(-0.0013885146327797691));
    s = vd_fma(s, z, vd_set(0.0083333240908594324));
    c = vd_fma(c, z, vd_set(0.041666565245175112));
    s = vd_fma(s, z, vd_set(-0.16666666588752091));
    c = vd_fma(c, z, vd_set(-0.49999999145192742));
    return (v_quarters){vd_narrow(vd_fma(s, vd_mul(z, r), r)), vd_narrow(vd_fma(c, z, vd_set(1))),
                        vi_round(n)};
}
/* yes where n is odd, else no. */
V_INLINE vf v_select_odd(vi n, vf yes, vf no)
{
    return v_select_less(vi_float(vi_and(n, vi_set(1))), v_set(0.5f), no, yes);
}
V_INLINE vf v_sine(v_quarters q, int32_t steps)
{
    vi n = vi_sub(q.n, vi_set(-steps));
    vf y = v_select_odd(n, q.cosine, q.sine);
    /* bit 1 of n is the sign; subtracted from the sign bit, it turns it over */
    return v_from_bits(vi_sub(vi_bits(y), vi_shl(vi_and(n, vi_set(2)), 30)));
}
V_INLINE vf v_sin(vf x)
{
    vf y = v_sine(v_quarters_of(x), 0);
    y = v_select_less(v_abs(x), v_set(0x1p-13f), x, y);
    return v_beyond(x, 0x1p20f, y, sinf);
}
V_INLINE vf v_cos(vf x)
{
    return v_beyond(x, 0x1p20f, v_sine(v_quarters_of(x), 1), cosf);
}

/* tan x within 2 units. */
V_INLINE vf v_tan(vf x)
{
    v_quarters q = v_quarters_of(x);
    vf y =
        v_div(v_select_odd(q.n, v_negate(q.cosine), q.sine), v_select_odd(q.n, q.sine, q.cosine));
    y = v_select_less(v_abs(x), v_set(0x1p-13f), x, y);
    return v_beyond(x, 0x1p20f, y, tanf);
}

/* atan2(y, x) within 2 units: atan of the smaller by the larger of both, then the part of the
 * circle that their order and signs say. */
V_INLINE vf v_atan2(vf y, vf x)
{
    static const float p[] = {-0.0017875476f, 0.0108873611f,  -0.0311270021f,
                              0.0579065457f,  -0.0840047523f, 0.109511748f,
                              -0.142640516f,  0.19998531f,    -0.333332986f};
    const vf half_pi = v_set(1.57079637f), half_pi_rest = v_set(-4.37113883e-08f);
    vf a = v_abs(y), b = v_abs(x);
    vf less = v_select_less(a, b, a, b), more = v_select_less(a, b, b, a); /* NaN stays */
    vf sum = v_add(a, b), t = v_div(less, more);
    t = v_select_less(v_set(V_MOST), v_min(less, sum), v_set(1), t); /* both infinite, no NaN */
    t = v_select_less(sum, v_set(V_LEAST), v_zero(), t);
    vf z = v_mul(t, t), angle = v_fma(v_mul(t, z), v_polynomial(z, p, 9), t);
    angle = v_select_less(b, a, v_sub(half_pi, v_sub(angle, half_pi_rest)), angle);
    vf turned = v_sub(v_add(half_pi, half_pi), v_sub(angle, v_add(half_pi_rest, half_pi_rest)));
    return v_with_sign(v_select_less(v_sign(x), v_zero(), turned, angle), y);
}
V_INLINE vf v_atan(vf x)
{
    return v_atan2(x, v_set(1));
}

/* asin s - s = s^3 P(s^2) for s^2 = z up to 1/4. */
V_INLINE vf v_asin_rest(vf s, vf z)
{
    static const float p[] = {0.0422117971f, 0.0241520926f, 0.0454760417f, 0.0749525204f,
                              0.166667536f};
    return v_mul(v_mul(s, z), v_polynomial(z, p, 5));
}

/* asin and acos within 2 units; above 1/2 by asin x = pi / 2 - 2 asin sqrt((1 - x) / 2). */
V_INLINE vf v_asin(vf x)
{
    const vf half = v_set(0.5f), half_pi = v_set(1.57079637f);
    vf a = v_abs(x), z = v_mul(v_sub(v_set(1), a), half), s = v_sqrt(z);
    vf near = v_add(a, v_asin_rest(a, v_mul(a, a))), rest = v_asin_rest(s, z);
    vf twice = v_add(s, s), far = v_sub(half_pi, twice);
    vf lost = v_sub(v_sub(half_pi, far), twice);
    rest = v_fma(v_set(-2), rest, v_add(lost, v_set(-4.37113883e-08f)));
    return v_with_sign(v_select_less(a, half, near, v_add(far, rest)), x);
}
V_INLINE vf v_acos(vf x)
{
    const vf half = v_set(0.5f);
    vf a = v_abs(x), z = v_mul(v_sub(v_set(1), a), half), s = v_sqrt(z);
    vf near = v_add(x, v_asin_rest(x, v_mul(x, x))), far = v_add(s, v_asin_rest(s, z));
    far = v_add(far, far);
    vf below = v_sub(v_set(3.14159274f), v_sub(far, v_set(-8.74227766e-08f)));
    near = v_sub(v_set(1.57079637f), v_sub(near, v_set(-4.37113883e-08f)));
    far = v_select_less(x, v_zero(), below, far);
    return v_select_less(a, half, near, far);
}

/* ---- hyperbolic functions ---- */

/* e^x / 2, infinite only where that is; of x not below 0. */
V_INLINE vf v_half_exp(vf x)
{
    x = v_select_less(v_set(90), x, v_set(90), x);
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    return v_scale_wide(v_exp_part(x, n), v_sub(n, v_set(1)));
}

/* sinh and cosh within 2 units: e^x / 2 -+ e^-x / 2; sinh below 1 by its series. */
V_INLINE vf v_sinh(vf x)
{
    static const float p[] = {2.78392554e-06f, 0.000198426351f, 0.00833331142f, 0.166666672f};
    vf a = v_abs(x), z = v_mul(x, x), power = v_half_exp(a);
    vf near = v_fma(v_mul(x, z), v_polynomial(z, p, 4), x);
    vf far = v_with_sign(v_sub(power, v_div(v_set(0.25f), power)), x);
    return v_select_less(a, v_set(1), near, far);
}
V_INLINE vf v_cosh(vf x)
{
    vf power = v_half_exp(v_abs(x));
    return v_add(power, v_div(v_set(0.25f), power));
}

/* atanh within 2 units: log(1 + 2 x / (1 - x)) / 2; below 1/2 by its series. */
V_INLINE vf v_atanh(vf x)
{
    static const float p[] = {0.177242965f, 0.0509457402f, 0.118352473f,
                              0.142212942f, 0.200026006f,  0.333332986f};
    vf a = v_abs(x), z = v_mul(x, x);
    vf near = v_fma(v_mul(x, z), v_polynomial(z, p, 6), x);
    vf far = v_log1p(v_div(v_add(a, a), v_sub(v_set(1), a)));
    far = v_with_sign(v_mul(v_set(0.5f), far), x);
    return v_select_less(a, v_set(0.5f), near, far);
}

#endif
