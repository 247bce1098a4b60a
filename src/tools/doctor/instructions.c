/* Reports the instruction sets that the kernels use: a variable left over in a job's environment can disable the
 * vectors of newer processors, and a node with another processor computes at another speed. */
#include "src/tools/doctor/doctor.h"

#include "src/base/isa.h"
#include "src/base/mem.h"

#include <stdlib.h>

enum { NAMES = 400 };

/* One bit for each set. */
static uint64_t sets_of_self(void)
{
    uint64_t sets = 0;

    for (int isa = 0; isa < SH_ISAS; isa++)
        sets |= (uint64_t)sh_isa_has((enum sh_isa)isa) << isa;
    return sets;
}

/* Collective. Takes the row of the first rank, whose environment is the job's. */
static sh_rc same_as_first(struct sh_doctor_row *row)
{
    SH_MPI(MPI_Bcast(row, sizeof *row, MPI_BYTE, 0, MPI_COMM_WORLD));
    return SH_OK;
}

/* Collective. Differing nodes are reported first: they are seldom intended. */
sh_rc sh_doctor_instructions(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    uint64_t *sets = sh_calloc((size_t)d->mesh->n_nodes, sizeof *sets);
    char text[SH_ISA_TEXT], names[NAMES];
    bool noteworthy = sh_isa_describe(text);
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_of_nodes_u64(d, sets_of_self(), sets));
    if (sh_doctor_odd_nodes(d, sets, NAMES, names))
        sh_doctor_note(row, "sets on %s differ from most nodes; %s has %s", names, sh_doctor_host(d, 0), text);
    else if (noteworthy)
        sh_doctor_note(row, "%s", text);
    else
        sh_doctor_good(row, "%s", text);
    SH_TRY_OUT(same_as_first(row));
out:
    free(sets);
    return rc;
}
