/* A model whose activations make round trips through collectives that exchange rows, and come back with the same bits.
 * Attention's operand goes to the other ranks of a group and back; the operand of the products of every other block is
 * gathered and its copies are summed, which is as many times as much as the group has ranks: a power of two. For
 * programs linked with --wrap=sh_model_emit. */
#ifndef SH_TESTS_UNIT_EXCHANGE_H
#define SH_TESTS_UNIT_EXCHANGE_H

#include "src/mesh/shape.h"

extern struct exchanged {
    sh_group group; /* 0: nothing is exchanged */
    int ranks;
} exchanged;

#endif
