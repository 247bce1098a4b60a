/* The table of ports. */
#include "src/program/port.h"

#include "src/program/program.h"

enum {
    TRAIN = 1 << SH_SECTION_FIRST | 1 << SH_SECTION_MIDDLE | 1 << SH_SECTION_LAST | 1 << SH_SECTION_ONLY,
    LOSS = TRAIN | 1 << SH_SECTION_EVAL,
    SCORE = 1 << SH_SECTION_SCORE,
    CACHE = 1 << SH_SECTION_PREFILL | 1 << SH_SECTION_DECODE,
    LOGITS = 1 << SH_SECTION_LOGITS | CACHE,
    NORM = 1 << SH_SECTION_NORM,
};

/* clang-format off */
static const struct sh_port_row rows[SH_PORTS] = {
    [SH_PORT_TOKENS]    = {"tokens",           SH_I32, "BT", true,  LOSS | SCORE | LOGITS, SH_PORT_NEXT},
    [SH_PORT_TARGETS]   = {"targets",          SH_I32, "BT", true,  LOSS | SCORE, 0},
    [SH_PORT_DOCS]      = {"docs",             SH_I32, "BT", true,  LOSS | SCORE | LOGITS, 0},
    [SH_PORT_REFERENCE] = {"reference",        SH_F64, "BT", true,  LOSS, 0},
    [SH_PORT_LABELS]    = {"labels",           SH_I32, "BT", true,  LOSS, 0},
    [SH_PORT_WEIGHTS]   = {"target weights",   SH_F32, "N",  true,  TRAIN, 0},
    [SH_PORT_TEACHER_WORDS] = {"teacher words", SH_I32, "NR", true, TRAIN, 0},
    [SH_PORT_TEACHER_LOGP]  = {"teacher logp", SH_F32, "NR", true,  TRAIN, 0},
    [SH_PORT_WANTED]    = {"wanted",           SH_F32, "NR", true,  LOSS, 0},
    [SH_PORT_TOP_WORDS] = {"top words",        SH_I32, "NR", false, 1 << SH_SECTION_EVAL, 0},
    [SH_PORT_TOP_LOGP]  = {"top logp",         SH_F32, "NR", false, 1 << SH_SECTION_EVAL, 0},
    [SH_PORT_LOSS]      = {"loss",             SH_F64, "R",  false, LOSS | 1 << SH_SECTION_LOSS, 0},
    [SH_PORT_SUMS]      = {"sums",             SH_F64, "BT", false, LOSS, 0},
    [SH_PORT_LOGITS]    = {"logits",           SH_F32, "BV", false, LOGITS, 0},
    [SH_PORT_LOGPROB]   = {"logprob",          SH_F32, "N",  false, SCORE, 0},
    [SH_PORT_LIKELIEST] = {"likeliest",        SH_I32, "N",  false, SCORE, 0},
    [SH_PORT_AT]        = {"at",               SH_I32, "BT", true,  LOSS | SCORE | CACHE, SH_PORT_NEXT_AT},
    [SH_PORT_COUNT]     = {"count",            SH_I32, "B",  true,  CACHE, 0},
    [SH_PORT_NEXT]      = {"next",             SH_I32, "B1", true,  1 << SH_SECTION_DECODE, 0},
    [SH_PORT_NEXT_AT]   = {"next at",          SH_I32, "B1", true,  1 << SH_SECTION_DECODE, 0},
    [SH_PORT_ROUTERS]   = {"routers",          SH_F64, "R",  false, TRAIN | NORM | 1 << SH_SECTION_UPDATE, 0},
    [SH_PORT_SQUARES]   = {"gradient.squares", SH_F64, "E",  false, TRAIN | NORM, 0},
    [SH_PORT_SUMSQ]     = {"gradient.sumsq",   SH_F64, "1",  false, NORM, 0},
};
/* clang-format on */

const struct sh_port_row *sh_port_row(enum sh_port port)
{
    return &rows[port];
}
