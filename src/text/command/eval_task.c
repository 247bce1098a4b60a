/* `sherd eval` of given texts: requests, choices, a text as a whole. */
#include "src/cmd/cmd.h"

#include "src/run/run.h"
#include "src/text/score/score.h"
#include "src/text/score/task.h"

#include <stdlib.h>

static const char *const options[] = {
    [SH_TASK_REQUESTS] = "--requests", [SH_TASK_CHOICES] = "--choices", [SH_TASK_TEXT] = "--text"};
enum { KINDS = sizeof options / sizeof *options };

/* Everything that must be freed at the end, whatever happened. */
struct eval {
    struct sh_config cfg;
    struct sh_task task;
    struct sh_tokenizer *tok;
    struct sh_request_score score;
    struct sh_cmd_output output;
};

/* One of the three options is enough; find_kind() refuses two. */
bool sh_cmd_eval_is_task(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    for (int i = 0; i < KINDS; i++)
        if (sh_cmd_option(cmd, args, options[i]))
            return true;
    return false;
}

/* Options of the other kind of evaluation are refused, not ignored. */
static sh_rc find_kind(const struct sh_cmd *cmd, const struct sh_cmd_args *args, enum sh_task_kind *kind)
{
    static const char *const of_data[] = {"--top-k", "--reference"};
    int given = 0;

    for (int i = 0; i < KINDS; i++)
        if (sh_cmd_option(cmd, args, options[i])) {
            *kind = (enum sh_task_kind)i;
            given++;
        }
    if (given > 1)
        return sh_fail(SH_E_USAGE, "sherd eval: give only one of --requests, --choices and --text");
    if (sh_cmd_option(cmd, args, "--data") || sh_cmd_option(cmd, args, "--sequences"))
        return sh_fail(SH_E_USAGE, "sherd eval: --data and --sequences do not go with %s", options[*kind]);
    for (int i = 0; i < 2; i++)
        if (sh_cmd_option(cmd, args, of_data[i]))
            return sh_fail(SH_E_USAGE, "sherd eval: %s goes with --data, not with %s", of_data[i], options[*kind]);
    if (*kind == SH_TASK_TEXT && sh_cmd_option(cmd, args, "-o"))
        return sh_fail(SH_E_USAGE, "sherd eval: -o does not go with --text, which has one line of results");
    return SH_OK;
}

/* Local; the caller makes the ranks agree. A file of llm.c needs no tokenizer. */
static sh_rc configure(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *checkpoint, struct eval *e)
{
    enum sh_task_kind kind = SH_TASK_REQUESTS;
    int64_t rows, positions;

    SH_TRY(find_kind(cmd, args, &kind));
    SH_TRY(sh_cmd_config(args, checkpoint, &e->cfg));
    SH_TRY(sh_cmd_whole(cmd, args, "--batch", 1, 65536, 8, &rows));
    SH_TRY(sh_cmd_whole(cmd, args, "--context", 1, e->cfg.model.max_seq_len, e->cfg.model.max_seq_len, &positions));
    SH_TRY(sh_task_read(kind, sh_cmd_option(cmd, args, options[kind]), &e->task));
    if (!e->task.tokens)
        SH_TRY(sh_run_tokenizer_of(&e->cfg, checkpoint, sh_cmd_option(cmd, args, "--tokenizer"), &e->tok, NULL));
    SH_TRY(sh_task_encode(e->tok, (int)positions, e->cfg.model.vocab_size, &e->task));
    e->score = sh_score_request(e->task.score, e->task.n_scores, (int)rows, &e->cfg);
    return SH_OK;
}

/* Requests always give lines of output; choices only if -o is given. */
static sh_rc open_output(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct eval *e)
{
    const char *path = sh_cmd_option(cmd, args, "-o");

    if (!path && e->task.kind != SH_TASK_REQUESTS)
        return SH_OK;
    return sh_cmd_output_open(path, &e->output);
}

/* Collective. */
sh_rc sh_cmd_eval_task(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct eval e = {0};
    struct sh_run *run = NULL;
    const char *state;
    char *checkpoint = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(sh_cmd_state(cmd, args, &state)));
    SH_TRY_OUT(sh_cmd_checkpoint(cmd, args, &checkpoint));
    SH_TRY_OUT(sh_agree(configure(cmd, args, checkpoint, &e)));
    SH_TRY_OUT(sh_cmd_same_on_all("texts", sh_score_hash(e.task.score, e.task.n_scores)));
    SH_TRY_OUT(sh_agree(open_output(cmd, args, &e)));
    SH_TRY_OUT(sh_run_open_scoring(&e.cfg, &e.score, &run));
    run->of_state = state;
    SH_TRY_OUT(sh_run_load(run, checkpoint, NULL));
    SH_TRY_OUT(sh_score_texts(run, e.task.score, e.task.n_scores));
    SH_TRY_OUT(sh_agree(run->mesh->rank == 0 ? sh_task_print(&e.task, e.output.out) : SH_OK));
out:
    /* Also on failure: the file is then abandoned, so no partial output remains. */
    rc = sh_agree(sh_cmd_output_close(&e.output, rc));
    sh_run_close(run);
    sh_tokenizer_close(e.tok);
    sh_task_free(&e.task);
    free(checkpoint);
    return rc;
}
