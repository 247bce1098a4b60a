/* How equally ranks that share sequences share the work of attention. */
#include "src/model/model.h"
#include "src/tools/predict/command.h"

int sh_predict_document_tokens(const struct sh_predict *l)
{
    bool whole = !l->build.batch.docs || l->cfg.data.length_schedule[0];

    return whole ? l->cfg.training.seq_len : l->build.batch.document_tokens;
}

/* The work of the rows of one of the ranks that gather keys, with documents of equal length from the first row on. */
static double work_of(const struct sh_predict *l, const struct sh_model_rows *w, int ranks, int place)
{
    int rows = l->cfg.training.seq_len / (2 * ranks), length = sh_predict_document_tokens(l);
    double n = 0;

    for (int i = 0; i < rows; i++)
        n += sh_model_row_work(w, (place * rows + i) % length + 1) +
             sh_model_row_work(w, ((2 * ranks - 1 - place) * rows + i) % length + 1);
    return n;
}

double sh_predict_busiest(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.context);
    struct sh_model_rows w = sh_model_rows_of(l->p);
    double most = 0, all = 0;

    if (!l->build.options.gather)
        return 1;
    for (int place = 0; place < ranks && sh_predict_document_tokens(l); place++) {
        double n = work_of(l, &w, ranks, place);

        most = n > most ? n : most;
        all += n;
    }
    return all > 0 ? most * ranks / all : 0;
}
