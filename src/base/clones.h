/* Loops for more than one generation of processors in one program. */
#ifndef SH_BASE_CLONES_H
#define SH_BASE_CLONES_H

/* A hot loop is compiled three times and one copy is chosen at load time, by features and not by CPU names, which
 * virtual machines hide. GCC on x86-64 only: elsewhere, and under sanitizers (whose start-up comes after the choice),
 * the plain loop is the only one. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SH_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define SH_CLONES
#endif

#endif
