/* Loops compiled for several generations of processors in one program. */
#ifndef SH_BASE_CLONES_H
#define SH_BASE_CLONES_H

/* Copies are made for processors up to this level of x86-64: 1, 3 (AVX2) or 4 (AVX-512). Set by configure's
 * --with-clones, because the choice at load time comes before the environment can be read. */
#ifndef SH_CLONES_LEVEL
#define SH_CLONES_LEVEL 4
#endif

/* A hot loop is compiled three times, and one copy is chosen at load time, by features and not by CPU names, which
 * virtual machines hide. GCC on x86-64 only: elsewhere, and under sanitizers (which start after the choice), there is
 * only the plain loop. */
#if !defined(__x86_64__) || !defined(__GNUC__) || defined(__clang__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__) || SH_CLONES_LEVEL < 3
#define SH_CLONES
#elif SH_CLONES_LEVEL == 3
#define SH_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define SH_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

#endif
