/* What the files of the search share. */
#ifndef SH_TOOLS_PREDICT_SEARCH_STATE_H
#define SH_TOOLS_PREDICT_SEARCH_STATE_H

#include "src/tools/predict/search/search.h"

#include "src/config/config.h"

/* Most chunks of a stage that are tried. */
enum { SH_SEARCH_CHUNKS = 8 };

/* Most nodes that share a sequence where fewer could. */
enum { SH_SEARCH_NODES = 4 };

/* Results with stages whose orders of work are tried though others are faster. */
enum { SH_SEARCH_STAGED = 4 };

/* Powers of two: batches of a step, and of a micro-step. The modes of recomputation, and full in tiles. */
enum { GROWN = 3, BATCHES = 7, TRIED_MODES = 4, KEPT = 4 };

struct sh_search_state {
    const struct sh_search *s;
    struct sh_search_found *found;
    int *n;
    double least_bytes;    /* minimum that all ranks together keep of the model */
    double least_resident; /* minimum of trained parameters in the compute type, if each rank has all of them */
    double token_flops;    /* of the products of a token, forward and backward: what no choice leaves out */
    int64_t sequences;     /* per step */
    int (*too_small)[BATCHES][TRIED_MODES][KEPT]; /* [GROWN] see sh_search_forget(); NULL: in the fine round */
    bool lacks_memory;                            /* some choice would be possible with more memory */
    bool kept;                                    /* some choice was possible with these degrees */
    struct sh_search_found plain;                 /* the fastest that only shards; seconds 0: none */
    struct sh_search_found
        staged[SH_SEARCH_STAGED]; /* of the first round, those that another order could make fastest */
    int n_staged;
};

/* Ranks that share neither matrices nor layers: what mesh.shard, mesh.replicate and the batch divide. */
static inline int sh_search_groups(const struct sh_search *s, const struct sh_search_found *f)
{
    return s->ranks / (f->tensor * f->pipeline);
}

/* Of a node. */
static inline int sh_search_node(const struct sh_search *s, const struct sh_search_found *f)
{
    return s->ranks_per_node > f->tensor ? s->ranks_per_node / f->tensor : 1;
}

/* The most ranks that share a sequence: those of a few nodes, or as many as must if there are fewer sequences. */
static inline int sh_search_most_context(const struct sh_search_state *st, const struct sh_search_found *f)
{
    int64_t groups = sh_search_groups(st->s, f), needed = st->sequences > 0 ? groups / st->sequences : 1;
    int64_t some = SH_SEARCH_NODES * (int64_t)sh_search_node(st->s, f), most = needed > some ? needed : some;

    return (int)(most < groups ? most : groups);
}

static inline bool sh_search_plain(const struct sh_search_found *f)
{
    return f->context == 1 && f->tensor == 1 && f->pipeline == 1 && f->expert == 1;
}

/* price.c. Plan one choice and predict its step; bytes, seconds, tokens_per_second and recompute of *f are filled.
 * Errors: SH_E_MEMORY: the choice does not fit; SH_E_USAGE: the strategy, the batch or the mesh is not possible. */
sh_rc sh_search_try(struct sh_search_state *st, struct sh_search_found *f);

/* modes.c. Insert by speed; if the list is full, the last one drops out. */
void sh_search_keep(struct sh_search_state *st, const struct sh_search_found *f);

/* Insert a result by 1F1B by the speed that it would have with another order, in which stages wait less. */
void sh_search_keep_staged(struct sh_search_state *st, const struct sh_search_found *f);

/* The least recomputation of the three that fits, and then tiles: more of either is only slower. Errors: as of sh_search_try(). */
sh_rc sh_search_find_mode(struct sh_search_state *st, struct sh_search_found *f);

/* Forget which choices were too large; the next ones have other degrees. */
void sh_search_forget(struct sh_search_state *st);

/* Whether sequences can be cut over that many neighbours, of a node or of several, so that all ranks have as many. */
bool sh_search_takes_context(const struct sh_search_state *st, const struct sh_search_found *f, int degree);

/* refine.c. The second round: finer neighbours of the best of the first one are tried, and kept if they are faster. */
sh_rc sh_search_refine(struct sh_search_state *st);

#endif
