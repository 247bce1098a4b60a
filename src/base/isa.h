/* Instruction sets that Sherd's own kernels may use on this CPU: those that the processor has and the user allows.
 *
 * ONEDNN_MAX_CPU_ISA, or DNNL_MAX_CPU_ISA where the first is unset or empty, holds one of oneDNN's words and limits Sherd
 * as it limits oneDNN: AVX2 leaves kernels what a processor without AVX-512 has. Letters of either case; a word that is
 * not known limits nothing. Loops under SH_CLONES are chosen at load time and know of no limit: configure's
 * --with-clones leaves copies out. */
#ifndef SH_BASE_ISA_H
#define SH_BASE_ISA_H

#include <stdbool.h>

/* Each of the later ones includes the earlier. */
enum sh_isa {
    SH_ISA_F16C,
    SH_ISA_AVX2,
    SH_ISA_AVX512,      /* f, bw, vl and dq */
    SH_ISA_AVX512_BF16, /* AVX512, and its rounding to and products of bf16 */
    SH_ISA_AMX,         /* AVX512_BF16, and tiles of bf16. The system's permission is asked for by panel_amx.c */
    SH_ISAS
};

/* The environment is read and the processor is asked at the first call, of any thread; the answer stays. Local. */
bool sh_isa_has(enum sh_isa isa);

enum { SH_ISA_TEXT = 256 };

/* What the kernels use, in words: "AVX2; ONEDNN_MAX_CPU_ISA=AVX2 forbids the processor's AVX-512". Returns whether a
 * variable forbids something, or holds a word that is not known. Local. */
bool sh_isa_describe(char text[SH_ISA_TEXT]);

#endif
