/* How rotary positions are stretched beyond the length that a model was first trained with: the rule of the key
 * rope_type, as the attributes of one operation. Source of the rules: modeling_rope_utils.py of Hugging Face's
 * transformers. */
#include "src/model/rope.h"

#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/words.h"

#include <math.h>

int sh_model_rotary_dim(const struct sh_model *m)
{
    if (sh_family_of(m->family)->global_heads)
        return sh_family_global_dim(m);
    return m->rotary_dim ? m->rotary_dim : m->head_dim;
}

int sh_model_rotary_dim_local(const struct sh_model *m)
{
    return sh_family_of(m->family)->global_heads ? m->head_dim : sh_model_rotary_dim(m);
}

/* The element whose wave turns `turns` times within the original length. */
static double element_of(const struct sh_model *m, double turns)
{
    return sh_model_rotary_dim(m) * log(m->rope_original_max_len / (turns * 2 * M_PI)) / (2 * log(m->rope_theta));
}

/* The elements between which YaRN passes from untouched to stretched frequencies. The limits are numbers of turns
 * within the original length. */
static void ramp_of(const struct sh_model *m, struct sh_emit_rope *r)
{
    double first = element_of(m, m->rope_beta_fast), last = element_of(m, m->rope_beta_slow);

    if (m->rope_truncate) {
        first = floor(first);
        last = ceil(last);
    }
    r->ramp_first = fmax(first, 0);
    r->ramp_last = fmin(last, sh_model_rotary_dim(m) - 1);
    if (r->ramp_last <= r->ramp_first) /* a step */
        r->ramp_last = r->ramp_first + 0.001;
}

/* Attention is sharper over more positions: a temperature, as a factor of cos and sin. */
static double yarn_scale(const struct sh_model *m)
{
    return m->rope_attention_factor > 0 ? m->rope_attention_factor : 0.1 * log(m->rope_factor) + 1;
}

/* The square, as queries and keys are multiplied by the number each. */
float sh_model_sharper(const struct sh_model *m)
{
    double by = 0.1 * m->rope_mscale_all_dim * log(m->rope_factor) + 1;

    return m->rope_mscale_all_dim != 0 ? (float)(by * by) : 0;
}

/* The lists are single precision in transformers. */
static void take_list(const struct sh_model *m, int length, struct sh_emit_rope *r)
{
    const char *list = length > m->rope_original_max_len ? m->rope_long_factor : m->rope_short_factor;

    r->divisors = sh_str_numbers(list, r->divisor, SH_ROPE_DIVISORS);
    for (int i = 0; i < r->divisors; i++)
        r->divisor[i] = (double)(float)r->divisor[i];
}

/* The same for both lists. */
static double long_scale(const struct sh_model *m)
{
    return m->rope_attention_factor > 0 ? m->rope_attention_factor
                                        : sqrt(1 + log(m->rope_factor) / log(m->rope_original_max_len));
}

/* factor 0 means that nothing is stretched. */
struct sh_emit_rope sh_model_rope(const struct sh_model *m, int length)
{
    struct sh_emit_rope r = {.theta = m->rope_theta, .factor = m->rope_factor};

    if (sh_family_of(m->family)->global_heads)
        r.turned = m->rotary_dim / 2;
    if (m->rope_factor == 0)
        return r;
    switch (m->rope_type) {
    case SH_ROPE_LINEAR: /* every frequency is a slow one */ r.low_freq = r.high_freq = HUGE_VAL; break;
    case SH_ROPE_LLAMA3:
        r.low_freq = m->rope_low_freq_factor;
        r.high_freq = m->rope_high_freq_factor;
        r.original_len = m->rope_original_max_len;
        break;
    case SH_ROPE_YARN:
        ramp_of(m, &r);
        r.scale = yarn_scale(m);
        break;
    case SH_ROPE_LONG:
        take_list(m, length, &r);
        r.scale = long_scale(m);
        break;
    }
    return r;
}

struct sh_emit_rope sh_model_rope_local(const struct sh_model *m)
{
    return (struct sh_emit_rope){.theta = m->rope_local_base_freq != 0 ? m->rope_local_base_freq : m->rope_theta};
}
