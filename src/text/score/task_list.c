#include "src/text/score/task.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sh_task_doc *sh_task_add_doc(struct sh_task *t, json_t *line, int gold)
{
    t->doc = sh_grow(t->doc, t->n_docs, &t->cap_docs, sizeof *t->doc);
    t->doc[t->n_docs] = (struct sh_task_doc){.line = line, .first = t->n_choices, .gold = gold};
    return &t->doc[t->n_docs++];
}

struct sh_task_choice *sh_task_add_choice(struct sh_task *t)
{
    t->choice = sh_grow(t->choice, t->n_choices, &t->cap_choices, sizeof *t->choice);
    t->choice[t->n_choices] = (struct sh_task_choice){0};
    t->doc[t->n_docs - 1].n++;
    return &t->choice[t->n_choices++];
}

struct sh_score *sh_task_add_score(struct sh_task *t, const uint32_t *ids, size_t n, size_t first)
{
    struct sh_score *s;

    t->score = sh_grow(t->score, t->n_scores, &t->cap_scores, sizeof *t->score);
    s = &t->score[t->n_scores++];
    *s = (struct sh_score){.ids = sh_calloc(n, sizeof *ids), .n = n, .first = first};
    memcpy(s->ids, ids, n * sizeof *ids);
    return s;
}

void sh_task_free(struct sh_task *t)
{
    for (int i = 0; i < t->n_docs; i++)
        json_decref(t->doc[i].line);
    for (int i = 0; i < t->n_choices; i++) {
        free(t->choice[i].context);
        free(t->choice[i].text);
    }
    for (int i = 0; i < t->n_scores; i++)
        free(t->score[i].ids);
    free(t->doc);
    free(t->choice);
    free(t->score);
    *t = (struct sh_task){.kind = t->kind};
}
