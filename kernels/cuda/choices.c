/* All calls of CUDA kernels for which a clock may choose, end to end. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/moe/grouped.h"

static const struct sh_choices *const parts[] = {&sh_cublaslt_choices, &sh_cuda_grouped_choices};
enum { PARTS = sizeof parts / sizeof parts[0] };

/* Call *i of all is call *i of the part. */
static const struct sh_choices *part_of(int *i)
{
    int p = 0;

    for (; p + 1 < PARTS && *i >= parts[p]->count(); p++)
        *i -= parts[p]->count();
    return parts[p];
}

static int count(void)
{
    int n = 0;

    for (int p = 0; p < PARTS; p++)
        n += parts[p]->count();
    return n;
}

/* One library makes the answers of all parts. */
static const char *library(void)
{
    return sh_cublaslt_choices.library();
}

static void name(int i, char text[SH_CHOICE_TEXT])
{
    const struct sh_choices *part = part_of(&i);
    part->name(i, text);
}

static int answers(int i)
{
    const struct sh_choices *part = part_of(&i);
    return part->answers(i);
}

static sh_rc attempt(int i, int which, void *queue)
{
    const struct sh_choices *part = part_of(&i);
    return part->attempt(i, which, queue);
}

static void choose(int i, int which)
{
    const struct sh_choices *part = part_of(&i);
    part->choose(i, which);
}

const struct sh_choices sh_cuda_choices = {
    .count = count, .library = library, .name = name, .answers = answers, .attempt = attempt, .choose = choose};
