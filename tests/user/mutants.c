/* Plug-ins that are wrong, each in one way: the environment variable MUTANT is its number, 0 or none is right. It is read
 * when the library is loaded, so that one library has all mutants. The operation is relu2, y = relu(x)^2 times a number,
 * in one loop for ref and one for cpu. test_plugin.py has what each is to be named for. */
#include <fenv.h>
#include <math.h>
#include <omp.h>
#include <sherd/plugin.h>
#include <stdlib.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

static int mutant;
#define IS(n) (mutant == (n))

static double square(double x, const double *number)
{
    double by = number[0];

    return x > 0 ? by * x * x : 0 * x;
}

static double slope(double dy, double x, const double *number)
{
    double by = IS(1) ? 1 : IS(2) ? -number[0] : number[0], two = IS(3) || IS(68) ? 1 : IS(4) ? 2.001 : 2;

    if (IS(5))
        return two * by * x * dy;
    if (IS(6))
        return x > 0 ? two * by * x : 0;
    if (IS(7))
        return x > 0 ? dy * by : 0;
    if (IS(8))
        return x > 5 ? 0 * dy : x > 0 ? two * by * x * dy : 0 * dy;
    return x > 0 ? two * by * x * dy : 0 * dy;
}

/* What a call does besides its loop. */
static void disturb(const struct sherd_call *c)
{
    const struct sh_operand *x = &c->in[0], *y = &c->out[0];
    static void *volatile kept;
    static int calls;

    if (IS(41))
        kept = malloc(100);
    if (IS(42))
        omp_set_num_threads(2);
    if (IS(43))
        fesetround(FE_UPWARD);
#ifdef __SSE__
    if (IS(44))
        _mm_setcsr(_mm_getcsr() | 0x8040);
#else
    if (IS(44))
        fesetround(FE_DOWNWARD);
#endif
    if (IS(68))
        exit(0);
    if (IS(45))
        ((char *)c->work)[c->work_bytes] = 1;
    if (IS(46))
        *(volatile int *)(uintptr_t)8 = 1;
    if (IS(47))
        for (volatile int64_t i = 0; i != 2 * sh_operand_elems(x) + 1; i += 2)
            ;
    if (IS(48))
        sh_operand_set(y, sh_operand_elems(y) + 300, 0);
    if (IS(49) && ++calls == 100000)
        sh_operand_set(y, 0, 0);
}

static double by_of(const struct sherd_call *c, int cpu)
{
    static double first;

    if (IS(50) && cpu)
        return 0.7;
    if (IS(51) && !first)
        first = c->number[0];
    return IS(51) ? first : IS(52) && cpu ? c->number[0] + 1e-3 * omp_get_max_threads() : c->number[0];
}

/* Errors of both kernels, or of cpu alone. */
static int forward(const struct sherd_call *c, int cpu)
{
    const struct sh_operand *x = &c->in[0], *y = &c->out[0];
    int64_t n = sh_operand_elems(x), begin = IS(9) && cpu,
            end = IS(10) && cpu                ? n - 1
                  : IS(11) && cpu              ? n + 1
                  : IS(67) && cpu && n > 20000 ? 20000
                                               : n;
    static int calls;
    double sum = 0, by = by_of(c, cpu);

    if (cpu)
        disturb(c);
#pragma omp parallel for if (IS(53) && cpu)
    for (int64_t i = 0; i < (IS(53) && cpu ? n : 0); i++)
        sh_operand_set(y, i, 1e-3 * omp_get_thread_num());
    for (int64_t i = begin; i < end; i++) {
        double v = sh_operand_get(x, i);

        if (IS(12) && cpu)
            v = fmax(v, 0);
        if (IS(13) && cpu)
            v += 0 * sh_operand_get(x, i + 1);
        if (IS(14) && cpu && i + 1 < n && sh_operand_get(x, i + 1) > 3)
            v = 1;
        if (IS(15) && cpu)
            v += 1e-3 * calls;
        if (IS(16) && cpu && ((uintptr_t)x->data & 63))
            v *= 1 + 1e-3;
        if (IS(17) && cpu)
            v += 0.01 * (double)x->dim[0];
        if (IS(18) && cpu)
            v = v > 20 ? 20 : v;
        if (IS(19) && cpu && x->dtype == SH_BF16)
            v *= 1.05;
        if (IS(20) && cpu && x->dtype == SH_F16)
            v = (double)((const float *)x->data)[i / 2];
        if (IS(21) && cpu)
            v = fabs(v);
        if (IS(22) && cpu)
            sum += v;
        if (IS(23) && cpu && v != v)
            v = 0;
        if (IS(24) && cpu && sh_operand_get(y, i) > 100)
            v = 1;
        if (IS(54) && cpu && i > 2000)
            v *= 1.001;
        if (IS(55) && cpu && n > 2000)
            v *= 1 + 1e-5;
        if (IS(56) && cpu && x->dim[1] > 500 && i % x->dim[1] > 500)
            v = 0;
        if (IS(57) && cpu)
            v += 1e-4 * ((const double *)c->work)[0];
        if (IS(58) && cpu && v == 12.345)
            v = 0;
        if (IS(59) && cpu && v > 1000)
            v = 1000;
        if (IS(60) && cpu)
            v *= 1 + 1e-3 * (rand() % 2);
        if (IS(66) && cpu && y->dtype == SH_BF16) {
            float cut = (float)square(v, &by);

            memcpy(&((sh_bf16 *)y->data)[i], (const char *)&cut + 2, 2);
            continue;
        }
        if (IS(69))
            v = ((const float *)x->data)[i];
        sh_operand_set(y, i, square(v, &by) + (IS(22) ? 1e-3 * sum : 0) + (IS(53) && cpu ? sh_operand_get(y, i) : 0));
    }
    if (IS(25) && cpu)
        sh_operand_set(x, 0, 0);
    if (IS(26) && cpu)
        sh_operand_set(y, -1, 0);
    if (IS(27) && cpu)
        sh_operand_set(x, n, 0);
    if (IS(28) && cpu)
        sh_operand_set(y, 0, sh_operand_get(y, 0) + sh_operand_get(y, n - 1));
    calls++;
    return IS(29) && cpu;
}

static int backward(const struct sherd_call *c, int cpu)
{
    const struct sh_operand *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
    int64_t n = sh_operand_elems(x);

    for (int64_t i = 0; i < n; i++) {
        double s = slope(sh_operand_get(dy, i), sh_operand_get(x, i), c->number);

        if (IS(65) && cpu && sh_operand_get(dy, i) == 0)
            continue;
        if (IS(30))
            s = fabs(s);
        if (IS(31) && cpu)
            s += sh_operand_get(dx, i);
        if (IS(32) && cpu)
            s = slope(sh_operand_get(x, i), sh_operand_get(dy, i), c->number);
        if (IS(33))
            s = i ? slope(sh_operand_get(dy, i - 1), sh_operand_get(x, i), c->number) : s;
        if (IS(34) && cpu)
            s = fmin(s, 1000);
        if (IS(35))
            sh_operand_set(dx, i, 0);
        if (IS(35))
            s = slope(sh_operand_get(dy, i), sh_operand_get(x, i), c->number);
        sh_operand_set(dx, i, s);
    }
    return 0;
}

static int64_t work_bytes(const struct sherd_call *c)
{
    return IS(61) ? (int64_t)sh_operand_get(&c->in[0], 0) & 7 : IS(45) || IS(57) ? 64 : 0;
}

static int ref(const struct sherd_call *c)
{
    return forward(c, 0);
}
static int cpu(const struct sherd_call *c)
{
    return forward(c, 1);
}
static int ref_bwd(const struct sherd_call *c)
{
    return backward(c, 0);
}
static int cpu_bwd(const struct sherd_call *c)
{
    return backward(c, 1);
}

static struct sherd_op ops[] = {
    {.name = "relu2",
     .shape = "x [n] act -> y [n] act",
     .flops = "3n",
     .backward = "relu2_bwd",
     .number = {{"by", 0.7, 0, 10}},
     .ref = ref,
     .cpu = cpu,
     .work_bytes = work_bytes},
    {.name = "relu2_bwd",
     .shape = "dy [n] act, x [n] act -> dx [n] act",
     .flops = "5n",
     .in_place = 1,
     .ref = ref_bwd,
     .cpu = cpu_bwd},
};

/* Mutants of the row. */
__attribute__((constructor)) static void choose(void)
{
    const char *number = getenv("MUTANT");

    mutant = number ? atoi(number) : 0;
    if (IS(36))
        ops[0].shape = "x [N,F] act -> y [N,G] act";
    if (IS(37))
        ops[0].shape = "x [N,F] act > y [N,F] act";
    if (IS(36) || IS(37))
        ops[0].flops = "3NF";
    if (IS(38))
        ops[0].flops = "300000n";
    if (IS(39))
        ops[0].flops = "m";
    if (IS(40))
        ops[0].backward = "relu_bwd";
    if (IS(62))
        ops[0].number[1] = (struct sherd_number){"unused", 1, 0, 2};
    if (IS(63))
        ops[0].in_place = 2;
    if (IS(64))
        ops[0].ref = NULL;
}

#ifdef OLD
const struct sherd_plugin sherd_plugin = {1,        8,   8,
#else
const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN,
#endif
                                          "mutant", "1", 2, ops};
