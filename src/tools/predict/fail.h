/* What failures cost: the share of the time in which a long run makes progress. Source: Daly, "A higher order estimate
 * of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), eq. 20; Young, CACM 17 (1974). Local, pure. */
#ifndef SH_PREDICT_FAIL_H
#define SH_PREDICT_FAIL_H

struct sh_predict_failures {
    double between; /* seconds between failures of the whole job; 0: it never fails */
    double save;    /* seconds that a save stops training */
    double restart; /* seconds from a failure to the first step after it, and the age of the newest committed save */
};

/* The goodput of a run that saves every `every` seconds of progress; 1 if nothing fails and saves take no time. */
double sh_predict_goodput(const struct sh_predict_failures *f, double every);

/* The interval with the best goodput. */
double sh_predict_best_interval(const struct sh_predict_failures *f);

#endif
