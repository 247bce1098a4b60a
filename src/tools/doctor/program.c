/* Checks that every node runs the same program: an old copy on one node gives other numbers, or another order of
 * collectives. */
#include "src/tools/doctor/doctor.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>

enum { MAX_BYTES = 1 << 30, NAMES = 400 };

/* Hashes the running program's file, whatever its path is now. One rank per node. */
static sh_rc hash_of_self(uint64_t *hash)
{
    char *data;
    size_t bytes;

    /* The link leads to the file that was started, even if another file has its name by now. */
    SH_TRY(sh_read_file("/proc/self/exe", MAX_BYTES, &data, &bytes));
    *hash = sh_hash64(data, bytes);
    free(data);
    return SH_OK;
}

/* Collective. Compares bytes, not versions: two builds of one version may differ. */
sh_rc sh_doctor_program(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    uint64_t *hash = sh_calloc((size_t)d->mesh->n_nodes, sizeof *hash), mine = 0;
    char names[NAMES];
    bool failed;
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_any_failed(d, sh_doctor_leads(d) ? hash_of_self(&mine) : SH_OK, row, &failed));
    if (failed)
        goto out;
    SH_TRY_OUT(sh_doctor_of_nodes_u64(d, mine, hash));
    if (sh_doctor_odd_nodes(d, hash, NAMES, names))
        sh_doctor_bad(row, SH_E_USAGE, "the build of sherd on %s differs from that on the other nodes", names);
    else
        sh_doctor_good(row, "the same on all nodes (%016llx)", (unsigned long long)hash[0]);
out:
    free(hash);
    return rc;
}
