#include "src/plan/pinned.h"

#include "src/base/number/size.h"
#include "src/base/string/str.h"

int64_t sh_pinned_bytes(const struct sh_program *p)
{
    int host = sh_program_host_tier(p);

    return host == SH_NONE ? 0 : p->tiers[host].bytes;
}

sh_rc sh_pinned_check(const struct sh_program *p, int ranks, int64_t bytes, const char *whose)
{
    int64_t each = sh_pinned_bytes(p), all = sh_size_mul(each, ranks);
    char one[SH_STR_SHORT], sum[SH_STR_SHORT], has[SH_STR_SHORT], count[SH_STR_SHORT];

    if (!bytes || all <= bytes)
        return SH_OK;
    return sh_fail(
        SH_E_MEMORY,
        "pinned host memory: %s with %s each need %s (%lld bytes), but %s %s (%lld); move less there "
        "(offload.optimizer, gradients, parameters, activations; snapshots of checkpoint.async_mode=async), or shard "
        "over more nodes",
        sh_str_plural(ranks, "rank", count), sh_str_bytes(each, one), sh_str_bytes(all, sum), (long long)all, whose,
        sh_str_bytes(bytes, has), (long long)bytes);
}
