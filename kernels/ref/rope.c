/* Rotary position embedding (Su et al., arXiv:2104.09864) in Hugging Face's form: element i of the first half of a
 * head is rotated together with element i + R/2, by the position times freq_i = theta^(-2i/R). R is the width of the
 * table: that of a head, or less, and then the head's other elements stay as they are (GPT-NeoX). Llama 3, YaRN and
 * LongRoPE stretch the slow frequencies so that a model can handle longer texts than it was first trained on. */
#include "kernels/ref/ref.h"

#include <math.h>

/* Waves longer than original_len / low_freq are slowed by `factor`, waves shorter than original_len / high_freq are
 * left alone, and between the two the change is gradual. */
static double stretch_by_length(const struct sh_op_attr *attr, double freq)
{
    const double pi = 3.14159265358979323846;
    double turns = attr->rope.original_len * freq / (2 * pi); /* within the original length */

    if (turns < attr->rope.low_freq)
        return freq / attr->rope.factor;
    if (turns > attr->rope.high_freq)
        return freq;
    double smooth = (turns - attr->rope.low_freq) / (attr->rope.high_freq - attr->rope.low_freq);
    return (1 - smooth) * freq / attr->rope.factor + smooth * freq;
}

/* YaRN (Peng et al., arXiv:2309.00071, section 3.2): the same, with limits between elements instead of lengths, which
 * makes the change uniform in the logarithm of the length. */
static double stretch_by_element(const struct sh_op_attr *attr, int64_t i, double freq)
{
    double smooth = ((double)i - attr->rope.ramp_first) / (attr->rope.ramp_last - attr->rope.ramp_first);

    smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
    return (1 - smooth) * freq + smooth * freq / attr->rope.factor;
}

/* factor 0: no stretching. ramp_last > 0 only with YaRN. LongRoPE (Ding et al., arXiv:2402.13753) has a searched
 * number for each element. */
static double stretch(const struct sh_op_call *call, int64_t i, double freq)
{
    const struct sh_op_attr *attr = call->attr;

    if (attr->rope.divisors)
        return freq / call->divisors[i];
    if (attr->rope.factor == 0)
        return freq;
    return attr->rope.ramp_last > 0 ? stretch_by_element(attr, i, freq) : stretch_by_length(attr, freq);
}

/* cos in the first half of a row, sin in the second. Angles are in double: at position 10^6 a float has only its
 * first digits left. */
sh_rc sh_ref_rope_table(const struct sh_op_call *call)
{
    const struct sh_operand *cs = &call->out[0];
    int64_t T = cs->dim[0], R = cs->dim[1];
    double scale = call->attr->rope.scale == 0 ? 1 : call->attr->rope.scale;

    for (int64_t i = 0; i < R / 2; i++) {
        bool still = call->attr->rope.turned && i >= call->attr->rope.turned;
        double freq = still ? 0 : stretch(call, i, pow(call->attr->rope.theta, -2.0 * (double)i / (double)R));
        for (int64_t t = 0; t < T; t++) {
            sh_ref_set(cs, t * R + i, scale * cos((double)t * freq));
            sh_ref_set(cs, t * R + R / 2 + i, scale * sin((double)t * freq));
        }
    }
    return SH_OK;
}

/* Rotate the head vector at element `at` of x into y, which may be the same tensor: both elements are read
 * before either is written. */
static void rotate(const struct sh_op_call *call, int64_t at, int64_t t)
{
    const struct sh_operand *x = &call->in[0], *cs = &call->in[1], *y = &call->out[0];
    int64_t D = call->attr->attn.head_dim, R = cs->dim[1], half = R / 2;

    for (int64_t i = 0; i < half; i++) {
        int64_t one = at + (call->attr->attn.pairs ? 2 * i : i), other = one + (call->attr->attn.pairs ? 1 : half);
        double a = sh_ref_get(x, one), b = sh_ref_get(x, other);
        double c = sh_ref_get(cs, t * R + i), s = sh_ref_get(cs, t * R + half + i);
        if (call->attr->attn.inverse)
            s = -s;
        sh_ref_set(y, one, a * c - b * s);
        sh_ref_set(y, other, b * c + a * s);
    }
    for (int64_t i = R; i < D; i++)
        sh_ref_set(y, at + i, sh_ref_get(x, at + i));
}

/* The gradient of a rotation is the reverse rotation: attr->attn.inverse is the backward. With docs, positions start
 * again in each document. Up to rounding the result is the same, since only differences of positions matter. */
sh_rc sh_ref_rope(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *docs = &call->in[2], *at = &call->in[3], *y = &call->out[0];
    int64_t B = x->dim[0], T = x->dim[1], D = call->attr->attn.head_dim;
    int64_t turned = call->attr->attn.heads + call->attr->attn.kv_heads, row = (turned + call->attr->attn.kv_heads) * D;

    for (int64_t n = 0; n < B * T; n++) {
        int64_t position = n % T - (docs->data ? (int64_t)sh_ref_get(docs, n) : 0);
        for (int64_t h = 0; h < turned; h++)
            rotate(call, n * row + h * D, at->data ? (int64_t)sh_ref_get(at, n) : position);
        for (int64_t i = turned * D; i < row; i++)
            sh_ref_set(y, n * row + i, sh_ref_get(x, n * row + i));
    }
    return SH_OK;
}
