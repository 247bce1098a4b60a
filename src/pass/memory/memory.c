#include "src/base/mem.h"
#include "src/pass/memory/lifetime.h"
#include "src/pass/pass.h"

#include <stdlib.h>
#include <string.h>

/* Live bytes at one operation, by kind of memory. */
static void live_at(const struct sh_program *p, const struct sh_life *life, int op, int64_t bytes[SH_MEM_KINDS])
{
    memset(bytes, 0, SH_MEM_KINDS * sizeof *bytes);
    for (int t = 0; t < p->n_tensors; t++)
        if (life[t].first != SH_NONE && life[t].first <= op && op <= life[t].last)
            bytes[p->tensors[t].mem] += sh_lifetime_bytes(&p->tensors[t]);
}

/* Transient bytes at each operation of a section: a running sum over starts and ends.
 *   alive  out  [s->n_ops] */
static void sum_alive(const struct sh_program *p, const struct sh_section *s, const struct sh_life *life,
                      int64_t *alive)
{
    int64_t *change = sh_calloc((size_t)s->n_ops + 2, sizeof *change), sum = 0;

    for (int t = 0; t < p->n_tensors; t++)
        if (life[t].first != SH_NONE) {
            change[life[t].first] += sh_lifetime_bytes(&p->tensors[t]);
            change[life[t].last + 1] -= sh_lifetime_bytes(&p->tensors[t]);
        }
    for (int i = 0; i < s->n_ops; i++)
        alive[i] = sum += change[i];
    free(change);
}

/* The output of an in-place operation takes no room of its own while its input dies. */
static void without_inplace(const struct sh_program *p, const struct sh_section *s, struct sh_life *life)
{
    for (int i = 0; i < s->n_ops; i++) {
        int in, out;

        if (sh_lifetime_inplace(p, s, life, i, &in, &out))
            life[out].first++;
    }
}

static void find_life(const struct sh_program *p, const struct sh_section *s, struct sh_life *life)
{
    sh_lifetime_of_section(p, s, life);
    without_inplace(p, s, life);
}

/* The first operation of a section at which most is alive. */
static int busiest(const struct sh_program *p, const struct sh_section *s, const struct sh_life *life)
{
    int64_t *alive = sh_calloc((size_t)s->n_ops + 1, sizeof *alive);
    int at = 0;

    sum_alive(p, s, life, alive);
    for (int i = 1; i < s->n_ops; i++)
        if (alive[i] > alive[at])
            at = i;
    free(alive);
    return at;
}

/* The section that needs most. */
static const struct sh_section *largest(const struct sh_program *p)
{
    const struct sh_section *most = NULL;

    for (int i = 0; i < p->n_sections; i++)
        if (!most || p->sections[i].peak_bytes > most->peak_bytes)
            most = &p->sections[i];
    return most;
}

static void add_persistent(const struct sh_program *p, int64_t bytes[SH_MEM_KINDS])
{
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].persistent && p->tensors[t].base == SH_NONE && p->tensors[t].tier == 0)
            bytes[p->tensors[t].mem] += sh_lifetime_share(p, &p->tensors[t]);
}

void sh_pass_pinned(const struct sh_program *p, int tier, int64_t bytes[SH_MEM_KINDS])
{
    memset(bytes, 0, SH_MEM_KINDS * sizeof *bytes);
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].persistent && p->tensors[t].base == SH_NONE && p->tensors[t].tier == tier)
            bytes[p->tensors[t].mem] += sh_lifetime_bytes(&p->tensors[t]);
}

/* Memory that is alive at the peak of the section that needs most, and persistent memory: the rows of `sherd plan`. */
struct sh_pass_peak sh_pass_memory(const struct sh_program *p, int64_t bytes[SH_MEM_KINDS])
{
    struct sh_life *life = sh_calloc((size_t)p->n_tensors + 1, sizeof *life);
    struct sh_pass_peak peak = {.section = largest(p)};

    memset(bytes, 0, SH_MEM_KINDS * sizeof *bytes);
    if (peak.section) {
        find_life(p, peak.section, life);
        peak.op = peak.section->first_op + busiest(p, peak.section, life);
        live_at(p, life, peak.op - peak.section->first_op, bytes);
    }
    add_persistent(p, bytes);
    free(life);
    return peak;
}

void sh_pass_in_use(const struct sh_program *p, const struct sh_section *s, int64_t *bytes)
{
    struct sh_life *life = sh_calloc((size_t)p->n_tensors + 1, sizeof *life);
    int64_t kept[SH_MEM_KINDS] = {0}, sum = 0;

    add_persistent(p, kept);
    for (int i = 0; i < SH_MEM_KINDS; i++)
        sum += kept[i];
    find_life(p, s, life);
    sum_alive(p, s, life, bytes);
    for (int i = 0; i < s->n_ops; i++)
        bytes[i] += sum;
    free(life);
}
