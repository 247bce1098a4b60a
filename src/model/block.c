#include "src/model/block.h"

#include "src/config/family.h"

const struct sh_model *sh_model_of_block(const struct sh_model *m, int block, struct sh_model *own)
{
    bool global = sh_family_is_global(m, block);

    if (!sh_family_of(m->family)->global_heads)
        return m;
    *own = *m;
    own->keys_as_values = global && m->keys_as_values;
    own->head_dim = global ? sh_family_global_dim(m) : m->head_dim;
    own->ffn_dim = m->double_wide_ffn && sh_family_shares_kv(m, block) ? 2 * m->ffn_dim : m->ffn_dim;
    own->n_kv_heads = global && m->global_kv_heads ? m->global_kv_heads : m->n_kv_heads;
    return own;
}
