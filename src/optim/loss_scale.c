/* The loss scale of float16: halved if gradients overflow, doubled after a window of steps without overflow. It is a
 * power of two, so that neither scaling nor the later division rounds. */
#include "src/optim/optim.h"

#include <math.h>
#include <stdio.h>

/* The first overflow after a doubling may be an outlier of the data; the second halves the scale, and so do all after
 * it. The number is DeepSpeed's and Megatron-LM's. */
enum { HYSTERESIS = 2 };

void sh_loss_scale_begin(struct sh_loss_scale *s)
{
    s->scale = s->init;
    s->good = 0;
    s->hysteresis = HYSTERESIS;
}

/* A loss that is not finite is not an overflow of gradients: lowering the scale would not help, and the guard of the
 * run judges it. */
bool sh_loss_scale_overflows(const struct sh_loss_scale *s, double loss, double norm)
{
    return s->window && isfinite(loss) && !isfinite(norm);
}

/* A scale below 1 would make gradients smaller than they are: float16 has no room for this model then. */
sh_rc sh_loss_scale_lower(struct sh_loss_scale *s, int64_t step)
{
    s->good = 0;
    if (s->hysteresis > 1) {
        s->hysteresis--;
        return SH_OK;
    }
    if (s->scale <= 1)
        return sh_fail(SH_E_NUMERIC,
                       "step %lld: gradients overflow float16 although the loss scale is down to 1; give "
                       "training.mixed_precision_param=bfloat16, or a lower optimizer.lr",
                       (long long)step);
    s->scale /= 2;
    return SH_OK;
}

/* The window starts again after each doubling, and the hysteresis is full again. */
void sh_loss_scale_good(struct sh_loss_scale *s)
{
    if (!s->window || ++s->good < s->window)
        return;
    s->good = 0;
    s->hysteresis = HYSTERESIS;
    s->scale = s->scale < SH_LOSS_SCALE_MOST ? 2 * s->scale : s->scale;
}

/* %a is exact, so a run that continues has the same bits as one that was not interrupted. */
void sh_loss_scale_save(const struct sh_loss_scale *s, char *text, int size)
{
    snprintf(text, (size_t)size, "%a %d %d", s->scale, s->good, s->hysteresis);
}

/* frexp() gives 0.5 only for powers of two. A window that is shorter now than in the file must still let the scale
 * double. */
sh_rc sh_loss_scale_load(struct sh_loss_scale *s, const char *text)
{
    double scale;
    int good, hysteresis, end = 0, power;
    bool read = sscanf(text, "%la %d %d%n", &scale, &good, &hysteresis, &end) == 3 && text[end] == '\0';

    if (!read || !(scale >= 1 && scale <= SH_LOSS_SCALE_MOST) || frexp(scale, &power) != 0.5 || good < 0 ||
        hysteresis < 1 || hysteresis > HYSTERESIS)
        return sh_fail(SH_E_DATA, "the loss scale in the checkpoint is not readable: \"%.60s\"", text);
    s->scale = scale;
    s->good = good < s->window ? good : s->window - 1;
    s->hysteresis = hysteresis;
    return SH_OK;
}
