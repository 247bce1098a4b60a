#include "src/run/run.h"

#include "src/base/mem.h"

#include <stdlib.h>

sh_rc sh_feed_open(struct sh_run *r, const char *path, bool shuffle, struct sh_feed *f)
{
    static const enum sh_token_type types[] = {
        [SH_TOKEN_AUTO] = SH_TOKENS_AUTO, [SH_TOKEN_UINT16] = SH_TOKENS_U16, [SH_TOKEN_UINT32] = SH_TOKENS_U32};
    struct sh_data_options opt = {.path = path,
                                  .seq_len = r->cfg.training.seq_len,
                                  .vocab_size = r->cfg.model.vocab_size,
                                  .type = types[r->cfg.data.token_type],
                                  .masks = (enum sh_data_masks)r->cfg.data.target_mask,
                                  .shuffle = shuffle,
                                  .seed = r->cfg.debug.seed,
                                  .document_separator = r->cfg.data.document_separator};
    int64_t sequences = r->cfg.training.local_batch_size;
    size_t n = (size_t)(sequences * r->cfg.training.seq_len);

    *f = (struct sh_feed){.sequences = sequences, .with_docs = r->p->docs != SH_NONE};
    SH_TRY(sh_data_open(&opt, &f->data));
    f->tokens = sh_calloc(n, sizeof *f->tokens);
    f->targets = sh_calloc(n, sizeof *f->targets);
    if (f->with_docs)
        f->docs = sh_calloc(n, sizeof *f->docs);
    return SH_OK;
}

void sh_feed_close(struct sh_feed *f)
{
    if (f->data)
        sh_data_close(f->data);
    free(f->tokens);
    free(f->targets);
    free(f->docs);
    *f = (struct sh_feed){0};
}

void sh_feed_put(struct sh_run *r, const struct sh_feed *f)
{
    sh_exec_put(r->exec, r->p->tokens, f->tokens);
    sh_exec_put(r->exec, r->p->targets, f->targets);
    if (f->with_docs)
        sh_exec_put(r->exec, r->p->docs, f->docs);
}
