/* The C interface for programs that train with a framework of their own: libposeidon_client.so.
 *
 * Called by: programs, in C or through a foreign function interface. Calls: client/client.cc, which
 * takes part in a cluster for the program (client/README.md).
 *
 * A program computes gradients; the cluster sums them over all workers, steps the optimizer and
 * brings the new parameters:
 *
 *   poseidon_create, poseidon_layer for each layer; parameters get their initial values
 *   poseidon_join
 *   again and again:
 *     poseidon_wait for each layer before forward reads its parameters
 *     poseidon_gradient for each layer once backward has written its gradient
 *     poseidon_step
 *   poseidon_finish, poseidon_destroy
 *
 * Threads: a client is used by one thread at a time; a call during another thread's call is
 * POSEIDON_INVALID. poseidon_message, poseidon_rank, poseidon_world_size and poseidon_iteration may
 * be called at any time. Everything else runs on threads of the library's own, which take no
 * signals. After fork(), calls of the child are POSEIDON_INVALID, and poseidon_destroy does nothing
 * there. The library never ends the process, installs no signal handler (with TLS, an unhandled
 * SIGPIPE is ignored) and writes nothing to stdout; it logs to stderr what a person should know.
 *
 * Memory belongs to the client: poseidon_destroy frees it. Tensors are float32. The program
 *  - writes parameters before poseidon_join alone. Afterwards it reads them, and those of a layer
 *    only between its poseidon_wait (or poseidon_join) and the next poseidon_step;
 *  - writes gradients of an iteration only once ALL layers have been waited for in it, and those of
 *    a layer not between its poseidon_gradient and that moment of the next iteration. The library
 *    sends from this memory, and after a loss once more.
 *
 * Losses: when a worker or server is lost, the job goes back to the newest iteration of which all
 * is left. Calls wait meanwhile. If the gradients that the cluster lacks are still in memory, the
 * program notices nothing. Otherwise one call returns POSEIDON_REWOUND.
 */
#ifndef POSEIDON_CLIENT_H
#define POSEIDON_CLIENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct poseidon_client poseidon_client;

typedef enum poseidon_result {
  POSEIDON_OK = 0,
  /* The call or an argument is wrong; nothing has changed. */
  POSEIDON_INVALID = 1,
  /* The cluster does not take this program: another model, no such rank, another version. */
  POSEIDON_REFUSED = 2,
  /* Nobody answered in time; the message names what was awaited. The call may be repeated. */
  POSEIDON_TIMEOUT = 3,
  /* The job has ended: it is done, or an operator stopped it, or it failed; the message says
     which. */
  POSEIDON_ENDED = 4,
  /* The job went back after a loss; the call did nothing else. Parameters and state have the values
     of poseidon_iteration(), all layers count as waited for, and no gradient of that iteration is
     reported. poseidon_rank() and poseidon_world_size() may have changed. The program goes on with
     the forward pass of that iteration. */
  POSEIDON_REWOUND = 5,
  /* Anything else, in words. */
  POSEIDON_FAILED = 6
} poseidon_result;

/* Of this library; raised when a function changes. */
int poseidon_abi_version(void);

/* Why the calling thread's last call did not return POSEIDON_OK; valid until its next call. Never
 * null. */
const char* poseidon_message(void);

/* job: the text of a job file (docs/job.md) whose "model" is declared (models/README.md).
 * options: a JSON object, unknown keys are POSEIDON_INVALID:
 *   "coordinator"         "host:port"; the only one that must be there
 *   "rank"                the rank that this worker must have; -1 (default): any
 *   "workers"             how many the job begins with; default 1. It waits for them, and keeps
 *                         their number unless its membership.min_workers is smaller
 *   "servers"             how many it uses; 0 (default): all there are
 *   "run_dir"             on the coordinator's machine; default: a new folder in its run root
 *   "listen"              "host:port" for other workers; default: any free port of the address that
 *                         reaches the coordinator
 *   "advertise"           the host under which others reach "listen"; default: its own
 *   "device"              for people
 *   "tls"                 {"tls_dir": ..., "join_token_file": ...}: as the worker's flags
 *   "shared_memory"       whether tensors go through it on one machine; default true
 *   "join_timeout_s"      of poseidon_join: until the coordinator answers and until the job trains;
 *                         default 1800
 *   "wait_timeout_s"      of every other call that waits; default 43200
 *   "server_timeout_s"    how long a server may be unreachable before the job recovers without it;
 *                         default 30
 *   "coordinator_away_s"  how long the coordinator may be unreachable; default 3600
 *   "log"                 trace, debug, info, warning (default), error or off
 * Makes the memory, all of it zero; talks to nobody. *client is null unless POSEIDON_OK. */
poseidon_result poseidon_create(const char* job, const char* options, poseidon_client** client);

/* Leaves the job if it has not ended (the others go on without this worker, or wait for a
 * replacement), ends all threads, frees all memory. Null is fine. Call it before the process
 * exits. */
void poseidon_destroy(poseidon_client* client);

/* Memory of a declared layer, its tensors end to end. Layers count from 0, in the order of their
 * declaration. */
poseidon_result poseidon_layer(poseidon_client* client, uint32_t layer, float** parameters,
                               float** gradients, int64_t* elements);

/* Memory of the declared "state" tensors, end to end, which the program changes as it likes; worker
 * 0's values count. Null and 0 where none is declared. */
poseidon_result poseidon_state(poseidon_client* client, float** values, int64_t* elements);

/* Declares the job, joins, and waits until all workers are there and training starts. Worker 0's
 * parameters and state are the initial ones. Afterwards all have the job's, which may be a
 * checkpoint's: *iteration (may be null) is the number of steps in them. */
poseidon_result poseidon_join(poseidon_client* client, int64_t* iteration);

/* -1 before poseidon_join. */
int poseidon_rank(const poseidon_client* client);
int poseidon_world_size(const poseidon_client* client);
/* How many steps the program has ended. */
int64_t poseidon_iteration(const poseidon_client* client);

/* The layer's gradient (the mean over this worker's samples) is in its memory. Once per layer and
 * iteration, in any order. Never waits for the network, but while the job recovers in a way that
 * ends with POSEIDON_REWOUND. */
poseidon_result poseidon_gradient(poseidon_client* client, uint32_t layer);

/* The rest is for jobs whose "optimizer" has "rates": "program" (docs/job.md). */

/* The norm of the mean gradient of all workers and layers, between the last poseidon_gradient of an
 * iteration and its poseidon_step. Waits for it. */
poseidon_result poseidon_gradient_norm(poseidon_client* client, double* norm);

typedef struct poseidon_rate {
  double learning_rate, weight_decay; /* not negative */
} poseidon_rate;

/* The rates of the step that ends the iteration: one for each tensor, layer by layer, as declared.
 * gradient_scale: a factor of the mean gradient; 1 leaves it as it is. All workers call it, worker
 * 0's count. Call it before the iteration's first poseidon_gradient, and servers step each layer as
 * its gradients come; or, to clip by the norm, behind the last one. Never waits for the network, as
 * poseidon_gradient. */
poseidon_result poseidon_rates(poseidon_client* client, const poseidon_rate* rates, uint64_t count,
                               double gradient_scale);

/* Ends the iteration, of which every layer's gradient is reported. loss: the mean over this
 * worker's samples; NaN: unknown. An infinite one fails the job. The state is copied. Does not wait
 * for parameters. */
poseidon_result poseidon_step(poseidon_client* client, double loss);

/* Waits until the layer's parameters have all steps that were ended. */
poseidon_result poseidon_wait(poseidon_client* client, uint32_t layer);
poseidon_result poseidon_wait_all(poseidon_client* client);

/* After the last step: all workers call it after the same number of steps. Waits for the final
 * parameters, which are in memory afterwards, and for the other workers; worker 0 stores the model
 * in the run directory. The job is done.
 * In a job whose "optimizer" has "type": "sum", the program has waited for all layers and has
 * written the model's parameters into the memory of their gradients. */
poseidon_result poseidon_finish(poseidon_client* client);

/* The program cannot go on, and a replacement could not either: the job fails, and the calls of all
 * workers end with POSEIDON_ENDED and this reason (UTF-8). Waits for that, for 10 s at most. A
 * program that only leaves calls poseidon_destroy. */
poseidon_result poseidon_fail(poseidon_client* client, const char* reason);

#ifdef __cplusplus
}
#endif

#endif /* POSEIDON_CLIENT_H */
