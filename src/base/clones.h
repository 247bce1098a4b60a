/* Loops for more than one generation of processors in one program. */
#ifndef SH_BASE_CLONES_H
#define SH_BASE_CLONES_H

/* Copies for processors up to this level of x86-64: 1, 3 (AVX2) or 4 (AVX-512). By configure's --with-clones, as the
 * choice at load time comes before the environment can be read. */
#ifndef SH_CLONES_LEVEL
#define SH_CLONES_LEVEL 4
#endif

/* A hot loop is compiled three times and one copy is chosen at load time, by features and not by CPU names, which
 * virtual machines hide. GCC on x86-64 only: elsewhere, and under sanitizers (whose start-up comes after the choice),
 * the plain loop is the only one. */
#if !defined(__x86_64__) || !defined(__GNUC__) || defined(__clang__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__) || SH_CLONES_LEVEL < 3
#define SH_CLONES
#elif SH_CLONES_LEVEL == 3
#define SH_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define SH_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

#endif
