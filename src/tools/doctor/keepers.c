/* Whether keepers of near checkpoints are possible here: their socket, their memory and its limits, a step of Slurm beside
 * the one that computes, and the way from their nodes to the watch. If none are asked for, what is missing is a note. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/near/keep.h"
#include "src/near/pulse.h"
#include "src/near/slot.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WAY_SECONDS = 10 }; /* the last try takes 5 s more; srun starts its step meanwhile */

/* ---- on a node ---- */

/* Slots of this node's ranks, and copies of those of another node's. All ranks get those of all nodes. Collective. */
static sh_rc add_up(const struct sh_doctor *d, int64_t slot, long long *bytes)
{
    int n = d->mesh->n_nodes,
        far = n > 1 && d->cfg->checkpoint.near_copies > 1 ? sh_near_distance(d->cfg->checkpoint.near_distance, n) : 0;
    long long *own = sh_calloc((size_t)n, sizeof *own);
    sh_rc rc;

    own[d->mesh->node] = SH_NEAR_SLOTS * slot;
    rc = sh_mesh_sum_i64(own, n);
    for (int i = 0; i < n; i++)
        bytes[i] = own[i] + (far ? own[(i + n - far) % n] : 0);
    free(own);
    return rc;
}

/* The ranks' own memory comes later than the keeper's, and must fit beside it. reserved: by a keeper that runs already. */
static sh_rc check_memory(const struct sh_doctor *d, int64_t arena_bytes, int64_t bytes, int64_t reserved)
{
    int64_t given = d->cfg->checkpoint.near_limit_bytes, have = sh_device_node_free() + reserved;
    int64_t limit = given ? given : have / 2, ranks = d->device ? 0 : arena_bytes * d->mesh->node_size;
    char need[SH_STR_SHORT], most[SH_STR_SHORT], free_here[SH_STR_SHORT], theirs[SH_STR_SHORT];

    sh_str_bytes(bytes, need);
    sh_str_bytes(have, free_here);
    if (bytes > limit)
        return sh_fail(
            SH_E_MEMORY, "the slots of its ranks take %s, but a keeper may hold %s (%s), of %s that are free", need,
            sh_str_bytes(limit, most),
            given ? "checkpoint.near_limit_bytes" : "half of what is free; checkpoint.near_limit_bytes", free_here);
    if (bytes > have - ranks)
        return sh_fail(SH_E_MEMORY, "the slots of its ranks take %s and the ranks %s, but %s are free", need,
                       sh_str_bytes(ranks, theirs), free_here);
    return SH_OK;
}

/* Two connections and up to four parts a rank; a file without a name is a file to RLIMIT_FSIZE, too. */
static sh_rc check_limits(const struct sh_doctor *d, int64_t slot)
{
    rlim_t files = 32 + (2 + 2 * SH_NEAR_SLOTS) * (rlim_t)d->mesh->node_size;
    struct rlimit most, size;
    char need[SH_STR_SHORT], has[SH_STR_SHORT], ranks[SH_STR_SHORT];

    getrlimit(RLIMIT_NOFILE, &most);
    getrlimit(RLIMIT_FSIZE, &size);
    if (size.rlim_cur != RLIM_INFINITY && size.rlim_cur < (rlim_t)slot)
        return sh_fail(SH_E_MEMORY, "a slot takes %s, but RLIMIT_FSIZE (ulimit -f) permits %s",
                       sh_str_bytes(slot, need), sh_str_bytes((int64_t)size.rlim_cur, has));
    if (most.rlim_cur < files)
        return sh_fail(SH_E_MEMORY, "a keeper of %s opens up to %llu files, but RLIMIT_NOFILE (ulimit -n) permits %llu",
                       sh_str_plural(d->mesh->node_size, "rank", ranks), (unsigned long long)files,
                       (unsigned long long)most.rlim_cur);
    return SH_OK;
}

/* Ranks in containers with networks of their own would not find the keeper. Collective. */
static sh_rc check_one_network(const struct sh_doctor *d, bool *one)
{
    struct stat st = {0};
    int alike;

    *one = stat("/proc/self/ns/net", &st) != 0;
    SH_TRY(sh_mesh_alike_on_node((int64_t)st.st_ino, &alike));
    *one = *one || alike == d->mesh->node_size;
    return SH_OK;
}

/* ---- between nodes ---- */

/* Containers may have neither Slurm's programs nor its configuration; the job's script, which starts keepers, has both. */
static bool slurm_answers(void)
{
    return system("timeout -k 1 5 scontrol show job \"$SLURM_JOB_ID\" </dev/null >/dev/null 2>&1") == 0;
}

/* A step is started as the script does, while the step of the doctor has the node: only `--overlap` lets a second one in.
 * *srun NULL: this cannot be known from here. A node that needs more than 10 s for it is lost to the script. */
static sh_rc begin_overlap(FILE **srun)
{
    static const char command[] =
        "timeout -k 1 10 srun --overlap --no-kill --wait=0 --mem=0 --mpi=none --cpu-bind=none --quiet "
        "${SLURMD_NODENAME:+--nodelist=\"$SLURMD_NODENAME\"} --nodes=1 --ntasks=1 --ntasks-per-node=1 true </dev/null 2>&1";

    if (!slurm_answers())
        return SH_OK;
    *srun = popen(command, "r");
    return *srun ? SH_OK : sh_fail(SH_E_COMM, "srun cannot be started here");
}

static sh_rc end_overlap(FILE *srun, bool *untried)
{
    char said[SH_STR_SHORT * 4] = "", rest[256];
    int status;

    *untried = !srun;
    if (!srun)
        return SH_OK;
    if (!fgets(said, sizeof said, srun))
        said[0] = '\0';
    while (fgets(rest, sizeof rest, srun))
        ;
    status = pclose(srun);
    said[strcspn(said, "\n")] = '\0';
    *untried = WIFEXITED(status) && WEXITSTATUS(status) == 127;
    if (status == 0 || *untried)
        return SH_OK;
    return sh_fail(SH_E_COMM, "srun --overlap starts no step beside a running one, as a keeper needs: %s",
                   WIFEXITED(status) && (WEXITSTATUS(status) == 124 || WEXITSTATUS(status) == 137)
                       ? "it has waited for 10 s"
                   : said[0] ? said
                             : "it says nothing");
}

/* Whether each node reaches the first one, as keepers reach the watch. Collective. */
static sh_rc check_way(const struct sh_doctor *d, struct sh_doctor_row *row, bool *failed)
{
    char address[SH_STR_SHORT * 8] = "";
    struct sh_pulse_answer *answer = NULL;
    sh_rc rc = d->mesh->rank == 0 ? sh_pulse_answer_begin(address, sizeof address, &answer) : SH_OK;

    SH_TRY_OUT(sh_mesh_bcast(address, sizeof address, 0));
    if (address[0] && sh_doctor_leads(d) && d->mesh->node > 0)
        rc = sh_pulse_try(address, WAY_SECONDS);
    rc = sh_doctor_any_failed(d, rc, row, failed);
out:
    sh_pulse_answer_end(answer);
    return rc;
}

/* A node that has a keeper has shown that a step starts. Collective. */
static sh_rc check_step_and_way(const struct sh_doctor *d, bool *running, bool *untried, struct sh_doctor_row *row,
                                bool *failed)
{
    long long missing = !*running;
    FILE *srun = NULL;
    bool tries;
    sh_rc rc = SH_OK, way;

    SH_TRY(sh_mesh_sum_i64(&missing, 1));
    *running = !missing;
    *untried = false;
    tries = d->mesh->rank == 0 && missing && d->cfg->checkpoint.near_interval && getenv("SLURM_JOB_ID");
    if (tries)
        rc = begin_overlap(&srun);
    way = check_way(d, row, failed);
    if (tries && rc == SH_OK)
        rc = end_overlap(srun, untried);
    SH_TRY(way);
    if (!*failed)
        SH_TRY(sh_doctor_any_failed(d, rc, row, failed));
    return sh_mesh_bcast(untried, sizeof *untried, 0);
}

/* ---- all ---- */

/* What this rank can say of its node, and whether a keeper is there; bytes [n_nodes]. */
static sh_rc check_node(const struct sh_doctor *d, const struct sh_doctor_need *need, const long long *bytes, bool one,
                        bool *running)
{
    int64_t reserved;

    *running = !sh_doctor_leads(d);
    if (!one)
        return sh_fail(
            SH_E_USAGE,
            "its ranks have networks of their own, and so would reach no keeper: give containers that of the host");
    if (!sh_doctor_leads(d))
        return SH_OK;
    SH_TRY(sh_keep_try(d->cfg->job.dump_folder, running, &reserved));
    SH_TRY(check_limits(d, need->slot_bytes));
    return check_memory(d, need->arena_bytes, bytes[d->mesh->node], reserved);
}

static void describe(const struct sh_doctor *d, const long long *bytes, bool running, bool untried,
                     struct sh_doctor_row *row)
{
    const char *why = sh_config_no_near(d->cfg), *step = "";
    char most[SH_STR_SHORT];
    long long all = 0;

    for (int i = 0; i < d->mesh->n_nodes; i++)
        all = bytes[i] > all ? bytes[i] : all;
    sh_str_bytes(all, most);
    if (untried)
        step =
            "; Slurm does not answer here, so whether srun --overlap starts a step beside a running one was not tried";
    else if (!running && getenv("SLURM_JOB_ID"))
        step = "; srun --overlap starts a step beside a running one";
    if (why)
        sh_doctor_note(row, "none are asked for (checkpoint.near_interval=0), and none are possible: %s", why);
    else if (!d->cfg->checkpoint.near_interval)
        sh_doctor_good(row, "possible, with %s of memory on a node (checkpoint.near_interval=0: none)", most);
    else
        sh_doctor_good(row, "%s, with %s of memory on a node%s", running ? "one is here" : "possible", most, step);
    if (untried)
        row->state = SH_DOCTOR_NOTE;
}

/* Collective. */
sh_rc sh_doctor_keepers(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    long long *bytes = sh_calloc((size_t)d->mesh->n_nodes, sizeof *bytes);
    struct sh_doctor_need need = {0};
    bool failed, one, running, untried = false;
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_plan(d, &need, row, &failed));
    if (failed)
        goto out;
    SH_TRY_OUT(add_up(d, need.slot_bytes, bytes));
    SH_TRY_OUT(check_one_network(d, &one));
    SH_TRY_OUT(sh_doctor_any_failed(d, check_node(d, &need, bytes, one, &running), row, &failed));
    if (!failed)
        SH_TRY_OUT(check_step_and_way(d, &running, &untried, row, &failed));
    if (!failed)
        describe(d, bytes, running, untried, row);
    else if (!d->cfg->checkpoint.near_interval)
        row->state = SH_DOCTOR_NOTE;
out:
    free(bytes);
    return rc;
}
