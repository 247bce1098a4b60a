/* How an update stores a state: rounded once to f32, then stochastically to bf16 if it is kept in bf16. */
#include "kernels/ref/ref.h"
#include "kernels/states.h"

void sh_ref_state_set(const struct sh_op_call *call, const struct sh_decay_run *run, int k, int64_t i, double value)
{
    const struct sh_operand *state = &call->out[1 + k];
    struct sh_random random = sh_random_of(call, run);
    uint32_t block[4];
    int place = sh_random_place(&random, i);

    if (state->dtype != SH_BF16) {
        sh_ref_set(state, i, value);
        return;
    }
    sh_random_block(&random, i, block);
    ((sh_bf16 *)state->data)[i] = sh_random_round((float)value, sh_random_word(block[place / 2], place), k);
}
