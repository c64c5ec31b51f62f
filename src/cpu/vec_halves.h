/* vec_halves.h - the sums of eight vectors at once, from their halves.
 *
 * Written with the intrinsics of AVX2, which avx2_neon.h defines on arm64.  Included by vec_*.h
 * after V_INLINE is defined; called by v_sum8 of AVX2 and NEON, and by attention, which halves
 * its vectors as soon as they are computed.
 */
#ifndef CPU_VEC_HALVES_H
#define CPU_VEC_HALVES_H

/* sums[i]: the sum of the lanes of eight[i], by the rest of the tree after v_half.  Vectors are
 * transposed while they are added, which costs about as much as two sums. */
V_INLINE void v_sum_halves(const __m256 eight[8], float sums[8])
{
    __m256 four[4], two[2];
    for (int i = 0; i < 4; i++)
        four[i] = _mm256_add_ps(_mm256_permute2f128_ps(eight[i], eight[i + 4], 0x20),
                                _mm256_permute2f128_ps(eight[i], eight[i + 4], 0x31));
    for (int i = 0; i < 2; i++)
        two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                               _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88),
                                         _mm256_shuffle_ps(two[0], two[1], 0xdd)));
}

#endif
