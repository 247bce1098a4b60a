/* What else runs on the nodes. Threads of a rank wait for each other hundreds of times in a step, so a program that
 * takes a core from one of them slows down all of them. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <unistd.h>

int sh_doctor_find_busiest(int n, const double *load, const double *cores)
{
    int busiest = 0;

    for (int i = 1; i < n; i++)
        busiest = load[i] / cores[i] > load[busiest] / cores[busiest] ? i : busiest;
    return busiest;
}

/* The job that is about to train is not in the load yet, apart from this check. */
enum sh_doctor_state sh_doctor_judge_load(double load, double cores)
{
    return load > cores / 2 ? SH_DOCTOR_NOTE : SH_DOCTOR_GOOD;
}

/* The load is that of all users and containers of a node, so it is compared with all its cores. */
sh_rc sh_doctor_load(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    int nodes = d->mesh->n_nodes, at;
    double *load = sh_calloc((size_t)nodes, sizeof *load), *cores = sh_calloc((size_t)nodes, sizeof *cores);
    double last_minute = 0;
    sh_rc rc;

    if (getloadavg(&last_minute, 1) != 1)
        last_minute = 0;
    SH_TRY_OUT(sh_doctor_of_nodes(d, last_minute, load));
    SH_TRY_OUT(sh_doctor_of_nodes(d, (double)sysconf(_SC_NPROCESSORS_ONLN), cores));
    at = sh_doctor_find_busiest(nodes, load, cores);
    if (sh_doctor_judge_load(load[at], cores[at]) == SH_DOCTOR_GOOD)
        sh_doctor_good(row, "at most %.3g on %g core%s", load[at], cores[at], cores[at] > 1 ? "s" : "");
    else
        sh_doctor_note(row,
                       "%.3g on %g core%s of %s in the last minute: other programs take turns with the ranks, so steps "
                       "will be slow and uneven; end them, or use fewer training.threads",
                       load[at], cores[at], cores[at] > 1 ? "s" : "", sh_doctor_host(d, at));
out:
    free(load);
    free(cores);
    return rc;
}
