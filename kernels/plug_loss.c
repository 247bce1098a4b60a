#include "kernels/plug_loss.h"

#include "kernels/plug.h"

sh_rc sh_plug_target_loss(const struct sh_op_call *call)
{
    const struct sherd_loss *loss = sh_plug_loss(call->kind);
    const float *logprob = call->in[0].data;
    const int32_t *targets = call->in[1].data;
    float *weight = call->out[0].data;
    double *out = call->out[1].data, sum = 0;

    for (int64_t n = 0; n < sh_operand_elems(&call->in[1]); n++) {
        double slope = 0;

        if (targets[n] >= 0)
            sum += loss->target((double)logprob[n], call->attr->plug.number, &slope);
        weight[n] = (float)-slope;
    }
    *out = sh_op_adds(call, 1) ? *out + sum : sum;
    return SH_OK;
}

static struct sherd_answer answer_of(struct sh_pair_answer a)
{
    return (struct sherd_answer){.logp = a.l, .reference = a.l - a.d, .targets = a.n};
}

struct sh_pair_slope sh_plug_pair_slope(const struct sh_op_call *call, struct sh_pair_answer chosen,
                                        struct sh_pair_answer rejected)
{
    const struct sherd_loss *loss = sh_plug_loss(call->kind);
    struct sherd_answer c = answer_of(chosen), j = answer_of(rejected);
    double slope[2] = {0, 0}, value;

    if (!loss)
        return sh_pair_slope_of(&call->attr->pair, chosen, rejected);
    value = loss->pair(&c, &j, call->attr->plug.number, slope);
    return (struct sh_pair_slope){.loss = value, .chosen = -slope[0], .rejected = -slope[1]};
}

double sh_plug_pair_reward(const struct sh_op_call *call, struct sh_pair_answer a)
{
    return sh_plug_loss(call->kind) ? call->attr->plug.reward * a.d : sh_pair_reward(&call->attr->pair, a);
}
