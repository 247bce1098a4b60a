/* `sherd generate`: a model continues a prompt, a file of prompts, or chats. Everything that can be checked without the
 * model (options, prompts, the tokenizer) is checked before it is loaded, which may take minutes. */
#include "src/cmd/cmd.h"

#include "src/base/log.h"
#include "src/run/run.h"
#include "src/text/chat/chat.h"
#include "src/text/generate/generate.h"

#include <stdlib.h>
#include <string.h>

/* Everything that must be closed at the end, also after a failure. */
struct generate {
    struct sh_config cfg;
    struct sh_generate g;
    struct sh_prompts prompts;
    struct sh_tokenizer *tok;
    char *chat_template;         /* that the model has learned; "": none is known */
    struct sh_cmd_output output; /* with a file of prompts */
};

/* resident: each rank has the whole model and its own prompts; shard: the ranks share one model; auto decides by
 * memory. */
static sh_rc read_parallel(const struct sh_cmd *cmd, const struct sh_cmd_args *args, enum sh_parallel *parallel)
{
    static const char *const names[] = {
        [SH_PARALLEL_AUTO] = "auto", [SH_PARALLEL_RESIDENT] = "resident", [SH_PARALLEL_SHARD] = "shard"};
    const char *given = sh_cmd_option(cmd, args, "--parallel");

    for (int i = 0; given && i < 3; i++)
        if (!strcmp(given, names[i])) {
            *parallel = (enum sh_parallel)i;
            return SH_OK;
        }
    return given ? sh_fail(SH_E_USAGE, "sherd generate: --parallel must be resident, shard or auto, not \"%s\"", given)
                 : SH_OK;
}

/* The defaults give readable text: temperature 0.8, the 40 likeliest tokens. */
static sh_rc read_sampling(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_sampling *s)
{
    int64_t top_k, seed;

    SH_TRY(sh_cmd_number(cmd, args, "--temperature", 0, 100, 0.8, &s->temperature));
    SH_TRY(sh_cmd_whole(cmd, args, "--top-k", 0, 1000000000, 40, &top_k));
    SH_TRY(sh_cmd_number(cmd, args, "--top-p", 0, 1, 1, &s->top_p));
    SH_TRY(sh_cmd_number(cmd, args, "--min-p", 0, 1, 0, &s->min_p));
    SH_TRY(sh_cmd_whole(cmd, args, "--seed", 0, INT64_MAX, 1, &seed));
    s->top_k = (int)top_k;
    s->seed = (uint64_t)seed;
    return SH_OK;
}

/* --context 0: as many positions as the model has, or fewer if prompts and answers are shorter. */
static sh_rc read_sizes(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_generate *g)
{
    int64_t tokens, rows, positions;

    SH_TRY(sh_cmd_whole(cmd, args, "--tokens", 1, 1000000, 256, &tokens));
    SH_TRY(sh_cmd_whole(cmd, args, "--batch", 1, 65536, 8, &rows));
    SH_TRY(sh_cmd_whole(cmd, args, "--context", 2, 1 << 30, 0, &positions));
    g->tokens = (int)tokens;
    g->rows = (int)rows;
    g->positions = (int)positions;
    return SH_OK;
}

/* Checks which options go together. */
static sh_rc check_words(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const ways[] = {"--prompt", "--prompts", "--messages"};
    const char *first = NULL;

    for (int i = 0; i < 3; i++) {
        if (first && sh_cmd_option(cmd, args, ways[i]))
            return sh_fail(SH_E_USAGE, "sherd generate: give only one of %s and %s", first, ways[i]);
        first = sh_cmd_option(cmd, args, ways[i]) ? ways[i] : first;
    }
    if ((!first || !strcmp(first, "--prompt")) &&
        (sh_cmd_option(cmd, args, "-o") || sh_cmd_option(cmd, args, "--batch")))
        return sh_fail(SH_E_USAGE, "sherd generate: -o and --batch go with --prompts FILE and --messages FILE");
    if (!sh_cmd_option(cmd, args, "--messages") &&
        (sh_cmd_option(cmd, args, "--chat-template") || sh_cmd_option(cmd, args, "--special-in-text")))
        return sh_fail(SH_E_USAGE, "sherd generate: --chat-template and --special-in-text go with --messages FILE");
    return SH_OK;
}

/* Without a prompt, a single newline is the prompt, since a model needs a token to start from. */
static sh_rc read_prompts(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_prompts *out)
{
    const char *prompt = sh_cmd_option(cmd, args, "--prompt"), *file = sh_cmd_option(cmd, args, "--prompts");
    const char *chats = sh_cmd_option(cmd, args, "--messages");

    SH_TRY(check_words(cmd, args));
    if (file || chats)
        return sh_prompts_read(chats ? chats : file, chats != NULL, out);
    sh_prompts_one(prompt ? prompt : "\n", out);
    return SH_OK;
}

/* The template that was given, or the one that the model has learned. */
static sh_rc find_template(const char *given, const struct generate *g, const struct sh_template **out, int64_t *stop)
{
    static const char else_[] = "render the texts elsewhere and give --prompts";

    bool kept = !given && g->chat_template[0];
    sh_rc rc = sh_chat_template(kept ? g->chat_template : given, g->tok, else_, out, stop);

    if (rc != SH_OK)
        return kept ? sh_fail_prefix(rc, "the checkpoint's chat template: ") : rc;
    if (g->chat_template[0] && strcmp(g->chat_template, (*out)->name) != 0)
        sh_log_info("chat template: %s is given, the model has learned %s", (*out)->name, g->chat_template);
    return SH_OK;
}

/* The token that ends an assistant's message in the template ends an answer, whatever end token the model's folder
 * names. */
static sh_rc encode_prompts(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct generate *g)
{
    const struct sh_template *template;
    int64_t stop;

    if (!sh_cmd_option(cmd, args, "--messages"))
        return sh_prompts_encode(g->tok, &g->prompts);
    SH_TRY(find_template(sh_cmd_option(cmd, args, "--chat-template"), g, &template, &stop));
    sh_tokenizer_add_end(g->tok, (uint32_t)stop);
    return sh_prompts_render(g->tok, template, sh_cmd_option(cmd, args, "--special-in-text") != NULL, &g->prompts);
}

/* The tables of the model have no rows for further positions; each rank keeps the keys and values of its texts. */
static sh_rc check_context(const struct generate *g)
{
    int degree = g->cfg.parallelism.context_parallel_degree;

    if (degree > 1)
        return sh_fail(SH_E_USAGE,
                       "parallelism.context_parallel_degree=%d: a text grows by one token at a time, so there is no "
                       "sequence to cut; leave the key out, and each rank continues other prompts",
                       degree);
    if (g->cfg.parallelism.tensor_parallel_degree > 1 && g->cfg.parallelism.tensor_parallel_tiles > 1)
        return sh_fail(SH_E_USAGE,
                       "parallelism.tensor_parallel_tiles=%d: a step has one row of each text, and exchanges of so few "
                       "rows have no tiles; give 1",
                       g->cfg.parallelism.tensor_parallel_tiles);
    if (g->g.positions > g->cfg.model.max_seq_len)
        return sh_fail(SH_E_USAGE, "sherd generate: --context %d is more than model.max_seq_len, which is %d",
                       g->g.positions, g->cfg.model.max_seq_len);
    return SH_OK;
}

/* Local; the caller makes the ranks agree. Options come first: they are the cheapest to check. */
static sh_rc read_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct generate *g)
{
    SH_TRY(read_parallel(cmd, args, &g->g.parallel));
    SH_TRY(read_sampling(cmd, args, &g->g.sampling));
    SH_TRY(read_sizes(cmd, args, &g->g));
    g->g.stop = sh_cmd_option(cmd, args, "--stop");
    return read_prompts(cmd, args, &g->prompts);
}

/* Local, too. */
static sh_rc configure(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *checkpoint,
                       struct generate *g)
{
    SH_TRY(sh_cmd_config(args, checkpoint, &g->cfg));
    SH_TRY(check_context(g));
    SH_TRY(
        sh_run_tokenizer_of(&g->cfg, checkpoint, sh_cmd_option(cmd, args, "--tokenizer"), &g->tok, &g->chat_template));
    g->g.tok = g->tok;
    return encode_prompts(cmd, args, g);
}

/* Collective. The configuration comes from the checkpoint unless a file is given. */
sh_rc sh_cmd_generate(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct generate g = {0};
    struct sh_request_cache cache;
    struct sh_run *run = NULL;
    const char *state;
    char *checkpoint = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(sh_cmd_state(cmd, args, &state)));
    SH_TRY_OUT(sh_agree(read_options(cmd, args, &g)));
    SH_TRY_OUT(sh_cmd_checkpoint(cmd, args, &checkpoint));
    SH_TRY_OUT(sh_agree(configure(cmd, args, checkpoint, &g)));
    SH_TRY_OUT(sh_cmd_same_on_all("prompts", sh_prompts_hash(&g.prompts)));
    if (g.prompts.p[0].line)
        SH_TRY_OUT(sh_agree(sh_cmd_output_open(sh_cmd_option(cmd, args, "-o"), &g.output)));
    cache = sh_generate_cache(&g.g, &g.prompts, &g.cfg);
    SH_TRY_OUT(sh_run_open_cached(&g.cfg, &cache, &run));
    run->of_state = state;
    SH_TRY_OUT(sh_run_load(run, checkpoint, NULL));
    SH_TRY_OUT(sh_generate_run(run, &g.g, &g.prompts, g.output.out));
out:
    rc = sh_agree(sh_cmd_output_close(&g.output, rc));
    sh_run_close(run);
    sh_tokenizer_close(g.tok);
    free(g.chat_template);
    sh_prompts_free(&g.prompts);
    free(checkpoint);
    return rc;
}
