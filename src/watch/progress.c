#include "src/base/log.h"
#include "src/base/str.h"
#include "src/watch/watch.h"

#include <stdio.h>
#include <unistd.h>

void sh_progress_init(struct sh_progress *p, bool allowed, int64_t total, int64_t log_freq)
{
    *p = (struct sh_progress){.terminal = allowed && isatty(STDERR_FILENO), .total = total, .log_freq = log_freq};
}

static void format(const struct sh_progress *p, const struct sh_step_metrics *s, char *line, size_t size)
{
    char rss[SH_STR_SHORT];

    snprintf(line, size, "step %*lld/%lld  loss %.4f  grad_norm %.3f  lr %.2e  %.0f tokens/s  %s%s%s",
             p->total > 9999 ? 6 : 4, (long long)s->step, (long long)p->total, s->loss, s->grad_norm, s->lr,
             s->tokens_per_second, sh_str_bytes(s->peak_rss_bytes, rss), s->skipped ? "  skipped: " : "",
             s->skipped ? s->skipped : "");
}

void sh_progress_step(struct sh_progress *p, const struct sh_step_metrics *s)
{
    char line[256];
    bool due = s->step % p->log_freq == 0 || s->step == p->total || s->step == 1 || s->skipped;

    format(p, s, line, sizeof line);
    if (p->terminal) {
        fprintf(stderr, "\r\033[K%s", line);
        p->open = true;
        if (s->step == p->total || s->skipped)
            sh_progress_break(p);
    } else if (due) {
        sh_log_info("%s", line);
    }
}

void sh_progress_break(struct sh_progress *p)
{
    if (p->open)
        fputc('\n', stderr);
    p->open = false;
}
