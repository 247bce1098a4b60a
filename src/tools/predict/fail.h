/* What failures cost: the share of the time in which a long run makes progress. Source: Daly, "A higher order estimate
 * of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), eq. 20; Young, CACM 17 (1974). Local, pure. */
#ifndef SH_PREDICT_FAIL_H
#define SH_PREDICT_FAIL_H

struct sh_predict_failures {
    double between; /* seconds between failures of the whole job; 0: it never fails */
    double save;    /* seconds that a save stops training */
    double restart; /* seconds from a failure to the first step after it, and the age of the newest committed save */
};

/* A start inside the job, from near checkpoints in memory, after a loss. All in seconds. */
struct sh_predict_recovery {
    double every; /* of progress from one copy to the next; 0: there are no copies, and nothing of this counts */
    double copy;  /* that a copy stops training, with its way to the other node */
    double
        silence; /* until a lost node is known; 0: copies on other nodes do not exist, only the death of a rank is survived */
    double end;   /* from then on, until the launcher of the other ranks has ended */
    double start; /* from the launch of the ranks until they load */
    double load;
    double again; /* steps repeated: the one under way, and the finished one that a death takes along */
};

/* From the loss until the run is where it was. */
double sh_predict_recovery_seconds(const struct sh_predict_recovery *r);

/* The goodput of a run with these copies, if every failure is one that they survive. */
double sh_predict_near_goodput(const struct sh_predict_recovery *r, double between);

/* The goodput of a run that saves every `every` seconds of progress; 1 if nothing fails and saves take no time. */
double sh_predict_goodput(const struct sh_predict_failures *f, double every);

/* The interval with the best goodput. */
double sh_predict_best_interval(const struct sh_predict_failures *f);

#endif
