/* Sums of the state, computed while it is copied: from then on every change of the copy is noticed. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/digest.h"
#include "src/base/number/mixsum.h"

int64_t sh_ckpt_piece_blocks(const struct sh_ckpt_piece *p)
{
    return sh_ckpt_blocks(p->begin + p->elems) - p->begin / SH_CKPT_BLOCK_ELEMS;
}

int64_t sh_ckpt_piece_cut(const struct sh_ckpt_piece *p, const char *name, int64_t step, int s, int64_t at,
                          int64_t elems, int64_t *block, uint64_t *place)
{
    int64_t number = (p->begin + at) / SH_CKPT_BLOCK_ELEMS, inside = (p->begin + at) % SH_CKPT_BLOCK_ELEMS;

    *block = number - p->begin / SH_CKPT_BLOCK_ELEMS;
    *place = sh_ckpt_digest_place(sh_ckpt_digest_seed(step, s, name), number, inside);
    return elems < SH_CKPT_BLOCK_ELEMS - inside ? elems : SH_CKPT_BLOCK_ELEMS - inside;
}

/* The sum is computed from the very bytes that are copied, in one pass over memory. */
void sh_ckpt_piece_copy(const struct sh_ckpt_piece *p, const char *name, int64_t step, int s, int64_t at, int64_t elems,
                        struct sh_floats from)
{
    for (int64_t end = at + elems, n; at < end; at += n) {
        int64_t block;
        uint64_t place;

        n = sh_ckpt_piece_cut(p, name, step, s, at, end - at, &block, &place);
        /* Atomic, since two threads may have parts of one block. Addition has no order, so relaxed is enough. */
        __atomic_fetch_add(&p->early[s][block],
                           sh_mixsum_copy(sh_floats_at(p->data[s], at), sh_floats_at(from, at), n, place),
                           __ATOMIC_RELAXED);
    }
}
