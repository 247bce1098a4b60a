/* Reports the instruction sets that the kernels use, and the processor for which OpenBLAS has chosen its own: a variable
 * left over in a job's environment can disable the vectors of newer processors, and a node with another processor
 * computes at another speed, and with other bits. */
#include "src/tools/doctor/doctor.h"

#include "kernels/cpu/gemm/gemm.h"
#include "src/base/isa.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NAMES = 400, CORE = 64 };

/* What is used, in words. */
static bool describe(char text[SH_ISA_TEXT + CORE])
{
    const char *core = sh_gemm_cblas_core();
    bool noteworthy = sh_isa_describe(text);
    size_t n = strlen(text);

    if (core)
        snprintf(text + n, SH_ISA_TEXT + CORE - n, "; OpenBLAS for %.*s", CORE - 20, core);
    return noteworthy;
}

/* Collective. Takes the row of the first rank, whose environment is the job's. */
static sh_rc same_as_first(struct sh_doctor_row *row)
{
    SH_MPI(MPI_Bcast(row, sizeof *row, MPI_BYTE, 0, MPI_COMM_WORLD));
    return SH_OK;
}

/* Differing nodes are reported first: they are seldom intended. */
sh_rc sh_doctor_words(const struct sh_doctor *d, const char *what, const char *text, bool noteworthy,
                      struct sh_doctor_row *row)
{
    uint64_t *hashes = sh_calloc((size_t)d->mesh->n_nodes, sizeof *hashes);
    char names[NAMES];
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_of_nodes_u64(d, XXH3_64bits(text, strlen(text)), hashes));
    if (sh_doctor_odd_nodes(d, hashes, NAMES, names))
        sh_doctor_note(row, "%s on %s differ from those of most nodes; %s has %s", what, names, sh_doctor_host(d, 0),
                       text);
    else if (noteworthy)
        sh_doctor_note(row, "%s", text);
    else
        sh_doctor_good(row, "%s", text);
    SH_TRY_OUT(same_as_first(row));
out:
    free(hashes);
    return rc;
}

sh_rc sh_doctor_instructions(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    char text[SH_ISA_TEXT + CORE];
    bool noteworthy = describe(text);

    return sh_doctor_words(d, "kernels", text, noteworthy, row);
}
