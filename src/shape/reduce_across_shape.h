/* reduce_across_shape.h - how threads share the lines of a reduction whose neighbours lie along an
 * axis that stays (gen/body_reduce.c, device/task/reduce_across.cuh). */
#ifndef SHAPE_REDUCE_ACROSS_SHAPE_H
#define SHAPE_REDUCE_ACROSS_SHAPE_H

/* Lines that a thread has at once, entries of 16 bits side by side; threads that share them at
 * most; bytes of scratch: a double for each line of each of 256 threads. */
enum { ACROSS_PIECE = 8, ACROSS_MOST_SHARES = 32, ACROSS_BYTES = 256 * ACROSS_PIECE * 8 };

/* How many threads share pieces of lines of n entries, of which the whole operator has `pieces`: as
 * many as give a GPU's threads something to do, each at least two entries.  It follows from the
 * whole operator, so that the order of sums does not depend on how that is cut. */
static inline int across_shares(long long n, long long pieces)
{
    enum { THREADS = 1 << 16 };
    int shares = ACROSS_MOST_SHARES;
    while (shares > 1 && (n < 2 * shares || pieces * shares > THREADS))
        shares /= 2;
    return shares;
}

#endif
