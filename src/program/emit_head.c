/* What is made with the output matrix: losses, scores, logits. */
#include "src/program/emit_op.h"

#include "kernels/plug.h"

/* Only the last rows need a norm and logits. */
int sh_emit_pick(struct sh_emit *e, int x)
{
    struct sh_op op = OP(e, SH_OP_PICK, sh_emit_seq(e, x), e->p->port[SH_PORT_COUNT]);

    op.out[0] = sh_emit_act(e, 2, DIMS(e->batch, sh_emit_dims(e, x)[1]), "last");
    sh_emit_append(e, &op);
    e->seq = 1;
    return op.out[0];
}

static int64_t rows_of(const struct sh_emit *e)
{
    return (int64_t)e->batch * e->seq;
}

static int flat_targets(struct sh_emit *e)
{
    return sh_emit_view(e, e->p->port[SH_PORT_TARGETS], 1, DIMS(rows_of(e)));
}

/* An operation that compares the logits of rows with their targets. */
static struct sh_op head_op(struct sh_emit *e, enum sh_op_kind kind, int x, int w, int64_t chunk_rows)
{
    struct sh_op op = OP(e, kind, x, w, flat_targets(e));

    op.attr.head.chunk_rows = chunk_rows;
    op.attr.head.raw = e->raw;
    op.attr.head.cap = e->cap;
    return op;
}

static void learn_from(struct sh_emit *e, struct sh_op *loss, const struct sh_teacher_numbers *teacher)
{
    loss->attr.head.temperature = teacher->temperature;
    loss->attr.head.alpha = teacher->alpha;
    loss->attr.head.form = teacher->form;
    loss->in[4] = sh_program_add_port(e->p, SH_PORT_TEACHER_WORDS, e->batch, e->seq, teacher->top_k);
    loss->in[5] = sh_program_add_port(e->p, SH_PORT_TEACHER_LOGP, e->batch, e->seq, teacher->top_k);
}

static void append_loss(struct sh_emit *e, struct sh_op *op)
{
    int numbers = sh_head_numbers(&op->attr);

    if (e->p->port[SH_PORT_LOSS] != SH_NONE) /* the objective has made it */
        op->out[0] = sh_emit_tensor(e, SH_MEM_ACT, SH_F64, 1, DIMS(1), "weighed");
    else
        op->out[0] = sh_program_add_port(e->p, SH_PORT_LOSS, 0, 0, numbers * (e->leaves > 1 ? e->leaves : 1));
    if (e->leaves > 1)
        op->out[0] = sh_emit_view(e, op->out[0], 1, DIMS(numbers));
    sh_emit_append(e, op);
}

/* Logits, softmax and loss in one operation, chunk_rows rows at a time: logits [B*T,V] would be the largest tensor of
 * the step (8 x 4096 x 128256 f32 are 16.8 GB), so they never exist as a whole. */
void sh_emit_head_loss(struct sh_emit *e, int x, int w, int weight, int64_t chunk_rows,
                       const struct sh_teacher_numbers *teacher)
{
    struct sh_op op = head_op(e, SH_OP_HEAD_LOSS, x, w, chunk_rows);

    op.in[3] = weight;
    if (teacher)
        learn_from(e, &op, teacher);
    op.attr.head.squares = e->z;
    append_loss(e, &op);
}

void sh_emit_labels_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op op = head_op(e, SH_OP_HEAD_LOSS, x, w, chunk_rows);

    op.attr.head.multi_label = true;
    op.in[5] = sh_program_add_port(e->p, SH_PORT_WANTED, e->batch, e->seq, (int)sh_emit_dims(e, w)[0]);
    append_loss(e, &op);
}

void sh_emit_head_score(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op op = head_op(e, SH_OP_HEAD_SCORE, x, w, chunk_rows);

    op.out[0] = sh_emit_port(e, SH_PORT_LOGPROB);
    op.out[1] = sh_emit_port(e, SH_PORT_LIKELIEST);
    sh_emit_append(e, &op);
}

/* HEAD_SCORE into tensors that only operations read. */
static struct sh_op score_of(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op score = head_op(e, SH_OP_HEAD_SCORE, x, w, chunk_rows);

    score.out[0] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows_of(e)), "logprob");
    score.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_I32, 1, DIMS(rows_of(e)), "likeliest");
    return score;
}

void sh_emit_top_words(struct sh_emit *e, int x, int w, int top_k, bool raw, int64_t chunk_rows)
{
    struct sh_op score = score_of(e, x, w, chunk_rows);

    score.attr.head.raw = raw;
    score.out[2] = sh_program_add_port(e->p, SH_PORT_TOP_WORDS, e->batch, e->seq, top_k);
    score.out[3] = sh_program_add_port(e->p, SH_PORT_TOP_LOGP, e->batch, e->seq, top_k);
    sh_emit_append(e, &score);
}

/* For a loss that is made of the log-probabilities of targets: [N] f32. */
static int emit_logprob(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op score = score_of(e, x, w, chunk_rows);

    return sh_emit_append(e, &score);
}

int sh_emit_target_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows, int kind)
{
    int logprob = emit_logprob(e, x, w, chunk_rows);
    struct sh_op op = OP(e, (enum sh_op_kind)kind, logprob, flat_targets(e));

    sh_plug_numbers(op.kind, &op.attr);
    op.out[0] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows_of(e)), "weights");
    op.out[1] = sh_program_add_port(e->p, SH_PORT_LOSS, 0, 0, 1);
    return sh_emit_append(e, &op);
}

int sh_emit_pair_numbers(const struct sh_op_pair *how)
{
    return sh_cfg_loss_takes(how->loss) & SH_TAKES_MISMATCHED ? SH_PAIR_ALL : SH_PAIR_NUMBERS;
}

int sh_emit_pair_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows, const struct sh_op_pair *how)
{
    bool own = how->loss == SH_PREFER_PLUGIN;
    struct sh_op op = sh_emit_op(e, own ? (enum sh_op_kind)how->own : SH_OP_PAIR_LOSS, 0, NULL);
    const int64_t *row = DIMS(e->batch, e->seq);
    int takes = sh_cfg_loss_takes(how->loss);

    if (own) {
        sh_plug_numbers(op.kind, &op.attr);
        op.attr.plug.reward = how->beta;
    } else {
        op.attr.pair = *how;
    }
    op.in[0] = sh_emit_view(e, emit_logprob(e, x, w, chunk_rows), 2, row);
    op.in[1] = e->p->port[SH_PORT_TARGETS];
    op.in[2] = e->p->port[SH_PORT_DOCS];
    op.in[3] = takes & (SH_TAKES_REFERENCE | SH_TAKES_NUMBERS) ? sh_emit_port(e, SH_PORT_REFERENCE) : SH_NONE;
    op.in[4] = takes & SH_TAKES_LABELS ? sh_emit_port(e, SH_PORT_LABELS) : SH_NONE;
    op.out[0] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, row, "weights");
    op.out[1] = sh_emit_port(e, SH_PORT_SUMS);
    op.out[2] = sh_program_add_port(e->p, SH_PORT_LOSS, e->batch, e->seq, sh_emit_pair_numbers(how));
    sh_emit_append(e, &op);
    return sh_emit_view(e, op.out[0], 1, DIMS(rows_of(e)));
}

void sh_emit_no_loss(struct sh_emit *e, int numbers)
{
    sh_program_add_port(e->p, SH_PORT_LOSS, 0, 0, numbers);
}

/* For generation: logits [B,V] of one position, of all words, of which w may have a part. */
void sh_emit_logits(struct sh_emit *e, int x, int w, int words)
{
    struct sh_op op = OP(e, SH_OP_LOGITS, sh_emit_seq(e, x), w);

    op.attr.part.cap = e->cap;
    op.out[0] = sh_program_add_port(e->p, SH_PORT_LOGITS, e->batch, e->seq, words);
    sh_emit_append(e, &op);
}
