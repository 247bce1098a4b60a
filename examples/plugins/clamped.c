/* SwiGLU with limits, as in gpt-oss: g = min(gate, limit), u = gate of up to both limits, h = (u + 1) g sigmoid(alpha g).
 *
 *     cc -O3 -shared -fPIC $(pkg-config --cflags sherd-plugin) -o clamped.so clamped.c
 *     sherd plugin check clamped.so
 *     sherd train debug --plugin.files=clamped.so --model.ffn_op=clamped_swiglu
 */
#include <math.h>
#include <sherd/plugin.h>

/* `x > most ? most : x` keeps a NaN; fmin() would hide it. */
#define CLAMP(x, least, most) ((x) > (most) ? (most) : (x) < (least) ? (least) : (x))

/* h, and its derivatives by gate and up; T is the type that is computed in. */
#define CLAMPED(T, exp)                                                                     \
    static T forward_##T(T gate, T up, const double *number)                                \
    {                                                                                       \
        T limit = (T)number[0], alpha = (T)number[1], g = gate > limit ? limit : gate;      \
        return (CLAMP(up, -limit, limit) + 1) * g / (1 + exp(-alpha * g));                  \
    }                                                                                       \
    static void backward_##T(T dh, T gate, T up, const double *number, T *dgate, T *dup)    \
    {                                                                                       \
        T limit = (T)number[0], alpha = (T)number[1], g = gate > limit ? limit : gate;      \
        T s = 1 / (1 + exp(-alpha * g)), u = CLAMP(up, -limit, limit);                      \
        *dgate = gate > limit ? 0 * dh : dh * (u + 1) * s * (1 + alpha * g * (1 - s));      \
        *dup = up > limit || up < -limit ? 0 * dh : dh * g * s;                             \
    }
CLAMPED(double, exp)
CLAMPED(float, expf)

/* gu [N,2F]: the gate comes first. One loop for both kernels: ref in double, cpu in float and on all threads. */
#define KERNELS(T, name, THREADS)                                                           \
    static int name(const struct sherd_call *call)                                          \
    {                                                                                       \
        const struct sh_operand *gu = &call->in[0], *h = &call->out[0];                     \
        int64_t N = h->dim[0], F = h->dim[1];                                               \
        THREADS for (int64_t i = 0; i < N * F; i++)                                         \
        {                                                                                   \
            int64_t gate = i / F * 2 * F + i % F, up = gate + F;                            \
            sh_operand_set(h, i, forward_##T((T)sh_operand_get(gu, gate), (T)sh_operand_get(gu, up), call->number)); \
        }                                                                                   \
        return 0;                                                                           \
    }                                                                                       \
    static int name##_bwd(const struct sherd_call *call)                                    \
    {                                                                                       \
        const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0]; \
        int64_t N = dh->dim[0], F = dh->dim[1];                                             \
        THREADS for (int64_t i = 0; i < N * F; i++)                                         \
        {                                                                                   \
            int64_t gate = i / F * 2 * F + i % F, up = gate + F;                            \
            T dgate, dup;                                                                   \
            backward_##T((T)sh_operand_get(dh, i), (T)sh_operand_get(gu, gate), (T)sh_operand_get(gu, up), \
                         call->number, &dgate, &dup);                                       \
            sh_operand_set(dgu, gate, dgate);                                               \
            sh_operand_set(dgu, up, dup);                                                   \
        }                                                                                   \
        return 0;                                                                           \
    }
KERNELS(double, ref, )
KERNELS(float, cpu, _Pragma("omp parallel for"))

static const struct sherd_op ops[] = {
    {.name = "clamped_swiglu", .shape = "gu [N,2F] act -> h [N,F] act", .flops = "9NF", .backward = "clamped_swiglu_bwd",
     .number = {{"limit", 7, 0, 1000}, {"alpha", 1.702, 0, 100}}, .ref = ref, .cpu = cpu},
    {.name = "clamped_swiglu_bwd", .shape = "dh [N,F] act, gu [N,2F] act -> dgu [N,2F] act", .flops = "16NF",
     .ref = ref_bwd, .cpu = cpu_bwd},
};
const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "clamped", "1", 2, ops};
