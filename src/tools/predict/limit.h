/* What limits a step, and what a faster part would gain: the step is simulated again with one part faster at a time.
 * Local, pure. */
#ifndef SH_PREDICT_LIMIT_H
#define SH_PREDICT_LIMIT_H

#include "src/cost/step.h"

/* A part of a machine that can be faster. */
struct sh_predict_part {
    const char *name;   /* "products" */
    size_t offset;      /* in struct sh_cost_faster */
    double usual;       /* speedup worth asking about; 0: as if the part cost nothing */
    double poorer;      /* speedup below 1 worth asking about as well; 0: none */
    const char *remedy; /* what a user can do */
};
extern const struct sh_predict_part sh_predict_parts[];
extern const int sh_predict_n_parts;

/* The gain with the part `factor` times as fast (0: free): tokens/s over present tokens/s, minus 1. */
sh_rc sh_predict_gain(const struct sh_cost_request *r, const struct sh_predict_part *part, double factor,
                      double as_it_is, double *gain);

/* The two parts that would gain most if they cost nothing, the larger first; NULL in place of a part that gains less
 * than 0.1 %. */
struct sh_predict_limit {
    const struct sh_predict_part *part;
    double gain;
};
sh_rc sh_predict_limits(const struct sh_cost_request *r, double as_it_is, struct sh_predict_limit out[2]);

/* "products, 78 % of the step", "latency, without which a step would be 9.5 % shorter"; returns text. */
enum { SH_PREDICT_LIMIT_TEXT = 96 };
const char *sh_predict_limit_text(const struct sh_predict_limit *l, const struct sh_cost_step *step,
                                  char text[SH_PREDICT_LIMIT_TEXT]);

/* "7.0 % faster", "7.0 % slower"; of a gain in tokens/s; returns text. */
const char *sh_predict_gain_text(double gain, char text[SH_PREDICT_LIMIT_TEXT]);

/* Read "products=1.2,network=2" as a change. Errors: SH_E_USAGE; the message lists the parts. */
sh_rc sh_predict_read_what_if(const char *text, struct sh_cost_faster *out);

#endif
