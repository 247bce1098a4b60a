/* A plug-in whose operation takes the seconds that it is told, and its backward twice as many, so a test knows what stages
 * work. Only for the ELEMS of the test's model: the trials of a plug-in are many, and have other sizes. */
#include <sherd/plugin.h>
#include <time.h>

static void rest(int64_t elems, double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};

    while (elems == ELEMS && seconds > 0 && nanosleep(&t, &t) != 0)
        ;
}

/* h = gate * up */
static int ref(const struct sherd_call *call)
{
    const struct sh_operand *gu = &call->in[0], *h = &call->out[0];
    int64_t F = h->dim[1];

    for (int64_t i = 0; i < h->dim[0] * F; i++)
        sh_operand_set(h, i, sh_operand_get(gu, i / F * 2 * F + i % F) * sh_operand_get(gu, i / F * 2 * F + i % F + F));
    rest(h->dim[0] * F, call->number[0]);
    return 0;
}

static int ref_bwd(const struct sherd_call *call)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    int64_t F = dh->dim[1];

    for (int64_t i = 0; i < dh->dim[0] * F; i++) {
        int64_t gate = i / F * 2 * F + i % F;
        double d = sh_operand_get(dh, i), g = sh_operand_get(gu, gate);

        sh_operand_set(dgu, gate, d * sh_operand_get(gu, gate + F));
        sh_operand_set(dgu, gate + F, d * g);
    }
    rest(dh->dim[0] * F, 2 * call->number[0]);
    return 0;
}

static const struct sherd_op ops[] = {
    {.name = "sleepy",
     .shape = "gu [N,2F] act -> h [N,F] act",
     .flops = "NF",
     .backward = "sleepy_bwd",
     .number = {{"seconds", 0, 0, 10}},
     .ref = ref},
    {.name = "sleepy_bwd", .shape = "dh [N,F] act, gu [N,2F] act -> dgu [N,2F] act", .flops = "2NF", .ref = ref_bwd},
};
const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "sleepy", "1", 2, ops};
