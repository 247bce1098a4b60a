/* Instruction sets that Sherd's own kernels may use on this CPU: those that the processor has and that the user allows.
 *
 * ONEDNN_MAX_CPU_ISA, or DNNL_MAX_CPU_ISA if the first is unset or empty, holds one of oneDNN's words and limits Sherd
 * as it limits oneDNN: with AVX2, kernels use what a processor without AVX-512 has. Case is ignored; an unknown word
 * limits nothing. On AArch64, ASIMD forbids BFMMLA, and the other
 * words forbid nothing. Loops under SH_CLONES are chosen at load time and ignore the limit; configure's --with-clones leaves
 * copies out. */
#ifndef SH_BASE_ISA_H
#define SH_BASE_ISA_H

#include <stdbool.h>

/* Each set of an architecture includes its earlier ones. */
enum sh_isa {
    SH_ISA_F16C,
    SH_ISA_AVX2,
    SH_ISA_AVX512,      /* f, bw, vl and dq */
    SH_ISA_AVX512_BF16, /* AVX512, and its rounding to and products of bf16 */
    SH_ISA_AMX,         /* AVX512_BF16, and tiles of bf16. panel_amx.c asks the system for permission */
    SH_ISA_BFMMLA,      /* of AArch64, where it is the only one: products of quads of bf16 */
    SH_ISAS
};

/* The first call, in any thread, reads the environment and queries the processor; the answer is kept. Local. */
bool sh_isa_has(enum sh_isa isa);

/* "x86-64", "AArch64" or "other". Local. */
const char *sh_isa_architecture(void);

enum { SH_ISA_TEXT = 256 };

/* Describe what the kernels use: "AMX", "ASIMD with BFMMLA", "plain loops", or "AVX2; ONEDNN_MAX_CPU_ISA=AVX2 forbids the
 * processor's AVX-512". Returns whether a variable forbids something or holds an unknown word. Local. */
bool sh_isa_describe(char text[SH_ISA_TEXT]);

#endif
