/* Shared by the checks: collecting the values of all nodes, and finding the node that stands out. */
#include "src/tools/doctor/doctor.h"

#include "src/base/number/median.h"
#include "src/base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 8 };

/* Sets the state, the class that a bad row ends with, and the text. */
static void set(struct sh_doctor_row *row, enum sh_doctor_state state, sh_rc rc, const char *fmt, va_list args)
{
    row->state = state;
    row->rc = rc;
    vsnprintf(row->text, sizeof row->text, fmt, args);
}

#define SET(state, rc)                  \
    va_list args;                       \
    va_start(args, fmt);                \
    set(row, (state), (rc), fmt, args); \
    va_end(args)

void sh_doctor_good(struct sh_doctor_row *row, const char *fmt, ...)
{
    SET(SH_DOCTOR_GOOD, SH_OK);
}

void sh_doctor_note(struct sh_doctor_row *row, const char *fmt, ...)
{
    SET(SH_DOCTOR_NOTE, SH_OK);
}

/* rc becomes the exit status. */
void sh_doctor_bad(struct sh_doctor_row *row, sh_rc rc, const char *fmt, ...)
{
    SET(SH_DOCTOR_BAD, rc);
}

/* Whether this is the first rank of its node. */
bool sh_doctor_leads(const struct sh_doctor *d)
{
    return d->mesh->node_rank == 0;
}

/* Returns a lent name. */
const char *sh_doctor_host(const struct sh_doctor *d, int node)
{
    return d->place[d->leader[node]].host;
}

/* Collective. Each value is set on one rank and -INFINITY elsewhere; afterwards all ranks have all of them. */
sh_rc sh_doctor_fill(int n, double *values)
{
    SH_MPI(MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
    return SH_OK;
}

/* Collective. out [n_nodes]; `mine` counts only on the first rank of each node. */
sh_rc sh_doctor_of_nodes(const struct sh_doctor *d, double mine, double *out)
{
    for (int i = 0; i < d->mesh->n_nodes; i++)
        out[i] = -INFINITY;
    if (sh_doctor_leads(d))
        out[d->mesh->node] = mine;
    return sh_doctor_fill(d->mesh->n_nodes, out);
}

/* Collective. The same for 64-bit values: one rank of a node sets them, zeros elsewhere. */
sh_rc sh_doctor_of_nodes_u64(const struct sh_doctor *d, uint64_t mine, uint64_t *out)
{
    memset(out, 0, (size_t)d->mesh->n_nodes * sizeof *out);
    if (sh_doctor_leads(d))
        out[d->mesh->node] = mine;
    /* Not MPI_MAX: MPICH 4.0 treats these as signed numbers there. */
    SH_MPI(MPI_Allreduce(MPI_IN_PLACE, out, d->mesh->n_nodes, MPI_UINT64_T, MPI_BOR, MPI_COMM_WORLD));
    return SH_OK;
}

/* Collective. The lowest rank that failed reports, and all ranks get the same row. */
sh_rc sh_doctor_any_failed(const struct sh_doctor *d, sh_rc rc, struct sh_doctor_row *row, bool *failed)
{
    int speaker = rc == SH_OK ? sh_mesh_ranks(&d->mesh->shape) : d->mesh->rank;
    struct sh_doctor_row said = {.state = SH_DOCTOR_BAD, .rc = rc};

    SH_MPI(MPI_Allreduce(MPI_IN_PLACE, &speaker, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    *failed = speaker < sh_mesh_ranks(&d->mesh->shape);
    if (!*failed)
        return SH_OK;
    snprintf(said.text, sizeof said.text, "%s: %s", d->mesh->host, sh_error_text());
    SH_MPI(MPI_Bcast(&said, sizeof said, MPI_BYTE, speaker, MPI_COMM_WORLD));
    *row = said;
    return SH_OK;
}

/* O(n); the whole search is O(n^2) at worst, over nodes and not ranks. */
static int count_equal(int n, const uint64_t *value, uint64_t wanted)
{
    int equal = 0;

    for (int i = 0; i < n; i++)
        equal += value[i] == wanted;
    return equal;
}

/* Returns the value that most nodes have; of equally frequent ones, that of the lowest node. */
static uint64_t most_frequent(int n, const uint64_t *value)
{
    uint64_t best = value[0];
    int most = count_equal(n, value, best);

    /* A value that more than half of the nodes have cannot be beaten, so the search ends there. */
    for (int i = 1; i < n && 2 * most <= n; i++) {
        int equal = count_equal(n, value, value[i]);

        if (equal > most) {
            most = equal;
            best = value[i];
        }
    }
    return best;
}

/* Returns the number of nodes whose value is not `usual`; text names the first NAMED of them. */
int sh_doctor_nodes_but(const struct sh_doctor *d, const uint64_t *value, uint64_t usual, int size, char *text)
{
    int others = 0, used = 0;

    text[0] = '\0';
    for (int i = 0; i < d->mesh->n_nodes; i++) {
        if (value[i] == usual)
            continue;
        if (others++ < NAMED && used < size)
            used += snprintf(text + used, (size_t)(size - used), "%s%s", used ? ", " : "", sh_doctor_host(d, i));
    }
    if (others > NAMED && used < size)
        snprintf(text + used, (size_t)(size - used), " and %d more", others - NAMED);
    return others;
}

/* Compares with the value that most nodes have. */
int sh_doctor_odd_nodes(const struct sh_doctor *d, const uint64_t *value, int size, char *text)
{
    return sh_doctor_nodes_but(d, value, most_frequent(d->mesh->n_nodes, value), size, text);
}

/* Sorts a copy, since `value` stays in the order of nodes. */
static double median(int n, const double *value)
{
    double *sorted = sh_calloc((size_t)n, sizeof *sorted), middle;

    memcpy(sorted, value, (size_t)n * sizeof *sorted);
    middle = sh_median(n, sorted);
    free(sorted);
    return middle;
}

/* Below half of the median is a note, below a quarter is bad. With fewer than three nobody can tell which one is usual.
 * */
struct sh_doctor_slowest sh_doctor_find_slowest(int n, const double *speed)
{
    struct sh_doctor_slowest s = {.median = median(n, speed)};

    for (int i = 1; i < n; i++)
        if (speed[i] < speed[s.index])
            s.index = i;
    s.speed = speed[s.index];
    if (n >= 3 && s.speed < s.median / 2)
        s.state = s.speed < s.median / 4 ? SH_DOCTOR_BAD : SH_DOCTOR_NOTE;
    return s;
}
