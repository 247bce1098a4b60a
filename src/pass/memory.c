#include "src/base/mem.h"
#include "src/pass/lifetime.h"
#include "src/pass/pass.h"

#include <stdlib.h>
#include <string.h>

/* At one operation, by kind of memory. */
static void live_at(const struct sh_program *p, const struct sh_life *life, int op, int64_t bytes[SH_MEM_KINDS])
{
    memset(bytes, 0, SH_MEM_KINDS * sizeof *bytes);
    for (int t = 0; t < p->n_tensors; t++)
        if (life[t].first != SH_NONE && life[t].first <= op && op <= life[t].last)
            bytes[p->tensors[t].mem] += sh_lifetime_bytes(&p->tensors[t]);
}

/* The operation of a section at which most is alive: running sum over starts and ends. */
static int busiest(const struct sh_program *p, const struct sh_section *s, const struct sh_life *life, int64_t *peak)
{
    int64_t *change = sh_calloc((size_t)s->n_ops + 2, sizeof *change), alive = 0;
    int at = 0;

    for (int t = 0; t < p->n_tensors; t++)
        if (life[t].first != SH_NONE) {
            change[life[t].first] += sh_lifetime_bytes(&p->tensors[t]);
            change[life[t].last + 1] -= sh_lifetime_bytes(&p->tensors[t]);
        }
    *peak = 0;
    for (int i = 0; i < s->n_ops; i++) {
        alive += change[i];
        if (alive > *peak) {
            *peak = alive;
            at = i;
        }
    }
    free(change);
    return at;
}

/* What works in place takes no room of its own while its input dies. */
static void without_inplace(const struct sh_program *p, const struct sh_section *s, struct sh_life *life)
{
    for (int i = 0; i < s->n_ops; i++) {
        int in, out;

        if (sh_lifetime_inplace(p, s, life, i, &in, &out))
            life[out].first++;
    }
}

/* What is alive at the peak of the section that needs most, and what is persistent: the rows of `sherd plan`. */
void sh_pass_memory(const struct sh_program *p, int64_t bytes[SH_MEM_KINDS])
{
    struct sh_life *life = sh_calloc((size_t)p->n_tensors + 1, sizeof *life);
    int64_t most = -1, peak;

    memset(bytes, 0, SH_MEM_KINDS * sizeof *bytes);
    for (int i = 0; i < p->n_sections; i++) {
        int at;

        sh_lifetime_of_section(p, &p->sections[i], life);
        without_inplace(p, &p->sections[i], life);
        at = busiest(p, &p->sections[i], life, &peak);
        if (p->sections[i].peak_bytes > most) {
            most = p->sections[i].peak_bytes;
            live_at(p, life, at, bytes);
        }
    }
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].persistent && p->tensors[t].base == SH_NONE && p->tensors[t].tier == 0)
            bytes[p->tensors[t].mem] += sh_lifetime_share(p, &p->tensors[t]);
    free(life);
}
