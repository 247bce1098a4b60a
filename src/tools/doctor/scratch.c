/* Checks the folder of scratch files on every node. Training does the same at its start, but only after minutes of
 * waiting for the nodes. */
#include "src/tools/doctor/doctor.h"

#include "src/base/number/size.h"
#include "src/base/string/str.h"
#include "src/tier/tier.h"

/* Checked once per node, since its ranks share the room. */
static sh_rc check_node(const struct sh_doctor *d, int64_t bytes)
{
    const struct sh_config *c = d->cfg;
    sh_rc rc = SH_OK;

    if (sh_doctor_leads(d))
        rc = sh_tier_check(c->offload.nvme_path, sh_size_mul(bytes, d->mesh->node_size), c->offload.allow_network);
    return rc == SH_OK ? rc : sh_fail_prefix(rc, "offload.nvme_path: ");
}

/* Collective. All ranks' plans have the same homes. */
sh_rc sh_doctor_scratch(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    struct sh_doctor_need need = {0};
    char bytes[SH_STR_SHORT];
    bool failed;

    SH_TRY(sh_doctor_plan(d, &need, row, &failed));
    if (failed)
        return SH_OK;
    if (need.file_bytes == 0) {
        sh_doctor_good(row, "not needed: no state has its home in a file");
        return SH_OK;
    }
    SH_TRY(sh_doctor_any_failed(d, check_node(d, need.file_bytes), row, &failed));
    if (failed)
        return SH_OK;
    sh_str_bytes(need.file_bytes, bytes);
    sh_doctor_good(row, "%s has room for %s per rank on every node", d->cfg->offload.nvme_path, bytes);
    return SH_OK;
}
