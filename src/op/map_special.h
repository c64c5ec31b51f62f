/* map_special.h - functions of one or two doubles that the C library lacks, for the operator
 * map.
 *
 * Each is good to about 1e-14 relative away from its zeros.  Ideas: a series where it converges,
 * recurrence or an asymptotic expansion elsewhere.  Included by map_arithmetic.h, for host and
 * GPU.
 */
#ifndef OP_MAP_SPECIAL_H
#define OP_MAP_SPECIAL_H

#ifndef SPECIAL_FN /* how a function begins: code for a GPU says it */
#include <math.h>
#include <stdint.h>
#define SPECIAL_FN static inline
#endif

/* exp(x^2) erfc(x).  From 25 on, where erfc underflows, the first terms of its expansion in 1 /
 * x^2. */
SPECIAL_FN double special_erfcx(double x)
{
    double r = 1 / (x * x), sum = 1, term = 1;
    if (x < 25)
        return exp(x * x) * erfc(x);
    for (int k = 1; k < 9; k++) {
        term *= -(2 * k - 1) * r / 2;
        sum += term;
    }
    return sum / (x * 1.77245385090551602730);
}

/* The z with erfc(z) = p for 0 < p <= 1, found by Newton's method on log erfc from an asymptotic
 * guess. */
SPECIAL_FN double special_erfc_inverse(double p)
{
    double l = log(p), z = p > 0.5 ? (1 - p) * 0.88622692545275801
                                   : sqrt(-l - 0.5 * log(-l * 3.14159265358979324 + 1));
    for (int i = 0; i < 8; i++) {
        double value = erfc(z), slope = -1.12837916709551257 * exp(-z * z);
        double step = p > 0.5 ? (value - p) / slope : value * (log(value) - l) / slope;
        if (!isfinite(step))
            break;
        z -= step;
    }
    return z;
}

/* The inverse of erf for -1 < x < 1; the ends are infinite, anything else is NaN. */
SPECIAL_FN double special_erfinv(double x)
{
    double a = fabs(x), z = a * 0.88622692545275801;
    if (!(a < 1))
        return a == 1 ? copysign(INFINITY, x) : NAN;
    if (a > 0.5)
        return copysign(special_erfc_inverse(1 - a), x);
    for (int i = 0; i < 6; i++)
        z -= (erf(z) - a) / (1.12837916709551257 * exp(-z * z));
    return copysign(z, x);
}

/* The quantile of the normal distribution: the x with P(X <= x) = p. */
SPECIAL_FN double special_ndtri(double p)
{
    if (p == 0)
        return -INFINITY;
    if (!(p > 0 && p < 1))
        return p == 1 ? INFINITY : NAN;
    if (p <= 0.25)
        return -1.41421356237309505 * special_erfc_inverse(2 * p);
    return p >= 0.75 ? 1.41421356237309505 * special_erfc_inverse(2 * (1 - p))
                     : 1.41421356237309505 * special_erfinv(2 * p - 1);
}

/* The logarithm of the normal distribution function; below -1 by erfcx, which does not
 * underflow. */
SPECIAL_FN double special_log_ndtr(double x)
{
    double t = x * 0.70710678118654752;
    return x < -1 ? log(special_erfcx(-t) / 2) - t * t : log1p(-erfc(t) / 2);
}

/* The derivative of log gamma: infinite at 0 (as PyTorch has it), NaN at the negative integers.
 * Reflection for x < 0, recurrence up to 10, then the asymptotic series. From 10 on, six terms of
 * the series leave an error below that of a double. */
SPECIAL_FN double special_digamma(double x)
{
    double result = 0;
    if (x == 0)
        return copysign(INFINITY, -x);
    if (x < 0) {
        double whole, part = modf(x, &whole);
        if (part == 0)
            return NAN;
        result = -3.14159265358979324 / tan(3.14159265358979324 * part);
        x = 1 - x;
    }
    for (; x < 10; x++)
        result -= 1 / x;
    double r = 1 / (x * x);
    double tail =
        r *
        (1.0 / 12 -
         r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240 - r * (1.0 / 132 - r * 691.0 / 32760)))));
    return x == INFINITY ? INFINITY : result + log(x) - 0.5 / x - tail;
}

/* The modified Bessel function of order 0 or 1; scaled: times exp(-|x|). */
SPECIAL_FN double special_bessel_i(double x, int order, int scaled)
{
    double a = fabs(x), sum = 1, term = 1, sign = order && x < 0 ? -1 : 1;
    if (a < 20) { /* (a/2)^order sum of (a^2/4)^k / (k! (k + order)!) */
        for (int k = 1; k < 80; k++) {
            term *= a * a / 4 / k / (k + order);
            sum += term;
        }
        const double factor = order ? a / 2 : 1;
        return sign * sum * factor * (scaled ? exp(-a) : 1);
    }
    for (int k = 1; k < 30; k++) { /* exp(a) / sqrt(2 pi a) times an expansion in 1 / a */
        double odd = 2 * k - 1, step = -(4.0 * order * order - odd * odd) / (8 * k * a);
        if (fabs(step) >= 1)
            break;
        term *= step;
        sum += term;
    }
    return x != x ? x
                  : sign * (scaled ? 1 : exp(a)) *
                        (a == INFINITY ? scaled ? 0 : 1 : sum / sqrt(6.28318530717958648 * a));
}

/* Sum over k >= 0 of (k + q)^-x: twelve terms, and more until q has grown to 10, then the
 * Euler-Maclaurin formula for the rest, whose error falls with a power of q. */
SPECIAL_FN double special_zeta(double x, double q)
{
    static const double factors[] = {1.0 / 12,           -1.0 / 720,     1.0 / 30240,
                                     -1.0 / 1209600,     1.0 / 47900160, -691.0 / 1307674368000.0,
                                     1.0 / 74724249600.0};
    double sum = 0, product = x;
    if (!(x > 1))
        return x == 1 ? INFINITY : NAN;
    if (q <= 0 && q == floor(q))
        return INFINITY;
    if (q < -1e6 || (q <= 0 && x != floor(x)))
        return NAN;
    for (int k = 0; k < 12 || q < 10; k++, q++)
        sum += pow(q, -x);
    double power = pow(q, -x);
    sum += power * q / (x - 1) + power / 2;
    power /= q;
    for (int k = 0; k < 7; k++) {
        sum += factors[k] * product * power;
        product *= (x + 2 * k + 1) * (x + 2 * k + 2);
        power /= q * q;
    }
    return sum;
}

/* The upper incomplete gamma function over gamma(a), for x >= a + 1: a continued fraction
 * (Lentz). */
SPECIAL_FN double special_gamma_fraction(double a, double x, double front)
{
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (int k = 1; k < 100000; k++) {
        double an = -(double)k * (k - a);
        b += 2;
        d = an * d + b;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        c = b + an / c;
        c = fabs(c) < 1e-300 ? 1e-300 : c;
        h *= c * d;
        if (fabs(c * d - 1) < 1e-16)
            break;
    }
    return front * h;
}

/* The regularised incomplete gamma functions, lower or upper, given log gamma(a): a series below a
 * + 1, the continued fraction above. Each converges fast on its own side of that line and slowly on
 * the other; the series gives the lower function and the fraction the upper one, so the other is 1
 * minus that. */
SPECIAL_FN double special_gamma_part(double a, double x, double log_gamma, int upper)
{
    if (!(a >= 0 && x >= 0) || (a == 0 && x == 0) || (a == INFINITY && x == INFINITY))
        return NAN;
    if (a == 0 || x == INFINITY)
        return upper ? 0 : 1;
    if (x == 0 || a == INFINITY)
        return upper ? 1 : 0;
    double front = exp(a * log(x) - x - log_gamma), sum = 1 / a, term = sum;
    if (x >= a + 1) {
        double q = special_gamma_fraction(a, x, front);
        return upper ? q : 1 - q;
    }
    for (int k = 1; k < 100000 && fabs(term) > 1e-17 * fabs(sum); k++) {
        term *= x / (a + k);
        sum += term;
    }
    return upper ? 1 - front * sum : front * sum;
}

/* The modified Bessel function of the second kind of order 0 or 1, times exp(x) if scaled.  The
 * integral of exp(-x (cosh t - 1)) cosh(order t) over t >= 0, by trapezoids: with these
 * steps they are good to 1e-17. */
SPECIAL_FN double special_bessel_k(double x, int order, int scaled)
{
    double step = x > 8 ? 0.7 / sqrt(x) : 0.25, sum = 0.5;
    if (!(x > 0))
        return x == 0 ? INFINITY : NAN;
    if (x == INFINITY)
        return 0;
    for (int k = 1; k < 4096; k++) {
        double half = sinh(k * step / 2),
               term = exp(-2 * x * half * half) * (order ? cosh(k * step) : 1);
        sum += term;
        if (term < 1e-18 * sum)
            break;
    }
    return (scaled ? 1 : exp(-x)) * step * sum;
}

#endif
